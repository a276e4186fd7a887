package auditlog

import (
	"encoding/json"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/dataplane/audit"
)

var t0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// rec builds a record: from and to are "ns/pod@ip" or an address.
func rec(verdict, direction, from, to, proto string, port uint16, change ...func(*audit.Record)) audit.Record {
	end := func(s string) *audit.Endpoint {
		name, addr, ok := strings.Cut(s, "@")
		if !ok {
			return &audit.Endpoint{IP: netip.MustParseAddr(s)}
		}
		ns, pod, _ := strings.Cut(name, "/")
		return &audit.Endpoint{IP: netip.MustParseAddr(addr), Namespace: ns, Pod: pod, Node: "n1"}
	}
	r := audit.Record{
		V: 1, Kind: audit.KindFlow, Time: t0, Node: "n1", Verdict: verdict, Stage: audit.StageEnforce, Direction: direction,
		Source: end(from), Destination: end(to), Protocol: proto, Count: 1,
	}
	r.Source.Port, r.Destination.Port = 40000, port
	if verdict == audit.Allow {
		r.Connection = "1"
	}
	if strings.HasPrefix(verdict, "would") {
		r.Stage = audit.StageAudit
	}
	for _, c := range change {
		c(&r)
	}
	return r
}

func by(policy string, index int) func(*audit.Record) {
	return func(r *audit.Record) {
		p := ref(policy)
		r.Policy, r.Rule, r.Reason = &p, &audit.Rule{Index: index}, "rule"
	}
}

func isolatedBy(policies ...string) func(*audit.Record) {
	return func(r *audit.Record) {
		r.Reason = "isolation"
		for _, p := range policies {
			r.Isolations = append(r.Isolations, ref(p))
		}
		r.Policy = &r.Isolations[0]
	}
}

func ref(s string) audit.Policy {
	ns, name, ok := strings.Cut(s, "/")
	if !ok {
		return audit.Policy{Group: "policy.networking.k8s.io", Kind: "AdminNetworkPolicy", Name: s}
	}
	return audit.Policy{Group: "networking.k8s.io", Kind: "NetworkPolicy", Namespace: ns, Name: name}
}

func at(d time.Duration) func(*audit.Record) {
	return func(r *audit.Record) { r.Time = t0.Add(d) }
}

func conn(id string) func(*audit.Record) {
	return func(r *audit.Record) { r.Connection = id }
}

