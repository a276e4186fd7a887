package lint_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/tierwall/tierwall/policy/diag"
	"github.com/tierwall/tierwall/policy/internal/fixture"
	"github.com/tierwall/tierwall/policy/lint"
	"github.com/tierwall/tierwall/policy/lower"
)

// warnings checks policies of any API over the world and returns the findings,
// one a line, without the one about namespace y.
func warnings(t *testing.T, world, yaml string) string {
	t.Helper()
	w := fixture.MustWorld(t, world)
	objs := fixture.MustObjects(t, yaml)
	set, found := lower.Build(objs, w.Inventory)
	if err := found.Err(); err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, d := range lint.Check(objs, &set, w.Inventory).Warnings {
		if d.Object.String() != "Namespace y" {
			lines = append(lines, d.Object.String()+": "+d.Path+": "+d.Message)
		}
	}
	return strings.Join(lines, "\n")
}

// each checks rows of policies against a part of the one finding they give; "" is
// no finding.
func each(t *testing.T, world string, rows [][3]string) {
	t.Helper()
	for _, row := range rows {
		got := warnings(t, world, row[1])
		if row[2] == "" && got != "" || !strings.Contains(got, row[2]) || strings.Contains(got, "\n") {
			t.Errorf("%s: got %q, want %q", row[0], got, row[2])
		}
	}
}

func acnp(name, spec string) string {
	return "apiVersion: crd.antrea.io/v1beta1\nkind: ClusterNetworkPolicy\nmetadata: {name: " + name + "}\nspec: " + spec + "\n---\n"
}

func cnp(name, spec string) string {
	return "apiVersion: policy.networking.k8s.io/v1alpha2\nkind: ClusterNetworkPolicy\nmetadata: {name: " + name + "}\nspec: " + spec + "\n---\n"
}

func ciliumPolicy(name, spec string) string {
	return "apiVersion: cilium.io/v2\nkind: CiliumNetworkPolicy\nmetadata: {name: " + name + ", namespace: x}\nspec: " + spec + "\n---\n"
}

const (
	fromA = "from: [{podSelector: {matchLabels: {app: a}}}]"
	all   = "appliedTo: [{namespaceSelector: {}}]"
	toX   = "appliedTo: [{namespaceSelector: {matchLabels: {env: prod}}}]"
)

