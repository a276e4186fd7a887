package lint

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/oracle"
	"github.com/tierwall/tierwall/classifier/oracle/universe"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/api"
)

// TestShadowedNeverDecides: in random worlds where everything overlaps, a rule
// that is called shadowed decides no connection and skips nothing, by the
// evaluator that walks the rules one by one.
func TestShadowedNeverDecides(t *testing.T) {
	const universes, flows = 4000, 60
	r := rand.New(rand.NewPCG(3, 9))
	shadowed, decided := 0, 0
	for range universes {
		set, world := universe.Random(r)
		set.Sort()
		c := checker{set: &set, pods: world.Endpoints, selects: map[string]bool{}}
		c.index()
		hidden := map[*rule.Rule]*rule.Rule{}
		for i := range set.Rules {
			if ru := &set.Rules[i]; ru.Stage == rule.Enforce {
				if by := c.before(i, ru); by != nil {
					hidden[ru] = by
				}
			}
		}
		shadowed += len(hidden)
		for range flows {
			k := universe.RandomKey(r, world)
			result := oracle.Evaluate(&set, world, k)
			for _, d := range flow.Directions {
				o := result.Direction(d)
				for _, ru := range append(o.Audit, o.Rule) {
					if ru == nil {
						continue
					}
					decided++
					if by := hidden[ru]; by != nil {
						t.Fatalf("%s %s: decided by a rule that is shadowed\nrule %+v\nby   %+v", k, d, *ru, *by)
					}
				}
			}
		}
	}
	t.Logf("%d rules shadowed, %d decisions", shadowed, decided)
	if shadowed < 1000 || decided < 10_000 {
		t.Errorf("%d rules shadowed, %d decisions: the universes do not cover it", shadowed, decided)
	}
}

// TestCutIsCut: a pod that is said not to reach a server on port 53 does not, by
// the evaluator that walks the rules one by one. The other way round is no
// promise: in doubt nothing is said.
func TestCutIsCut(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 4))
	cut, reached := 0, 0
	for range 6000 {
		set, world := universe.Random(r)
		set.Sort()
		world.Node = ""
		for i := range world.Endpoints { // so that names mean port 53 here and there
			for j := range world.Endpoints[i].Ports {
				if p := &world.Endpoints[i].Ports[j]; r.IntN(2) == 0 {
					p.Proto, p.Port = flow.UDP, 53
				}
			}
		}
		c := checker{set: &set, pods: world.Endpoints, policies: map[api.Ref]*policy{}}
		c.index()
		d := resolver{checker: &c}
		d.prepare()
		for i := range world.Endpoints {
			pod, other := &world.Endpoints[i], &world.Endpoints[r.IntN(len(world.Endpoints))]
			if pod.HostNetwork || other.HostNetwork || pod == other {
				continue
			}
			for _, to := range other.Addrs {
				from, ok := pod.Addr(to.Is4())
				if !ok {
					continue
				}
				end := d.ask(i, server{pod: other, addr: to})
				if end.reached {
					reached++
					continue
				}
				cut++
				k := flow.MakeKey(flow.UDP, netip.AddrPortFrom(from, 40000), netip.AddrPortFrom(to, 53))
				if o := oracle.Evaluate(&set, world, k); o.Egress.Verdict == classifier.Allow {
					t.Fatalf("%s: said to be cut by %+v, and is allowed: %+v\nrules\n%s", k, end, o.Egress, set.Text())
				}
			}
		}
	}
	t.Logf("%d cut, %d reached", cut, reached)
	if cut < 1000 || reached < 1000 {
		t.Errorf("%d cut, %d reached: the universes do not cover it", cut, reached)
	}
}

// TestImplies: every pair of requirements over one key and three values, against
// every label map there is.
func TestImplies(t *testing.T) {
	var all []rule.Requirement
	for _, op := range []rule.Op{rule.In, rule.NotIn} {
		for _, values := range [][]string{{"a"}, {"b"}, {"a", "b"}, {"b", "c"}} {
			all = append(all, rule.Requirement{Key: "k", Op: op, Values: values})
		}
	}
	all = append(all, rule.Requirement{Key: "k", Op: rule.Exists}, rule.Requirement{Key: "k", Op: rule.NotExists})
	maps := []map[string]string{{}, {"k": "a"}, {"k": "b"}, {"k": "c"}, {"k": "d"}}
	for _, have := range all {
		for _, want := range all {
			truth := true
			for _, m := range maps {
				truth = truth && (!have.Matches(m) || want.Matches(m))
			}
			if got := implies(have, want); got != truth {
				t.Errorf("%v implies %v: got %v", have, want, got)
			}
		}
	}
	if implies(all[0], rule.Requirement{Key: "other", Op: rule.In, Values: []string{"a"}}) {
		t.Error("another key")
	}
}

func TestCoversPorts(t *testing.T) {
	l := func(p flow.Proto, first, last, srcFirst, srcLast uint16) rule.L4 {
		return rule.L4{Proto: p, Ports: rule.PortRange{First: first, Last: last}, SrcPorts: rule.PortRange{First: srcFirst, Last: srcLast}}
	}
	named := func(p flow.Proto) rule.L4 { return rule.L4{Proto: p, Name: "http", SrcPorts: rule.AllPorts} }
	for _, c := range []struct {
		name string
		a, b rule.L4
		want bool
	}{
		{"any covers a port", rule.AnyL4, l(flow.TCP, 80, 80, 0, 65535), true},
		{"a port does not cover any", l(flow.TCP, 80, 80, 0, 65535), rule.AnyL4, false},
		{"range in range", l(flow.TCP, 80, 90, 0, 65535), l(flow.TCP, 81, 90, 0, 65535), true},
		{"range beyond range", l(flow.TCP, 80, 90, 0, 65535), l(flow.TCP, 81, 91, 0, 65535), false},
		{"another protocol", l(flow.TCP, 80, 90, 0, 65535), l(flow.UDP, 80, 80, 0, 65535), false},
		{"fewer source ports do not cover more", l(flow.TCP, 80, 80, 10, 20), l(flow.TCP, 80, 80, 0, 65535), false},
		{"more source ports cover fewer", l(flow.TCP, 80, 80, 0, 65535), l(flow.TCP, 80, 80, 10, 20), true},
		{"a name covers itself", named(flow.TCP), named(flow.TCP), true},
		{"a name of another protocol", named(flow.TCP), named(flow.UDP), false},
		{"all ports cover a name", l(flow.TCP, 0, 65535, 0, 65535), named(flow.TCP), true},
		{"some ports may not", l(flow.TCP, 0, 65534, 0, 65535), named(flow.TCP), false},
		{"a name is not a number", named(flow.TCP), l(flow.TCP, 80, 80, 0, 65535), false},
	} {
		if got := coversPorts(&c.a, &c.b); got != c.want {
			t.Errorf("%s: got %v", c.name, got)
		}
	}
}
