// Package archtest holds the module's dependency rules as a test. The rules are
// the arrows of docs/architecture.md; each has its reason beside it.
package archtest
