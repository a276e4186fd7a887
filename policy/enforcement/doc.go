// Package enforcement is how a node says what it enforces: a [Report], carried in
// the annotations of a Lease.
//
//	daemon ── Report ── Encode ──► Lease tierwall-NODE ──► Decode ── Report.State ──► status, CLI
//	          constant size                                          per object
//
// A report does not list what is enforced: with ten thousand policies on five
// thousand nodes that would be a flood. It names, for each policy resource, the
// resourceVersion up to which the table in force has taken the API server's
// events in, and the few objects that were refused. From these two follows the
// state of every object:
//
//	observed[resource] < version of the object     Pending: the node has not seen it
//	the object is in the list of refused ones      Refused: an older version of it,
//	                                               or none, is in force
//	otherwise                                      Enforced
//
// Versions compare as integers, as the API server's documentation allows for
// objects of one resource since Kubernetes 1.35 and as etcd has always made
// them.
//
// # Which version to ask about
//
// An update of an object's status raises its resourceVersion too, and a node
// reports that one only with its next heartbeat. Who writes status and asks
// about the version it wrote would see every node fall back to Pending: ask about
// the version with which the object's generation was first seen.
//
// The package is pure: it reads and writes no API server, takes no clock and
// starts no goroutine.
package enforcement
