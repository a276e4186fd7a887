package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// tenants is a world for claims: its namespaces have labels, its pods addresses.
const tenants = `apiVersion: v1
kind: Namespace
metadata: {name: dev, labels: {tier: dev}}
---
apiVersion: v1
kind: Namespace
metadata: {name: pci, labels: {tier: pci}}
---
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: v1
kind: Node
metadata: {name: n1}
spec: {podCIDRs: [10.1.0.0/16]}
status: {addresses: [{type: InternalIP, address: 192.168.0.1}]}
---
apiVersion: v1
kind: Pod
metadata: {name: db, namespace: pci, labels: {app: db, role: store}}
spec: {nodeName: n1, containers: [{name: c, image: x, ports: [{name: sql, containerPort: 5432}]}]}
status: {podIPs: [{ip: 10.1.0.1}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: dev, labels: {app: web}}
spec: {nodeName: n1, containers: [{name: c, image: x}]}
status: {podIPs: [{ip: 10.1.0.2}]}
`

type proveAnswer struct {
	Claims []struct {
		Name, File, Answer, Why string
		Line                    int
		Witness                 *struct {
			From, To struct {
				Name, Namespace                   string
				NamespaceLabels, Labels           map[string]string
				Exists, NewNamespace, HostNetwork bool
			}
			Packet struct {
				Family   int
				Protocol string
				Port     uint16
			}
			Verdict, Policy, Rule, Manifest, Via string
			Names                                []string
		}
		Assumes []string
	}
	Proved, Refuted, Undecided int
}

const devToPCI = `{from: "ns:tier=dev", to: "ns:tier=pci", port: any, expect: deny, forever: true}`

func claimFile(t *testing.T, lines ...string) string {
	return intentFile(t, "apiVersion: tierwall.io/v1\nkind: Intent\ntests:\n- "+strings.Join(lines, "\n- ")+"\n")
}

func prove(t *testing.T, file, manifests string, flags ...string) (result, proveAnswer) {
	t.Helper()
	r := tierwall(t, "", append([]string{"prove", file, "-m", manifests, "-o", "json"}, flags...)...)
	var got proveAnswer
	if err := json.Unmarshal([]byte(r.out), &got); err != nil && r.code != 2 {
		t.Fatalf("exit code %d: %v in %s%s", r.code, err, r.out, r.err)
	}
	return r, got
}

