package assure

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/oracle"
	"github.com/tierwall/tierwall/classifier/oracle/universe"
	"github.com/tierwall/tierwall/classifier/rule"
)

// proveSmall asks about one claim and judges the answer.
func proveSmall(r *rand.Rand, counted map[string]int) error {
	s := drawSmall(r)
	own := rule.Set{Rules: slices.Clone(s.set.Rules), Isolations: slices.Clone(s.set.Isolations)}
	table, _, err := classifier.Compile(own, s.world, classifier.Options{})
	if err != nil {
		return err
	}
	w := NewWorld(s.snap, table)
	c, from, to := s.claim()
	what := fmt.Sprintf("from %s to %s port %s expect %s rights %+v", c.From, c.To, c.Ports.Text, c.Expect, c.Rights)
	ans, err := w.Prove(c, 100_000)
	if err != nil {
		counted["error: "+err.Error()]++
		if len(s.bodies(from, c, false)) > 0 && len(s.bodies(to, c, true)) > 0 && c.Ports.Name == "" {
			counted["error with pods"]++
		}
		return nil
	}
	counted[ans.Answer]++
	if c.Rights.Namespaces != "" {
		counted["any namespaces"]++
	}
	switch ans.Answer {
	case Undecided:
		counted["undecided: "+ans.Why]++
	case Proved:
		if wrong := s.wrong(c, from, to); wrong != "" {
			return fmt.Errorf("%s: proved, but %s\n%s", what, wrong, s.set.Text())
		}
	case Refuted:
		return s.judge(c, ans.Witness, from, to, what)
	}
	return nil
}

// judge asks the oracle about a witness, and whether the rights allow it.
func (s *small) judge(c *Claim, wit *Witness, from, to rule.Selector, what string) error {
	set := &s.set
	if len(wit.Policies) > 0 {
		p := wit.Table.Policy()
		set = &p
	}
	res := oracle.EvaluateVia(set, wit.Table.World(), wit.Packet, wit.Via)
	if asClaimed(c, res.Verdict) {
		return fmt.Errorf("%s: refuted by %+v, which the oracle calls %s\n%s", what, wit, res.Verdict, s.set.Text())
	}
	if wit.Decision.Verdict != res.Verdict.String() {
		return fmt.Errorf("%s: the witness is %s, the oracle says %s", what, wit.Decision.Verdict, res.Verdict)
	}
	if !wit.Via.IsZero() && (wit.To.Pod == nil || wit.To.Pod.Namespace != "x" || wit.To.Pod.Labels["app"] != "a") {
		return fmt.Errorf("%s: %+v is no backend of the Service", what, wit.To.Pod)
	}
	for i, e := range []*WitnessEnd{&wit.From, &wit.To} {
		sel := []rule.Selector{from, to}[i]
		if e.Pod == nil {
			continue
		}
		if !sel.Matches(e.Pod) {
			return fmt.Errorf("%s: %+v is not of the end", what, e.Pod)
		}
		same := func(b body) bool {
			if b.e == nil || b.e.Namespace != e.Pod.Namespace && !(e.NewNamespace && (b.e.Namespace == "n1" || b.e.Namespace == "n2")) {
				return false
			}
			like := func(a, b map[string]string) bool {
				for _, k := range s.keys {
					x, ok := a[k]
					y, ok2 := b[k]
					if ok != ok2 || x != y && (x == "a" || x == "b" || y == "a" || y == "b") {
						return false
					}
				}
				return true
			}
			return like(b.e.Labels, e.Pod.Labels) && like(b.e.NamespaceLabels, e.Pod.NamespaceLabels)
		}
		if !slices.ContainsFunc(s.bodies(sel, c, i == 1), same) {
			return fmt.Errorf("%s: nobody has the right to make %+v", what, e.Pod)
		}
	}
	return nil
}

// TestProveIsWhatAllPodsSay decides claims in small random worlds, and wants of
// every proved one that no pods that could be say otherwise, one by one, and of
// every refuted one that the oracle refuses the witness. Run it with -worlds 10000.
func TestProveIsWhatAllPodsSay(t *testing.T) {
	counted := map[string]int{}
	for seed := range worlds(150) {
		if err := proveSmall(rand.New(rand.NewPCG(uint64(seed), 41)), counted); err != nil {
			t.Fatalf("world %d: %v", seed, err)
		}
	}
	t.Logf("%d worlds: %v", worlds(150), counted)
	if counted[Proved] == 0 || counted[Refuted] == 0 {
		t.Errorf("not every answer came up: %v", counted)
	}
}

// FuzzProve does the same in worlds that the input makes.
func FuzzProve(f *testing.F) {
	for seed := range 16 {
		r := rand.New(rand.NewPCG(uint64(seed), 43))
		data := make([]byte, 64+32*seed)
		for i := range data {
			data[i] = byte(r.Uint32())
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := proveSmall(universe.FromBytes(data), map[string]int{}); err != nil {
			t.Error(err)
		}
	})
}
