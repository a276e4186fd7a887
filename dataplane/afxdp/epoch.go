package afxdp

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/cilium/ebpf"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/dataplane"
)

// epoch says which remembered flows still count. Every change of policy has a
// generation, and every flow the one that judged it. A change that is about few
// addresses raises the mark of their cells; one that is about everything raises
// the floor. Either way it costs nothing per flow, and a flow it is not about
// never comes up again.
//
//	flow counts  ⇔  its generation ≥ floor, cell(A) and cell(B)
//
// The kernel side has the same rule: current in bpf/flows.h. A cell is a bucket of
// addresses, so a change now and then concerns a flow that merely shares one: it
// is judged once more.
type epoch struct {
	mu         sync.Mutex // orders those who move on; nobody else takes it
	generation atomic.Uint64
	cells      *ebpf.Map
	shared     sharedVars
	addrs      registry
}

// sharedVars are the variables of the programs that outlive the process.
type sharedVars struct {
	generation, floor, alive, nonce, sent, room, translated *ebpf.Variable
}

// adopt takes the generation over from an earlier process.
func (e *epoch) adopt() error {
	var g uint64
	if err := e.shared.generation.Get(&g); err != nil {
		return fmt.Errorf("read the generation: %w", err)
	}
	e.generation.Store(g)
	return nil
}

// advance starts a new generation. What c is about no longer counts when it
// returns. No verdict of the table before may be remembered after it was called:
// the engine makes sure of that before it calls Backend.Update.
//
// Entries the driver writes meanwhile carry the new number first and the kernel
// learns it last; they count all along.
func (e *epoch) advance(c dataplane.Change) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	g := e.generation.Add(1)
	if err := e.invalidate(c, g); err != nil {
		return fmt.Errorf("start generation %d: %w", g, err)
	}
	// Last: it ends what CPUs noted (bpf/front.h) before and while the marks
	// above were being set.
	return e.shared.generation.Set(g)
}

// renew starts a new generation that is about nobody: all flows count as before,
// but what CPUs noted of them does not, and is looked up once more.
func (e *epoch) renew() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.shared.generation.Set(e.generation.Add(1))
}

func (e *epoch) invalidate(c dataplane.Change, g uint64) error {
	if c.All() {
		return e.shared.floor.Set(g)
	}
	for cell := range uint32(numCells) {
		if !e.addrs.touched(cell, c) {
			continue
		}
		if err := e.cells.Put(cell, g); err != nil {
			return err
		}
	}
	return nil
}

// restart forgets which addresses are in use, and with them every flow: each is
// judged once more. It belongs to the driver, which alone adds addresses.
func (e *epoch) restart() error {
	if !e.mu.TryLock() { // somebody walks through the addresses; there is no hurry
		return nil
	}
	defer e.mu.Unlock()
	g := e.generation.Add(1)
	e.addrs.clear()
	if err := e.shared.floor.Set(g); err != nil {
		return fmt.Errorf("start generation %d: %w", g, err)
	}
	return e.shared.generation.Set(g)
}

// registry knows the addresses of remembered flows, so that a change of policy
// can be asked about each. One goroutine adds, any number may ask. It is bounded:
// a cell that has more addresses than ways counts as changed by every change.
type registry struct {
	cells [numCells]struct {
		n     atomic.Uint32 // addresses in use, ways+1 = more than fit
		addrs [ways]flow.Addr
	}
	crowded int // cells that are full; the adder's
}

const ways = 4

// maxCrowded is how many crowded cells are worth a restart.
const maxCrowded = numCells / 4

// add returns the cell of an address, which is known from now on.
func (r *registry) add(a *flow.Addr) uint16 {
	cell := cellOf(a)
	c := &r.cells[cell]
	n := c.n.Load()
	for i := range min(n, ways) {
		if c.addrs[i] == *a {
			return cell
		}
	}
	switch {
	case n < ways:
		c.addrs[n] = *a // published by the store, never written again
		c.n.Store(n + 1)
	case n == ways:
		c.n.Store(ways + 1)
		r.crowded++
	}
	return cell
}

func (r *registry) touched(cell uint32, change dataplane.Change) bool {
	c := &r.cells[cell]
	n := c.n.Load()
	if n > ways {
		return true
	}
	for i := range n {
		if change.Touches(c.addrs[i]) {
			return true
		}
	}
	return false
}

// clear needs that nobody asks.
func (r *registry) clear() {
	for i := range r.cells {
		r.cells[i].n.Store(0)
	}
	r.crowded = 0
}
