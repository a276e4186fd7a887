package main

import (
	"strings"
	"testing"
	"time"

	"github.com/tierwall/tierwall/cmd/internal/api"
	"github.com/tierwall/tierwall/cmd/internal/cluster"
	"github.com/tierwall/tierwall/policy/enforcement"
)

// stagedWorld has an enforced and a staged policy on both pods.
const stagedWorld = `
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop}
spec: {containers: [{name: c, image: i}]}
status: {phase: Running, podIP: 10.0.0.1}
---
apiVersion: v1
kind: Pod
metadata: {name: db, namespace: shop}
spec: {containers: [{name: c, image: i}]}
status: {phase: Running, podIP: 10.0.0.2}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: inforce, namespace: shop}
spec: {podSelector: {}, ingress: [{}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: draft, namespace: shop, annotations: {tierwall.io/stage: audit}}
spec: {podSelector: {}, policyTypes: [Ingress, Egress]}
---
apiVersion: policy.networking.k8s.io/v1alpha1
kind: AdminNetworkPolicy
metadata: {name: tomorrow, annotations: {tierwall.io/stage: audit}}
spec:
  priority: 10
  subject: {namespaces: {}}
  ingress: [{name: none, action: Deny, from: [{namespaces: {}}]}]
---
apiVersion: policy.networking.k8s.io/v1alpha1
kind: AdminNetworkPolicy
metadata: {name: empty, annotations: {tierwall.io/stage: audit}}
spec: {priority: 11, subject: {namespaces: {}}}
`

// Staged policies looked like enforced ones in lists, in explain and in status.
func TestStagedPoliciesAreMarked(t *testing.T) {
	ask := func(args string) string {
		t.Helper()
		r := tierwall(t, stagedWorld, append(strings.Fields(args), "-m", "-")...)
		if r.code != 0 {
			t.Fatalf("%s: exit code %d: %s%s", args, r.code, r.out, r.err)
		}
		return r.out
	}
	for _, args := range []string{"get policies", "get policies -o wide", "get policies --pod shop/db"} {
		rows := fields(ask(args))
		stage := -1
		for i, name := range rows[0] {
			if name == "STAGE" {
				stage = i
			}
		}
		if stage < 0 {
			t.Fatalf("%s: no column STAGE in %v", args, rows[0])
		}
		for _, row := range rows[1:] {
			want := "audit"
			if row[0] == "inforce" {
				want = "enforce"
			}
			if row[stage] != want {
				t.Errorf("%s: %s: stage %s, want %s", args, row[0], row[stage], want)
			}
		}
	}
	var list struct {
		Policies []struct{ Name, Stage string }
	}
	decode(t, ask("get policies -o json"), &list)
	for _, p := range list.Policies {
		if (p.Stage == "audit") != (p.Name != "inforce") {
			t.Errorf("JSON: %+v", p)
		}
	}

	text := ask("explain --from web --to db -p 80/TCP --all")
	for _, line := range strings.Split(text, "\n") {
		if names := strings.Contains(line, "draft") || strings.Contains(line, "tomorrow"); names &&
			!strings.Contains(line, "staged") && !strings.Contains(line, "would") {
			t.Errorf("explain does not mark %q", line)
		}
	}
	if !strings.HasPrefix(text, "Allow") || !strings.Contains(text, "would be isolated by NetworkPolicy shop/draft") {
		t.Errorf("explain:\n%s", text)
	}
	var e struct {
		Trace struct {
			Ingress []struct {
				Isolations, StagedIsolations []string
				Rules                        []struct{ Policy, Stage string }
			}
		}
	}
	decode(t, ask("explain --from web --to db -p 80/TCP -o json"), &e)
	found := 0
	for _, b := range e.Trace.Ingress {
		for _, r := range b.Rules {
			if strings.Contains(r.Policy, "tomorrow") && r.Stage == "audit" {
				found++
			}
		}
		if len(b.Isolations) == 2 && len(b.StagedIsolations) == 1 && strings.HasSuffix(b.StagedIsolations[0], "shop/draft") {
			found++
		}
	}
	if found != 2 {
		t.Errorf("explain -o json: %+v", e.Trace.Ingress)
	}
	if got := ask("matrix"); !strings.Contains(got, "4 connections: 4 Allow") || !strings.Contains(got, "they would change 2 of them") {
		t.Errorf("matrix:\n%s", got)
	}
	if got := ask("check"); !strings.Contains(got, "4 policies, 3 of them staged (not enforced): 0 errors") {
		t.Errorf("check:\n%s", got)
	}
}

func TestStatusMarksStaged(t *testing.T) {
	st := api.Status{Node: "n1", Ready: true, Started: time.Now()}
	st.Policy.Objects, st.Policy.Staged, st.Source.Kind = 3, 2, "manifests"
	address := serveDaemon(t, api.Handler(api.Config{Status: func() api.Status { return st }}))
	if r := tierwall(t, "", "status", "--local", "--address", address); !strings.Contains(r.out, "2 staged: recorded, not enforced") {
		t.Errorf("one node:\n%s", r.out)
	}
	if r := tierwall(t, "", "status", "--local", "--address", address, "-o", "json"); !strings.Contains(r.out, `"staged": 2`) {
		t.Errorf("JSON:\n%s", r.out)
	}
	a := statusAnswer{Nodes: []nodeStatus{{Node: "n1", Status: &st}, {Node: "n2", Error: "gone"}}}
	var b strings.Builder
	if err := a.write(&b, false, time.Now()); err != nil {
		t.Fatal(err)
	}
	rows := fields(b.String())
	if last := len(rows[0]) - 1; rows[0][last] != "STAGED" || rows[1][last] != "2" || rows[2][last] != "-" {
		t.Errorf("table:\n%s", b.String())
	}
}

// "wait --for=enforced" said that a staged policy is enforced.
func TestWaitForStaged(t *testing.T) {
	v := cluster.Version{Object: enforcement.Object{Resource: "networkpolicies.networking.k8s.io", Namespace: "shop", Name: "draft"}, Staged: true}
	for asJSON, want := range map[bool]string{false: "none enforces it", true: `"enforced": false`} {
		var b strings.Builder
		if err := writeStagedWait(&b, &v, asJSON); err == nil || !strings.Contains(b.String(), want) {
			t.Errorf("%v: %s", err, b.String())
		}
	}
}
