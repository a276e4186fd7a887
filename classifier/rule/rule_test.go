package rule

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/tierwall/tierwall/classifier/flow"
)

func TestRequirement(t *testing.T) {
	labels := map[string]string{"app": "web", "empty": ""}
	for _, tc := range []struct {
		r    Requirement
		want bool
	}{
		{Requirement{"app", In, []string{"db", "web"}}, true},
		{Requirement{"app", In, []string{"db"}}, false},
		{Requirement{"none", In, []string{"db"}}, false},
		{Requirement{"empty", In, []string{""}}, true},
		{Requirement{"none", In, []string{""}}, false}, // absent is not empty
		{Requirement{"app", NotIn, []string{"web"}}, false},
		{Requirement{"none", NotIn, []string{"web"}}, true},
		{Requirement{"app", Exists, nil}, true},
		{Requirement{"none", Exists, nil}, false},
		{Requirement{"none", NotExists, nil}, true},
		{Requirement{"app", NotExists, nil}, false},
		{Requirement{"app", 0, nil}, false}, // zero value matches nothing
	} {
		if got := tc.r.Matches(labels); got != tc.want {
			t.Errorf("%+v: %t", tc.r, got)
		}
	}
}

func TestSelector(t *testing.T) {
	e := &Endpoint{
		Namespace: "x", Labels: map[string]string{"app": "a"}, NamespaceLabels: map[string]string{"team": "t"}, ServiceAccount: "sa",
	}
	app := Labels{{"app", In, []string{"a"}}}
	no := Labels{{"app", In, []string{"b"}}}
	for name, tc := range map[string]struct {
		s    Selector
		want bool
	}{
		"zero selects every pod": {Selector{}, true},
		"namespace":              {Selector{Namespace: "x"}, true},
		"other namespace":        {Selector{Namespace: "y"}, false},
		"labels":                 {Selector{PodLabels: app}, true},
		"labels differ":          {Selector{PodLabels: no}, false},
		"namespace labels":       {Selector{NamespaceLabels: Labels{{"team", Exists, nil}}, PodLabels: app}, true},
		"both must hold":         {Selector{NamespaceLabels: Labels{{"team", NotExists, nil}}, PodLabels: app}, false},
		"service account":        {Selector{ServiceAccount: "sa"}, true},
		"other account":          {Selector{ServiceAccount: "default"}, false},
		"one of":                 {Selector{AnyOf: []Selector{{PodLabels: no}, {PodLabels: app}}}, true},
		"none of":                {Selector{AnyOf: []Selector{{PodLabels: no}}}, false},
		"one of and more":        {Selector{Namespace: "y", AnyOf: []Selector{{PodLabels: app}}}, false},
		"unknown option":         {Selector{Namespace: "x", None: true}, false}, // S0-33
	} {
		if got := tc.s.Matches(e); got != tc.want {
			t.Errorf("%s: %t", name, got)
		}
	}
	host := *e
	host.HostNetwork = true
	if (&Selector{}).Matches(&host) {
		t.Error("a host-network pod is selected")
	}
}

// Label lists of the KEP and of the first release, whose notSameLabels differ.
func TestLabelRelation(t *testing.T) {
	m := func(kv ...string) map[string]string {
		out := map[string]string{}
		for i := 0; i < len(kv); i += 2 {
			out[kv[i]] = kv[i+1]
		}
		return out
	}
	one, two := []string{"t"}, []string{"t", "u"}
	for _, tc := range []struct {
		op         RelationOp
		keys       []string
		subj, peer map[string]string
		want       bool
	}{
		{NoRelation, nil, m(), m(), true},
		{SameLabels, nil, m("t", "1"), m("t", "1"), false}, // S0-42, S0-48
		{SameLabels, one, m("t", "1"), m("t", "1"), true},  // S0-41, S0-48
		{SameLabels, one, m("t", "1"), m("t", "2"), false}, // S0-41, S0-48
		{SameLabels, one, m("t", "1"), m(), false},         // S0-41
		{SameLabels, one, m(), m(), false},
		{SameLabels, two, m("t", "1", "u", "1"), m("t", "1", "u", "1"), true},
		{SameLabels, two, m("t", "1", "u", "1"), m("t", "1", "u", "2"), false}, // S0-41: every key
		{NotSameLabelsKEP, nil, m("t", "1"), m("t", "2"), false},               // S0-44, S0-49
		{NotSameLabelsKEP, one, m("t", "1"), m("t", "2"), true},                // S0-43, S0-49
		{NotSameLabelsKEP, one, m("t", "1"), m("t", "1"), false},               // S0-43, S0-49
		{NotSameLabelsKEP, one, m("t", "1"), m(), true},                        // missing at the peer differs, for the KEP
		{NotSameLabelsKEP, one, m(), m("t", "2"), false},                       // subject lacks the key: no-op
		{NotSameLabelsKEP, two, m("t", "1", "u", "1"), m("t", "1", "u", "2"), true},
		{NotSameLabelsRelease, one, m("t", "1"), m("t", "2"), true},
		{NotSameLabelsRelease, one, m("t", "1"), m(), false}, // the release wants it there
		{NotSameLabelsRelease, two, m("t", "1", "u", "1"), m("t", "2"), false},
	} {
		r := LabelRelation{tc.op, tc.keys}
		if got := r.Holds(tc.subj, tc.peer); got != tc.want {
			t.Errorf("op %d keys %v subject %v peer %v: %t", tc.op, tc.keys, tc.subj, tc.peer, got)
		}
	}
}

