package main

import (
	"os"
	"strings"
	"testing"

	"github.com/tierwall/tierwall/policy/diag"
)

// TestCheckSARIF: errors and warnings at their lines, valid by the schema.
func TestCheckSARIF(t *testing.T) {
	d := dir(t, map[string]string{
		"world.yaml":  shop,
		"nobody.yaml": strings.Replace(dbPolicy(1), "podSelector: {matchLabels: {app: db}}", "podSelector: {matchLabels: {app: nobody}}", 1),
	})
	t.Chdir(d)
	r := tierwall(t, "", "check", "-m", ".", "-o", "sarif")
	found := map[string]string{}
	for _, x := range validSARIF(t, r.out) {
		found[*x.RuleID] = *x.Locations[0].PhysicalLocation.ArtifactLocation.URI
	}
	if r.code != 0 || found["TW101"] != "nobody.yaml" {
		t.Errorf("exit code %d, found %v: %s", r.code, found, r.out)
	}
	if err := os.WriteFile("broken.yaml", []byte(strings.Replace(dbPolicy(1), "policyTypes:", "policytypes:", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	r = tierwall(t, "", "check", "-m", ".", "-o", "sarif")
	results := validSARIF(t, r.out)
	if r.code != 1 || len(results) == 0 || results[0].Level != "error" || *results[0].Locations[0].PhysicalLocation.Region.StartLine != 6 {
		t.Errorf("exit code %d: %s", r.code, r.out)
	}
}

// TestChecksHavePages: every ID has its section, with the sentence the program says.
func TestChecksHavePages(t *testing.T) {
	text, err := os.ReadFile("../../docs/checks.md")
	if err != nil {
		t.Fatal(err)
	}
	page := strings.Join(strings.Fields(string(text)), " ")
	seen := map[string]bool{}
	for _, c := range diag.Checks() {
		if seen[c.ID] || !strings.Contains(page, "## "+c.ID+" **"+c.Title+".**") {
			t.Errorf("%s: no section of its own that begins with %q", c.ID, c.Title)
		}
		seen[c.ID] = true
	}
}
