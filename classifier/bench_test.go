package classifier_test

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/tierwall/tierwall/bench/workload"
	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
)

// clusters caches what benchmarks share; making one takes longer than measuring.
var clusters = map[workload.Spec]*workload.Cluster{}

func cluster(s workload.Spec) *workload.Cluster {
	c := clusters[s]
	if c == nil {
		c = workload.New(s)
		clusters[s] = c
	}
	return c
}

// sizes are the clusters of the benchmarks: pods, NetworkPolicies, and
// cluster-wide policies of the two tiers.
var sizes = []workload.Spec{
	{Pods: 1_000, Policies: 200, Admin: 50, Baseline: 4, Domains: 20, Seed: 1},
	{Pods: 10_000, Policies: 10, Admin: 4, Baseline: 1, Domains: 50, Seed: 1},
	{Pods: 10_000, Policies: 100, Admin: 10, Baseline: 4, Domains: 50, Seed: 1},
	{Pods: 10_000, Policies: 2_000, Admin: 50, Baseline: 4, Domains: 50, Seed: 1},
	{Pods: 10_000, Policies: 10_000, Admin: 100, Baseline: 4, Domains: 50, Seed: 1},
	{Pods: 100_000, Policies: 10_000, Admin: 50, Baseline: 4, Domains: 200, Seed: 1},
}

// copyOf returns the cluster's set as Compile may keep and sort it.
func copyOf(c *workload.Cluster) rule.Set {
	return rule.Set{Rules: slices.Clone(c.Set.Rules), Isolations: slices.Clone(c.Set.Isolations)}
}

// access is how many connections a benchmark goes round in, a power of two.
var access = []struct {
	name string
	keys int
}{{"hot", 1 << 10}, {"random", 1 << 16}}

func BenchmarkLookup(b *testing.B) {
	for _, s := range sizes {
		b.Run(s.String(), func(b *testing.B) {
			table := compileOrFail(b, copyOf(cluster(s)), cluster(s).World)
			for _, a := range access {
				b.Run("access="+a.name, func(b *testing.B) {
					keys := cluster(s).Keys(a.keys, 7)
					for _, k := range keys {
						table.Lookup(k)
					}
					b.ReportAllocs()
					i, allowed := 0, 0
					for b.Loop() {
						if table.Lookup(keys[i&(len(keys)-1)]).Verdict == classifier.Allow {
							allowed++
						}
						i++
					}
					m := table.Memory()
					b.ReportMetric(float64(m.Cells+m.Programs), "table-B")
					b.ReportMetric(float64(m.Addresses)/float64(s.Pods), "B/pod")
				})
			}
		})
	}
}

// BenchmarkLookupDependent makes each lookup wait for the one before it, as a
// lone packet does; BenchmarkLookup lets the processor overlap them, as a batch
// does.
func BenchmarkLookupDependent(b *testing.B) {
	for _, s := range sizes {
		b.Run(s.String()+"/access=random", func(b *testing.B) {
			table := compileOrFail(b, copyOf(cluster(s)), cluster(s).World)
			keys := cluster(s).Keys(1<<16, 7)
			for _, k := range keys {
				table.Lookup(k)
			}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				d := table.Lookup(keys[i&(len(keys)-1)])
				i += 1 + int(d.Verdict)&4 // never set, but the processor has to wait to know
			}
		})
	}
}

// BenchmarkFirstTouch measures a lookup whose cell is not there.
func BenchmarkFirstTouch(b *testing.B) {
	for _, s := range sizes {
		b.Run(s.String(), func(b *testing.B) {
			keys := cluster(s).Keys(1<<16, 9)
			l, _, err := classifier.NewLive(copyOf(cluster(s)), cluster(s).World, classifier.Options{})
			if err != nil {
				b.Fatal(err)
			}
			table, i := l.Table(), 0
			b.ReportAllocs()
			for b.Loop() {
				if i == len(keys) {
					b.StopTimer()
					table, i = compileOrFail(b, copyOf(cluster(s)), cluster(s).World), 0
					b.StartTimer()
				}
				table.Lookup(keys[i])
				i++
			}
		})
	}
}

