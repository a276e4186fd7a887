package classifier_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/oracle"
	"github.com/tierwall/tierwall/classifier/rule"
)

// portsShape is how somebody spreads ports over the rules of one namespace.
type portsShape struct{ rules, ports int }

func (s portsShape) String() string { return fmt.Sprintf("rules=%d/ports=%d", s.rules, s.ports) }

// portsWorld has pods in two namespaces; the rules are about namespace z alone and name
// every second port, which no ranges join.
func portsWorld(shape portsShape, pods int) (rule.Set, *rule.World) {
	w := &rule.World{}
	for i := range pods {
		for n, ns := range []string{"x", "z"} {
			w.Endpoints = append(w.Endpoints, rule.Endpoint{
				Namespace: ns, Name: fmt.Sprint("p", i), Labels: map[string]string{"n": fmt.Sprint(i)},
				Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, byte(n), byte(i >> 8), byte(i)})},
			})
		}
	}
	set := rule.Set{Isolations: []rule.Isolation{{Direction: flow.Ingress, Band: rule.BandNetworkPolicy, Subject: rule.Selector{Namespace: "z"}}}}
	n := uint16(0)
	for i := range shape.rules {
		name := fmt.Sprintf("z/%d", i)
		r := rule.Rule{
			Direction: flow.Ingress, Order: rule.Order{Band: rule.BandNetworkPolicy, Name: name}, Subject: rule.Selector{Namespace: "z"},
			Peers: []rule.Peer{{Kind: rule.PeerAny}}, Action: rule.Allow, Origin: rule.Origin{Kind: "NetworkPolicy", Namespace: "z", Name: name},
		}
		for range shape.ports {
			n += 2
			r.L4 = append(r.L4, rule.L4{Proto: flow.TCP, Ports: rule.PortRange{First: n, Last: n}, SrcPorts: rule.AllPorts})
		}
		set.Rules = append(set.Rules, r)
	}
	return set, w
}

func portsKey(ns byte, src, dst int, port uint16) flow.Key {
	a := func(ns byte, i int) flow.Addr {
		return flow.AddrFrom(netip.AddrFrom4([4]byte{10, ns, byte(i >> 8), byte(i)}))
	}
	return flow.Key{Src: a(0, src), Dst: a(ns, dst), Proto: flow.TCP, SrcPort: 1024, DstPort: port}
}

// TestManyPorts compares the table with the oracle for rules of many ports, ranges that
// overlap and touch, source ports, names and all protocols, before and after their
// programs are there.
func TestManyPorts(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for round := range 40 {
		set, w := portsWorld(portsShape{0, 0}, 3)
		w.Endpoints[3].Ports = []rule.NamedPort{{Name: "web", Proto: flow.TCP, Port: 77}}
		for i := range 6 {
			name := fmt.Sprintf("z/%d", i)
			x := rule.Rule{
				Direction: flow.Direction(r.IntN(2)), Order: rule.Order{Band: rule.BandNetworkPolicy, Priority: float64(r.IntN(3)), Name: name},
				Subject: rule.Selector{Namespace: "z"}, Peers: []rule.Peer{{Kind: rule.PeerAny}}, Action: []rule.Action{rule.Allow, rule.Deny}[r.IntN(2)],
				Origin: rule.Origin{Kind: "CiliumNetworkPolicy", Namespace: "z", Name: name},
			}
			for range r.IntN(60) {
				first := uint16(r.IntN(120))
				l := rule.L4{Proto: []flow.Proto{flow.TCP, flow.UDP}[r.IntN(2)], Ports: rule.PortRange{First: first, Last: first + uint16(r.IntN(4))}, SrcPorts: rule.AllPorts}
				switch r.IntN(60) {
				case 0:
					l.SrcPorts = rule.PortRange{First: 1000, Last: 1024}
				case 1:
					l.Name, l.Ports = "web", rule.AllPorts
				case 2:
					l.Ports.Last = 0xffff
				case 3:
					l = rule.AnyL4
				}
				x.L4 = append(x.L4, l)
			}
			set.Rules = append(set.Rules, x)
		}
		table := compileOrFail(t, rule.Set{Rules: append([]rule.Rule(nil), set.Rules...), Isolations: set.Isolations}, w)
		for range 2 {
			for port := range uint16(130) {
				for dst := range 3 {
					for _, proto := range []flow.Proto{flow.TCP, flow.UDP, flow.SCTP} {
						k := portsKey(1, r.IntN(3), dst, port)
						k.Proto, k.SrcPort = proto, uint16(999+r.IntN(27))
						if r.IntN(2) == 0 {
							k.Src, k.Dst = k.Dst, k.Src
						}
						want, got := oracle.Evaluate(&set, w, k), table.Lookup(k)
						if got.Verdict != want.Verdict {
							t.Fatalf("round %d, %v: the table says %v, the oracle %v", round, k, got.Verdict, want.Verdict)
						}
					}
				}
			}
			table.WaitForPrograms()
		}
	}
}

