package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestMatrixGolden(t *testing.T) {
	for _, tt := range []struct{ file, args string }{
		{"matrix.json", "-o json --port 5432/TCP"},
		{"matrix-named.json", "-o json --port http/TCP --node node-1"},
		{"matrix.txt", "--port http/TCP --port 0/ICMP"},
		{"matrix-v6.txt", "--port 5432/TCP --family 6"},
	} {
		t.Run(tt.file, func(t *testing.T) {
			r := tierwall(t, "", append([]string{"matrix", "-m", quickstart}, strings.Fields(tt.args)...)...)
			if r.code != 0 || r.err != "" {
				t.Fatalf("exit code %d, stderr %q", r.code, r.err)
			}
			golden(t, tt.file, r.out)
		})
	}
}

// The names other tools rely on, spelled out: a renamed Go field must not pass
// by regenerating a golden file.
func TestMatrixContract(t *testing.T) {
	r := tierwall(t, "", "matrix", "-m", quickstart, "--port", "http/TCP", "-o", "json")
	var doc map[string][]map[string]any
	if err := json.Unmarshal([]byte(r.out), &doc); err != nil {
		t.Fatal(err)
	}
	if len(doc) != 1 || len(doc["flows"]) != 6*6 {
		t.Fatalf("want 36 flows under the one key flows, got %d keys and %d flows", len(doc), len(doc["flows"]))
	}
	find := func(from, to string) map[string]any {
		for _, f := range doc["flows"] {
			if f["from"] == from && f["to"] == to {
				return f
			}
		}
		t.Fatalf("no flow %s > %s", from, to)
		return nil
	}
	keys := func(m map[string]any) string {
		var out []string
		for k := range m {
			out = append(out, k)
		}
		slices.Sort(out)
		return strings.Join(out, " ")
	}
	side := func(f map[string]any, name string) string {
		s := f[name].(map[string]any)
		return fmt.Sprintf("%s|%s|%s|%s|%s", s["verdict"], s["band"], s["policy"], s["rule"], s["reason"])
	}
	for _, tt := range []struct{ from, to, keys, verdict, egress, ingress string }{
		{
			"shop/frontend", "shop/backend-1", "egress from ingress port resolvedPort to verdict", "Allow",
			"Allow|default|||default",
			"Allow|networkpolicy|networkpolicy.networking.k8s.io/shop/backend|ingress[0]|rule",
		},
		{
			"monitoring/prometheus", "shop/backend-0", "egress from ingress port resolvedPort to verdict", "Allow",
			"Allow|default|||default",
			"Allow|admin|adminnetworkpolicy.policy.networking.k8s.io//monitoring|scrape|rule",
		},
		// The database has no port of that name: no resolvedPort, and rules with ports do not match.
		{
			"shop/backend-0", "shop/db", "egress from ingress port to verdict", "Drop",
			"Allow|default|||default",
			"Drop|networkpolicy|networkpolicy.networking.k8s.io/shop/db||isolation",
		},
		{"shop/db", "shop/db", "egress from ingress port to verdict", "Allow", "Allow|default|||self", "Allow|default|||self"},
		// the node to its own pod; the host-network pod is nobody's subject.
		{
			"monitoring/node-exporter", "shop/backend-0", "egress from ingress port resolvedPort to verdict", "Allow",
			"Allow|default|||not-local", "Allow|default|||node-local",
		},
		// ... and another node's pod treats it as an address like any other.
		{
			"monitoring/node-exporter", "shop/backend-1", "egress from ingress port resolvedPort to verdict", "Drop",
			"Allow|default|||not-local",
			"Drop|networkpolicy|networkpolicy.networking.k8s.io/shop/backend||isolation",
		},
	} {
		f := find(tt.from, tt.to)
		if got := keys(f); got != tt.keys {
			t.Errorf("%s > %s: keys %q, want %q", tt.from, tt.to, got, tt.keys)
		}
		if f["port"] != "http/TCP" || f["verdict"] != tt.verdict {
			t.Errorf("%s > %s: port %v verdict %v, want %s", tt.from, tt.to, f["port"], f["verdict"], tt.verdict)
		}
		if got := side(f, "egress"); got != tt.egress {
			t.Errorf("%s > %s: egress %s, want %s", tt.from, tt.to, got, tt.egress)
		}
		if got := side(f, "ingress"); got != tt.ingress {
			t.Errorf("%s > %s: ingress %s, want %s", tt.from, tt.to, got, tt.ingress)
		}
	}
	if p := find("shop/frontend", "shop/backend-1")["resolvedPort"]; p != 9090.0 {
		t.Errorf("resolvedPort %v, want 9090", p)
	}
	isolations := find("shop/backend-0", "shop/db")["ingress"].(map[string]any)["isolations"]
	if fmt.Sprint(isolations) != "[networkpolicy.networking.k8s.io/shop/db]" {
		t.Errorf("isolations %v", isolations)
	}
}

