package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	junit "github.com/joshdk/go-junit"
	"github.com/owenrumney/go-sarif/v3/pkg/report/v210/sarif"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"

	"github.com/tierwall/tierwall/cmd/internal/api"
	"github.com/tierwall/tierwall/cmd/internal/cli"
	"github.com/tierwall/tierwall/policy/controller"
)

const intents = `apiVersion: tierwall.io/v1
kind: Intent
tests:
- {from: shop/web, to: shop/db, port: 5432/TCP, expect: allow, by: shop/db}
- {from: deploy/lab/tool, to: sts/shop/db, port: any, expect: deny}
- name: dev cannot reach the database
  from: "ns:tier=dev"
  to: shop/app=db
  port: 5432
  expect: deny
  by: networkpolicy/shop/db
- {from: external:any, to: svc:shop/web, port: 80, expect: allow}
- {from: shop/app=web, to: shop/db, port: 1-65535/TCP, expect: allow, forever: true}
- {from: external:203.0.113.7, to: shop/db, port: ICMP, expect: allow}
`

type testAnswer struct {
	Tests []struct {
		File, Name, From, To, Port, Expect, Got, Policy, Rule string
		Line                                                  int
		OK                                                    bool
	}
	Passed, Failed int
}

func intentFile(t testing.TB, text string) string {
	return filepath.Join(dir(t, map[string]string{"intents.yaml": text}), "intents.yaml")
}

func TestTestContract(t *testing.T) {
	file, manifests := intentFile(t, intents), shopWith(t, 5432)
	r := tierwall(t, "", "test", file, "--manifests", manifests, "-o", "json")
	if r.code != 1 {
		t.Fatalf("exit code %d: %s", r.code, r.err)
	}
	var got testAnswer
	if err := json.Unmarshal([]byte(r.out), &got); err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, x := range got.Tests {
		lines = append(lines, fmt.Sprintf("%d %s %s %s want %s got %s %v by %s %s", x.Line, x.From, x.To, x.Port, x.Expect, x.Got, x.OK,
			strings.TrimPrefix(x.Policy, "networkpolicy.networking.k8s.io/"), x.Rule))
		if x.File != file || x.Name == "" {
			t.Errorf("%+v", x)
		}
	}
	want := []string{
		"4 shop/web shop/db 5432/TCP want allow got allow true by shop/db ingress[0]",
		"5 deploy/lab/tool sts/shop/db any want deny got deny true by shop/db ",
		"6 ns:tier=dev shop/app=db 5432 want deny got deny true by shop/db ",
		"12 external:any svc:shop/web 80 want allow got allow true by  ",
		"13 shop/app=web shop/db 1-65535/TCP want allow got mixed false by shop/db ",
		"14 external:203.0.113.7 shop/db ICMP want allow got deny false by shop/db ",
	}
	if strings.Join(lines, "\n") != strings.Join(want, "\n") || got.Passed != 4 || got.Failed != 2 {
		t.Errorf("%d passed, %d failed\n%s\nwant\n%s", got.Passed, got.Failed, strings.Join(lines, "\n"), strings.Join(want, "\n"))
	}
	// Without the two that fail.
	passing := strings.Join(strings.SplitAfter(intents, "\n")[:12], "")
	if r := tierwall(t, "", "test", intentFile(t, passing), "-m", manifests); r.code != 0 || r.out != "4 passed, 0 failed\n" {
		t.Errorf("exit code %d: %s%s", r.code, r.out, r.err)
	}
}

// TestTestNamesAllIsolations: see TestDiffNamesAllIsolations.
func TestTestNamesAllIsolations(t *testing.T) {
	all := strings.NewReplacer("{name: db,", "{name: all,", "{matchLabels: {app: db}}", "{}").Replace(dbPolicy(1))
	all = all[:strings.Index(all, "  ingress:")]
	manifests := dir(t, map[string]string{"world.yaml": shop, "policy.yaml": dbPolicy(5432), "all.yaml": all})
	file := intentFile(t, "apiVersion: tierwall.io/v1\nkind: Intent\ntests: [{from: lab/tool, to: shop/db, port: 1/TCP, expect: allow}]\n")
	for format, want := range map[string]string{
		"text": "isolated by networkpolicy shop/all, networkpolicy shop/db, and nothing allows it",
		"json": `"networkpolicy.networking.k8s.io/shop/db"`,
	} {
		if r := tierwall(t, "", "test", file, "-m", manifests, "-o", format); !strings.Contains(r.out, want) {
			t.Errorf("-o %s: no %q in\n%s%s", format, want, r.out, r.err)
		}
	}
}

