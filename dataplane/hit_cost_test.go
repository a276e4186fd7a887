package dataplane

import (
	"testing"

	"github.com/tierwall/tierwall/classifier"
)

// Counting a decision allocates nothing once its outcome was seen.
func TestCountingAllocatesNothing(t *testing.T) {
	b := new(hitBank)
	ids := []classifier.OutcomeID{classifier.OutcomeAt(9), classifier.OutcomeAt(5), classifier.OutcomeAt(3 * hitPageSize)}
	for _, id := range ids {
		b.add(id, 1)
	}
	if n := testing.AllocsPerRun(100, func() {
		for _, id := range ids {
			b.add(id, 2)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	got := map[uint32]uint64{}
	b.drain(func(id classifier.OutcomeID, n uint64, last int64) {
		got[id.Index()] = n
		if last != 2 {
			t.Errorf("last %d", last)
		}
	})
	if len(got) != 3 || got[5] != 102 || got[3*hitPageSize] != 102 {
		t.Errorf("drained %v", got)
	}
	b.drain(func(id classifier.OutcomeID, n uint64, _ int64) { t.Errorf("outcome %d still has %d", id.Index(), n) })
}

// BenchmarkCount is what a decision pays: both directions, one of them here, 64 outcomes in turn.
func BenchmarkCount(b *testing.B) {
	bank := new(hitBank)
	var ids [64]classifier.OutcomeID
	for i := range ids {
		ids[i] = classifier.OutcomeAt(uint32(4 + i*7))
		bank.add(ids[i], 0)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		bank.add(classifier.OutcomeAt(1), int64(i)) // the other node's side
		bank.add(ids[i&63], int64(i))
	}
}
