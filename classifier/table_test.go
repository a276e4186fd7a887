package classifier_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/oracle/universe"
	"github.com/tierwall/tierwall/classifier/rule"
)

var (
	podX = rule.Endpoint{
		Namespace: "x", Name: "a", Node: "n1", Labels: map[string]string{"app": "a"},
		Addrs: addrs("10.0.0.1", "fd00::1"), Ports: []rule.NamedPort{{Name: "web", Proto: flow.TCP, Port: 8080}},
	}
	podY = rule.Endpoint{
		Namespace: "y", Name: "b", Node: "n2", Labels: map[string]string{"app": "b"},
		Addrs: addrs("10.0.1.1", "fd00::1:1"), Ports: []rule.NamedPort{{Name: "web", Proto: flow.TCP, Port: 9090}},
	}
)

func addrs(s ...string) (out []netip.Addr) {
	for _, a := range s {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

// twoPods is a world of two nodes with a pod each, seen from the given node.
func twoPods(node string) *rule.World {
	return &rule.World{
		Node: node, Endpoints: []rule.Endpoint{podX, podY},
		Nodes: []rule.Node{
			{Name: "n1", Addrs: addrs("192.168.0.1"), PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}},
			{Name: "n2", Addrs: addrs("192.168.0.2"), PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.1.0/24")}},
		},
		VIPs: addrs("10.96.0.1"),
	}
}

func compileOrFail(tb testing.TB, set rule.Set, w *rule.World) *classifier.Table {
	tb.Helper()
	t, _, err := classifier.Compile(set, w, classifier.Options{Generation: 1})
	if err != nil {
		tb.Fatal(err)
	}
	return t
}

func tcp(src, dst string, port uint16) flow.Key {
	return flow.MakeKey(flow.TCP, netip.AddrPortFrom(netip.MustParseAddr(src), 40000), netip.AddrPortFrom(netip.MustParseAddr(dst), port))
}

// isolateY selects pod y/b for ingress in the NetworkPolicy band and allows the
// named port "web" from pods of namespace x.
func isolateY() rule.Set {
	subject := rule.Selector{Namespace: "y"}
	return rule.Set{
		Rules: []rule.Rule{{
			Direction: flow.Ingress, Order: rule.Order{Band: rule.BandNetworkPolicy, Name: "y/p"}, Subject: subject,
			Peers:  []rule.Peer{{Kind: rule.PeerPods, Pods: rule.Selector{Namespace: "x"}}},
			L4:     []rule.L4{{Proto: flow.TCP, Name: "web", SrcPorts: rule.AllPorts}},
			Action: rule.Allow, Audit: true, Origin: rule.Origin{Kind: "NetworkPolicy", Namespace: "y", Name: "p"},
		}},
		Isolations: []rule.Isolation{{
			Direction: flow.Ingress, Band: rule.BandNetworkPolicy, Subject: subject,
			Origin: rule.Origin{Kind: "NetworkPolicy", Namespace: "y", Name: "p", Index: -1},
		}},
	}
}

func TestLookup(t *testing.T) {
	for _, tc := range []struct {
		name, node      string
		key             flow.Key
		verdict         classifier.Verdict
		egress, ingress classifier.Reason
	}{
		{"named port of the destination", "", tcp("10.0.0.1", "10.0.1.1", 9090), classifier.Allow, classifier.ReasonDefault, classifier.ReasonRule},
		{"the same in IPv6", "", tcp("fd00::1", "fd00::1:1", 9090), classifier.Allow, classifier.ReasonDefault, classifier.ReasonRule},
		{"the source's number for the name", "", tcp("10.0.0.1", "10.0.1.1", 8080), classifier.Drop, classifier.ReasonDefault, classifier.ReasonIsolation},
		{"another node does not judge", "n1", tcp("10.0.0.1", "10.0.1.1", 8080), classifier.Allow, classifier.ReasonDefault, classifier.ReasonNotLocal},
		{"own node's address", "n2", tcp("192.168.0.2", "10.0.1.1", 1), classifier.Allow, classifier.ReasonNotLocal, classifier.ReasonNodeLocal},
		{"another node's address", "n2", tcp("192.168.0.1", "10.0.1.1", 1), classifier.Drop, classifier.ReasonNotLocal, classifier.ReasonIsolation},
		{"pod to itself", "", tcp("10.0.1.1", "10.0.1.1", 1), classifier.Allow, classifier.ReasonSelf, classifier.ReasonSelf},
		{"unknown address in a pod CIDR", "", tcp("10.0.0.77", "10.0.1.1", 9090), classifier.Drop, classifier.ReasonNotLocal, classifier.ReasonUnknownPeer},
		{"outside", "", tcp("8.8.8.8", "10.0.1.1", 9090), classifier.Drop, classifier.ReasonNotLocal, classifier.ReasonIsolation},
		{"nobody selects the destination", "", tcp("10.0.1.1", "10.0.0.1", 1), classifier.Allow, classifier.ReasonDefault, classifier.ReasonDefault},
	} {
		table := compileOrFail(t, isolateY(), twoPods(tc.node))
		d := table.Lookup(tc.key)
		eg, in := table.Outcome(d.Egress), table.Outcome(d.Ingress)
		if d.Verdict != tc.verdict || eg.Reason != tc.egress || in.Reason != tc.ingress {
			t.Errorf("%s: %s, egress %s, ingress %s; want %s, %s, %s", tc.name, d.Verdict, eg.Reason, in.Reason, tc.verdict, tc.egress, tc.ingress)
		}
	}
}

// TestAddressNoPodHas is X-61: an address of a pod network that no pod has, as a
// bridge's or flannel's device has it, is in doubt for selectors only. Blocks and
// sets go by the address.
func TestAddressNoPodHas(t *testing.T) {
	peer := func(p rule.Peer, a rule.Action) rule.Set {
		set := isolateY()
		set.Rules[0].Peers, set.Rules[0].Action, set.Rules[0].L4 = []rule.Peer{p}, a, []rule.L4{rule.AnyL4}
		if a == rule.Deny {
			set.Isolations = nil
		}
		return set
	}
	block := func(prefix string, noPods bool) rule.Peer {
		return rule.Peer{Kind: rule.PeerBlock, Block: rule.IPBlock{Prefix: netip.MustParsePrefix(prefix), NoPods: noPods}}
	}
	set := func(name string) rule.Peer { return rule.Peer{Kind: rule.PeerSet, Set: name} }
	pods := rule.Peer{Kind: rule.PeerPods}
	for _, tc := range []struct {
		name    string
		set     rule.Set
		verdict classifier.Verdict
		reason  classifier.Reason
	}{
		//
		{"a deny of addresses elsewhere", peer(block("203.0.113.0/24", false), rule.Deny), classifier.Allow, classifier.ReasonDefault},
		{"an allow of everything", peer(block("0.0.0.0/0", false), rule.Allow), classifier.Allow, classifier.ReasonRule},
		{"an allow of elsewhere", peer(block("203.0.113.0/24", false), rule.Allow), classifier.Drop, classifier.ReasonIsolation},
		{"a deny of the pod network", peer(block("10.0.0.0/16", false), rule.Deny), classifier.Drop, classifier.ReasonRule},
		{"an allow of a set with it", peer(set("feet"), rule.Allow), classifier.Allow, classifier.ReasonRule},
		{"a deny of a set without it", peer(set("elsewhere"), rule.Deny), classifier.Allow, classifier.ReasonDefault},
		{"an allow of pods", peer(pods, rule.Allow), classifier.Drop, classifier.ReasonUnknownPeer},
		{"a deny of pods", peer(pods, rule.Deny), classifier.Drop, classifier.ReasonUnknownPeer},
		{"an allow of what is no pod", peer(block("0.0.0.0/0", true), rule.Allow), classifier.Drop, classifier.ReasonUnknownPeer},
		{"a deny of what is no pod, elsewhere", peer(block("203.0.113.0/24", true), rule.Deny), classifier.Allow, classifier.ReasonDefault},
	} {
		w := twoPods("n2")
		w.Sets = map[string][]netip.Prefix{"feet": {netip.MustParsePrefix("10.0.0.0/32")}, "elsewhere": {netip.MustParsePrefix("203.0.113.1/32")}}
		table := compileOrFail(t, tc.set, w)
		d := table.Lookup(tcp("10.0.0.0", "10.0.1.1", 9090)) // n1's flannel device
		if o := table.Outcome(d.Ingress); d.Verdict != tc.verdict || o.Reason != tc.reason {
			t.Errorf("%s: %s, %s; want %s, %s", tc.name, d.Verdict, o.Reason, tc.verdict, tc.reason)
		}
	}
}

// TestCertainAllowDespiteDoubt: NetworkPolicies add up, so the one that surely allows
// counts, whatever the name of one that is in doubt.
func TestCertainAllowDespiteDoubt(t *testing.T) {
	pods, everybody := rule.Peer{Kind: rule.PeerPods}, rule.Peer{Kind: rule.PeerBlock, Block: rule.IPBlock{Prefix: netip.MustParsePrefix("0.0.0.0/0")}}
	for _, tc := range []struct {
		name         string
		first, other rule.Peer
		action       rule.Action // of the second rule
		verdict      classifier.Verdict
		reason       classifier.Reason
	}{
		{"selector, then block", pods, everybody, rule.Allow, classifier.Allow, classifier.ReasonRule},
		{"block, then selector", everybody, pods, rule.Allow, classifier.Allow, classifier.ReasonRule},
		{"two selectors", pods, pods, rule.Allow, classifier.Drop, classifier.ReasonUnknownPeer},
		{"a denial follows", pods, everybody, rule.Deny, classifier.Drop, classifier.ReasonUnknownPeer},
	} {
		set := isolateY()
		set.Rules[0].L4, set.Rules[0].Peers = []rule.L4{rule.AnyL4}, []rule.Peer{tc.first}
		second := set.Rules[0]
		second.Peers, second.Action, second.Origin.Name, second.Order.Name = []rule.Peer{tc.other}, tc.action, "q", "y/q"
		set.Rules = append(set.Rules, second)
		table := compileOrFail(t, set, twoPods("n2"))
		k := tcp("10.0.0.0", "10.0.1.1", 9090)
		d := table.Lookup(k)
		if o := table.Outcome(d.Ingress); d.Verdict != tc.verdict || o.Reason != tc.reason {
			t.Errorf("%s: %s, %s; want %s, %s", tc.name, d.Verdict, o.Reason, tc.verdict, tc.reason)
		}
		checkTrace(t, table, table.Explain(k))
	}
}

// A client that hides behind another address is let in where everybody is, and
// nowhere else: not as the node whose address it bears, nor as a pod. With and
// without pod CIDRs, in which addresses can be unknown.
func TestLookupMasked(t *testing.T) {
	anyone := isolateY()
	anyone.Rules[0].Peers = []rule.Peer{{Kind: rule.PeerAny}}
	cidrless := twoPods("")
	for i := range cidrless.Nodes {
		cidrless.Nodes[i].PodCIDRs = nil
	}
	for _, tc := range []struct {
		name    string
		set     rule.Set
		world   *rule.World
		key     flow.Key
		verdict classifier.Verdict
		ingress classifier.Reason
	}{
		{"an allowed pod's address", isolateY(), twoPods(""), tcp("10.0.0.1", "10.0.1.1", 9090), classifier.Drop, classifier.ReasonUnknownPeer},
		{"the own node's address", isolateY(), twoPods("n2"), tcp("192.168.0.2", "10.0.1.1", 9090), classifier.Drop, classifier.ReasonUnknownPeer},
		{"no pod CIDRs", isolateY(), cidrless, tcp("10.0.0.1", "10.0.1.1", 9090), classifier.Drop, classifier.ReasonUnknownPeer},
		{"a port for nobody", isolateY(), twoPods(""), tcp("10.0.0.1", "10.0.1.1", 1), classifier.Drop, classifier.ReasonIsolation},
		{"the pod's own address", isolateY(), twoPods(""), tcp("10.0.1.1", "10.0.1.1", 9090), classifier.Drop, classifier.ReasonUnknownPeer},
		{"everybody is let in", anyone, twoPods("n2"), tcp("192.168.0.2", "10.0.1.1", 9090), classifier.Allow, classifier.ReasonRule},
		{"nobody selects the destination", isolateY(), twoPods(""), tcp("10.0.1.1", "10.0.0.1", 1), classifier.Allow, classifier.ReasonDefault},
		{"another node judges", isolateY(), twoPods("n1"), tcp("10.0.0.1", "10.0.1.1", 1), classifier.Allow, classifier.ReasonNotLocal},
	} {
		table := compileOrFail(t, tc.set, tc.world)
		d := table.LookupMasked(tc.key)
		eg, in := table.Outcome(d.Egress), table.Outcome(d.Ingress)
		if d.Verdict != tc.verdict || eg.Reason != classifier.ReasonNotLocal || in.Reason != tc.ingress {
			t.Errorf("%s: %s, egress %s, ingress %s; want %s, %s", tc.name, d.Verdict, eg.Reason, in.Reason, tc.verdict, tc.ingress)
		}
	}
}

// NodeLocal is what Lookup says where it knows the node's address, in every table.
func TestNodeLocal(t *testing.T) {
	for _, set := range []rule.Set{{}, isolateY()} {
		table := compileOrFail(t, set, twoPods("n2"))
		if d := table.Lookup(tcp("192.168.0.2", "10.0.1.1", 1)); d != classifier.NodeLocal {
			t.Errorf("Lookup says %+v, NodeLocal is %+v", d, classifier.NodeLocal)
		}
		if in := table.Outcome(classifier.NodeLocal.Ingress); in.Reason != classifier.ReasonNodeLocal || in.Verdict != classifier.Allow {
			t.Errorf("ingress %+v", in)
		}
	}
}

func TestLookupInvalidKeyDoesNotPanic(t *testing.T) {
	table := compileOrFail(t, isolateY(), twoPods(""))
	k := tcp("10.0.0.1", "10.0.1.1", 1)
	for _, bad := range []flow.Key{{}, {Proto: 255}, {Src: k.Src}, {Dst: k.Dst, Proto: 200}, {Src: k.Src, Dst: k.Dst}} {
		table.Lookup(bad)
		table.Explain(bad)
	}
}

func TestTableNames(t *testing.T) {
	table := compileOrFail(t, isolateY(), twoPods("n2"))
	if e := table.Endpoint(flow.AddrFrom(podX.Addrs[0])); e == nil || e.Name != "a" {
		t.Errorf("endpoint of %s: %+v", podX.Addrs[0], e)
	}
	if n := table.NodeOf(flow.AddrFrom(netip.MustParseAddr("192.168.0.1"))); n == nil || n.Name != "n1" {
		t.Errorf("node of 192.168.0.1: %+v", n)
	}
	if !table.IsVIP(flow.AddrFrom(netip.MustParseAddr("10.96.0.1"))) || table.IsVIP(flow.AddrFrom(podX.Addrs[0])) {
		t.Error("IsVIP")
	}
	if !slices.Equal(table.Selected(), podY.Addrs) || !slices.Equal(table.Locals(), podY.Addrs) {
		t.Errorf("selected %v, locals %v; want %v both", table.Selected(), table.Locals(), podY.Addrs)
	}
	if got := compileOrFail(t, rule.Set{}, twoPods("n2")).Selected(); len(got) != 0 {
		t.Errorf("no policy, but %v selected", got)
	}
}

func TestCompileRefusesBadInput(t *testing.T) {
	good := isolateY().Rules[0]
	for want, spoil := range map[string]func(*rule.Rule){
		"no action":      func(r *rule.Rule) { r.Action = 0 },
		"no such band":   func(r *rule.Rule) { r.Order.Band = rule.BandDefault },
		"with skip set":  func(r *rule.Rule) { r.Skip = rule.Bands(rule.BandAdmin) },
		"no such kind":   func(r *rule.Rule) { r.Peers = []rule.Peer{{}} },
		"invalid prefix": func(r *rule.Rule) { r.Peers = []rule.Peer{{Kind: rule.PeerBlock}} },
		"host bits": func(r *rule.Rule) {
			r.Peers = []rule.Peer{{Kind: rule.PeerBlock, Block: rule.IPBlock{Prefix: netip.MustParsePrefix("10.0.0.1/8")}}}
		},
		"a port range needs a protocol": func(r *rule.Rule) {
			r.L4 = []rule.L4{{Ports: rule.PortRange{First: 1, Last: 2}, SrcPorts: rule.AllPorts}}
		},
		"has no source ports": func(r *rule.Rule) { r.L4 = []rule.L4{{Proto: flow.ICMP, Ports: rule.AllPorts}} },
		"empty port range":    func(r *rule.Rule) { r.L4 = []rule.L4{{Proto: flow.TCP, Ports: rule.PortRange{First: 2, Last: 1}}} },
	} {
		r := good
		spoil(&r)
		_, _, err := classifier.Compile(rule.Set{Rules: []rule.Rule{r}}, twoPods(""), classifier.Options{})
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "networkpolicy./y/p") {
			t.Errorf("want an error with %q naming the policy, got %v", want, err)
		}
	}
	w := twoPods("")
	w.Nodes = append(w.Nodes, w.Nodes[0])
	if _, _, err := classifier.Compile(rule.Set{}, w, classifier.Options{}); err == nil {
		t.Error("a node listed twice is accepted")
	}
}

// TestOrderDoesNotMatter compiles the same policy from shuffled input.
func TestOrderDoesNotMatter(t *testing.T) {
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 9))
		set, world := universe.Random(r)
		shuffled := rule.Set{Rules: slices.Clone(set.Rules), Isolations: slices.Clone(set.Isolations)}
		r.Shuffle(len(shuffled.Rules), func(i, j int) {
			shuffled.Rules[i], shuffled.Rules[j] = shuffled.Rules[j], shuffled.Rules[i]
		})
		a, b := compileOrFail(t, set, world), compileOrFail(t, shuffled, world)
		for range 200 {
			k := universe.RandomKey(r, world)
			da, db := a.Lookup(k), b.Lookup(k)
			if da.Verdict != db.Verdict || ruleText(a, da.Egress) != ruleText(b, db.Egress) || ruleText(a, da.Ingress) != ruleText(b, db.Ingress) {
				t.Fatalf("seed %d, %s: %+v and %+v", seed, k, da, db)
			}
		}
	}
}