// dialects are policies of every API that keep tier dev out of tier pci: OPEN is
// where an exception for pods with role=breakglass goes.
var dialects = map[string]string{
	"NetworkPolicy": `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: p, namespace: pci}
spec:
  podSelector: {}
  ingress:
  - from: [{podSelector: {}}]
  #OPEN - from: [{namespaceSelector: {matchLabels: {tier: dev}}, podSelector: {matchLabels: {role: breakglass}}}]
`,
	"AdminNetworkPolicy v0.1.7": `apiVersion: policy.networking.k8s.io/v1alpha1
kind: AdminNetworkPolicy
metadata: {name: p}
spec:
  priority: 10
  subject: {namespaces: {matchLabels: {tier: pci}}}
  ingress:
  #OPEN - {name: open, action: Allow, from: [{pods: {namespaceSelector: {matchLabels: {tier: dev}}, podSelector: {matchLabels: {role: breakglass}}}}]}
  - {name: keep-out, action: Deny, from: [{namespaces: {matchLabels: {tier: dev}}}]}
`,
	"BaselineAdminNetworkPolicy": `apiVersion: policy.networking.k8s.io/v1alpha1
kind: BaselineAdminNetworkPolicy
metadata: {name: default}
spec:
  subject: {namespaces: {matchLabels: {tier: pci}}}
  ingress:
  #OPEN - {name: open, action: Allow, from: [{pods: {namespaceSelector: {matchLabels: {tier: dev}}, podSelector: {matchLabels: {role: breakglass}}}}]}
  - {name: keep-out, action: Deny, from: [{namespaces: {matchLabels: {tier: dev}}}]}
`,
	"AdminNetworkPolicy v0.1.1": `apiVersion: policy.networking.k8s.io/v1alpha1
kind: AdminNetworkPolicy
metadata: {name: p}
spec:
  priority: 10
  subject: {namespaces: {matchExpressions: [{key: tier, operator: Exists}]}}
  ingress:
  #OPEN - {name: open, action: Allow, from: [{pods: {namespaces: {namespaceSelector: {}}, podSelector: {matchLabels: {role: breakglass}}}}]}
  - {name: keep-out, action: Deny, from: [{namespaces: {notSameLabels: [tier]}}]}
`,
	"AdminNetworkPolicy of the KEP": `apiVersion: policy.networking.k8s.io/v1alpha1
kind: AdminNetworkPolicy
metadata: {name: p}
spec:
  priority: 10
  subject: {namespaceSelector: {matchExpressions: [{key: tier, operator: Exists}]}}
  ingress:
  - {action: Deny, l4Selector: {allPorts: true}, from: [{namespaces: {notSameLabels: [tier]}}]}
---
#OPEN {apiVersion: policy.networking.k8s.io/v1alpha1, kind: AdminNetworkPolicy, metadata: {name: open}, spec: {priority: 20, subject: {namespaceSelector: {}}, ingress: [{action: Allow, l4Selector: {allPorts: true}, from: [{namespacedPods: {namespaces: {namespaceSelector: {}}, pods: {podSelector: {matchLabels: {role: breakglass}}}}}]}]}}
`,
	"ClusterNetworkPolicy v1alpha2": `apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: p}
spec:
  tier: Admin
  priority: 10
  subject: {namespaces: {matchLabels: {tier: pci}}}
  ingress:
  #OPEN - {name: open, action: Accept, from: [{pods: {namespaceSelector: {matchLabels: {tier: dev}}, podSelector: {matchLabels: {role: breakglass}}}}]}
  - {name: keep-out, action: Deny, from: [{namespaces: {matchLabels: {tier: dev}}}]}
`,
	"ClusterNetworkPolicy of the KEP": `apiVersion: netpol.networking.k8s.io/v1alpha1
kind: ClusterNetworkPolicy
metadata: {name: p}
spec:
  appliedTo: {namespaceSelector: {matchLabels: {tier: pci}}}
  ingress:
  #OPEN - {action: Empower, from: [{namespaceSelector: {matchLabels: {tier: dev}}, podSelector: {matchLabels: {role: breakglass}}}]}
  - {action: Deny, from: [{namespaceSelector: {matchLabels: {tier: dev}}}]}
`,
	"Antrea ClusterNetworkPolicy": `apiVersion: crd.antrea.io/v1beta1
kind: ClusterGroup
metadata: {name: dev}
spec: {namespaceSelector: {matchLabels: {tier: dev}}}
---
apiVersion: crd.antrea.io/v1beta1
kind: ClusterNetworkPolicy
metadata: {name: p}
spec:
  priority: 5
  tier: securityops
  appliedTo: [{namespaceSelector: {matchLabels: {tier: pci}}}]
  ingress:
  #OPEN - {name: open, action: Allow, from: [{namespaceSelector: {matchLabels: {tier: dev}}, podSelector: {matchLabels: {role: breakglass}}}]}
  - {name: keep-out, action: Drop, from: [{group: dev}]}
`,
	"Antrea NetworkPolicy": `apiVersion: crd.antrea.io/v1beta1
kind: NetworkPolicy
metadata: {name: p, namespace: pci}
spec:
  priority: 5
  appliedTo: [{podSelector: {}}]
  ingress:
  #OPEN - {name: open, action: Allow, from: [{namespaceSelector: {matchLabels: {tier: dev}}, podSelector: {matchLabels: {role: breakglass}}}]}
  - {name: keep-out, action: Reject, from: [{namespaceSelector: {matchLabels: {tier: dev}}}]}
`,
	"CiliumClusterwideNetworkPolicy": `apiVersion: cilium.io/v2
kind: CiliumClusterwideNetworkPolicy
metadata: {name: p}
spec:
  endpointSelector: {matchLabels: {"k8s:io.cilium.k8s.namespace.labels.tier": pci}}
  ingress:
  - fromEndpoints: [{matchLabels: {"k8s:io.cilium.k8s.namespace.labels.tier": pci}}]
  #OPEN - fromEndpoints: [{matchLabels: {"k8s:io.cilium.k8s.namespace.labels.tier": dev, role: breakglass}}]
`,
	"CiliumNetworkPolicy": `apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: p, namespace: pci}
spec:
  endpointSelector: {}
  ingress:
  - fromEndpoints: [{}]
  #OPEN - fromEndpoints: [{matchLabels: {"k8s:io.cilium.k8s.namespace.labels.tier": dev, role: breakglass}}]
`,
}

