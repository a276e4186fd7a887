// Package ci has no code: it is the place of the pipeline step for GitHub and GitLab,
// and of the tests that run it as a runner would.
package ci
