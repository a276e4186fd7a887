package simulate

import (
	"crypto/sha1"
	"fmt"
	"testing"

	"github.com/tierwall/tierwall/policy/inventory"
)

// antreaDoc is a policy of either kind: cluster-scoped when ns is "".
func antreaDoc(ns, name, tier string, priority float64, spec string) string {
	kind, meta := "ClusterNetworkPolicy", "{name: "+name+"}"
	if ns != "" {
		kind, meta = "NetworkPolicy", "{name: "+name+", namespace: "+ns+"}"
	}
	return fmt.Sprintf("apiVersion: crd.antrea.io/v1beta1\nkind: %s\nmetadata: %s\nspec:\n  tier: %s\n  priority: %g\n%s", kind, meta, tier, priority, spec)
}

func acnp(name, tier string, priority float64, spec string) string {
	return antreaDoc("", name, tier, priority, spec)
}

func tierDoc(name string, priority int) string {
	return fmt.Sprintf("apiVersion: crd.antrea.io/v1beta1\nkind: Tier\nmetadata: {name: %s}\nspec: {priority: %d}\n", name, priority)
}

func clusterGroup(name, spec string) string {
	return "apiVersion: crd.antrea.io/v1beta1\nkind: ClusterGroup\nmetadata: {name: " + name + "}\nspec: " + spec + "\n"
}

// all applies to every pod; the rules are named so that answers are readable.
const all = "  appliedTo: [{podSelector: {}}]\n"

func in(action string) string {
	return all + "  ingress: [{name: " + action + ", action: " + action + "}]\n"
}

