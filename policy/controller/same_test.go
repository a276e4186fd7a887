package controller

import (
	"net/netip"
	"reflect"
	"testing"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
)

func fullWorld() *rule.World {
	a := netip.MustParseAddr("10.0.0.1")
	p := netip.MustParsePrefix("10.0.0.0/24")
	return &rule.World{
		Node: "n", VIPs: []netip.Addr{a}, LocalPrefixes: []netip.Prefix{p}, Sets: map[string][]netip.Prefix{"s": {p}},
		Nodes: []rule.Node{{Name: "n", Addrs: []netip.Addr{a}, PodCIDRs: []netip.Prefix{p}}},
		Endpoints: []rule.Endpoint{{
			Namespace: "x", Name: "a", Labels: map[string]string{"l": "1"}, NamespaceLabels: map[string]string{"n": "1"},
			ServiceAccount: "default", Node: "n", HostNetwork: true, Addrs: []netip.Addr{a}, Ports: []rule.NamedPort{{Name: "http", Proto: flow.TCP, Port: 80}},
		}},
	}
}

// TestSameWorld changes every field of a world there is, and those of what is in
// it: a field that sameWorld forgets is one whose changes are never enforced.
func TestSameWorld(t *testing.T) {
	if !sameWorld(fullWorld(), fullWorld()) {
		t.Fatal("equal worlds differ")
	}
	if sameWorld(nil, fullWorld()) || !sameWorld(nil, nil) {
		t.Error("nil")
	}
	fields := 0
	each := func(what string, of func(*rule.World) reflect.Value) {
		for i := range of(fullWorld()).NumField() {
			fields++
			w := fullWorld()
			f := of(w).Field(i)
			if f.IsZero() {
				t.Fatalf("%s.%s is not filled in: the test cannot tell", what, of(w).Type().Field(i).Name)
			}
			f.SetZero()
			if sameWorld(fullWorld(), w) || sameWorld(w, fullWorld()) {
				t.Errorf("a change of %s.%s is not seen", what, of(w).Type().Field(i).Name)
			}
		}
	}
	each("World", func(w *rule.World) reflect.Value { return reflect.ValueOf(w).Elem() })
	each("Node", func(w *rule.World) reflect.Value { return reflect.ValueOf(&w.Nodes[0]).Elem() })
	each("Endpoint", func(w *rule.World) reflect.Value { return reflect.ValueOf(&w.Endpoints[0]).Elem() })
	each("NamedPort", func(w *rule.World) reflect.Value { return reflect.ValueOf(&w.Endpoints[0].Ports[0]).Elem() })
	if fields < 20 {
		t.Errorf("only %d fields tried", fields)
	}
	w := fullWorld()
	w.Endpoints[0].Labels["l"] = "2"
	if sameWorld(fullWorld(), w) {
		t.Error("a change of a label is not seen")
	}
}
