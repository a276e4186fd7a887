package classifier

import (
	"sync"
	"sync/atomic"

	"github.com/tierwall/tierwall/classifier/flow"
)

// cells remembers answers: (subject serial, peer serial) → value. A value is a
// program's index, or an outcome where the outcome is the same for every
// protocol and port. It is a cache: nothing depends on an entry being there, and
// an entry that is there is right for every Table, because serials are never
// used twice.
//
// Readers take no lock. An entry is two words: a reader believes it if the key is
// its own and the value, which carries a count of the entry's writes, was the
// same before and after looking at the key.
type cells struct {
	entries []cell
	shift   uint
	used    int // guarded by memory.mu
	full    bool
	hand    uint64
}

type cell struct {
	key atomic.Uint64 // subject serial<<32 | peer serial; 0 empty, cellBusy being written
	val atomic.Uint64 // writes<<32 | value
}

const (
	cellBusy   = ^uint64(0)
	cellBytes  = 16
	cellWindow = 16 // entries probed before giving up
	firstCells = 1 << 10
	constValue = 1 << 31 // the value is an outcome, not a program
)

func newCells(n int) *cells {
	shift := uint(64)
	for s := 1; s < n; s *= 2 {
		shift--
	}
	return &cells{entries: make([]cell, n), shift: shift}
}

func (c *cells) start(key uint64) uint64 {
	h := (key ^ key>>32) * 0x9e3779b97f4a7c15
	return h >> (c.shift & 63)
}

// get returns the value for a key; 0 if there is none.
func (c *cells) get(key uint64) uint32 {
	mask := uint64(len(c.entries) - 1)
	i := c.start(key)
	for end := i + cellWindow; i < end; i++ {
		e := &c.entries[i&mask]
		v := e.val.Load()
		switch e.key.Load() {
		case key:
			if e.val.Load() == v {
				return uint32(v)
			}
			return 0
		case 0:
			return 0
		}
	}
	return 0
}

// put writes an entry. It reports false if it found no room and evicting is not
// allowed. The caller holds memory.mu.
func (c *cells) put(key uint64, value uint32, evict bool) bool {
	mask := uint64(len(c.entries) - 1)
	first := c.start(key)
	at := -1
	for i := first; i < first+cellWindow; i++ {
		if k := c.entries[i&mask].key.Load(); k == 0 || k == key {
			at = int(i & mask)
			break
		}
	}
	if at < 0 {
		if !evict {
			return false
		}
		c.hand++
		at = int((first + c.hand%cellWindow) & mask)
	}
	e := &c.entries[at]
	if e.key.Load() == 0 {
		c.used++
	}
	e.key.Store(cellBusy)
	e.val.Store((e.val.Load()>>32+1)<<32 | uint64(value))
	e.key.Store(key)
	return true
}

// memory is what consecutive tables of one Live share: the cells and what they
// refer to. It only grows, up to a budget; a table that would need more gets a
// memory of its own, empty, and older tables keep theirs.
type memory struct {
	cells    atomic.Pointer[cells]
	programs atomic.Pointer[[]program] // index 0 is unused
	outcomes atomic.Pointer[[]*Outcome]

	slots  [256]uint8   // protocol → program slot
	protos []flow.Proto // program slot → protocol; slot 0 stands for all unnamed ones
	budget int          // bytes

	mu           sync.Mutex // guards writing of all of the above and what follows
	outcomeIDs   map[string]OutcomeID
	programIDs   map[string]uint32
	bySubject    map[uint32]map[string]uint32 // subject serial → which rules match → value
	programBytes int
	indexBytes   int // keys and entries of bySubject
}

// DefaultMemoryBudget bounds the cells, programs and outcomes of a table.
const DefaultMemoryBudget = 64 << 20

func newMemory(budget int, named *[256]int) *memory {
	if budget <= 0 {
		budget = DefaultMemoryBudget
	}
	m := &memory{
		budget: budget, outcomeIDs: map[string]OutcomeID{}, programIDs: map[string]uint32{},
		bySubject: map[uint32]map[string]uint32{},
	}
	m.cells.Store(newCells(firstCells))
	programs := make([]program, 1)
	m.programs.Store(&programs)
	outcomes := append([]*Outcome(nil), fixedOutcomes...)
	m.outcomes.Store(&outcomes)
	m.assignSlots(named)
	return m
}

// assignSlots gives every protocol that rules name, and those packets usually
// have, a program slot of its own. Slot 0 serves all others; it is computed for
// a protocol number that no rule names.
func (m *memory) assignSlots(named *[256]int) {
	m.protos = []flow.Proto{flow.AnyProto}
	for p := flow.Proto(255); p > 0; p-- {
		switch p {
		case flow.TCP, flow.UDP, flow.SCTP, flow.ICMP, flow.ICMPv6, flow.IGMP:
		default:
			if named[p] == 0 {
				m.protos[0] = max(m.protos[0], p)
				continue
			}
		}
		m.slots[p] = uint8(len(m.protos))
		m.protos = append(m.protos, p)
	}
}

// store remembers a value. The caller holds m.mu.
func (m *memory) store(key uint64, value uint32) {
	c := m.cells.Load()
	for {
		n := len(c.entries)
		canGrow := 2*n*cellBytes <= m.cellBudget()
		if canGrow && 2*c.used >= n {
			c = m.growCells(c)
			continue
		}
		if c.put(key, value, !canGrow) {
			return
		}
		c = m.growCells(c)
	}
}

// cellBudget leaves a quarter to programs, outcomes and their index.
func (m *memory) cellBudget() int { return m.budget / 4 * 3 }

// growCells doubles the array and leaves out what belongs to subjects that are
// no more.
func (m *memory) growCells(old *cells) *cells {
	bigger := newCells(2 * len(old.entries))
	for i := range old.entries {
		e := &old.entries[i]
		k := e.key.Load()
		if k == 0 {
			continue
		}
		if _, alive := m.bySubject[uint32(k>>32)]; alive {
			bigger.put(k, uint32(e.val.Load()), true)
		}
	}
	m.cells.Store(bigger)
	return bigger
}

// Sizes of map entries with what they point to, measured on generated clusters;
// keys are counted on top.
const (
	outcomeBytes = 300
	entryBytes   = 64
)

// bytes returns what the memory holds. The caller holds m.mu.
func (m *memory) bytes() int {
	return len(m.cells.Load().entries)*cellBytes + m.programBytes + m.indexBytes + len(m.outcomeIDs)*outcomeBytes
}

// forget drops what was remembered for building cells of subjects that no newer
// table has.
func (m *memory) forget(serials []uint32) {
	if len(serials) == 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range serials {
		for key := range m.bySubject[s] {
			m.indexBytes -= len(key) + entryBytes
		}
		delete(m.bySubject, s)
	}
}
