package conntrack

import (
	"testing"

	"github.com/tierwall/tierwall/classifier/flow"
)

// told lists what News has to say, by key, in the order it says it.
func told(tab *Table) (recs []Record, missed bool) {
	missed = tab.News(func(n []Record) { recs = append(recs, n...) })
	return recs, missed
}

// What was told comes again only when a packet was seen, and then says whether all
// of its packets were plain. Control operations are no news.
func TestNews(t *testing.T) {
	tab := New(Limits{})
	k := key(flow.UDP, "10.0.0.1:1000", "10.0.0.2:53")
	for _, step := range []struct {
		name    string
		do      func()
		packets uint64 // of the record told, 0 = none
		plain   bool
	}{
		{"empty", func() {}, 0, false},
		{"inserted", func() { tab.Insert(k, &Packet{Key: k, Plain: true}, Admission{}, noon) }, 1, true},
		{"again", func() {}, 0, false},
		{"seen", func() { tab.Seen(&Packet{Key: k.Reverse(), Plain: true}, noon, new(Record)) }, 2, true},
		{"seen by another name", func() { tab.Seen(&Packet{Key: k}, noon, new(Record)) }, 3, false},
		{"seen plain once more", func() { tab.Seen(&Packet{Key: k, Plain: true}, noon, new(Record)) }, 4, false},
		{"restamped", func() { r, _, _ := tab.Lookup(k, noon); tab.Restamp(&r, Admission{Generation: 9}) }, 0, false},
		{"forgotten, long told", func() { forget(tab, k) }, 0, false},
		{"inserted and forgotten", func() { tab.Insert(k, &Packet{Key: k}, Admission{}, noon); forget(tab, k) }, 1, false},
	} {
		step.do()
		recs, missed := told(tab)
		switch {
		case missed:
			t.Errorf("%s: missed some", step.name)
		case step.packets == 0 && len(recs) != 0 || step.packets != 0 && len(recs) != 1:
			t.Errorf("%s: told %+v", step.name, recs)
		case step.packets != 0 && (recs[0].Packets[0]+recs[0].Packets[1] != step.packets || recs[0].Plain != step.plain || recs[0].Key != k):
			t.Errorf("%s: told %+v, want %d packets, plain %v", step.name, recs[0], step.packets, step.plain)
		}
	}
}

// A table too small for what happens between two calls says so, once, and every
// record that was not told went before its time.
func TestNewsMissed(t *testing.T) {
	tab := New(Limits{Records: 100})
	for _, tc := range []struct {
		inserts int
		told    int
		missed  bool
	}{{100, 100, false}, {100, 100, false}, {100 + mostGone, 100 + mostGone, false}, {101 + mostGone, 100 + mostGone, true}, {1, 1, false}} {
		for i := range tc.inserts {
			k := numbered(i + 1000*tc.inserts)
			tab.Insert(k, &Packet{Key: k}, Admission{}, noon)
		}
		recs, missed := told(tab)
		seen := map[uint64]bool{}
		for _, r := range recs {
			seen[r.ID] = true
		}
		if len(recs) != tc.told || len(seen) != tc.told || missed != tc.missed {
			t.Errorf("after %d inserts: told %d records (%d distinct), missed %v; want %d, %v", tc.inserts, len(recs), len(seen), missed, tc.told, tc.missed)
		}
	}
}

// Whatever is inserted while News runs is told by that call or a later one.
func TestNewsUnderLoad(t *testing.T) {
	const n = 50000
	tab := New(Limits{Records: 1000})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range n {
			k := numbered(i)
			tab.Insert(k, &Packet{Key: k}, Admission{}, noon)
		}
	}()
	seen := make([]bool, n+1)
	missed, last := false, false
	for !last {
		select {
		case <-done:
			last = true
		default:
		}
		m := tab.News(func(recs []Record) {
			for _, r := range recs {
				if r.ID == 0 || r.ID > n || seen[r.ID] {
					t.Fatalf("told %+v", r)
				}
				seen[r.ID] = true
			}
		})
		missed = missed || m
	}
	for id := 1; id <= n && !missed; id++ {
		if !seen[id] {
			t.Fatalf("record %d was never told, and nothing missed", id)
		}
	}
}

func TestNewsAllocatesNothingOnThePath(t *testing.T) {
	tab := New(Limits{Records: 2000})
	var rec Record
	keys := make([]flow.Key, 1000)
	for i := range keys {
		keys[i] = numbered(i)
		tab.Insert(keys[i], &Packet{Key: keys[i]}, Admission{}, noon)
	}
	i := 0
	if n := testing.AllocsPerRun(900, func() {
		p := Packet{Key: keys[i]}
		i++
		if tab.Seen(&p, noon, &rec) != Hit || !tab.Forget(&rec) {
			t.Fatal("no hit")
		}
	}); n != 0 {
		t.Errorf("cutting a connection allocates %v times", n)
	}
}
