package kube

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tierwall/tierwall/policy/inventory"
)

// testPod makes a Pod created at a second, with addresses.
func testPod(name string, created int64, ips ...string) *corev1.Pod {
	p := &corev1.Pod{}
	p.Namespace, p.Name, p.CreationTimestamp = "x", name, metav1.Unix(created, 0)
	p.Labels = map[string]string{"app": "same"}
	p.Status.Phase = corev1.PodRunning
	for _, ip := range ips {
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: ip})
	}
	if len(ips) > 0 {
		p.Status.PodIP = ips[0]
	}
	return p
}

func deleting(p *corev1.Pod) *corev1.Pod {
	now := metav1.NewTime(time.Unix(1<<31, 0))
	p.DeletionTimestamp = &now
	return p
}

func phase(p *corev1.Pod, ph corev1.PodPhase) *corev1.Pod {
	p.Status.Phase = ph
	return p
}

func (s *pods) add(t *testing.T, p *corev1.Pod) bool {
	t.Helper()
	item, err := s.read(p)
	if err != nil {
		t.Fatal(err)
	}
	return s.set(item)
}

// state renders who has which address.
func (s *pods) state() string {
	var out []string
	for _, p := range s.flush().List() {
		out = append(out, fmt.Sprint(p.Name, p.IPs))
	}
	return strings.Join(out, " ")
}

// An address has one owner: the pod that is not being deleted, or else the younger
// one; the other gets it back.
func TestOneOwnerPerAddress(t *testing.T) {
	for _, c := range []struct {
		what string
		pods []*corev1.Pod // in the order of their events
		want string
	}{
		{"no quarrel", []*corev1.Pod{testPod("a", 1, "10.0.0.1", "fd00::1"), testPod("b", 2, "10.0.0.2")}, "a[10.0.0.1 fd00::1] b[10.0.0.2]"},
		{"younger wins", []*corev1.Pod{testPod("a", 1, "10.0.0.1"), testPod("b", 2, "10.0.0.1")}, "a[] b[10.0.0.1]"},
		{"whoever comes first", []*corev1.Pod{testPod("b", 2, "10.0.0.1"), testPod("a", 1, "10.0.0.1")}, "a[] b[10.0.0.1]"},
		{"other family stays", []*corev1.Pod{testPod("a", 1, "10.0.0.1", "fd00::1"), testPod("b", 2, "10.0.0.1")}, "a[fd00::1] b[10.0.0.1]"},
		{"same age: the name", []*corev1.Pod{testPod("b", 1, "10.0.0.1"), testPod("a", 1, "10.0.0.1")}, "a[10.0.0.1] b[]"},
		{"the one deleted loses", []*corev1.Pod{deleting(testPod("b", 2, "10.0.0.1")), testPod("a", 1, "10.0.0.1")}, "a[10.0.0.1] b[]"},
		{"back when the winner finishes", []*corev1.Pod{testPod("a", 1, "10.0.0.1"), testPod("b", 2, "10.0.0.1"), phase(testPod("b", 2, "10.0.0.1"), corev1.PodFailed)}, "a[10.0.0.1]"},
		{"back when the winner moves", []*corev1.Pod{testPod("a", 1, "10.0.0.1"), testPod("b", 2, "10.0.0.1"), testPod("b", 2, "10.0.0.9")}, "a[10.0.0.1] b[10.0.0.9]"},
		{"over when the loser moves", []*corev1.Pod{testPod("a", 1, "10.0.0.1"), testPod("b", 2, "10.0.0.1"), testPod("a", 1, "10.0.0.3"), phase(testPod("b", 2), corev1.PodFailed)}, "a[10.0.0.3]"},
		{"three", []*corev1.Pod{testPod("a", 1, "10.0.0.1"), testPod("b", 2, "10.0.0.1"), testPod("c", 3, "10.0.0.1"), phase(testPod("c", 3), corev1.PodFailed)}, "a[] b[10.0.0.1]"},
	} {
		s := newPods()
		for _, p := range c.pods {
			s.add(t, p)
		}
		if got := s.state(); got != c.want {
			t.Errorf("%s: %s, want %s", c.what, got, c.want)
		}
	}
	s := newPods()
	host := testPod("h", 1, "192.0.2.1")
	host.Spec.HostNetwork = true
	other := testPod("i", 2, "192.0.2.1")
	other.Spec.HostNetwork = true
	s.add(t, host)
	s.add(t, other)
	if got := s.state(); got != "h[192.0.2.1] i[192.0.2.1]" {
		t.Errorf("pods on the host network share: %s", got)
	}
}

