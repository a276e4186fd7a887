package hits_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/dataplane/hits"
)

var (
	client = netip.MustParseAddrPort("10.0.0.1:40000")
	world  = &rule.World{Node: "n", Endpoints: []rule.Endpoint{
		{Namespace: "x", Name: "a", Node: "n", Addrs: []netip.Addr{client.Addr()}},
		{Namespace: "x", Name: "b", Node: "n", Labels: map[string]string{"app": "b"}, Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.2")}},
	}}
	appB = rule.Selector{Namespace: "x", PodLabels: rule.Labels{{Key: "app", Op: rule.In, Values: []string{"b"}}}}
)

func allow(policy string, index int, port uint16, edit ...func(*rule.Rule)) rule.Rule {
	r := rule.Rule{
		Direction: flow.Ingress, Order: rule.Order{Band: rule.BandNetworkPolicy, Name: "x/" + policy, Index: int32(index)}, Subject: appB,
		Peers: []rule.Peer{{Kind: rule.PeerAny}}, Action: rule.Allow,
		L4:     []rule.L4{{Proto: flow.TCP, Ports: rule.PortRange{First: port, Last: port}, SrcPorts: rule.AllPorts}},
		Origin: rule.Origin{Kind: "NetworkPolicy", Namespace: "x", Name: policy, Index: index, Word: "Allow"},
	}
	for _, e := range edit {
		e(&r)
	}
	return r
}

func isolate(policy string, stage rule.Stage) rule.Isolation {
	return rule.Isolation{
		Direction: flow.Ingress, Band: rule.BandNetworkPolicy, Subject: appB, Stage: stage,
		Origin: rule.Origin{Kind: "NetworkPolicy", Namespace: "x", Name: policy, Index: -1},
	}
}

// clock is the engine's; tests move it.
type clock int64

func (c *clock) now() int64 { return int64(*c) }

func compile(t *testing.T, gen uint64, set rule.Set) *classifier.Table {
	t.Helper()
	table, _, err := classifier.Compile(set, world, classifier.Options{Generation: gen})
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// send is what a worker and the engine do with n connections to a port.
func send(l *hits.Ledger, t *classifier.Table, port uint16, n uint64, at int64) {
	d := t.Lookup(flow.MakeKey(flow.TCP, client, netip.AddrPortFrom(netip.MustParseAddr("10.0.0.2"), port)))
	l.Count(t, d.Egress, n, at)
	l.Count(t, d.Ingress, n, at)
}

// table writes the ledger's lines in words.
func lines(l *hits.Ledger, t *classifier.Table) map[string]string {
	out := map[string]string{}
	for _, r := range l.Rules(t) {
		name := fmt.Sprintf("%s[%d]", r.Policy.Name, r.Index)
		if r.Index < 0 {
			name = r.Policy.Name + " isolation"
		}
		out[name] = fmt.Sprintf("%d last %d since %d %s", r.Hits, r.Last, r.Since, r.Stage)
	}
	return out
}

func want(t *testing.T, got map[string]string, want map[string]string) {
	t.Helper()
	for name, w := range want {
		if got[name] != w {
			t.Errorf("%s: %q, want %q", name, got[name], w)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d lines, want %d: %v", len(got), len(want), got)
	}
}

// A rule has its hits whether it asks for a record or not, keeps them when the rules
// around it change, and starts anew when it is itself another one.
func TestHitsSurviveTableChanges(t *testing.T) {
	var now clock = 100
	l := hits.New(now.now)
	one := compile(t, 1, rule.Set{
		Rules:      []rule.Rule{allow("p", 0, 80), allow("p", 1, 443)},
		Isolations: []rule.Isolation{isolate("p", rule.Enforce), isolate("q", rule.Enforce)},
	})
	l.Observe(one)
	send(l, one, 80, 3, 110)
	send(l, one, 443, 5, 120)
	send(l, one, 22, 2, 130)
	want(t, lines(l, one), map[string]string{
		"p[0]": "3 last 110 since 100 enforce", "p[1]": "5 last 120 since 100 enforce",
		"p isolation": "2 last 130 since 100 enforce", "q isolation": "2 last 130 since 100 enforce",
	})
	// The first rule is taken out, the second moves up, a third is new. q is gone.
	now = 200
	two := compile(t, 2, rule.Set{Rules: []rule.Rule{allow("p", 0, 443), allow("p", 1, 8080)}, Isolations: []rule.Isolation{isolate("p", rule.Enforce)}})
	l.Observe(two)
	send(l, two, 443, 1, 210)
	want(t, lines(l, two), map[string]string{
		"p[0]": "6 last 210 since 100 enforce", "p[1]": "0 last 0 since 200 enforce", "p isolation": "2 last 130 since 100 enforce",
	})
	// q is back within the hour, with what it had; p's rule is edited and starts anew.
	now = 300
	three := compile(t, 3, rule.Set{Rules: []rule.Rule{allow("p", 0, 444)}, Isolations: []rule.Isolation{isolate("p", rule.Enforce), isolate("q", rule.Enforce)}})
	l.Observe(three)
	want(t, lines(l, three), map[string]string{
		"p[0]": "0 last 0 since 300 enforce", "p isolation": "2 last 130 since 100 enforce", "q isolation": "2 last 130 since 100 enforce",
	})
	// Hours later nothing is left of rules that no table had.
	now += 2 * 3600e9
	four := compile(t, 4, rule.Set{Rules: []rule.Rule{allow("p", 0, 444)}, Isolations: []rule.Isolation{isolate("p", rule.Enforce)}})
	l.Observe(four)
	now++
	l.Observe(one)
	want(t, lines(l, one), map[string]string{
		"p[0]": fmt.Sprintf("0 last 0 since %d enforce", now), "p[1]": fmt.Sprintf("0 last 0 since %d enforce", now),
		"p isolation": "2 last 130 since 100 enforce", "q isolation": "2 last 130 since 100 enforce",
	})
}

// A rule that skips bands, a rule behind it and a staged rule have their own hits;
// twins are counted at the first, which decides.
func TestHitsOfPassStagedAndTwins(t *testing.T) {
	var now clock = 1
	l := hits.New(now.now)
	pass := allow("pass", 0, 80, func(r *rule.Rule) {
		r.Order = rule.Order{Band: rule.BandAdmin, Name: "pass"}
		r.Action, r.Skip = rule.Skip, rule.Bands(rule.BandAdmin)
	})
	staged := allow("staged", 0, 80, func(r *rule.Rule) {
		r.Order, r.Action, r.Stage = rule.Order{Band: rule.BandAntreaUpper}, rule.Deny, rule.AuditOnly
	})
	table := compile(t, 1, rule.Set{
		Rules:      []rule.Rule{pass, staged, allow("p", 0, 80), allow("p", 1, 80)},
		Isolations: []rule.Isolation{isolate("p", rule.Enforce), isolate("s", rule.AuditOnly)},
	})
	send(l, table, 80, 4, 5)
	send(l, table, 22, 1, 6)
	want(t, lines(l, table), map[string]string{
		"pass[0]": "4 last 5 since 1 enforce", "staged[0]": "4 last 5 since 1 audit", "p[0]": "4 last 5 since 1 enforce",
		"p[1]": "0 last 0 since 1 enforce", "p isolation": "1 last 6 since 1 enforce", "s isolation": "1 last 6 since 1 audit",
	})
}
