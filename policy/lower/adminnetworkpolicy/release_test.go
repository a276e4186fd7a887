package adminnetworkpolicy_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/api/anpv1"
	"github.com/tierwall/tierwall/policy/internal/fixture"
	"github.com/tierwall/tierwall/policy/inventory"
	"github.com/tierwall/tierwall/policy/lower/adminnetworkpolicy"
)

// Bounds of the released definitions: 100 rules a direction, not together as in the
// KEP, 100 peers, 100 ports.
func TestReleaseLimits(t *testing.T) {
	const peer = "{namespaces: {}}, "
	doc := func(ingress, egress, peers, ports int) string {
		r := fmt.Sprintf("{action: Deny, SIDE: [%s]", strings.Repeat(peer, peers))
		if ports > 0 {
			r += ", ports: [" + strings.Repeat("{portNumber: {port: 80}}, ", ports) + "]"
		}
		in := strings.Repeat(strings.ReplaceAll(r, "SIDE", "from")+"}, ", ingress)
		out := strings.Repeat(strings.ReplaceAll(r, "SIDE", "to")+"}, ", egress)
		return "apiVersion: policy.networking.k8s.io/v1alpha1\nkind: AdminNetworkPolicy\nmetadata: {name: p}\n" +
			"spec: {priority: 1000, subject: {namespaces: {}}, ingress: [" + in + "], egress: [" + out + "]}\n"
	}
	for _, c := range []struct {
		name                          string
		ingress, egress, peers, ports int
		path                          string // of the one error
	}{
		{"at the limits", 100, 100, 1, 0, ""},
		{"101 ingress", 101, 100, 1, 0, "spec.ingress"},
		{"101 egress", 0, 101, 1, 0, "spec.egress"},
		{"100 peers", 1, 1, 100, 0, ""},
		{"101 peers", 0, 1, 101, 0, "spec.egress[0].to"},
		{"100 ports", 1, 1, 1, 100, ""},
		{"101 ports", 1, 0, 1, 101, "spec.ingress[0].ports"},
	} {
		o := fixture.MustObjects(t, doc(c.ingress, c.egress, c.peers, c.ports))[0]
		got := adminnetworkpolicy.Dialect{}.Validate(o)
		switch {
		case len(got.Warnings) > 0:
			t.Errorf("%s: %v", c.name, got.Warnings)
		case c.path == "" && len(got.Errors) > 0:
			t.Errorf("%s: %v", c.name, got.Errors)
		case c.path != "" && (len(got.Errors) != 1 || got.Errors[0].Path != c.path):
			t.Errorf("%s: want one error at %s, got %v", c.name, c.path, got.Errors)
		}
	}
}

// What admission refuses may arrive from an API server with a newer
// definition. Allow then matches nothing, Deny and Pass deny everything.
func TestReleaseFailsClosed(t *testing.T) {
	empty := map[string]func(action string) any{
		"v0.1.7 ingress": func(action string) any {
			p := &anpv1.AdminNetworkPolicy{}
			p.Spec.Ingress = []anpv1.IngressRule[anpv1.IngressPeer]{{Action: action, From: []anpv1.IngressPeer{{Namespaces: all}, {}}}}
			p.Spec.Subject.Namespaces, p.Spec.Priority = all, new(int32)
			return p
		},
		"v0.1.7 egress, unreadable network": func(action string) any {
			p := &anpv1.AdminNetworkPolicy{}
			p.Spec.Egress = []anpv1.EgressRule[anpv1.EgressPeer]{{Action: action, To: []anpv1.EgressPeer{{Networks: []string{"10.0.0.0/8", "ten"}}}}}
			p.Spec.Subject.Namespaces, p.Spec.Priority = all, new(int32)
			return p
		},
		"v0.1.7 baseline, two fields": func(action string) any {
			p := &anpv1.BaselineAdminNetworkPolicy{}
			p.Spec.Egress = []anpv1.EgressRule[anpv1.BaselineEgressPeer]{{
				Action: action, To: []anpv1.BaselineEgressPeer{{Namespaces: all, Nodes: all}},
			}}
			p.Spec.Subject.Namespaces = all
			return p
		},
		"v0.1.7 half a pods": func(action string) any {
			p := &anpv1.AdminNetworkPolicy{}
			p.Spec.Ingress = []anpv1.IngressRule[anpv1.IngressPeer]{{
				Action: action, From: []anpv1.IngressPeer{{Pods: &anpv1.NamespacedPod{PodSelector: all}}},
			}}
			p.Spec.Subject.Namespaces, p.Spec.Priority = all, new(int32)
			return p
		},
		"v0.1.1 empty set": func(action string) any {
			p := &anpv1.AdminNetworkPolicy011{}
			p.Spec.Egress = []anpv1.EgressRule[anpv1.Peer011]{{Action: action, To: []anpv1.Peer011{{Namespaces: &anpv1.NamespaceSet{}}}}}
			p.Spec.Subject.Namespaces, p.Spec.Priority = all, new(int32)
			return p
		},
		"v0.1.1 baseline, half a pods": func(action string) any {
			p := &anpv1.BaselineAdminNetworkPolicy011{}
			p.Spec.Ingress = []anpv1.IngressRule[anpv1.Peer011]{{
				Action: action, From: []anpv1.Peer011{{Pods: &anpv1.PodSet{Namespaces: &anpv1.NamespaceSet{NamespaceSelector: all}}}},
			}}
			p.Spec.Subject.Namespaces = all
			return p
		},
	}
	for name, make := range empty {
		for _, action := range []string{"Allow", "Deny", "Pass"} {
			o := &api.Object{Kind: adminnetworkpolicy.Dialect{}.Kinds()[0], Name: "default", Value: make(action)}
			if found := (adminnetworkpolicy.Dialect{}).Validate(o); len(found.Errors) == 0 {
				t.Errorf("%s: accepted", name)
			}
			set, found := adminnetworkpolicy.Dialect{}.Lower([]*api.Object{o}, &inventory.Snapshot{})
			if len(set.Rules) != 1 || len(found.Warnings) != 1 {
				t.Errorf("%s: %s: %d rules, %v", name, action, len(set.Rules), found)
				continue
			}
			r := &set.Rules[0]
			closed := r.Action == rule.Deny && len(r.Peers) == 1 && r.Peers[0].Kind == rule.PeerAny &&
				len(r.L4) == 1 && r.L4[0] == rule.AnyL4
			nothing := r.Action == rule.Allow && len(r.Peers) == 0
			if (action == "Allow") != nothing || (action != "Allow") != closed {
				t.Errorf("%s: %s lowered to\n%s", name, action, set.Text())
			}
			if err := set.Validate(); err != nil {
				t.Error(err)
			}
		}
	}
}

