package oracle

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
)

// The fixed world of the tables below. Every name stands for an address of both
// families: "xa" is 10.0.1.1 and fd00:1::1.
//
//	n1 (policed here): xa, xb, ya, host pod xh      n2: za
//	unknown: in n1's pod CIDR, nobody's             out: outside
var addrs = map[string][2]string{
	"xa": {"10.0.1.1", "fd00:1::1"}, "xb": {"10.0.1.2", "fd00:1::2"}, "ya": {"10.0.1.3", "fd00:1::3"},
	"za": {"10.0.2.1", "fd00:2::1"}, "n1": {"172.16.0.1", "fd01::1"}, "n2": {"172.16.0.2", "fd01::2"},
	"xh": {"172.16.0.9", "fd01::9"}, "unknown": {"10.0.1.99", "fd00:1::99"}, "out": {"192.0.2.1", "2001:db8::1"},
}

func both(name string) []netip.Addr {
	return []netip.Addr{netip.MustParseAddr(addrs[name][0]), netip.MustParseAddr(addrs[name][1])}
}

func testWorld() *rule.World {
	pod := func(name, node string, ports ...rule.NamedPort) rule.Endpoint {
		ns, app := name[:1], name[1:]
		return rule.Endpoint{
			Namespace: ns, Name: app, Node: node, Addrs: both(name), Ports: ports, ServiceAccount: "sa-" + app,
			Labels: map[string]string{"app": app}, NamespaceLabels: map[string]string{"ns": ns},
		}
	}
	xh := pod("xh", "n1")
	xh.HostNetwork = true
	return &rule.World{
		Node: "n1",
		Endpoints: []rule.Endpoint{
			pod("xa", "n1"),
			pod("xb", "n1", rule.NamedPort{Name: "http", Proto: flow.TCP, Port: 80}, rule.NamedPort{Name: "dns", Proto: flow.UDP, Port: 53}),
			pod("ya", "n1", rule.NamedPort{Name: "http", Proto: flow.TCP, Port: 8080}),
			pod("za", "n2"), xh,
		},
		Nodes: []rule.Node{
			{Name: "n1", Addrs: both("n1"), PodCIDRs: []netip.Prefix{pfx("10.0.1.0/24"), pfx("fd00:1::/64")}},
			{Name: "n2", Addrs: both("n2"), PodCIDRs: []netip.Prefix{pfx("10.0.2.0/24"), pfx("fd00:2::/64")}},
		},
		Sets: map[string][]netip.Prefix{
			"s": {pfx("192.0.2.0/24"), pfx("2001:db8::/64"), pfx("10.0.1.2/32"), pfx("fd00:1::2/128"), pfx("10.0.1.99/32"), pfx("fd00:1::99/128")},
		},
	}
}

