package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tierwall/tierwall/cmd/internal/report"
	"github.com/tierwall/tierwall/dataplane/audit"
)

// madeReport runs "tierwall report -o json" and wants an exit code.
func madeReport(t *testing.T, code int, args ...string) *report.Report {
	t.Helper()
	r := tierwall(t, "", append([]string{"report", "-o", "json"}, args...)...)
	if r.code != code {
		t.Fatalf("%q: exit code %d, want %d: %s", args, r.code, code, r.err)
	}
	var out report.Report
	if err := json.Unmarshal([]byte(r.out), &out); err != nil {
		t.Fatalf("%v in %.500s", err, r.out)
	}
	return &out
}

// randomWorld writes a few workloads and policies of several APIs.
func randomWorld(t *testing.T, r *rand.Rand) string {
	t.Helper()
	var b strings.Builder
	app := func() string { return fmt.Sprintf("{matchLabels: {app: a%d}}", r.IntN(4)) }
	ns := func() int { return r.IntN(3) }
	for n := range 3 {
		fmt.Fprintf(&b, "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: n%d, labels: {t: t%d}}\n", n, n%2)
		for w := range 1 + r.IntN(3) {
			a := r.IntN(4)
			fmt.Fprintf(&b, "---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: w%d, namespace: n%d}\nspec: {replicas: %d, selector: {matchLabels: {app: a%d}}, "+
				"template: {metadata: {labels: {app: a%d}}, spec: {containers: [{name: c, image: i, ports: [{name: http, containerPort: %d}]}]}}}\n", w, n, 1+r.IntN(2), a, a, 8080+r.IntN(2))
		}
	}
	port := func() string { return []string{"80", "http", "8080, endPort: 8081", "5432"}[r.IntN(4)] }
	for i := range 1 + r.IntN(6) {
		b.WriteString("---\n")
		switch r.IntN(4) {
		case 0:
			fmt.Fprintf(&b, "apiVersion: policy.networking.k8s.io/v1alpha1\nkind: AdminNetworkPolicy\nmetadata: {name: p%d}\nspec: {priority: %d, subject: {namespaces: {matchLabels: {t: t%d}}}, ingress: [{action: %s, from: [{namespaces: {matchLabels: {t: t%d}}}], ports: [{portNumber: {protocol: TCP, port: 80}}]}]}\n",
				i, i, r.IntN(2), []string{"Allow", "Deny", "Pass"}[r.IntN(3)], r.IntN(2))
		case 1:
			fmt.Fprintf(&b, "apiVersion: crd.antrea.io/v1beta1\nkind: NetworkPolicy\nmetadata: {name: p%d, namespace: n%d}\nspec: {priority: %d, appliedTo: [{podSelector: %s}], egress: [{action: %s, to: [{podSelector: %s}]}]}\n",
				i, ns(), 1+i, app(), []string{"Drop", "Reject"}[r.IntN(2)], app())
		default:
			fmt.Fprintf(&b, "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: p%d, namespace: n%d}\nspec: {podSelector: %s, policyTypes: [%s], ingress: [{from: [{namespaceSelector: {matchLabels: {t: t%d}}}, {podSelector: %s}], ports: [{port: %s}]}]}\n",
				i, ns(), app(), []string{"Ingress", "Ingress, Egress"}[r.IntN(2)], r.IntN(2), app(), port())
		}
	}
	return dir(t, map[string]string{"world.yaml": b.String()})
}

