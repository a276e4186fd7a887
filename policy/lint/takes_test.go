package lint

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/oracle"
	"github.com/tierwall/tierwall/classifier/oracle/universe"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/api"
)

// overrideUniverse draws rules of which many are of the band of NetworkPolicies or
// stronger, over a small world.
func overrideUniverse(r *rand.Rand) (rule.Set, *rule.World) {
	for {
		set, world := universe.Random(r)
		world.Node = ""
		for i := range set.Rules {
			if ru := &set.Rules[i]; len(ru.Peers) == 0 && r.IntN(4) > 0 {
				ru.Peers = []rule.Peer{{Kind: rule.PeerAny}}
			}
			switch ru := &set.Rules[i]; {
			case r.IntN(2) == 0:
				ru.Order.Band = rule.BandNetworkPolicy
			case ru.Action != rule.Skip:
				ru.Order.Band = min(ru.Order.Band, rule.BandAdmin)
				ru.Action = []rule.Action{rule.Allow, rule.Deny, rule.Reject}[r.IntN(3)]
				ru.Auth = false
			}
		}
		for i := range set.Isolations {
			// No API isolates in a stronger band.
			set.Isolations[i].Band = max(set.Isolations[i].Band, rule.BandNetworkPolicy)
		}
		set.Sort()
		if slices.ContainsFunc(set.Rules, func(r rule.Rule) bool { return r.Order.Band < rule.BandNetworkPolicy }) {
			return set, world
		}
	}
}

// matches reports whether a rule matches a connection that policy is asked about.
func matches(ru *rule.Rule, world *rule.World, k flow.Key) bool {
	plain := *ru
	plain.Auth, plain.Action = false, rule.Deny
	o := oracle.Evaluate(&rule.Set{Rules: []rule.Rule{plain}}, world, k)
	return o.Direction(ru.Direction).Reason == classifier.ReasonRule
}

// onlyNetworkPolicies is what a set's NetworkPolicies allow and isolate by themselves.
func onlyNetworkPolicies(set *rule.Set) *rule.Set {
	var out rule.Set
	for _, ru := range set.Rules {
		if ru.Order.Band == rule.BandNetworkPolicy && ru.Action == rule.Allow && ru.Stage == rule.Enforce {
			ru.Auth = false
			out.Rules = append(out.Rules, ru)
		}
	}
	for _, iso := range set.Isolations {
		if iso.Band == rule.BandNetworkPolicy && iso.Stage == rule.Enforce {
			out.Isolations = append(out.Isolations, iso)
		}
	}
	return &out
}

// TestOverrideExamples (S0-67, S0-69): in random worlds where everything overlaps,
// every connection that a finding names is decided by the stronger rule it names, by
// the table that daemons enforce; and the weaker rule or isolation concerns it.
func TestOverrideExamples(t *testing.T) {
	r := rand.New(rand.NewPCG(6, 7))
	taken, opened := 0, 0
	for range 4000 {
		set, world := overrideUniverse(r)
		table, _, err := classifier.Compile(set, world, classifier.Options{})
		if err != nil {
			t.Fatal(err)
		}
		weak := onlyNetworkPolicies(&set)
		tk := newTaker(&set, world)
		decided := func(w take, d flow.Direction) *classifier.Outcome {
			decision := table.Lookup(w.key)
			id := decision.Egress
			if d == flow.Ingress {
				id = decision.Ingress
			}
			o := table.Outcome(id)
			if o.Reason != classifier.ReasonRule || table.Rule(o.Rule).Origin != set.Rules[w.by].Origin {
				t.Fatalf("%s %s: said to be decided by %+v, is by %+v\n%s", w.key, d, set.Rules[w.by].Origin, o, set.Text())
			}
			return o
		}
		for i := range set.Rules {
			ru := &set.Rules[i]
			if ru.Order.Band != rule.BandNetworkPolicy || ru.Action != rule.Allow || ru.Stage != rule.Enforce {
				continue
			}
			found, _ := tk.taken(i)
			for _, w := range found {
				taken++
				if o := decided(w, ru.Direction); o.Verdict == classifier.Allow || !matches(ru, world, w.key) || w.by >= i {
					t.Fatalf("S0-67, S0-69: %s: %+v takes nothing away from %+v", w.key, o, ru.Origin)
				}
			}
		}
		for _, d := range flow.Directions {
			for k := range tk.ground.Kinds {
				for _, w := range tk.opened(k, d) {
					if o := oracle.Evaluate(weak, world, w.key); o.Direction(d).Reason != classifier.ReasonIsolation {
						continue // no NetworkPolicy isolates this kind
					}
					opened++
					if o := decided(w, d); o.Verdict != classifier.Allow {
						t.Fatalf("%s: %+v opens nothing", w.key, o)
					}
				}
			}
		}
	}
	t.Logf("%d taken, %d opened", taken, opened)
	if taken < 400 || opened < 500 {
		t.Errorf("%d taken, %d opened: the universes do not cover it", taken, opened)
	}
}