// TestShadowed: one row for each way a rule can be in vain, and beside it the nearest
// one in which it is not.
func TestShadowed(t *testing.T) {
	strong := acnp("s", "{priority: 1, "+all+", ingress: [{name: s, action: Drop, "+fromA+"}]}")
	weak := func(rest string) string { return acnp("w", "{priority: 2, "+rest+"}") }
	const hit = "ClusterNetworkPolicy w (crd.antrea.io): spec.ingress[0]: never decides: s of ClusterNetworkPolicy s (Drop)"
	each(t, world, [][3]string{
		{"the same", strong + weak(all+", ingress: [{name: w, action: Allow, "+fromA+"}]"), hit},
		{"narrower subject", strong + weak(toX+", ingress: [{name: w, action: Allow, "+fromA+"}]"), hit},
		{"narrower peer", strong + weak(toX+", ingress: [{name: w, action: Allow, from: [{podSelector: {matchLabels: {app: a}, matchExpressions: [{key: web, operator: DoesNotExist}]}}]}]"), hit},
		{"narrower port", strong + weak(all+", ingress: [{name: w, action: Allow, "+fromA+", ports: [{port: 80, protocol: TCP}]}]"), hit},
		{"wider subject", acnp("s", "{priority: 1, "+toX+", ingress: [{name: s, action: Drop, "+fromA+"}]}") + weak(all+", ingress: [{name: w, action: Allow, "+fromA+"}]"), ""},
		{"wider peer", strong + weak(all+", ingress: [{name: w, action: Allow}]"), ""},
		{"another peer", strong + weak(all+", ingress: [{name: w, action: Allow, from: [{podSelector: {matchLabels: {app: b}}}]}]"), ""},
		{"one more peer", strong + weak(all+", ingress: [{name: w, action: Allow, from: [{podSelector: {matchLabels: {app: a}}}, {podSelector: {matchLabels: {app: b}}}]}]"), ""},
		{"another direction", strong + weak(all+", egress: [{name: w, action: Allow, to: [{podSelector: {matchLabels: {app: a}}}]}]"), ""},
		{"stronger, not weaker", strong + acnp("w", "{priority: 1, tier: emergency, "+all+", ingress: [{name: w, action: Allow, "+fromA+", ports: [{port: 80, protocol: TCP}]}]}"), ""},
		{"only recorded", strings.Replace(strong, "name: s}", "name: s, annotations: {tierwall.io/stage: audit}}", 1) + weak(all+", ingress: [{name: w, action: Allow, "+fromA+"}]"), ""},
		{"a block in a block", acnp("s", "{priority: 1, "+all+", ingress: [{name: s, action: Drop, from: [{ipBlock: {cidr: 192.0.2.0/24}}]}]}") +
			weak(all+", ingress: [{name: w, action: Allow, from: [{ipBlock: {cidr: 192.0.2.128/25}}]}]"), hit},
		{"a block around a block", acnp("s", "{priority: 1, "+all+", ingress: [{name: s, action: Drop, from: [{ipBlock: {cidr: 192.0.2.128/25}}]}]}") +
			weak(all+", ingress: [{name: w, action: Allow, from: [{ipBlock: {cidr: 192.0.2.0/24}}]}]"), ""},
		{"a block in a hole", acnp("s", "{priority: 1, "+all+", ingress: [{name: s, action: Drop, from: [{ipBlock: {cidr: 192.0.2.0/24, except: [192.0.2.128/25]}}]}]}") +
			weak(all+", ingress: [{name: w, action: Allow, from: [{ipBlock: {cidr: 192.0.2.192/26}}]}]"), ""},
		{"the own namespace is not every one", acnp("s", "{priority: 1, "+all+", ingress: [{name: s, action: Drop, from: [{namespaces: {match: Self}}]}]}") +
			weak(all+", ingress: [{name: w, action: Allow, from: [{namespaceSelector: {}}]}]"), ""},
		{"every one is the own namespace, too", acnp("s", "{priority: 1, "+all+", ingress: [{name: s, action: Drop, from: [{namespaceSelector: {}}]}]}") +
			weak(all+", ingress: [{name: w, action: Allow, from: [{namespaces: {match: Self}}]}]"), hit},
		{
			"passed over", acnp("p", "{priority: 1, tier: emergency, "+all+", ingress: [{name: p, action: Pass, "+fromA+"}]}") + strong,
			"ClusterNetworkPolicy s (crd.antrea.io): spec.ingress[0]: never decides: p of ClusterNetworkPolicy p (Pass)",
		},
		{"not passed over", acnp("p", "{priority: 1, tier: emergency, "+all+", ingress: [{name: p, action: Pass, "+fromA+"}]}") +
			acnp("base", "{priority: 1, tier: baseline, "+all+", ingress: [{name: b, action: Drop, "+fromA+"}]}"), ""},
		// The Pass takes x past "s" (all of Antrea's tiers), not past the admin band.
		{"past the stronger one", acnp("p", "{priority: 1, tier: emergency, "+toX+", ingress: [{name: p, action: Pass, from: [{podSelector: {matchLabels: {app: c}}}]}]}") +
			acnp("s", "{priority: 1, tier: securityops, "+all+", ingress: [{name: s, action: Drop, from: [{namespaceSelector: {}}]}]}") +
			cnp("c", "{tier: Admin, priority: 1, subject: {namespaces: {}}, ingress: [{action: Accept, from: [{namespaces: {matchLabels: {env: prod}}}]}]}"), ""},
		{"NetworkPolicies add up", np("a", "{podSelector: {}, ingress: [{}]}") + np("b", "{podSelector: {matchLabels: {app: a}}, ingress: [{}]}"), ""},
		{
			"Cilium deny over allow", ciliumPolicy("p", "{endpointSelector: {}, ingress: [{fromEndpoints: [{matchLabels: {app: a}}]}], ingressDeny: [{fromEndpoints: [{}]}]}"),
			"CiliumNetworkPolicy x/p: spec.ingress[0]: never decides: ingressDeny[0] of CiliumNetworkPolicy x/p (Deny)",
		},
	})
}