func BenchmarkCompile(b *testing.B) {
	for _, s := range append(slices.Clone(sizes), workload.Many) {
		name := s.String()
		if s.Namespaces != 0 {
			name += fmt.Sprintf("/namespaces=%d", s.Namespaces)
		}
		b.Run(name, func(b *testing.B) {
			c := cluster(s)
			key := c.Keys(1, 3)[0]
			b.ReportAllocs()
			var l *classifier.Live
			var held uint64
			for b.Loop() {
				l = nil //nolint:ineffassign // lets the table of the last round go before memory is counted
				b.StopTimer()
				set := copyOf(c)
				before := heap()
				b.StartTimer()
				var err error
				if l, _, err = classifier.NewLive(set, c.World, classifier.Options{}); err != nil {
					b.Fatal(err)
				}
				l.Table().Lookup(key) // to the first verdict
				b.StopTimer()
				held = heap() - before
				b.StartTimer()
			}
			m := l.Table().Memory()
			b.ReportMetric(float64(m.Total()), "table-B")
			b.ReportMetric(float64(held), "heap-B") // index and table, without set and world
			b.ReportMetric(float64(held)/float64(s.Pods), "B/pod")
		})
	}
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// update is one kind of event: step n makes the Delta of the nth event and the
// one that undoes it.
type update struct {
	name string
	step func(c *workload.Cluster, n int) (do, undo *classifier.Delta)
}

var updateEvents = []update{
	{"pod-add", func(c *workload.Cluster, n int) (*classifier.Delta, *classifier.Delta) {
		e := c.Pod(n%1000, n)
		return &classifier.Delta{Pods: []rule.Endpoint{e}},
			&classifier.Delta{DropPods: []classifier.PodName{{Namespace: e.Namespace, Name: e.Name}}}
	}},
	{"pod-add-local", func(c *workload.Cluster, n int) (*classifier.Delta, *classifier.Delta) {
		e := c.Pod(n%1000, 0)
		return &classifier.Delta{Pods: []rule.Endpoint{e}},
			&classifier.Delta{DropPods: []classifier.PodName{{Namespace: e.Namespace, Name: e.Name}}}
	}},
	{"pod-delete", func(c *workload.Cluster, n int) (*classifier.Delta, *classifier.Delta) {
		e := c.World.Endpoints[n*31%len(c.World.Endpoints)]
		return &classifier.Delta{DropPods: []classifier.PodName{{Namespace: e.Namespace, Name: e.Name}}},
			&classifier.Delta{Pods: []rule.Endpoint{e}}
	}},
	{"pod-relabel", func(c *workload.Cluster, n int) (*classifier.Delta, *classifier.Delta) {
		e := c.World.Endpoints[n*31%len(c.World.Endpoints)]
		other := e
		other.Labels = c.World.Endpoints[n*37%len(c.World.Endpoints)].Labels
		return &classifier.Delta{Pods: []rule.Endpoint{other}}, &classifier.Delta{Pods: []rule.Endpoint{e}}
	}},
	{"namespace-relabel", func(c *workload.Cluster, n int) (*classifier.Delta, *classifier.Delta) {
		e := c.World.Endpoints[n*31%len(c.World.Endpoints)]
		labels := map[string]string{"team": "moved", "env": "dev", "kubernetes.io/metadata.name": e.Namespace}
		return &classifier.Delta{Namespaces: map[string]map[string]string{e.Namespace: labels}},
			&classifier.Delta{Namespaces: map[string]map[string]string{e.Namespace: e.NamespaceLabels}}
	}},
	{"np-add", func(c *workload.Cluster, n int) (*classifier.Delta, *classifier.Delta) {
		d := policyChange(c.NetworkPolicy(n%c.Spec.Namespaces, 1000+n%8, 100_000+n))
		return d, &classifier.Delta{Policies: []classifier.PolicyChange{{Ref: d.Policies[0].Ref}}}
	}},
	{"np-delete", func(c *workload.Cluster, n int) (*classifier.Delta, *classifier.Delta) {
		i := n % c.Spec.Policies
		d := policyChange(c.NetworkPolicy(i%c.Spec.Namespaces, i/c.Spec.Namespaces, i))
		return &classifier.Delta{Policies: []classifier.PolicyChange{{Ref: d.Policies[0].Ref}}}, d
	}},
	{"cluster-policy", func(c *workload.Cluster, n int) (*classifier.Delta, *classifier.Delta) {
		d := policyChange(c.ClusterPolicy(1+4*(1000+n), rule.BandAdmin)) // everybody is its subject
		return d, &classifier.Delta{Policies: []classifier.PolicyChange{{Ref: d.Policies[0].Ref}}}
	}},
	{"address-set", func(c *workload.Cluster, n int) (*classifier.Delta, *classifier.Delta) {
		name := fmt.Sprintf("domain:svc-%d.example.com", n%c.Spec.Domains)
		more := append(slices.Clone(c.World.Sets[name]), prefix(fmt.Sprintf("151.102.%d.%d/32", n>>8&255, n&255)))
		return &classifier.Delta{Sets: set(name, more)}, &classifier.Delta{Sets: set(name, c.World.Sets[name])}
	}},
}

func policyChange(s rule.Set) *classifier.Delta {
	var ref classifier.PolicyRef
	if len(s.Rules) > 0 {
		ref = classifier.RefOf(&s.Rules[0].Origin)
	} else {
		ref = classifier.RefOf(&s.Isolations[0].Origin)
	}
	return &classifier.Delta{Policies: []classifier.PolicyChange{{Ref: ref, Set: s}}}
}

// BenchmarkUpdate measures an event until the next packet is decided by it: Apply
// and one lookup. ns/op and p99-ns leave out that every event is made and undone;
// B/op and allocs/op do not. (StopTimer would stop the world each time.)
// Wall time: on a shared machine p99-ns is mostly about the neighbours.
func BenchmarkUpdate(b *testing.B) {
	for _, ev := range updateEvents {
		for _, s := range []workload.Spec{sizes[3], sizes[5], local250} {
			name := fmt.Sprintf("event=%s/%s", ev.name, s)
			if s.PerNode != 0 {
				name += fmt.Sprintf("/local=%d", s.PerNode)
			}
			b.Run(name, func(b *testing.B) {
				c := cluster(s)
				l, _, err := classifier.NewLive(copyOf(c), c.World, classifier.Options{})
				if err != nil {
					b.Fatal(err)
				}
				keys := c.Keys(1<<12, 5)
				for _, k := range keys {
					l.Table().Lookup(k)
				}
				var took []time.Duration
				b.ReportAllocs()
				n := 0
				for b.Loop() {
					do, undo := ev.step(c, n)
					n++
					began := time.Now()
					table, _, err := l.Apply(do)
					if err != nil {
						b.Fatal(err)
					}
					table.Lookup(keys[n%len(keys)])
					took = append(took, time.Since(began))
					if _, _, err := l.Apply(undo); err != nil {
						b.Fatal(err)
					}
				}
				var sum time.Duration
				for _, d := range took {
					sum += d
				}
				slices.Sort(took)
				b.ReportMetric(float64(took[len(took)/2].Nanoseconds()), "p50-ns")
				b.ReportMetric(float64(sum.Nanoseconds())/float64(len(took)), "ns/op")
				b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds()), "p99-ns")
			})
		}
	}
}