// TestOverriddenAllowWithoutAWarning: every connection of a small world that a
// stronger rule decides against a NetworkPolicy has a finding: for the rule that
// allows it, by the policy that refuses it; for the pods that are isolated, by the
// policy that allows it.
func TestOverriddenAllowWithoutAWarning(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 9))
	lost, open, whole := 0, 0, 0
	for range 1200 {
		set, world := overrideUniverse(r)
		weak := onlyNetworkPolicies(&set)
		tk := newTaker(&set, world)
		byRule := map[int]map[api.Ref]bool{}
		all := map[int]bool{}
		for i := range set.Rules {
			if ru := &set.Rules[i]; ru.Order.Band == rule.BandNetworkPolicy && ru.Action == rule.Allow && ru.Stage == rule.Enforce && !ru.ToServices() {
				found, everything := tk.taken(i)
				byRule[i], all[i] = map[api.Ref]bool{}, everything
				for _, w := range found {
					byRule[i][api.RefOf(&set.Rules[w.by].Origin)] = true
				}
			}
		}
		if tk.cut {
			t.Fatal("a small world is too large")
		}
		for range 400 {
			k := universe.RandomKey(r, world)
			family := k.Proto != flow.ICMP && k.Proto != flow.ICMPv6 || (k.Proto == flow.ICMP) == k.Src.Is4()
			if !family || k.Proto.HasPorts() && (k.SrcPort == 0 || k.DstPort == 0) {
				continue // no packet has these
			}
			if unknown(world, k.Src) || unknown(world, k.Dst) {
				continue // a pod that is not there yet, or not any more
			}
			result := oracle.Evaluate(&set, world, k)
			for _, d := range flow.Directions {
				o := result.Direction(d)
				exempt := o.Reason != classifier.ReasonRule && o.Reason != classifier.ReasonIsolation && o.Reason != classifier.ReasonDefault && o.Reason != classifier.ReasonAuthRequired
				if exempt {
					continue
				}
				for i, by := range byRule {
					ru := &set.Rules[i]
					if ru.Direction != d || !matches(ru, world, k) {
						continue
					}
					stronger := o.Reason == classifier.ReasonRule && o.Verdict != classifier.Allow && rule.Compare(o.Rule, ru) < 0
					if stronger {
						if lost++; !by[api.RefOf(&o.Rule.Origin)] {
							t.Fatalf("%s %s: no finding that %+v loses it to %+v\n%s", k, d, ru.Origin, o.Rule.Origin, set.Text())
						}
					}
					if all[i] {
						if whole++; !stronger {
							t.Fatalf("%s %s: %+v is said to lose everything\n%s", k, d, ru.Origin, set.Text())
						}
					}
				}
				if o.Reason != classifier.ReasonRule || o.Verdict != classifier.Allow || o.Rule.Order.Band >= rule.BandNetworkPolicy {
					continue
				}
				isolated := oracle.Evaluate(weak, world, k)
				if isolated.Direction(d).Reason != classifier.ReasonIsolation {
					continue
				}
				open++
				subject := k.Src
				if d == flow.Ingress {
					subject = k.Dst
				}
				if !slices.ContainsFunc(tk.openedAt(subject, d), func(w take) bool { return api.RefOf(&set.Rules[w.by].Origin) == api.RefOf(&o.Rule.Origin) }) {
					t.Fatalf("%s %s: no finding that %+v opens it\n%s", k, d, o.Rule.Origin, set.Text())
				}
			}
		}
	}
	t.Logf("%d lost, %d opened, %d of rules that lose everything", lost, open, whole)
	if lost < 1000 || open < 500 || whole < 200 {
		t.Errorf("%d lost, %d opened, %d of rules that lose everything: the universes do not cover it", lost, open, whole)
	}
}

// unknown reports whether an address is in a range of pods and nobody's.
func unknown(world *rule.World, a flow.Addr) bool {
	in := false
	for i := range world.Nodes {
		n := &world.Nodes[i]
		if slices.Contains(n.Addrs, a.Netip()) {
			return false
		}
		for _, c := range n.PodCIDRs {
			in = in || c.Contains(a.Netip())
		}
	}
	return in && !slices.ContainsFunc(world.Endpoints, func(e rule.Endpoint) bool { return slices.Contains(e.Addrs, a.Netip()) })
}

// openedAt is opened for the pod of an address.
func (t *taker) openedAt(a flow.Addr, d flow.Direction) []take {
	var key string
	for i := range t.world.Endpoints {
		if e := &t.world.Endpoints[i]; !e.HostNetwork && slices.Contains(e.Addrs, a.Netip()) {
			key = e.Namespace + "/" + e.Name
			break
		}
	}
	for k := range t.ground.Kinds {
		for _, m := range t.ground.Kinds[k].Members {
			if p := t.ground.Pods[m]; p.Namespace+"/"+p.Name == key {
				return t.opened(k, d)
			}
		}
	}
	return nil
}