// Whatever the order of events, the end is that of one list of what there is then.
func TestPodEventsComeToTheList(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		s, last := newPods(), map[string]*corev1.Pod{}
		for range 30 {
			n := string(rune('a' + r.IntN(6)))
			p := testPod(n, int64(n[0]), fmt.Sprintf("10.0.0.%d", r.IntN(4)))
			switch r.IntN(6) {
			case 0:
				delete(last, n)
				s.remove(objectName{"x", n})
				continue
			case 1:
				delete(last, n)
				s.add(t, phase(p, corev1.PodSucceeded))
				continue
			case 2:
				p = deleting(p)
			}
			last[n] = p
			s.add(t, p)
			if r.IntN(4) == 0 {
				s.flush()
			}
		}
		whole := newPods()
		var items []any
		for _, p := range last {
			item, err := whole.read(p)
			if err != nil {
				t.Fatal(err)
			}
			items = append(items, item)
		}
		whole.replace(items)
		if s.len() != len(last) {
			t.Fatalf("seed %d: %d pods, want %d", seed, s.len(), len(last))
		}
		if got, want := s.state(), whole.state(); got != want {
			t.Fatalf("seed %d: events: %s\nlist: %s", seed, got, want)
		}
		owned := map[netip.Addr]string{}
		for _, p := range s.flush().List() {
			for _, a := range p.IPs {
				if owned[a] != "" {
					t.Fatalf("seed %d: %s has two owners", seed, a)
				}
				owned[a] = p.Name
			}
		}
		if s.namespaces["x"] != len(last) {
			t.Fatalf("seed %d: %d pods in the namespace, want %d", seed, s.namespaces["x"], len(last))
		}
	}
}

func TestUnchangedPodIsNoNews(t *testing.T) {
	s := newPods()
	if !s.add(t, testPod("a", 1, "10.0.0.1")) {
		t.Error("a new pod is no news")
	}
	if s.add(t, testPod("a", 1, "10.0.0.1")) {
		t.Error("the same pod is news")
	}
	for what, p := range map[string]*corev1.Pod{
		"label": func() *corev1.Pod { p := testPod("a", 1, "10.0.0.1"); p.Labels["b"] = "c"; return p }(),
		"node":  func() *corev1.Pod { p := testPod("a", 1, "10.0.0.1"); p.Spec.NodeName = "n"; return p }(),
		"port": func() *corev1.Pod {
			p := testPod("a", 1, "10.0.0.1")
			p.Spec.Containers = []corev1.Container{{Ports: []corev1.ContainerPort{{Name: "web", ContainerPort: 80}}}}
			return p
		}(),
		"address": testPod("a", 1, "10.0.0.2"),
	} {
		if !s.add(t, p) {
			t.Errorf("another %s is no news", what)
		}
		if !s.add(t, testPod("a", 1, "10.0.0.1")) {
			t.Errorf("back from another %s is no news", what)
		}
	}
	s.add(t, testPod("b", 1, "10.0.0.3"))
	list := s.flush().List()
	a, b := &list[0].Labels, &list[1].Labels
	(*a)["probe"] = "1"
	if (*b)["probe"] != "1" {
		t.Error("equal label sets are kept twice")
	}
	delete(*a, "probe")
}

// What flush has handed out stays as it was.
func TestListsAreNotWrittenTo(t *testing.T) {
	s := newPods()
	for i := range 50 {
		s.add(t, testPod(fmt.Sprintf("p%02d", i), 1, fmt.Sprintf("10.0.0.%d", i+1)))
	}
	list := s.flush()
	before := fmt.Sprint(list.List())
	for i := range 50 {
		switch i % 3 {
		case 0:
			s.remove(objectName{"x", fmt.Sprintf("p%02d", i)})
		case 1:
			s.add(t, testPod(fmt.Sprintf("p%02d", i), 2, fmt.Sprintf("10.0.1.%d", i+1)))
		case 2:
			s.add(t, testPod(fmt.Sprintf("p%02dx", i), 2, fmt.Sprintf("10.0.2.%d", i+1)))
		}
	}
	after := s.flush().List()
	if fmt.Sprint(list.List()) != before {
		t.Error("an old list has changed")
	}
	if !slices.IsSortedFunc(after, func(a, b inventory.Pod) int { return strings.Compare(a.Name, b.Name) }) || len(after) != 49 {
		t.Errorf("%d pods, or not sorted", len(after))
	}
}
