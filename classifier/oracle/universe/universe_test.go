package universe_test

import (
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"testing"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/oracle"
	"github.com/tierwall/tierwall/classifier/oracle/universe"
	"github.com/tierwall/tierwall/classifier/rule"
)

// TestEverythingHappens is what the generator promises: in a modest number of
// universes every reason decides in both directions, every band decides by rule
// and by isolation, and the shapes that only show in combination show.
func TestEverythingHappens(t *testing.T) {
	const universes, flows = 12000, 20
	r := rand.New(rand.NewPCG(1, 2))
	seen := map[string]int{}
	for range universes {
		set, w := universe.Random(r)
		for range flows {
			k := universe.RandomKey(r, w)
			if !k.Valid() {
				t.Fatalf("invalid key %v", k)
			}
			res := oracle.Evaluate(&set, w, k)
			seen["verdict "+res.Verdict.String()]++
			for _, d := range flow.Directions {
				o := res.Direction(d)
				seen[d.String()+" reason "+o.Reason.String()]++
				if o.Reason == classifier.ReasonRule || o.Reason == classifier.ReasonIsolation {
					seen[d.String()+" "+o.Reason.String()+" "+o.Band.String()]++
				}
				count(seen, k, o)
				peer := k.Dst
				if d == flow.Ingress {
					peer = k.Src
				}
				if o.Rule != nil && len(o.Rule.Peers) == 1 && nobodys(w, peer.Netip()) {
					seen["nobody's address, kind of peer "+strconv.Itoa(int(o.Rule.Peers[0].Kind))]++
				}
			}
		}
	}
	want := []string{
		"verdict Allow", "verdict Drop", "verdict Reject",
		"several isolations", "audited isolation", "audited skip then rule", "audited skip then default",
		"two audited skips", "staged differs", "staged agrees", "staged isolation beside an enforced one",
		"rule by pods", "rule by relation", "rule by block", "rule by set", "rule by any", "rule by name",
		"nobody's address, kind of peer " + strconv.Itoa(int(rule.PeerBlock)), "nobody's address, kind of peer " + strconv.Itoa(int(rule.PeerSet)),
		"rule by source port", "rule by ICMP", "subject by any-of",
	}
	for _, d := range flow.Directions {
		for why := classifier.ReasonRule; why <= classifier.ReasonAuthRequired; why++ {
			if why != classifier.ReasonNodeLocal || d == flow.Ingress { // node-local is about arriving
				want = append(want, d.String()+" reason "+why.String())
			}
		}
		for b := rule.BandAntreaUpper; b < rule.BandDefault; b++ {
			want = append(want, d.String()+" rule "+b.String(), d.String()+" isolation "+b.String())
		}
	}
	for _, w := range want {
		if seen[w] < 20 {
			t.Errorf("%s: %d times in %d connections, want at least 20", w, seen[w], universes*flows)
		}
	}
}

// nobodys reports whether the address is in a pod network and no pod's or node's.
func nobodys(w *rule.World, a netip.Addr) bool {
	return slices.ContainsFunc(w.Nodes, func(n rule.Node) bool {
		return slices.ContainsFunc(n.PodCIDRs, func(p netip.Prefix) bool { return p.Contains(a) })
	}) && !slices.ContainsFunc(w.Nodes, func(n rule.Node) bool { return slices.Contains(n.Addrs, a) }) &&
		!slices.ContainsFunc(w.Endpoints, func(e rule.Endpoint) bool { return slices.Contains(e.Addrs, a) })
}

