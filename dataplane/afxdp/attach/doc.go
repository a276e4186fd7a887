// Package attach puts the programs of package kern onto devices, and tells them which
// pod each device belongs to.
//
//	netlink ──► watch ──► Devices ──┬─► hooks    tcx or clsact on pods' devices
//	(links,     scene     plan      ├─► guard    maps: device ↔ addresses (bpf/guard.h)
//	 routes)                        ├─► exits    pod_exit on devices that lead out
//	                                ├─► gate     netfilter hooks, for devices without it
//	                                └─► uplinks  XDP towards other nodes
//
// Devices reads the state of the network namespace, decides by it alone (options,
// makePlan), and makes the kernel what it should be. A device that appears gets its
// programs at once; everything else waits until a stream of changes has settled.
//
// All methods belong to one thread in the node's network namespace, except Wait and
// Unjudged. HostSet may be asked by any goroutine.
package attach