// TestTestSaysWhy: a failure has its line, the connection, and the way to the verdict.
func TestTestSaysWhy(t *testing.T) {
	file := intentFile(t, intents)
	r := tierwall(t, "", "test", file, "-m", shopWith(t, 5432))
	for _, want := range []string{
		file + ":13", "want allow, got deny: shop/web-0 → shop/db-0 TCP 1-5431", "policy.yaml:4", "ingress", "2 failed",
		"203.0.113.7 → shop/db-0 ICMP type 8 code 0",
	} {
		if !strings.Contains(r.out, want) {
			t.Errorf("no %q in\n%s", want, r.out)
		}
	}
}

func TestTestBadInput(t *testing.T) {
	manifests := shopWith(t, 5432)
	one := func(fields string) string {
		return "apiVersion: tierwall.io/v1\nkind: Intent\ntests:\n- {" + fields + "}\n"
	}
	good := "from: shop/web, to: shop/db, port: 1, expect: deny"
	for _, tt := range []struct{ what, text, want string }{
		{"an unknown field", one(good + ", expct: allow"), `:4: tests[0]: unknown field "expct" (did you mean expect?)`},
		{"a field twice", one(good + ", port: 2"), "twice"},
		{"an unknown expectation", one("from: shop/web, to: shop/db, port: 1, expect: denied"), `:4: expect: "denied" is no expectation (write allow, deny, reject)`},
		{"no expectation", one("from: shop/web, to: shop/db, port: 1"), ":4: tests[0]: expect is missing"},
		{"an unknown workload", one("from: shop/wbe, to: shop/db, port: 1, expect: deny"), ":4: from: no pod or workload shop/wbe; there is "},
		{"an unknown kind of workload", one("from: sts/shop/web, to: shop/db, port: 1, expect: deny"), ":4: from: no StatefulSet shop/web"},
		{"an unknown namespace", one("from: shopp/web, to: shop/db, port: 1, expect: deny"), ":4: from: no namespace shopp; there is shop, lab"},
		{"a selector that matches nothing", one("from: app=webb, to: shop/db, port: 1, expect: deny"), `:4: from: label selector "app=webb" matches no pod; the values of app are web, db, tool`},
		{"a namespace selector that matches nothing", one(`from: "ns:tier=pci", to: shop/db, port: 1, expect: deny`), ":4: from: ns:tier=pci matches no namespace"},
		{"an unknown Service", one("from: shop/web, to: svc/shop/wep, port: 80, expect: deny"), ":4: to: no Service shop/wep; there is shop/web"},
		{"a port the Service has not", one("from: lab/tool, to: svc/shop/web, port: 81, expect: deny"), ":4: svc/shop/web has no port 81/TCP; it has 80/TCP"},
		{"a Service as source", one("from: svc/shop/web, to: shop/db, port: 1, expect: deny"), "connections come from pods"},
		{"a port that is none", one("from: shop/web, to: shop/db, port: 70000, expect: deny"), ":4: port \"70000\""},
		{"a named port nobody has", one("from: shop/web, to: shop/db, port: grpc/TCP, expect: deny"), "no pod of shop/db has a port named grpc"},
		{"an unknown policy", one(good + ", by: shop/dbb"), ":4: by: no policy shop/dbb; there is networkpolicy shop/db"},
		{"no tests", "apiVersion: tierwall.io/v1\nkind: Intent\ntests: []\n", "want a list of at least one test"},
		{"an empty file", "# nothing\n", "the file has no test"},
		{"another kind", "apiVersion: v1\nkind: Pod\nmetadata: {name: x}\n", `kind "Pod" (write apiVersion: tierwall.io/v1 and kind: Intent)`},
		{"no YAML", "a: b: c\n", "mapping values are not allowed"},
		{"an unknown field of netassert", "- {name: x, type: k8s, protcol: tcp, targetPort: 1, src: {}, dst: {}}\n", `:1: test: unknown field "protcol" (did you mean protocol?)`},
		{"traffic without expectation", `[{"Source": {"IP": "8.8.8.8"}, "Destination": {"Internal": {"Workload": "shop/statefulset/db"}}, "Protocol": "TCP", "ResolvedPort": 80}]`, ":1: the test does not say what it expects"},
	} {
		r := tierwall(t, "", "test", intentFile(t, tt.text), "-m", manifests)
		if r.code != 2 || r.out != "" || !strings.Contains(r.err, tt.want) {
			t.Errorf("%s: exit code %d, want %q in %q, out %q", tt.what, r.code, tt.want, r.err, r.out)
		}
	}
	if r := tierwall(t, "", "test", t.TempDir(), "-m", manifests); r.code != 2 || !strings.Contains(r.err, "the directory has no tests") {
		t.Errorf("an empty directory: exit code %d: %s", r.code, r.err)
	}
	if r := tierwall(t, "", "test", intentFile(t, one(good)), "-m", t.TempDir()); r.code != 2 || !strings.Contains(r.err, "the directory has no manifest") {
		t.Errorf("an empty directory of manifests: exit code %d: %s", r.code, r.err)
	}
}

