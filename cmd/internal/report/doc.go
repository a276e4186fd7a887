// Package report writes down what policies amount to, for people who were not
// there: auditors, other teams, the author a year later.
//
//	cli.Input ─┐
//	audit log ─┼─► Build ─► Report ─┬─► JSON, a contract
//	daemons   ─┘                    └─► WriteHTML: the same, shown
//
// It decides nothing by itself. Who can reach whom comes from [assure.Matrix],
// overrides from package lint, order from package listing, the log's hash chain
// from package auditlog.
//
// The page is one file: styles and pictures are in it, it has no scripts, and its
// content security policy forbids to load or run anything. Names go through
// html/template only.
package report
