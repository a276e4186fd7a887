package classifier

import (
	"sync"
	"sync/atomic"

	"github.com/tierwall/tierwall/classifier/flow"
)

// cells remembers answers: (subject serial, peer serial) → program. It is a
// cache: nothing depends on a cell being there, and one that is there is right
// for every table of the memory, because no serial is used twice while the
// memory lasts.
//
// A cell is one word, so readers need no lock and never see half of one:
//
//	63          41           18          0
//	[ subject 23 | peer 23    | program 18 ]
//
// Zero is an empty cell: serials begin at 1.
type cells struct {
	words []atomic.Uint64
	shift uint
	used  int    // guarded by memory.mu
	hand  uint64 // guarded by memory.mu: which cell to evict next
}

const (
	serialBits  = 23
	programBits = 64 - 2*serialBits
	maxSerial   = 1<<serialBits - 1
	maxPrograms = 1 << programBits

	cellBytes  = 8
	cellWindow = 16 // cells probed before giving up
	firstCells = 1 << 10
)

func cellKey(subject, peer uint32) uint64 { return uint64(subject)<<serialBits | uint64(peer) }

func newCells(n int) *cells {
	shift := uint(64)
	for s := 1; s < n; s *= 2 {
		shift--
	}
	return &cells{words: make([]atomic.Uint64, n), shift: shift}
}

func (c *cells) start(key uint64) uint64 {
	return key * 0x9e3779b97f4a7c15 >> (c.shift & 63)
}

// get returns the program for a key; 0 if there is none.
func (c *cells) get(key uint64) uint32 {
	mask := uint64(len(c.words) - 1)
	i := c.start(key)
	for end := i + cellWindow; i < end; i++ {
		w := c.words[i&mask].Load()
		if w>>programBits == key {
			return uint32(w & (maxPrograms - 1))
		}
		if w == 0 {
			break
		}
	}
	return 0
}

// put writes a cell. It reports false if it found no room and evicting is not
// allowed. The caller holds memory.mu.
func (c *cells) put(key uint64, program uint32, evict bool) bool {
	mask := uint64(len(c.words) - 1)
	first := c.start(key)
	word := key<<programBits | uint64(program)
	for i := first; i < first+cellWindow; i++ {
		switch w := c.words[i&mask].Load(); {
		case w == 0:
			c.used++
			fallthrough
		case w>>programBits == key:
			c.words[i&mask].Store(word)
			return true
		}
	}
	if evict {
		c.hand++
		c.words[(first+c.hand%cellWindow)&mask].Store(word)
	}
	return evict
}

// memory is what consecutive tables of one Live share: the cells and what they
// refer to. It only grows, up to a budget; a table that would need more gets a
// memory of its own, empty, and older tables keep theirs.
type memory struct {
	cells    atomic.Pointer[cells]
	programs atomic.Pointer[[]program] // the first is unused
	outcomes atomic.Pointer[[]*Outcome]

	via atomic.Pointer[viaCells] // nil until the first

	slots  [256]uint8   // protocol → program slot
	protos []flow.Proto // program slot → protocol; slot 0 stands for all unnamed ones
	budget int          // bytes

	mu           sync.Mutex // guards writing of all of the above and what follows
	outcomeIDs   map[string]OutcomeID
	programIDs   map[string]uint32
	bySubject    map[uint32]map[string]uint32 // subject serial → which rules match → program
	programBytes int
	indexBytes   int            // keys and entries of bySubject
	spent        map[string]int // namespace → bytes of the above that its pods asked for

	building atomic.Bool // a goroutine builds a program
}

// DefaultMemoryBudget bounds the cells, programs and outcomes of a table.
const DefaultMemoryBudget = 64 << 20

// newMemory makes an empty memory. named counts the L4s that name a protocol.
func newMemory(budget int, named *[256]int) *memory {
	if budget <= 0 {
		budget = DefaultMemoryBudget
	}
	m := &memory{
		budget: budget, outcomeIDs: map[string]OutcomeID{}, programIDs: map[string]uint32{},
		bySubject: map[uint32]map[string]uint32{}, spent: map[string]int{},
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

// store remembers a program for a cell. The caller holds m.mu.
func (m *memory) store(key uint64, program uint32) {
	for {
		c := m.cells.Load()
		n := len(c.words)
		canGrow := 2*n*cellBytes <= m.budget/4*3 // the rest is for what cells refer to
		if !(canGrow && c.used >= n/4*3) && c.put(key, program, !canGrow) {
			return
		}
		m.growCells(c)
	}
}

// growCells doubles the array and leaves out what belongs to subjects that are
// no more.
func (m *memory) growCells(old *cells) {
	bigger := newCells(2 * len(old.words))
	for i := range old.words {
		w := old.words[i].Load()
		if _, alive := m.bySubject[uint32(w>>(programBits+serialBits))]; alive && w != 0 {
			bigger.put(w>>programBits, uint32(w&(maxPrograms-1)), true)
		}
	}
	m.cells.Store(bigger)
}

// Sizes of map entries with what they point to, measured on generated clusters;
// keys are counted on top.
const (
	outcomeBytes = 300
	entryBytes   = 64
)

// bytes returns what the memory holds. The caller holds m.mu.
func (m *memory) bytes() int {
	return len(m.cells.Load().words)*cellBytes + m.programMemory()
}

// programMemory returns what programs, their index and outcomes hold. The caller holds
// m.mu.
func (m *memory) programMemory() int {
	return m.programBytes + m.indexBytes + len(m.outcomeIDs)*outcomeBytes
}

// full reports whether programs must not be added any more. Connections that
// need one are then decided by walking the rules; the next table has a new
// memory. The caller holds m.mu.
func (m *memory) full() bool {
	return m.programMemory() > m.budget/4 || len(*m.programs.Load()) >= maxPrograms
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
