package main

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// shop is a world of workloads: nobody wrote its pods.
const shop = `apiVersion: v1
kind: Namespace
metadata: {name: shop, labels: {tier: prod}}
---
apiVersion: v1
kind: Namespace
metadata: {name: lab, labels: {tier: dev}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template: {metadata: {labels: {app: web}}, spec: {containers: [{name: c, image: i, ports: [{name: http, containerPort: 8080}]}]}}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db, namespace: shop}
spec:
  serviceName: db
  selector: {matchLabels: {app: db}}
  template: {metadata: {labels: {app: db}}, spec: {containers: [{name: c, image: i}]}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: tool, namespace: lab}
spec:
  selector: {matchLabels: {app: tool}}
  template: {metadata: {labels: {app: tool}}, spec: {containers: [{name: c, image: i}]}}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {selector: {app: web}, clusterIP: 10.96.0.7, ports: [{port: 80, targetPort: http}]}
`

// dbPolicy lets the web workload reach the database on a port.
func dbPolicy(port int) string {
	return fmt.Sprintf(`apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: db, namespace: shop}
spec:
  podSelector: {matchLabels: {app: db}}
  policyTypes: [Ingress]
  ingress:
  - from: [{podSelector: {matchLabels: {app: web}}}]
    ports: [{port: %d}]
`, port)
}

