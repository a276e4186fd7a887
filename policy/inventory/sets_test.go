package inventory_test

import (
	"net/netip"
	"reflect"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/inventory"
)

func addresses(texts ...string) []netip.Addr {
	var out []netip.Addr
	for _, t := range texts {
		out = append(out, netip.MustParseAddr(t))
	}
	return out
}

func TestSets(t *testing.T) {
	snap := &inventory.Snapshot{
		Nodes: []inventory.Node{
			{Name: "cp", Labels: map[string]string{"node-role.kubernetes.io/control-plane": "", "zone": "a"}, Addrs: addresses("192.0.2.1", "2001:db8::1")},
			{Name: "w1", Labels: map[string]string{"zone": "a"}, Addrs: addresses("192.0.2.3", "192.0.2.2")},
			{Name: "w2", Labels: map[string]string{"zone": "b"}, Addrs: addresses("192.0.2.4", "192.0.2.3")}, // shares one
		},
		Services: []inventory.Service{
			{Namespace: "a", Name: "x", ClusterIPs: addresses("10.96.0.1", "fd00::1")},
			{Namespace: "a", Name: "z"}, // headless
			{Namespace: "b", Name: "x", ClusterIPs: addresses("10.96.0.2"), ExternalIPs: addresses("198.51.100.1")},
		},
	}
	name := func(s metav1.LabelSelector) string {
		n, ok := inventory.NodeSelectorSet(&s)
		if !ok {
			t.Fatalf("no name for %v", s)
		}
		return n
	}
	in := func(op metav1.LabelSelectorOperator, values ...string) metav1.LabelSelector {
		return metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "zone", Operator: op, Values: values}}}
	}
	for n, want := range map[string][]string{
		name(metav1.LabelSelector{}): {"192.0.2.1/32", "192.0.2.2/32", "192.0.2.3/32", "192.0.2.4/32", "2001:db8::1/128"},
		name(metav1.LabelSelector{MatchLabels: map[string]string{"node-role.kubernetes.io/control-plane": ""}}): {"192.0.2.1/32", "2001:db8::1/128"},
		name(metav1.LabelSelector{MatchLabels: map[string]string{"zone": "a", "none": "b"}}):                    {},
		name(in("In", "b", "c")):             {"192.0.2.3/32", "192.0.2.4/32"},
		name(in("NotIn", "a")):               {"192.0.2.3/32", "192.0.2.4/32"},
		name(in("In", "")):                   {},
		name(in("DoesNotExist")):             {},
		inventory.ServiceSet("a", "x"):       {"10.96.0.1/32", "fd00::1/128"},
		inventory.ServiceSet("b", "x"):       {"10.96.0.2/32"},
		inventory.ServiceSet("a", "z"):       {},
		inventory.ServiceSet("a", "y"):       {},
		inventory.FQDNSet("*.Example.org"):   {},
		inventory.DomainSet("*.example.org"): {},
		"node-selector:((":                   {},
		"service:":                           {},
	} {
		var texts []string
		for _, p := range snap.Sets([]string{n})[n] {
			texts = append(texts, p.String())
		}
		if len(texts)+len(want) > 0 && !reflect.DeepEqual(texts, want) {
			t.Errorf("%s: got %v, want %v", n, texts, want)
		}
	}
	if inventory.FQDNSet("A.b") != "fqdn:a.b" || !inventory.LearntSet("fqdn:a.b") || !inventory.LearntSet("domain:a") || inventory.LearntSet("service:a/b") {
		t.Error("names of learnt sets")
	}
	if _, ok := inventory.NodeSelectorSet(nil); ok {
		t.Error("nil has a name")
	}
	bad := in("Near", "a")
	if n, ok := inventory.NodeSelectorSet(&bad); ok {
		t.Errorf("unknown operator: %s", n)
	}
}

func TestFillSets(t *testing.T) {
	snap := &inventory.Snapshot{Services: []inventory.Service{{Namespace: "a", Name: "x", ClusterIPs: addresses("10.96.0.1")}}}
	set := rule.Set{Rules: []rule.Rule{
		{Peers: []rule.Peer{{Kind: rule.PeerSet, Set: "service:a/x"}, {Kind: rule.PeerAny}}},
		{Peers: []rule.Peer{{Kind: rule.PeerSet, Set: "service:a/x"}, {Kind: rule.PeerSet, Set: "fqdn:b"}}},
	}}
	var w rule.World
	snap.FillSets(&w, &set)
	if len(w.Sets) != 2 || len(w.Sets["service:a/x"]) != 1 {
		t.Errorf("got %v", w.Sets)
	}
	snap.FillSets(&w, &rule.Set{})
	if w.Sets != nil {
		t.Errorf("sets nobody asks for: %v", w.Sets)
	}
}