// TestReportIsMatrix compares the report's answers with those of "tierwall matrix",
// for all pairs of pods of small worlds and for several ports.
func TestReportIsMatrix(t *testing.T) {
	ports := []string{"80/TCP", "8080/TCP", "8081/TCP", "5432/TCP", "53/UDP"}
	verdicts := map[string]int{}
	for seed := range 25 {
		d := randomWorld(t, rand.New(rand.NewPCG(uint64(seed), 5)))
		rep := madeReport(t, 0, "-m", d)
		group := map[string]int{}
		for _, e := range rep.Reach.Ends {
			for _, p := range e.Pods {
				group[p] = e.Group
			}
		}
		args := []string{"matrix", "-m", d, "-o", "json"}
		for _, p := range ports {
			args = append(args, "--port", p)
		}
		var m struct {
			Flows []struct{ From, To, Port, Verdict string }
		}
		if err := json.Unmarshal([]byte(tierwall(t, "", args...).out), &m); err != nil {
			t.Fatal(err)
		}
		pairs, pods := map[string]bool{}, len(group)
		for _, f := range m.Flows {
			if f.From == f.To {
				continue
			}
			pairs[f.From+" "+f.To] = true
			number, proto, _ := strings.Cut(f.Port, "/")
			var port uint16
			if _, err := fmt.Sscan(number, &port); err != nil {
				t.Fatal(err)
			}
			got := []string{}
			for _, r := range rep.Reach.Answers[rep.Reach.Cells[group[f.From]][group[f.To]]] {
				if r.Family == 4 && (r.Protocol == proto || r.Protocol == "other" && proto != "TCP") && r.Ports[0] <= port && port <= r.Ports[1] {
					got = append(got, r.Verdict)
				}
			}
			if !slices.Equal(got, []string{f.Verdict}) {
				t.Fatalf("world %d, %s → %s %s: matrix says %s, the report %v", seed, f.From, f.To, f.Port, f.Verdict, got)
			}
			verdicts[f.Verdict]++
		}
		if len(pairs) != rep.Totals.Pairs || rep.Totals.Pods != pods || rep.Totals.Refused+rep.Totals.Some+rep.Totals.All != rep.Totals.Pairs {
			t.Errorf("world %d: %d pairs of %d pods: %+v", seed, len(pairs), pods, rep.Totals)
		}
	}
	if verdicts["Allow"] == 0 || verdicts["Drop"] == 0 || verdicts["Reject"] == 0 {
		t.Errorf("not every verdict came up: %v", verdicts)
	}
}

// cde is a namespace in scope, one that is not, and what connects them.
const cde = `apiVersion: v1
kind: Namespace
metadata: {name: pay, labels: {scope: cde}}
---
apiVersion: v1
kind: Namespace
metadata: {name: lab}
---
apiVersion: v1
kind: Pod
metadata: {name: vault, namespace: pay, labels: {app: vault}}
spec: {nodeName: n1, containers: [{name: c, image: i}]}
---
apiVersion: v1
kind: Pod
metadata: {name: tool, namespace: lab, labels: {app: tool}}
spec: {nodeName: n1, containers: [{name: c, image: i}]}
---
apiVersion: v1
kind: Pod
metadata: {name: agent, namespace: lab, labels: {app: agent}}
spec: {nodeName: n1, hostNetwork: true, containers: [{name: c, image: i}]}
status: {podIP: 192.168.1.10, hostIP: 192.168.1.10}
---
apiVersion: v1
kind: Node
metadata: {name: n1}
spec: {podCIDR: 10.244.0.0/24}
status: {addresses: [{type: InternalIP, address: 192.168.1.10}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: closed, namespace: pay}
spec: {podSelector: {}, policyTypes: [Ingress]%s}
`

func cdeWith(t *testing.T, ingress string) string {
	return dir(t, map[string]string{"world.yaml": fmt.Sprintf(cde, ingress)})
}

func TestReportPCI(t *testing.T) {
	closed := cdeWith(t, "")
	toTool := cdeWith(t, ", ingress: [{from: [{namespaceSelector: {}, podSelector: {matchLabels: {app: tool}}}], ports: [{port: 8200}]}]")
	toOutside := cdeWith(t, ", ingress: [{from: [{ipBlock: {cidr: 203.0.113.0/24}}]}]")
	pci := []string{"--profile", "pci", "--in-scope", "ns:scope=cde"}
	rep := madeReport(t, 0, append(pci, "-m", closed)...)
	if p := rep.Profile; !p.Pass || len(p.Connections) != 0 || len(p.OutOfScope.LeftOut) != 1 || rep.Made.TableHash == "" {
		t.Errorf("nothing is possible: %+v", p)
	}
	p := madeReport(t, 1, append(pci, "-m", toTool)...).Profile
	if p.Pass || len(p.Connections) != 1 {
		t.Fatalf("one connection is possible: %+v", p)
	}
	c := p.Connections[0]
	if c.From != "lab/tool" || c.To != "pay/vault" || c.Ports != "TCP 8200" || c.Why.Policy != "networkpolicy.networking.k8s.io/pay/closed" || c.Why.Rule != "ingress[0]" {
		t.Errorf("got %+v", c)
	}
	p = madeReport(t, 1, append(pci, "-m", toOutside)...).Profile
	if len(p.Connections) != 1 || p.Connections[0].From != "outside 203.0.113.0/24" {
		t.Errorf("outside counts as out of scope: %+v", p.Connections)
	}
	if p = madeReport(t, 0, append(pci, "--out-of-scope", "lab/app=tool", "-m", toOutside)...).Profile; !p.Pass {
		t.Errorf("outside was not asked about: %+v", p)
	}
	// The host network of a node always reaches its pods: asked about it says so.
	if p = madeReport(t, 1, append(pci, "--out-of-scope", "ns:lab", "-m", closed)...).Profile; len(p.Connections) != 1 || p.Connections[0].From != "lab/agent" {
		t.Errorf("a host-network pod of the same node: %+v", p.Connections)
	}
}

