package oracle

import (
	"testing"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
)

// TestMatch: whether one egress Deny rule matches, for both families. "?" is the
// unknown-peer drop.
func TestMatch(t *testing.T) {
	named := func(name string, p flow.Proto) []rule.L4 {
		return []rule.L4{{Proto: p, Name: name, SrcPorts: rule.AllPorts}}
	}
	ports := func(p flow.Proto, first, last uint16) []rule.L4 {
		return []rule.L4{{Proto: p, Ports: rule.PortRange{First: first, Last: last}, SrcPorts: rule.AllPorts}}
	}
	from := func(first, last uint16) []rule.L4 {
		return []rule.L4{{Ports: rule.AllPorts, SrcPorts: rule.PortRange{First: first, Last: last}}}
	}
	ns := func(name string) rule.Selector { return rule.Selector{Namespace: name} }
	none := rule.Selector{None: true}
	tests := []struct {
		name  string
		conn  string
		proto flow.Proto
		port  uint16
		rule  mk
		want  string // "yes", "no" or "?"
	}{
		// Subject.
		{"any subject", "xa>out", flow.TCP, 80, mk{}, "yes"},
		{"subject by label", "xa>out", flow.TCP, 80, mk{subject: app("a")}, "yes"},
		{"other subject", "xa>out", flow.TCP, 80, mk{subject: app("b")}, "no"},
		{"subject none", "xa>out", flow.TCP, 80, mk{subject: none}, "no"},
		{"subject any-of", "xa>out", flow.TCP, 80, mk{subject: rule.Selector{AnyOf: []rule.Selector{app("q"), ns("x")}}}, "yes"},
		{"subject none of any-of", "xa>out", flow.TCP, 80, mk{subject: rule.Selector{AnyOf: []rule.Selector{app("q"), ns("y")}}}, "no"},
		{"service account", "xa>out", flow.TCP, 80, mk{subject: rule.Selector{ServiceAccount: "sa-a"}}, "yes"},
		// Peers: any, pods.
		{"no peers", "xa>out", flow.TCP, 80, mk{peers: []rule.Peer{}}, "no"},
		{"peer any, node", "xa>n2", flow.TCP, 80, mk{}, "yes"},
		{"peer any, unknown", "xa>unknown", flow.TCP, 80, mk{}, "yes"},
		{"pods: pod", "xa>xb", flow.TCP, 80, mk{peers: pods(app("b"))}, "yes"},
		{"pods: remote pod", "xa>za", flow.TCP, 80, mk{peers: pods(ns("z"))}, "yes"},
		{"pods: other", "xa>xb", flow.TCP, 80, mk{peers: pods(app("a"))}, "no"},
		{"pods: outside", "xa>out", flow.TCP, 80, mk{peers: pods(rule.Selector{})}, "no"},
		{"pods: node", "xa>n2", flow.TCP, 80, mk{peers: pods(rule.Selector{})}, "no"},
		{"pods: host network", "xa>xh", flow.TCP, 80, mk{peers: pods(rule.Selector{})}, "no"},
		{"pods: none", "xa>xb", flow.TCP, 80, mk{peers: pods(none)}, "no"},
		{"second peer", "xa>xb", flow.TCP, 80, mk{peers: append(pods(app("a")), pods(app("b"))...)}, "yes"},
		{"relation same ns", "xa>xb", flow.TCP, 80, mk{peers: []rule.Peer{{Kind: rule.PeerPods, Relation: rule.Relation{Namespace: rule.SameNamespace}}}}, "yes"},
		{"relation same ns, other", "xa>ya", flow.TCP, 80, mk{peers: []rule.Peer{{Kind: rule.PeerPods, Relation: rule.Relation{Namespace: rule.SameNamespace}}}}, "no"},
		{"relation other ns", "xa>ya", flow.TCP, 80, mk{peers: []rule.Peer{{Kind: rule.PeerPods, Relation: rule.Relation{Namespace: rule.OtherNamespace}}}}, "yes"},
		{"relation pod labels", "xa>ya", flow.TCP, 80, mk{peers: []rule.Peer{{Kind: rule.PeerPods, Relation: rule.Relation{PodLabels: rule.LabelRelation{Op: rule.SameLabels, Keys: []string{"app"}}}}}}, "yes"},
		{"relation pod labels, other", "xa>xb", flow.TCP, 80, mk{peers: []rule.Peer{{Kind: rule.PeerPods, Relation: rule.Relation{PodLabels: rule.LabelRelation{Op: rule.SameLabels, Keys: []string{"app"}}}}}}, "no"},
		{"invalid kind", "xa>xb", flow.TCP, 80, mk{peers: []rule.Peer{{}}}, "no"},
		// Peers: blocks take pods and nodes by address; NoPods leaves pods out only.
		{"block: outside", "xa>out", flow.TCP, 80, mk{peers: append(block("192.0.2.0/24"), block("2001:db8::/32")...)}, "yes"},
		{"block: pod", "xa>xb", flow.TCP, 80, mk{peers: append(block("10.0.0.0/8"), block("fd00::/16")...)}, "yes"},
		{"block: node", "xa>n2", flow.TCP, 80, mk{peers: append(block("172.16.0.0/12"), block("fd01::/16")...)}, "yes"},
		{"block: hole", "xa>xb", flow.TCP, 80, mk{peers: append(block("10.0.0.0/8", "10.0.1.2/32"), block("fd00::/16", "fd00:1::2/128")...)}, "no"},
		{"block: beside the hole", "xa>ya", flow.TCP, 80, mk{peers: append(block("10.0.0.0/8", "10.0.1.2/32"), block("fd00::/16", "fd00:1::2/128")...)}, "yes"},
		{"block: hole of one, other block", "xa>xb", flow.TCP, 80, mk{peers: append(append(block("0.0.0.0/0", "10.0.1.2/32"), block("10.0.1.0/24")...), block("::/0")...)}, "yes"},
		{"block no-pods: pod", "xa>xb", flow.TCP, 80, mk{peers: append(noPods(block("0.0.0.0/0")), noPods(block("::/0"))...)}, "no"},
		{"block no-pods: node", "xa>n2", flow.TCP, 80, mk{peers: append(noPods(block("0.0.0.0/0")), noPods(block("::/0"))...)}, "yes"},
		{"block no-pods: host pod", "xa>xh", flow.TCP, 80, mk{peers: append(noPods(block("0.0.0.0/0")), noPods(block("::/0"))...)}, "yes"},
		{"block no-pods: outside", "xa>out", flow.TCP, 80, mk{peers: append(noPods(block("0.0.0.0/0")), noPods(block("::/0"))...)}, "yes"},
		{"set: outside", "xa>out", flow.TCP, 80, mk{peers: []rule.Peer{{Kind: rule.PeerSet, Set: "s"}}}, "yes"},
		{"set: pod", "xa>xb", flow.TCP, 80, mk{peers: []rule.Peer{{Kind: rule.PeerSet, Set: "s"}}}, "yes"},
		{"set: other", "xa>ya", flow.TCP, 80, mk{peers: []rule.Peer{{Kind: rule.PeerSet, Set: "s"}}}, "no"},
		{"set: missing", "xa>out", flow.TCP, 80, mk{peers: []rule.Peer{{Kind: rule.PeerSet, Set: "nope"}}}, "no"},
		// Unknown peers: in doubt, except where no answer could matter.
		{"unknown: pods", "xa>unknown", flow.TCP, 80, mk{peers: pods(app("b"))}, "?"},
		// what an address decides needs no pod.
		{"unknown: block elsewhere", "xa>unknown", flow.TCP, 80, mk{peers: block("192.0.2.0/24")}, "no"},
		{"unknown: block", "xa>unknown", flow.TCP, 80, mk{peers: append(block("10.0.1.64/26"), block("fd00:1::/64")...)}, "yes"},
		{"unknown: hole of the block", "xa>unknown", flow.TCP, 80, mk{peers: append(block("0.0.0.0/0", "10.0.1.64/26"), block("::/0", "fd00:1::99/128")...)}, "no"},
		{"unknown: no-pods block", "xa>unknown", flow.TCP, 80, mk{peers: append(noPods(block("0.0.0.0/0")), noPods(block("::/0"))...)}, "?"},
		{"unknown: no-pods block elsewhere", "xa>unknown", flow.TCP, 80, mk{peers: noPods(block("192.0.2.0/24"))}, "no"},
		{"unknown: set", "xa>unknown", flow.TCP, 80, mk{peers: []rule.Peer{{Kind: rule.PeerSet, Set: "s"}}}, "yes"},
		{"unknown: set without it", "xa>unknown", flow.TCP, 80, mk{peers: []rule.Peer{{Kind: rule.PeerSet, Set: "nope"}}}, "no"},
		{"unknown: name, block", "xa>unknown", flow.TCP, 80, mk{peers: append(block("10.0.1.64/26"), block("fd00:1::/64")...), l4: named("http", flow.TCP)}, "?"},
		{"unknown: doubt, then block", "xa>unknown", flow.TCP, 80, mk{peers: append(pods(app("b")), append(block("10.0.1.64/26"), block("fd00:1::/64")...)...)}, "yes"},
		{"unknown: none", "xa>unknown", flow.TCP, 80, mk{peers: pods(none)}, "no"},
		{"unknown: no peers", "xa>unknown", flow.TCP, 80, mk{peers: []rule.Peer{}}, "no"},
		{"unknown: doubt then any", "xa>unknown", flow.TCP, 80, mk{peers: append(pods(app("b")), rule.Peer{Kind: rule.PeerAny})}, "yes"},
		{"unknown: other subject", "xa>unknown", flow.TCP, 80, mk{subject: app("b"), peers: pods(app("b"))}, "no"},
		{"unknown: other port", "xa>unknown", flow.TCP, 80, mk{peers: pods(app("b")), l4: ports(flow.TCP, 81, 81)}, "no"},
		{"unknown: name", "xa>unknown", flow.TCP, 80, mk{peers: pods(app("b")), l4: named("http", flow.TCP)}, "?"},
		{"unknown: name, any peer", "xa>unknown", flow.TCP, 80, mk{l4: named("http", flow.TCP)}, "?"},
		{"unknown: name or number", "xa>unknown", flow.TCP, 80, mk{l4: append(named("http", flow.TCP), ports(flow.TCP, 80, 80)...)}, "yes"},
		{"unknown: name, no peers", "xa>unknown", flow.TCP, 80, mk{l4: named("http", flow.TCP), peers: []rule.Peer{}}, "no"},
		{"unknown: name, any protocol", "xa>unknown", flow.UDP, 80, mk{l4: named("http", flow.AnyProto)}, "?"},
		{"unknown: name, protocol without ports", "xa>unknown", flow.ICMP, 80, mk{l4: named("http", flow.AnyProto)}, "no"},
		{"unknown: name, other protocol", "xa>unknown", flow.TCP, 80, mk{l4: named("http", flow.UDP)}, "no"},
		// L4.
		{"no L4", "xa>out", flow.TCP, 80, mk{l4: []rule.L4{}}, "no"},
		{"any: ICMP", "xa>out", flow.ICMP, flow.ICMPPort(8, 0), mk{}, "yes"},
		{"any: GRE", "xa>out", 47, 0, mk{}, "yes"},
		{"port", "xa>out", flow.TCP, 80, mk{l4: ports(flow.TCP, 80, 80)}, "yes"},
		{"port of any protocol", "xa>out", flow.SCTP, 80, mk{l4: ports(flow.AnyProto, 80, 80)}, "yes"},
		{"other protocol", "xa>out", flow.UDP, 80, mk{l4: ports(flow.TCP, 80, 80)}, "no"}, // S0-61
		{"range first", "xa>out", flow.TCP, 80, mk{l4: ports(flow.TCP, 80, 90)}, "yes"},
		{"range last", "xa>out", flow.TCP, 90, mk{l4: ports(flow.TCP, 80, 90)}, "yes"}, // S0-60
		{"below", "xa>out", flow.TCP, 79, mk{l4: ports(flow.TCP, 80, 90)}, "no"},
		{"above", "xa>out", flow.TCP, 91, mk{l4: ports(flow.TCP, 80, 90)}, "no"},
		{"second L4", "xa>out", flow.UDP, 53, mk{l4: append(ports(flow.TCP, 80, 80), ports(flow.UDP, 53, 53)...)}, "yes"},
		{"protocol without ports", "xa>out", 47, 0, mk{l4: ports(47, 0, 65535)}, "yes"},
		{"protocol without ports, port asked", "xa>out", 47, 0, mk{l4: ports(47, 1, 65535)}, "no"},
		{"ICMP type", "xa>out", flow.ICMP, flow.ICMPPort(8, 3), mk{l4: ports(flow.ICMP, 8<<8, 8<<8|255)}, "yes"},
		{"ICMP other type", "xa>out", flow.ICMP, flow.ICMPPort(0, 3), mk{l4: ports(flow.ICMP, 8<<8, 8<<8|255)}, "no"},
		{"ICMPv6 code", "xa>out", flow.ICMPv6, flow.ICMPPort(128, 1), mk{l4: ports(flow.ICMPv6, 128<<8, 128<<8)}, "no"},
		{"source port", "xa>out", flow.TCP, 80, mk{l4: from(1000, 1000)}, "yes"},
		{"other source port", "xa>out", flow.TCP, 80, mk{l4: from(1001, 65535)}, "no"},
		{"source port of ICMP", "xa>out", flow.ICMP, 0, mk{l4: from(0, 1000)}, "no"},
		{"source port of GRE", "xa>out", 47, 0, mk{l4: from(0, 1000)}, "no"},
		// Named ports resolve on the destination pod (S0-58).
		{"name", "xa>xb", flow.TCP, 80, mk{l4: named("http", flow.TCP)}, "yes"},
		{"name, other number there", "xa>ya", flow.TCP, 80, mk{l4: named("http", flow.TCP)}, "no"},
		{"name, number there", "xa>ya", flow.TCP, 8080, mk{l4: named("http", flow.TCP)}, "yes"},
		{"name, any protocol", "xa>xb", flow.UDP, 53, mk{l4: named("dns", flow.AnyProto)}, "yes"},
		{"name, protocol of the port", "xa>xb", flow.TCP, 53, mk{l4: named("dns", flow.AnyProto)}, "no"},
		{"name, protocol of the rule", "xa>xb", flow.UDP, 53, mk{l4: named("dns", flow.TCP)}, "no"},
		{"name absent", "xa>za", flow.TCP, 80, mk{l4: named("http", flow.TCP)}, "no"},
		{"name of no pod", "xa>out", flow.TCP, 80, mk{l4: named("http", flow.TCP)}, "no"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.rule.d, tt.rule.do = flow.Egress, rule.Deny
			set := rule.Set{Rules: []rule.Rule{tt.rule.rule("r")}}
			want := map[string]string{
				"yes": "Drop rule antrea-upper r", "no": "Allow default default -", "?": "Drop unknown-peer default -",
			}[tt.want]
			for family := range 2 {
				got := Evaluate(&set, testWorld(), key(tt.conn, tt.proto, tt.port, family))
				if e := text(&got.Egress); e != want {
					t.Errorf("%s = %s, want %s", tt.conn, e, want)
				}
			}
		})
	}
}

