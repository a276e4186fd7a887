package upstream

import (
	"math"
	"math/rand/v2"
	"regexp"
	"testing"

	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/inventory"
)

// published is the pattern of the API's definition, with its range A-z.
var published = regexp.MustCompile(`^(\*\.)?([a-zA-z0-9]([-a-zA-Z0-9_]*[a-zA-Z0-9])?\.)+[a-zA-z0-9]([-a-zA-Z0-9_]*[a-zA-Z0-9])?\.?$`)

// strict is the same with A-Z, which is what it must have meant.
var strict = regexp.MustCompile(`^(\*\.)?([a-zA-Z0-9]([-a-zA-Z0-9_]*[a-zA-Z0-9])?\.)+[a-zA-Z0-9]([-a-zA-Z0-9_]*[a-zA-Z0-9])?\.?$`)

func TestDomainName(t *testing.T) {
	for _, c := range []struct {
		name string
		ok   bool
	}{
		{"example.org", true},
		{"example.org.", true},
		{"*.example.org", true},
		{"*.org", false}, // two labels behind the star, says the pattern
		{"a_b.example-1.ORG", true},
		{"0.0", true},
		{"org", false},
		{"", false},
		{".", false},
		{"*", false},
		{"*.", false},
		{"**.example.org", false},
		{"*example.org", false},
		{"a.*.org", false},
		{"example..org", false},
		{"example.org..", false},
		{"-a.org", false},
		{"a-.org", false},
		{"a b.org", false},
		{"ä.org", false},
	} {
		problem, _ := checkDomainName(c.name)
		if (problem == "") != c.ok || strict.MatchString(c.name) != c.ok {
			t.Errorf("%q: %q, pattern %v, want ok=%v", c.name, problem, strict.MatchString(c.name), c.ok)
		}
	}
	r := rand.New(rand.NewPCG(1, 1))
	const letters = "aZ0-_.*^ "
	matched := 0
	for range 200_000 {
		b := make([]byte, r.IntN(9))
		for i := range b {
			b[i] = letters[r.IntN(len(letters))]
		}
		problem, _ := checkDomainName(string(b))
		if (problem == "") != strict.Match(b) {
			t.Fatalf("%q: %q, pattern %v", b, problem, strict.Match(b))
		}
		if problem == "" {
			matched++
			if !published.Match(b) {
				t.Fatalf("%q: the API refuses it", b)
			}
		}
	}
	if matched < 100 {
		t.Errorf("only %d names among the random ones", matched)
	}
}

// Any KEP priority has its place, above and below the range others have.
func TestRankKEP(t *testing.T) {
	last := math.Inf(-1)
	for _, p := range []int32{math.MaxInt32, 1002, 1001, 1000, 500, 1, 0, -1, math.MinInt32} {
		r := RankKEP(p)
		if r <= last || math.Signbit(r) && r == 0 { // S0-16
			t.Errorf("priority %d ranks %v, behind %v", p, r, last)
		}
		last = r
	}
	if RankKEP(1000) != 1 || RankKEP(1) != 1000 || RankKEP(0) >= RankBaselineANP {
		t.Error("not on the scale of the others")
	}
}

// The list of others is cut: with many policies of one priority every pair would
// fill the screen.
func TestConflictsAreBrief(t *testing.T) {
	inv := &inventory.Snapshot{Namespaces: []inventory.Namespace{{Name: "x"}}, Pods: []inventory.Pod{{Namespace: "x", Name: "p"}}}
	var policies []Ranked
	for i := range 9 {
		o := &api.Object{Kind: api.Kind{Kind: "P"}, Name: string(rune('i' - i))}
		policies = append(policies, Ranked{Object: o, Band: rule.BandAdmin, Rank: 3, Priority: 3})
	}
	policies = append(policies,
		Ranked{Object: policies[0].Object, Band: rule.BandBaseline, Rank: 3}, // another band
		Ranked{Object: policies[0].Object, Band: rule.BandAdmin, Rank: 4},    // another rank
		Ranked{Object: policies[0].Object, Band: rule.BandAdmin, Rank: 3, Subject: rule.Selector{None: true}})
	l := Conflicts(policies, inv)
	if len(l.Errors) != 0 || len(l.Warnings) != 8 {
		t.Fatalf("%v", l)
	}
	const want = "P i: spec.priority: priority 3 is also that of a (both select pod x/p), b (both select pod x/p), " +
		"c (both select pod x/p), d (both select pod x/p), e (both select pod x/p) and 3 more: " +
		"equal priorities are evaluated in the order of the policies' names (give each its own priority)"
	if got := l.Warnings[7].String(); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
