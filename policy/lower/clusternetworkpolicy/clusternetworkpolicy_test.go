package clusternetworkpolicy_test

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/api"
	cnp "github.com/tierwall/tierwall/policy/api/cnpv1alpha2"
	"github.com/tierwall/tierwall/policy/internal/fixture"
	"github.com/tierwall/tierwall/policy/inventory"
	"github.com/tierwall/tierwall/policy/lower/clusternetworkpolicy"
)

func TestFixtures(t *testing.T) { fixture.Run(t) }

var all = &metav1.LabelSelector{}

// object returns a valid policy that was never a document.
func object(change func(*cnp.ClusterNetworkPolicy)) *api.Object {
	p := &cnp.ClusterNetworkPolicy{}
	p.Spec = cnp.Spec{
		Tier: cnp.Admin, Subject: cnp.Subject{Namespaces: all},
		Ingress: []cnp.IngressRule{{Action: cnp.Deny, From: []cnp.IngressPeer{{Namespaces: all}}}},
	}
	if change != nil {
		change(p)
	}
	return &api.Object{Kind: clusternetworkpolicy.Dialect{}.Kinds()[0], Name: "p", Value: p, Generation: 3}
}

// 25 of everything.
func TestLimits(t *testing.T) {
	rule := func(side string, peers, protocols int) string {
		r := fmt.Sprintf("{action: Deny, %s: [%s]", side, strings.Repeat("{namespaces: {}}, ", peers))
		if protocols > 0 {
			r += ", protocols: [" + strings.Repeat("{tcp: {destinationPort: {number: 80}}}, ", protocols) + "]"
		}
		return r + "}, "
	}
	for _, c := range []struct {
		name, spec string
		path       string // of the one error
	}{
		{"25 each", "ingress: [" + strings.Repeat(rule("from", 1, 1), 25) + "], egress: [" + strings.Repeat(rule("to", 1, 1), 25) + "]", ""},
		{"26 ingress", "ingress: [" + strings.Repeat(rule("from", 1, 1), 26) + "]", "spec.ingress"},
		{"26 egress", "egress: [" + strings.Repeat(rule("to", 1, 1), 26) + "]", "spec.egress"},
		{"25 peers and protocols", "ingress: [" + rule("from", 25, 25) + "]", ""},
		{"26 peers", "ingress: [" + rule("from", 26, 0) + "]", "spec.ingress[0].from"},
		{"26 protocols", "egress: [" + rule("to", 1, 26) + "]", "spec.egress[0].protocols"},
	} {
		o := fixture.MustObjects(t, "apiVersion: policy.networking.k8s.io/v1alpha2\nkind: ClusterNetworkPolicy\nmetadata: {name: p}\n"+
			"spec: {tier: Baseline, priority: 1000, subject: {namespaces: {}}, "+c.spec+"}")[0]
		got := clusternetworkpolicy.Dialect{}.Validate(o)
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

// A rule with a peer this version does not know fails closed.
func TestFailsClosed(t *testing.T) {
	for _, action := range []cnp.Action{cnp.Accept, cnp.Deny, cnp.Pass} {
		o := object(func(p *cnp.ClusterNetworkPolicy) {
			p.Spec.Ingress = nil
			p.Spec.Egress = []cnp.EgressRule{{
				Action: action, To: []cnp.EgressPeer{{Namespaces: all}, {}},
				Protocols: []cnp.Protocol{{DestinationNamedPort: "web"}},
			}}
		})
		if found := (clusternetworkpolicy.Dialect{}).Validate(o); len(found.Errors) != 1 || found.Errors[0].Path != "spec.egress[0].to[1]" {
			t.Errorf("%s: %v", action, found)
		}
		set, found := clusternetworkpolicy.Dialect{}.Lower([]*api.Object{o}, &inventory.Snapshot{})
		if len(set.Rules) != 1 || len(found.Warnings) != 1 {
			t.Fatalf("%s: %v\n%s", action, found, set.Text())
		}
		r := &set.Rules[0]
		if action == cnp.Accept {
			if r.Action != rule.Allow || len(r.Peers) != 0 {
				t.Errorf("Accept lowered to\n%s", set.Text())
			}
		} else if r.Action != rule.Deny || len(r.Peers) != 1 || r.Peers[0].Kind != rule.PeerAny || r.L4[0] != rule.AnyL4 {
			t.Errorf("%s lowered to\n%s", action, set.Text())
		}
		if err := set.Validate(); err != nil {
			t.Error(err)
		}
	}
}

// What admission refuses selects less, never more.
func TestUncheckedSelectsLess(t *testing.T) {
	e := rule.Endpoint{Namespace: "x", Name: "p"}
	protocol := func(pr cnp.Protocol) func(*cnp.ClusterNetworkPolicy) {
		return func(p *cnp.ClusterNetworkPolicy) { p.Spec.Ingress[0].Protocols = []cnp.Protocol{pr} }
	}
	port := func(n int32) *cnp.Port { return &cnp.Port{Number: n} }
	for name, change := range map[string]func(*cnp.ClusterNetworkPolicy){
		"nothing wrong":   nil,
		"no tier":         func(p *cnp.ClusterNetworkPolicy) { p.Spec.Tier = "" },
		"unknown tier":    func(p *cnp.ClusterNetworkPolicy) { p.Spec.Tier = "NetworkPolicy" },
		"no subject":      func(p *cnp.ClusterNetworkPolicy) { p.Spec.Subject.Namespaces = nil },
		"two subjects":    func(p *cnp.ClusterNetworkPolicy) { p.Spec.Subject.Pods = &cnp.NamespacedPod{} },
		"unknown action":  func(p *cnp.ClusterNetworkPolicy) { p.Spec.Ingress[0].Action = "Allow" }, // the older API's word
		"protocols empty": func(p *cnp.ClusterNetworkPolicy) { p.Spec.Ingress[0].Protocols = []cnp.Protocol{} },
		"no protocol":     protocol(cnp.Protocol{}),
		"tcp: {}":         protocol(cnp.Protocol{TCP: &cnp.TCP{}}),
		"port 0":          protocol(cnp.Protocol{UDP: &cnp.UDP{DestinationPort: port(0)}}),
		"port 65536":      protocol(cnp.Protocol{SCTP: &cnp.SCTP{DestinationPort: port(65536)}}),
		"two protocols":   protocol(cnp.Protocol{TCP: &cnp.TCP{DestinationPort: port(1)}, UDP: &cnp.UDP{DestinationPort: port(1)}}),
		"two ports":       protocol(cnp.Protocol{TCP: &cnp.TCP{DestinationPort: &cnp.Port{Number: 1, Range: &cnp.PortRange{Start: 1, End: 2}}}}),
		"range backwards": protocol(cnp.Protocol{TCP: &cnp.TCP{DestinationPort: &cnp.Port{Range: &cnp.PortRange{Start: 2, End: 1}}}}),
	} {
		o := object(change)
		if found := (clusternetworkpolicy.Dialect{}).Validate(o); (len(found.Errors) == 0) != (change == nil) {
			t.Errorf("%s: %v", name, found)
		}
		set, _ := clusternetworkpolicy.Dialect{}.Lower([]*api.Object{o}, &inventory.Snapshot{})
		decides := false
		for i := range set.Rules {
			decides = decides || set.Rules[i].Subject.Matches(&e) && len(set.Rules[i].L4) > 0
		}
		if decides != (change == nil) {
			t.Errorf("%s: decides: %v\n%s", name, decides, set.Text())
		}
	}
}

func TestKeepsWhatExplainNeeds(t *testing.T) {
	o := object(func(p *cnp.ClusterNetworkPolicy) {
		p.Spec.Tier = cnp.Baseline
		p.Spec.Ingress[0].Name, p.Spec.Ingress[0].Action = "end-of-tier", cnp.Pass
	})
	set, _ := clusternetworkpolicy.Dialect{}.Lower([]*api.Object{o}, &inventory.Snapshot{})
	want := rule.Origin{
		Group: "policy.networking.k8s.io", Kind: "ClusterNetworkPolicy", Name: "p", Rule: "end-of-tier", Word: "Pass", Generation: 3,
	}
	if got := set.Rules[0].Origin; got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := set.Rules[0].Skip; got != rule.Bands(rule.BandBaseline) {
		t.Errorf("Pass skips %s", got)
	}
	other := &api.Object{Kind: o.Kind, Name: "x", Value: "not a policy"}
	if found := (clusternetworkpolicy.Dialect{}).Validate(other); len(found.Errors) != 1 {
		t.Error("took a string for a policy")
	}
}
