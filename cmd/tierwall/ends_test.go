package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/tierwall/tierwall/cmd/internal/cli"
)

// workloads are manifests as people have them: no pod among them.
const workloads = `
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: c, image: i, ports: [{name: http, containerPort: 8080}]}]}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db, namespace: shop}
spec:
  replicas: 2
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec: {containers: [{name: c, image: i, ports: [{name: pg, containerPort: 5432}]}]}
---
apiVersion: v1
kind: Service
metadata: {name: db, namespace: shop}
spec: {clusterIP: 10.96.0.10, selector: {app: db}, ports: [{name: pg, port: 5432, targetPort: pg}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: db, namespace: shop}
spec:
  podSelector: {matchLabels: {app: db}}
  ingress: [{from: [{podSelector: {matchLabels: {app: web}}}], ports: [{port: 5432}]}]
`

// Every form of an end means the same pods in explain, and addresses that were made up
// are shown as such.
func TestWorkloadsAreEnds(t *testing.T) {
	for _, to := range []string{
		"sts/db", "statefulset/shop/db", "statefulset.apps/db", "shop/sts/db", "shop/db", "app=db", "shop/app=db", "app in (db)",
		"svc/db", "svc/shop/db", "db.shop", "db.shop.svc", "db.shop.svc.cluster.local", "db.shop.svc.cluster.local.",
		"pod/db-0", "shop/db-0", "db-0.db.shop.svc", "10.96.0.10",
	} {
		r := tierwall(t, workloads, "explain", "-m", "-", "--from", "deploy/web", "--to", to, "-p", "5432")
		if r.code != 0 || !strings.HasPrefix(r.out, "Allow  deploy/web (3 pods) -> "+to) || !strings.Contains(r.out, "made-up address 100.") {
			t.Errorf("--to %s: exit code %d\n%s%s", to, r.code, r.out, r.err)
		}
	}
	r := tierwall(t, workloads, "explain", "-m", "-", "--from", "deploy/web", "--to", "any", "-p", "5432", "-o", "json")
	var g struct {
		Agree                         bool
		Verdict                       string
		FromPods, ToPods, Connections int
		Cases                         []struct {
			Connections int
			From, To    []string
			Example     *explanation
		}
	}
	if err := json.Unmarshal([]byte(r.out), &g); err != nil || !g.Agree || g.Verdict != "Allow" || g.FromPods != 3 || g.ToPods != 5 || g.Connections != 3*5-3 || len(g.Cases) != 2 {
		t.Errorf("%v: %s%s", err, r.out, r.err)
	}
	if r := tierwall(t, workloads, "get", "policies", "-m", "-", "--pod", "sts/db"); r.code != 0 || !strings.Contains(r.out, "shop/db") {
		t.Errorf("get policies --pod sts/db: %s%s", r.out, r.err)
	}
	if r := tierwall(t, workloads, "explain", "-m", "-", "--from", "sts/db", "--to", "deploy/web", "-p", "http"); r.code != 0 || !strings.Contains(r.out, "all 6 connections") {
		t.Errorf("a named port: %s%s", r.out, r.err)
	}
	for to, want := range map[string]string{
		"deploy/wbe":  "no Deployment wbe with a pod that has an address; there is deploy/shop/web",
		"db.shpo.svc": "no Service shpo/db; there is shop/db",
		"app=bd":      "the values of app are db, web",
	} {
		if r := tierwall(t, workloads, "explain", "-m", "-", "--from", "deploy/web", "--to", to, "-p", "80"); r.code != cli.ExitUsage || !strings.Contains(r.err, want) {
			t.Errorf("--to %s: exit code %d, %s", to, r.code, r.err)
		}
	}
}

const byName = `
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, labels: {app: web}}
spec: {nodeName: n1, containers: [{name: c, image: i}]}
status: {podIP: 10.0.0.5, phase: Running}
---
apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: fq, namespace: shop}
spec:
  endpointSelector: {matchLabels: {app: web}}
  egress:
  - toFQDNs: [{matchName: api.example.com}]
    toPorts: [{ports: [{port: "443", protocol: TCP}]}]
  - toCIDR: [192.0.2.0/24]
---
apiVersion: crd.antrea.io/v1beta1
kind: NetworkPolicy
metadata: {name: no-evil, namespace: shop}
spec:
  priority: 5
  appliedTo: [{podSelector: {}}]
  egress: [{action: Drop, to: [{fqdn: "*.evil.example"}]}]
`

// An address may be behind a name that a rule is about: no verdict without the name.
func TestAddressDependsOnName(t *testing.T) {
	ask := func(to, port string, more ...string) result {
		return tierwall(t, byName, append([]string{"explain", "-m", "-", "--from", "shop/web", "--to", to, "-p", port}, more...)...)
	}
	r := ask("198.51.100.7", "443")
	for _, want := range []string{"depends on the name  shop/web", "Allow if api.example.com resolves to this address: by CiliumNetworkPolicy shop/fq", "Drop if none of these names does"} {
		if r.code != 0 || !strings.Contains(r.out, want) {
			t.Errorf("want %q:\n%s%s", want, r.out, r.err)
		}
	}
	if r := ask("192.0.2.7", "443"); !strings.HasPrefix(r.out, "depends on the name") || !strings.Contains(r.out, "Drop if *.evil.example resolves to this address") {
		t.Errorf("allowed by address, denied by name:\n%s", r.out)
	}
	// No name makes a difference there.
	if r := ask("198.51.100.7", "80"); !strings.HasPrefix(r.out, "Drop  shop/web") {
		t.Errorf("another port:\n%s", r.out)
	}
	if r := ask("198.51.100.0/24", "443"); !strings.HasPrefix(r.out, "depends on the name") {
		t.Errorf("a prefix:\n%s%s", r.out, r.err)
	}
	for to, want := range map[string]string{
		"api.example.com":  "Allow  shop/web (10.0.0.5) -> api.example.com  port 443/TCP",
		"API.Example.com.": "Allow  shop/web",
		"x.evil.example":   "Drop  shop/web (10.0.0.5) -> x.evil.example",
		// 192.0.2.0/24 is allowed whatever its name.
		"www.example.com": "mixed  shop/web (1 pod) -> www.example.com",
	} {
		if r := ask(to, "443"); r.code != 0 || !strings.HasPrefix(r.out, want) {
			t.Errorf("--to %s: want %q\n%s%s", to, want, r.out, r.err)
		}
	}
	var e struct {
		Verdict       string
		DependsOnName []struct {
			Names   []string
			Verdict string
		}
	}
	r = ask("198.51.100.7", "443", "-o", "json")
	if err := json.Unmarshal([]byte(r.out), &e); err != nil || e.Verdict != "Drop" || len(e.DependsOnName) < 3 || len(e.DependsOnName[0].Names) != 0 {
		t.Errorf("%v: %s", err, r.out)
	}
}