// TestOverriddenOutside: addresses outside the cluster, and what programs are told.
func TestOverriddenOutside(t *testing.T) {
	each(t, world, [][3]string{
		{
			"a prefix in a wider one", cnp("wall", "{tier: Admin, priority: 1, subject: {namespaces: {}}, egress: [{action: Deny, to: [{networks: [203.0.113.0/24]}]}]}") +
				np("p", "{podSelector: {}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 0.0.0.0/0, except: [203.0.113.0/25]}}]}]}"),
			"NetworkPolicy x/p: spec.egress[0]: part of what this rule allows is denied by ClusterNetworkPolicy wall (policy.networking.k8s.io) (egress[0]: Deny), for example 80/TCP from x/a to 203.0.113.129",
		},
		{
			"a prefix beside it", cnp("wall", "{tier: Admin, priority: 1, subject: {namespaces: {}}, egress: [{action: Deny, to: [{networks: [203.0.113.0/24]}]}]}") +
				np("p", "{podSelector: {}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 198.51.100.0/24}}, {ipBlock: {cidr: 10.0.0.0/8}}]}]}"), "",
		},
	})
	w := fixture.MustWorld(t, world)
	yaml := acnp("wall", "{priority: 1, "+all+", ingress: [{name: no-ping, action: Drop, protocols: [{icmp: {icmpType: 8, icmpCode: 0}}]}]}") +
		np("p", "{podSelector: {matchLabels: {app: a}}, ingress: [{from: [{podSelector: {}}]}]}")
	set, _ := fixture.MustBuild(t, w, yaml)
	got := lint.Check(fixture.MustObjects(t, yaml), &set, w.Inventory)
	want := diag.Override{By: diag.Ref{Group: "crd.antrea.io", Kind: "ClusterNetworkPolicy", Name: "wall"}, Rule: "no-ping", Action: "Drop", From: "x/b", To: "x/a", Port: "0/ICMP", ICMP: "8/0"}
	if !slices.ContainsFunc(got.Warnings, func(d diag.Diagnostic) bool { return d.Override == want && d.Hint != "" }) {
		t.Errorf("no finding with %+v in %+v", want, got.Warnings)
	}
}