func TestFilter(t *testing.T) {
	until := t0.Add(time.Minute)
	r := rec(audit.Drop, "ingress", "shop/web-1@10.0.0.1", "shop/db@10.0.0.2", "TCP", 5432, isolatedBy("shop/lock", "shop/all"),
		func(r *audit.Record) { r.Until, r.Band, r.Label = &until, "networkpolicy", "pci" })
	ruled := rec(audit.Allow, "egress", "shop/web-1@10.0.0.1", "192.0.2.9", "UDP", 53, by("dns", 2), func(r *audit.Record) { r.Rule.Name = "to-dns" })
	folded := rec(audit.Drop, "ingress", "192.0.2.9", "shop/db@10.0.0.2", "TCP", 0, func(r *audit.Record) { r.Ports = &audit.Ports{First: 100, Last: 200} })
	lost := audit.Record{V: 1, Kind: audit.KindLost, Time: t0, Node: "n1", Count: 3}
	bare := audit.Record{V: 1, Kind: audit.KindPacket, Time: t0, Node: "n1", Reason: "short"}
	party := func(s string) []Party { p, _ := ParseParty(s); return []Party{p} }
	net := func(s string) []Net { n, _ := ParseNet(s); return []Net{n} }
	port := func(s string) []PortSet { p, _ := ParsePort(s); return []PortSet{p} }
	for _, tt := range []struct {
		name string
		f    Filter
		want string // which of r(isolated), u(ruled), f(olded), l(ost), b(are) match
	}{
		{"nothing asked", Filter{}, "ruflb"},
		{"verdict", Filter{Verdicts: []string{"drop"}}, "rfl"},
		{"verdicts", Filter{Verdicts: []string{"Drop", "Allow"}}, "rufl"},
		{"kind", Filter{Kinds: []string{"packet"}}, "lb"},
		{"direction", Filter{Directions: []string{"egress"}}, "ul"},
		{"band", Filter{Bands: []string{"networkpolicy"}}, "rl"},
		{"reason", Filter{Reasons: []string{"isolation"}}, "rl"},
		{"label", Filter{Labels: []string{"p*"}}, "rl"},
		{"stage", Filter{Stages: []string{"audit"}}, "l"},
		{"other node", Filter{Nodes: []string{"n2"}}, ""},
		{"namespace", Filter{Namespaces: []string{"shop"}}, "rufl"},
		{"other namespace", Filter{Namespaces: []string{"sho"}}, "l"},
		{"pod", Filter{Pods: []string{"db"}}, "rfl"},
		{"pod with namespace", Filter{Pods: []string{"shop/web-*"}}, "rul"},
		{"pod pattern stays in its part", Filter{Pods: []string{"s*"}}, "l"},
		{"policy by name", Filter{Policies: []string{"lock"}}, "rl"},
		{"policy that isolates, too", Filter{Policies: []string{"shop/all"}}, "rl"},
		{"policy with kind", Filter{Policies: []string{"AdminNetworkPolicy/dns"}}, "ul"},
		{"policy as matrix prints it", Filter{Policies: []string{"networkpolicy.networking.k8s.io/shop/*"}}, "rl"},
		{"rule by name", Filter{Rules: []string{"to-*"}}, "ul"},
		{"rule by place", Filter{Rules: []string{"egress[2]"}}, "ul"},
		{"rule by index", Filter{Rules: []string{"2"}}, "ul"},
		{"rule at another place", Filter{Rules: []string{"ingress[2]"}}, "l"},
		{"cidr", Filter{Nets: net("192.0.2.0/24")}, "ufl"},
		{"address", Filter{Nets: net("10.0.0.1")}, "rul"},
		{"from a pod", Filter{Sources: party("shop/web-1")}, "rul"},
		{"from a namespace", Filter{Sources: party("shop/")}, "rul"},
		{"to an address", Filter{Dests: party("10.0.0.2")}, "rfl"},
		{"port", Filter{Ports: port("53")}, "ul"},
		{"port of a protocol", Filter{Ports: port("53/TCP")}, "l"},
		{"ports, folded too", Filter{Ports: port("150-6000")}, "rfl"},
		{"source and port", Filter{Sources: party("shop/web-1"), Ports: port("5432/TCP")}, "rl"},
		{"since: the window counts to its end", Filter{Since: t0.Add(time.Second)}, "r"},
		{"until", Filter{Until: t0.Add(-time.Second)}, ""},
		{"that moment", Filter{Since: t0, Until: t0}, "ruflb"},
	} {
		got := ""
		for i, x := range []*audit.Record{&r, &ruled, &folded, &lost, &bare} {
			if tt.f.Match(x) {
				got += string("ruflb"[i])
			}
		}
		if got != tt.want {
			t.Errorf("%s: %q match, want %q", tt.name, got, tt.want)
		}
		if tt.f.Empty() != (tt.name == "nothing asked") {
			t.Errorf("%s: Empty is %t", tt.name, tt.f.Empty())
		}
	}
}

// Filters took a policy's name as some outputs write it, and not as others.
func TestPolicyFilterTakesEverySpelling(t *testing.T) {
	antrea := audit.Policy{Group: "crd.antrea.io", Kind: "NetworkPolicy", Namespace: "shop", Name: "db"}
	plain := audit.Policy{Group: "networking.k8s.io", Kind: "NetworkPolicy", Namespace: "shop", Name: "db"}
	admin := audit.Policy{Group: "policy.networking.k8s.io", Kind: "AdminNetworkPolicy", Name: "monitoring"}
	for pattern, want := range map[string]string{
		"db": "pa", "shop/db": "pa", "NetworkPolicy/shop/db": "pa", "networkpolicy/shop/*": "pa", "NETWORKPOLICY SHOP/DB": "pa",
		"networkpolicy.networking.k8s.io/shop/db": "p", "NetworkPolicy.crd.antrea.io/shop/db": "a", "NetworkPolicy shop/db (crd.antrea.io)": "a",
		"networkpolicies.networking.k8s.io/shop/db": "p", "networkpolicies.crd.antrea.io shop/db": "a",
		"K8sNetworkPolicy:shop/db": "p", "AntreaNetworkPolicy:shop/db": "a", " NetworkPolicy shop/db": "pa",
		"adminnetworkpolicy.policy.networking.k8s.io//monitoring": "m", "AdminNetworkPolicy monitoring": "m", "AdminNetworkPolicy:monitoring": "m",
		"adminnetworkpolicy/monitoring": "m", "monitoring": "m", "other/db": "", "AdminNetworkPolicy/shop/db": "", "*": "pam",
	} {
		got := ""
		for i, p := range []*audit.Policy{&plain, &antrea, &admin} {
			if MatchPolicy(pattern, p) {
				got += "pam"[i : i+1]
			}
		}
		if got != want {
			t.Errorf("%q names %q, want %q", pattern, got, want)
		}
	}
}

