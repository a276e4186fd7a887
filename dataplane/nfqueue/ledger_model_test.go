package nfqueue

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/conntrack"
	"github.com/tierwall/tierwall/dataplane"
)

// ledgerModel is a kernel's table of plain connections, workers and a policy, around a
// ledger. The kernel here says at once which connections have the accept bit.
type ledgerModel struct {
	g        *ledger
	now      *time.Duration
	marked   map[flow.Key]bool // connections that exist; true: with the accept bit
	denied   map[flow.Addr]bool
	unheard  []flow.Key                 // accepted by a worker, and not reported yet
	inFlight map[flow.Key]time.Duration // accepted, and the bit is set later: reported when
	ops      []string
	// What happened, so that a run in which nothing does fails.
	listed, walked, again, lateBits int
}

func (m *ledgerModel) note(format string, args ...any) {
	m.ops = append(m.ops, fmt.Sprintf(format, args...))
}

func (m *ledgerModel) denies(k flow.Key, _ flow.Service) bool { return m.denied[k.Src] }

// accept is a worker that accepts a packet, if the policy in force does.
func (m *ledgerModel) accept(k flow.Key) {
	if m.denied[k.Src] {
		return
	}
	m.note("accept %v", k)
	if _, exists := m.marked[k]; !exists {
		m.marked[k] = false
	}
	m.unheard = append(m.unheard, k)
	m.inFlight[k] = *m.now
}

// mark is the moment at which verdicts in flight set the bit.
func (m *ledgerModel) mark(k flow.Key) {
	if _, ok := m.inFlight[k]; !ok {
		return
	}
	m.note("mark %v", k)
	if m.denied[k.Src] {
		m.lateBits++
	}
	m.marked[k] = true
	delete(m.inFlight, k)
}

func (m *ledgerModel) report() {
	var news []conntrack.Record
	for _, k := range m.unheard {
		news = append(news, plainRecord(k))
		m.inFlight[k] = *m.now // StallTimeout runs from here on
	}
	m.unheard = nil
	m.note("report %d", len(news))
	m.g.learn(news)
}

// clear takes the bit by name, as kernelTable does.
func (m *ledgerModel) clear(victims []listed) {
	for i := range victims {
		for _, k := range []flow.Key{victims[i].key, victims[i].key.Reverse()} {
			if m.marked[k] && m.denies(k, flow.Service{}) {
				m.marked[k] = false
			}
		}
	}
	m.g.strike(victims)
}

func (m *ledgerModel) walk() {
	m.walked++
	d := m.g.begin()
	for k, bit := range m.marked {
		switch {
		case !bit:
		case m.denied[k.Src]:
			m.marked[k] = false
		default:
			first := tuple{src: k.Src.Netip(), dst: k.Dst.Netip(), srcPort: k.SrcPort, dstPort: k.DstPort, proto: k.Proto}
			back := tuple{src: first.dst, dst: first.src, srcPort: first.dstPort, dstPort: first.srcPort, proto: k.Proto}
			m.g.found(d, &entry{family: 2, orig: first, reply: back}, k)
		}
	}
	m.g.end(d, true)
	m.g.unsettled(m.denies)
}

// update changes the policy about one address, as the engine and Backend.cut do.
func (m *ledgerModel) update(a netip.Addr) {
	m.report()
	k := flow.AddrFrom(a)
	m.denied[k] = !m.denied[k]
	m.note("deny %v: %v", a, m.denied[k])
	if victims, complete := m.g.denied(dataplane.ChangeWithin(scope{[]netip.Addr{a}}), m.denies); complete {
		m.listed++
		m.clear(victims)
	} else {
		m.walk()
	}
}

// settle lets everything happen that was under way, and cuts what got its bit late.
func (m *ledgerModel) settle() error {
	m.report()
	for _, k := range slices.Collect(maps.Keys(m.inFlight)) {
		m.mark(k)
	}
	victims := m.g.condemned(m.denies)
	m.again += len(victims)
	m.clear(victims)
	for k, bit := range m.marked {
		if bit && m.denied[k.Src] {
			return fmt.Errorf("%v is denied and has the accept bit", k)
		}
	}
	return nil
}

// TestLedgerModel runs random operations: packets that are accepted, reported and marked
// at different times, changes of policy, news that are missed, walks, and connections
// that end. Once everything under way has happened, no denied connection has the bit.
func TestLedgerModel(t *testing.T) {
	var total ledgerModel
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 11))
		g, now := timedLedger()
		*now = time.Hour
		m := &ledgerModel{g: g, now: now, marked: map[flow.Key]bool{}, denied: map[flow.Addr]bool{}, inFlight: map[flow.Key]time.Duration{}}
		conn := func() flow.Key { return numberedConn(r.IntN(8)) }
		for range 200 {
			switch n := r.IntN(100); {
			case n < 35:
				m.accept(conn())
			case n < 50:
				m.mark(conn())
			case n < 60:
				m.report()
			case n < 75:
				m.update(conn().Src.Netip())
			case n < 78:
				m.note("miss")
				m.g.lose()
			case n < 84:
				m.walk()
			case n < 88:
				k := conn()
				m.note("end %v", k)
				if _, ok := m.inFlight[k]; !ok {
					delete(m.marked, k)
				}
			case n < 94: // no verdict is in flight for longer than settleTime
				step := time.Duration(r.Int64N(int64(3 * time.Second)))
				for k, at := range m.inFlight {
					if *m.now+step-at >= settleTime {
						m.mark(k)
					}
				}
				m.note("wait %v", step)
				*m.now += step
			default:
				if err := m.settle(); err != nil {
					t.Fatalf("seed %d: %v\nafter: %q", seed, err, m.ops)
				}
			}
		}
		total.listed, total.walked, total.again, total.lateBits = total.listed+m.listed, total.walked+m.walked, total.again+m.again, total.lateBits+m.lateBits
	}
	if total.listed == 0 || total.walked == 0 || total.again == 0 || total.lateBits == 0 {
		t.Errorf("the test tests too little")
	}
	t.Logf("%d updates by the list, %d walks, %d connections cut again, %d bits set late", total.listed, total.walked, total.again, total.lateBits)
}
