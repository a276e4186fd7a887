package simulate

import (
	"math/rand/v2"
	"slices"

	"github.com/tierwall/tierwall/policy/api/kepanp"
)

// Random AdminNetworkPolicies of the KEP.

func randomANP(r *rand.Rand) kepanp.Spec {
	s := kepanp.Spec{Priority: ptr(pick(r, []int32{0, 0, 1, 10, 10, 1000}))}
	if chance(r, 2) {
		s.Subject.NamespaceSelector = randomNsSelector(r)
	} else {
		s.Subject.NamespaceAndPodSelector = &kepanp.NamespaceAndPodSelector{
			NamespaceSelector: randomNsSelector(r), PodSelector: randomSelector(r, podKeys),
		}
	}
	rule := func() (name, action string, l4 kepanp.L4Selector, peers []kepanp.Peer) {
		for range (1 + r.IntN(5)) / 2 {
			peers = append(peers, randomKEPPeer(r))
		}
		return pick(r, []string{"", "", "first", "second"}), pick(r, []string{"Allow", "Deny", "Pass"}), randomKEPL4(r), peers
	}
	for range r.IntN(4) {
		n, a, l4, p := rule()
		s.Ingress = append(s.Ingress, kepanp.IngressRule{Name: n, Action: a, L4Selector: l4, From: p})
	}
	for range r.IntN(4) {
		n, a, l4, p := rule()
		s.Egress = append(s.Egress, kepanp.EgressRule{Name: n, Action: a, L4Selector: l4, To: p})
	}
	return s
}

func randomKEPL4(r *rand.Rand) kepanp.L4Selector {
	if chance(r, 2) {
		return kepanp.L4Selector{AllPorts: ptr(true)}
	}
	var ps []kepanp.Port
	for range 1 + r.IntN(2) {
		proto, port, end := randomPort(r)
		ps = append(ps, kepanp.Port{Protocol: proto, Port: port, EndPort: end})
	}
	return kepanp.L4Selector{Ports: ps}
}

func randomKEPPeer(r *rand.Rand) kepanp.Peer {
	n := &kepanp.NamespaceSet{}
	switch r.IntN(6) {
	case 0:
		n.Self = ptr(true)
	case 1:
		n.NotSelf = ptr(true)
	case 2:
		n.SameLabels = randomKeys(r, nsKeys)
	case 3:
		n.NotSameLabels = randomKeys(r, nsKeys)
	default:
		n.NamespaceSelector = randomNsSelector(r)
	}
	if chance(r, 2) {
		return kepanp.Peer{Namespaces: n}
	}
	p := &kepanp.PodSet{}
	switch r.IntN(4) {
	case 0:
		p.SameLabels = randomKeys(r, podKeys)
	case 1:
		p.NotSameLabels = randomKeys(r, podKeys)
	default:
		p.PodSelector = randomSelector(r, podKeys)
	}
	return kepanp.Peer{NamespacedPods: &kepanp.NamespaceAndPodSet{Namespaces: n, Pods: p}}
}

// randomKeys lists one or both keys, rarely one that nobody has, rarely none.
func randomKeys(r *rand.Rand, keys []string) []string {
	switch r.IntN(8) {
	case 0:
		return []string{noKeys}
	case 1:
		return []string{keys[0], "absent"}
	case 2, 3:
		return slices.Clone(keys)
	}
	return []string{pick(r, keys)}
}