// A field added to Filter must make it non-empty.
func TestFilterEmptyKnowsEveryField(t *testing.T) {
	typ := reflect.TypeFor[Filter]()
	for i := range typ.NumField() {
		var f Filter
		v := reflect.ValueOf(&f).Elem().Field(i)
		if v.Kind() == reflect.Slice {
			v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		} else {
			v.Set(reflect.ValueOf(t0))
		}
		if f.Empty() {
			t.Errorf("a filter with %s counts as empty", typ.Field(i).Name)
		}
	}
}

func TestParseFilterValues(t *testing.T) {
	now := time.Date(2026, 1, 10, 12, 0, 0, 0, time.UTC)
	for text, want := range map[string]time.Time{
		"90s": now.Add(-90 * time.Second), "36h": now.Add(-36 * time.Hour), "7d": now.AddDate(0, 0, -7), "0.5d": now.Add(-12 * time.Hour),
		"2026-01-02T15:04:05Z": time.Date(2026, 1, 2, 15, 4, 5, 0, time.UTC), "2026-01-02 15:04": time.Date(2026, 1, 2, 15, 4, 0, 0, time.UTC),
		"2026-01-02": time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC), "2026-01-02 15:04:05": time.Date(2026, 1, 2, 15, 4, 5, 0, time.UTC),
	} {
		if got, err := ParseTime(text, now); err != nil || !got.Equal(want) {
			t.Errorf("%s: %v, %v, want %v", text, got, err, want)
		}
	}
	for _, bad := range []string{"", "tomorrow", "-5m", "5", "d", "-1d", "2026-13-01"} {
		if got, err := ParseTime(bad, now); err == nil {
			t.Errorf("%q is %v", bad, got)
		}
	}
	for _, bad := range []string{"", "x", "80-", "90-80", "65536", "80/XYZ", "80/", "/TCP"} {
		if p, err := ParsePort(bad); err == nil {
			t.Errorf("port %q is %v", bad, p)
		}
	}
	for _, bad := range []string{"", "[", "a["} {
		if p, err := ParseParty(bad); err == nil {
			t.Errorf("party %q is %v", bad, p)
		}
	}
	if n, err := ParseNet("::ffff:10.1.2.3"); err != nil || n.String() != "10.1.2.3/32" {
		t.Errorf("a mapped address is %v, %v", n, err)
	}
	if n, err := ParseNet("10.1.2.3/8"); err != nil || n.String() != "10.0.0.0/8" {
		t.Errorf("an unmasked prefix is %v, %v", n, err)
	}
}

