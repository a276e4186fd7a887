// Package assess decodes and lowers the policy objects of an API server, and says
// for each object what is wrong with it.
//
//	stored object ── Decode ──► api.Object ─┐
//	                    └► findings         ├── Run ──► findings by object
//	the world ──────────────────────────────┘           the rules of those without errors
//
// Packages decode and lower know objects by kind and name, which is what people
// read. Three APIs have a ClusterNetworkPolicy, so here an object is known
// by [ID], which has the group. It is how status conditions and admission share
// the code of "tierwall check".
//
// The package is pure: no I/O, no clock, no goroutine.
package assess
