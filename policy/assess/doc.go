// Package assess finds out which policy objects can be in force together, and says
// of every other object what is wrong with it.
//
//	stored object ── Decode ──► api.Object ─┐
//	                    └► findings         ├── Run ──► rules of what can be in force
//	the world ──────────────────────────────┤           refused objects, with their errors
//	versions in force, where there are any ─┘           errors of several objects together
//
// The controller, "tierwall check" and its relatives, admission and status
// conditions all ask Run, so they cannot disagree about an object.
//
// # What Run guarantees
//
// An object with an error never changes what another object does. Objects
// are told apart by [api.Ref], which has the group: three APIs have a
// ClusterNetworkPolicy. What Run returns does not depend on the order of the
// objects, and Run ends for any of them: every round takes at least one object back
// to its older version, or out.
//
// An error that several objects cause together (AdminNetworkPolicies of two
// dialects, two tiers of one priority) is an error of all: no object is chosen to be
// the wrong one. All of them are taken back to what was in force before, and no other
// object hears of it. Where nothing has been in force yet there is nothing to go back
// to: then there are no rules.
//
// The package is pure: no I/O, no clock, no goroutine.
package assess
