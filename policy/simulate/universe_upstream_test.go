package simulate

import (
	"math/rand/v2"

	corev1 "k8s.io/api/core/v1"

	"github.com/tierwall/tierwall/policy/api/anpv1"
	"github.com/tierwall/tierwall/policy/api/cnpv1alpha2"
	"github.com/tierwall/tierwall/policy/api/kepcnp"
)

// Random objects of the upstream admin family and of the KEP of 2021.

// released draws AdminNetworkPolicies of a release and perhaps the baseline. The
// annotation says which release, so that a policy without anything peculiar to
// one is read as meant.
func (u *draft) released(release string) {
	r := u.r
	const version = "policy.networking.k8s.io/v1alpha1"
	forced := map[string]string{"tierwall.io/dialect": release}
	for range r.IntN(6) {
		priority := ptr(pick(r, []int32{0, 0, 1, 10, 10, 1000}))
		if release == "v0.1.1" {
			u.annotated(version, "AdminNetworkPolicy", pick(r, names), forced, anpv1.Spec[anpv1.Peer011, anpv1.Peer011]{
				Priority: priority, Subject: randomSubject(r), Ingress: ingressRules(r, adminActions, randomPeer011), Egress: egressRules(r, adminActions, plainPeer(randomPeer011)),
			})
			continue
		}
		u.annotated(version, "AdminNetworkPolicy", pick(r, names), forced, anpv1.Spec[anpv1.IngressPeer, anpv1.EgressPeer]{
			Priority: priority, Subject: randomSubject(r), Ingress: ingressRules(r, adminActions, randomIngressPeer), Egress: egressRules(r, adminActions, randomEgressPeer),
		})
	}
	if chance(r, 3) {
		return
	}
	if release == "v0.1.1" {
		u.annotated(version, "BaselineAdminNetworkPolicy", "default", forced, anpv1.BaselineSpec[anpv1.Peer011, anpv1.Peer011]{
			Subject: randomSubject(r), Ingress: ingressRules(r, baselineActions, randomPeer011), Egress: egressRules(r, baselineActions, plainPeer(randomPeer011)),
		})
		return
	}
	u.annotated(version, "BaselineAdminNetworkPolicy", "default", forced, anpv1.BaselineSpec[anpv1.IngressPeer, anpv1.BaselineEgressPeer]{
		Subject: randomSubject(r), Ingress: ingressRules(r, baselineActions, randomIngressPeer),
		Egress: egressRules(r, baselineActions, func(r *rand.Rand, action string, named bool) anpv1.BaselineEgressPeer {
			p := randomEgressPeer(r, "Deny", named) // no domain names
			return anpv1.BaselineEgressPeer{Namespaces: p.Namespaces, Pods: p.Pods, Nodes: p.Nodes, Networks: p.Networks}
		}),
	})
}

// annotated is add with annotations that belong to the object's meaning.
func (u *draft) annotated(apiVersion, kind, name string, notes map[string]string, spec any) {
	u.notes = notes
	u.add(apiVersion, kind, "", name, spec, nil)
	u.notes = nil
}

var (
	adminActions    = []string{"Allow", "Deny", "Pass"}
	baselineActions = []string{"Allow", "Deny"}
)

func randomSubject(r *rand.Rand) anpv1.Subject {
	if chance(r, 2) {
		return anpv1.Subject{Namespaces: randomNsSelector(r)}
	}
	return anpv1.Subject{Pods: randomNamespacedPod(r)}
}

func randomNamespacedPod(r *rand.Rand) *anpv1.NamespacedPod {
	return &anpv1.NamespacedPod{NamespaceSelector: randomNsSelector(r), PodSelector: randomSelector(r, podKeys)}
}

func ingressRules[P any](r *rand.Rand, actions []string, peer func(*rand.Rand) P) (out []anpv1.IngressRule[P]) {
	for range r.IntN(4) {
		rule := anpv1.IngressRule[P]{Name: pick(r, []string{"", "", "first", "second"}), Action: pick(r, actions)}
		rule.Ports, _ = randomReleasedPorts(r)
		for range 1 + r.IntN(2) {
			rule.From = append(rule.From, peer(r))
		}
		out = append(out, rule)
	}
	return out
}

func egressRules[P any](r *rand.Rand, actions []string, peer func(r *rand.Rand, action string, named bool) P) (out []anpv1.EgressRule[P]) {
	for range r.IntN(4) {
		rule := anpv1.EgressRule[P]{Name: pick(r, []string{"", "", "first", "second"}), Action: pick(r, actions)}
		var named bool
		rule.Ports, named = randomReleasedPorts(r)
		for range 1 + r.IntN(2) {
			rule.To = append(rule.To, peer(r, rule.Action, named))
		}
		out = append(out, rule)
	}
	return out
}

func plainPeer[P any](peer func(*rand.Rand) P) func(*rand.Rand, string, bool) P {
	return func(r *rand.Rand, _ string, _ bool) P { return peer(r) }
}