const netassert = `---
- name: web-to-db
  type: k8s
  protocol: tcp
  targetPort: 5432
  timeoutSeconds: 67
  attempts: 3
  exitCode: 0
  src: {k8sResource: {kind: deployment, name: web, namespace: shop}}
  dst: {k8sResource: {kind: statefulset, name: db, namespace: shop}}
- name: tool-to-db
  type: k8s
  protocol: tcp
  targetPort: 5432
  exitCode: 1
  src: {k8sResource: {kind: deployment, name: tool, namespace: lab}}
  dst: {k8sResource: {kind: statefulset, name: db, namespace: shop}}
- name: db-to-outside
  type: k8s
  protocol: udp
  targetPort: 53
  exitCode: 1
  src: {k8sResource: {kind: statefulset, name: db, namespace: shop}}
  dst: {host: {name: 192.0.2.53}}
`

// traffic is in the form of policy-assistant's examples.
const traffic = `[
  {"Source": {"Internal": {"Workload": "shop/deployment/web"}}, "Destination": {"Internal": {"Workload": "shop/statefulset/db"}},
   "Protocol": "TCP", "ResolvedPort": 5432, "ResolvedPortName": "postgres"},
  {"Source": {"IP": "8.8.8.8"}, "Destination": {"Internal": {"PodLabels": {"app": "web"}, "NamespaceLabels": {"tier": "prod"}, "Namespace": "shop"}, "IP": "192.168.1.10"},
   "Protocol": "TCP", "ResolvedPort": 80},
  {"Source": {"Internal": {"PodLabels": {"app": "tool"}, "Namespace": "lab"}}, "Destination": {"Internal": {"Workload": "shop/statefulset/db"}},
   "Protocol": "TCP", "ResolvedPort": 5432, "Expect": "deny"}
]`

func TestTestDialects(t *testing.T) {
	manifests := shopWith(t, 5432)
	if r := tierwall(t, "", "test", intentFile(t, netassert), "-m", manifests, "--all"); r.code != 1 || !strings.Contains(r.out, "2 passed, 1 failed") ||
		!strings.Contains(r.out, ":18  db-to-outside") {
		t.Errorf("netassert: exit code %d: %s%s", r.code, r.out, r.err)
	}
	file := filepath.Join(dir(t, map[string]string{"traffic.json": traffic}), "traffic.json")
	if r := tierwall(t, "", "test", file, "-m", manifests, "--expect", "allow"); r.code != 0 || r.out != "3 passed, 0 failed\n" {
		t.Errorf("traffic.json: exit code %d: %s%s", r.code, r.out, r.err)
	}
	if r := tierwall(t, intents, "test", "-", file, "-m", manifests, "--expect", "allow"); r.code != 1 || !strings.Contains(r.out, "7 passed, 2 failed") {
		t.Errorf("standard input and a file: exit code %d: %s%s", r.code, r.out, r.err)
	}
}

