package lint_test

import "testing"

// TestDNSCacheCut is X-62: egress isolation holds for the pod's own node, so a policy
// that lets pods reach the DNS pods cuts them from the cache that answers on the node.
func TestDNSCacheCut(t *testing.T) {
	const cached = world + "pod kube-system/cache k8s-app=node-local-dns node=n1 hostNetwork\nservice kube-system/kube-dns 10.96.0.10 k8s-app=kube-dns 53/UDP\n"
	const cut = "spec.egress: the egress rules let pod x/a reach DNS pods, but not the DNS cache of its node"
	rule := func(peer string) string {
		return np("p", "{podSelector: {matchLabels: {app: a}}, policyTypes: [Egress], egress: [{to: ["+peer+"], ports: [{port: 53, protocol: UDP}]}]}")
	}
	const pods = "{namespaceSelector: {}, podSelector: {matchLabels: {k8s-app: kube-dns}}}"
	each(t, cached, [][3]string{
		{"the DNS pods only", rule(pods), cut},
		{"and the cache's address", rule(pods + ", {ipBlock: {cidr: 169.254.20.10/32}}"), ""},
		{"and the address of kube-dns, which the cache has, too", rule(pods + ", {ipBlock: {cidr: 10.96.0.10/32}}"), ""},
		{"and the node's", rule(pods + ", {ipBlock: {cidr: 192.0.2.0/24}}"), ""},
		{"and another address", rule(pods + ", {ipBlock: {cidr: 198.51.100.0/24}}"), cut},
		{"anywhere", np("p", "{podSelector: {matchLabels: {app: a}}, policyTypes: [Egress], egress: [{ports: [{port: 53, protocol: UDP}]}]}"), ""},
		{"nothing at all is meant", np("p", "{podSelector: {matchLabels: {app: a}}, policyTypes: [Egress]}"), ""},
		{"nodes by selector", acnp("p", "{priority: 1, tier: baseline, "+toX+", egress: [{action: Allow, to: [{nodeSelector: {}}, {podSelector: {}}]}, {action: Drop}]}"), ""},
		{
			"all nodes are denied", acnp("p", "{priority: 1, "+toX+", egress: [{action: Allow, to: [{podSelector: {}}]}, {action: Drop, to: [{ipBlock: {cidr: 0.0.0.0/0}}]}]}"),
			"spec.egress[1]: the egress rules let pod x/a reach DNS pods, but not the DNS cache of its node",
		},
		{"Cilium's nodes", ciliumPolicy("p", "{endpointSelector: {matchLabels: {app: a}}, egress: [{toEndpoints: [{matchLabels: {io.kubernetes.pod.namespace: kube-system}}]}]}"), cut},
		{"Cilium, host and remote nodes", ciliumPolicy("p", "{endpointSelector: {matchLabels: {app: a}}, egress: [{toEntities: [cluster]}]}"), ""},
	})
	each(t, world, [][3]string{{"no cache", rule(pods), ""}})
}