func ruleText(t *classifier.Table, id classifier.OutcomeID) string {
	if o := t.Outcome(id); o.Rule != classifier.NoRule {
		return fmt.Sprint(t.Rule(o.Rule).Origin)
	}
	return ""
}

func TestLookupDoesNotAllocate(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 20 {
		set, world := universe.Random(r)
		table := compileOrFail(t, set, world)
		keys := make([]flow.Key, 200)
		for i := range keys {
			keys[i] = universe.RandomKey(r, world)
			table.Lookup(keys[i]) // fills the cell
		}
		if n := testing.AllocsPerRun(10, func() {
			for i := range keys {
				table.Lookup(keys[i])
			}
		}); n != 0 {
			t.Fatalf("%v allocations in %d lookups", n, len(keys))
		}
	}
}

// TestConcurrentFirstTouch has many readers fill the same cells at once; run
// with -race. All must see the same decisions.
func TestConcurrentFirstTouch(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for range 10 {
		set, world := universe.Random(r)
		table := compileOrFail(t, set, world)
		keys := make([]flow.Key, 500)
		for i := range keys {
			keys[i] = universe.RandomKey(r, world)
		}
		const readers = 8
		var got [readers][]classifier.Decision
		var wg sync.WaitGroup
		for i := range readers {
			wg.Go(func() {
				for _, k := range keys {
					d := table.Lookup(k)
					if table.Outcome(d.Egress) == nil || table.Outcome(d.Ingress) == nil {
						t.Errorf("%s: decision without outcome", k)
					}
					got[i] = append(got[i], d)
				}
			})
		}
		wg.Wait()
		for i := 1; i < readers; i++ {
			if !slices.Equal(got[0], got[i]) {
				t.Fatal("readers disagree")
			}
		}
	}
}
