package conntrack

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/tierwall/tierwall/classifier/flow"
)

// between is a connection of two of a few hosts.
func between(r *rand.Rand, hosts int) flow.Key {
	end := func() netip.AddrPort {
		a := netip.AddrFrom4([4]byte{10, 0, 0, byte(r.IntN(hosts))})
		if r.IntN(4) == 0 {
			a = netip.MustParseAddr(fmt.Sprintf("fd00::%d", r.IntN(hosts)))
		}
		return netip.AddrPortFrom(a, uint16(1+r.IntN(200)))
	}
	for {
		if src, dst := end(), end(); src.Addr().Is4() == dst.Addr().Is4() {
			return flow.MakeKey(flow.UDP, src, dst)
		}
	}
}

// TestEachTouching compares the index by address with a look at every record,
// while connections come, are replaced, evicted, expired and forgotten.
func TestEachTouching(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	const records, hosts = 300, 12
	tab := New(Limits{Records: records})
	now := noon
	found := 0
	for step := range 400 {
		for range r.IntN(150) {
			k := between(r, hosts)
			switch r.IntN(8) {
			case 0:
				forget(tab, k)
			case 1:
				tab.Insert(k.Reverse(), &Packet{Key: k}, Admission{}, now) // the other way round
			default:
				tab.Insert(k, &Packet{Key: k}, Admission{}, now)
			}
		}
		if r.IntN(20) == 0 {
			now += int64(DefaultTimeouts().UDPReplied) / 2
			tab.Expire(now, records)
		}
		marked := map[flow.Addr]bool{}
		for range r.IntN(4) {
			marked[between(r, hosts).Src] = true
		}
		want := map[uint64]Record{}
		tab.Each(func(rec Record) bool {
			if marked[rec.Key.Src] || marked[rec.Key.Dst] {
				want[rec.ID] = rec
			}
			return true
		})
		asked := map[flow.Addr]bool{}
		tab.EachTouching(func(a flow.Addr) bool {
			if asked[a] {
				t.Fatalf("step %d: asked twice about %v", step, a)
			}
			asked[a] = true
			return marked[a]
		}, func(rec Record) bool {
			if rec != want[rec.ID] {
				t.Fatalf("step %d: visited %v, want %v", step, rec, want[rec.ID])
			}
			delete(want, rec.ID)
			found++
			return true
		})
		if len(want) > 0 {
			t.Fatalf("step %d: did not visit %v", step, want)
		}
	}
	if found < 1000 {
		t.Errorf("visited only %d records", found)
	}
}

// TestEachTouchingStops: fn may change the table and end the visit.
func TestEachTouchingStops(t *testing.T) {
	tab := New(Limits{})
	for i := range 500 {
		k := numbered(i)
		tab.Insert(k, &Packet{Key: k}, Admission{}, noon)
	}
	n := 0
	tab.EachTouching(func(flow.Addr) bool { return true }, func(rec Record) bool {
		n++
		tab.Forget(&rec)
		return n < 100
	})
	if n != 100 || tab.Len() != 400 {
		t.Errorf("visited %d, %d records left", n, tab.Len())
	}
}

// TestEachTouchingUnderLoad: a record that stays is visited exactly once while
// the packet path inserts and evicts.
func TestEachTouchingUnderLoad(t *testing.T) {
	tab := New(Limits{Records: 4096})
	here := flow.AddrFrom(netip.MustParseAddr("10.9.9.9"))
	stay := map[flow.Key]bool{}
	for i := range 200 {
		k := flow.MakeKey(flow.UDP, netip.AddrPortFrom(here.Netip(), uint16(i+1)), netip.MustParseAddrPort("10.0.0.1:1"))
		stay[k] = true
		tab.Insert(k, &Packet{Key: k}, Admission{}, noon)
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		var rec Record
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			k := numbered(i)
			tab.Insert(k, &Packet{Key: k}, Admission{}, noon)
			for k := range stay { // keep them from being evicted
				tab.Seen(&Packet{Key: k}, noon, &rec)
				break
			}
			if i%16 == 0 {
				for k := range stay {
					tab.Seen(&Packet{Key: k}, noon, &rec)
				}
			}
		}
	}()
	for range 200 {
		seen := map[flow.Key]int{}
		tab.EachTouching(func(a flow.Addr) bool { return a == here }, func(rec Record) bool { seen[rec.Key]++; return true })
		for k := range stay {
			if seen[k] != 1 {
				t.Fatalf("%v visited %d times", k, seen[k])
			}
		}
	}
	close(stop)
	<-done
}

// BenchmarkEachTouching is one update that concerns one of the hosts of a full
// table, with some new connections since the last one.
func BenchmarkEachTouching(b *testing.B) {
	for _, peers := range []int{200, 60000} {
		b.Run(fmt.Sprintf("peers=%d", peers), func(b *testing.B) {
			tab := New(Limits{})
			pod := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}) }
			peer := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}) }
			for i := range DefaultRecords {
				k := flow.MakeKey(flow.UDP, netip.AddrPortFrom(peer(i%peers), uint16(i)|1), netip.AddrPortFrom(pod(i%100), 80))
				tab.Insert(k, &Packet{Key: k}, Admission{}, noon)
			}
			here := flow.AddrFrom(pod(7))
			found := 0
			for b.Loop() {
				found = 0
				tab.EachTouching(func(a flow.Addr) bool { return a == here }, func(Record) bool { found++; return true })
			}
			b.ReportMetric(float64(found), "records")
		})
	}
}
