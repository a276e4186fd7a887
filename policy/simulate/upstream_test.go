package simulate

import (
	"fmt"
	"testing"
)

// release is an AdminNetworkPolicy of release v0.1.7, or of v0.1.1 where its
// peers have that shape; banp the baseline, cnp a ClusterNetworkPolicy.
func release(name string, priority int, spec string) string {
	return fmt.Sprintf("apiVersion: policy.networking.k8s.io/v1alpha1\nkind: AdminNetworkPolicy\nmetadata: {name: %s}\nspec:\n  priority: %d\n%s", name, priority, spec)
}

func banp(spec string) string {
	return "apiVersion: policy.networking.k8s.io/v1alpha1\nkind: BaselineAdminNetworkPolicy\nmetadata: {name: default}\nspec:\n" + spec
}

func cnp(name, tier string, priority int, spec string) string {
	return fmt.Sprintf("apiVersion: policy.networking.k8s.io/v1alpha2\nkind: ClusterNetworkPolicy\nmetadata: {name: %s}\nspec:\n  tier: %s\n  priority: %d\n%s", name, tier, priority, spec)
}

// in1 and out1 are one rule for every pod.
func in1(action, peer, more string) string {
	return "  subject: {namespaces: {}}\n  ingress: [{action: " + action + ", from: [" + peer + "]" + more + "}]\n"
}

func out1(action, peer, more string) string {
	return "  subject: {namespaces: {}}\n  egress: [{action: " + action + ", to: [" + peer + "]" + more + "}]\n"
}

const anyNamespace = "{namespaces: {}}"

// TestUpstreamOrder: priorities count the other way round than in the KEP, Pass
// leaves one level, and the baseline comes after NetworkPolicy.
func TestUpstreamOrder(t *testing.T) {
	inv := world(t, "x", "x/a", "x/b")
	deny, allow, pass := in1("Deny", anyNamespace, ""), in1("Allow", anyNamespace, ""), in1("Pass", anyNamespace, "")
	accept := in1("Accept", anyNamespace, "")
	npDeny, npAllow := np("x", "np", "  podSelector: {}\n"), np("x", "np", "  podSelector: {}\n  ingress: [{}]\n")
	for _, tt := range []struct {
		name string
		docs []string
		want string // ingress of x/a > x/b 80/TCP
	}{
		{"X-02 smaller is stronger", []string{release("a", 20, deny), release("b", 10, allow)}, "Allow /b ingress[0]"},
		{"X-03 0 is the strongest", []string{release("a", 1, allow), release("b", 0, deny), npAllow}, "Drop /b ingress[0]"},
		{"X-40 equal priority: name", []string{release("b", 10, deny), release("a", 10, allow)}, "Allow /a ingress[0]"},
		{"Allow is final", []string{release("a", 10, allow), npDeny}, "Allow /a ingress[0]"},
		{"Pass to NetworkPolicy", []string{release("a", 10, pass), release("b", 20, allow), npDeny}, "Drop [x/np]"},
		{"Pass to the baseline", []string{release("a", 10, pass), release("b", 20, allow), banp(deny)}, "Drop /default ingress[0]"},
		{"NetworkPolicy before the baseline", []string{banp(deny), npAllow}, "Allow x/np ingress[0]"},
		{"no rescue from isolation", []string{banp(allow), npDeny}, "Drop [x/np]"},
		{"v1alpha2: smaller is stronger", []string{cnp("a", "Admin", 20, deny), cnp("b", "Admin", 10, accept)}, "Allow /b ingress[0]"},
		{"v1alpha2: Admin before NetworkPolicy", []string{cnp("a", "Admin", 1000, deny), npAllow}, "Drop /a ingress[0]"},
		{"v1alpha2: Baseline after NetworkPolicy", []string{cnp("a", "Baseline", 0, deny), npAllow}, "Allow x/np ingress[0]"},
		{"v1alpha2: Admin Pass leaves its tier", []string{cnp("a", "Admin", 1, pass), cnp("b", "Admin", 2, accept), cnp("c", "Baseline", 1, deny)}, "Drop /c ingress[0]"},
		{"X-19 Baseline Pass: default", []string{cnp("a", "Baseline", 1, pass), cnp("b", "Baseline", 2, deny)}, "default"},
		{"the kinds share an order", []string{cnp("b", "Admin", 10, deny), release("a", 10, allow)}, "Allow /a ingress[0]"},
		{"Pass leaves the level for all kinds", []string{cnp("b", "Admin", 10, deny), release("a", 10, pass)}, "default"},
		{"a full tie: the strictest", []string{cnp("a", "Admin", 10, deny), release("a", 10, allow)}, "Drop /a ingress[0]"},
		{"BANP has no priority", []string{cnp("z", "Baseline", 1000, accept), banp(deny)}, "Allow /z ingress[0]"},
		{"BANP is behind priority 0 of the KEP", []string{anp("z", 0, rule1("Allow", anyPod)), banp(deny)}, "Allow /z ingress[0]"},
		{"X-02 KEP p is 1001-p", []string{anp("b", 992, rule1("Deny", anyPod)), cnp("a", "Admin", 10, accept)}, "Drop /b ingress[0]"},
		{"X-02 KEP p is 1001-p, tie", []string{anp("b", 991, rule1("Deny", anyPod)), cnp("a", "Admin", 10, accept)}, "Allow /a ingress[0]"},
	} {
		t.Run(tt.name, func(t *testing.T) { run(t, inv, tt.docs, "x/a > x/b 80/TCP: default; "+tt.want) })
	}
}

