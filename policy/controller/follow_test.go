package controller

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
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

// TestIdentityJoinsRulesInOneStep: an identity that three rules of different order
// select comes and goes on the short way, and one table brings it into all of them.
func TestIdentityJoinsRulesInOneStep(t *testing.T) {
	w := newTown(t, rand.New(rand.NewPCG(3, 39)))
	w.pods, w.policies = inventory.PodEditor{}, map[string]*api.Object{}
	pod := func(name string, i byte, labels map[string]string) {
		w.pods.Put(inventory.Pod{Namespace: "x", Name: name, Node: "n1", Labels: labels, IPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, i})}})
	}
	pod("t", 1, map[string]string{"t": "t"})
	pod("id5", 5, map[string]string{"one": "y"})
	pod("id7", 7, map[string]string{"two": "y"})
	pod("id8", 8, map[string]string{"three": "y"})
	w.objs = fixture.MustObjects(t, `
apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: p, namespace: x}
specs:
- order: 1
  endpointSelector: {matchLabels: {t: t}}
  ingress: [{fromEndpoints: [{matchLabels: {one: y}}], toPorts: [{ports: [{port: "1", endPort: 1023, protocol: TCP}]}]}]
- order: 2
  endpointSelector: {matchLabels: {t: t}}
  ingressDeny: [{fromEndpoints: [{matchLabels: {two: y}}], toPorts: [{ports: [{port: "80", protocol: TCP}]}]}]
- order: 3
  endpointSelector: {matchLabels: {t: t}}
  ingress: [{fromEndpoints: [{matchLabels: {three: y}}], toPorts: [{ports: [{port: "0", protocol: TCP}]}]}]
`)
	var got, want last
	wholes := 0
	c, err := New(Config{Source: w, Publisher: &got, Node: "n1", Isolate: true, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	c.cfg.Compile = func(s rule.Set, w *rule.World, o classifier.Options) (*classifier.Table, *classifier.Report, error) {
		wholes++
		return c.compiler.Compile(s, w, o)
	}
	// A controller of its own each time computes everything anew.
	anew := func() *classifier.Table {
		c, err := New(Config{Source: whole{w}, Publisher: &want, Node: "n1", Isolate: true, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.update(t.Context()); err != nil {
			t.Fatal(err)
		}
		return want.table
	}
	grid := func(table *classifier.Table) (out []string) {
		for i := byte(5); i <= 9; i++ {
			for _, port := range []uint16{1, 79, 80, 81, 1023, 1024, 8080} {
				k := flow.MakeKey(flow.TCP, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, i}), 1024), netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), port))
				out = append(out, fmt.Sprint(i, " ", port, " ", answer(table, k)))
			}
		}
		return out
	}
	var was []string
	for n, s := range []struct {
		what   string
		change func()
	}{
		{"before", func() {}},
		{"S3-36, S3-39: id 9 joins three rules", func() { pod("id9", 9, map[string]string{"one": "y", "two": "y", "three": "y"}) }},
		{"S3-41: id 9 goes", func() { w.pods.Delete("x", "id9") }},
		{"S3-36: id 9 comes again, and id 7 becomes another", func() {
			pod("id9", 9, map[string]string{"one": "y", "two": "y", "three": "y"})
			pod("id7", 7, map[string]string{"three": "y"})
		}},
	} {
		s.change()
		w.view = inventory.NewView(w.namespaces, w.nodes, w.services, w.pods.Pods())
		before := got.table
		if err := c.update(t.Context()); err != nil {
			t.Fatal(err)
		}
		if a, b := grid(got.table), grid(anew()); !slices.Equal(a, b) {
			t.Errorf("%s:\nstep %q\nanew %q", s.what, a, b)
		}
		if n == 0 {
			was = grid(got.table)
			continue
		}
		if wholes != 1 {
			t.Errorf("%s: not by a step", s.what)
		}
		// S3-37: one update, one table; the one before has not heard of it.
		if got.table.Generation() != before.Generation()+1 {
			t.Errorf("%s: generations %d and %d", s.what, before.Generation(), got.table.Generation())
		}
		if n == 1 && !slices.Equal(grid(before), was) {
			t.Errorf("%s: the table before moved: %q", s.what, grid(before)) // S3-37
		}
		if n == 2 && !slices.Equal(grid(got.table), was) {
			t.Errorf("%s: not as it was: %q", s.what, grid(got.table)) // S3-41
		}
	}
}