func pfx(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// key parses "xa>xb" with a protocol and destination port; src port is 1000
// where the protocol has ports.
func key(conn string, proto flow.Proto, port uint16, family int) flow.Key {
	s, d, ok := strings.Cut(conn, ">")
	if !ok {
		panic(conn)
	}
	k := flow.Key{Src: flow.AddrFrom(both(s)[family]), Dst: flow.AddrFrom(both(d)[family]), Proto: proto, DstPort: port}
	if proto.HasPorts() {
		k.SrcPort = 1000
	}
	return k
}

// mk builds a rule named name; zero parts mean: egress, any subject, any peer,
// any L4, Allow, enforced, band networkpolicy.
type mk struct {
	d       flow.Direction
	band    rule.Band
	prio    float64
	subject rule.Selector
	peers   []rule.Peer
	l4      []rule.L4
	do      rule.Action
	skip    rule.BandSet
	audit   bool
	stage   rule.Stage
}

func (m mk) rule(name string) rule.Rule {
	r := rule.Rule{
		Direction: m.d, Order: rule.Order{Band: m.band, Priority: m.prio, Name: name},
		Subject: m.subject, Peers: m.peers, L4: m.l4, Action: m.do, Skip: m.skip, Audit: m.audit, Stage: m.stage,
		Origin: rule.Origin{Kind: "T", Name: name},
	}
	if r.Peers == nil {
		r.Peers = []rule.Peer{{Kind: rule.PeerAny}}
	}
	if r.L4 == nil {
		r.L4 = []rule.L4{rule.AnyL4}
	}
	if r.Action == 0 {
		r.Action = rule.Allow
	}
	return r
}

func app(v string) rule.Selector {
	return rule.Selector{PodLabels: rule.Labels{{Key: "app", Op: rule.In, Values: []string{v}}}}
}

func pods(s rule.Selector) []rule.Peer { return []rule.Peer{{Kind: rule.PeerPods, Pods: s}} }

func block(cidr string, except ...string) []rule.Peer {
	p := rule.Peer{Kind: rule.PeerBlock, Block: rule.IPBlock{Prefix: pfx(cidr)}}
	for _, e := range except {
		p.Block.Except = append(p.Block.Except, pfx(e))
	}
	return []rule.Peer{p}
}

func noPods(ps []rule.Peer) []rule.Peer { ps[0].Block.NoPods = true; return ps }

func names(rs []*rule.Rule) string {
	var s []string
	for _, r := range rs {
		s = append(s, r.Origin.Name)
	}
	return strings.Join(s, " ")
}

func isoNames(is []*rule.Isolation) string {
	var s []string
	for _, i := range is {
		s = append(s, i.Origin.Name)
	}
	return strings.Join(s, " ")
}

func ruleName(r *rule.Rule) string {
	if r == nil {
		return "-"
	}
	return r.Origin.Name
}

// text is an outcome on one line: "Drop rule admin a", "Drop isolation
// networkpolicy - [i j]", and what is audited and staged behind it.
func text(o *Outcome) string {
	s := o.Verdict.String() + " " + o.Reason.String() + " " + o.Band.String() + " " + ruleName(o.Rule)
	if len(o.Isolations) > 0 {
		s += " [" + isoNames(o.Isolations) + "]"
	}
	if len(o.Audit) > 0 {
		s += " audit " + names(o.Audit)
	}
	if o.AuditIsolation {
		s += " audit-isolation"
	}
	if o.HasStaged {
		s += " | " + o.Staged.String() + " " + o.StagedReason.String() + " " + o.StagedBand.String() + " " + ruleName(o.StagedRule)
		if len(o.StagedIsolations) > 0 {
			s += " [" + isoNames(o.StagedIsolations) + "]"
		}
	}
	return s
}

// TestShortcuts: what is decided before any rule is asked. The set drops
// everything, so an Allow here is the shortcut's.
func TestShortcuts(t *testing.T) {
	set := rule.Set{Rules: []rule.Rule{
		mk{d: flow.Egress, do: rule.Deny}.rule("e"), mk{d: flow.Ingress, do: rule.Deny}.rule("i"),
	}}
	const (
		free  = "Allow %s default -"
		drop1 = "Drop rule antrea-upper e"
		drop2 = "Drop rule antrea-upper i"
	)
	why := func(r string) string { return strings.Replace(free, "%s", r, 1) }
	tests := []struct {
		node, conn, egress, ingress string
		verdict                     classifier.Verdict
	}{
		// Subject is a pod policed here, or nothing is decided.
		{"n1", "xa>xb", drop1, drop2, classifier.Drop},
		{"n1", "xa>za", drop1, why("not-local"), classifier.Drop},
		{"n1", "za>xa", why("not-local"), drop2, classifier.Drop},
		{"", "xa>za", drop1, drop2, classifier.Drop}, // no node: every pod is local
		{"n1", "xa>out", drop1, why("not-local"), classifier.Drop},
		{"n1", "out>xa", why("not-local"), drop2, classifier.Drop},
		{"n1", "out>out", why("not-local"), why("not-local"), classifier.Allow},
		{"n1", "unknown>za", why("not-local"), why("not-local"), classifier.Allow},
		{"n1", "xh>za", why("not-local"), why("not-local"), classifier.Allow}, // host network: never a subject
		{"n1", "n2>n1", why("not-local"), why("not-local"), classifier.Allow},
		// Self comes before every rule; a pod elsewhere stays not-local.
		{"n1", "xa>xa", why("self"), why("self"), classifier.Allow},
		{"n1", "za>za", why("not-local"), why("not-local"), classifier.Allow},
		{"", "za>za", why("self"), why("self"), classifier.Allow},
		// The node's own addresses reach its own pods, and only its own.
		{"n1", "n1>xa", why("not-local"), why("node-local"), classifier.Allow},
		{"n1", "xh>xa", why("not-local"), why("node-local"), classifier.Allow},
		{"n1", "n2>xa", why("not-local"), drop2, classifier.Drop},
		{"", "n1>za", why("not-local"), drop2, classifier.Drop},
		{"", "n2>za", why("not-local"), why("node-local"), classifier.Allow},
		// … but a pod does not reach its node for free.
		{"n1", "xa>n1", drop1, why("not-local"), classifier.Drop},
		{"n1", "xa>xh", drop1, why("not-local"), classifier.Drop},
	}
	for _, tt := range tests {
		for family := range 2 {
			w := testWorld()
			w.Node = tt.node
			got := Evaluate(&set, w, key(tt.conn, flow.TCP, 80, family))
			if e, i := text(&got.Egress), text(&got.Ingress); e != tt.egress || i != tt.ingress || got.Verdict != tt.verdict {
				t.Errorf("node %q %s: %s\n egress  %s, want %s\n ingress %s, want %s", tt.node, tt.conn, got.Verdict, e, tt.egress, i, tt.ingress)
			}
		}
	}
}

// TestUnscheduledHostPod: a host-network pod without a node has a node's
// address, but no particular node's, so it gets nothing for free.
func TestUnscheduledHostPod(t *testing.T) {
	w := testWorld()
	w.Node = ""
	w.Endpoints[0].Node, w.Endpoints[4].Node = "", ""
	set := rule.Set{Rules: []rule.Rule{mk{d: flow.Ingress, do: rule.Deny}.rule("r")}}
	got := Evaluate(&set, w, key("xh>xa", flow.TCP, 80, 0))
	if s := text(&got.Ingress); s != "Drop rule antrea-upper r" {
		t.Error(s)
	}
}

// TestVerdict: egress first, then ingress.
func TestVerdict(t *testing.T) {
	acts := map[rule.Action]classifier.Verdict{rule.Allow: classifier.Allow, rule.Deny: classifier.Drop, rule.Reject: classifier.Reject}
	for e, ev := range acts {
		for i, iv := range acts {
			set := rule.Set{Rules: []rule.Rule{mk{d: flow.Egress, do: e}.rule("e"), mk{d: flow.Ingress, do: i}.rule("i")}}
			want := ev
			if ev == classifier.Allow {
				want = iv
			}
			got := Evaluate(&set, testWorld(), key("xa>xb", flow.TCP, 80, 0))
			if got.Verdict != want || got.Egress.Verdict != ev || got.Ingress.Verdict != iv {
				t.Errorf("egress %s, ingress %s: got %s", e, i, got.Verdict)
			}
			if got.Direction(flow.Egress) != &got.Egress || got.Direction(flow.Ingress) != &got.Ingress {
				t.Error("Direction mixes the sides up")
			}
		}
	}
}

// TestWalk: bands, order, skips, isolation, stages and audits, on one egress
// connection that every rule matches unless it says otherwise.
func TestWalk(t *testing.T) {
	const (
		admin, np, base = rule.BandAdmin, rule.BandNetworkPolicy, rule.BandBaseline
		staged          = rule.AuditOnly
	)
	type rules = map[string]mk
	iso := func(name string, b rule.Band, m ...func(*rule.Isolation)) rule.Isolation {
		i := rule.Isolation{Direction: flow.Egress, Band: b, Origin: rule.Origin{Kind: "T", Name: name, Index: -1}}
		for _, f := range m {
			f(&i)
		}
		return i
	}
	audited := func(i *rule.Isolation) { i.Audit = true }
	stage := func(i *rule.Isolation) { i.Stage = staged }
	other := func(i *rule.Isolation) { i.Subject = app("b") }
	ingress := func(i *rule.Isolation) { i.Direction = flow.Ingress }
	miss := pods(app("q"))
	tests := []struct {
		name  string
		rules rules
		isos  []rule.Isolation
		want  string
	}{
		{"nothing", nil, nil, "Allow default default -"},
		{"one band", rules{"a": {band: np, do: rule.Reject}}, nil, "Reject rule networkpolicy a"},
		{"stronger band first", rules{"a": {band: base}, "b": {band: admin, do: rule.Deny}}, nil, "Drop rule admin b"},
		{"priority in a band", rules{"a": {band: np, prio: 2}, "b": {band: np, prio: 1, do: rule.Deny}}, nil, "Drop rule networkpolicy b"},
		{"name breaks the tie", rules{"b": {band: np, do: rule.Deny}, "a": {band: np}}, nil, "Allow rule networkpolicy a"},
		{"first match, not first rule", rules{"a": {band: np, peers: miss}, "b": {band: np, do: rule.Deny}}, nil, "Drop rule networkpolicy b"},
		{"other direction", rules{"a": {band: np, d: flow.Ingress, do: rule.Deny}}, nil, "Allow default default -"},

		{"isolation", nil, []rule.Isolation{iso("i", np)}, "Drop isolation networkpolicy - [i]"},
		{"all isolations in set order", nil, []rule.Isolation{iso("j", np), iso("i", np), iso("k", base)}, "Drop isolation networkpolicy - [j i]"},
		{"isolation of another", nil, []rule.Isolation{iso("i", np, other)}, "Allow default default -"},
		{"isolation of ingress", nil, []rule.Isolation{iso("i", np, ingress)}, "Allow default default -"},
		{"rule before isolation", rules{"a": {band: np}}, []rule.Isolation{iso("i", np)}, "Allow rule networkpolicy a"},
		{"isolation before lower band", rules{"a": {band: base}}, []rule.Isolation{iso("i", np)}, "Drop isolation networkpolicy - [i]"},
		{"audited isolation", nil, []rule.Isolation{iso("i", np), iso("j", np, audited)}, "Drop isolation networkpolicy - [i j] audit-isolation"},
		{"audited isolation of a lower band", nil, []rule.Isolation{iso("i", np), iso("j", base, audited)}, "Drop isolation networkpolicy - [i]"},

		{"skip own band", rules{"a": {band: admin, do: rule.Skip, skip: rule.Bands(admin)}, "b": {band: admin, do: rule.Deny}, "c": {band: base, do: rule.Reject}}, nil, "Reject rule baseline c"},
		{"skip own band's isolation", rules{"a": {band: np, do: rule.Skip, skip: rule.Bands(np)}}, []rule.Isolation{iso("i", np)}, "Allow default default -"},
		{"skip a later band", rules{"a": {band: admin, do: rule.Skip, skip: rule.Bands(np)}, "b": {band: np, do: rule.Deny}}, []rule.Isolation{iso("i", np)}, "Allow default default -"},
		{"skip a later band, own goes on", rules{"a": {band: admin, do: rule.Skip, skip: rule.Bands(np)}, "b": {band: admin, do: rule.Deny}}, nil, "Drop rule admin b"},
		{"skip an earlier band", rules{"a": {band: admin, do: rule.Skip, skip: rule.Bands(rule.BandAntreaUpper)}, "b": {band: admin, do: rule.Deny}}, nil, "Drop rule admin b"},
		{"skips add up", rules{"a": {band: rule.BandAntreaUpper, do: rule.Skip, skip: rule.Bands(admin)}, "b": {band: rule.BandAntreaUpper, do: rule.Skip, skip: rule.Bands(np)}, "c": {band: admin, do: rule.Deny}, "d": {band: np, do: rule.Deny}}, nil, "Allow default default -"},
		{"skip that does not match", rules{"a": {band: admin, do: rule.Skip, skip: rule.Bands(admin), peers: miss}, "b": {band: admin, do: rule.Deny}}, nil, "Drop rule admin b"},
		{"a skipped skip does nothing", rules{"a": {band: admin, do: rule.Skip, skip: rule.Bands(admin)}, "b": {band: admin, do: rule.Skip, skip: rule.Bands(np)}, "c": {band: np, do: rule.Deny}}, nil, "Drop rule networkpolicy c"},

		{"audit", rules{"a": {band: np, audit: true}}, nil, "Allow rule networkpolicy a audit a"},
		{"audit skips in order, then the decider", rules{"a": {band: admin, do: rule.Skip, audit: true, skip: rule.Bands(base)}, "b": {band: admin, do: rule.Skip, skip: rule.Bands(admin)}, "c": {band: np, do: rule.Skip, audit: true}, "d": {band: np, do: rule.Deny, audit: true}}, nil, "Drop rule networkpolicy d audit a c d"},
		{"audited skip before the default", rules{"a": {band: admin, do: rule.Skip, audit: true, skip: rule.Bands(admin)}}, nil, "Allow default default - audit a"},
		{"audited skip before isolation", rules{"a": {band: admin, do: rule.Skip, audit: true, skip: rule.Bands(admin)}}, []rule.Isolation{iso("i", np)}, "Drop isolation networkpolicy - [i] audit a"},
		{"no audit of what is not reached", rules{"a": {band: admin}, "b": {band: np, audit: true}}, nil, "Allow rule admin a"},
		{"no audit of what does not match", rules{"a": {band: admin, audit: true, peers: miss}}, nil, "Allow default default -"},

		{"staged deny", rules{"a": {band: admin, do: rule.Deny, stage: staged, audit: true}}, nil, "Allow default default - | Drop rule admin a"},
		{"staged deny over enforced allow", rules{"a": {band: admin, do: rule.Deny, stage: staged}, "b": {band: np, audit: true}}, nil, "Allow rule networkpolicy b audit b | Drop rule admin a"},
		{"staged under enforced", rules{"a": {band: admin}, "b": {band: np, do: rule.Deny, stage: staged}}, nil, "Allow rule admin a"},
		{"staged miss", rules{"a": {band: admin, do: rule.Deny, stage: staged, peers: miss}}, nil, "Allow default default -"},
		{"staged skip", rules{"a": {band: admin, do: rule.Skip, skip: rule.Bands(admin), stage: staged}, "b": {band: admin, do: rule.Deny}}, nil, "Drop rule admin b | Allow default default -"},
		{"staged skip that changes nothing is still met", rules{"a": {band: admin, do: rule.Skip, skip: rule.Bands(admin), stage: staged}}, nil, "Allow default default - | Allow default default -"},
		{"staged skip before enforced isolation", rules{"a": {band: admin, do: rule.Skip, stage: staged}}, []rule.Isolation{iso("i", np)}, "Drop isolation networkpolicy - [i] | Drop isolation networkpolicy - [i]"},
		{"staged isolation", nil, []rule.Isolation{iso("i", np, stage, audited)}, "Allow default default - | Drop isolation networkpolicy - [i]"},
		{"staged beside enforced isolation", nil, []rule.Isolation{iso("i", np), iso("j", np, stage, audited)}, "Drop isolation networkpolicy - [i] | Drop isolation networkpolicy - [i j]"},
		{"staged isolation, rule allows", rules{"a": {band: np}}, []rule.Isolation{iso("i", np, stage)}, "Allow rule networkpolicy a"},
		{"staged isolation above enforced", rules{"a": {band: base, do: rule.Reject}}, []rule.Isolation{iso("i", np, stage)}, "Reject rule baseline a | Drop isolation networkpolicy - [i]"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var set rule.Set
			for name, m := range tt.rules { // map order: the walk must not depend on set order
				if m.d == flow.Ingress && tt.name != "other direction" {
					m.d = flow.Egress
				}
				set.Rules = append(set.Rules, m.rule(name))
			}
			set.Isolations = tt.isos
			for family := range 2 {
				got := Evaluate(&set, testWorld(), key("xa>xb", flow.TCP, 80, family))
				if s := text(&got.Egress); s != tt.want {
					t.Errorf("got  %s\nwant %s", s, tt.want)
				}
			}
		})
	}
}