func TestTop(t *testing.T) {
	top, err := NewTop("policy", "source")
	if err != nil {
		t.Fatal(err)
	}
	until := t0.Add(time.Second)
	many := rec(audit.Drop, "ingress", "x/a@10.0.0.1", "y/b@10.0.0.2", "TCP", 80, by("y/p", 0), func(r *audit.Record) { r.Count, r.Until = 9, &until })
	for _, r := range []audit.Record{
		many, rec(audit.Drop, "ingress", "x/a@10.0.0.1", "y/b@10.0.0.2", "TCP", 81, by("y/p", 0), at(-time.Hour)),
		rec(audit.Allow, "ingress", "x/b@10.0.0.3", "y/b@10.0.0.2", "TCP", 80, by("y/p", 0)),
		rec(audit.Allow, "egress", "x/b@10.0.0.3", "192.0.2.1", "TCP", 80),
		{Kind: audit.KindLost, Count: 7},
		{Kind: audit.KindFile},
	} {
		top.Add(&r)
	}
	top.Bad()
	groups, total := top.Groups(2)
	want := []Group{
		{Values: []string{"NetworkPolicy y/p", "x/a"}, Records: 2, Packets: 10, First: t0.Add(-time.Hour), Last: until},
		{Values: []string{"", "x/b"}, Records: 1, Packets: 1, First: t0, Last: t0},
	}
	if total != 3 || !reflect.DeepEqual(groups, want) {
		t.Errorf("%d groups, top %+v", total, groups)
	}
	if sum := top.Totals(); sum != (Totals{Records: 4, Packets: 12, Lost: 7, Bad: 1}) {
		t.Errorf("totals %+v", sum)
	}
	if _, err := NewTop("colour"); err == nil || !strings.Contains(err.Error(), "destination") {
		t.Errorf("unknown key: %v", err)
	}
	// Every key can be asked of every kind of record.
	all, _ := NewTop(Keys()...)
	all.Add(&audit.Record{Kind: audit.KindPacket})
	all.Add(&many)
}

// A default deny was counted for the first of the isolating policies.
func TestTopCreditsAllIsolatingPolicies(t *testing.T) {
	top, err := NewTop("policy")
	if err != nil {
		t.Fatal(err)
	}
	for _, policies := range [][]string{{"shop/all", "shop/db"}, {"shop/all"}} {
		r := rec(audit.Drop, "ingress", "x/a@10.0.0.1", "shop/db@10.0.0.2", "TCP", 80, isolatedBy(policies...))
		top.Add(&r)
	}
	groups, _ := top.Groups(-1)
	if len(groups) != 2 || groups[0].Values[0] != "NetworkPolicy shop/all" || groups[1].Values[0] != "NetworkPolicy shop/all, NetworkPolicy shop/db" {
		t.Errorf("X-65: %+v", groups)
	}
}

// Memory is bounded: what does not fit is counted together, and nothing is lost.
func TestTopBound(t *testing.T) {
	top, _ := NewTop("source-ip")
	top.max = 10
	for i := range 1000 {
		r := rec(audit.Drop, "ingress", netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}).String(), "192.0.2.1", "TCP", 80)
		top.Add(&r)
	}
	groups, total := top.Groups(-1)
	if total != 11 || groups[10].Values[0] != "(others)" || groups[10].Packets != 990 || len(top.groups) != 10 {
		t.Errorf("%d groups, last %+v", total, groups[len(groups)-1])
	}
}

func staged(t *testing.T, records ...audit.Record) StagedReport {
	t.Helper()
	s := NewStaged()
	events := Events{Done: s.Add}
	for i := range records {
		events.Add(&records[i])
	}
	events.Flush()
	return s.Report(-1)
}

