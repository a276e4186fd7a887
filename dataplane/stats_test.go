package dataplane

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func TestHistogramBuckets(t *testing.T) {
	prev := -1
	for ns := int64(0); ns < 1<<20; ns++ {
		b := bucketOf(ns)
		if b < prev || b > prev+1 {
			t.Fatalf("%d ns falls into bucket %d after %d", ns, b, prev)
		}
		prev = b
		if limit := BucketLimit(b); ns >= int64(limit) || (b > 0 && ns < int64(BucketLimit(b-1))) {
			t.Fatalf("%d ns is outside bucket %d, which ends at %d", ns, b, limit)
		}
	}
	if bucketOf(-5) != 0 || bucketOf(1<<62) != NumBuckets-1 {
		t.Error("ends of the scale are not clamped")
	}
}

// TestHistogramQuantile compares with the exact quantile: never below it, never
// more than a quarter (and one nanosecond) above.
func TestHistogramQuantile(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	var h Histogram
	if h.Quantile(0.5) != 0 {
		t.Error("empty histogram has a quantile")
	}
	var all []int64
	for range 5000 {
		ns := int64(rng.ExpFloat64() * 20_000)
		all = append(all, ns)
		h.Buckets[bucketOf(ns)]++
	}
	slices.Sort(all)
	for _, q := range []float64{0.01, 0.5, 0.9, 0.99, 1} {
		exact := all[max(int(q*float64(len(all)))-1, 0)]
		got := h.Quantile(q)
		if got < time.Duration(exact) || float64(got) > float64(exact)*1.25+1 {
			t.Errorf("q %v: %v, exact %v", q, got, time.Duration(exact))
		}
	}
}

// TestPathTables: every path has a name and a disposition that fits its prefix.
func TestPathTables(t *testing.T) {
	seen := map[string]bool{}
	for p := range Path(NumPaths) {
		if s := p.String(); p.Name() == "" || seen[s] {
			t.Errorf("path %d is called %q", p, s)
		} else {
			seen[s] = true
		}
		want := PassPacket
		switch {
		case p >= DropProblem:
			want = DropPacket
		case p >= DeferFragment:
			want = DeferPacket
		}
		if p.Disposition() != want {
			t.Errorf("%v: disposition %v", p, p.Disposition())
		}
	}
	for f := range Fate(NumFates) {
		s := "kernel " + f.String()
		if f.Disposition() == "" || f.Reason() == "" || seen[s] {
			t.Errorf("fate %d is called %q", f, s)
		}
		seen[s] = true
	}
}
