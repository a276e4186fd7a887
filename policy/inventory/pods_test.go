package inventory_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/tierwall/tierwall/policy/inventory"
)

// model is a list of pods kept the simple way.
type model map[[2]string]inventory.Pod

func (m model) list() []inventory.Pod {
	var out []inventory.Pod
	for _, p := range m {
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b inventory.Pod) int {
		return slices.Compare([]string{a.Namespace, a.Name}, []string{b.Namespace, b.Name})
	})
	return out
}

func samePods(a, b []inventory.Pod) bool {
	return slices.EqualFunc(a, b, func(a, b inventory.Pod) bool {
		return a.Namespace == b.Namespace && a.Name == b.Name && inventory.SamePod(&a, &b)
	})
}

// TestPodEditor makes lists by random edits: each has exactly what it should,
// stays so whatever comes later, and any two tell exactly how they differ.
func TestPodEditor(t *testing.T) {
	r := rand.New(rand.NewPCG(81, 82))
	for round := range 30 {
		var e inventory.PodEditor
		m := model{}
		type version struct {
			pods inventory.Pods
			want []inventory.Pod
		}
		var versions []version
		names := 1 + r.IntN(3000)
		for range 12 {
			edits := 1 + r.IntN([]int{3, 50, 3000}[r.IntN(3)])
			for i := range edits {
				p := inventory.Pod{
					Namespace: fmt.Sprintf("ns-%d", r.IntN(5)), Name: fmt.Sprintf("p-%05d", r.IntN(names)), Node: fmt.Sprint(r.IntN(3)),
					IPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(r.IntN(3))})}, Labels: map[string]string{"a": fmt.Sprint(r.IntN(2))},
				}
				if round%3 == 0 && edits > 1000 {
					p.Name = fmt.Sprintf("p-%05d", i) // in order, as API servers list
				}
				key := [2]string{p.Namespace, p.Name}
				if old, ok := m[key]; ok != (e.Get(key[0], key[1]) != nil) || ok && !inventory.SamePod(&old, e.Get(key[0], key[1])) {
					t.Fatalf("%v: got %v, want %v", key, e.Get(key[0], key[1]), old)
				}
				if r.IntN(3) == 0 {
					e.Delete(key[0], key[1])
					delete(m, key)
				} else {
					e.Put(p)
					m[key] = p
				}
				if e.Len() != len(m) {
					t.Fatalf("%d pods, want %d", e.Len(), len(m))
				}
			}
			versions = append(versions, version{e.Pods(), m.list()})
		}
		for i, v := range versions {
			if !samePods(v.pods.List(), v.want) || v.pods.Len() != len(v.want) {
				t.Fatalf("version %d of %d is another list now", i, len(versions))
			}
			var each []inventory.Pod
			v.pods.Each(func(p *inventory.Pod) { each = append(each, *p) })
			if !samePods(each, v.want) {
				t.Fatal("Each tells another list")
			}
			was := versions[r.IntN(len(versions))]
			checkSince(t, was.want, v.want, v.pods.Since(was.pods))
		}
	}
}

// checkSince wants changes to be exactly what leads from one list to another.
func checkSince(t *testing.T, was, now []inventory.Pod, changes []inventory.PodChange) {
	t.Helper()
	m := model{}
	for _, p := range was {
		m[[2]string{p.Namespace, p.Name}] = p
	}
	var last [2]string
	for _, c := range changes {
		var key [2]string
		switch {
		case c.Old != nil && c.New != nil && inventory.SamePod(c.Old, c.New), c.Old == nil && c.New == nil:
			t.Fatalf("no change: %+v", c)
		case c.New != nil:
			key = [2]string{c.New.Namespace, c.New.Name}
		default:
			key = [2]string{c.Old.Namespace, c.Old.Name}
		}
		if old, there := m[key]; there != (c.Old != nil) || there && !inventory.SamePod(&old, c.Old) {
			t.Fatalf("%v was %+v, told %+v", key, old, c.Old)
		}
		if slices.Compare(last[:], key[:]) >= 0 {
			t.Fatalf("%v after %v", key, last)
		}
		last = key
		if c.New != nil {
			m[key] = *c.New
		} else {
			delete(m, key)
		}
	}
	if !samePods(m.list(), now) {
		t.Fatal("the changes lead to another list")
	}
}

// A view of a snapshot is compared with nothing; views compare pods only where all
// else is the same memory.
func TestViewSince(t *testing.T) {
	var e inventory.PodEditor
	namespaces := []inventory.Namespace{{Name: "x", Labels: map[string]string{"a": "b"}}}
	nodes := []inventory.Node{{Name: "n"}}
	services := []inventory.Service{{Namespace: "x", Name: "s"}}
	v := inventory.NewView(namespaces, nodes, services, e.Pods())
	e.Put(inventory.Pod{Namespace: "x", Name: "p", IPs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}})
	next := inventory.NewView(namespaces, nodes, services, e.Pods())
	changes, ok := next.Since(v)
	if !ok || len(changes) != 1 || changes[0].New == nil || changes[0].New.Name != "p" {
		t.Fatalf("%v %t", changes, ok)
	}
	if ep, ok := next.Endpoint(changes[0].New); !ok || ep.NamespaceLabels["a"] != "b" || len(ep.Addrs) != 1 {
		t.Errorf("endpoint %+v %t", ep, ok)
	}
	if _, ok := next.Endpoint(&inventory.Pod{Namespace: "x", Name: "q"}); ok {
		t.Error("a pod without an address is in the world")
	}
	if got := next.Snapshot(); len(got.Pods) != 1 || len(got.World("n").Endpoints) != 1 {
		t.Errorf("snapshot %+v", got)
	}
	for what, other := range map[string]*inventory.View{
		"none":           nil,
		"a snapshot":     inventory.ViewOf(next.Snapshot()),
		"new namespaces": inventory.NewView(slices.Clone(namespaces), nodes, services, e.Pods()),
		"new nodes":      inventory.NewView(namespaces, slices.Clone(nodes), services, e.Pods()),
		"new services":   inventory.NewView(namespaces, nodes, slices.Clone(services), e.Pods()),
		"no services":    inventory.NewView(namespaces, nodes, nil, e.Pods()),
	} {
		if _, ok := next.Since(other); ok {
			t.Errorf("compared with %s", what)
		}
	}
}

// BenchmarkPods is one pod that changes among a hundred thousand, and finding it.
func BenchmarkPods(b *testing.B) {
	var e inventory.PodEditor
	for i := range 100_000 {
		e.Put(inventory.Pod{Namespace: fmt.Sprintf("ns-%04d", i/50), Name: fmt.Sprintf("pod-%06d", i)})
	}
	was := e.Pods()
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		at := i * 7919 % 100_000
		e.Put(inventory.Pod{Namespace: fmt.Sprintf("ns-%04d", at/50), Name: fmt.Sprintf("pod-%06d", at), Node: fmt.Sprint(i)})
		now := e.Pods()
		if n := len(now.Since(was)); n != 1 {
			b.Fatal(n)
		}
		was = now
	}
}
