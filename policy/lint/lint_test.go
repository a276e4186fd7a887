package lint_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/tierwall/tierwall/policy/internal/fixture"
	"github.com/tierwall/tierwall/policy/lint"
	"github.com/tierwall/tierwall/policy/lower"
)

const world = `
namespace kube-system
namespace x env=prod
namespace y @tierwall.io/audit=true @example.org/audit=true
node n1 192.0.2.1
pod kube-system/dns k8s-app=kube-dns dns=53/UDP dns-tcp=53/TCP
pod x/a app=a web=80/TCP
pod x/b app=b web=80/TCP
pod x/h app=h node=n1 hostNetwork
pod y/c app=c
`

func np(name, spec string) string {
	return "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: " + name + ", namespace: x}\nspec: " + spec + "\n---\n"
}

func anp(name, spec string) string {
	return "apiVersion: policy.networking.k8s.io/v1alpha1\nkind: AdminNetworkPolicy\nmetadata: {name: " + name + "}\nspec: " + spec + "\n---\n"
}

const toAll = "namespaces: {namespaceSelector: {}}"

func TestChecks(t *testing.T) {
	const allPods = "{podSelector: {}}"
	dnsRule := "{to: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: kube-system}}}], ports: [{port: 53, protocol: UDP}]}"
	denyIn := anp("wall", "{priority: 5, subject: {namespaceSelector: {}}, ingress: [{action: Deny, l4Selector: {allPorts: true}, from: [{"+toAll+"}]}]}")
	for _, c := range []struct {
		name, yaml string
		want       string // "path: part of the message", one a line; the namespace annotation of y left out
	}{
		{"nothing wrong", np("p", allPods), ""},
		{"no such label", np("p", "{podSelector: {matchLabels: {app: z}}}"), "spec.podSelector: selects no pod"},
		{"host network", np("p", "{podSelector: {matchLabels: {app: h}}}"), "spec.podSelector: selects no pod"},
		{"no such namespace", anp("p", "{priority: 1, subject: {namespaceSelector: {matchLabels: {env: dev}}}, egress: [{action: Deny, l4Selector: {allPorts: true}, to: [{"+toAll+"}]}]}"), "spec.subject: selects no pod"},
		{"a policy without rules", anp("p", "{priority: 1, subject: {namespaceSelector: {matchLabels: {env: dev}}}}"), ""},

		{"empty from", anp("p", "{priority: 1, subject: {namespaceSelector: {}}, ingress: [{action: Deny, l4Selector: {allPorts: true}, from: []}]}"), "spec.ingress[0]: the rule matches nothing because `from` is empty"},
		{"missing to", anp("p", "{priority: 1, subject: {namespaceSelector: {}}, egress: [{action: Deny, l4Selector: {allPorts: true}}]}"), "spec.egress[0]: the rule matches nothing because `to` is empty"},
		{"empty from is anybody", np("p", "{podSelector: {}, ingress: [{from: []}]}"), ""},
		{"two values", np("p", "{podSelector: {}, ingress: [{from: [{podSelector: {matchLabels: {app: a}, matchExpressions: [{key: app, operator: In, values: [b, c]}]}}]}]}"), "spec.ingress[0].from[0]: contradicts itself"},
		{"in and not in", np("p", "{podSelector: {}, ingress: [{from: [{podSelector: {matchExpressions: [{key: app, operator: In, values: [a]}, {key: app, operator: NotIn, values: [a, b]}]}}]}]}"), "spec.ingress[0].from[0]: contradicts itself"},
		{"exists and not", np("p", "{podSelector: {}, ingress: [{}, {from: [{podSelector: {}}, {namespaceSelector: {matchExpressions: [{key: app, operator: Exists}, {key: app, operator: DoesNotExist}]}}]}]}"), "spec.ingress[1].from[1]: contradicts itself"},
		{"one value left", np("p", "{podSelector: {}, ingress: [{from: [{podSelector: {matchExpressions: [{key: app, operator: In, values: [a, b]}, {key: app, operator: NotIn, values: [a]}, {key: app, operator: Exists}]}}]}]}"), ""},
		{"contradictory subject", np("p", "{podSelector: {matchExpressions: [{key: a, operator: Exists}, {key: a, operator: DoesNotExist}]}, ingress: [{}]}"), "spec.podSelector: selects no pod\nspec.podSelector: contradicts itself"},
		{"a port that is there", np("p", "{podSelector: {}, ingress: [{ports: [{port: web}]}]}"), ""},
		{"a port that is not", np("p", "{podSelector: {}, ingress: [{ports: [{port: wbe}]}]}"), `spec.ingress[0]: no pod the rule concerns has a TCP port named "wbe"`},
		{"a port of another protocol", np("p", "{podSelector: {}, ingress: [{ports: [{port: web, protocol: UDP}]}]}"), `spec.ingress[0]: UDP port named "web"`},
		{"a port of the wrong side", np("p", "{podSelector: {}, policyTypes: [Egress], egress: ["+dnsRule+", {to: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: y}}}], ports: [{port: web}]}]}"), `spec.egress[1]: TCP port named "web"`},
		{"a port somewhere", np("p", "{podSelector: {}, policyTypes: [Egress], egress: ["+dnsRule+", {ports: [{port: web}]}]}"), ""},

		// S0-67, S0-69: whom an administrator's policy overrides.
		{"overridden", denyIn + np("p", "{podSelector: {}, ingress: [{}]}"), "spec.podSelector: ingress between pods is decided by AdminNetworkPolicy wall (ingress[0]: Deny)"},
		{"overridden by allow", anp("open", "{priority: 5, subject: {namespaceSelector: {}}, egress: [{name: all, action: Allow, l4Selector: {allPorts: true}, to: [{"+toAll+"}]}]}") + np("p", "{podSelector: {}, policyTypes: [Egress]}"), "spec.podSelector: egress between pods is decided by AdminNetworkPolicy open (all: Allow)"},
		{"another direction", denyIn + np("p", "{podSelector: {}, policyTypes: [Egress]}"), ""},
		{"some ports", anp("wall", "{priority: 5, subject: {namespaceSelector: {}}, ingress: [{action: Deny, l4Selector: {ports: [{port: 80}]}, from: [{"+toAll+"}]}]}") + np("p", "{podSelector: {}}"), ""},
		{"some peers", anp("wall", "{priority: 5, subject: {namespaceSelector: {}}, ingress: [{action: Deny, l4Selector: {allPorts: true}, from: [{namespaces: {notSelf: true}}]}]}") + np("p", "{podSelector: {}}"), ""},
		{"some subjects", anp("wall", "{priority: 5, subject: {namespaceAndPodSelector: {namespaceSelector: {}, podSelector: {matchLabels: {app: a}}}}, ingress: [{action: Deny, l4Selector: {allPorts: true}, from: [{"+toAll+"}]}]}") + np("p", "{podSelector: {}}"), ""},
		{"passed before", denyIn + anp("pass", "{priority: 6, subject: {namespaceSelector: {}}, ingress: [{action: Pass, l4Selector: {ports: [{port: 80}]}, from: [{"+toAll+"}]}]}") + np("p", "{podSelector: {}}"), ""},
		{"passed after", denyIn + anp("pass", "{priority: 4, subject: {namespaceSelector: {}}, ingress: [{action: Pass, l4Selector: {allPorts: true}, from: [{"+toAll+"}]}]}") + np("p", "{podSelector: {}}"), "spec.ingress[0]: never decides: ingress[0] of AdminNetworkPolicy wall (Deny)\ningress between pods"},
		{"baseline", anp("wall", "{priority: 0, subject: {namespaceSelector: {}}, ingress: [{action: Deny, l4Selector: {allPorts: true}, from: [{"+toAll+"}]}]}") + np("p", "{podSelector: {}}"), ""},

		// One allowed rule that a stronger policy takes away, in part or whole.
		{"an allowed port is denied", anp("wall", "{priority: 5, subject: {namespaceSelector: {}}, ingress: [{action: Deny, l4Selector: {ports: [{port: 80}]}, from: [{"+toAll+"}]}]}") + np("p", "{podSelector: {}, ingress: [{ports: [{port: 443}]}, {ports: [{port: 80}, {port: 81}]}]}"), "spec.ingress[1]: part of what this rule allows is denied by AdminNetworkPolicy wall (ingress[0]: Deny), for example 80/TCP from kube-system/dns to x/a"},
		{"everything allowed is denied", anp("wall", "{priority: 5, subject: {namespaceSelector: {}}, ingress: [{action: Deny, l4Selector: {ports: [{port: 80}]}, from: [{"+toAll+"}]}]}") + np("p", "{podSelector: {}, ingress: [{from: [{podSelector: {}}], ports: [{port: 80}]}]}"), "spec.ingress[0]: everything this rule allows is denied by AdminNetworkPolicy wall"},
		{"an allowed peer is denied", anp("wall", "{priority: 5, subject: {namespaceSelector: {}}, ingress: [{action: Deny, l4Selector: {allPorts: true}, from: [{namespaces: {notSelf: true}}]}]}") + np("p", "{podSelector: {}, ingress: [{from: [{podSelector: {}}]}, {from: [{namespaceSelector: {}}]}]}"), "spec.ingress[1]: part of what this rule allows is denied by AdminNetworkPolicy wall (ingress[0]: Deny), for example 80/TCP from kube-system/dns to x/a"},
		{"allowed before it is denied", anp("wall", "{priority: 5, subject: {namespaceSelector: {}}, ingress: [{action: Allow, l4Selector: {ports: [{port: 80}]}, from: [{"+toAll+"}]}, {action: Deny, l4Selector: {ports: [{port: 80}]}, from: [{"+toAll+"}]}]}") + np("p", "{podSelector: {}, ingress: [{ports: [{port: 80}]}]}"), "spec.ingress[1]: never decides"},
		{"passed before it is denied", anp("wall", "{priority: 5, subject: {namespaceSelector: {}}, ingress: [{action: Pass, l4Selector: {ports: [{port: 80}]}, from: [{"+toAll+"}]}, {action: Deny, l4Selector: {allPorts: true}, from: [{"+toAll+"}]}]}") + np("p", "{podSelector: {}, ingress: [{ports: [{port: 80}]}]}"), ""},
		{"the other direction", anp("wall", "{priority: 5, subject: {namespaceSelector: {}}, egress: [{action: Deny, l4Selector: {ports: [{port: 80}]}, to: [{"+toAll+"}]}]}") + np("p", "{podSelector: {}, policyTypes: [Ingress, Egress], ingress: [{ports: [{port: 80}]}], egress: [{ports: [{port: 80}, {port: 53, protocol: UDP}]}]}"), "spec.egress[0]: part of what this rule allows is denied by AdminNetworkPolicy wall (egress[0]: Deny), for example 80/TCP from x/a to kube-system/dns"},

		{"dns forgotten", np("p", "{podSelector: {}, policyTypes: [Egress], egress: [{ports: [{port: 443}]}]}"), "spec.egress: no egress rule lets pod x/a reach a DNS server"},
		{"dns by port", np("p", "{podSelector: {}, policyTypes: [Egress], egress: [{ports: [{port: 443}]}, "+dnsRule+"]}"), ""},
		{"dns by range", np("p", "{podSelector: {}, policyTypes: [Egress], egress: [{ports: [{port: 1, endPort: 1024, protocol: UDP}]}]}"), ""},
		{"dns by name", np("p", "{podSelector: {}, policyTypes: [Egress], egress: [{ports: [{port: dns, protocol: UDP}]}]}"), ""},
		{"dns by another policy", np("p", "{podSelector: {}, policyTypes: [Egress], egress: [{ports: [{port: 443}]}]}") + np("q", "{podSelector: {}, policyTypes: [Egress], egress: ["+dnsRule+"]}"), ""},
		{"dns by an address", np("p", "{podSelector: {}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 169.254.20.10/32}}]}]}"), ""},
		{"dns by an admin", anp("dns", "{priority: 9, subject: {namespaceSelector: {}}, egress: [{action: Allow, l4Selector: {ports: [{port: 53, protocol: UDP}]}, to: [{"+toAll+"}]}]}") + np("p", "{podSelector: {}, policyTypes: [Egress], egress: [{ports: [{port: 443}]}]}"), ""},
		{"own namespace only", np("p", "{podSelector: {matchLabels: {app: b}}, policyTypes: [Egress], egress: [{to: [{podSelector: {}}]}]}"), "spec.egress: no egress rule lets pod x/b reach a DNS server"},
		{"no egress at all is meant", np("p", "{podSelector: {}, policyTypes: [Egress]}"), ""},
		{"SCTP 53 is not DNS", np("p", "{podSelector: {}, policyTypes: [Egress], egress: [{ports: [{port: 53, protocol: SCTP}]}]}"), "reach a DNS server"},
	} {
		w := fixture.MustWorld(t, world)
		objs := fixture.MustObjects(t, c.yaml)
		set, found := lower.Build(objs, w.Inventory)
		if err := found.Err(); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		got := lint.Check(objs, &set, w.Inventory)
		if len(got.Errors) > 0 || len(got.Warnings) == 0 || got.Warnings[0].Object.IsZero() {
			t.Errorf("%s: %v", c.name, got)
		}
		var lines []string
		for _, d := range got.Warnings {
			if d.Object.String() != "Namespace y" {
				lines = append(lines, d.Path+": "+d.Message)
			}
		}
		var want []string
		if c.want != "" {
			want = strings.Split(c.want, "\n")
		}
		if !slices.EqualFunc(lines, want, func(line, want string) bool {
			path, part, ok := strings.Cut(want, ": ")
			if !ok || !strings.HasPrefix(path, "spec") {
				return strings.Contains(line, want)
			}
			return strings.HasPrefix(line, path+": ") && strings.Contains(line, part)
		}) {
			t.Errorf("%s: got %q, want %q", c.name, lines, want)
		}
	}
}

func TestMisplacedAnnotation(t *testing.T) {
	w := fixture.MustWorld(t, world)
	set, _ := lower.Build(nil, w.Inventory)
	got := lint.Check(nil, &set, w.Inventory).Warnings
	if len(got) != 1 || got[0].Object.String() != "Namespace y" || got[0].Path != `metadata.annotations["tierwall.io/audit"]` {
		t.Errorf("got %v", got)
	}
}

// Without pods nothing can be said about whom a policy concerns.
func TestNoPods(t *testing.T) {
	w := fixture.MustWorld(t, "namespace x")
	yaml := np("p", "{podSelector: {matchLabels: {app: z}}, policyTypes: [Egress], egress: [{ports: [{port: nope}]}]}")
	set, _ := fixture.MustBuild(t, w, yaml)
	if got := lint.Check(fixture.MustObjects(t, yaml), &set, w.Inventory); len(got.Warnings) > 0 {
		t.Errorf("got %v", got)
	}
}