// TestProveEveryDialect proves a claim of policies of every API, and refutes it where
// they make an exception for a label that anybody can set. No pod has the label.
func TestProveEveryDialect(t *testing.T) {
	file := claimFile(t, devToPCI)
	for name, text := range dialects {
		t.Run(name, func(t *testing.T) {
			world := func(policies string) string {
				return dir(t, map[string]string{"world.yaml": tenants, "policies.yaml": policies})
			}
			if r, got := prove(t, file, world(text)); r.code != 0 || len(got.Claims) != 1 || got.Claims[0].Answer != "proved" || got.Claims[0].Witness != nil {
				t.Errorf("exit code %d: %s%s", r.code, r.out, r.err)
			}
			open := world(strings.ReplaceAll(text, "#OPEN ", ""))
			if r := tierwall(t, "", "test", file, "-m", open); r.code != 0 {
				t.Errorf("of the pods there are: exit code %d: %s%s", r.code, r.out, r.err)
			}
			r, got := prove(t, file, open)
			if r.code != 1 || got.Claims[0].Answer != "refuted" {
				t.Fatalf("with an exception: exit code %d: %s%s", r.code, r.out, r.err)
			}
			w := got.Claims[0].Witness
			if w.From.Namespace != "dev" || w.To.Namespace != "pci" || w.From.Labels["role"] != "breakglass" || w.From.NamespaceLabels["tier"] != "dev" || w.Verdict != "Allow" {
				t.Errorf("witness %+v", w)
			}
			explained(t, open, w.Manifest, w.From.Name, w.To.Name, fmt.Sprintf("%d/%s", w.Packet.Port, w.Packet.Protocol), w.Verdict)
		})
	}
}

// explained asks explain about a witness, in the world with its manifest.
func explained(t *testing.T, manifests, manifest, from, to, port, verdict string) {
	t.Helper()
	extra := filepath.Join(t.TempDir(), "witness.yaml")
	if err := os.WriteFile(extra, []byte(manifest), 0o600); err != nil {
		t.Fatal(err)
	}
	r := tierwall(t, "", "explain", "-m", manifests, "-m", extra, "--from", from, "--to", to, "--port", port, "-o", "json")
	var got struct{ Verdict string }
	if err := json.Unmarshal([]byte(r.out), &got); err != nil || got.Verdict != verdict {
		t.Errorf("explain says %q (%v), want %s: %s%s", got.Verdict, err, verdict, r.out, r.err)
	}
}

