package main

import (
	"encoding/json"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/tierwall/tierwall/cmd/internal/cli"
)

func TestDidYouMean(t *testing.T) {
	for args, want := range map[string]string{
		"chekc":                           `unknown command "chekc" for "tierwall"; did you mean "check"?`,
		"matrx -m " + quickstart:          `did you mean "matrix"?`,
		"get polices -m " + quickstart:    `unknown command "polices" for "tierwall get"; did you mean "policies"?`,
		"matrix --manifest " + quickstart: `unknown flag: --manifest; did you mean "--manifests"?`,
		"frobnicate":                      `unknown command "frobnicate" for "tierwall"` + "\n",
	} {
		if r := tierwall(t, "", strings.Fields(args)...); r.code != cli.ExitUsage || !strings.Contains(r.err, want) {
			t.Errorf("%s: exit code %d, %s", args, r.code, r.err)
		}
	}
}

func TestVersionFlag(t *testing.T) {
	if r := tierwall(t, "", "--version"); r.code != 0 || !strings.HasPrefix(r.out, "tierwall ") {
		t.Errorf("%+v", r)
	}
}

func TestHelpHasGroups(t *testing.T) {
	r := tierwall(t, "", "--help")
	at := -1
	for _, title := range []string{"Ask policies:", "Assure policies:", "Look at a cluster or node:", "Additional Commands:"} {
		next := strings.Index(r.out, title)
		if next <= at {
			t.Errorf("%q is not behind the group before it:\n%s", title, r.out)
		}
		at = next
	}
}

func TestCheckFailOnWarnings(t *testing.T) {
	const odd = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n"
	if r := tierwall(t, odd, "check", "-m", "-"); r.code != 0 {
		t.Errorf("%+v", r)
	}
	if r := tierwall(t, odd, "check", "-m", "-", "--fail-on", "warnings"); r.code != cli.ExitFinding || !strings.Contains(r.out, "1 warning") {
		t.Errorf("%+v", r)
	}
	if r := tierwall(t, "", "check", "-m", quickstart, "--fail-on", "warnings"); r.code != 0 {
		t.Errorf("no warnings: %+v", r)
	}
}

func TestStatusWithoutADaemonIsOneSentence(t *testing.T) {
	t.Setenv("KUBECONFIG", "/nonexistent")
	r := tierwall(t, "", "status", "--local", "--address", "127.0.0.1:1")
	if r.code != cli.ExitUsage || r.out != "" || strings.Count(r.err, "\n") != 1 || !strings.Contains(r.err, "no daemon runs on this machine") {
		t.Errorf("%+v", r)
	}
}

// The forms that kubectl has are made of the JSON, whatever the command.
func TestPrinters(t *testing.T) {
	ask := func(form string) result {
		return tierwall(t, "", "get", "policies", "-m", quickstart, "-o", form)
	}
	var fromJSON, fromYAML any
	if err := json.Unmarshal([]byte(ask("json").out), &fromJSON); err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal([]byte(ask("yaml").out), &fromYAML); err != nil {
		t.Fatal(err)
	}
	a, _ := json.Marshal(fromJSON)
	b, _ := json.Marshal(fromYAML)
	if string(a) != string(b) {
		t.Errorf("YAML says something else:\n%s\n%s", a, b)
	}
	if r := ask("jsonpath={.policies[*].name}"); r.code != 0 || !strings.Contains(r.out, "backend") || strings.Count(r.out, "\n") != 1 {
		t.Errorf("%+v", r)
	}
	if r := ask("custom-columns=NAME:.name,NS:.namespace,TIER:.tierPriority"); r.code != 0 || !strings.HasPrefix(r.out, "NAME ") || !strings.Contains(r.out, "shop") {
		t.Errorf("%+v", r)
	}
	for _, form := range []string{"xml", "jsonpath={", "custom-columns=NAME"} {
		if r := ask(form); r.code != cli.ExitUsage {
			t.Errorf("%s: %+v", form, r)
		}
	}
	if r := tierwall(t, "", "explain", "-m", quickstart, "--from", "frontend", "--to", "db", "-p", "5432", "-o", "jsonpath={.verdict}"); r.out != "Drop\n" {
		t.Errorf("explain: %+v", r)
	}
}