// TestTestJUnit reads the report with a reader of others.
func TestTestJUnit(t *testing.T) {
	r := tierwall(t, "", "test", intentFile(t, intents), "-m", shopWith(t, 5432), "-o", "junit")
	suites, err := junit.IngestReader(strings.NewReader(r.out))
	if err != nil || len(suites) != 1 || r.code != 1 {
		t.Fatalf("exit code %d, %d suites, %v: %s", r.code, len(suites), err, r.out)
	}
	if got := suites[0].Totals; got.Tests != 6 || got.Passed != 4 || got.Failed != 2 {
		t.Errorf("totals %+v", got)
	}
	if failed := suites[0].Tests[4]; failed.Status != junit.StatusFailed || !strings.Contains(failed.Message, "5431") || !strings.Contains(failed.Message, "want allow, got deny") {
		t.Errorf("%+v", failed)
	}
}

// TestTestSARIF validates the log with the schema that a reader of others has.
func TestTestSARIF(t *testing.T) {
	manifests := shopWith(t, 5432)
	r := tierwall(t, "", "test", intentFile(t, intents), "-m", manifests, "-o", "sarif")
	results := validSARIF(t, r.out)
	if len(results) != 2 {
		t.Fatalf("%d results: %s", len(results), r.out)
	}
	at := results[0].Locations[0].PhysicalLocation
	if uri := *at.ArtifactLocation.URI; !strings.HasSuffix(uri, "/policy.yaml") || *at.Region.StartLine != 4 || *results[0].RuleID != "TW900" {
		t.Errorf("at %s:%d: %s", uri, *at.Region.StartLine, r.out)
	}
	// Nothing failed: a log without results, not no log.
	passing := strings.Join(strings.SplitAfter(intents, "\n")[:4], "")
	if r := tierwall(t, "", "test", intentFile(t, passing), "-m", manifests, "-o", "sarif"); r.code != 0 || len(validSARIF(t, r.out)) != 0 {
		t.Errorf("exit code %d: %s", r.code, r.out)
	}
}

func validSARIF(t *testing.T, text string) []*sarif.Result {
	t.Helper()
	log, err := sarif.FromString(text)
	if err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	if err := log.Validate(); err != nil {
		t.Fatal(err)
	}
	if len(log.Runs) != 1 || log.Version != "2.1.0" {
		t.Fatalf("%d runs, version %s", len(log.Runs), log.Version)
	}
	return log.Runs[0].Results
}

// TestTestTAP reads the report with Perl's TAP::Parser.
func TestTestTAP(t *testing.T) {
	r := tierwall(t, "", "test", intentFile(t, intents), "-m", shopWith(t, 5432), "-o", "tap")
	if !strings.HasPrefix(r.out, "TAP version 14\n1..6\nok 1 - ") || strings.Count(r.out, "\nnot ok ") != 2 {
		t.Errorf("%s", r.out)
	}
	for _, block := range strings.Split(r.out, "  ---\n")[1:] {
		body, _, _ := strings.Cut(block, "  ...\n")
		var diag map[string]string
		if err := yaml.Unmarshal([]byte(body), &diag); err != nil || diag["severity"] != "fail" || !strings.Contains(diag["explanation"], "db") {
			t.Errorf("%v in %s", err, body)
		}
	}
	perl, err := exec.LookPath("perl")
	if err != nil {
		t.Skip("no perl here to read TAP with")
	}
	file := filepath.Join(t.TempDir(), "out.tap")
	if err := os.WriteFile(file, []byte(r.out), 0o600); err != nil {
		t.Fatal(err)
	}
	const script = `use TAP::Parser; open my $f, "<", $ARGV[0]; my $p = TAP::Parser->new({source => $f}); $p->run;
		print join(" ", scalar $p->passed, scalar $p->failed, scalar $p->parse_errors, $p->tests_run, $p->version);`
	out, err := exec.Command(perl, "-e", script, file).CombinedOutput()
	if err != nil && bytes.Contains(out, []byte("Can't locate TAP/Parser")) {
		t.Skip("this perl has no TAP::Parser")
	}
	// The parser knows versions up to 13 and reads 14 as that: one parse error, about the version.
	if f := strings.Fields(string(out)); err != nil || len(f) != 5 || f[0] != "4" || f[1] != "2" || f[3] != "6" {
		t.Errorf("%v: %s", err, out)
	}
}

