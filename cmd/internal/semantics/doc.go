// Command semantics checks docs/semantics.md, the table of every behaviour the
// design documents describe, against the tests that prove it, and counts.
//
//	go run ./cmd/internal/semantics          the counts, per document
//	go run ./cmd/internal/semantics -missing and every line without a proof
//	go run ./cmd/internal/semantics -cites   the tests and fixtures with a case for each number
//	go run ./cmd/internal/semantics -run     run the proofs; one that fails does not count
//	go run ./cmd/internal/semantics -update  write the list of refusals from the fixtures
//
// A line of the table has four columns: number, behaviour, state and proofs. The
// states are
//
//	enforced       Tierwall does it
//	refused        Tierwall refuses it with a message; the table of refusals has the text
//	informational  nothing to test: why
//	not yet        not done: why
//
// The first two need a proof, the last two a reason and no proof. A proof is
// `package/path:TestName` or the path of a txtar fixture, both relative to the
// module's root. It counts when it exists and has a case for the number, not only
// a sentence about it. A case is
//
//	in a fixture   a connection with its verdict (section expect), or a line of a
//	               manifest that a finding names; also the line that names the
//	               object the finding is about
//	in a test      an assertion (an if, case or call that can fail the test), or a
//	               row of a table that one goes through or compares with
//
// The number is in a comment on the case's line, in a test also right above it or
// in a string of it: the name of a subtest, for example. "S0-41…S0-49" cites what is
// between, too.
//
// Below the tables is the list of everything that is refused, with its message.
// It is generated from the findings in the fixtures and has to be theirs.
//
// The package's test fails on anything else, so the table cannot rot: a test that
// is renamed or a number that is lost breaks the build.
package main
