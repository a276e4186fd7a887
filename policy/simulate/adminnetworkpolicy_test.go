package simulate

import (
	"fmt"
	"testing"
)

const everyone = "  subject: {namespaceSelector: {}}\n"

// rule1 is one ingress rule for every pod.
func rule1(action, peer string) string {
	return everyone + "  ingress: [{action: " + action + ", l4Selector: {allPorts: true}, from: [" + peer + "]}]\n"
}

const anyPod = "{namespaces: {namespaceSelector: {}}}"

// TestSamples runs the sample specs of the KEP, corrected where they are not
// valid.
func TestSamples(t *testing.T) {
	t.Run("story 1", func(t *testing.T) { // S0-75
		inv := world(t, "sensitive-ns", "x", "sensitive-ns/a", "sensitive-ns/b", "x/a")
		run(t, inv, []string{anp("cluster-wide-deny-example", 10, `
  subject: {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: sensitive-ns}}}
  ingress: [{action: Deny, from: [{namespaces: {namespaceSelector: {}}}], l4Selector: {allPorts: true}}]
`)},
			"x/a > sensitive-ns/a 80/TCP: default; Drop /cluster-wide-deny-example ingress[0]",
			"sensitive-ns/b > sensitive-ns/a 8/ICMP: default; Drop /cluster-wide-deny-example ingress[0]",
			"sensitive-ns/a > x/a 80/TCP: default; default",
			"192.0.2.1 > sensitive-ns/a 80/TCP: not-local; default") // S0-50
	})
	t.Run("story 2", func(t *testing.T) { // S0-76, X-08
		inv := world(t, "monitoring-ns", "kube-system", "x", "monitoring-ns/m", "kube-system/dns app=kube-dns", "kube-system/other", "x/a")
		run(t, inv, []string{
			anp("cluster-wide-allow-example", 30, everyone+`
  ingress:
  - {action: Allow, from: [{namespaces: {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: monitoring-ns}}}}], l4Selector: {allPorts: true}}
  egress:
  - action: Allow
    to:
    - namespacedPods:
        namespaces: {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: kube-system}}}
        pods: {podSelector: {matchLabels: {app: kube-dns}}}
    l4Selector: {allPorts: true}
`),
			np("x", "deny", "  podSelector: {}\n  policyTypes: [Ingress, Egress]\n"),
		},
			"monitoring-ns/m > x/a 9100/TCP: default; Allow /cluster-wide-allow-example ingress[0]",
			"x/a > kube-system/dns 53/UDP: Allow /cluster-wide-allow-example egress[0]; default",
			"x/a > kube-system/other 53/UDP: Drop [x/deny]; default",
			"kube-system/dns > x/a 80/TCP: default; Drop [x/deny]")
	})
	t.Run("story 3", func(t *testing.T) { // S0-77
		inv := world(t, "bar-ns-1", "x", "bar-ns-1/pub app=svc-pub", "x/a")
		pass := anp("pub-svc-delegate-example", 20, everyone+`
  egress:
  - action: Pass
    to: [{namespacedPods: {namespaces: {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: bar-ns-1}}}, pods: {podSelector: {matchLabels: {app: svc-pub}}}}}]
    l4Selector: {ports: [{protocol: TCP, port: 8080}]}
`)
		weaker := anp("weaker", 19, everyone+"  egress: [{action: Deny, l4Selector: {allPorts: true}, to: ["+anyPod+"]}]\n")
		run(t, inv, []string{pass}, "x/a > bar-ns-1/pub 8080/TCP: default; default")
		run(t, inv, []string{pass, weaker},
			"x/a > bar-ns-1/pub 8080/TCP: default; default",
			"x/a > bar-ns-1/pub 8081/TCP: Drop /weaker egress[0]; default")
		run(t, inv, []string{pass, np("x", "deny", "  podSelector: {}\n  policyTypes: [Egress]\n")},
			"x/a > bar-ns-1/pub 8080/TCP: Drop [x/deny]; default")
	})
	t.Run("story 4", func(t *testing.T) { // S0-78, S0-79, S0-80, X-16, X-22
		inv := world(t, "a1 tenant=a", "a2 tenant=a", "b1 tenant=b", "free", "a1/p", "a2/p", "b1/p", "free/p")
		const tenants = "  subject: {namespaceSelector: {matchExpressions: [{key: tenant, operator: Exists}]}}\n"
		form1 := anp("tenant-creation-example", 50, tenants+"  ingress: [{action: Deny, from: [{namespaces: {notSameLabels: [tenant]}}], l4Selector: {allPorts: true}}]\n")
		form2 := anp("tenant-creation-example", 50, tenants+"  ingress:\n"+
			"  - {action: Pass, from: [{namespaces: {sameLabels: [tenant]}}], l4Selector: {allPorts: true}}\n"+
			"  - {name: others, action: Deny, from: ["+anyPod+"], l4Selector: {allPorts: true}}\n")
		intra := anp("intra", 10, rule1("Deny", "{namespaces: {sameLabels: [tenant]}}"))
		above := anp("above", 60, rule1("Deny", "{namespaces: {sameLabels: [tenant]}}"))
		run(t, inv, []string{form1},
			"a2/p > a1/p 80/TCP: default; default",
			"b1/p > a1/p 80/TCP: default; Drop /tenant-creation-example ingress[0]",
			"free/p > a1/p 80/TCP: default; Drop /tenant-creation-example ingress[0]", // lacks the key: different
			"a1/p > free/p 80/TCP: default; default")
		run(t, inv, []string{form1, intra}, "a2/p > a1/p 80/TCP: default; Drop /intra ingress[0]")
		run(t, inv, []string{form2, intra},
			"a2/p > a1/p 80/TCP: default; default",
			"b1/p > a1/p 80/TCP: default; Drop /tenant-creation-example others")
		run(t, inv, []string{form2, above}, "a2/p > a1/p 80/TCP: default; Drop /above ingress[0]")
	})
	t.Run("story 5", func(t *testing.T) { // S0-81, S0-07, S0-08
		inv := world(t, "x", "y", "x/a app=a", "x/b", "y/a")
		base := anp("baseline-rule-example", 0, rule1("Deny", anyPod))
		open := np("x", "open", "  podSelector: {matchLabels: {app: a}}\n  ingress: [{from: [{podSelector: {}}]}]\n")
		run(t, inv, []string{base, open},
			"y/a > x/b 80/TCP: default; Drop /baseline-rule-example ingress[0]",
			"x/b > x/a 80/TCP: default; Allow x/open ingress[0]",
			"y/a > x/a 80/TCP: default; Drop [x/open]",
			"172.16.0.1 > x/b 80/TCP: not-local; node-local",
			"192.0.2.1 > x/b 80/TCP: not-local; default")
	})
	t.Run("self", func(t *testing.T) { // S0-73, X-17
		inv := world(t, "x", "y", "x/a app=a", "x/b app=b", "y/a app=a", "y/b app=b")
		run(t, inv, []string{anp("self", 100, `
  subject: {namespaceAndPodSelector: {namespaceSelector: {}, podSelector: {matchLabels: {app: a}}}}
  ingress: [{action: Allow, from: [{namespacedPods: {namespaces: {self: true}, pods: {podSelector: {matchLabels: {app: b}}}}}], l4Selector: {allPorts: true}}]
`)},
			"x/b > x/a 80/TCP: default; Allow /self ingress[0]",
			"y/b > y/a 80/TCP: default; Allow /self ingress[0]",
			"y/b > x/a 80/TCP: default; default",
			"x/b > y/a 80/TCP: default; default",
			"x/a > x/b 80/TCP: default; default") // b is no subject
	})
}