// TestIngressMirrors: for ingress the destination is the subject, the source the
// peer, and names still resolve on the destination.
func TestIngressMirrors(t *testing.T) {
	w := testWorld()
	set := rule.Set{Rules: []rule.Rule{mk{
		d: flow.Ingress, do: rule.Deny, subject: app("b"), peers: pods(app("a")),
		l4: []rule.L4{{Name: "http", SrcPorts: rule.AllPorts}},
	}.rule("r")}}
	for _, tt := range []struct {
		conn string
		port uint16
		want string
	}{
		{"xa>xb", 80, "Drop rule antrea-upper r"},
		{"za>xb", 80, "Drop rule antrea-upper r"},
		{"xb>xa", 80, "Allow default default -"},
		{"xa>xb", 8080, "Allow default default -"}, // ya's number, not xb's
		{"out>xb", 80, "Allow default default -"},
		{"unknown>xb", 80, "Drop unknown-peer default -"},
		{"unknown>xb", 81, "Allow default default -"}, // the destination is known, so is its port
	} {
		got := Evaluate(&set, w, key(tt.conn, flow.TCP, tt.port, 0))
		if s := text(&got.Ingress); s != tt.want {
			t.Errorf("%s:%d = %s, want %s", tt.conn, tt.port, s, tt.want)
		}
	}
}