// TestUnknownStopsTheWalk: the first rule in doubt decides, in the enforced walk
// and in the staged one, each in its own place.
func TestUnknownStopsTheWalk(t *testing.T) {
	doubt := pods(app("b"))
	e := flow.Egress
	for _, tt := range []struct {
		name string
		set  []rule.Rule
		want string
	}{
		{"any before doubt", []rule.Rule{mk{d: e}.rule("a"), mk{d: e, peers: doubt}.rule("b")}, "Allow rule antrea-upper a"},
		{"doubted allow before allow", []rule.Rule{mk{d: e, peers: doubt}.rule("a"), mk{d: e}.rule("b")}, "Allow rule antrea-upper b"},
		{"doubted allow before allow of another band", []rule.Rule{mk{d: e, peers: doubt}.rule("a"), mk{d: e, band: rule.BandAdmin}.rule("b")}, "Drop unknown-peer default -"},
		{"doubted allow before deny", []rule.Rule{mk{d: e, peers: doubt}.rule("a"), mk{d: e, do: rule.Deny}.rule("b"), mk{d: e}.rule("c")}, "Drop unknown-peer default -"},
		{"doubted allow before doubted deny", []rule.Rule{mk{d: e, peers: doubt}.rule("a"), mk{d: e, peers: doubt, do: rule.Deny}.rule("b"), mk{d: e}.rule("c")}, "Drop unknown-peer default -"},
		{"doubted deny before allow", []rule.Rule{mk{d: e, peers: doubt, do: rule.Deny}.rule("a"), mk{d: e}.rule("b")}, "Drop unknown-peer default -"},
		{"even an allow or a skip", []rule.Rule{mk{d: e, peers: doubt, do: rule.Skip}.rule("a")}, "Drop unknown-peer default -"},
		{"audited skip before, no audit of the doubted", []rule.Rule{
			mk{d: e, do: rule.Skip, audit: true}.rule("a"), mk{d: e, peers: doubt, audit: true}.rule("b"),
		}, "Drop unknown-peer default - audit a"},
		{"staged doubt", []rule.Rule{mk{d: e, peers: doubt, do: rule.Deny, stage: rule.AuditOnly}.rule("a"), mk{d: e}.rule("b")}, "Allow rule antrea-upper b | Drop unknown-peer default -"},
		{"staged doubt that changes nothing", []rule.Rule{mk{d: e, peers: doubt, stage: rule.AuditOnly}.rule("a"), mk{d: e}.rule("b")}, "Allow rule antrea-upper b"},
		{"staged match, then doubt", []rule.Rule{
			mk{d: e, do: rule.Skip, stage: rule.AuditOnly}.rule("a"), mk{d: e, peers: doubt}.rule("b"),
		}, "Drop unknown-peer default - | Drop unknown-peer default -"},
	} {
		set := rule.Set{Rules: slices.Clone(tt.set)}
		got := Evaluate(&set, testWorld(), key("xa>unknown", flow.TCP, 80, 1))
		if s := text(&got.Egress); s != tt.want {
			t.Errorf("%s: got %s, want %s", tt.name, s, tt.want)
		}
	}
}