// TestAntreaOrder: tiers, priorities, rule indexes, Pass, and the other APIs
// around them.
func TestAntreaOrder(t *testing.T) {
	inv := world(t, "x", "x/a", "x/b")
	npDeny, npAllow := np("x", "np", "  podSelector: {}\n"), np("x", "np", "  podSelector: {}\n  ingress: [{}]\n")
	two := func(first, second string) string {
		return all + "  ingress: [{name: first, action: " + first + "}, {name: second, action: " + second + "}]\n"
	}
	for _, tt := range []struct {
		name string
		docs []string
		want string // ingress of x/a > x/b 80/TCP
	}{
		{"S2-02 tier number first", []string{acnp("a", "platform", 1, in("Allow")), acnp("b", "emergency", 9, in("Drop"))}, "Drop /b Drop"},
		{"S2-11 no tier is application", []string{acnp("a", "''", 5, in("Allow")), acnp("b", "application", 4, in("Drop"))}, "Drop /b Drop"},
		{"S2-19 lower priority first", []string{acnp("a", "platform", 5.5, in("Allow")), acnp("b", "platform", 5.4, in("Drop"))}, "Drop /b Drop"},
		{"S2-33 top to bottom", []string{acnp("a", "platform", 1, two("Allow", "Drop"))}, "Allow /a first"},
		{"S2-62 kinds are one order", []string{acnp("a", "platform", 5, in("Allow")), antreaDoc("x", "b", "platform", 4, in("Drop"))}, "Drop x/b Drop"},
		{"S2-10 custom tiers slot in", []string{tierDoc("mine", 40), acnp("a", "emergency", 1, in("Allow")), acnp("b", "mine", 9, in("Drop"))}, "Drop /b Drop"},
		{"S2-21 Reject", []string{acnp("a", "platform", 1, in("Reject")), npAllow}, "Reject /a Reject"},
		{"X-13 Deny is Drop", []string{acnp("a", "platform", 1, in("Deny"))}, "Drop /a Deny"},
		{"S2-12 the action applies", []string{acnp("a", "application", 1, in("Allow")), npDeny}, "Allow /a Allow"},
		{"S2-23 Pass skips every tier", []string{acnp("a", "emergency", 1, in("Pass")), acnp("b", "emergency", 2, in("Drop")), acnp("c", "application", 1, in("Drop"))}, "default"},
		{"S2-23 to NetworkPolicy", []string{acnp("a", "emergency", 1, in("Pass")), acnp("c", "application", 1, in("Allow")), npDeny}, "Drop [x/np]"},
		{"S2-23 but the baseline", []string{acnp("a", "emergency", 1, in("Pass")), acnp("b", "baseline", 1, in("Drop"))}, "Drop /b Drop"},
		{"S2-13 baseline Drop, NetworkPolicy allows", []string{acnp("a", "baseline", 1, in("Drop")), npAllow}, "Allow x/np ingress[0]"},
		{"S2-14 baseline Allow, NetworkPolicy isolates", []string{acnp("a", "baseline", 1, in("Allow")), npDeny}, "Drop [x/np]"},
		{"S2-18 no isolation", []string{acnp("a", "platform", 1, all+"  ingress: []\n")}, "default"},
		//
		{"a tie: rule index", []string{acnp("b", "platform", 1, in("Allow")), acnp("a", "platform", 1, two("Allow", "Drop"))}, "Allow /a first"},
		{"a tie: the strictest", []string{acnp("a", "platform", 1, in("Allow")), acnp("b", "platform", 1, in("Drop"))}, "Drop /b Drop"},
		{"a tie: Pass before Allow", []string{acnp("a", "platform", 1, in("Allow")), acnp("b", "platform", 1, in("Pass"))}, "default"},
		{"a tie: kind", []string{antreaDoc("x", "a", "platform", 1, in("Drop")), acnp("b", "platform", 1, in("Drop"))}, "Drop /b Drop"},
		{"a tie: name", []string{acnp("b", "platform", 1, in("Drop")), acnp("a", "platform", 1, in("Reject"))}, "Reject /a Reject"},
		// Bands: tiers below 220 come before the upstream admin policies, the
		// others after them, and Pass is an API's own matter.
		{"below 220: before", []string{tierDoc("mine", 219), acnp("a", "mine", 1, in("Drop")), release("b", 0, in1("Allow", anyNamespace, ""))}, "Drop /a Drop"},
		{"above 220: after", []string{tierDoc("mine", 221), acnp("a", "mine", 1, in("Drop")), release("b", 0, in1("Allow", anyNamespace, ""))}, "Allow /b ingress[0]"},
		{"Antrea's Pass leaves others alone", []string{acnp("a", "emergency", 1, in("Pass")), release("b", 0, in1("Deny", anyNamespace, ""))}, "Drop /b ingress[0]"},
		{"others' Pass leaves Antrea alone", []string{release("b", 0, in1("Pass", anyNamespace, "")), acnp("a", "application", 1, in("Drop"))}, "Drop /a Drop"},
		{"baseline before upstream's", []string{acnp("a", "baseline", 1, in("Drop")), banp(in1("Allow", anyNamespace, ""))}, "Drop /a Drop"},
	} {
		t.Run(tt.name, func(t *testing.T) { run(t, inv, tt.docs, "x/a > x/b 80/TCP: default; "+tt.want) })
	}
	if _, err := New(objects(t, acnp("a", "missing", 1, in("Drop"))), inv, ""); err == nil { // S2-04
		t.Error("a policy of a tier that does not exist was accepted")
	}
}

// TestAntreaWorkedOrder is the document's example of three policies.
func TestAntreaWorkedOrder(t *testing.T) {
	inv := world(t, "x", "x/a", "x/b")
	rules := func(n int) string {
		s := all
		for _, d := range []string{"ingress", "egress"} {
			s += fmt.Sprintf("  %s:\n  - {name: %c%d.1, action: Allow, ports: [{port: %d}]}\n  - {name: %c%d.2, action: Allow, ports: [{port: 1, endPort: %d}]}\n",
				d, d[0], n, n, d[0], n, 10*n)
		}
		return s
	}
	docs := []string{acnp("acnp1", "application", 10, rules(1)), antreaDoc("x", "anp1", "application", 15, rules(2)), acnp("acnp3", "emergency", 20, rules(3))}
	run(t, inv, docs,
		// S2-63: the stronger tier first, rules from top to bottom.
		"x/a > x/b 3/TCP: Allow /acnp3 e3.1; Allow /acnp3 i3.1", "x/a > x/b 1/TCP: Allow /acnp3 e3.2; Allow /acnp3 i3.2",
		"x/a > x/b 31/TCP: default; default")
	run(t, inv, docs[:2],
		"x/a > x/b 1/TCP: Allow /acnp1 e1.1; Allow /acnp1 i1.1", "x/a > x/b 10/TCP: Allow /acnp1 e1.2; Allow /acnp1 i1.2",
		"x/a > x/b 20/TCP: Allow x/anp1 e2.2; Allow x/anp1 i2.2")
}