func TestIPBlock(t *testing.T) {
	p := netip.MustParsePrefix
	b := IPBlock{Prefix: p("10.0.0.0/8"), Except: []netip.Prefix{p("10.1.0.0/16")}}
	for a, want := range map[string]bool{"10.0.0.1": true, "10.1.2.3": false, "11.0.0.1": false, "::ffff:10.0.0.1": true, "fd00::1": false} {
		if got := b.Contains(netip.MustParseAddr(a)); got != want {
			t.Errorf("%s: %t", a, got)
		}
	}
}

// TestCompare walks the order keys from the most to the least significant: in
// each row the first rule is evaluated before the second.
func TestCompare(t *testing.T) {
	for name, tc := range map[string]struct{ first, second Rule }{
		"band":     {Rule{Order: Order{Band: BandAdmin, Tier: 9}}, Rule{Order: Order{Band: BandNetworkPolicy}}},
		"tier":     {Rule{Order: Order{Tier: 1, Priority: 9}}, Rule{Order: Order{Tier: 2}}},
		"priority": {Rule{Order: Order{Priority: -1000, Name: "z"}}, Rule{Order: Order{Priority: -1, Name: "a"}}}, // S0-14
		"fraction": {Rule{Order: Order{Priority: 1.5}}, Rule{Order: Order{Priority: 1.6}}},                        // S2-19
		"class":    {Rule{Order: Order{Class: 0, Name: "z"}}, Rule{Order: Order{Class: 1, Name: "a"}}},
		"name":     {Rule{Order: Order{Name: "a", Index: 9}}, Rule{Order: Order{Name: "b"}}},
		"index":    {Rule{Order: Order{Index: 1}, Action: Allow}, Rule{Order: Order{Index: 2}, Action: Deny}},
		"strict":   {Rule{Action: Deny, Origin: Origin{Name: "z"}}, Rule{Action: Allow, Origin: Origin{Name: "a"}}},
		"pass":     {Rule{Action: Skip}, Rule{Action: Allow}},
		"origin":   {Rule{Origin: Origin{Namespace: "a", Name: "z"}}, Rule{Origin: Origin{Namespace: "b", Name: "a"}}},
	} {
		if Compare(&tc.first, &tc.second) >= 0 || Compare(&tc.second, &tc.first) <= 0 {
			t.Errorf("%s: not ordered", name)
		}
	}
}

func TestSortSeparatesDirections(t *testing.T) {
	s := Set{Rules: []Rule{
		{Direction: flow.Egress, Order: Order{Band: BandAdmin}, Origin: Origin{Name: "c"}},
		{Direction: flow.Ingress, Order: Order{Band: BandBaseline}, Origin: Origin{Name: "b"}},
		{Direction: flow.Ingress, Order: Order{Band: BandAdmin}, Origin: Origin{Name: "a"}},
	}}
	s.Sort()
	var got []string
	for _, r := range s.Rules {
		got = append(got, r.Origin.Name)
	}
	if !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Errorf("order %v", got)
	}
}

func TestText(t *testing.T) {
	for want, got := range map[string]string{
		"networkpolicy.networking.k8s.io/x/p":            (&Origin{Group: "networking.k8s.io", Kind: "NetworkPolicy", Namespace: "x", Name: "p"}).Ref(),
		"adminnetworkpolicy.policy.networking.k8s.io//p": (&Origin{Group: "policy.networking.k8s.io", Kind: "AdminNetworkPolicy", Name: "p"}).Ref(),
		"egress[2]":            (&Origin{Index: 2}).RuleName(flow.Egress),
		"mine":                 (&Origin{Index: 2, Rule: "mine"}).RuleName(flow.Egress),
		"":                     (&Origin{Index: -1}).RuleName(flow.Ingress),
		"any protocol":         (&L4{Ports: AllPorts, SrcPorts: AllPorts}).String(),
		"TCP 80":               (&L4{Proto: flow.TCP, Ports: PortRange{80, 80}, SrcPorts: AllPorts}).String(),
		"UDP 1-9 from port 53": (&L4{Proto: flow.UDP, Ports: PortRange{1, 9}, SrcPorts: PortRange{53, 53}}).String(),
		"SCTP port web":        (&L4{Proto: flow.SCTP, Name: "web", SrcPorts: AllPorts}).String(),
		"ICMP type 8":          (&L4{Proto: flow.ICMP, Ports: PortRange{8 << 8, 8<<8 | 255}, SrcPorts: AllPorts}).String(),
		"ICMP type 3 code 4":   (&L4{Proto: flow.ICMP, Ports: PortRange{3<<8 | 4, 3<<8 | 4}, SrcPorts: AllPorts}).String(),
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
