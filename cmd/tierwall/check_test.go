package main

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestCheckContract(t *testing.T) {
	r := tierwall(t, "", "check", "-m", broken, "-o", "json")
	if r.code != 1 {
		t.Errorf("exit code %d, want 1", r.code)
	}
	var doc map[string][]map[string]string
	if err := json.Unmarshal([]byte(r.out), &doc); err != nil {
		t.Fatal(err)
	}
	if _, ok := doc["warnings"]; !ok || len(doc) != 2 {
		t.Errorf("want the keys errors and warnings, got %s", r.out)
	}
	for _, want := range []struct{ file, object, path string }{
		{"matchlabels.yaml", "NetworkPolicy shop/case", "spec.podSelector.matchlabels"},
		{"from-under-egress.yaml", "NetworkPolicy shop/direction", "spec.egress[0].from"},
		{"two-selectors.yaml", "AdminNetworkPolicy subject", "spec.subject"},
	} {
		found := false
		for _, e := range doc["errors"] {
			if strings.Contains(e["file"], want.file) && e["object"] == want.object && e["path"] == want.path {
				found = true
				if e["message"] == "" || e["hint"] == "" {
					t.Errorf("%s: no message or no hint: %v", want.file, e)
				}
			}
		}
		if !found {
			t.Errorf("no error about %v in %s", want, r.out)
		}
	}
}

func TestCheckCleanIsEmptyLists(t *testing.T) {
	r := tierwall(t, "", "check", "-m", quickstart, "-o", "json")
	if r.code != 0 || strings.Join(strings.Fields(r.out), "") != `{"errors":[],"warnings":[]}` {
		t.Errorf("exit code %d: %s", r.code, r.out)
	}
}

// TestFindingsWithoutTheHintField: every finding has the field of the contract, also
// where there is nothing to do.
func TestFindingsWithoutTheHintField(t *testing.T) {
	r := tierwall(t, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n", "check", "-m", "-", "-o", "json")
	if !strings.Contains(r.out, "1 object ignored, not used for policy: 1 ConfigMap") || !strings.Contains(r.out, `"hint": ""`) {
		t.Errorf("exit code %d: %s", r.code, r.out)
	}
}

func TestCheckStandardInput(t *testing.T) {
	r := tierwall(t, "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: a}\nspec: {podselector: {}}\n", "check", "-m", "-")
	if r.code != 1 || !strings.Contains(r.out, "podSelector") {
		t.Errorf("exit code %d: %s", r.code, r.out)
	}
}

// Warnings alone are no reason to fail.
func TestCheckLints(t *testing.T) {
	const nobody = `apiVersion: v1
kind: Pod
metadata: {name: a, namespace: n, labels: {app: a}}
spec: {containers: [{name: c, image: i}]}
status: {phase: Running, podIP: 10.0.0.1}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: nobody, namespace: n}
spec: {podSelector: {matchLabels: {app: b}}}
`
	r := tierwall(t, nobody, "check", "-m", "-")
	if r.code != 0 || !strings.Contains(r.out, "warning: ") || !strings.Contains(r.out, "NetworkPolicy n/nobody") {
		t.Errorf("exit code %d: %s", r.code, r.out)
	}
}
