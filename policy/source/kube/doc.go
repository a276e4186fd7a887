// Package kube reads policies and inventory from a Kubernetes API server: once,
// with [Read], or following every change, with [Source].
//
//	            list, watch                 our form                 Follow
//	API server ═════════════► reflector ──► feed ──► sink ──┬──► policies, decoded
//	  pods, namespaces, nodes, services     (version)       └──► inventory.View
//	  every policy API that is installed
//	  definitions (names only) ──► discovery: which policy APIs those are
//
// A [Source] is a controller.Follower. client-go's reflectors list and watch, stream
// lists where the API server can, follow bookmarks, and start again after whatever
// goes wrong. What they hear is converted at once into the form that policy needs
// and the rest is dropped: a hundred thousand Pods as the API server sends them
// would be a gigabyte. There is one copy of each object, of equal label sets, and
// of the names that come again and again.
//
// # Policies
//
// Objects are read as JSON and decoded by package decode, with the code that reads
// manifests: a field that this version does not know is refused, not dropped
// also where the API server would accept it. Status and managed fields are
// not looked at. An object that cannot be decoded is returned with Problems; what
// becomes of it is the controller's business (controller.Config.Isolate). An update
// that changes nothing for policy keeps the *api.Object of before, so that work on
// it can be remembered by pointer.
//
// Which policy APIs there are is found out while running: they may be installed and
// removed. An API that is not there has no objects. Where a kind is served in
// several versions it is read in one, the first in the dialects' order; kinds served
// only in versions we do not know are reported.
//
// # The world
//
// Pods that have finished are left to the API server (a field selector) and dropped
// here, too. A pod on the host network shares its node's addresses. An address that
// two live pods seem to have belongs to one: the one that is not being deleted, or
// else the younger.
//
// Lists that Follow returns are never written to again, and are the same memory as
// long as nothing in them changes. Pods are kept in chunks: a change copies one of
// them, and two views are compared by which chunks they share, so that nobody walks
// all pods because of one.
//
// # What it guarantees
//
// Follow returns nothing before everything has been read once: the first table is
// complete. After that it returns what is known, whether the API server answers or
// not; a lost watch, a version that has expired, a list begun anew change nothing by
// themselves. Follow never returns half of a list.
//
// [Source.Observed] tells, by resource, up to which version everything is in force,
// and never runs ahead of what [Source.InForce] was told.
//
// # The snapshot
//
// What is in force is kept in a file, so that a node that starts while the API
// server is away enforces it. The file is replaced as a whole, a little after
// changes, and its time is when the API server last agreed. It is used only if the
// API server has not been read in time, if it is not too old, and if all of it can
// be read: a part of a policy is none. The moment everything has been read it is
// not used any more.
package kube