// TestAdminOrder: priorities, names, rule indexes and actions.
func TestAdminOrder(t *testing.T) {
	inv := world(t, "x", "x/a", "x/b")
	deny, allow, pass := rule1("Deny", anyPod), rule1("Allow", anyPod), rule1("Pass", anyPod)
	npDeny, npAllow := np("x", "np", "  podSelector: {}\n"), np("x", "np", "  podSelector: {}\n  ingress: [{}]\n")
	two := everyone + "  ingress:\n  - {action: Allow, l4Selector: {ports: [{port: 80}]}, from: [" + anyPod + "]}\n" +
		"  - {action: Deny, l4Selector: {allPorts: true}, from: [" + anyPod + "]}\n"
	for _, tt := range []struct {
		name string
		docs []string
		want string // ingress of x/a > x/b 80/TCP
	}{
		{"S0-14 larger is stronger", []string{anp("a", 10, deny), anp("b", 20, allow)}, "Allow /b ingress[0]"},
		{"S0-16 no ceiling", []string{anp("a", 1000, deny), anp("b", 2000000000, allow)}, "Allow /b ingress[0]"},
		{"X-40 equal priority: name", []string{anp("b", 10, deny), anp("a", 10, allow)}, "Allow /a ingress[0]"},
		{"S0-19 top to bottom", []string{anp("a", 10, two)}, "Allow /a ingress[0]"},
		{"S0-04 Deny is final", []string{anp("a", 10, deny), npAllow}, "Drop /a ingress[0]"},
		{"S0-05 Allow is final", []string{anp("a", 10, allow), npDeny}, "Allow /a ingress[0]"},
		{"S0-09 Pass hides Deny", []string{anp("a", 20, pass), anp("b", 10, deny)}, "default"},
		{"S0-10 Pass hides Allow", []string{anp("a", 20, pass), anp("b", 10, allow), npDeny}, "Drop [x/np]"},
		{"S0-07 Pass, then priority 0", []string{anp("a", 20, pass), anp("b", 0, deny)}, "Drop /b ingress[0]"},
		{"S0-08 no rescue from isolation", []string{anp("a", 20, pass), anp("b", 0, allow), npDeny}, "Drop [x/np]"},
		{"S0-18 priority 0 after NetworkPolicy", []string{anp("a", 0, deny), npAllow}, "Allow x/np ingress[0]"},
		{"S0-17 priority 1 before NetworkPolicy", []string{anp("a", 1, deny), npAllow}, "Drop /a ingress[0]"},
		{"X-19 Pass at priority 0", []string{anp("a", 0, pass), anp("b", 0, deny)}, "default"},
		{"S0-02 no isolation", []string{anp("a", 10, rule1("Allow", "{namespaces: {notSelf: true}}"))}, "default"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			run(t, inv, tt.docs, "x/a > x/b 80/TCP: default; "+tt.want)
		})
	}
	run(t, inv, []string{anp("a", 10, two)}, "x/a > x/b 81/TCP: default; Drop /a ingress[1]")
}