// TestProveRights: the same policies, and what somebody may do beside creating pods.
func TestProveRights(t *testing.T) {
	admin := strings.NewReplacer("tier: pci}}}", "tier: pci}}}", "#OPEN ", "").Replace(dialects["AdminNetworkPolicy v0.1.7"])
	for _, tt := range []struct {
		what, policies, claim, answer, want string
	}{
		{
			"a new namespace is not protected by policies of others", dialects["NetworkPolicy"],
			`{from: "ns:tier=dev", to: "ns:tier=pci", port: any, expect: deny, rights: {namespaces: any}}`, "refuted", `"newNamespace": true`,
		},
		{
			"but by policies for all", dialects["AdminNetworkPolicy v0.1.7"],
			`{from: "ns:tier=dev", to: "ns:tier=pci", port: any, expect: deny, rights: {namespaces: any}}`, "proved", "",
		},
		{"a label that nobody may set", admin, `{from: "ns:tier=dev", to: "ns:tier=pci", port: any, expect: deny, rights: {keepLabels: [role]}}`, "proved", ""},
		{"only pods there are", admin, `{from: "ns:tier=dev", to: "ns:tier=pci", port: any, expect: deny, rights: {pods: none}}`, "proved", ""},
		{"pods come elsewhere", admin, `{from: "ns:tier=dev", to: "ns:tier=pci", port: any, expect: deny, rights: {pods: ns:shop}}`, "proved", ""},
		{"pods come here", admin, `{from: "ns:tier=dev", to: "ns:tier=pci", port: any, expect: deny, rights: {pods: [ns:shop, ns:dev]}}`, "refuted", "breakglass"},
		{
			"the host's network", dialects["AdminNetworkPolicy v0.1.7"],
			`{from: "ns:tier=dev", to: "ns:tier=pci", port: any, expect: deny, rights: {hostNetwork: true}}`, "refuted", `"hostNetwork": true`,
		},
		{
			"admins cannot open what an administrator closes", dialects["AdminNetworkPolicy v0.1.7"],
			`{from: "ns:tier=dev", to: "ns:tier=pci", port: any, expect: deny, rights: {policies: any}}`, "proved", "",
		},
		{
			"admins can open what a default closes", dialects["BaselineAdminNetworkPolicy"],
			`{from: "ns:tier=dev", to: "ns:tier=pci", port: any, expect: deny, rights: {policies: ns:pci}}`, "refuted", "any NetworkPolicy that allows it may come",
		},
		{
			"the source's admin cannot", dialects["BaselineAdminNetworkPolicy"],
			`{from: "ns:tier=dev", to: "ns:tier=pci", port: any, expect: deny, rights: {policies: ns:dev}}`, "proved", "",
		},
		{
			"admins can close what nobody opens for good", dialects["AdminNetworkPolicy v0.1.7"],
			`{from: ns:shop, to: "ns:tier=pci", port: 443, expect: allow, rights: {policies: ns:pci}}`, "refuted", "isolates the pod",
		},
		{"by a policy", dialects["AdminNetworkPolicy v0.1.7"], `{from: "ns:tier=dev", to: "ns:tier=pci", port: any, expect: deny, by: p}`, "proved", ""},
		{"addresses outside", dialects["NetworkPolicy"], `{from: external:any, to: "ns:tier=pci", port: any, expect: deny}`, "proved", ""},
		{"a node reaches its own pods", dialects["NetworkPolicy"], `{from: 192.168.0.1, to: "ns:tier=pci", port: any, expect: deny}`, "refuted", ""},
		{"a pod as it is", admin, `{from: dev/web, to: pci/db, port: any, expect: deny}`, "proved", ""},
		{"a named port of any number", dialects["AdminNetworkPolicy v0.1.7"], `{from: ns:shop, to: "ns:tier=pci", port: sql/TCP, expect: deny}`, "refuted", `"name": "sql"`},
	} {
		manifests := dir(t, map[string]string{"world.yaml": tenants, "policies.yaml": tt.policies})
		r, got := prove(t, claimFile(t, tt.claim), manifests)
		if len(got.Claims) != 1 || got.Claims[0].Answer != tt.answer || !strings.Contains(r.out, tt.want) {
			t.Errorf("%s: want %s with %q, exit code %d: %s%s", tt.what, tt.answer, tt.want, r.code, r.out, r.err)
			continue
		}
		w := got.Claims[0].Witness
		if tt.answer == "refuted" && strings.HasPrefix(w.From.Name, w.From.Namespace+"/") {
			explained(t, manifests, w.Manifest, w.From.Name, w.To.Name, fmt.Sprintf("%d/%s", w.Packet.Port, w.Packet.Protocol), w.Verdict)
		}
	}
}

