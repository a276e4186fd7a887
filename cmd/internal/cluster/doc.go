// Package cluster reaches a Kubernetes cluster with its user's own rights, and the
// daemons in it.
//
//	kubeconfig ─► Options.Open ─► Cluster ─┬─► objects, by the API server
//	                                       └─► Daemons ─► port-forward ─► api.Client
//
// # Rights
//
// Nothing here has rights of its own: the API server answers what the user may
// ask. Finding the daemons takes "list pods" in their namespace, reading one takes
// "create pods/portforward" there. Who has that can reach every port of these
// pods: it is an operator's right, and docs/cli.md says so.
//
// # How a daemon is reached
//
// Its pod is on the host network and listens on the node's 127.0.0.1. Each
// connection is a pair of streams to that port, through the API server and the
// kubelet, as "kubectl port-forward" makes them; no port is opened on the user's
// machine, where others could use it.
package cluster
