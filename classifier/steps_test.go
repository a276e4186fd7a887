package classifier_test

import (
	"fmt"
	"math/bits"
	"testing"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
)

// TestLookupStepsDoNotGrow: all ordering is resolved when compiling. What a lookup
// reads of a table is counted, not timed: no rule at all, and of the port intervals
// those that a binary search looks at, however many policies there are.
func TestLookupStepsDoNotGrow(t *testing.T) {
	ordered := func(n int, subject func(i int) rule.Selector) rule.Set {
		set := isolateY()
		for i := range n {
			action := rule.Allow
			if i%2 == 1 {
				action = rule.Deny
			}
			name := fmt.Sprint("y/p", i)
			set.Rules = append(set.Rules, rule.Rule{
				Direction: flow.Ingress, Order: rule.Order{Band: rule.BandNetworkPolicy, Priority: float64(i), Name: name},
				Subject: subject(i), Peers: []rule.Peer{{Kind: rule.PeerAny}},
				L4:     []rule.L4{{Proto: flow.TCP, Ports: rule.PortRange{First: 0, Last: uint16(100 + i)}, SrcPorts: rule.AllPorts}},
				Action: action, Origin: rule.Origin{Kind: "CiliumNetworkPolicy", Namespace: "y", Name: name},
			})
		}
		return set
	}
	y := func(int) rule.Selector { return rule.Selector{Namespace: "y"} }
	other := func(i int) rule.Selector { return rule.Selector{Namespace: fmt.Sprint("other", i)} }
	for _, c := range []struct {
		what      string
		set       rule.Set
		intervals int // at least
	}{
		{"one policy", ordered(1, y), 2},
		{"two thousand orders, each with an interval of its own", ordered(2000, y), 2000},
		{"two thousand policies about others", ordered(2000, other), 1},
	} {
		table := compileOrFail(t, c.set, twoPods(""))
		for _, port := range []uint16{50, 100, 1100, 2099, 9090, 65535} {
			k := tcp("10.0.0.1", "10.0.1.1", port)
			table.Lookup(k)
			table.WaitForPrograms()
			want := table.Lookup(k) // fills the cell
			if got := table.WithoutRules().Lookup(k); got != want {
				t.Errorf("%s, port %d: %v without the rules, %v with them", c.what, port, got, want) // S3-03
			}
			read, intervals := table.IntervalsRead(flow.Ingress, k)
			if intervals < c.intervals {
				t.Errorf("%s: the program has %d intervals, want %d", c.what, intervals, c.intervals)
			}
			// S3-03: the last steps of the search are a walk over nine intervals at most.
			if most := bits.Len(uint(intervals)) + 9; read > most {
				t.Errorf("%s, port %d: the answer depends on %d of %d intervals, want %d at most", c.what, port, read, intervals, most)
			}
		}
	}
	// S3-03: the order that is strongest decides, whatever comes behind it.
	table := compileOrFail(t, ordered(2000, y), twoPods(""))
	for port, order := range map[uint16]float64{50: 0, 100: 0, 101: 1, 1100: 1000, 2099: 1999} {
		d := table.Lookup(tcp("10.0.0.1", "10.0.1.1", port))
		if got := table.Rule(table.Outcome(d.Ingress).Rule).Order.Priority; got != order || (d.Verdict == classifier.Allow) != (int(order)%2 == 0) {
			t.Errorf("port %d: order %g decides (%s), want %g", port, got, d.Verdict, order)
		}
	}
	table.WaitForPrograms() // or what it allocates is counted in another test
}