// TestAntreaPeers has one egress rule for x/a and asks who it reaches.
func TestAntreaPeers(t *testing.T) {
	inv := world(t, "x team=1 env=dev", "same team=1 env=dev", "far team=2", "x/a app=a", "x/b app=b", "same/b app=b", "far/a app=a")
	inv.Nodes[1].Labels = map[string]string{"zone": "b"}
	inv.Pods[2].ServiceAccount = "sa"
	inv.Services = []inventory.Service{
		{Namespace: "same", Name: "svc", Selector: map[string]string{"app": "b"}, ClusterIPs: addrs("10.96.0.1"), Ports: []inventory.ServicePort{{Proto: "TCP", Port: 80}}},
		{Namespace: "same", Name: "bare", ClusterIPs: addrs("10.96.0.2")},
	}
	to := []string{"x/b", "same/b", "far/a", "172.16.0.1", "172.16.0.2", "192.0.2.1", "192.0.2.9"}
	groups := []string{
		clusterGroup("sel", "{podSelector: {matchLabels: {app: b}}, namespaceSelector: {matchLabels: {team: '1'}}}"),
		clusterGroup("pods", "{podSelector: {matchLabels: {app: b}}}"),
		clusterGroup("blocks", "{ipBlocks: [{cidr: 192.0.2.0/24, except: [192.0.2.8/29]}, {cidr: '2001:db8::/64', except: ['2001:db8::8/125']}]}"),
		clusterGroup("svc", "{serviceReference: {name: svc, namespace: same}}"),
		clusterGroup("bare", "{serviceReference: {name: bare, namespace: same}}"),
		clusterGroup("nested", "{childGroups: [svc, blocks]}"),
		clusterGroup("empty", "{}"),
		"apiVersion: crd.antrea.io/v1beta1\nkind: Group\nmetadata: {name: pods, namespace: x}\nspec: {podSelector: {}}\n",
	}
	for _, tt := range []struct {
		ns, peer, want string
	}{
		{"", "{podSelector: {matchLabels: {app: b}}}", "++....."}, // S2-46
		{"", "{namespaceSelector: {matchLabels: {team: '2'}}}", "..+...."},
		{"", "{namespaceSelector: {matchLabels: {team: '1'}}, podSelector: {matchLabels: {app: b}}}", "++....."}, // S2-48
		{"", "{namespaces: {match: Self}}", "+......"},                                                           // S2-50
		{"", "{namespaces: {match: Self}, podSelector: {matchLabels: {app: a}}}", "......."},
		{"", "{namespaces: {sameLabels: [team]}}", "++....."},
		{"", "{namespaces: {sameLabels: [absent]}}", "......."}, // no-op without the key
		{"", "{nodeSelector: {}}", "...++.."},                   // S2-49
		{"", "{nodeSelector: {matchLabels: {zone: b}}}", "....+.."},
		{"", "{serviceAccount: {name: sa, namespace: same}}", ".+....."},                         // S2-54
		{"", "{ipBlock: {cidr: 0.0.0.0/0}}, {ipBlock: {cidr: '::/0'}}", "+++++++"},               // S2-52
		{"", "{ipBlock: {cidr: 192.0.2.1/32}}, {ipBlock: {cidr: '2001:db8::1/128'}}", ".....+."}, // S2-111
		{"", "{fqdn: '*foobar.com'}", "......."},                                                 // S4-23: nothing is resolved
		{"", "{group: sel}", "++....."},
		{"", "{group: pods}", "++....."},
		{"", "{group: blocks}", ".....+."},
		{"", "{group: svc}", ".+....."},       // S2-73
		{"", "{group: bare}", "......."},      // S2-74
		{"", "{group: nested}", ".+...+."},    // S2-76
		{"", "{group: empty}", "......."},     //
		{"x", "{podSelector: {}}", "+......"}, // S2-57
		{"x", "{namespaceSelector: {}}", "+++...."},
		{"x", "{group: pods}", "+......"}, // its own namespace's
		{"", "", "+++++++"},               // S2-35
	} {
		docs := append([]string{antreaDoc(tt.ns, "p", "platform", 1, "  appliedTo: [{podSelector: {matchLabels: {app: a}}}]\n"+
			"  egress: [{name: r, action: Drop, to: ["+tt.peer+"]}]\n")}, groups...)
		for i, dst := range to {
			want, in := "default", "default"
			if tt.want[i] == '+' {
				want = "Drop " + tt.ns + "/p r"
			}
			if i >= 3 {
				in = "not-local"
			}
			t.Run(tt.peer+" "+dst, func(t *testing.T) { run(t, inv, docs, fmt.Sprintf("x/a > %s 80/TCP: %s; %s", dst, want, in)) })
		}
	}
	// S2-98, S2-101, S2-103: the Service's address, port and protocol, not its pods.
	run(t, inv, []string{acnp("p", "platform", 1, all+"  egress: [{name: r, action: Drop, toServices: [{name: svc, namespace: same}]}]\n")},
		"x/a > 10.96.0.1 80/TCP: Drop /p r; not-local v4only", "x/a > 10.96.0.1 81/TCP: default; not-local v4only",
		"x/a > 10.96.0.1 80/UDP: default; not-local v4only", "x/a > same/b 80/TCP: default; default")
}