func TestStagedEffects(t *testing.T) {
	const x, y = "x/a@10.0.0.1", "y/b@10.0.0.2"
	p := by("y/new", 0)
	for _, tt := range []struct {
		name    string
		records []audit.Record
		want    [4]uint64 // deny, open, unknown, none of NetworkPolicy y/new
	}{
		{"passes, would be denied", []audit.Record{rec(audit.WouldDrop, "ingress", x, y, "TCP", 80, p, conn("1"))}, [4]uint64{1}},
		{"passes, would be rejected", []audit.Record{rec(audit.WouldReject, "ingress", x, y, "TCP", 80, p, conn("1"))}, [4]uint64{1}},
		{"passes by a rule beside it", []audit.Record{
			rec(audit.Allow, "ingress", x, y, "TCP", 80, by("y/old", 0)), rec(audit.WouldDrop, "ingress", x, y, "TCP", 80, p, conn("1")),
		}, [4]uint64{1}},
		{"passes, would pass", []audit.Record{rec(audit.WouldAllow, "ingress", x, y, "TCP", 80, p, conn("1"))}, [4]uint64{3: 1}},
		{"denied, would be denied", []audit.Record{rec(audit.Drop, "ingress", x, y, "TCP", 80, by("y/old", 0)), rec(audit.WouldDrop, "ingress", x, y, "TCP", 80, p)}, [4]uint64{3: 1}},
		{"denied here, would pass", []audit.Record{rec(audit.WouldAllow, "ingress", x, y, "TCP", 80, p), rec(audit.Drop, "ingress", x, y, "TCP", 80, by("y/old", 0))}, [4]uint64{1: 1}},
		{"the denial's window closes later", []audit.Record{
			rec(audit.WouldAllow, "ingress", x, y, "TCP", 80, p), rec(audit.Allow, "egress", x, y, "TCP", 81),
			rec(audit.Drop, "ingress", x, y, "TCP", 80, by("y/old", 0), func(r *audit.Record) { r.Count = 5 }),
		}, [4]uint64{1: 1}},
		{"denied on the other side", []audit.Record{
			rec(audit.WouldAllow, "ingress", x, y, "TCP", 80, p), rec(audit.Allow, "egress", x, y, "TCP", 81),
			rec(audit.Drop, "egress", x, y, "TCP", 80, by("x/out", 0)),
		}, [4]uint64{3: 1}},
		{"denied by who knows", []audit.Record{rec(audit.WouldAllow, "ingress", x, y, "TCP", 80, p)}, [4]uint64{2: 1}},
		{"another packet's denial", []audit.Record{rec(audit.WouldAllow, "ingress", x, y, "TCP", 80, p), rec(audit.Drop, "ingress", x, y, "TCP", 80, by("y/old", 0), at(1))}, [4]uint64{2: 1}},
		{"a pass decides nothing", []audit.Record{rec(audit.WouldPass, "ingress", x, y, "TCP", 80, p, conn("1"))}, [4]uint64{3: 1}},
		{"two isolate", []audit.Record{rec(audit.WouldDrop, "ingress", x, y, "TCP", 80, isolatedBy("y/other", "y/new"), conn("1"))}, [4]uint64{1}},
	} {
		r := staged(t, tt.records...)
		i := slices.IndexFunc(r.Policies, func(p StagedPolicy) bool { return p.Policy == "NetworkPolicy y/new" })
		if i < 0 {
			t.Errorf("%s: the policy is not in %+v", tt.name, r)
			continue
		}
		got := r.Policies[i]
		if [4]uint64{got.Deny, got.Open, got.Unknown, got.None} != tt.want || r.Events != 1 {
			t.Errorf("%s: %+v", tt.name, r)
		}
		if changes := got.Deny + got.Open + got.Unknown; uint64(len(got.Flows)) != changes {
			t.Errorf("%s: flows %+v", tt.name, got.Flows)
		}
	}
	if r := staged(t, rec(audit.Drop, "ingress", x, y, "TCP", 80)); r.Events != 0 || len(r.Policies) != 0 {
		t.Errorf("an enforced denial counts as staged: %+v", r)
	}
}

// world is a table for the simulation: pods x/a, y/b and y/c on nodes n1 and n2,
// and a policy that isolates y/b and lets in port 80 from x.
func world(t *testing.T) *classifier.Table {
	t.Helper()
	pod := func(ns, name, node, a4, a6 string, labels map[string]string) rule.Endpoint {
		return rule.Endpoint{
			Namespace: ns, Name: name, Node: node, Labels: labels, NamespaceLabels: map[string]string{"ns": ns},
			Addrs: []netip.Addr{netip.MustParseAddr(a4), netip.MustParseAddr(a6)},
		}
	}
	w := &rule.World{Endpoints: []rule.Endpoint{
		pod("x", "a", "n1", "10.1.0.1", "fd00::1", map[string]string{"pod": "a"}),
		pod("y", "b", "n2", "10.1.0.2", "fd00::2", map[string]string{"pod": "b"}),
		pod("y", "c", "n1", "10.1.0.3", "fd00::3", map[string]string{"pod": "c", "app": "c"}),
	}, Nodes: []rule.Node{{Name: "n1"}, {Name: "n2"}}}
	origin := rule.Origin{Group: "networking.k8s.io", Kind: "NetworkPolicy", Namespace: "y", Name: "lock"}
	b := rule.Selector{Namespace: "y", PodLabels: equal("pod", "b")}
	set := rule.Set{
		Rules: []rule.Rule{{
			Direction: flow.Ingress, Order: rule.Order{Band: rule.BandNetworkPolicy}, Subject: b, Action: rule.Allow, Origin: origin,
			Peers: []rule.Peer{{Kind: rule.PeerPods, Pods: rule.Selector{NamespaceLabels: equal("ns", "x")}}},
			L4:    []rule.L4{{Proto: flow.TCP, Ports: rule.PortRange{First: 80, Last: 80}, SrcPorts: rule.AllPorts}},
		}},
		Isolations: []rule.Isolation{{Direction: flow.Ingress, Band: rule.BandNetworkPolicy, Subject: b, Origin: isolation(origin)}},
	}
	set.Sort()
	table, _, err := classifier.Compile(set, w, classifier.Options{Generation: 1})
	if err != nil {
		t.Fatal(err)
	}
	return table
}