// TestAdminPeers: the namespace and pod sets, seen from x/a.
func TestAdminPeers(t *testing.T) {
	inv := world(t, "x team=1 env=dev", "same team=1 env=dev", "env team=1 env=prod", "bare", "far team=2",
		"x/a app=a tier=1", "x/b app=b tier=1", "same/a app=a tier=1", "env/a app=a tier=2", "bare/a", "far/h hostnet @n2")
	from := []string{"x/b", "same/a", "env/a", "bare/a"}
	pods := func(set string) string {
		return "{namespacedPods: {namespaces: {namespaceSelector: {}}, pods: " + set + "}}"
	}
	for _, tt := range []struct {
		peer, want string // which of from match, one mark each
	}{
		{"{}", "...."},                                 // S0-33
		{"{namespaces: {}}", "...."},                   // S0-35
		{"{namespaces: {self: true}}", "+..."},         // S0-37
		{"{namespaces: {notSelf: true}}", ".+++"},      // S0-39
		{anyPod, "++++"},                               // S0-40
		{"{namespaces: {sameLabels: [team]}}", "+++."}, // S0-41
		{"{namespaces: {sameLabels: [team, env]}}", "++.."},
		{"{namespaces: {sameLabels: []}}", "...."},               // S0-42
		{"{namespaces: {sameLabels: [absent]}}", "...."},         //
		{"{namespaces: {notSameLabels: [team]}}", "...+"},        // S0-43, X-22
		{"{namespaces: {notSameLabels: [env]}}", "..++"},         // a peer without the key differs
		{"{namespaces: {notSameLabels: [team, env]}}", "..++"},   // one key is enough
		{"{namespaces: {notSameLabels: [env, absent]}}", "...."}, // the subject lacks one: no-op
		{"{namespaces: {notSameLabels: []}}", "...."},            // S0-44
		{pods("{}"), "...."},                                     // S0-46
		{pods("{podSelector: {}}"), "++++"},                      // S0-47
		{pods("{podSelector: {matchLabels: {app: a}}}"), ".++."},
		{pods("{sameLabels: [tier]}"), "++.."},         // S0-48
		{pods("{sameLabels: []}"), "...."},             //
		{pods("{notSameLabels: [tier, app]}"), "+.++"}, // S0-49
		{pods("{notSameLabels: []}"), "...."},
		{"{namespacedPods: {namespaces: {self: true}, pods: {podSelector: {matchLabels: {app: a}}}}}", "...."},
		{"{namespacedPods: {namespaces: {self: true}}}", "...."}, // S0-45
	} {
		t.Run(tt.peer, func(t *testing.T) {
			docs := []string{anp("p", 10, rule1("Deny", tt.peer))}
			for i, f := range from {
				want := "default"
				if tt.want[i] == '+' {
					want = "Drop /p ingress[0]"
				}
				run(t, inv, docs, fmt.Sprintf("%s > x/a 80/TCP: %s; %s", f, "default", want))
			}
			// Never anything but pods (S0-50).
			run(t, inv, docs, "192.0.2.1 > x/a 80/TCP: not-local; default", "172.16.0.2 > x/a 80/TCP: not-local; default",
				"far/h > x/a 80/TCP: not-local; default")
		})
	}
	run(t, inv, []string{anp("p", 10, everyone+"  ingress: [{action: Deny, l4Selector: {allPorts: true}, from: []}]\n")},
		"x/b > x/a 80/TCP: default; default") // S0-31
}