func TestProveExitCodes(t *testing.T) {
	manifests := dir(t, map[string]string{"world.yaml": tenants, "policies.yaml": dialects["AdminNetworkPolicy v0.1.7"]})
	wide := `{from: any, to: any, port: any, expect: deny}`
	for _, tt := range []struct {
		what  string
		lines []string
		flags []string
		code  int
	}{
		{"all proved", []string{devToPCI}, nil, 0},
		{"one refuted", []string{devToPCI, strings.Replace(wide, "}", ", forever: true}", 1)}, nil, 1},
		{"one undecided", []string{strings.Replace(devToPCI, "ns:tier=dev", "ns:tier=dev/a=1,b=2", 1)}, []string{"--max-combinations", "1"}, 3},
	} {
		r, got := prove(t, claimFile(t, tt.lines...), manifests, tt.flags...)
		if r.code != tt.code || len(got.Claims) != len(tt.lines) {
			t.Errorf("%s: exit code %d, want %d: %s%s", tt.what, r.code, tt.code, r.out, r.err)
		}
		text := tierwall(t, "", append([]string{"prove", claimFile(t, tt.lines...), "-m", manifests}, tt.flags...)...)
		if text.code != tt.code || !strings.Contains(text.out, fmt.Sprintf("%d proved, %d refuted, %d undecided", got.Proved, got.Refuted, got.Undecided)) {
			t.Errorf("%s: text: exit code %d: %s%s", tt.what, text.code, text.out, text.err)
		}
	}
	// Only the claims that say forever, if one does.
	if _, got := prove(t, claimFile(t, devToPCI, wide), manifests); len(got.Claims) != 1 {
		t.Errorf("claims %+v", got.Claims)
	}
}

func TestProveBadInput(t *testing.T) {
	manifests := dir(t, map[string]string{"world.yaml": tenants, "policies.yaml": dialects["NetworkPolicy"]})
	with := func(rights string) string { return strings.Replace(devToPCI, "}", ", rights: {"+rights+"}}", 1) }
	for _, tt := range []struct{ what, claim, want string }{
		{"an unknown field", strings.Replace(devToPCI, "expect", "expct", 1), `:4: tests[0]: unknown field "expct" (did you mean expect?)`},
		{"an unknown right", with("podz: any"), `:4: tests[0].rights: unknown field "podz" (did you mean pods?)`},
		{"a contradiction", strings.Replace(devToPCI, "ns:tier=dev", "ns:tier=dev/app=a,app=b", 1), `:4: from: label selector "app=a,app=b" can match nothing`},
		{"an unknown namespace", strings.Replace(devToPCI, "ns:tier=dev", "ns:deV", 1), ":4: from: no namespace deV; there is "},
		{"an unknown namespace label", strings.Replace(devToPCI, "tier=dev", "tier=qa", 1), ":4: from: ns:tier=qa matches no namespace; there is "},
		{"an unknown workload", strings.Replace(devToPCI, "ns:tier=dev", "dev/wbe", 1), ":4: from: no pod or workload dev/wbe"},
		{"a Service", strings.Replace(devToPCI, "ns:tier=dev", "svc/dev/web", 1), ":4: from: no Service"},
		{"namespaces of another kind", with("namespaces: some"), `:4: tests[0].rights: namespaces is "some" (write given or any)`},
		{"rights in pods", with("pods: app=web"), `:4: rights.pods: "app=web": want namespaces`},
		{"rights in an unknown namespace", with("policies: ns:nope"), ":4: rights.policies: no namespace nope"},
		{"a prefix that is none", with("podNetworks: 10.0.0.0"), `:4: tests[0].rights: podNetworks: "10.0.0.0" is no prefix`},
		{"a right without sense", with("keepNamespaceLabels: [tier]"), "means nothing without namespaces: any"},
		{"no pod there is", with("pods: none") + "\n- " + strings.Replace(with("pods: none"), "ns:tier=dev", "ns:shop", 1), ":5: from: ns:shop: there is no such pod"},
		{"an unknown policy", strings.Replace(devToPCI, "port", "by: nope, port", 1), ":4: by: no policy nope; there is "},
		{"a named port nobody has", strings.NewReplacer("ns:tier=pci", "pci/db", "port: any", "port: grpc/TCP").Replace(devToPCI), ":4: no pod of pci/db has a port named grpc"},
		{"a named port of addresses", strings.NewReplacer("ns:tier=pci", "external:any", "port: any", "port: grpc/TCP").Replace(devToPCI), ":4: no pod of external:any has a port named grpc"},
		{"both ends outside", strings.NewReplacer("ns:tier=dev", "8.8.8.8", "ns:tier=pci", "external:any").Replace(devToPCI), ":4: both ends are addresses outside"},
	} {
		if r := tierwall(t, "", "prove", claimFile(t, tt.claim), "-m", manifests); r.code != 2 || r.out != "" || !strings.Contains(r.err, tt.want) {
			t.Errorf("%s: exit code %d, want %q in %q, out %q", tt.what, r.code, tt.want, r.err, r.out)
		}
	}
}

