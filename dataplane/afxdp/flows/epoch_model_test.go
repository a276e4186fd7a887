package flows

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/afxdp/kern"
)

// kernelFlow is an entry as the programs have it, with what the model knows of it.
type kernelFlow struct {
	src, dst flow.Addr
	state    kern.FlowState
	judged   int // the change of policy by which a worker judged it
}

// counts is the programs' rule: current in bpf/flows.h.
func (m *memoryMarks) counts(f *kernelFlow) bool {
	s := &f.state
	return s.Generation >= m.floor && s.Generation >= m.cells[s.Cell[0]] && s.Generation >= m.cells[s.Cell[1]]
}

// model is the obvious epoch: it keeps every change of policy, and asks each of them.
type model struct {
	e       *Epoch
	m       *memoryMarks
	changes []dataplane.Change // since the beginning; a change's number is its index + 1
	flows   []*kernelFlow
	// pending are flows whose worker has read the generation, but not yet written them.
	pending []*kernelFlow
	ops     []string
	// seen counts what happened, so that a run in which nothing does fails.
	ended, kept, restarts, adopted int
}

func (x *model) note(format string, args ...any) { x.ops = append(x.ops, fmt.Sprintf(format, args...)) }

// begin is a worker that judges a flow by the policy in force.
func (x *model) begin(src, dst flow.Addr) {
	f := &kernelFlow{src: src, dst: dst, judged: len(x.changes)}
	f.state.Generation = x.e.Current()
	f.state.Cell = [2]uint16{x.e.Add(&src), x.e.Add(&dst)}
	x.pending = append(x.pending, f)
	x.note("judge %d->%d", src[15], dst[15])
}

// write is the moment at which the entry is in the map.
func (x *model) write() {
	x.flows = append(x.flows, x.pending...)
	x.pending = nil
	x.note("write")
}

func (x *model) change(c dataplane.Change) error {
	// The engine waits for batches under way before it calls Backend.Update.
	x.write()
	x.changes = append(x.changes, c)
	x.note("change %d", len(x.changes))
	return x.e.Advance(c, nil)
}

// check compares the programs' rule with the changes themselves: no flow counts that a
// later change is about. Others may end, because addresses share cells, but few.
func (x *model) check() error {
	counting := x.flows[:0]
	for _, f := range x.flows {
		about := false
		for _, c := range x.changes[f.judged:] {
			about = about || c.All() || c.Touches(f.src) || c.Touches(f.dst)
		}
		switch counts := x.m.counts(f); {
		case about && counts:
			return fmt.Errorf("the flow %v -> %v of generation %d counts, although a change after its verdict is about it", f.src, f.dst, f.state.Generation)
		case about:
			x.ended++
		case counts:
			x.kept++
			counting = append(counting, f)
		}
	}
	x.flows = counting // what has ended does not come back: marks only grow
	return nil
}

// TestEpochModel runs random operations against the model: flows that are judged and
// written in two steps, changes about everything and about some addresses, changes of
// what the guard knows, restarts, and processes that take over or died half-way.
func TestEpochModel(t *testing.T) {
	seeds, steps := 20, 300
	if testing.Short() {
		seeds = 5
	}
	var total model
	for seed := range uint64(seeds) {
		r := rand.New(rand.NewPCG(seed, 7))
		x := &model{e: &Epoch{}, m: &memoryMarks{}}
		if err := x.e.Adopt(x.m); err != nil {
			t.Fatal(err)
		}
		addr := func() flow.Addr { return flow.Addr{10: 0xff, 11: 0xff, 12: 10, 15: byte(1 + r.IntN(12))} }
		for range steps {
			var err error
			switch n := r.IntN(100); {
			case n < 45:
				x.begin(addr(), addr())
			case n < 60:
				x.write()
			case n < 80:
				some := addressesOf{}
				for range 1 + r.IntN(3) {
					some[addr()] = true
				}
				err = x.change(dataplane.ChangeWithin(some))
			case n < 84:
				err = x.change(dataplane.Change{})
			case n < 92:
				x.note("renew")
				err = x.e.Renew()
			case n < 96: // verdicts under way meet it: their addresses are forgotten
				x.note("restart")
				x.restarts++
				err = x.e.Restart()
			default: // the process ends, perhaps while it moved on, and another takes over
				x.pending = nil
				x.note("take over")
				x.adopted++
				if r.IntN(2) == 0 { // it had renewed some of the flows for its table, which is not ours
					for _, f := range x.flows {
						if r.IntN(2) == 0 {
							f.state.Generation = x.m.generation + 1
						}
					}
					x.m.cells[r.IntN(kern.NumCells)] = x.m.generation + 1
				}
				x.e = &Epoch{}
				if err = x.e.Adopt(x.m); err == nil {
					err = x.change(dataplane.Change{}) // the first table's
				}
			}
			if err == nil {
				err = x.check()
			}
			if err != nil {
				t.Fatalf("seed %d: %v\nafter: %q", seed, err, x.ops)
			}
		}
		total.ended, total.kept = total.ended+x.ended, total.kept+x.kept
		total.restarts, total.adopted = total.restarts+x.restarts, total.adopted+x.adopted
	}
	if total.ended == 0 || total.kept == 0 || total.restarts == 0 || total.adopted == 0 {
		t.Errorf("the test tests too little: %d flows ended, %d kept, %d restarts, %d takeovers", total.ended, total.kept, total.restarts, total.adopted)
	}
	t.Logf("%d flows ended, %d kept, %d restarts, %d takeovers", total.ended, total.kept, total.restarts, total.adopted)
}