func count(seen map[string]int, k flow.Key, o *oracle.Outcome) {
	add := func(name string, yes bool) {
		if yes {
			seen[name]++
		}
	}
	skips := o.Audit
	if o.Rule != nil && o.Rule.Audit {
		skips = skips[:len(skips)-1]
	}
	add("several isolations", len(o.Isolations) > 1)
	add("audited isolation", o.AuditIsolation)
	add("audited skip then rule", o.Rule != nil && len(skips) > 0)
	add("audited skip then default", o.Reason == classifier.ReasonDefault && len(skips) > 0)
	add("two audited skips", len(skips) > 1)
	add("staged differs", o.HasStaged && o.Staged != o.Verdict)
	add("staged agrees", o.HasStaged && o.Staged == o.Verdict)
	add("staged isolation beside an enforced one", o.HasStaged && len(o.StagedIsolations) > len(o.Isolations) && len(o.Isolations) > 0)
	if o.Rule == nil {
		return
	}
	add("subject by any-of", len(o.Rule.Subject.AnyOf) > 0)
	if len(o.Rule.Peers) == 1 { // with one alternative it is the one that matched
		p := o.Rule.Peers[0]
		add("rule by any", p.Kind == rule.PeerAny)
		add("rule by pods", p.Kind == rule.PeerPods)
		add("rule by relation", p.Kind == rule.PeerPods && !p.Relation.IsZero())
		add("rule by block", p.Kind == rule.PeerBlock)
		add("rule by set", p.Kind == rule.PeerSet)
	}
	if len(o.Rule.L4) == 1 {
		l := o.Rule.L4[0]
		add("rule by name", l.Name != "")
		add("rule by source port", l.SrcPorts != rule.AllPorts)
	}
	add("rule by ICMP", (k.Proto == flow.ICMP || k.Proto == flow.ICMPv6) && !slices.ContainsFunc(o.Rule.L4, func(l rule.L4) bool {
		return l.Proto == flow.AnyProto || l.Ports == rule.AllPorts
	}))
}

// TestSameBytesSameUniverse: a crasher found elsewhere can be replayed.
func TestSameBytesSameUniverse(t *testing.T) {
	for _, data := range []string{"", "a", "\x00\x00\x00\x00", "\xff\xfe\xfd and a longer input that steers more choices"} {
		draw := func() (rule.Set, *rule.World, flow.Key) {
			r := universe.FromBytes([]byte(data))
			s, w := universe.Random(r)
			return s, w, universe.RandomKey(r, w)
		}
		s1, w1, k1 := draw()
		s2, w2, k2 := draw()
		if !reflect.DeepEqual(s1, s2) || !reflect.DeepEqual(w1, w2) || k1 != k2 {
			t.Errorf("%q: two universes", data)
		}
	}
}

// TestBytesSteer: one byte changes what it is spent on, not what came before.
func TestBytesSteer(t *testing.T) {
	a, b := universe.FromBytes([]byte{7, 7, 7, 7}), universe.FromBytes([]byte{7, 7, 200, 7})
	for i := range 4 {
		x, y := a.IntN(251), b.IntN(251)
		if (x == y) != (i != 2) {
			t.Errorf("choice %d: %d and %d", i, x, y)
		}
	}
	if a.Uint64() == b.Uint64() {
		t.Error("the streams behind two different inputs are the same")
	}
}

// TestOrigins: every rule and isolation can be told apart, and the set is canonical.
func TestOrigins(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		set, _ := universe.Random(r)
		seen := map[rule.Origin]bool{}
		for i := range set.Rules {
			if o := set.Rules[i].Origin; seen[o] {
				t.Fatalf("two rules from %v", o)
			} else {
				seen[o] = true
			}
			if i > 0 && set.Rules[i-1].Direction == set.Rules[i].Direction && rule.Compare(&set.Rules[i-1], &set.Rules[i]) >= 0 {
				t.Fatalf("rules %d and %d out of order", i-1, i)
			}
		}
		for i := range set.Isolations {
			if o := set.Isolations[i].Origin; seen[o] {
				t.Fatalf("two isolations from %v", o)
			} else {
				seen[o] = true
			}
		}
	}
}

func BenchmarkEvaluate(b *testing.B) {
	r := rand.New(rand.NewPCG(5, 6))
	set, w := universe.Random(r)
	for len(set.Rules) < 8 {
		set, w = universe.Random(r)
	}
	k := universe.RandomKey(r, w)
	for b.Loop() {
		oracle.Evaluate(&set, w, k)
	}
}
