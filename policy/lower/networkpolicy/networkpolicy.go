package networkpolicy

import (
	"net/netip"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/diag"
	"github.com/tierwall/tierwall/policy/internal/kube"
	"github.com/tierwall/tierwall/policy/inventory"
)

// Group, Version and Name of the one kind this dialect lowers.
const (
	Group   = "networking.k8s.io"
	Version = "v1"
	Name    = "NetworkPolicy"
)

// NamespaceLogging is the namespace annotation that turns on audit records for
// every NetworkPolicy in it: "true" in any case. Antrea introduced it.
const NamespaceLogging = "networkpolicy.antrea.io/enable-logging"

// Dialect lowers NetworkPolicy. The zero value is ready; it has no state.
type Dialect struct{}

// Name implements the dialect interface.
func (Dialect) Name() string { return "networkpolicy" }

// Kinds lists the one kind.
func (Dialect) Kinds() []api.Kind {
	return []api.Kind{{
		Group: Group, Version: Version, Kind: Name, Namespaced: true,
		New: func() any { return new(networkingv1.NetworkPolicy) },
	}}
}

// Lower translates objects that Validate accepts. It adds a warning where a
// namespace's logging annotation has a value that means nothing.
func (Dialect) Lower(objs []*api.Object, inv *inventory.Snapshot) (rule.Set, diag.List) {
	var set rule.Set
	var findings diag.List
	logged := map[string]bool{}
	for i := range inv.Namespaces {
		ns := &inv.Namespaces[i]
		v, ok := ns.Annotations[NamespaceLogging]
		if !ok {
			continue
		}
		logged[ns.Name] = strings.EqualFold(v, "true")
		if !logged[ns.Name] && !strings.EqualFold(v, "false") {
			findings.Warnings = append(findings.Warnings, diag.Diagnostic{
				File: ns.File, Object: api.Ref{Kind: "Namespace", Name: ns.Name},
				Path:    "metadata.annotations[\"" + NamespaceLogging + "\"]",
				Message: "neither \"true\" nor \"false\": logging stays off",
				Hint:    `write "true" or "false"`,
			})
		}
	}
	for _, o := range objs {
		p, ok := o.Value.(*networkingv1.NetworkPolicy)
		if !ok {
			continue // Validate has refused it
		}
		settings := kube.ParseSettings(&kube.Findings{Object: o})
		settings.Audit = settings.Audit || logged[o.Namespace]
		l := lowering{object: o, settings: settings}
		l.policy(&p.Spec)
		set.Add(l.set)
	}
	return set, findings
}

// lowering is one policy on its way.
type lowering struct {
	object   *api.Object
	settings kube.Settings
	set      rule.Set
}

// directions applies the defaults of policyTypes.
func directions(s *networkingv1.NetworkPolicySpec) (ingress, egress bool) {
	if len(s.PolicyTypes) == 0 {
		return true, len(s.Egress) > 0
	}
	return slices.Contains(s.PolicyTypes, networkingv1.PolicyTypeIngress),
		slices.Contains(s.PolicyTypes, networkingv1.PolicyTypeEgress)
}

func (l *lowering) policy(s *networkingv1.NetworkPolicySpec) {
	subject := rule.Selector{Namespace: l.object.Namespace, PodLabels: kube.Labels(&s.PodSelector)}
	ingress, egress := directions(s)
	if ingress {
		l.isolate(flow.Ingress, subject)
		for i := range s.Ingress {
			l.rule(flow.Ingress, subject, i, s.Ingress[i].From, s.Ingress[i].Ports)
		}
	}
	if egress {
		l.isolate(flow.Egress, subject)
		for i := range s.Egress {
			l.rule(flow.Egress, subject, i, s.Egress[i].To, s.Egress[i].Ports)
		}
	}
}

func (l *lowering) origin(index int, word string) rule.Origin {
	return rule.Origin{
		Group: Group, Kind: Name, Namespace: l.object.Namespace, Name: l.object.Name,
		Index: index, Word: word, Generation: l.object.Generation,
	}
}

func (l *lowering) isolate(d flow.Direction, subject rule.Selector) {
	l.set.Isolations = append(l.set.Isolations, rule.Isolation{
		Direction: d, Band: rule.BandNetworkPolicy, Subject: subject,
		Audit: l.settings.Audit, Stage: l.settings.Stage, Origin: l.origin(-1, ""),
	})
}

func (l *lowering) rule(d flow.Direction, subject rule.Selector, index int,
	peers []networkingv1.NetworkPolicyPeer, ports []networkingv1.NetworkPolicyPort,
) {
	r := rule.Rule{
		Direction: d,
		Order: rule.Order{
			Band: rule.BandNetworkPolicy,
			Name: l.object.Namespace + "/" + l.object.Name, Index: int32(index),
		},
		Subject: subject,
		Action:  rule.Allow,
		Audit:   l.settings.Audit,
		Stage:   l.settings.Stage,
		Origin:  l.origin(index, "Allow"),
	}
	if len(peers) == 0 {
		r.Peers = []rule.Peer{{Kind: rule.PeerAny}}
	}
	for i := range peers {
		r.Peers = append(r.Peers, l.peer(&peers[i]))
	}
	if len(ports) == 0 {
		r.L4 = []rule.L4{rule.AnyL4}
	}
	for i := range ports {
		if l4, ok := portOf(&ports[i]).L4(); ok {
			r.L4 = append(r.L4, l4)
		}
	}
	l.set.Rules = append(l.set.Rules, r)
}

// peer lowers one peer. What Validate refuses selects nothing.
func (l *lowering) peer(p *networkingv1.NetworkPolicyPeer) rule.Peer {
	switch {
	case p.IPBlock != nil:
		if b, ok := block(p.IPBlock); ok && p.PodSelector == nil && p.NamespaceSelector == nil {
			return rule.Peer{Kind: rule.PeerBlock, Block: b}
		}
	case p.PodSelector != nil || p.NamespaceSelector != nil:
		var s rule.Selector
		if p.NamespaceSelector != nil {
			s.NamespaceLabels = kube.Labels(p.NamespaceSelector)
		} else {
			s.Namespace = l.object.Namespace
		}
		if p.PodSelector != nil {
			s.PodLabels = kube.Labels(p.PodSelector)
		}
		return rule.Peer{Kind: rule.PeerPods, Pods: s}
	}
	return rule.Peer{Kind: rule.PeerPods, Pods: rule.Selector{None: true}}
}

func block(b *networkingv1.IPBlock) (rule.IPBlock, bool) {
	p, err := netip.ParsePrefix(b.CIDR)
	if err != nil || p.Addr().Is4In6() {
		return rule.IPBlock{}, false
	}
	out := rule.IPBlock{Prefix: p.Masked()}
	for _, s := range b.Except {
		e, err := netip.ParsePrefix(s)
		if err != nil || e.Addr().Is4In6() {
			return rule.IPBlock{}, false // a hole we cannot read must not be filled
		}
		out.Except = append(out.Except, e.Masked())
	}
	return out, true
}

func portOf(p *networkingv1.NetworkPolicyPort) kube.Port {
	return kube.Port{Protocol: p.Protocol, Port: p.Port, EndPort: p.EndPort}
}
