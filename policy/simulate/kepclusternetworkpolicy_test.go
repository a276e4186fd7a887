package simulate

import (
	"strings"
	"testing"
)

// kepCNP and kepCDNP are the two kinds of the KEP of 2021.
func kepCNP(name, spec string) string {
	return "apiVersion: netpol.networking.k8s.io/v1alpha1\nkind: ClusterNetworkPolicy\nmetadata: {name: " + name + "}\nspec:\n" + spec
}

func kepCDNP(name, spec string) string {
	return "apiVersion: netpol.networking.k8s.io/v1alpha1\nkind: ClusterDefaultNetworkPolicy\nmetadata: {name: " + name + "}\nspec:\n" + spec
}

const toAll = "  appliedTo: {namespaceSelector: {}}\n"

func fromNS(names ...string) string {
	return "{namespaceSelector: {matchExpressions: [{key: kubernetes.io/metadata.name, operator: In, values: [" + strings.Join(names, ", ") + "]}]}}"
}

// TestScenario is the document's worked example of five policies on x/server.
func TestScenario(t *testing.T) {
	inv := world(t, "a", "b", "c", "d", "x", "x/server", "x/mate", "a/client", "b/client", "c/client", "d/client")
	to := "  appliedTo: {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: x}}, podSelector: {}}\n"
	docs := []string{
		kepCNP("p1", to+"  ingress: [{action: Empower, from: ["+fromNS("a")+"]}]\n"),
		kepCNP("p2", to+"  ingress: [{action: Deny, from: ["+fromNS("a", "b")+"]}]\n"),
		kepCNP("p3", to+"  ingress: [{action: Allow, from: ["+fromNS("b", "c")+"]}]\n"),
		np("x", "p4", "  podSelector: {}\n  ingress: [{from: [{podSelector: {}}, "+fromNS("a")+"]}]\n"),
		kepCDNP("p5", to+"  ingress: [{from: ["+fromNS("d")+"]}]\n"),
	}
	lines := []string{
		"a/client > x/server 80/TCP: default; Allow x/p4 ingress[0]", // S1-19
		"b/client > x/server 80/TCP: default; Drop /p2 ingress[0]",   // S1-20
		"c/client > x/server 80/TCP: default; Allow /p3 ingress[0]",  // S1-21
		"d/client > x/server 80/TCP: default; Drop [x/p4]",           // S1-22
		"x/server > d/client 80/TCP: default; default",               // S1-16, X-28
	}
	run(t, inv, docs, lines...)
	// S1-06: no order among objects.
	run(t, inv, []string{docs[4], docs[3], docs[2], docs[1], docs[0]}, lines...)
	// Without the NetworkPolicy the default policy is heard (S1-13, S1-14).
	run(t, inv, append(docs[:3:3], docs[4]),
		"d/client > x/server 80/TCP: default; Allow /p5 ingress[0]", "x/mate > x/server 80/TCP: default; Drop [/p5]")
}

