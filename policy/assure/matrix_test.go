package assure

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/oracle/universe"
	"github.com/tierwall/tierwall/policy/inventory"
)

// TestMatrixIsWhatLookupSays asks a random world one connection at a time, between
// all pods and outside addresses, and wants the same from Matrix: every protocol,
// every port next to a boundary, once.
func TestMatrixIsWhatLookupSays(t *testing.T) {
	merged, checked := 0, 0
	for seed := range worlds(150) {
		r := rand.New(rand.NewPCG(uint64(seed), 18))
		var s State
		s.Set, s.world = universe.Random(r)
		s.world.Node = ""
		s.Snapshot = &inventory.Snapshot{}
		b := newBrute(t, &s, &s)
		w := NewWorld(s.Snapshot, b.tables[0])
		m := w.Matrix()
		at := map[string]int{}
		for i, e := range m.Ends {
			for _, p := range e.Pods {
				at[PodName(p)] = i
			}
		}
		merged += len(w.pods) - len(m.Cells)
		index := func(a addr) int {
			if a.name != "" {
				return at[a.name]
			}
			return slices.IndexFunc(m.Ends, func(e MatrixEnd) bool {
				return slices.ContainsFunc(e.Outside, func(p netip.Prefix) bool { return p.Contains(a.now) })
			})
		}
		for _, x := range b.ends() {
			for _, y := range b.ends() {
				if x == y || x.now == y.now || x.name == "" && y.name == "" || x.now.Is4() != y.now.Is4() {
					continue
				}
				i, j := index(x), index(y)
				if i < 0 || j < 0 {
					t.Fatalf("world %d: no end for %v or %v", seed, x, y)
				}
				checked += b.reached(t, fmt.Sprint("world ", seed), m.Answers[m.Cells[m.Ends[i].Group][m.Ends[j].Group]], x, y)
				if t.Failed() {
					return
				}
			}
		}
	}
	t.Logf("%d worlds, %d connections", worlds(150), checked)
	if checked == 0 || merged == 0 {
		t.Errorf("%d connections checked, %d pods are like others", checked, merged)
	}
}

// reached compares an answer with Lookup and returns how many connections it asked
// about.
func (b *brute) reached(t *testing.T, what string, a Ranges, x, y addr) (n int) {
	family := 6
	if x.now.Is4() {
		family = 4
	}
	for _, proto := range b.protos {
		if skips(proto, x.now.Is4()) {
			continue
		}
		for _, port := range b.ports {
			if within := ports(proto); !within.Contains(port) {
				continue
			}
			for _, src := range b.srcs {
				d := b.tables[0].Lookup(flow.Key{Src: flow.AddrFrom(x.now), Dst: flow.AddrFrom(y.now), Proto: proto, DstPort: port, SrcPort: src})
				if b.tables[0].Outcome(d.Ingress).Reason == classifier.ReasonNodeLocal {
					continue // Matrix takes the ends to be on different nodes
				}
				n++
				var found []Range
				for _, r := range a {
					if r.Family == family && (r.Protocol == proto.String() || r.Protocol == Other && proto == 253) && r.Ports[0] <= port && port <= r.Ports[1] &&
						(r.SourcePorts == nil || r.SourcePorts[0] <= src && src <= r.SourcePorts[1]) {
						found = append(found, r)
					}
				}
				v := b.ask(0, x.now, y.now, proto, port, src)
				if len(found) != 1 || found[0].Verdict != d.Verdict.String() || !v.decidedBy(&found[0].Decision) {
					t.Errorf("%s: %v → %v %s %d from %d: want %+v once, got %+v", what, x, y, proto, port, src, v, found)
					return n
				}
			}
		}
	}
	return n
}

func (v *verdict) decidedBy(d *Decision) bool {
	s := v.ingress
	if d.Direction == "egress" {
		s = v.egress
	}
	return d.Policy == s.policy && d.Rule == s.rule && d.Isolations == s.isolations
}