// No pods, no flows: still the same JSON form.
func TestMatrixOfNothing(t *testing.T) {
	r := tierwall(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: n}\n", "matrix", "-m", "-", "-o", "json")
	if r.code != 0 || strings.Join(strings.Fields(r.out), "") != `{"flows":[]}` {
		t.Errorf("exit code %d: %s%s", r.code, r.out, r.err)
	}
	if r := tierwall(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: n}\n", "matrix", "-m", "-"); r.code != 0 || !strings.Contains(r.out, "0 connections") {
		t.Errorf("exit code %d: %s%s", r.code, r.out, r.err)
	}
}

// Pods without the family asked for are left out, those without any address too.
func TestMatrixLeavesOut(t *testing.T) {
	const pod = `
apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: n}
spec: {containers: [{name: c, image: i}]}
status: {phase: %s, podIPs: [%s]}
---`
	manifests := fmt.Sprintf(pod+pod+pod, "four", "Running", "{ip: 10.0.0.1}", "both", "Running", "{ip: 10.0.0.2}, {ip: 'fd00::2'}", "waits", "Pending", "")
	for _, tt := range []struct {
		family string
		want   string
	}{
		{"", "both>both both>four four>both four>four"},
		{"4", "both>both both>four four>both four>four"},
		{"6", "both>both"},
	} {
		args := []string{"matrix", "-m", "-", "-o", "json"}
		if tt.family != "" {
			args = append(args, "--family", tt.family)
		}
		r := tierwall(t, manifests, args...)
		var doc struct{ Flows []struct{ From, To string } }
		if err := json.Unmarshal([]byte(r.out), &doc); err != nil {
			t.Fatalf("%v: %s%s", err, r.out, r.err)
		}
		var got []string
		for _, f := range doc.Flows {
			got = append(got, strings.TrimPrefix(f.From, "n/")+">"+strings.TrimPrefix(f.To, "n/"))
		}
		if g := strings.Join(got, " "); g != tt.want {
			t.Errorf("family %q: %s, want %s", tt.family, g, tt.want)
		}
	}
}

// A grid that does not fit is cut into blocks; every pod keeps its row in each.
func TestMatrixOfManyPods(t *testing.T) {
	var b strings.Builder
	const pods = 130
	for i := range pods {
		fmt.Fprintf(&b, "---\napiVersion: v1\nkind: Pod\nmetadata: {name: pod-%03d, namespace: n}\nspec: {containers: [{name: c, image: i}]}\nstatus: {phase: Running, podIP: 10.0.%d.%d}\n", i, i/200, 1+i%200)
	}
	r := tierwall(t, b.String(), "matrix", "-m", "-")
	if r.code != 0 {
		t.Fatal(r.err)
	}
	dots, rows := 0, 0
	for _, line := range strings.Split(r.out, "\n") {
		if len(line) > 120 {
			t.Fatalf("line of %d columns", len(line))
		}
		if i := strings.Index(line, "n/pod-"); i >= 0 {
			rows++
			dots += strings.Count(line, ".")
		}
	}
	if dots != pods*pods || rows%pods != 0 || rows == pods {
		t.Errorf("%d cells in %d rows, want %d cells in several blocks of %d rows", dots, rows, pods*pods, pods)
	}
	if !strings.Contains(r.out, "16900 connections: 16900 Allow, 0 Drop, 0 Reject") {
		t.Error("no total")
	}
}
