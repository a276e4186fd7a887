// Package e2e tests a cluster that runs Tierwall and no other policy
// implementation: policies between real pods on one node and on two, by pod
// address, ClusterIP and NodePort; kubelet probes under a policy that denies
// everything; the rights of ordinary roles; what the API server keeps of a policy
// with a mistake; and that nothing is lost and nothing passes while daemons restart,
// while the API server is away, and while pods start.
//
//	CGO_ENABLED=0 go build -o traffic ./deploy/e2e/traffic/cmd/traffic # into an image, as /traffic
//	KUBECONFIG=... TIERWALL_E2E_IMAGE=... TIERWALL_E2E_TRAFFIC_IMAGE=... go test ./deploy/e2e -v -timeout 30m
//
// The first image is one with /agnhost (Kubernetes' test image), the second one with
// /traffic (package traffic); the nodes must be able to get both. Without the
// variables the tests skip. They make namespaces of their own, and cluster-scoped
// policies that select only those, and remove them. TestRollingRestart restarts the
// DaemonSet (TIERWALL_E2E_DAEMONSET, tierwall/tierwall unless told).
// TestAPIServerAway stops the API server by the commands it is given. TestNewPods asks
// every address of the nodes' pod CIDRs; where Node objects have none, those of
// TIERWALL_E2E_POD_CIDRS ("10.244.1.0/24,10.244.2.0/24").
package e2e
