// Package kube has what policy languages built on Kubernetes conventions share:
// label selectors, port items, the tierwall.io annotations, and the form in which
// a dialect reports what it finds.
//
// Each part comes as a pair. The check says what an API server would refuse, with
// field path and hint; the conversion turns a checked value into the rule IR and
// cannot fail. A conversion given a value that was never checked selects less,
// never more.
package kube