// Other things admission refuses select less, never more.
func TestReleaseUncheckedSelectsLess(t *testing.T) {
	base := func() *anpv1.AdminNetworkPolicy {
		p := &anpv1.AdminNetworkPolicy{}
		p.Spec.Subject.Namespaces, p.Spec.Priority = all, new(int32)
		p.Spec.Ingress = []anpv1.IngressRule[anpv1.IngressPeer]{{Action: "Deny", From: []anpv1.IngressPeer{{Namespaces: all}}}}
		return p
	}
	e := rule.Endpoint{Namespace: "x", Name: "p"}
	for name, change := range map[string]func(*anpv1.AdminNetworkPolicy){
		"nothing wrong": nil,
		"no priority":   func(p *anpv1.AdminNetworkPolicy) { p.Spec.Priority = nil },
		"no subject":    func(p *anpv1.AdminNetworkPolicy) { p.Spec.Subject = anpv1.Subject{} },
		"half a subject": func(p *anpv1.AdminNetworkPolicy) {
			p.Spec.Subject = anpv1.Subject{Pods: &anpv1.NamespacedPod{PodSelector: all}}
		},
		"unknown action": func(p *anpv1.AdminNetworkPolicy) { p.Spec.Ingress[0].Action = "Log" },
		"no port":        func(p *anpv1.AdminNetworkPolicy) { p.Spec.Ingress[0].Ports = []anpv1.Port{{}} },
		"port 0": func(p *anpv1.AdminNetworkPolicy) {
			p.Spec.Ingress[0].Ports = []anpv1.Port{{PortNumber: &anpv1.PortNumber{}}}
		},
		"ports empty": func(p *anpv1.AdminNetworkPolicy) { p.Spec.Ingress[0].Ports = []anpv1.Port{} },
		"range backwards": func(p *anpv1.AdminNetworkPolicy) {
			p.Spec.Ingress[0].Ports = []anpv1.Port{{PortRange: &anpv1.PortRange{Start: 2, End: 1}}}
		},
		"protocol": func(p *anpv1.AdminNetworkPolicy) {
			p.Spec.Ingress[0].Ports = []anpv1.Port{{PortNumber: &anpv1.PortNumber{Protocol: "ICMP", Port: 1}}}
		},
	} {
		p := base()
		if change != nil {
			change(p)
		}
		o := &api.Object{Kind: adminnetworkpolicy.Dialect{}.Kinds()[0], Name: "p", Value: p}
		if found := (adminnetworkpolicy.Dialect{}).Validate(o); (len(found.Errors) == 0) != (change == nil) {
			t.Errorf("%s: %v", name, found)
		}
		set, _ := adminnetworkpolicy.Dialect{}.Lower([]*api.Object{o}, &inventory.Snapshot{})
		decides := false
		for i := range set.Rules {
			decides = decides || set.Rules[i].Subject.Matches(&e) && len(set.Rules[i].L4) > 0
		}
		if decides != (change == nil) {
			t.Errorf("%s: decides: %v\n%s", name, decides, set.Text())
		}
	}
}