// TestProveShowsHostileNames: names of claims and labels of witnesses are shown, not
// obeyed.
func TestProveShowsHostileNames(t *testing.T) {
	manifests := dir(t, map[string]string{"world.yaml": tenants, "policies.yaml": strings.ReplaceAll(dialects["AdminNetworkPolicy v0.1.7"], "#OPEN ", "")})
	for what, name := range hostileNames {
		quoted := strconv.QuoteToASCII(strings.ToValidUTF8(name, "?"))
		file := claimFile(t, strings.Replace(devToPCI, "{", "{name: "+quoted+", ", 1))
		r := tierwall(t, "", "prove", file, "-m", manifests)
		if r.code != 1 {
			t.Errorf("%s: exit code %d: %s%s", what, r.code, cut(r.out), cut(r.err))
		}
		checkShown(t, what, r.out)
		if r := tierwall(t, "", "prove", file, "-m", manifests, "-o", "json"); !json.Valid([]byte(r.out)) {
			t.Errorf("%s: no JSON: %q", what, cut(r.out))
		}
	}
}

// TestProveWitnessIsABackend: the pod of a witness that is reached through a Service
// has the labels by which the Service selects it.
func TestProveWitnessIsABackend(t *testing.T) {
	manifests := dir(t, map[string]string{"world.yaml": tenants, "policies.yaml": `apiVersion: crd.antrea.io/v1beta1
kind: ClusterNetworkPolicy
metadata: {name: p}
spec:
  priority: 5
  appliedTo: [{namespaceSelector: {matchLabels: {tier: dev}}}]
  egress:
  - {name: open, action: Allow, toServices: [{name: db, namespace: pci}]}
  - {name: none, action: Drop}
---
apiVersion: v1
kind: Service
metadata: {name: db, namespace: pci}
spec: {clusterIP: 10.96.0.9, selector: {app: db}, ports: [{port: 5432, targetPort: sql}]}
`})
	r, got := prove(t, claimFile(t, devToPCI), manifests)
	if r.code != 1 {
		t.Fatalf("exit code %d: %s%s", r.code, r.out, r.err)
	}
	if w := got.Claims[0].Witness; w.To.Labels["app"] != "db" || w.Via != "10.96.0.9:5432" {
		t.Errorf("witness %+v", w)
	}
}