// TestManyPortsTakeNoRoomFromOthers lets a namespace use up what memory there is for
// programs: the programs of another one are remembered all the same.
func TestManyPortsTakeNoRoomFromOthers(t *testing.T) {
	set, w := portsWorld(portsShape{1, 20_000}, 60)
	for i := range 60 { // each pod of z is a subject with a program of its own
		x := set.Rules[0]
		x.Subject = rule.Selector{Namespace: "z", PodLabels: rule.Labels{{Key: "n", Op: rule.In, Values: []string{fmt.Sprint(i)}}}}
		x.Order.Name, x.Origin.Name = fmt.Sprint("a/own", i), fmt.Sprint("own", i) // before the other rule
		x.L4 = x.L4[i : len(x.L4)-i]
		set.Rules = append(set.Rules, x)
	}
	set.Rules = append(set.Rules, rule.Rule{
		Direction: flow.Ingress, Order: rule.Order{Band: rule.BandNetworkPolicy, Name: "x/web"}, Subject: rule.Selector{Namespace: "x"},
		Peers: []rule.Peer{{Kind: rule.PeerAny}}, Action: rule.Allow, Origin: rule.Origin{Kind: "NetworkPolicy", Namespace: "x", Name: "web"},
		L4: []rule.L4{{Proto: flow.TCP, Ports: rule.PortRange{First: 80, Last: 80}, SrcPorts: rule.AllPorts}},
	})
	table, _, err := classifier.Compile(set, w, classifier.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 60 {
		for range 2 {
			table.Lookup(portsKey(1, 0, i, 40))
			table.WaitForPrograms()
		}
	}
	k := portsKey(0, 1, 2, 80)
	table.Lookup(k)
	if n := testing.AllocsPerRun(10, func() { table.Lookup(k) }); n != 0 {
		t.Errorf("namespace z has taken all %d bytes of programs: a lookup of namespace x costs %v allocations", table.Memory().Programs, n)
	}
}

// BenchmarkManyPorts measures what the first connection to a pod costs its worker where
// the rules of the pod's namespace name tens of thousands of ports (first-ns), what
// building their program costs (built-ns), and a change of one such policy (edit-ns).
func BenchmarkManyPorts(b *testing.B) {
	for _, shape := range []portsShape{{1, 10}, {1, 20_000}, {200, 100}, {20_000, 1}} {
		b.Run(shape.String(), func(b *testing.B) {
			set, w := portsWorld(shape, 50)
			l, _, err := classifier.NewLive(set, w, classifier.Options{})
			if err != nil {
				b.Fatal(err)
			}
			var first, built, edit time.Duration
			n := 0
			for b.Loop() {
				began := time.Now()
				changed := set.Rules[0]
				changed.L4 = append([]rule.L4{{Proto: flow.UDP, Ports: rule.PortRange{First: uint16(n), Last: uint16(n)}, SrcPorts: rule.AllPorts}}, changed.L4...)
				d := &classifier.Delta{Policies: []classifier.PolicyChange{{Ref: classifier.RefOf(&changed.Origin), Set: rule.Set{Rules: []rule.Rule{changed}}}}}
				if _, _, err := l.Apply(d); err != nil {
					b.Fatal(err)
				}
				edit += time.Since(began)
				began = time.Now()
				l.Table().Lookup(portsKey(1, n%50, 3, 40))
				first += time.Since(began)
				l.Table().WaitForPrograms()
				built += time.Since(began)
				n++
			}
			b.ReportMetric(float64(first.Nanoseconds())/float64(n), "first-ns")
			b.ReportMetric(float64(built.Nanoseconds())/float64(n), "built-ns")
			b.ReportMetric(float64(edit.Nanoseconds())/float64(n), "edit-ns")
		})
	}
}
