package ci

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

const world = `apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  selector: {matchLabels: {app: web}}
  template: {metadata: {labels: {app: web}}, spec: {containers: [{name: c, image: i}]}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: db, namespace: shop}
spec:
  selector: {matchLabels: {app: db}}
  template: {metadata: {labels: {app: db}}, spec: {containers: [{name: c, image: i}]}}
`

const policy = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: db, namespace: shop}
spec:
  podSelector: {matchLabels: {app: db}}
  policyTypes: [Ingress]
  ingress:
  - from: [{podSelector: {matchLabels: {app: web}}}]
    ports: [{port: 5432}]
`

const intents = `apiVersion: tierwall.io/v1
kind: Intent
tests:
- {from: shop/web, to: shop/db, port: 5432, expect: allow}
- {from: shop/web, to: shop/db, port: 22, expect: deny}
`

// step is one run of the script in a repository.
type step struct {
	t    *testing.T
	repo string
	path string // PATH with the program
}

func newStep(t *testing.T) *step {
	t.Helper()
	bin := t.TempDir()
	if out, err := exec.Command("go", "build", "-o", filepath.Join(bin, "tierwall"), "../../cmd/tierwall").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	s := &step{t, t.TempDir(), bin + ":" + os.Getenv("PATH")}
	s.write("policies/world.yaml", world)
	s.write("policies/policy.yaml", policy)
	s.write("tests/intents.yaml", intents)
	s.git("init", "-q", "-b", "main")
	s.git("add", "-A")
	s.git("commit", "-qm", "one")
	s.git("checkout", "-qb", "change")
	return s
}

func (s *step) write(name, text string) {
	s.t.Helper()
	path := filepath.Join(s.repo, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		s.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		s.t.Fatal(err)
	}
}

func (s *step) git(args ...string) {
	s.t.Helper()
	cmd := exec.Command("git", append([]string{"-C", s.repo, "-c", "user.name=t", "-c", "user.email=t@example.com"}, args...)...)
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null")
	if out, err := cmd.CombinedOutput(); err != nil {
		s.t.Fatalf("git %v: %v: %s", args, err, out)
	}
}

// run runs the script as both pipelines do: at the root, told by variables.
func (s *step) run(env ...string) (code int, output string) {
	s.t.Helper()
	script, err := filepath.Abs("tierwall-ci.sh")
	if err != nil {
		s.t.Fatal(err)
	}
	cmd := exec.Command(script)
	cmd.Dir = s.repo
	cmd.Env = append([]string{
		"PATH=" + s.path, "HOME=" + s.repo, "TIERWALL_MANIFESTS=policies/", "TIERWALL_INTENTS=tests/", "TIERWALL_BASE=main",
		"GITHUB_STEP_SUMMARY=" + filepath.Join(s.repo, "summary.md"),
	}, env...)
	out, _ := cmd.CombinedOutput() // the exit code is looked at
	return cmd.ProcessState.ExitCode(), string(out)
}

func (s *step) report(name string) string {
	s.t.Helper()
	text, err := os.ReadFile(filepath.Join(s.repo, "tierwall-reports", name))
	if err != nil {
		s.t.Error(err)
	}
	return string(text)
}

func TestStep(t *testing.T) {
	s := newStep(t)
	if code, out := s.run("TIERWALL_FAIL_ON=any"); code != 0 || !strings.Contains(out, "2 passed, 0 failed") || !strings.Contains(out, "No connection is decided") {
		t.Fatalf("nothing changed: exit code %d: %s", code, out)
	}

	// A change that opens too much fails the test, and shows at its line.
	s.write("policies/policy.yaml", strings.Replace(policy, "    ports: [{port: 5432}]\n", "", 1))
	code, out := s.run("TIERWALL_FAIL_ON=opened")
	if code != 1 || !strings.Contains(out, "1 passed, 1 failed") || !strings.Contains(out, "opened") {
		t.Errorf("opened: exit code %d: %s", code, out)
	}
	if md := s.report("diff.md"); !strings.Contains(md, "everything except TCP 5432") || strings.Count(md, "\n") > 60 {
		t.Errorf("diff.md: %s", md)
	}
	if summary, err := os.ReadFile(filepath.Join(s.repo, "summary.md")); err != nil || !strings.Contains(string(summary), "everything except TCP 5432") {
		t.Errorf("summary: %v %s", err, summary)
	}
	if x := s.report("junit.xml"); !strings.Contains(x, `failures="1"`) {
		t.Errorf("junit.xml: %s", x)
	}
	if x := s.report("test.sarif"); !strings.Contains(x, `"uri": "policies/policy.yaml"`) || !strings.Contains(x, `"startLine": 8`) {
		t.Errorf("test.sarif: %s", x)
	}
	var diff struct{ Summary struct{ Opened, Closed int } }
	if err := json.Unmarshal([]byte(s.report("diff.json")), &diff); err != nil || diff.Summary.Opened == 0 || diff.Summary.Closed != 0 {
		t.Errorf("diff.json: %v %+v", err, diff)
	}
	// Without tests, and where opening is not forbidden, the step passes.
	if code, out := s.run("TIERWALL_INTENTS="); code != 0 {
		t.Errorf("no fail-on: exit code %d: %s", code, out)
	}
}

// TestStepCannotAsk: what cannot be asked is an error, and leaves no report that
// looks like no findings.
func TestStepCannotAsk(t *testing.T) {
	s := newStep(t)
	if code, out := s.run("TIERWALL_BASE=nowhere"); code != 2 || !strings.Contains(out, "no git revision nowhere") {
		t.Errorf("no base: exit code %d: %s", code, out)
	}
	s.write("tests/intents.yaml", strings.Replace(intents, "shop/web", "shop/wbe", 1))
	code, out := s.run()
	if code != 2 || !strings.Contains(out, "intents.yaml:4") {
		t.Errorf("unknown workload: exit code %d: %s", code, out)
	}
	if _, err := os.Stat(filepath.Join(s.repo, "tierwall-reports/junit.xml")); err == nil {
		t.Error("a report of tests that were not run")
	}
	s.write("policies/policy.yaml", strings.Replace(policy, "podSelector: {match", "podselector: {match", 1))
	s.write("tests/intents.yaml", intents)
	if code, out := s.run(); code != 2 || !strings.Contains(out, "podselector") || !strings.Contains(s.report("check.sarif"), "TW002") {
		t.Errorf("broken policy: exit code %d: %s", code, out)
	}
}

// TestPipelinesRunTheScript: both hosts' files are YAML, run the script, and set only
// variables that it reads.
func TestPipelinesRunTheScript(t *testing.T) {
	script, err := os.ReadFile("tierwall-ci.sh")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"github/action.yml", "gitlab/tierwall.yml"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var v map[string]any
		if err := yaml.UnmarshalStrict(text, &v); err != nil {
			t.Errorf("%s: %v", file, err)
		}
		if !strings.Contains(string(text), "/tierwall-ci.sh") {
			t.Errorf("%s does not run the script", file)
		}
		for _, name := range regexp.MustCompile(`TIERWALL_[A-Z_]+`).FindAllString(string(text), -1) {
			if name != "TIERWALL_VERSION" && !strings.Contains(string(script), name) {
				t.Errorf("%s sets %s, which the script does not read", file, name)
			}
		}
	}
}