// local250 is the large cluster on a node with 250 pods.
var local250 = workload.Spec{Pods: 100_000, Policies: 10_000, Admin: 50, Baseline: 4, Domains: 200, PerNode: 250, Seed: 1}

// BenchmarkLinear decides the same connections by asking rule after rule, with
// selectors parsed and rules sorted beforehand and namespaces compared first.
func BenchmarkLinear(b *testing.B) {
	for _, s := range sizes {
		for _, a := range access {
			b.Run(s.String()+"/access="+a.name, func(b *testing.B) {
				c := cluster(s)
				lin := newLinear(c)
				keys := c.Keys(a.keys, 7)
				b.ReportAllocs()
				i, allowed := 0, 0
				for b.Loop() {
					if lin.decide(&keys[i&(len(keys)-1)]) == classifier.Allow {
						allowed++
					}
					i++
				}
			})
		}
	}
}

// TestLinearAgrees keeps the baseline of BenchmarkLinear honest.
func TestLinearAgrees(t *testing.T) {
	c := cluster(workload.Small)
	lin := newLinear(c)
	table := compileOrFail(t, copyOf(c), c.World)
	verdicts := map[classifier.Verdict]int{}
	for _, k := range c.Keys(20_000, 1) {
		got, want := table.Lookup(k).Verdict, lin.decide(&k)
		if verdicts[got]++; got != want {
			t.Fatalf("%s: table %s, linear %s", k, got, want)
		}
	}
	if verdicts[classifier.Allow] < 1000 || verdicts[classifier.Drop] < 1000 {
		t.Errorf("verdicts %v: the workload does not try both", verdicts)
	}
}

