package flows

import (
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/afxdp/kern"
)

// Epoch says which remembered flows still count. Every change of policy has a
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
type Epoch struct {
	mu         sync.Mutex // serialises changes of the generation
	generation atomic.Uint64
	marks      marks
	addrs      registry
	veil       sync.Mutex // serialises writers of translated flows: see entries.write
}

// marks are what the kernel side compares flows with. They outlive the process.
type marks interface {
	Generation() (uint64, error)
	SetGeneration(g uint64) error
	// SetFloor ends every flow of an older generation than g, SetCell those with an
	// address in the cell.
	SetFloor(g uint64) error
	SetCell(cell uint32, g uint64) error
	// SetTranslated says that there are translated flows.
	SetTranslated() error
}

// Current is the generation in force.
func (e *Epoch) Current() uint64 { return e.generation.Load() }

// Add returns the cell of an address, which later changes are asked about from now
// on. The caller has read current before.
func (e *Epoch) Add(a *flow.Addr) uint16 { return e.addrs.add(a) }

// Crowded reports that a restart is worth its cost.
func (e *Epoch) Crowded() bool { return e.addrs.crowded.Load() > maxCrowded }

// Adopt takes the generation over from an earlier process. That may have died while
// it moved on, which is never by more than one: what it wrote with that number was
// judged by a policy that is not ours, and we do not use it again.
func (e *Epoch) Adopt(m marks) error {
	e.marks = m
	g, err := m.Generation()
	if err != nil {
		return fmt.Errorf("read the generation: %w", err)
	}
	e.generation.Store(g + 1)
	return m.SetGeneration(g + 1)
}

// Advance starts a new generation. What c is about no longer counts when it
// returns. No verdict of the table before may be remembered after it was called:
// the engine makes sure of that before it calls Backend.Update.
//
// Entries the driver writes meanwhile carry the new number first and the kernel
// learns it last; they count all along. So do those to which renew, if there is one,
// gives the number before anything ends.
func (e *Epoch) Advance(c dataplane.Change, renew func(g uint64)) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	g := e.generation.Add(1)
	if renew != nil {
		renew(g)
	}
	if err := e.invalidate(c, g); err != nil {
		return fmt.Errorf("start generation %d: %w", g, err)
	}
	// Last: it ends what CPUs noted (bpf/front.h) before and while the marks
	// above were being set.
	return e.marks.SetGeneration(g)
}

// Renew starts a new generation that is about nobody: all flows count as before,
// but what CPUs noted of them does not, and is looked up once more.
func (e *Epoch) Renew() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.marks.SetGeneration(e.generation.Add(1))
}

func (e *Epoch) invalidate(c dataplane.Change, g uint64) error {
	if c.All() {
		return e.marks.SetFloor(g)
	}
	for cell := range uint32(kern.NumCells) {
		if !e.addrs.touched(cell, c) {
			continue
		}
		if err := e.marks.SetCell(cell, g); err != nil {
			return err
		}
	}
	return nil
}

// Restart forgets which addresses are in use, and with them every flow: each is
// judged once more.
//
// Drivers read the generation before they add a flow's addresses. Whoever still
// finds an address here, or adds one that is wiped out, has read an older
// generation than the one that starts after that, and its flow does not count.
func (e *Epoch) Restart() error {
	if !e.mu.TryLock() { // somebody walks through the addresses, or does the same; there is no hurry
		return nil
	}
	defer e.mu.Unlock()
	e.addrs.clear()
	g := e.generation.Add(1)
	if err := e.marks.SetFloor(g); err != nil {
		return fmt.Errorf("start generation %d: %w", g, err)
	}
	return e.marks.SetGeneration(g)
}

// registry knows the addresses of remembered flows, so that a change of policy
// can be asked about each. Any goroutine may add and ask. It is bounded: a cell
// that has more addresses than ways counts as changed by every change, and needs
// no more of them.
type registry struct {
	mu      sync.Mutex // of those who have a new address, and of clear
	crowded atomic.Int32
	cells   [kern.NumCells]cell
}

type cell struct {
	n     atomic.Uint32 // addresses in use, ways+1 = more than fit
	addrs [ways]atomicAddr
}

// atomicAddr is a flow.Addr in two halves. One that is read while it changes has a
// half of each, and may pass for a third: see restart.
type atomicAddr [2]atomic.Uint64

func (a *atomicAddr) is(b *flow.Addr) bool {
	return a[1].Load() == binary.LittleEndian.Uint64(b[8:]) && a[0].Load() == binary.LittleEndian.Uint64(b[:8])
}

func (a *atomicAddr) load() (b flow.Addr) {
	binary.LittleEndian.PutUint64(b[:8], a[0].Load())
	binary.LittleEndian.PutUint64(b[8:], a[1].Load())
	return b
}

func (a *atomicAddr) store(b *flow.Addr) {
	a[0].Store(binary.LittleEndian.Uint64(b[:8]))
	a[1].Store(binary.LittleEndian.Uint64(b[8:]))
}

const ways = 4

// maxCrowded is how many crowded cells are worth a restart.
const maxCrowded = kern.NumCells / 4

// add returns the cell of an address, which is known from now on. It takes a lock
// only for one that was not.
func (r *registry) add(a *flow.Addr) uint16 {
	at := kern.CellOf(a)
	if c := &r.cells[at]; !c.has(a) {
		r.learn(c, a)
	}
	return at
}

// has reports whether an address needs no adding.
func (c *cell) has(a *flow.Addr) bool {
	n := c.n.Load()
	if n > ways {
		return true
	}
	for i := range n {
		if c.addrs[i].is(a) {
			return true
		}
	}
	return false
}

func (r *registry) learn(c *cell, a *flow.Addr) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.has(a) { // since
		return
	}
	n := c.n.Load()
	if n < ways {
		c.addrs[n].store(a) // published by the store of n
	} else {
		r.crowded.Add(1)
	}
	c.n.Store(n + 1)
}

func (r *registry) touched(cell uint32, change dataplane.Change) bool {
	c := &r.cells[cell]
	n := c.n.Load()
	if n > ways {
		return true
	}
	for i := range n {
		if change.Touches(c.addrs[i].load()) {
			return true
		}
	}
	return false
}

// clear forgets all.
func (r *registry) clear() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.cells {
		r.cells[i].n.Store(0)
	}
	r.crowded.Store(0)
}