// TestAntreaSubjects: who a policy is about.
func TestAntreaSubjects(t *testing.T) {
	inv := world(t, "x", "y env=prod", "x/a app=a", "x/b app=b", "y/a app=a")
	inv.Pods[1].ServiceAccount = "sa"
	groups := []string{
		clusterGroup("pods", "{podSelector: {matchLabels: {app: a}}}"), clusterGroup("blocks", "{ipBlocks: [{cidr: 0.0.0.0/0}]}"),
		clusterGroup("both", "{childGroups: [pods, blocks]}"),
	}
	for _, tt := range []struct{ ns, to, want string }{ // x/a, x/b, y/a
		{"", "[{podSelector: {matchLabels: {app: a}}}]", "+.+"}, // S2-26
		{"", "[{namespaceSelector: {matchLabels: {env: prod}}}]", "..+"},
		{"", "[{podSelector: {matchLabels: {app: b}}}, {namespaceSelector: {matchLabels: {env: prod}}}]", ".++"}, // S2-25, S2-111
		{"", "[{podSelector: {matchLabels: {app: b}}, namespaceSelector: {matchLabels: {env: prod}}}]", "..."},
		{"", "[{serviceAccount: {name: sa, namespace: x}}]", ".+."}, // S2-104
		{"", "[{group: pods}]", "+.+"},
		{"", "[{group: blocks}]", "..."}, // S2-28
		{"", "[{group: both}]", "+.+"},
		{"x", "[{podSelector: {}}]", "++."}, // S2-56
	} {
		docs := append([]string{antreaDoc(tt.ns, "p", "platform", 1, "  appliedTo: "+tt.to+"\n  ingress: [{name: r, action: Drop}]\n")}, groups...)
		for i, dst := range []string{"x/a", "x/b", "y/a"} {
			want := "default"
			if tt.want[i] == '+' {
				want = "Drop " + tt.ns + "/p r"
			}
			run(t, inv, docs, "192.0.2.1 > "+dst+" 80/TCP: not-local; "+want)
		}
	}
}