// linear is a rule-by-rule evaluator with everything prepared that can be.
type linear struct {
	world      *rule.World
	pods       map[flow.Addr]*rule.Endpoint
	nodes      map[flow.Addr]string
	rules      [2][]*rule.Rule
	isolations [2][]*rule.Isolation
}

func newLinear(c *workload.Cluster) *linear {
	l := &linear{world: c.World, pods: map[flow.Addr]*rule.Endpoint{}, nodes: map[flow.Addr]string{}}
	for i := range c.World.Endpoints {
		for _, a := range c.World.Endpoints[i].Addrs {
			l.pods[flow.AddrFrom(a)] = &c.World.Endpoints[i]
		}
	}
	for i := range c.World.Nodes {
		for _, a := range c.World.Nodes[i].Addrs {
			l.nodes[flow.AddrFrom(a)] = c.World.Nodes[i].Name
		}
	}
	for i := range c.Set.Rules {
		r := &c.Set.Rules[i]
		l.rules[r.Direction] = append(l.rules[r.Direction], r)
	}
	for i := range c.Set.Isolations {
		iso := &c.Set.Isolations[i]
		l.isolations[iso.Direction] = append(l.isolations[iso.Direction], iso)
	}
	return l
}

func (l *linear) decide(k *flow.Key) classifier.Verdict {
	src, dst := l.pods[k.Src], l.pods[k.Dst]
	if v := l.side(flow.Egress, src, dst, &k.Dst, k); v != classifier.Allow {
		return v
	}
	return l.side(flow.Ingress, dst, src, &k.Src, k)
}

func (l *linear) side(d flow.Direction, subject, peer *rule.Endpoint, peerAddr *flow.Addr, k *flow.Key) classifier.Verdict {
	if subject == nil || !l.world.Local(subject) || k.Src == k.Dst {
		return classifier.Allow
	}
	if n, ok := l.nodes[*peerAddr]; ok && d == flow.Ingress && n == subject.Node {
		return classifier.Allow
	}
	ip := peerAddr.Netip()
	unknown := false
	if _, node := l.nodes[*peerAddr]; peer == nil && !node {
		unknown = ip.Is4() && ip.As4()[0] == 10 // the generator's pod network
	}
	dst := peer
	if d == flow.Ingress {
		dst = subject
	}
	var skipped rule.BandSet
	isolated := func(b rule.Band) bool {
		return slices.ContainsFunc(l.isolations[d], func(i *rule.Isolation) bool {
			return i.Band == b && i.Subject.Matches(subject)
		})
	}
	band := rule.Band(0)
	leave := func(to rule.Band) bool { // end the bands before to
		for ; band < to; band++ {
			if !skipped.Has(band) && isolated(band) {
				return true
			}
		}
		return false
	}
	for _, r := range l.rules[d] {
		if r.Order.Band != band && leave(r.Order.Band) {
			return classifier.Drop
		}
		if skipped.Has(band) || !r.Subject.Matches(subject) || !l4Matches(r, k, dst, unknown) {
			continue
		}
		match, doubt := false, false
		for i := range r.Peers {
			switch p := &r.Peers[i]; {
			case p.Kind == rule.PeerAny:
				match = true
			case p.Kind == rule.PeerPods && unknown:
				doubt = true
			case p.Kind == rule.PeerPods:
				match = peer != nil && p.Pods.Matches(peer)
			case p.Kind == rule.PeerBlock:
				match = p.Block.Contains(ip)
			default:
				for _, x := range l.world.Sets[p.Set] {
					match = match || x.Contains(ip)
				}
			}
			if match {
				break
			}
		}
		switch {
		case doubt && !match:
			return classifier.Drop
		case !match:
		case r.Action == rule.Skip:
			skipped |= r.Skip
		case r.Action == rule.Allow:
			return classifier.Allow
		default:
			return classifier.Drop
		}
	}
	if leave(rule.BandDefault) {
		return classifier.Drop
	}
	return classifier.Allow
}

func l4Matches(r *rule.Rule, k *flow.Key, dst *rule.Endpoint, unknown bool) bool {
	for i := range r.L4 {
		l := &r.L4[i]
		if l.Proto != flow.AnyProto && l.Proto != k.Proto {
			continue
		}
		if l.Name == "" {
			if l.Ports.Contains(k.DstPort) {
				return true
			}
			continue
		}
		if unknown && dst == nil || dst != nil && slices.Contains(dst.Ports, rule.NamedPort{Name: l.Name, Proto: k.Proto, Port: k.DstPort}) {
			return true
		}
	}
	return false
}