func TestReportCIS(t *testing.T) {
	p := madeReport(t, 1, "--profile", "cis", "-m", cdeWith(t, "")).Profile
	got := map[string]bool{}
	for _, n := range p.Namespaces {
		got[n.Namespace] = n.Pass
	}
	if p.Pass || !got["pay"] || got["lab"] || len(got) != 2 || p.Why[0] != "namespace lab has no policy" {
		t.Errorf("got %v, %+v", got, p)
	}
	const clusterWide = `apiVersion: policy.networking.k8s.io/v1alpha1
kind: AdminNetworkPolicy
metadata: {name: all%s}
spec: {priority: 1, subject: {namespaces: {}}, ingress: [{action: Deny, from: [{namespaces: {}}]}]}
`
	with := func(annotation string) string {
		return dir(t, map[string]string{"world.yaml": fmt.Sprintf(cde, ""), "all.yaml": fmt.Sprintf(clusterWide, annotation)})
	}
	madeReport(t, 0, "--profile", "cis", "-m", with(""))
	p = madeReport(t, 1, "--profile", "cis", "-m", with(", annotations: {tierwall.io/stage: audit}")).Profile
	if len(p.Namespaces) != 2 || len(p.Namespaces[0].Staged) != 1 {
		t.Errorf("a staged policy does not count: %+v", p.Namespaces)
	}
}

// TestReportStagedAndIsolation: what staged policies would change, and who is open.
func TestReportStagedAndIsolation(t *testing.T) {
	d := dir(t, map[string]string{"world.yaml": fmt.Sprintf(cde, ""), "staged.yaml": `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: lockdown, namespace: lab, annotations: {tierwall.io/stage: audit}}
spec: {podSelector: {}, policyTypes: [Ingress]}
`})
	rep := madeReport(t, 0, "-m", d)
	if s := rep.Staged; len(s.Policies) != 1 || s.Closed == 0 || s.Opened != 0 || len(s.Changes) == 0 || s.Changes[0].To != "lab/tool" {
		t.Errorf("staged: %+v", s)
	}
	lab, pay := rep.Isolation[0], rep.Isolation[1]
	if lab.Ingress.Open != 2 || pay.Ingress.Isolated != 1 || pay.Egress.Open != 1 || !slices.Equal(pay.Ingress.IsolatedBy, []string{"networkpolicy.networking.k8s.io/pay/closed"}) {
		t.Errorf("isolation: %+v", rep.Isolation)
	}
	if rep.Nodes.Unknown == "" || rep.Log != nil {
		t.Errorf("nothing is known of nodes and logs: %+v, %+v", rep.Nodes, rep.Log)
	}
}