// randomReleasedPorts is absent half the time. named reports a named port, which
// has no place beside addresses.
func randomReleasedPorts(r *rand.Rand) (ps []anpv1.Port, named bool) {
	if chance(r, 2) {
		return nil, false
	}
	for range 1 + r.IntN(2) {
		var proto corev1.Protocol
		if !chance(r, 3) {
			proto = pick(r, l4Protos)
		}
		switch r.IntN(4) {
		case 0:
			named = true
			ps = append(ps, anpv1.Port{NamedPort: ptr(pick(r, portNames))})
		case 1:
			ps = append(ps, anpv1.Port{PortRange: &anpv1.PortRange{Protocol: proto, Start: pick(r, ports[:2]), End: pick(r, []int32{82, 100, 8080, 65535})}})
		default:
			ps = append(ps, anpv1.Port{PortNumber: &anpv1.PortNumber{Protocol: proto, Port: pick(r, ports)}})
		}
	}
	return ps, named
}

func randomIngressPeer(r *rand.Rand) anpv1.IngressPeer {
	if chance(r, 2) {
		return anpv1.IngressPeer{Namespaces: randomNsSelector(r)}
	}
	return anpv1.IngressPeer{Pods: randomNamespacedPod(r)}
}

func randomEgressPeer(r *rand.Rand, action string, named bool) anpv1.EgressPeer {
	kind := r.IntN(6)
	if named && kind > 2 {
		kind = 0
	}
	switch kind {
	case 3:
		return anpv1.EgressPeer{Nodes: randomSelector(r, nodeKeys)}
	case 4:
		return anpv1.EgressPeer{Networks: randomNetworks(r)}
	case 5:
		if action == "Allow" {
			return anpv1.EgressPeer{DomainNames: pick(r, [][]string{{"*.foobar.com"}, {"foobar.com"}, {"Foobar.com."}})}
		}
		return anpv1.EgressPeer{Networks: randomNetworks(r)}
	case 0:
		return anpv1.EgressPeer{Pods: randomNamespacedPod(r)}
	}
	return anpv1.EgressPeer{Namespaces: randomNsSelector(r)}
}

// randomNetworks lists one or two different blocks.
func randomNetworks(r *rand.Rand) []string {
	i := r.IntN(len(cidrs))
	out := []string{cidrs[i][0]}
	if chance(r, 2) {
		out = append(out, cidrs[(i+1+r.IntN(len(cidrs)-1))%len(cidrs)][0])
	}
	return out
}

func randomPeer011(r *rand.Rand) anpv1.Peer011 {
	var n anpv1.NamespaceSet
	switch r.IntN(4) {
	case 0:
		n.SameLabels = randomKeys(r, nsKeys)
	case 1:
		n.NotSameLabels = randomKeys(r, nsKeys)
	default:
		n.NamespaceSelector = randomNsSelector(r)
	}
	if chance(r, 2) {
		return anpv1.Peer011{Namespaces: &n}
	}
	return anpv1.Peer011{Pods: &anpv1.PodSet{Namespaces: &n, PodSelector: randomSelector(r, podKeys)}}
}

// randomFewKeys is randomKeys without the empty list.
func randomFewKeys(r *rand.Rand, keys []string) []string {
	for {
		if ks := randomKeys(r, keys); ks[0] != noKeys {
			return ks
		}
	}
}

func randomCNP(r *rand.Rand) cnpv1alpha2.Spec {
	s := cnpv1alpha2.Spec{Tier: pick(r, []cnpv1alpha2.Tier{cnpv1alpha2.Admin, cnpv1alpha2.Baseline}), Priority: pick(r, []int32{0, 0, 1, 10, 10, 1000})}
	pods := func() *cnpv1alpha2.NamespacedPod {
		p := &cnpv1alpha2.NamespacedPod{PodSelector: *randomSelector(r, podKeys)}
		if !chance(r, 3) {
			p.NamespaceSelector = *randomNsSelector(r)
		}
		return p
	}
	if chance(r, 2) {
		s.Subject.Namespaces = randomNsSelector(r)
	} else {
		s.Subject.Pods = pods()
	}
	actions := []cnpv1alpha2.Action{cnpv1alpha2.Accept, cnpv1alpha2.Deny, cnpv1alpha2.Pass}
	ruleName := func() string { return pick(r, []string{"", "", "first", "second"}) }
	for range r.IntN(4) {
		rule := cnpv1alpha2.IngressRule{Name: ruleName(), Action: pick(r, actions)}
		rule.Protocols, _ = randomProtocols(r)
		for range 1 + r.IntN(2) {
			if chance(r, 2) {
				rule.From = append(rule.From, cnpv1alpha2.IngressPeer{Namespaces: randomNsSelector(r)})
			} else {
				rule.From = append(rule.From, cnpv1alpha2.IngressPeer{Pods: pods()})
			}
		}
		s.Ingress = append(s.Ingress, rule)
	}
	for range r.IntN(4) {
		rule := cnpv1alpha2.EgressRule{Name: ruleName(), Action: pick(r, actions)}
		var named bool
		rule.Protocols, named = randomProtocols(r)
		for range 1 + r.IntN(2) {
			kind := r.IntN(6)
			if named && kind > 2 {
				kind = 0
			}
			var p cnpv1alpha2.EgressPeer
			switch {
			case kind == 3:
				p.Nodes = randomSelector(r, nodeKeys)
			case kind == 4 || kind == 5 && rule.Action != cnpv1alpha2.Accept:
				for _, n := range randomNetworks(r) {
					p.Networks = append(p.Networks, cnpv1alpha2.CIDR(n))
				}
			case kind == 5:
				p.DomainNames = []cnpv1alpha2.DomainName{pick(r, []cnpv1alpha2.DomainName{"*.foobar.com", "foobar.com", "Foobar.com."})}
			case kind == 0:
				p.Pods = pods()
			default:
				p.Namespaces = randomNsSelector(r)
			}
			rule.To = append(rule.To, p)
		}
		s.Egress = append(s.Egress, rule)
	}
	return s
}

