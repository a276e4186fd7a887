package classifier

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
)

// Other addresses in a set are in force at once, the report is about them alone,
// and the next Compile of the world before takes them back.
func TestRefill(t *testing.T) {
	var c Compiler
	if _, _, err := c.Refill(nil, 1); !errors.Is(err, ErrNothingCompiled) {
		t.Errorf("before the first table: %v", err)
	}
	pod := netip.MustParseAddr("10.0.0.1")
	origin := rule.Origin{Kind: "K", Namespace: "x", Name: "p"}
	set := rule.Set{
		Rules: []rule.Rule{{
			Direction: flow.Egress, Order: rule.Order{Band: rule.BandNetworkPolicy}, Action: rule.Allow,
			Peers: []rule.Peer{{Kind: rule.PeerSet, Set: "names"}}, L4: []rule.L4{rule.AnyL4}, Origin: origin,
		}},
		Isolations: []rule.Isolation{{Direction: flow.Egress, Band: rule.BandNetworkPolicy, Origin: origin}},
	}
	world := &rule.World{
		Endpoints: []rule.Endpoint{{Namespace: "x", Name: "a", Addrs: []netip.Addr{pod}}},
		Sets:      map[string][]netip.Prefix{"names": {}},
	}
	if _, _, err := c.Compile(set, world, Options{Generation: 1}); err != nil {
		t.Fatal(err)
	}
	key := func(to string) flow.Key {
		return flow.MakeKey(flow.UDP, netip.AddrPortFrom(pod, 4000), netip.AddrPortFrom(netip.MustParseAddr(to), 443))
	}
	table, report, err := c.Refill(map[string][]netip.Prefix{"names": {netip.MustParsePrefix("192.0.2.7/32")}}, 2)
	if err != nil {
		t.Fatal(err)
	}
	if table.Generation() != 2 || table.Lookup(key("192.0.2.7")).Verdict != Allow || table.Lookup(key("192.0.2.8")).Verdict == Allow {
		t.Errorf("generation %d: %+v, %+v", table.Generation(), table.Lookup(key("192.0.2.7")), table.Lookup(key("192.0.2.8")))
	}
	if !report.Affects(key("192.0.2.7")) || report.Affects(key("192.0.2.8")) {
		t.Error("the report is not about the one address")
	}
	if _, _, err := c.Refill(nil, 2); err == nil {
		t.Error("a generation came twice")
	}
	if table, _, err = c.Compile(set, world, Options{Generation: 3}); err != nil {
		t.Fatal(err)
	}
	if table.Lookup(key("192.0.2.7")).Verdict == Allow {
		t.Error("Compile keeps what its world does not have")
	}
}
