package clusternetworkpolicy

import (
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/api"
	cnp "github.com/tierwall/tierwall/policy/api/cnpv1alpha2"
	"github.com/tierwall/tierwall/policy/diag"
	"github.com/tierwall/tierwall/policy/internal/kube"
	"github.com/tierwall/tierwall/policy/inventory"
	"github.com/tierwall/tierwall/policy/lower/internal/upstream"
)

// Group, Version and Name of the one kind this dialect lowers.
const (
	Group   = "policy.networking.k8s.io"
	Version = "v1alpha2"
	Name    = "ClusterNetworkPolicy"
)

// Dialect lowers ClusterNetworkPolicy. The zero value is ready; it has no state.
type Dialect struct{}

// Name implements the dialect interface.
func (Dialect) Name() string { return "clusternetworkpolicy" }

// Kinds lists the one kind.
func (Dialect) Kinds() []api.Kind {
	return []api.Kind{{
		Group: Group, Version: Version, Kind: Name,
		New:  func() any { return new(cnp.ClusterNetworkPolicy) },
		Hint: fieldHint,
	}}
}

// Lower translates objects that Validate accepts. It warns about rules that fail
// closed, of which Validate leaves none.
func (Dialect) Lower(objs []*api.Object, _ *inventory.Snapshot) (rule.Set, diag.List) {
	var set rule.Set
	var findings diag.List
	for _, o := range objs {
		p, ok := policyOf(o)
		if !ok {
			continue // Validate has refused it
		}
		f := &kube.Findings{Object: o}
		set.Add(p.Lower(f))
		findings.Add(f.List)
	}
	return set, findings
}

// Ranked returns the objects with their ranks, for [upstream.Conflicts].
func (Dialect) Ranked(objs []*api.Object) []upstream.Ranked {
	var out []upstream.Ranked
	for _, o := range objs {
		if p, ok := policyOf(o); ok {
			out = append(out, upstream.Ranked{
				Object: o, Band: p.Band, Rank: p.Rank, Priority: int32(p.Rank), Subject: p.Subject.Selector(),
			})
		}
	}
	return out
}

// policyOf brings an object into the shared form; false for one without a tier
// there is.
func policyOf(o *api.Object) (*upstream.Policy, bool) {
	p, ok := o.Value.(*cnp.ClusterNetworkPolicy)
	if !ok {
		return nil, false
	}
	s := &p.Spec
	out := &upstream.Policy{Object: o, Rank: float64(s.Priority), Allow: string(cnp.Accept), Subject: upstream.Subject{
		Namespaces: s.Subject.Namespaces, Pods: podsOf(s.Subject.Pods, field(o.Raw, "spec", "subject", "pods")),
	}}
	switch s.Tier {
	case cnp.Admin:
		out.Band = rule.BandAdmin
	case cnp.Baseline:
		out.Band = rule.BandBaseline
	default:
		return nil, false
	}
	rules(o, s, out)
	return out, true
}

// rules fills the rules of p.
func rules(o *api.Object, s *cnp.Spec, p *upstream.Policy) {
	raw := listOf(field(o.Raw, "spec", "ingress"))
	for i := range s.Ingress {
		in := &s.Ingress[i]
		from := listOf(field(item(raw, i), "from"))
		r := ruleOf(in.Name, in.Action, in.Protocols)
		for j := range in.From {
			peer := &in.From[j]
			r.Peers = append(r.Peers, upstream.Peer{
				Namespaces: peer.Namespaces, Pods: podsOf(peer.Pods, field(item(from, j), "pods")),
			})
		}
		p.Ingress = append(p.Ingress, r)
	}
	raw = listOf(field(o.Raw, "spec", "egress"))
	for i := range s.Egress {
		in := &s.Egress[i]
		to := listOf(field(item(raw, i), "to"))
		r := ruleOf(in.Name, in.Action, in.Protocols)
		for j := range in.To {
			peer := &in.To[j]
			r.Peers = append(r.Peers, upstream.Peer{
				Namespaces: peer.Namespaces, Pods: podsOf(peer.Pods, field(item(to, j), "pods")),
				Nodes: peer.Nodes, Networks: stringsOf(peer.Networks), DomainNames: stringsOf(peer.DomainNames),
			})
		}
		p.Egress = append(p.Egress, r)
	}
}

func ruleOf(name string, action cnp.Action, protocols []cnp.Protocol) upstream.Rule {
	r := upstream.Rule{Name: name, Action: string(action)}
	if protocols == nil {
		r.L4 = []rule.L4{rule.AnyL4}
	}
	for i := range protocols {
		if l4, ok := l4Of(&protocols[i]); ok {
			r.L4 = append(r.L4, l4)
			r.NamedPort = r.NamedPort || l4.Name != ""
		}
	}
	return r
}

// podsOf keeps what the published type loses: whether podSelector was written.
// raw is the field as it was, nil where that is not known.
func podsOf(p *cnp.NamespacedPod, raw any) *upstream.Pods {
	if p == nil {
		return nil
	}
	out := &upstream.Pods{Namespaces: &p.NamespaceSelector, Pods: &p.PodSelector}
	if m, ok := raw.(map[string]any); ok && m["podSelector"] == nil {
		out.Pods = nil
	}
	return out
}

func stringsOf[S ~string](in []S) []string {
	if in == nil {
		return nil
	}
	out := make([]string, len(in))
	for i, s := range in {
		out[i] = string(s)
	}
	return out
}

// l4Of lowers one item of protocols; ok is false for one that validation refuses,
// which then matches nothing.
func l4Of(p *cnp.Protocol) (rule.L4, bool) {
	set, proto, port := protocolOf(p)
	switch {
	case len(set) != 1:
		return rule.L4{}, false
	case p.DestinationNamedPort != "":
		return upstream.NamedPort(p.DestinationNamedPort), true
	case port == nil:
		return rule.L4{}, false // {} asks for nothing; the API refuses it
	case port.Range == nil:
		return upstream.Ports(proto, port.Number, port.Number)
	case port.Number == 0:
		return upstream.Ports(proto, port.Range.Start, port.Range.End)
	}
	return rule.L4{}, false
}

// protocolOf returns the names of the fields that are set, and what the last of
// them says.
func protocolOf(p *cnp.Protocol) (set []string, proto flow.Proto, port *cnp.Port) {
	if p.TCP != nil {
		set, proto, port = append(set, "tcp"), flow.TCP, p.TCP.DestinationPort
	}
	if p.UDP != nil {
		set, proto, port = append(set, "udp"), flow.UDP, p.UDP.DestinationPort
	}
	if p.SCTP != nil {
		set, proto, port = append(set, "sctp"), flow.SCTP, p.SCTP.DestinationPort
	}
	if p.DestinationNamedPort != "" {
		set = append(set, "destinationNamedPort")
	}
	return set, proto, port
}

// field walks into nested generic maps; nil when there is nothing.
func field(v any, names ...string) any {
	for _, n := range names {
		m, _ := v.(map[string]any)
		v = m[n]
	}
	return v
}

func listOf(v any) []any { l, _ := v.([]any); return l }

func item(l []any, i int) any {
	if i < len(l) {
		return l[i]
	}
	return nil
}