// TestIntentSchema: what the schema refuses the program refuses, and the other way
// round.
func TestIntentSchema(t *testing.T) {
	c := jsonschema.NewCompiler()
	f, err := os.Open("../../docs/intent.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	doc, err := jsonschema.UnmarshalJSON(f)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.AddResource("intent.json", doc); err != nil {
		t.Fatal(err)
	}
	schema, err := c.Compile("intent.json")
	if err != nil {
		t.Fatal(err)
	}
	manifests := shopWith(t, 5432)
	for text, want := range map[string]bool{
		intents: true,
		strings.Replace(intents, "forever: true", "forever: yes please", 1):                                                                        false,
		strings.Replace(intents, "expect: deny", "expect: drop", 1):                                                                                false,
		strings.Replace(intents, "by: shop/db", "via: shop/db", 1):                                                                                 false,
		strings.Replace(intents, "kind: Intent", "kind: Intents", 1):                                                                               false,
		strings.Replace(intents, "forever: true", "forever: true, rights: {pods: ns:shop, keepLabels: [app, role], podNetworks: [10.0.0.0/8]}", 1): true,
		strings.Replace(intents, "tests:", "rights: {namespaces: any, policies: any}\ntests:", 1):                                                  true,
		strings.Replace(intents, "tests:", "rights: {namespaces: some}\ntests:", 1):                                                                false,
		strings.Replace(intents, "forever: true", "forever: true, rights: {pod: any}", 1):                                                          false,
		strings.Replace(intents, "forever: true", "forever: true, rights: {pods: []}", 1):                                                          false,
		strings.Replace(intents, "port: 5432/TCP, ", "", 1):                                                                                        false,
	} {
		var v any
		if err := yaml.Unmarshal([]byte(text), &v); err != nil {
			t.Fatal(err)
		}
		data, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		inst, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
		if err != nil {
			t.Fatal(err)
		}
		bySchema := schema.Validate(inst) == nil
		byProgram := tierwall(t, "", "test", intentFile(t, text), "-m", manifests).code != 2
		if bySchema != want || byProgram != want {
			t.Errorf("schema %v, program %v, want %v:\n%s", bySchema, byProgram, want, text)
		}
	}
}

// TestTestLive: what is tested is what the daemon enforces, or nothing is.
func TestTestLive(t *testing.T) {
	manifests := shopWith(t, 5432)
	in, err := cli.Load(manifests, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	hash := controller.PolicyHash(in.Set)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != api.Prefix+"status" {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(api.Status{V: api.Version, Node: "n1", Ready: true, Policy: api.Policy{Hash: hash}}) // seen by the client
	}))
	defer srv.Close()
	passing := intentFile(t, strings.Join(strings.SplitAfter(intents, "\n")[:4], ""))
	args := []string{"test", passing, "-m", manifests, "--live", "--address", strings.TrimPrefix(srv.URL, "http://")}
	if r := tierwall(t, "", args...); r.code != 0 {
		t.Errorf("the same policies: exit code %d: %s", r.code, r.err)
	}
	hash = "0123456789abcdef"
	if r := tierwall(t, "", args...); r.code != 1 || !strings.Contains(r.err, "enforces other policies") || r.out != "" {
		t.Errorf("other policies: exit code %d: %s%s", r.code, r.out, r.err)
	}
}