func equal(key, value string) rule.Labels {
	return rule.Labels{{Key: key, Op: rule.In, Values: []string{value}}}
}

func isolation(o rule.Origin) rule.Origin {
	o.Index = -1
	return o
}

func TestSimulation(t *testing.T) {
	// Addresses in the log are old ones: pods are found by name.
	const a, b, c = "x/a@10.9.0.1", "y/b@10.9.0.2", "y/c@10.9.0.3"
	on := func(node string) func(*audit.Record) {
		return func(r *audit.Record) {
			r.Node = node
			for _, e := range []*audit.Endpoint{r.Source, r.Destination} {
				if e.Pod == "b" {
					e.Node = "n2"
				}
			}
		}
	}
	const allowed, isolated = "ingress: NetworkPolicy y/lock: ingress[0]", "ingress: isolation by NetworkPolicy y/lock"
	for _, tt := range []struct {
		name    string
		records []audit.Record
		want    string // "same", "verdict AFTER BY", "rule BY" or "unjudged WHY"
	}{
		{"passed, still passes", []audit.Record{rec(audit.Allow, "ingress", a, b, "TCP", 80, by("y/lock", 0), on("n2"))}, "same"},
		{"passed, would be dropped", []audit.Record{rec(audit.Allow, "ingress", a, b, "TCP", 81, by("y/old", 0), on("n2"))}, "verdict Drop " + isolated},
		{"IPv6", []audit.Record{rec(audit.Allow, "ingress", "x/a@fd99::1", "y/b@fd99::2", "TCP", 81, by("y/old", 0), on("n2"))}, "verdict Drop " + isolated},
		{"dropped, would pass", []audit.Record{rec(audit.Drop, "ingress", a, b, "TCP", 80, isolatedBy("y/old"), on("n2"))}, "verdict Allow " + allowed},
		{"dropped, still dropped by the same", []audit.Record{rec(audit.Drop, "ingress", a, b, "UDP", 80, isolatedBy("y/lock"), on("n2"))}, "same"},
		{"dropped by another", []audit.Record{rec(audit.Drop, "ingress", a, b, "UDP", 80, isolatedBy("y/lock", "y/old"), on("n2"))}, "rule " + isolated},
		{"rejected, would be dropped", []audit.Record{rec(audit.Reject, "ingress", a, b, "UDP", 80, by("hard", 0), on("n2"))}, "verdict Drop " + isolated},
		{"passed by another rule", []audit.Record{rec(audit.Allow, "ingress", a, b, "TCP", 80, by("y/old", 3), on("n2"))}, "rule " + allowed},
		{"passed, reason was default", []audit.Record{rec(audit.Allow, "ingress", a, c, "TCP", 80, on("n1"), func(r *audit.Record) { r.Reason = "default" })}, "same"},
		{"another node's side is not judged", []audit.Record{rec(audit.Allow, "egress", a, b, "TCP", 81, on("n1"), func(r *audit.Record) { r.Reason = "default" })}, "same"},
		{"only a staged record: it passed", []audit.Record{rec(audit.WouldDrop, "ingress", a, b, "TCP", 81, by("y/new", 0), conn("7"), on("n2"))}, "verdict Drop " + isolated},
		{"from outside, by address", []audit.Record{rec(audit.Allow, "ingress", "192.0.2.7", b, "TCP", 80, by("y/old", 0), on("n2"))}, "verdict Drop " + isolated},
		{"a pod that has another name now, found by labels", []audit.Record{rec(audit.Allow, "ingress", "x/a-old@10.9.0.9", b, "TCP", 80, by("y/lock", 0), on("n2"), func(r *audit.Record) {
			r.Source.Labels = map[string]string{"pod": "a"}
		})}, "same"},
		{"a pod that is gone", []audit.Record{rec(audit.Allow, "ingress", "x/gone@10.9.0.9", b, "TCP", 80, on("n2"))}, "unjudged pod x/gone is not in the manifests, nor one with its labels"},
		{"one side of a denied packet", []audit.Record{rec(audit.Allow, "egress", a, b, "TCP", 80, conn(""), on("n2"))}, "unjudged " + whyPartial},
		{"folded", []audit.Record{rec(audit.Drop, "ingress", a, b, "TCP", 0, on("n2"), func(r *audit.Record) { r.Ports = &audit.Ports{First: 1, Last: 9} })}, "unjudged " + whyFolded},
		{"an ICMP error", []audit.Record{rec(audit.Drop, "ingress", a, b, "ICMP", 0, on("n2"), icmp(3, 1))}, "unjudged " + whyICMP},
		{"an echo request", []audit.Record{rec(audit.Allow, "ingress", a, b, "ICMP", 0, on("n2"), icmp(8, 0))}, "verdict Drop " + isolated},
	} {
		s := NewSimulation(world(t))
		events := Events{Done: s.Add}
		for i := range tt.records {
			events.Add(&tt.records[i])
		}
		events.Flush()
		r := s.Report(-1)
		got := "nothing"
		switch {
		case r.Events != 1:
		case r.Same == 1 && r.Judged == 1:
			got = "same"
		case r.VerdictDiff == 1 && len(r.Changes) == 1:
			got = "verdict " + r.Changes[0].After.Verdict + " " + r.Changes[0].After.By
		case r.RuleDiff == 1 && len(r.RuleChanges) == 1:
			got = "rule " + r.RuleChanges[0].After.By
		case len(r.Unjudged) == 1 && r.Judged == 0:
			got = "unjudged " + r.Unjudged[0].Why
		}
		if got != tt.want {
			t.Errorf("%s:\n got %s\nwant %s", tt.name, got, tt.want)
		}
	}
}

