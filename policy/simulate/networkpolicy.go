package simulate

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/inventory"
)

// netpol is one NetworkPolicy.
type netpol struct {
	obj  *api.Object // identity: the envelope is authoritative
	spec *networkingv1.NetworkPolicySpec
}

// networkPolicies returns the rules of the NetworkPolicies that select the subject
// in the direction, and the policies: all of them isolate.
func (s *Simulator) networkPolicies(c *connection, d flow.Direction, subject *inventory.Pod) (lines []line, isolating []string) {
	for _, p := range s.np {
		if p.obj.Namespace != subject.Namespace || !isolates(p.spec, d) || !s.selects(&p.spec.PodSelector, subject.Labels) {
			continue
		}
		isolating = append(isolating, ref(p.obj))
		if d == flow.Ingress {
			for i, r := range p.spec.Ingress {
				lines = append(lines, line{obj: p.obj, index: i, matches: c.ask(func(c *connection) bool { return s.npMatch(c, d, subject, r.From, r.Ports) })})
			}
			continue
		}
		for i, r := range p.spec.Egress {
			lines = append(lines, line{obj: p.obj, index: i, matches: c.ask(func(c *connection) bool { return s.npMatch(c, d, subject, r.To, r.Ports) })})
		}
	}
	return lines, isolating
}

// isolates reports whether the policy concerns the direction. "If no policyTypes
// are specified on a NetworkPolicy then by default Ingress will always be set and
// Egress will be set if the NetworkPolicy has any egress rules" (Kubernetes
// documentation, Network Policies).
func isolates(spec *networkingv1.NetworkPolicySpec, d flow.Direction) bool {
	if len(spec.PolicyTypes) == 0 {
		return d == flow.Ingress || len(spec.Egress) > 0
	}
	want := networkingv1.PolicyTypeIngress
	if d == flow.Egress {
		want = networkingv1.PolicyTypeEgress
	}
	return slices.Contains(spec.PolicyTypes, want)
}

// npMatch asks one rule: empty peers or ports do not restrict.
func (s *Simulator) npMatch(c *connection, d flow.Direction, subject *inventory.Pod, peers []networkingv1.NetworkPolicyPeer, ports []networkingv1.NetworkPolicyPort) bool {
	if len(peers) > 0 && !slices.ContainsFunc(peers, func(p networkingv1.NetworkPolicyPeer) bool {
		return s.npPeer(&p, c.peer(d), subject)
	}) {
		return false
	}
	return len(ports) == 0 || slices.ContainsFunc(ports, func(p networkingv1.NetworkPolicyPort) bool {
		return portMatches(c, p.Protocol, p.Port, p.EndPort)
	})
}

func (s *Simulator) npPeer(p *networkingv1.NetworkPolicyPeer, peer *party, subject *inventory.Pod) bool {
	if p.IPBlock != nil {
		if !contains(p.IPBlock.CIDR, peer.addr) {
			return false
		}
		return !slices.ContainsFunc(p.IPBlock.Except, func(e string) bool { return contains(e, peer.addr) })
	}
	return peer.is(func(pod *inventory.Pod) bool {
		if p.NamespaceSelector == nil { // pods of the policy's own namespace
			if pod.Namespace != subject.Namespace {
				return false
			}
		} else if !s.selects(p.NamespaceSelector, s.nsLabels[pod.Namespace]) {
			return false
		}
		return p.PodSelector == nil || s.selects(p.PodSelector, pod.Labels)
	})
}

func contains(cidr string, a netip.Addr) bool {
	p, err := netip.ParsePrefix(cidr)
	return err == nil && p.Contains(a)
}

// portMatches applies one item of a ports section. NetworkPolicyPort, the KEP's
// port and Antrea's share its meaning (S0-57, S0-58, S0-60, S2-37): the protocol is TCP unless
// given, an absent port is every port of the protocol, a name is looked up on
// the destination pod.
func portMatches(c *connection, protocol *corev1.Protocol, port *intstr.IntOrString, end *int32) bool {
	want := corev1.ProtocolTCP
	if protocol != nil {
		want = *protocol
	}
	if c.key.Proto.String() != string(want) {
		return false
	}
	if port == nil {
		return true
	}
	if port.Type == intstr.String {
		return namedPort(c, port.StrVal, c.key.Proto)
	}
	number := int32(c.key.DstPort)
	if end != nil {
		return port.IntVal <= number && number <= *end
	}
	return number == port.IntVal
}
