package controller

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/internal/fixture"
	"github.com/tierwall/tierwall/policy/inventory"
)

// TestServiceMembersFollow: a group stands for the pods behind a Service. Its members
// come and go with pods, with their labels, with the Service's selector and with the
// Service; no policy is touched.
func TestServiceMembersFollow(t *testing.T) {
	w := newTown(t, rand.New(rand.NewPCG(4, 24)))
	w.pods, w.policies, w.services = inventory.PodEditor{}, map[string]*api.Object{}, nil
	pod := func(name string, i byte, app string) {
		w.pods.Put(inventory.Pod{
			Namespace: "x", Name: name, Node: "n1", Labels: map[string]string{"app": app}, IPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, i})},
		})
	}
	service := func(app string) {
		w.services = []inventory.Service{{Namespace: "x", Name: "s", Selector: map[string]string{"app": app}, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")}}}
	}
	pod("client", 1, "client")
	w.objs = fixture.MustObjects(t, `
apiVersion: crd.antrea.io/v1beta1
kind: ClusterGroup
metadata: {name: g}
spec: {serviceReference: {namespace: x, name: s}}
---
apiVersion: crd.antrea.io/v1beta1
kind: ClusterNetworkPolicy
metadata: {name: p}
spec: {priority: 1, ingress: [{action: Drop, appliedTo: [{group: g}]}]}
`)
	var p last
	c, err := New(Config{Source: w, Publisher: &p, Node: "n1", Isolate: true, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []struct {
		what   string
		change func()
		want   string // verdicts for 10.0.0.2 and 10.0.0.3
	}{
		{"no Service", func() { pod("one", 2, "a") }, "Allow Allow"},
		{"S2-73: the Service comes, with one pod behind it", func() { service("a") }, "Drop Allow"},
		{"S4-24: a second pod comes", func() { pod("two", 3, "a") }, "Drop Drop"},
		{"S4-24: the first loses its label", func() { pod("one", 2, "b") }, "Allow Drop"},
		{"S4-24: the Service has another selector", func() { service("b") }, "Drop Allow"},
		{"S4-24: the pod behind it goes, another gets its address", func() {
			w.pods.Delete("x", "one")
			pod("other", 2, "a")
		}, "Allow Allow"},
		{"S4-24: it has the label now", func() { pod("other", 2, "b") }, "Drop Allow"},
		{"S2-74: no selector any more", func() { service(""); w.services[0].Selector = nil }, "Allow Allow"},
		{"S4-24: the Service goes", func() { w.services = nil }, "Allow Allow"},
	} {
		s.change()
		w.view = inventory.NewView(w.namespaces, w.nodes, w.services, w.pods.Pods())
		if err := c.update(t.Context()); err != nil {
			t.Fatal(err)
		}
		verdict := func(to string) classifier.Verdict {
			return p.table.Lookup(flow.MakeKey(flow.TCP, netip.MustParseAddrPort("10.0.0.1:1024"), netip.AddrPortFrom(netip.MustParseAddr(to), 80))).Verdict
		}
		if got := fmt.Sprint(verdict("10.0.0.2"), " ", verdict("10.0.0.3")); got != s.want {
			t.Errorf("%s: %s, want %s", s.what, got, s.want)
		}
	}
}