// TestAntreaL4: ports, source ports and the protocols that have none.
func TestAntreaL4(t *testing.T) {
	inv := world(t, "x", "x/a", "x/b http=80/TCP")
	for _, tt := range []struct {
		l4, conn string
		match    bool
	}{
		{"", "2048/ICMP", true},
		{"ports: [{port: 80}]", "80/TCP", true},
		{"ports: [{port: 8080, endPort: 9000, protocol: UDP}]", "9000/UDP", true}, // S2-37
		{"ports: [{port: http}]", "80/TCP", true},
		{"ports: [{protocol: SCTP}]", "7/SCTP", true},
		{"ports: [{protocol: SCTP}]", "7/TCP", false},
		{"ports: [{protocol: TCP, sourcePort: 1}]", "80/TCP", false}, // the test's source port is 0
		{"protocols: [{icmp: {}}]", "2048/ICMP", true},               // S2-38: type 8, code 0
		{"protocols: [{icmp: {}}]", "80/TCP", false},
		{"protocols: [{icmp: {icmpType: 8}}]", "2049/ICMP", true},
		{"protocols: [{icmp: {icmpType: 8, icmpCode: 0}}]", "2048/ICMP", true}, // S2-116
		{"protocols: [{icmp: {icmpType: 8, icmpCode: 0}}]", "2049/ICMP", false},
		{"protocols: [{icmp: {icmpType: 8, icmpCode: 0}}]", "0/ICMP", false},
		{"protocols: [{icmp: {}}], ports: [{port: 80}]", "80/TCP", true},  // S2-36: one list of alternatives
		{"protocols: [{icmp: {}}], ports: [{port: 80}]", "0/ICMP", true},  // S2-36
		{"protocols: [{icmp: {}}], ports: [{port: 80}]", "81/TCP", false}, // S2-36: none of them
	} {
		want := "default"
		if tt.match {
			want = "Reject /p r"
		}
		run(t, inv, []string{acnp("p", "platform", 1, all+"  ingress: [{name: r, action: Reject, "+tt.l4+"}]\n")}, "x/a > x/b "+tt.conn+": default; "+want)
	}
	// IGMP out of a pod, by type and group.
	for _, tt := range []struct {
		igmp, conn string
		match      bool
	}{
		{"{igmpType: 0x16, groupAddress: 225.1.2.3}", "225.1.2.3 5632/IGMP", true}, // S4-12
		{"{igmpType: 0x16, groupAddress: 225.1.2.3}", "225.1.2.4 5632/IGMP", false},
		{"{igmpType: 0x16}", "225.1.2.4 4608/IGMP", false},
		{"{}", "225.1.2.4 4608/IGMP", true},  // S4-08: any report
		{"{}", "224.0.0.1 4352/IGMP", false}, // a query is none
	} {
		want := "default"
		if tt.match {
			want = "Drop /p r"
		}
		run(t, inv, []string{acnp("p", "platform", 1, all+"  egress: [{name: r, action: Drop, protocols: [{igmp: "+tt.igmp+"}]}]\n")}, "x/a > "+tt.conn+": "+want+"; not-local v4only")
	}
}