func randomProtocols(r *rand.Rand) (ps []cnpv1alpha2.Protocol, named bool) {
	if chance(r, 2) {
		return nil, false
	}
	for range 1 + r.IntN(2) {
		port := &cnpv1alpha2.Port{Number: pick(r, ports)}
		if chance(r, 3) {
			port = &cnpv1alpha2.Port{Range: &cnpv1alpha2.PortRange{Start: pick(r, ports[:2]), End: pick(r, []int32{82, 100, 8080, 65535})}}
		}
		switch r.IntN(4) {
		case 0:
			named = true
			ps = append(ps, cnpv1alpha2.Protocol{DestinationNamedPort: pick(r, portNames)})
		case 1:
			ps = append(ps, cnpv1alpha2.Protocol{UDP: &cnpv1alpha2.UDP{DestinationPort: port}})
		case 2:
			ps = append(ps, cnpv1alpha2.Protocol{SCTP: &cnpv1alpha2.SCTP{DestinationPort: port}})
		default:
			ps = append(ps, cnpv1alpha2.Protocol{TCP: &cnpv1alpha2.TCP{DestinationPort: port}})
		}
	}
	return ps, named
}

// kepCluster draws the two kinds of the KEP of 2021. A default policy's
// direction is absent, null, empty or filled.
func (u *draft) kepCluster() {
	r := u.r
	const version = "netpol.networking.k8s.io/v1alpha1"
	for range r.IntN(5) {
		s := kepcnp.Spec{AppliedTo: randomAppliedTo(r)}
		for range r.IntN(4) {
			s.Ingress = append(s.Ingress, kepcnp.IngressRule{Action: pick(r, kepActions), Ports: randomNPPorts(r), From: randomClusterPeers(r)})
		}
		for range r.IntN(4) {
			s.Egress = append(s.Egress, kepcnp.EgressRule{Action: pick(r, kepActions), Ports: randomNPPorts(r), To: randomClusterPeers(r)})
		}
		u.add(version, "ClusterNetworkPolicy", "", pick(r, names), s, nil)
	}
	for range r.IntN(4) {
		s := kepcnp.DefaultSpec{AppliedTo: randomAppliedTo(r)}
		for range r.IntN(3) {
			s.Ingress = append(s.Ingress, kepcnp.DefaultIngressRule{Ports: randomNPPorts(r), From: randomClusterPeers(r)})
		}
		for range r.IntN(3) {
			s.Egress = append(s.Egress, kepcnp.DefaultEgressRule{Ports: randomNPPorts(r), To: randomClusterPeers(r)})
		}
		u.add(version, "ClusterDefaultNetworkPolicy", "", pick(r, names), s, func(spec map[string]any) {
			for _, d := range []string{"ingress", "egress"} {
				if _, filled := spec[d]; filled {
					continue
				}
				switch r.IntN(3) {
				case 0:
					spec[d] = nil
				case 1:
					spec[d] = []any{}
				}
			}
		})
	}
}

var kepActions = []string{"Empower", "Deny", "Allow"}

func randomAppliedTo(r *rand.Rand) *kepcnp.AppliedTo {
	a := &kepcnp.AppliedTo{NamespaceSelector: randomNsSelector(r)}
	if chance(r, 2) {
		a.PodSelector = randomSelector(r, podKeys)
	}
	return a
}

func randomClusterPeers(r *rand.Rand) (ps []kepcnp.Peer) {
	for range r.IntN(3) {
		var p kepcnp.Peer
		switch r.IntN(5) {
		case 0:
			p.Namespaces = &kepcnp.Namespaces{Scope: pick(r, []string{"Self", "self"})}
		case 1:
			p.Namespaces = &kepcnp.Namespaces{Scope: pick(r, []string{"SameLabels", "samelabels"}), Labels: randomFewKeys(r, nsKeys)}
		case 2:
			p.Namespaces = &kepcnp.Namespaces{Scope: "Selector", Selector: randomNsSelector(r)}
		default:
			p.NamespaceSelector = randomNsSelector(r)
		}
		if chance(r, 2) {
			p.PodSelector = randomSelector(r, podKeys)
		}
		ps = append(ps, p)
	}
	return ps
}