func icmp(typ, code uint8) func(*audit.Record) {
	return func(r *audit.Record) { r.ICMPType, r.ICMPCode, r.Source.Port, r.Destination.Port = &typ, &code, 0, 0 }
}

// Records of one decision stand next to each other and count once.
func TestEventsGroup(t *testing.T) {
	const x, y = "x/a@10.0.0.1", "y/b@10.0.0.2"
	var sizes []int
	events := Events{Done: func(e Event) { sizes = append(sizes, len(e.Records)) }}
	for _, r := range []audit.Record{
		rec(audit.Allow, "egress", x, y, "TCP", 80), rec(audit.Allow, "ingress", x, y, "TCP", 80), rec(audit.WouldDrop, "ingress", x, y, "TCP", 80, conn("1")),
		rec(audit.Allow, "egress", x, y, "TCP", 80, conn("2")),
		rec(audit.Allow, "egress", x, y, "TCP", 80, conn("2"), at(1)),
		rec(audit.Drop, "egress", x, y, "TCP", 81),
		{Kind: audit.KindLost},
		rec(audit.Drop, "egress", x, y, "TCP", 81),
	} {
		events.Add(&r)
	}
	events.Flush()
	events.Flush()
	if want := []int{3, 1, 1, 1, 1}; !slices.Equal(sizes, want) {
		t.Errorf("events of %v records, want %v", sizes, want)
	}
}

// The JSON forms are read by scripts: lists are never null.
func TestReportsAreLists(t *testing.T) {
	for _, v := range []any{NewStaged().Report(0), NewSimulation(world(t)).Report(0), Verification{Files: []string{}, Breaks: []BreakAt{}}} {
		b, err := json.Marshal(v)
		if err != nil || strings.Contains(string(b), "null") {
			t.Errorf("%s %v", b, err)
		}
	}
}