// TestClusterPrecedence follows the diagram box by box.
func TestClusterPrecedence(t *testing.T) {
	inv := world(t, "x", "x/a", "x/b")
	rule := func(action string) string { return toAll + "  ingress: [{action: " + action + "}]\n" }
	empower, deny, allow := kepCNP("e", rule("Empower")), kepCNP("d", rule("Deny")), kepCNP("a", rule("Allow"))
	npDeny := np("x", "np", "  podSelector: {}\n")
	drops, allows := kepCDNP("drops", toAll+"  ingress:\n"), kepCDNP("allows", toAll+"  ingress: [{}]\n")
	for _, tt := range []struct {
		name string
		docs []string
		want string
	}{
		{"S1-09 Deny is final", []string{deny, allow}, "Drop /d ingress[0]"},
		{"S1-07 Empower skips Deny only", []string{empower, deny, allow}, "Allow /a ingress[0]"},
		{"S1-08 Empower is no permit", []string{empower, deny, npDeny}, "Drop [x/np]"},
		{"S1-08 nor before a default policy", []string{empower, deny, drops}, "Drop [/drops]"},
		{"S1-15 otherwise accept", []string{empower, deny}, "default"},
		{"S1-10 Allow beats isolation", []string{allow, npDeny}, "Allow /a ingress[0]"},
		{"S1-05 over all policies, whatever the name", []string{deny, kepCNP("z", rule("Empower"))}, "default"},
		{"S1-17 defaults add up", []string{drops, allows}, "Allow /allows ingress[0]"},
		{"S1-14 isolation names them all", []string{drops, kepCDNP("more", toAll+"  ingress: []\n")}, "Drop [/drops /more]"},
		{"S1-18 NetworkPolicy supersedes", []string{allows, npDeny}, "Drop [x/np]"},
		{"X-28 in its direction", []string{drops, np("x", "np", "  podSelector: {}\n  policyTypes: [Egress]\n  egress: [{}]\n")}, "Drop [/drops]"},
		{"X-29 null isolates", []string{kepCDNP("p", toAll+"  ingress: null\n")}, "Drop [/p]"},
		{"X-29 absent does not", []string{kepCDNP("p", toAll+"  egress: null\n")}, "default"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, err := New(objects(t, tt.docs...), inv, "")
			if err != nil {
				t.Fatal(err)
			}
			k := connectionBetween(inv, "x/a", "x/b")
			if res := s.Evaluate(k); text(&res.Ingress) != tt.want {
				t.Errorf("%s, want %s", text(&res.Ingress), tt.want)
			}
		})
	}
	// Rules are about pods (S1-36); who is isolated is isolated from everybody.
	run(t, inv, []string{deny}, "192.0.2.1 > x/a 80/TCP: not-local; default", "172.16.0.2 > x/a 80/TCP: not-local; default")
	run(t, inv, []string{allows}, "192.0.2.1 > x/a 80/TCP: not-local; Drop [/allows]")
}