// TestReportLog: rules without a record, and the hash chain.
func TestReportLog(t *testing.T) {
	d := cdeWith(t, ", ingress: [{from: [{podSelector: {matchLabels: {app: tool}}}], ports: [{port: 8200}]}, {from: [{podSelector: {matchLabels: {app: x}}}]}]")
	policy := &audit.Policy{Group: "networking.k8s.io", Kind: "NetworkPolicy", Namespace: "pay", Name: "closed"}
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	records := []audit.Record{
		{V: 1, Kind: audit.KindFlow, Time: at, Verdict: audit.Allow, Direction: "ingress", Reason: "rule", Policy: policy, Rule: &audit.Rule{Index: 0}, Count: 3},
		{V: 1, Kind: audit.KindFlow, Time: at.Add(time.Hour), Verdict: audit.Drop, Direction: "ingress", Reason: "isolation", Policy: policy, Isolations: []audit.Policy{*policy}, Count: 2},
		{V: 1, Kind: audit.KindLost, Time: at, Reason: "ring-full", Count: 7},
	}
	var log strings.Builder
	for _, r := range records {
		line, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		log.Write(append(line, '\n'))
	}
	log.WriteString("not a record\n")
	logs := dir(t, map[string]string{"audit.log": log.String()})
	l := madeReport(t, 0, "-m", d, "--log", logs).Log
	if l.Records != 3 || l.Lost != 7 || l.Bad != 1 || l.First == nil || !l.First.Equal(at) || !l.Everything {
		t.Errorf("log: %+v", l)
	}
	var unused []string
	for _, u := range l.Rules {
		if u.Records == 0 {
			unused = append(unused, u.Rule)
		}
	}
	if l.Unused != 1 || !slices.Equal(unused, []string{"ingress[1]"}) || l.Chain == nil || l.Chain.OK {
		t.Errorf("unused %v, %+v", unused, l)
	}
}

func TestReportRefusesBadInput(t *testing.T) {
	good := cdeWith(t, "")
	broken := dir(t, map[string]string{"p.yaml": "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: x, namespace: y}\nspec: {podSelecter: {}}\n"})
	for _, tt := range []struct {
		want string
		args []string
	}{
		{"--in-scope", []string{"-m", good, "--profile", "pci"}},
		{"want pci or cis", []string{"-m", good, "--profile", "hipaa"}},
		{"belong to --profile pci", []string{"-m", good, "--in-scope", "ns:pay"}},
		{"--in-scope ns:nowhere", []string{"-m", good, "--profile", "pci", "--in-scope", "ns:nowhere"}},
		{"--out-of-scope app=nobody", []string{"-m", good, "--profile", "pci", "--in-scope", "ns:pay", "--out-of-scope", "app=nobody"}},
		{"is in scope, too", []string{"-m", good, "--profile", "pci", "--in-scope", "ns:pay", "--out-of-scope", "any"}},
		{"addresses cannot be in scope", []string{"-m", good, "--profile", "pci", "--in-scope", "203.0.113.7"}},
		{"have errors", []string{"-m", broken}},
		{"no such file", []string{"-m", good, "--log", good + "/none.log"}},
		{"--known", []string{"-m", good, "--known", "00"}},
		{"no such file", []string{"-m", good + "/none"}},
		{"unknown flag", []string{"--nothing"}},
	} {
		r := tierwall(t, "", append([]string{"report"}, tt.args...)...)
		if r.code != 2 || !strings.Contains(r.err, tt.want) || r.out != "" {
			t.Errorf("%q: exit code %d, %q, want 2 and %q", tt.args, r.code, r.err, tt.want)
		}
	}
}

// TestReportPageKeepsNamesText: names that people write are text on the page, which
// has no script and loads nothing.
func TestReportPageKeepsNamesText(t *testing.T) {
	const hostile = `</style><script>document.title="owned"</script><img src=x onerror=alert(1)>`
	d := dir(t, map[string]string{"world.yaml": fmt.Sprintf(cde, ""), "hostile.yaml": `apiVersion: crd.antrea.io/v1beta1
kind: NetworkPolicy
metadata: {name: hostile, namespace: lab}
spec: {priority: 1, appliedTo: [{podSelector: {}}], ingress: [{name: '` + hostile + `', action: Drop, from: [{namespaceSelector: {}}]}]}
`})
	r := tierwall(t, "", "report", "-m", d)
	if r.code != 0 {
		t.Fatalf("exit code %d: %s", r.code, r.err)
	}
	for _, bad := range []string{"<script", "<img", "onerror=alert(1)>", ` src="`, "url(http", "@import", "ZgotmplZ"} {
		if strings.Contains(r.out, bad) {
			t.Errorf("the page has %q", bad)
		}
	}
	for _, want := range []string{"&lt;script&gt;", "default-src &#39;none&#39;", `<svg id="namespaces"`, `<svg id="workloads"`, "</html>"} {
		if !strings.Contains(r.out, want) {
			t.Errorf("the page has no %q", want)
		}
	}
}