// TestUpstreamPeers has one egress rule for every pod and asks who it reaches.
func TestUpstreamPeers(t *testing.T) {
	inv := world(t, "x team=1 env=dev", "same team=1 env=dev", "env team=1 env=prod", "bare", "x/a app=a", "x/b app=b", "same/a app=a", "env/a app=a", "bare/b app=b")
	inv.Nodes[1].Labels = map[string]string{"zone": "b"}
	to := []string{"x/b", "same/a", "env/a", "bare/b", "172.16.0.1", "172.16.0.2", "192.0.2.1"}
	for _, tt := range []struct{ peer, want string }{
		{"{namespaces: {}}", "++++..."},
		{"{namespaces: {matchLabels: {team: '1'}}}", "+++...."},
		{"{pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: b}}}}", "+..+..."},
		{"{nodes: {}}", "....++."},
		{"{nodes: {matchLabels: {zone: b}}}", ".....+."},
		{"{networks: [0.0.0.0/0, '::/0']}", "+++++++"}, // pods and nodes too
		{"{networks: [192.0.2.0/24, '2001:db8::/64']}", "......+"},
		{"{domainNames: [example.com]}", "......."}, // nothing is learnt from DNS here
	} {
		for i, dst := range to {
			want, wantCNP, in := "default", "default", "default"
			if tt.want[i] == '+' {
				want, wantCNP = "Allow /p egress[0]", "Allow /q egress[0]"
			}
			if i >= 4 {
				in = "not-local"
			}
			run(t, inv, []string{release("p", 1, out1("Allow", tt.peer, ""))}, fmt.Sprintf("x/a > %s 80/TCP: %s; %s", dst, want, in))
			run(t, inv, []string{cnp("q", "Admin", 1, out1("Accept", tt.peer, ""))}, fmt.Sprintf("x/a > %s 80/TCP: %s; %s", dst, wantCNP, in))
		}
	}
	// v1alpha2: without namespaceSelector all namespaces.
	run(t, inv, []string{cnp("q", "Admin", 1, out1("Deny", "{pods: {podSelector: {matchLabels: {app: b}}}}", ""))},
		"x/a > bare/b 80/TCP: Drop /q egress[0]; default", "x/a > same/a 80/TCP: default; default")
	// v0.1.1 compares namespaces that both have every key.
	for _, tt := range []struct{ set, want string }{
		{"{sameLabels: [team]}", "+++."},
		{"{sameLabels: [team, env]}", "++.."},
		{"{notSameLabels: [team]}", "...."}, // bare has no team: not the KEP's reading
		{"{notSameLabels: [env]}", "..+."},
		{"{notSameLabels: [team, env]}", "..+."},
		{"{notSameLabels: [env, absent]}", "...."},
		{"{sameLabels: []}", "...."},
		{"{notSameLabels: []}", "...."},
		{"{namespaceSelector: {}}", "++++"},
	} {
		for i, dst := range to[:4] {
			want := "default"
			if tt.want[i] == '+' {
				want = "Drop /p egress[0]"
			}
			run(t, inv, []string{release("p", 1, out1("Deny", "{namespaces: "+tt.set+"}", ""))}, fmt.Sprintf("x/a > %s 80/TCP: %s; default", dst, want))
		}
	}
	run(t, inv, []string{release("p", 1, out1("Deny", "{pods: {namespaces: {sameLabels: [team]}, podSelector: {matchLabels: {app: b}}}}", ""))},
		"x/a > x/b 80/TCP: Drop /p egress[0]; default", "x/a > same/a 80/TCP: default; default")
}

// TestUpstreamL4: the ports of a release, the protocols of v1alpha2.
func TestUpstreamL4(t *testing.T) {
	inv := world(t, "x", "x/a", "x/b http=80/TCP dns=53/UDP")
	for _, tt := range []struct {
		ports, protocols, conn string
		match                  bool
	}{
		{"", "", "8/ICMP", true},
		{"{portNumber: {port: 80}}", "{tcp: {destinationPort: {number: 80}}}", "80/TCP", true},
		{"{portNumber: {port: 80}}", "{tcp: {destinationPort: {number: 80}}}", "81/TCP", false},
		{"{portNumber: {port: 80, protocol: UDP}}", "{udp: {destinationPort: {number: 80}}}", "80/UDP", true},
		{"{portNumber: {port: 80, protocol: SCTP}}", "{sctp: {destinationPort: {number: 80}}}", "80/TCP", false},
		{"{portRange: {start: 80, end: 90}}", "{tcp: {destinationPort: {range: {start: 80, end: 90}}}}", "90/TCP", true},
		{"{portRange: {start: 80, end: 90}}", "{tcp: {destinationPort: {range: {start: 80, end: 90}}}}", "91/TCP", false},
		{"{namedPort: http}", "{destinationNamedPort: http}", "80/TCP", true},
		{"{namedPort: http}", "{destinationNamedPort: http}", "80/UDP", false},
		{"{namedPort: dns}", "{destinationNamedPort: dns}", "53/UDP", true}, // a name has its own protocol
		{"{namedPort: dns}", "{destinationNamedPort: dns}", "53/TCP", false},
	} {
		want, wantCNP := "default", "default"
		if tt.match {
			want, wantCNP = "Drop /p ingress[0]", "Drop /q ingress[0]"
		}
		ports, protocols := "", ""
		if tt.ports != "" {
			ports, protocols = ", ports: ["+tt.ports+"]", ", protocols: ["+tt.protocols+"]"
		}
		run(t, inv, []string{release("p", 1, in1("Deny", anyNamespace, ports))}, "x/a > x/b "+tt.conn+": default; "+want)
		run(t, inv, []string{cnp("q", "Admin", 1, in1("Deny", anyNamespace, protocols))}, "x/a > x/b "+tt.conn+": default; "+wantCNP)
	}
}
