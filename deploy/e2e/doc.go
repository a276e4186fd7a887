// Package e2e tests a cluster that runs Tierwall and no other policy
// implementation: policies between real pods on one node and on two, by pod
// address, ClusterIP and NodePort; kubelet probes under a policy that denies
// everything; the rights of ordinary roles; what the API server keeps of a policy
// with a mistake.
//
//	KUBECONFIG=... TIERWALL_E2E_IMAGE=... go test ./deploy/e2e -v
//
// The image is one with /agnhost (Kubernetes' test image) that the nodes can get.
// Without the two variables the tests skip. They make namespaces of their own, and
// cluster-scoped policies that select only those, and remove them.
package e2e