// TestAntreaSamples are samples of the documents with their stated results.
func TestAntreaSamples(t *testing.T) {
	t.Run("strict-ns-isolation", func(t *testing.T) { // S2-114, S4-16
		inv := world(t, "kube-system", "x", "y", "kube-system/dns", "x/a", "x/b", "y/a")
		doc := acnp("strict", "securityops", 5, `
  appliedTo: [{namespaceSelector: {matchExpressions: [{key: kubernetes.io/metadata.name, operator: NotIn, values: [kube-system]}]}}]
  ingress:
  - {action: Pass, from: [{namespaces: {match: Self}}], name: PassFromSameNS}
  - {action: Drop, from: [{namespaceSelector: {}}], name: DropFromAllOtherNS}
  egress:
  - {action: Pass, to: [{namespaces: {match: Self}}], name: PassToSameNS}
  - {action: Drop, to: [{namespaceSelector: {}}], name: DropToAllOtherNS}
`)
		run(t, inv, []string{doc, np("x", "np", "  podSelector: {}\n")},
			"x/a > x/b 80/TCP: default; Drop [x/np]",
			"y/a > x/b 80/TCP: Drop /strict DropToAllOtherNS; Drop /strict DropFromAllOtherNS",
			"x/a > kube-system/dns 53/UDP: Drop /strict DropToAllOtherNS; default",
			"192.0.2.1 > y/a 80/TCP: not-local; default")
	})
	t.Run("appliedTo per rule", func(t *testing.T) { // S4-15
		inv := world(t, "x", "x/west app=db-restricted-west", "x/east app=db-restricted-east", "x/cw app=client-west", "x/ce app=client-east")
		doc := acnp("per-rule", "''", 1, `
  ingress:
  - {name: w, action: Drop, appliedTo: [{podSelector: {matchLabels: {app: db-restricted-west}}}], from: [{podSelector: {matchLabels: {app: client-east}}}]}
  - {name: e, action: Drop, appliedTo: [{podSelector: {matchLabels: {app: db-restricted-east}}}], from: [{podSelector: {matchLabels: {app: client-west}}}]}
`)
		run(t, inv, []string{doc}, "x/ce > x/west 80/TCP: default; Drop /per-rule w", "x/cw > x/east 80/TCP: default; Drop /per-rule e",
			"x/cw > x/west 80/TCP: default; default", "x/ce > x/east 80/TCP: default; default")
	})
	t.Run("Self", func(t *testing.T) { // S4-18, S4-19, X-13
		inv := world(t, "x", "y", "x/a app=a", "x/b app=b", "x/c app=c", "y/b app=b")
		allow := acnp("allow-self-ns", "platform", 1, `
  appliedTo: [{namespaceSelector: {}}]
  ingress: [{name: i, action: Allow, from: [{namespaces: {match: Self}}]}, {name: id, action: Deny}]
  egress: [{name: e, action: Allow, to: [{namespaces: {match: Self}}]}, {name: ed, action: Deny}]
`)
		deny := acnp("deny-self-ns-a-to-b", "securityops", 1, `
  appliedTo: [{namespaceSelector: {}, podSelector: {matchLabels: {app: b}}}]
  ingress: [{name: d, action: Deny, from: [{namespaces: {match: Self}, podSelector: {matchLabels: {app: a}}}]}]
`)
		run(t, inv, []string{allow, deny},
			"x/a > x/c 80/TCP: Allow /allow-self-ns e; Allow /allow-self-ns i",
			"x/a > x/b 80/TCP: Allow /allow-self-ns e; Drop /deny-self-ns-a-to-b d",
			"x/a > y/b 80/TCP: Drop /allow-self-ns ed; Drop /allow-self-ns id",
			"x/a > 192.0.2.1 80/TCP: Drop /allow-self-ns ed; not-local")
	})
	t.Run("conflict", func(t *testing.T) { // S4-26: a pod with both labels
		inv := world(t, "x", "x/web app=web", "x/dev role=dev", "x/both role=dev app=client", "x/client app=client")
		doc := func(name, action, from string) string {
			return antreaDoc("x", name, "application", 5, "  appliedTo: [{podSelector: {matchLabels: {app: web}}}]\n"+
				"  ingress: [{name: r, action: "+action+", from: [{podSelector: {matchLabels: {"+from+"}}}]}]\n")
		}
		run(t, inv, []string{doc("z", "Deny", "role: dev"), doc("a", "Allow", "app: client")},
			"x/both > x/web 80/TCP: default; Drop x/z r", "x/client > x/web 80/TCP: default; Allow x/a r", "x/dev > x/web 80/TCP: default; Drop x/z r")
	})
	t.Run("node", func(t *testing.T) { // S2-97, S2-96
		inv := world(t, "x", "x/a app=antrea-test-app", "x/far @n2")
		inv.Nodes[0].Labels = map[string]string{"node-role.kubernetes.io/control-plane": ""}
		run(t, inv, []string{acnp("egress-control-plane", "''", 1, `
  appliedTo: [{podSelector: {matchLabels: {app: antrea-test-app}}}]
  egress: [{name: r, action: Drop, to: [{nodeSelector: {matchLabels: {node-role.kubernetes.io/control-plane: ""}}}], ports: [{protocol: TCP, port: 6443}]}]
`), acnp("all", "''", 2, in("Drop"))},
			"x/a > 172.16.0.1 6443/TCP: Drop /egress-control-plane r; not-local", "x/a > 172.16.0.1 80/TCP: default; not-local",
			"x/a > 172.16.0.2 6443/TCP: default; not-local", "172.16.0.1 > x/a 80/TCP: not-local; node-local", "172.16.0.1 > x/far 80/TCP: not-local; Drop /all Drop")
	})
}

// TestAntreaGeneratedName: the digest is of the rule as the API
// server would hold it.
func TestAntreaGeneratedName(t *testing.T) {
	inv := world(t, "x", "x/a", "x/b")
	s, err := New(objects(t, acnp("p", "platform", 1, all+"  ingress: [{action: Allow}]\n")), inv, "")
	if err != nil {
		t.Fatal(err)
	}
	check(t, s, inv, "x/a > x/b 80/TCP: default; Allow /p ingress-allow-"+sevenDigits(`{"action":"Allow","enableLogging":false}`)) // S2-40, X-38
}

func sevenDigits(json string) string {
	return fmt.Sprintf("%x", sha1.Sum([]byte(json)))[:7]
}