// TestAdminL4: ports, both directions.
func TestAdminL4(t *testing.T) {
	inv := world(t, "x", "x/a", "x/b http=80/TCP", "x/c http=8080/TCP")
	for _, tt := range []struct {
		l4, conn string
		match    bool
	}{
		{"{allPorts: true}", "x/a > x/b 80/TCP", true},
		{"{allPorts: true}", "x/a > x/b 8/ICMP", true},                   // S0-55
		{"{ports: [{port: 80}]}", "x/a > x/b 80/TCP", true},              // S0-57
		{"{ports: [{port: 80}]}", "x/a > x/b 80/UDP", false},             // S0-61
		{"{ports: [{port: 80}, {port: 90}]}", "x/a > x/b 90/TCP", true},  // S0-56
		{"{ports: [{port: 80, endPort: 90}]}", "x/a > x/b 90/TCP", true}, // S0-60
		{"{ports: [{port: 80, endPort: 90}]}", "x/a > x/b 91/TCP", false},
		{"{ports: [{port: http}]}", "x/a > x/b 80/TCP", true}, // S0-58
		{"{ports: [{port: http}]}", "x/a > x/c 80/TCP", false},
		{"{ports: [{port: http}]}", "x/a > x/c 8080/TCP", true},
		{"{ports: [{port: http, protocol: UDP}]}", "x/a > x/b 80/UDP", false},
		{"{ports: [{protocol: SCTP, port: 1, endPort: 65535}]}", "x/a > x/b 7/SCTP", true},
	} {
		in, eg := "default", "default"
		if tt.match {
			in, eg = "Drop /p ingress[0]", "Drop /p egress[0]"
		}
		run(t, inv, []string{anp("p", 10, everyone+"  ingress: [{action: Deny, l4Selector: "+tt.l4+", from: ["+anyPod+"]}]\n")}, tt.conn+": default; "+in)
		run(t, inv, []string{anp("p", 10, everyone+"  egress: [{action: Deny, l4Selector: "+tt.l4+", to: ["+anyPod+"]}]\n")}, tt.conn+": "+eg+"; default") // S0-84
	}
}
