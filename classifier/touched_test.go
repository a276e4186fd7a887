package classifier_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/oracle/universe"
)

// TestTouched: if the touched addresses are named, every affected connection has
// one of them, and each of them is touched.
func TestTouched(t *testing.T) {
	const perSequence, keysPerStep, limit = 25, 100, 16
	r := rand.New(rand.NewPCG(21, 22))
	named, empty, affected := 0, 0, 0
	for range 40 {
		m := newModel(r)
		l := newLive(t, m)
		for range perSequence {
			d := randomDelta(r, m)
			m.apply(d)
			_, rep := mustApply(t, l, d)
			addrs, ok := rep.Touched(limit)
			if !ok {
				if addrs != nil {
					t.Fatalf("addresses %v come with false", addrs)
				}
				continue
			}
			named++
			if len(addrs) == 0 {
				empty++
			}
			if len(addrs) > limit {
				t.Fatalf("%d addresses, want at most %d", len(addrs), limit)
			}
			for _, a := range addrs {
				if !rep.Touches(a) {
					t.Errorf("%v is named and not touched, by %+v", a, d)
				}
			}
			world := m.world()
			for range keysPerStep {
				k := universe.RandomKey(r, world)
				if !rep.Affects(k) {
					continue
				}
				affected++
				if !slices.Contains(addrs, k.Src) && !slices.Contains(addrs, k.Dst) {
					t.Fatalf("%s is affected by %+v, and neither end is among %v", k, d, addrs)
				}
			}
		}
	}
	if named < 100 || affected < 100 || empty == named {
		t.Errorf("%d changes named their addresses (%d none) and %d connections were affected: too few to show anything", named, empty, affected)
	}
	t.Logf("%d of 1000 changes named their addresses, %d of them none; %d affected connections", named, empty, affected)
}

func TestTouchedEverything(t *testing.T) {
	m := newModel(rand.New(rand.NewPCG(1, 1)))
	_, rep, err := classifier.NewLive(m.set(), m.world(), classifier.Options{Generation: 1})
	if err != nil {
		t.Fatal(err)
	}
	if addrs, ok := rep.Touched(1 << 20); ok || addrs != nil {
		t.Errorf("a first table names %v, %v, want nothing and false", addrs, ok)
	}
}