// TestServicesAreTheSameToExplainAndTest: both ask about the backends that the
// Service proxy chooses from, at their ports. A Service whose address is not assigned
// yet, as manifests in a repository have it, is not a headless one.
func TestServicesAreTheSameToExplainAndTest(t *testing.T) {
	const policy = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web, namespace: shop}
spec:
  podSelector: {matchLabels: {app: web}}
  policyTypes: [Ingress]
  ingress: [{from: [{podSelector: {matchLabels: {app: db}}}], ports: [{port: 8080}]}]
`
	pods := func(extra string) string {
		return `
---
apiVersion: v1
kind: Pod
metadata: {name: other, namespace: shop, labels: {app: other, role: spare}}
spec: {nodeName: n2, containers: [{name: c, image: i, ports: [{name: http, containerPort: 8080}]}]}
status: {podIP: 10.0.9.1` + extra + "}\n"
	}
	service := func(spec string) string {
		return strings.Replace(shop, "spec: {selector: {app: web}, clusterIP: 10.96.0.7,", "spec: {"+spec, 1)
	}
	slice := `
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 8080, protocol: TCP}]
endpoints: [{addresses: [10.0.9.1]}]
`
	for _, tt := range []struct{ what, world, port, want string }{
		{"its address is not assigned", service("selector: {app: web},"), "80/TCP", "allow"},
		{"its address is assigned", shop, "80/TCP", "allow"},
		{"headless", service("selector: {app: web}, clusterIP: None,"), "80/TCP", "deny"},
		{"headless, at the pods' port", service("selector: {app: web}, clusterIP: None,"), "8080/TCP", "allow"},
		{"its EndpointSlices lead elsewhere", shop + pods("") + slice, "80/TCP", "allow"},
		{"the ready backend is another pod", service("selector: {role: spare},") + pods(", conditions: [{type: Ready, status: 'True'}]"), "80/TCP", "allow"},
		{"no backend is ready", service("selector: {role: spare},") + pods(", conditions: [{type: Ready, status: 'False'}]"), "80/TCP", "has no ready backend"},
		{"no backend on the client's node", service("selector: {role: spare}, internalTrafficPolicy: Local,") + pods("") + strings.ReplaceAll(strings.Replace(pods(""), "nodeName: n2", "nodeName: n1", 1), "other", "db-0") +
			"---\napiVersion: v1\nkind: Node\nmetadata: {name: n1}\n", "80/TCP", ""},
	} {
		if tt.want == "" {
			tt.world = strings.Replace(tt.world, "name: db-0, namespace: shop, labels: {app: db-0, role: spare}", "name: db-0, namespace: shop, labels: {app: db}", 1)
			tt.world = strings.Replace(tt.world, "podIP: 10.0.9.1}\n---\napiVersion: v1\nkind: Node", "podIP: 10.0.9.2}\n---\napiVersion: v1\nkind: Node", 1)
			tt.want = "on node n1"
		}
		manifests := dir(t, map[string]string{"world.yaml": tt.world, "policy.yaml": policy})
		test := tierwall(t, "apiVersion: tierwall.io/v1\nkind: Intent\ntests: [{from: pod/shop/db-0, to: svc/shop/web, port: "+tt.port+", expect: allow}]\n",
			"test", "-", "-m", manifests, "-o", "json")
		explain := tierwall(t, "", "explain", "--from", "shop/db-0", "--to", "svc/shop/web", "-p", tt.port, "-m", manifests, "-o", "json")
		var got testAnswer
		_ = json.Unmarshal([]byte(test.out), &got) // "" where it could not be asked
		var told struct{ Verdict string }
		_ = json.Unmarshal([]byte(explain.out), &told)
		switch {
		case len(got.Tests) == 0:
			if !strings.Contains(test.err, tt.want) || !strings.Contains(explain.err, tt.want) {
				t.Errorf("%s: want %q; test: %s; explain: %s", tt.what, tt.want, test.err, explain.err)
			}
		case got.Tests[0].Got != tt.want || (told.Verdict == "Allow") != (tt.want == "allow"):
			t.Errorf("%s: want %s; test: %s; explain: %s%s", tt.what, tt.want, test.out, explain.out, explain.err)
		}
	}
}
