package main

import (
	"encoding/json"
	"errors"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/cmd/internal/api"
	"github.com/tierwall/tierwall/cmd/internal/cli"
	"github.com/tierwall/tierwall/conntrack"
	"github.com/tierwall/tierwall/dataplane/hits"
)

// idle is an engine without connections.
type idle struct{}

func (idle) Flows(func(string, conntrack.Record) bool) {}
func (idle) TableOf(uint64) *classifier.Table          { return nil }
func (idle) Table() *classifier.Table                  { return nil }

func dbRule(index int, n uint64, last time.Time, since time.Time) hits.Rule {
	r := hits.Rule{
		ID: hits.ID{
			Policy:    classifier.PolicyRef{Group: "networking.k8s.io", Kind: "NetworkPolicy", Namespace: "shop", Name: "db"},
			Direction: flow.Ingress, Index: index,
		},
		Hits: n, Since: since.UnixNano(),
	}
	if !last.IsZero() {
		r.Last = last.UnixNano()
	}
	return r
}

// hitsDaemon serves a daemon that counts.
func hitsDaemon(t *testing.T, node string, rules ...hits.Rule) target {
	t.Helper()
	s := httptest.NewServer(api.Handler(api.Config{
		Node: node, Engine: idle{}, Status: func() api.Status { return api.Status{} }, Hits: func() ([]hits.Rule, error) { return rules, nil },
	}))
	t.Cleanup(s.Close)
	return target{Node: node, Client: &api.Client{HTTP: s.Client(), Base: s.URL}, close: func() {}}
}

// Hits of all nodes add up; a rule is unused only if no node used it, and the time it
// was watched is the shortest. A node that is down is said and not silent.
func TestUsageOverNodes(t *testing.T) {
	now := time.Now()
	ago := func(h int) time.Time { return now.Add(-time.Duration(h) * time.Hour) }
	targets := []target{
		hitsDaemon(t, "n1", dbRule(0, 3, ago(5), ago(48)), dbRule(1, 0, time.Time{}, ago(48)), dbRule(-1, 0, time.Time{}, ago(48))),
		hitsDaemon(t, "n2", dbRule(0, 4, ago(2), ago(30)), dbRule(1, 0, time.Time{}, ago(30)), dbRule(-1, 9, ago(1), ago(30))),
		{Node: "n3", Why: "no daemon on this node", close: func() {}},
	}
	u, errs := usageOf(t.Context(), targets, time.Time{})
	if errs[0] != nil || errs[1] != nil || errs[2] == nil || u.failed() != 1 {
		t.Fatalf("%v, %d failed", errs, u.failed())
	}
	byRule := map[string]ruleUsage{}
	for _, r := range u.Rules {
		byRule[r.Rule] = r
	}
	if r := byRule["ingress[0]"]; r.Hits != 7 || r.Unused || r.Nodes != 2 || !r.Last.Equal(ago(2)) {
		t.Errorf("%+v", r)
	}
	if r := byRule["ingress[1]"]; !r.Unused || r.Policy != "NetworkPolicy shop/db" || !r.Since.Equal(ago(30)) {
		t.Errorf("%+v", r)
	}
	if r := byRule["isolation"]; r.Unused || r.Hits != 9 {
		t.Errorf("%+v", r)
	}
	var b strings.Builder
	if err := u.write(&b, now); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"2 of 3 daemons answered. Of 3 rules 2 decided something.", "n3 did not answer",
		"NetworkPolicy shop/db  ingress    ingress[1]  enforce  never  30h      2",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is not in\n%s", want, b.String())
		}
	}
	// What matched only before --since is unused, and a shorter time of watching is said.
	u, _ = usageOf(t.Context(), targets[:2], ago(24*30))
	b.Reset()
	if err := errors.Join(u.write(&b, now)); err != nil || !strings.Contains(b.String(), "watched is less than that") {
		t.Errorf("%v\n%s", err, b.String())
	}
	u, _ = usageOf(t.Context(), targets[:2], ago(1).Add(30*time.Minute))
	for _, r := range u.Rules {
		if !r.Unused {
			t.Errorf("half an hour ago nothing matched: %+v", r)
		}
	}
}

const usagePolicies = `
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, labels: {app: web}}
spec: {containers: [{name: c, image: i}]}
---
apiVersion: v1
kind: Pod
metadata: {name: db, namespace: shop, labels: {app: db}}
spec: {containers: [{name: c, image: i}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: db, namespace: shop}
spec: {podSelector: {matchLabels: {app: db}}, policyTypes: [Ingress]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web, namespace: shop}
spec: {podSelector: {matchLabels: {app: web}}, policyTypes: [Egress], egress: [{to: [{podSelector: {matchLabels: {app: db}}}]}]}
`

func TestUsageFindsHalfOpenRules(t *testing.T) {
	dir := writeManifests(t, usagePolicies)
	d := hitsDaemon(t, "n1", dbRule(-1, 0, time.Time{}, time.Now().Add(-time.Hour)))
	address := strings.TrimPrefix(d.Client.Base, "http://")
	r := tierwall(t, "", "usage", "--local", "--address", address, "--manifests", dir)
	if r.code != 0 || !strings.Contains(r.out, "Never matched\nPOLICY") || !strings.Contains(r.out, "shop/web -> shop/db") {
		t.Errorf("%+v", r)
	}
	r = tierwall(t, "", "usage", "--local", "--address", address, "--manifests", dir, "-o", "json")
	var u usageAnswer
	if err := json.Unmarshal([]byte(r.out), &u); err != nil || len(u.HalfOpen) != 1 || len(u.Rules) != 1 || !u.Rules[0].Unused {
		t.Errorf("%v %+v", err, r)
	}
	if r := tierwall(t, "", "usage", "--local", "--address", address); r.code != 0 || !strings.Contains(r.out, "--manifests") {
		t.Errorf("without policies: %+v", r)
	}
	if r := tierwall(t, "", "usage", "--local", "--address", "127.0.0.1:1"); r.code == 0 {
		t.Errorf("nobody there: %+v", r)
	}
	if r := tierwall(t, "", "usage", "--local", "--since", "soon"); r.code != cli.ExitUsage {
		t.Errorf("%+v", r)
	}
}

// "get policies -o wide" has HITS, LAST and STAGE where a daemon answers.
func TestGetPoliciesShowsHits(t *testing.T) {
	dir := writeManifests(t, usagePolicies)
	d := hitsDaemon(t, "n1", dbRule(0, 40, time.Now().Add(-3*time.Hour), time.Now()), dbRule(-1, 2, time.Now().Add(-5*time.Hour), time.Now()))
	address := strings.TrimPrefix(d.Client.Base, "http://")
	r := tierwall(t, "", "get", "policies", "--manifests", dir, "-o", "wide", "--local", "--address", address)
	head, rest, _ := strings.Cut(r.out, "\n")
	if r.code != 0 || !strings.Contains(head, "STAGE") || !strings.Contains(head, "HITS LAST") {
		t.Errorf("%+v", r)
	}
	for line := range strings.Lines(rest) {
		if want := strings.HasPrefix(line, "db "); want != strings.Contains(line, " 42   3h ago ") {
			t.Errorf("%q", line)
		}
	}
	r = tierwall(t, "", "get", "policies", "--manifests", dir, "-o", "wide", "--local", "--address", "127.0.0.1:1")
	if r.code != 0 || !strings.Contains(r.err, "its hits are missing") || strings.Contains(r.out, "HITS") {
		t.Errorf("nobody there: %+v", r)
	}
}

func writeManifests(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "all.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
