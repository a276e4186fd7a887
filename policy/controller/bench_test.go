package controller

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/internal/fixture"
	"github.com/tierwall/tierwall/policy/inventory"
)

// BenchmarkUpdate is one change among 100,000 pods and 10,000 NetworkPolicies, from
// the source to a table: as a step, and as a look at everything.
func BenchmarkUpdate(b *testing.B) {
	const pods, policies, perNode, perNamespace = 100_000, 10_000, 20, 50
	pod := func(i int) inventory.Pod {
		return inventory.Pod{
			Namespace: fmt.Sprintf("ns-%04d", i/perNamespace), Name: fmt.Sprintf("pod-%06d", i),
			Labels:         map[string]string{"app": []string{"web", "api", "db"}[i%3], "tier": []string{"front", "back"}[i%2]},
			ServiceAccount: "default", Node: fmt.Sprintf("n%04d", i/perNode),
			IPs: []netip.Addr{netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})},
		}
	}
	w := &town{r: rand.New(rand.NewPCG(1, 2)), policies: map[string]*api.Object{}}
	for i := range pods {
		w.pods.Put(pod(i))
	}
	for i := range pods / perNamespace {
		name := fmt.Sprintf("ns-%04d", i)
		w.namespaces = append(w.namespaces, inventory.Namespace{Name: name, Labels: map[string]string{"kubernetes.io/metadata.name": name}})
	}
	for i := range pods / perNode {
		w.nodes = append(w.nodes, inventory.Node{Name: fmt.Sprintf("n%04d", i), Addrs: []netip.Addr{netip.AddrFrom4([4]byte{192, 168, byte(i >> 8), byte(i)})}})
	}
	one := fixture.MustObjects(b, fmt.Sprintf(`apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: a, namespace: b}
spec: %s`, `{podSelector: {matchLabels: {app: web}}, ingress: [{from: [{podSelector: {matchLabels: {tier: front}}}], ports: [{port: 80}]}, {from: [{ipBlock: {cidr: 198.51.100.0/24}}]}]}`))[0]
	object := func(i, cidr int) *api.Object {
		o, v := *one, one.Value.(*networkingv1.NetworkPolicy).DeepCopy()
		o.Namespace, o.Name = fmt.Sprintf("ns-%04d", i%(pods/perNamespace)), fmt.Sprintf("policy-%05d", i)
		v.Spec.Ingress[1].From[0].IPBlock.CIDR = fmt.Sprintf("198.%d.%d.0/24", 18+cidr>>8%128, cidr%256)
		o.Value = v
		return &o
	}
	objs := make([]*api.Object, policies)
	for i := range objs {
		objs[i] = object(i, 100)
	}
	world := func() {
		w.view = inventory.NewView(w.namespaces, w.nodes, w.services, w.pods.Pods())
	}
	world()
	w.objs = objs
	change := 0 // never the same one twice
	for _, src := range []struct {
		name string
		Source
	}{{"step", w}, {"whole", whole{w}}} {
		var p last
		c, err := New(Config{Source: src.Source, Publisher: &p, Node: "n0000", Isolate: true, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			b.Fatal(err)
		}
		update := func(b *testing.B) {
			before := p.table
			if err := c.update(b.Context()); err != nil || p.table == before {
				b.Fatalf("no new table: %v, %+v", err, c.Status().Findings)
			}
		}
		update(b)
		b.Run("pod/"+src.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				change++
				q := pod(change * 7919 % pods)
				q.Labels["version"] = fmt.Sprint(change)
				w.pods.Put(q)
				world()
				update(b)
			}
		})
		b.Run("policy/"+src.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				change++
				at := change * 7919 % policies
				next := append([]*api.Object(nil), w.objs...)
				next[at] = object(at, change)
				w.objs = next
				update(b)
			}
		})
	}
}
