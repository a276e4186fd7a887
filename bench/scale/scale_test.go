package scale

import (
	"context"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/policy/controller"
	"github.com/tierwall/tierwall/policy/source/kube"
)

// published is a publisher that keeps the last table.
type published struct{ tables chan *classifier.Table }

func (p published) Publish(t *classifier.Table, _ *classifier.Report) error {
	p.tables <- t
	return nil
}

// reader is the source and the controller of a daemon, in this process.
func reader(tb testing.TB, c *simulated) (*kube.Source, <-chan *classifier.Table) {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	if err := c.serve(l); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = c.Close() })
	path := filepath.Join(tb.TempDir(), "kubeconfig")
	if err := c.writeKubeconfig(path); err != nil {
		tb.Fatal(err)
	}
	config, err := kube.ForDaemon(path, "test")
	if err != nil {
		tb.Fatal(err)
	}
	source, err := kube.New(kube.Config{REST: config})
	if err != nil {
		tb.Fatal(err)
	}
	tables := make(chan *classifier.Table, 100)
	control, err := controller.New(controller.Config{
		Source: source, Publisher: published{tables}, Node: c.workload.World.Node, Isolate: true,
	})
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{}, 2)
	go func() { _ = source.Run(ctx); done <- struct{}{} }()
	go func() { control.Run(ctx); done <- struct{}{} }()
	tb.Cleanup(func() { cancel(); <-done; <-done })
	return source, tables
}

func next(tb testing.TB, source *kube.Source, tables <-chan *classifier.Table) *classifier.Table {
	tb.Helper()
	select {
	case t := <-tables:
		return t
	case <-time.After(10 * time.Minute): // a slow machine
		tb.Fatalf("no table; the source says %+v", source.Status())
		return nil
	}
}

// TestServer reads a small cluster the way a daemon does: everything that is there
// has to arrive, so does a change, and everything once more after the versions
// have expired.
func TestServer(t *testing.T) {
	size := Size{Nodes: 10, Pods: 200, Services: 20, Policies: 100}
	c, err := newSimulated(size, netip.MustParseAddr("192.0.2.1"))
	if err != nil {
		t.Fatal(err)
	}
	source, tables := reader(t, c)
	next(t, source, tables)
	want := map[string]int{
		"pods": 200, "nodes": 10, "services": 20, "networkpolicies.networking.k8s.io": 90, "networkpolicies.crd.antrea.io": 5,
		"ciliumnetworkpolicies.cilium.io": 5, "clusternetworkpolicies.policy.networking.k8s.io": 54,
	}
	check := func(when string) {
		// The table may be of what came before.
		for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Millisecond) {
			if !slices.ContainsFunc(source.Status().Resources, func(r kube.ResourceStatus) bool {
				n, ok := want[r.Resource]
				return ok && r.Objects != n
			}) {
				break
			}
		}
		for _, r := range source.Status().Resources {
			if n, ok := want[r.Resource]; ok && r.Objects != n {
				t.Errorf("%s: %d %s, want %d", when, r.Objects, r.Resource, n)
			}
			if r.Error != "" {
				t.Errorf("%s: %s: %s", when, r.Resource, r.Error)
			}
		}
	}
	check("at first")
	e := &c.workload.World.Endpoints[3]
	c.remove("pods", e.Namespace+"/"+e.Name)
	next(t, source, tables)
	want["pods"]--
	check("after a change")

	sent := c.traffic().Sent
	c.hangUp(true)
	e = &c.workload.World.Endpoints[4]
	c.remove("pods", e.Namespace+"/"+e.Name)
	next(t, source, tables)
	want["pods"]--
	check("read anew")
	if more := c.traffic().Sent - sent; more < 200_000 {
		t.Errorf("%d bytes after versions have expired: that is no list of 198 pods", more)
	}
}

// BenchmarkChange is what a change of one pod costs, from the event to the table,
// in a cluster of 100,000 pods and 10,000 policies. Profile it to see where the
// time of an update goes.
func BenchmarkChange(b *testing.B) {
	c, err := newSimulated(Size{Nodes: 5000, Pods: 100_000, Services: 5000, Policies: 10_000}, netip.MustParseAddr("192.0.2.1"))
	if err != nil {
		b.Fatal(err)
	}
	source, tables := reader(b, c)
	next(b, source, tables)
	for i := 0; b.Loop(); i++ {
		e := c.workload.World.Endpoints[i%1000*100] // on all nodes
		e.Labels = map[string]string{"app": "web", "version": []string{"a", "b"}[i/1000%2]}
		c.put("pods", podObject(&e, i))
		next(b, source, tables)
	}
}

func TestPercentile(t *testing.T) {
	var all []time.Duration
	for i := 100; i > 0; i-- {
		all = append(all, time.Duration(i))
	}
	for p, want := range map[int]time.Duration{50: 50, 99: 99, 100: 100} {
		if got := percentile(all, p); got != want {
			t.Errorf("%d%%: %d, want %d", p, got, want)
		}
	}
	if got := percentile(all[:1], 99); got != 100 {
		t.Errorf("of one: %d", got)
	}
}
