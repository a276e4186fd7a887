package conntrack

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/tierwall/tierwall/classifier/flow"
)

// Hits in random order: what a worker pays for a packet of a known connection.
func BenchmarkLookupHit(b *testing.B) {
	for _, flows := range []int{1024, 65536} {
		b.Run(fmt.Sprintf("flows=%d", flows), func(b *testing.B) {
			tab := New(Limits{Records: flows})
			packets := make([]Packet, flows)
			for i, n := range rand.New(rand.NewPCG(1, 1)).Perm(flows) {
				packets[i] = Packet{Key: numbered(n), Length: 100}
				tab.Insert(packets[i].Key, &packets[i], Admission{}, noon)
			}
			rand.New(rand.NewPCG(2, 2)).Shuffle(flows, func(i, j int) { packets[i], packets[j] = packets[j], packets[i] })
			b.ReportAllocs()
			var rec Record
			i := 0
			for b.Loop() {
				if tab.Seen(&packets[i], noon, &rec) != Hit {
					b.Fatal("not a hit")
				}
				if i++; i == flows {
					i = 0
				}
			}
		})
	}
}

// Every insert evicts: what a flood of new connections costs.
func BenchmarkInsertEvict(b *testing.B) {
	tab := New(Limits{})
	keys := make([]flow.Key, 4*DefaultRecords)
	for i := range keys {
		keys[i] = numbered(i)
		tab.Insert(keys[i], &Packet{Key: keys[i]}, Admission{}, noon)
	}
	b.ReportAllocs()
	var p Packet
	i := 0
	for b.Loop() {
		p.Key = keys[i]
		tab.Insert(keys[i], &p, Admission{}, noon)
		if i++; i == len(keys) {
			i = 0
		}
	}
	if tab.Stats().Replaced != 0 {
		b.Fatal("an insert found its key")
	}
}