// TestClusterSamples are the sample specs, corrected.
func TestClusterSamples(t *testing.T) {
	t.Run("Self", func(t *testing.T) { // S1-43; X-09: the scope is written self
		inv := world(t, "x", "y", "x/a1 app=a", "x/b1 app=b", "y/a2 app=a", "y/b2 app=b")
		run(t, inv, []string{kepCDNP("self", toAll+"  ingress: [{from: [{namespaces: {scope: self}, podSelector: {matchLabels: {app: b}}}]}]\n")},
			"x/b1 > x/a1 80/TCP: default; Allow /self ingress[0]", "y/b2 > y/a2 80/TCP: default; Allow /self ingress[0]",
			"y/b2 > x/a1 80/TCP: default; Drop [/self]", "x/b1 > y/a2 80/TCP: default; Drop [/self]")
	})
	t.Run("SameLabels", func(t *testing.T) { // S1-44
		inv := world(t, "t1-ns1 tenant=t1", "t1-ns2 tenant=t1", "t2-ns1 tenant=t2", "free", "t1-ns1/a", "t1-ns2/a", "t2-ns1/a", "free/a")
		run(t, inv, []string{kepCDNP("tenants", "  appliedTo: {namespaceSelector: {matchExpressions: [{key: tenant, operator: Exists}]}}\n"+
			"  ingress: [{from: [{namespaces: {scope: samelabels, labels: [tenant]}}]}]\n")},
			"t1-ns1/a > t1-ns2/a 80/TCP: default; Allow /tenants ingress[0]", "t1-ns1/a > t2-ns1/a 80/TCP: default; Drop [/tenants]",
			"free/a > t2-ns1/a 80/TCP: default; Drop [/tenants]", "t1-ns1/a > free/a 80/TCP: default; default")
	})
	const tenants = "  appliedTo: {namespaceSelector: {matchLabels: {type: tenant}}}\n"
	t.Run("ingress-egress-gateway", func(t *testing.T) { // S1-45
		inv := world(t, "kube-system", "dmz", "egress-gw", "t type=tenant", "u type=tenant", "kube-system/k", "dmz/d", "egress-gw/e", "t/a", "t/b", "u/a")
		run(t, inv, []string{kepCNP("ingress-egress-gateway", tenants+"  ingress:\n"+
			"  - {action: Empower, from: ["+fromNS("kube-system", "dmz")+", {namespaces: {scope: Self}}]}\n"+
			"  - {action: Deny, from: [{namespaceSelector: {}}]}\n  egress:\n"+
			"  - {action: Empower, to: ["+fromNS("kube-system", "egress-gw")+", {namespaces: {scope: Self}}]}\n"+
			"  - {action: Deny, to: [{namespaceSelector: {}}]}\n")},
			"dmz/d > t/a 80/TCP: default; default", "t/a > t/b 80/TCP: default; default", "t/a > kube-system/k 53/UDP: default; default",
			"t/a > egress-gw/e 80/TCP: default; default", "egress-gw/e > t/a 80/TCP: default; Drop /ingress-egress-gateway ingress[1]",
			"t/a > dmz/d 80/TCP: Drop /ingress-egress-gateway egress[1]; default",
			"t/a > u/a 80/TCP: Drop /ingress-egress-gateway egress[1]; Drop /ingress-egress-gateway ingress[1]")
	})
	t.Run("namespace-isolation", func(t *testing.T) { // S1-46
		inv := world(t, "kube-system app=system", "t type=tenant", "u type=tenant", "kube-system/k", "t/a", "t/b", "u/a")
		run(t, inv, []string{kepCNP("namespace-isolation", tenants+"  ingress:\n"+
			"  - {action: Empower, from: [{namespaces: {scope: Self}}]}\n"+
			"  - {action: Empower, from: [{namespaces: {scope: Selector, selector: {matchLabels: {app: system}}}}]}\n"+
			"  - {action: Deny, from: [{namespaceSelector: {}}]}\n")},
			"t/a > t/b 80/TCP: default; default", "kube-system/k > t/a 80/TCP: default; default",
			"u/a > t/a 80/TCP: default; Drop /namespace-isolation ingress[2]", "t/a > kube-system/k 80/TCP: default; default")
	})
	t.Run("zero trust", func(t *testing.T) { // S1-47
		inv := world(t, "t type=tenant", "x", "t/a app=a", "t/b", "x/a")
		docs := []string{kepCDNP("zero", tenants+"  ingress:\n  egress:\n")}
		run(t, inv, docs, "t/a > t/b 80/TCP: Drop [/zero]; Drop [/zero]", "x/a > t/a 80/TCP: default; Drop [/zero]", "x/a > x/a 80/TCP: self; self")
		run(t, inv, append(docs, np("t", "open", "  podSelector: {matchLabels: {app: a}}\n  ingress: [{}]\n")),
			"x/a > t/a 80/TCP: default; Allow t/open ingress[0]", "t/a > t/b 80/TCP: Drop [/zero]; Drop [/zero]")
	})
}

// TestClusterL4: ports are those of NetworkPolicy.
func TestClusterL4(t *testing.T) {
	inv := world(t, "x", "x/a", "x/b http=80/TCP")
	for _, tt := range []struct {
		ports, conn string
		match       bool
	}{
		{"[]", "8/ICMP", true},           // S1-25
		{"[{port: 80}]", "80/TCP", true}, // S1-25
		{"[{port: 80}]", "80/UDP", false},
		{"[{protocol: UDP}]", "9/UDP", true},                      // S1-25
		{"[{port: http}]", "80/TCP", true},                        // S1-25
		{"[{port: 80, endPort: 82}, {port: 90}]", "82/TCP", true}, // S1-25
		{"[{port: 80, endPort: 82}, {port: 90}]", "90/TCP", true}, // S1-25
		{"[{port: 80, endPort: 82}, {port: 90}]", "83/TCP", false},
	} {
		want := "default"
		if tt.match {
			want = "Drop /p ingress[0]"
		}
		run(t, inv, []string{kepCNP("p", toAll+"  ingress: [{action: Deny, ports: "+tt.ports+"}]\n")}, "x/a > x/b "+tt.conn+": default; "+want)
	}
}