// TestOpened: an Allow that opens what a NetworkPolicy isolates is a note.
func TestOpened(t *testing.T) {
	w := fixture.MustWorld(t, world)
	for _, c := range []struct{ name, np, want string }{
		{"opened", "{podSelector: {}, policyTypes: [Egress]}", "spec.podSelector: some egress that this policy denies is allowed by AdminNetworkPolicy dns (egress[0]: Allow), for example 53/UDP from x/a to kube-system/dns"},
		{"allowed anyway", "{podSelector: {}, policyTypes: [Egress], egress: [{ports: [{port: 53, protocol: UDP}]}]}", ""},
		{"another direction", "{podSelector: {}}", ""},
	} {
		yaml := anp("dns", "{priority: 9, subject: {namespaceSelector: {}}, egress: [{action: Allow, l4Selector: {ports: [{port: 53, protocol: UDP}]}, to: [{"+toAll+"}]}]}") + np("p", c.np)
		set, _ := fixture.MustBuild(t, w, yaml)
		var lines []string
		for _, d := range lint.Check(fixture.MustObjects(t, yaml), &set, w.Inventory).Notes {
			lines = append(lines, d.Path+": "+d.Message)
		}
		if got := strings.Join(lines, "\n"); got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}

func TestNobodyThere(t *testing.T) {
	each(t, world, [][3]string{
		{"no such pods", acnp("p", "{priority: 1, "+all+", ingress: [{action: Drop, from: [{podSelector: {matchLabels: {app: z}}}]}]}"), "spec.ingress[0]: `from` selects no pod there is now"},
		{"some of them", acnp("p", "{priority: 1, "+all+", ingress: [{action: Drop, from: [{podSelector: {matchLabels: {app: z}}}, {podSelector: {matchLabels: {app: a}}}]}]}"), ""},
		{"or an address", acnp("p", "{priority: 1, "+all+", ingress: [{action: Drop, from: [{podSelector: {matchLabels: {app: z}}}, {ipBlock: {cidr: 192.0.2.0/24}}]}]}"), ""},
		{"no such nodes", acnp("p", "{priority: 1, "+all+", egress: [{action: Drop, to: [{nodeSelector: {matchLabels: {zone: a}}}]}]}"), "spec.egress[0]: `to` selects no node there is now"},
		{"nodes", acnp("p", "{priority: 1, "+all+", egress: [{action: Drop, to: [{nodeSelector: {}}]}]}"), ""},
		{"NetworkPolicy", np("p", "{podSelector: {}, ingress: [{from: [{podSelector: {matchLabels: {app: c}}}]}]}"), "spec.ingress[0]: `from` selects no pod there is now"},
	})
}

// Prefixes that pods live in.
func TestNetworks(t *testing.T) {
	const w = "namespace x\nnode n1 192.0.2.1\npod x/a app=a\n"
	deny := func(cidr string) string {
		return cnp("p", "{tier: Admin, priority: 1, subject: {namespaces: {}}, egress: [{action: Deny, to: [{networks: ["+cidr+"]}]}]}")
	}
	each(t, w, [][3]string{
		{"X-24: everything", deny("0.0.0.0/0"), "ClusterNetworkPolicy p (policy.networking.k8s.io): spec.egress[0].to: network 0.0.0.0/0 covers addresses of pods"},
		{"X-24: outside", deny("198.51.100.0/24"), ""},
		{"pods come first", cnp("p", "{tier: Admin, priority: 1, subject: {namespaces: {}}, egress: [{action: Pass, to: [{namespaces: {}}]}, {action: Deny, to: [{networks: [0.0.0.0/0]}]}]}"), ""},
		{"an ipBlock of a NetworkPolicy is another matter", np("p", "{podSelector: {}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 0.0.0.0/0}}]}]}"), ""},
		{
			"some pods come first", cnp("p", "{tier: Admin, priority: 1, subject: {namespaces: {}}, egress: [{action: Pass, to: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: a}}}}]}, {action: Deny, to: [{networks: [0.0.0.0/0]}]}]}"),
			"ClusterNetworkPolicy p (policy.networking.k8s.io): spec.egress[1].to: network 0.0.0.0/0",
		},
	})
}

// A staged rule for pods goes before the staged rule for networks behind it, as it
// will when both are enforced.
func TestStagedNetworksBehindStagedPods(t *testing.T) {
	const w = "namespace x\nnode n1 192.0.2.1\npod x/a app=a\n"
	rules := func(first string) string {
		return "{tier: Admin, priority: 1, subject: {namespaces: {}}, egress: [" + first + "{action: Deny, to: [{networks: [0.0.0.0/0]}]}]}"
	}
	staged := func(spec string) string {
		return strings.Replace(cnp("p", spec), "name: p", "name: p, annotations: {tierwall.io/stage: audit}", 1)
	}
	each(t, w, [][3]string{
		{"pods come first", staged(rules("{action: Deny, to: [{namespaces: {}}]}, ")), ""},
		{"networks alone", staged(rules("")), "ClusterNetworkPolicy p (policy.networking.k8s.io): spec.egress[0].to: network 0.0.0.0/0 covers addresses of pods"},
	})
}

// DNS cut by rules rather than by isolation.
func TestDNSCutByRules(t *testing.T) {
	const cut = "reach a DNS server"
	self := "{action: Pass, to: [{namespaces: {match: Self}}]}"
	each(t, world, [][3]string{
		{"X-42: strict isolation", acnp("p", "{priority: 1, "+toX+", egress: ["+self+", {action: Drop, to: [{namespaceSelector: {}}]}]}"), "spec.egress[1]: no egress rule lets pod x/a " + cut},
		{"with DNS allowed", acnp("p", "{priority: 2, "+toX+", egress: ["+self+", {action: Drop, to: [{namespaceSelector: {}}]}]}") +
			acnp("dns", "{priority: 1, "+toX+", egress: [{action: Allow, to: [{podSelector: {matchLabels: {k8s-app: kube-dns}}}], ports: [{port: 53, protocol: UDP}]}]}"), ""},
		{
			"X-43: one wildcard, the rest dropped", acnp("p", "{priority: 1, "+toX+", egress: [{action: Allow, to: [{fqdn: \"*foobar.com\"}], ports: [{protocol: TCP, port: 8080}]}, {action: Drop}]}"),
			"spec.egress[1]: no egress rule lets pod x/a " + cut,
		},
		{"everything is meant", acnp("p", "{priority: 1, "+toX+", egress: [{action: Drop}]}"), ""},
		{"a named port is meant", acnp("p", "{priority: 1, "+toX+", egress: [{action: Drop, ports: [{port: 53, protocol: UDP}]}]}"), ""},
		{"a range of ports is not", acnp("p", "{priority: 1, "+toX+", egress: [{action: Drop, ports: [{port: 1, endPort: 1023, protocol: UDP}]}]}"), "spec.egress[0]: no egress rule lets pod x/a " + cut},
		{"other addresses", acnp("p", "{priority: 1, "+toX+", egress: [{action: Drop, to: [{ipBlock: {cidr: 198.51.100.0/24}}]}]}"), ""},
		{"the servers' addresses", acnp("p", "{priority: 1, "+toX+", egress: [{action: Drop, to: [{ipBlock: {cidr: 10.0.0.0/8}}, {ipBlock: {cidr: \"fd00::/8\"}}]}]}"), "spec.egress[0]: no egress rule lets pod x/a " + cut},
		{"addresses of one family", acnp("p", "{priority: 1, "+toX+", egress: [{action: Drop, to: [{ipBlock: {cidr: 10.0.0.0/8}}]}]}"), ""},
		{"a weaker Drop behind a Pass", acnp("p", "{priority: 1, "+toX+", egress: [{action: Pass, to: [{namespaceSelector: {}}]}, {action: Drop}]}"), ""},
		{
			"Cilium deny", ciliumPolicy("p", "{endpointSelector: {}, egress: [{toEntities: [all]}], egressDeny: [{toEndpoints: [{matchLabels: {k8s:io.kubernetes.pod.namespace: kube-system}}]}]}"),
			"spec.egressDeny[0]: no egress rule lets pod x/a " + cut,
		},
	})
	// Nobody known to serve DNS: only what is certain.
	const unknown = "namespace x env=prod\npod x/a app=a\npod x/b app=b\n"
	each(t, unknown, [][3]string{
		{"strict isolation", acnp("p", "{priority: 1, "+toX+", egress: ["+self+", {action: Drop, to: [{namespaceSelector: {}}]}]}"), "spec.egress[1]: no egress rule lets pod x/a " + cut},
		{"another namespace is passed", acnp("p", "{priority: 1, "+toX+", egress: [{action: Pass, to: [{namespaceSelector: {}}]}, {action: Drop}]}"), ""},
	})
}
