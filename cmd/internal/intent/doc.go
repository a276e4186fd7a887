// Package intent reads tests of policies, runs them, and writes the results in the
// forms that other tools read.
//
//	Intent, netassert YAML, traffic.json ─► Load ─► []Test ─► Run ─► Results ─► text, TAP, JUnit, SARIF, JSON
//
// A [Test] says what has to happen to every connection between two ends. [Run] asks
// package assure about all of them at once: an end of a hundred pods and "any" port
// is one question, and one connection that is decided otherwise makes the test fail.
//
// Nothing is skipped in silence. An unknown field, an end that means nothing, a file
// without a test are errors that name file and line, and no test is run.
package intent
