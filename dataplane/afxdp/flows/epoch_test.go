package flows

import (
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/afxdp/kern"
)

// memoryMarks is the kernel side's, in memory.
type memoryMarks struct {
	generation, floor uint64
	cells             [kern.NumCells]uint64
	translated        bool
}

func (m *memoryMarks) Generation() (uint64, error)         { return m.generation, nil }
func (m *memoryMarks) SetGeneration(g uint64) error        { m.generation = g; return nil }
func (m *memoryMarks) SetFloor(g uint64) error             { m.floor = g; return nil }
func (m *memoryMarks) SetCell(cell uint32, g uint64) error { m.cells[cell] = g; return nil }
func (m *memoryMarks) SetTranslated() error                { m.translated = true; return nil }

// addressesOf is a change that is about some addresses.
type addressesOf map[flow.Addr]bool

func (s addressesOf) Affects(k flow.Key) bool  { return s[k.Src] || s[k.Dst] }
func (s addressesOf) Touches(a flow.Addr) bool { return s[a] }

// A flow that counts has addresses that every later change is asked about, however
// adding, forgetting and starting over meet.
func TestRegistryIsComplete(t *testing.T) {
	m := &memoryMarks{}
	e := &Epoch{}
	if err := e.Adopt(m); err != nil {
		t.Fatal(err)
	}
	type flowOf struct {
		addr       flow.Addr
		generation uint64
	}
	const drivers, rounds = 3, 100
	count := 0
	for range rounds {
		var flows [drivers][]flowOf
		var adders sync.WaitGroup
		var added atomic.Int64
		var over atomic.Bool
		for i := range flows {
			adders.Go(func() {
				for n := 0; !over.Load(); n++ {
					if n >= 1<<17 { // starting over takes long here: go on, in less memory
						time.Sleep(100 * time.Microsecond)
					}
					f := flowOf{generation: e.Current()} // as settle does
					at := n % 8000                       // most are known already, and not crowded
					f.addr = flow.AddrFrom(netip.AddrFrom16([16]byte{0xfd, 7: byte(i), 8: byte(at >> 8), 15: byte(at)}))
					e.Add(&f.addr)
					flows[i] = append(flows[i], f)
					added.Add(1)
				}
			})
		}
		for added.Load() < 20_000 {
			runtime.Gosched()
		}
		if err := e.Restart(); err != nil {
			t.Fatal(err)
		}
		for seen := added.Load(); added.Load() < seen+10; { // some count for sure
			runtime.Gosched()
		}
		over.Store(true)
		adders.Wait()
		floor := m.floor
		for i := range flows {
			for _, f := range flows[i] {
				if f.generation < floor {
					continue
				}
				count++
				if !e.addrs.touched(uint32(kern.CellOf(&f.addr)), dataplane.ChangeWithin(addressesOf{f.addr: true})) {
					t.Fatalf("a change about %v of generation %d (floor %d) would pass by", f.addr, f.generation, floor)
				}
			}
		}
	}
	if count < 10*rounds {
		t.Fatalf("only %d flows count", count)
	}
}