// dir writes files to a directory of their own.
func dir(t testing.TB, files map[string]string) string {
	t.Helper()
	d := t.TempDir()
	for name, text := range files {
		path := filepath.Join(d, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

func shopWith(t testing.TB, port int) string {
	return dir(t, map[string]string{"world.yaml": shop, "policy.yaml": dbPolicy(port)})
}

type diffAnswer struct {
	Changes []struct {
		From, To      string
		Family        int
		Protocol      string
		Ports         [2]int
		Before, After struct{ Verdict, Policy, Rule string }
		Kind          string
	}
	Summary        map[string]int
	Added, Removed []string
}

func TestDiffContract(t *testing.T) {
	old, now := shopWith(t, 5432), shopWith(t, 5433)
	for _, tt := range []struct {
		flag string
		from []string
	}{{"--pods=false", []string{"shop/web"}}, {"--pods", []string{"shop/web-0", "shop/web-1"}}} {
		r := tierwall(t, "", "diff", old, now, tt.flag, "-o", "json")
		if r.code != 1 {
			t.Fatalf("exit code %d: %s", r.code, r.err)
		}
		var got diffAnswer
		if err := json.Unmarshal([]byte(r.out), &got); err != nil {
			t.Fatalf("%v in %s", err, r.out)
		}
		var lines, want []string
		for _, c := range got.Changes {
			lines = append(lines, fmt.Sprint(c.Kind, c.From, c.To, c.Family, c.Protocol, c.Ports, c.Before, c.After))
		}
		const policy = "networkpolicy.networking.k8s.io/shop/db"
		for _, kind := range []string{"opened", "closed"} {
			for _, from := range tt.from {
				for _, family := range []int{4, 6} {
					to, ports, before, after := "shop/db", [2]int{5433, 5433}, struct{ V, P, R string }{"Drop", policy, ""}, struct{ V, P, R string }{"Allow", policy, "ingress[0]"}
					if kind == "closed" {
						ports, before, after = [2]int{5432, 5432}, after, before
					}
					if tt.flag == "--pods" {
						to = "shop/db-0"
					}
					want = append(want, fmt.Sprint(kind, from, to, family, "TCP", ports, before, after))
				}
			}
		}
		if d := cmp.Diff(want, lines); d != "" {
			t.Errorf("%s (-want +got)\n%s", tt.flag, d)
		}
		if n := 2 * len(tt.from); got.Summary["opened"] != n || got.Summary["closed"] != n || got.Summary["rule"] != 0 || got.Added == nil || got.Removed == nil {
			t.Errorf("%s: %+v", tt.flag, got)
		}
	}
}

// TestDiffNamesAllIsolations: no policy alone is credited with a default deny.
func TestDiffNamesAllIsolations(t *testing.T) {
	all := strings.NewReplacer("{name: db,", "{name: all,", "{matchLabels: {app: db}}", "{}").Replace(dbPolicy(1))
	all = all[:strings.Index(all, "  ingress:")]
	old := dir(t, map[string]string{"world.yaml": shop, "policy.yaml": dbPolicy(5432), "all.yaml": all})
	now := dir(t, map[string]string{"world.yaml": shop, "policy.yaml": dbPolicy(5433), "all.yaml": all})
	const first, second = "networkpolicy.networking.k8s.io/shop/all", "networkpolicy.networking.k8s.io/shop/db"
	for format, want := range map[string]string{
		"text":     "isolated by networkpolicy shop/all, networkpolicy shop/db, ingress",
		"markdown": "isolated by networkpolicy shop/all, networkpolicy shop/db, ingress",
		"csv":      `"` + first + "," + second + `"`,
		"json":     `"policy":"` + first + `","rule":"","direction":"ingress","isolations":["` + first + `","` + second + `"]`,
	} {
		if r := tierwall(t, "", "diff", old, now, "-o", format); !strings.Contains(r.out, want) {
			t.Errorf("-o %s: no %q in\n%s%s", format, want, r.out, r.err)
		}
	}
}

// TestDiffLeavesOutOtherIsolations: a change has another verdict, policy or rule. One
// more policy that isolates changes none of them, if another one is still named.
func TestDiffLeavesOutOtherIsolations(t *testing.T) {
	more := strings.Replace(dbPolicy(5432), "name: db,", "name: more,", 1)
	more = more[:strings.Index(more, "  ingress:")]
	old := shopWith(t, 5432)
	now := dir(t, map[string]string{"world.yaml": shop, "policy.yaml": dbPolicy(5432), "more.yaml": more})
	if r := tierwall(t, "", "diff", old, now); r.code != 0 || !strings.Contains(r.out, "No connection is decided in another way") {
		t.Errorf("exit code %d: %s%s", r.code, r.out, r.err)
	}
	// Where the new one comes first, it is the one that is named.
	now = dir(t, map[string]string{"world.yaml": shop, "policy.yaml": dbPolicy(5432), "more.yaml": strings.Replace(more, "name: more,", "name: a,", 1)})
	if r := tierwall(t, "", "diff", old, now); r.code != 1 || !strings.Contains(r.out, "0 opened, 0 closed") {
		t.Errorf("exit code %d: %s%s", r.code, r.out, r.err)
	}
}

func TestDiffFailOn(t *testing.T) {
	old, now := shopWith(t, 5432), dir(t, map[string]string{"world.yaml": shop, "p.yaml": "# none"})
	for failOn, want := range map[string]int{"any": 1, "opened": 1, "closed": 0, "none": 0} {
		if r := tierwall(t, "", "diff", old, now, "--fail-on", failOn); r.code != want {
			t.Errorf("--fail-on %s: exit code %d, want %d", failOn, r.code, want)
		}
	}
	if r := tierwall(t, "", "diff", old, old); r.code != 0 || !strings.Contains(r.out, "No connection is decided in another way") {
		t.Errorf("no change: exit code %d: %s", r.code, r.out)
	}
	if r := tierwall(t, "", "diff", old, now, "--fail-on", "openend"); r.code != 2 {
		t.Errorf("a misspelt --fail-on: exit code %d", r.code)
	}
}

// TestDiffListsWhatIsNotCompared: a workload that only one state has is no change.
func TestDiffListsWhatIsNotCompared(t *testing.T) {
	now := dir(t, map[string]string{"world.yaml": strings.Replace(shop, "name: tool, namespace", "name: tools, namespace", 1), "policy.yaml": dbPolicy(5432)})
	r := tierwall(t, "", "diff", shopWith(t, 5432), now, "-o", "json")
	var got diffAnswer
	if err := json.Unmarshal([]byte(r.out), &got); err != nil {
		t.Fatal(err)
	}
	if r.code != 0 || len(got.Changes) != 0 || fmt.Sprint(got.Added, got.Removed) != "[lab/tools] [lab/tool]" {
		t.Errorf("exit code %d: %s", r.code, r.out)
	}
}

func gitRun(t testing.TB, d string, args ...string) {
	t.Helper()
	cmd := exec.Command("git", append([]string{"-C", d, "-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "commit.gpgsign=false"}, args...)...)
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("git %v: %v\n%s", args, err, out)
	}
}

// repository has the shop in policies/, with port 5432 in revision "main" and 5433
// in the working tree. A file with attribute export-ignore is a policy all the same.
func repository(t testing.TB) string {
	d := dir(t, map[string]string{"policies/world.yaml": shop, "policies/policy.yaml": dbPolicy(5432), ".gitattributes": "policies/policy.yaml export-ignore\n"})
	gitRun(t, d, "init", "-q", "-b", "main")
	gitRun(t, d, "add", "-A")
	gitRun(t, d, "commit", "-qm", "one")
	if err := os.WriteFile(filepath.Join(d, "policies/policy.yaml"), []byte(dbPolicy(5433)), 0o644); err != nil {
		t.Fatal(err)
	}
	return d
}

func TestDiffGit(t *testing.T) {
	d := repository(t)
	path := filepath.Join(d, "policies")
	for _, args := range [][]string{{"--git", "main", path}, {"--base", "main", path}} {
		r := tierwall(t, "", append([]string{"diff"}, args...)...)
		if r.code != 1 || !strings.Contains(r.out, "TCP 5433") || strings.Contains(r.out, "no policy applies") {
			t.Errorf("%v: exit code %d: %s%s", args, r.code, r.out, r.err)
		}
	}
	gitRun(t, d, "commit", "-qam", "two")
	if r := tierwall(t, "", "diff", "--git", "main~1..main", path); r.code != 1 || !strings.Contains(r.out, "TCP 5433") {
		t.Errorf("two revisions: exit code %d: %s%s", r.code, r.out, r.err)
	}
	t.Chdir(path)
	if r := tierwall(t, "", "diff", "--git", "main~1"); r.code != 1 || !strings.Contains(r.out, "TCP 5433") {
		t.Errorf("the current directory: exit code %d: %s%s", r.code, r.out, r.err)
	}
	for what, args := range map[string][]string{
		"no git revision nowhere": {"--git", "nowhere", path},
		"no git revision -x":      {"--git=-x", path},
		"no files in common":      {"--git", "main", filepath.Join(d, "elsewhere")},
		"is in no git repository": {"--git", "main", shopWith(t, 1)},
	} {
		r := tierwall(t, "", append([]string{"diff"}, args...)...)
		if what == "no git revision -x" {
			what = `"-x" is no git revision`
		}
		if r.code != 2 || !strings.Contains(r.err, what) {
			t.Errorf("%v: exit code %d, %s", args, r.code, r.err)
		}
	}
}

// TestDiffGitStaysInTheRevision: a link in a revision cannot make it read files of
// this machine.
func TestDiffGitStaysInTheRevision(t *testing.T) {
	d := repository(t)
	if err := os.Symlink("/etc/hosts", filepath.Join(d, "policies/link.yaml")); err != nil {
		t.Fatal(err)
	}
	gitRun(t, d, "add", "-A")
	gitRun(t, d, "commit", "-qm", "link")
	if r := tierwall(t, "", "diff", "--git", "main", filepath.Join(d, "policies")); r.code != 2 || !strings.Contains(r.err, "outside of the repository") {
		t.Errorf("exit code %d: %s", r.code, r.err)
	}
}

func TestDiffBadInput(t *testing.T) {
	good := shopWith(t, 5432)
	empty := t.TempDir()
	broken := dir(t, map[string]string{"p.yaml": strings.Replace(dbPolicy(1), "podSelector: {match", "podselector: {match", 1)})
	other := dir(t, map[string]string{"p.yaml": "apiVersion: v1\nkind: Pod\nmetadata: {name: x, namespace: y}\n"})
	for _, tt := range []struct {
		what string
		args []string
		want string
	}{
		{"one state", []string{good}, "give the old and the new state"},
		{"an empty directory", []string{empty, good}, "the directory has no manifest"},
		{"a missing directory", []string{good, "/nowhere"}, "new state: read manifests"},
		{"a broken policy", []string{good, broken}, "p.yaml:5"},
		{"nothing in common", []string{good, other}, "no workload in common"},
		{"two old states", []string{good, good, "--base", "x"}, "given twice"},
		{"both flags", []string{good, "--base", "x", "--git", "y"}, "both name the old state"},
		{"standard input twice", []string{"-", "-"}, "one of the two states only"},
		{"an unknown format", []string{good, good, "-o", "html"}, "want text, json, markdown, csv, dot"},
	} {
		if r := tierwall(t, "", append([]string{"diff"}, tt.args...)...); r.code != 2 || !strings.Contains(r.err, tt.want) || r.out != "" {
			t.Errorf("%s: exit code %d, want %q in %q; out %q", tt.what, r.code, tt.want, r.err, r.out)
		}
	}
}

// TestDiffMarkdownFitsAComment: a large change is 60 lines at most, the rest is
// collapsed, and nothing a policy is called breaks out of the table.
func TestDiffMarkdownFitsAComment(t *testing.T) {
	old, now := map[string]string{"world.yaml": shop}, map[string]string{"world.yaml": shop}
	for i := range 100 {
		p := strings.Replace(dbPolicy(1000+2*i), "name: db,", fmt.Sprintf("name: db-%d,", i), 1)
		old[fmt.Sprintf("p%d.yaml", i)] = p
		if i%2 == 0 {
			now[fmt.Sprintf("p%d.yaml", i)] = p
		}
	}
	for i := range 20 {
		admin := fmt.Sprintf(`apiVersion: policy.networking.k8s.io/v1alpha1
kind: AdminNetworkPolicy
metadata: {name: admin-%d}
spec:
  priority: %d
  subject: {namespaces: {}}
  ingress: [{name: "a|b <script>", action: Deny, from: [{namespaces: {}}], ports: [{portNumber: {protocol: TCP, port: %d}}]}]
`, i, i, 1+3*i)
		old[fmt.Sprintf("a%d.yaml", i)] = admin
	}
	r := tierwall(t, "", "diff", dir(t, old), dir(t, now), "-o", "markdown")
	if r.code != 1 {
		t.Fatalf("exit code %d: %s", r.code, r.err)
	}
	if n := strings.Count(r.out, "\n"); n > 60 || len(r.out) > 65_536 {
		t.Errorf("%d lines, %d bytes", n, len(r.out))
	}
	if !strings.Contains(r.out, "<details><summary>") || !strings.Contains(r.out, `a\|b &lt;script&gt;`) || strings.Contains(r.out, "<script>") {
		t.Errorf("%.3000s", r.out)
	}
}

func TestDiffFormats(t *testing.T) {
	old, now := shopWith(t, 5432), shopWith(t, 5433)
	r := tierwall(t, "", "diff", old, now, "-o", "csv")
	rows, err := csv.NewReader(strings.NewReader(r.out)).ReadAll()
	if err != nil || len(rows) != 5 || strings.Join(rows[0][:6], ",") != "diff-type,source,destination,dir1,dir2,workloads-diff-info" ||
		strings.Join(rows[1][:5], ",") != "added,shop/web,shop/db,No Connections,TCP 5433" || rows[1][12] != "ingress[0]" {
		t.Errorf("csv: %v %q", err, rows)
	}
	r = tierwall(t, "", "diff", old, now, "-o", "dot")
	if want := `"shop/web" -> "shop/db" [color=orange, label="opened TCP 5433"];`; !strings.Contains(r.out, want) || !strings.HasPrefix(r.out, "digraph") {
		t.Errorf("dot: %s", r.out)
	}
	r = tierwall(t, "", "diff", old, now)
	golden(t, "diff.txt", r.out)
}

// TestDiffLogWeighs counts the connections of a log that a change concerns.
func TestDiffLogWeighs(t *testing.T) {
	record := `{"v":1,"kind":"flow","seq":%d,"time":"2026-01-02T03:04:05.000000000Z","node":"n1","connection":"c%d","verdict":"Allow","direction":"ingress","stage":"enforce","protocol":"TCP",` +
		`"source":{"ip":"10.0.0.1","port":40000,"namespace":"shop","pod":"web-abc","labels":{"app":"web"}},"destination":{"ip":"10.0.0.2","port":%d,"namespace":"shop","pod":"db-0"},"count":1,"reason":"rule","band":"networkpolicy"}` + "\n"
	log := dir(t, map[string]string{"audit.log": fmt.Sprintf(record, 1, 1, 5432) + fmt.Sprintf(record, 2, 2, 5432) + fmt.Sprintf(record, 3, 3, 80)})
	r := tierwall(t, "", "diff", shopWith(t, 5432), shopWith(t, 5433), "--log", log)
	if r.code != 1 || !strings.Contains(r.out, "TCP 5432  [2 connections in the log]") || !strings.Contains(r.out, "TCP 5433  [0 connections in the log]") {
		t.Errorf("exit code %d: %s%s", r.code, r.out, r.err)
	}
}

// TestDiffScale: a fifth of the benchmark's cluster, within a bound on memory.
func TestDiffScale(t *testing.T) {
	old, now := diffScale(t, scale{namespaces: 40, podsEach: 50, policies: 400}, func(s string) string { return strings.Replace(s, "port: 53,", "port: 54,", 1) })
	if r := tierwall(t, "", "diff", old, now); r.code != 1 || !strings.Contains(r.out, "6500 opened") || !strings.Contains(r.out, "UDP 54") {
		t.Errorf("exit code %d: %.500s%.500s", r.code, r.out, r.err)
	}
}
