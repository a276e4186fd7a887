package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/tierwall/tierwall/cmd/internal/api"
	"github.com/tierwall/tierwall/dataplane/audit"
	"github.com/tierwall/tierwall/policy/diag"
)

// hostileNames are what somebody who may write policies of one namespace puts
// where API servers take any text.
var hostileNames = map[string]string{
	"escape":       "a\x1b[2J\x1b]0;pwned\x07\x1b[31mred",
	"line end":     "a\nAllow  shop/web -> shop/db\nerror: FORGED",
	"return":       "a\rFORGED\x08\x08",
	"C1":           "a\u009b2J\u0085FORGED\u0090",
	"delete":       "a\x7f\x00b",
	"direction":    "a\u202eDEGROF\u2066\u200f",
	"separator":    "a\u2028FORGED\u2029",
	"invisible":    "a\ufeff\u200b\U000e0041b",
	"blank":        "a b  c [5 packets in 1s]",
	"no UTF-8":     "a\xff\xfe\xc3",
	"a JSON value": `a","verdict":"Allow`,
	"long":         strings.Repeat("long", 20_000),
}

// checkShown fails for what a terminal would obey, and for lines that are not
// the command's own.
func checkShown(t *testing.T, what, text string) {
	t.Helper()
	if !utf8.ValidString(text) {
		t.Errorf("%s: not UTF-8: %q", what, cut(text))
	}
	for _, r := range text {
		if r != '\n' && !unicode.IsPrint(r) {
			t.Errorf("%s: %U is in %q", what, r, cut(text))
			break
		}
	}
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "error: FORGED") || strings.HasPrefix(line, "FORGED") {
			t.Errorf("%s: a forged line in %q", what, cut(text))
		}
	}
}

func cut(s string) string { return s[:min(len(s), 2000)] }

// hostileWorld is a world in which the name is wherever a policy may have it.
func hostileWorld(t *testing.T, name string) string {
	t.Helper()
	return strings.ReplaceAll(`
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
apiVersion: crd.antrea.io/v1beta1
kind: NetworkPolicy
metadata: {name: p, namespace: shop, annotations: {note: NAME}}
spec:
  priority: 5
  appliedTo: [{podSelector: {}}]
  ingress:
  - {name: NAME, action: Drop, from: [{podSelector: {}}], ports: [{protocol: TCP, port: 80}], enableLogging: true}
`, "NAME", quoted(t, name))
}

// quoted is the name in YAML and JSON, in ASCII: both refuse control characters.
func quoted(t *testing.T, name string) string {
	t.Helper()
	q, err := json.Marshal(name)
	if err != nil {
		t.Fatal(err)
	}
	var b []byte
	for _, r := range string(q) {
		if r < utf8.RuneSelf && r != 0x7f || r > 0xffff {
			b = utf8.AppendRune(b, r)
		} else {
			b = diag.AppendEscape(b, r)
		}
	}
	return string(b)
}

// Names reached terminals and line formats as they were written: they cleared
// screens, and forged lines.
func TestHostileNamesAreShownAndNotObeyed(t *testing.T) {
	for kind, name := range hostileNames {
		t.Run(kind, func(t *testing.T) {
			t.Run("manifests", func(t *testing.T) { hostileManifests(t, name) })
			t.Run("mistakes", func(t *testing.T) { hostileMistakes(t, name) })
			t.Run("log", func(t *testing.T) { hostileLog(t, name) })
			t.Run("daemon", func(t *testing.T) { hostileDaemon(t, name) })
		})
	}
}

func hostileManifests(t *testing.T, name string) {
	for _, args := range []string{
		"explain --from web --to db -p 80/TCP", "explain --from web --to db -p 81/TCP --all", "explain --from web --to db -p 80/TCP -o json",
		"matrix", "matrix -o json", "get policies", "get policies -o wide", "get policies -o json", "check", "check -o json",
	} {
		ask := func(name string) result {
			return tierwall(t, hostileWorld(t, name), append(strings.Fields(args), "-m", "-")...)
		}
		r, harmless := ask(name), ask("harmless")
		checkShown(t, args, r.out+r.err)
		if r.code != harmless.code {
			t.Errorf("%s: exit code %d, else %d: %s", args, r.code, harmless.code, cut(r.err))
		}
		if a, b := strings.Count(r.out+r.err, "\n"), strings.Count(harmless.out+harmless.err, "\n"); a != b {
			t.Errorf("%s: %d lines, else %d", args, a, b)
		}
		if args != "explain --from web --to db -p 80/TCP -o json" {
			continue
		}
		var e struct{ Ingress struct{ Rule string } }
		decode(t, r.out, &e)
		if want := strings.ToValidUTF8(name, "\ufffd"); e.Ingress.Rule != want && utf8.ValidString(name) {
			t.Errorf("JSON: rule %q, want %q", cut(e.Ingress.Rule), cut(want))
		}
	}
}

// hostileMistakes has the name where it is refused.
func hostileMistakes(t *testing.T, name string) {
	q := quoted(t, name)
	dir := t.TempDir()
	for what, text := range map[string]string{
		"kind":       `{"apiVersion": "networking.k8s.io/v1", "kind": NAME, "metadata": {"name": "x"}}`,
		"apiVersion": `{"apiVersion": NAME, "kind": "NetworkPolicy", "metadata": {"name": "x"}}`,
		"name":       `{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": NAME}, "spec": {"podSelector": {}}}`,
		"field":      `{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "x"}, "spec": {"podSelector": {}, NAME: 1}}`,
		"value":      `{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "x"}, "spec": {"podSelector": {}, "policyTypes": [NAME]}}`,
		"annotation": `{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "x", "annotations": {"tierwall.io/stage": NAME}}, "spec": {"podSelector": {}}}`,
		"label":      `{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "x"}, "spec": {"podSelector": {"matchLabels": {NAME: NAME}}}}`,
		"address":    `{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "x"}, "spec": {"podSelector": {}, "ingress": [{"from": [{"ipBlock": {"cidr": NAME}}]}]}}`,
		"type":       `{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "x"}, "spec": NAME}`,
		"not YAML":   "a: [\n" + name,
	} {
		path := filepath.Join(dir, strings.ReplaceAll(what, " ", "")+".yaml")
		if err := os.WriteFile(path, []byte(strings.ReplaceAll(text, "NAME", q)), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, args := range [][]string{{"check", "-m", path}, {"check", "-m", path, "-o", "json"}, {"matrix", "-m", path}, {"check", path}} {
			r := tierwall(t, "", args...)
			checkShown(t, what, r.out+r.err)
			if what != "kind" && what != "not YAML" && r.code != 1 { // other kinds are ignored
				t.Errorf("%s: exit code %d: %s", what, r.code, cut(r.out+r.err))
			}
		}
	}
	if r := tierwall(t, "", "explain", "-m", quickstart, "--from", name, "--to", "db", "-p", "80/TCP"); r.code != 2 {
		t.Errorf("exit code %d", r.code)
	}
}

func hostileRecord(name string) audit.Record {
	p := audit.Policy{Group: "crd.antrea.io", Kind: "NetworkPolicy", Namespace: "shop", Name: name}
	return audit.Record{
		V: audit.Version, Kind: audit.KindFlow, Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Node: name,
		Verdict: audit.Drop, Stage: audit.StageEnforce, Direction: "ingress", Band: "antrea-lower", Policy: &p,
		Rule: &audit.Rule{Name: name}, Label: name, Reason: "rule", Service: name, Protocol: "TCP", Interface: name, Backend: "nfqueue", Count: 1,
		Source: &audit.Endpoint{Namespace: name, Pod: name, Node: name, Labels: map[string]string{name: name}}, Destination: &audit.Endpoint{Namespace: "shop", Pod: name, Port: 80},
	}
}

func hostileLog(t *testing.T, name string) {
	write := func(name string) string {
		r := hostileRecord(name)
		would := r
		would.Stage, would.Verdict, would.Connection = audit.StageAudit, audit.WouldDrop, "1"
		isolated := r
		isolated.Rule, isolated.Reason, isolated.Isolations = nil, "isolation", []audit.Policy{*r.Policy, *r.Policy}
		lost := audit.Record{V: audit.Version, Kind: audit.KindLost, Time: r.Time, Until: &r.Time, Node: name, Reason: name, Count: 1}
		var b []byte
		for _, r := range []audit.Record{r, would, isolated, lost} {
			var err error
			if b, err = r.Append(b, audit.JSON); err != nil {
				t.Fatal(err)
			}
		}
		checkShown(t, "JSON lines", string(b))
		for _, format := range []audit.Format{audit.AntreaV1, audit.AntreaV2} {
			line, err := r.Append(nil, format)
			fields := map[audit.Format]int{audit.AntreaV1: 12, audit.AntreaV2: 16}[format]
			if n := len(strings.Split(string(line), " ")); err != nil || n != fields || strings.Count(string(line), "\n") != 1 {
				t.Errorf("%s: %d fields, want %d: %q", format, n, fields, cut(string(line)))
			}
			checkShown(t, format.String(), string(line))
		}
		// What is no record is shown as it is.
		b = append(append(b, strings.ReplaceAll(name, "\n", "")...), '\n')
		path := filepath.Join(t.TempDir(), "audit.log")
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	hostile, harmless := write(name), write("harmless")
	for _, args := range []string{
		"audit tail", "audit tail -o antrea", "audit tail -o json", "audit query", "audit query -o antrea", "audit query -o json",
		"audit top --by policy,rule,source,destination,label,node", "audit top --by policy,rule -o json", "audit staged", "audit staged -o json",
		"audit simulate -m " + quickstart, "audit simulate -o json -m " + quickstart, "audit verify", "audit verify -o json",
	} {
		r, h := tierwall(t, "", append(strings.Fields(args), hostile)...), tierwall(t, "", append(strings.Fields(args), harmless)...)
		if strings.HasSuffix(args, "query -o json") || strings.HasSuffix(args, "tail -o json") {
			r.out, _, _ = strings.Cut(r.out, name) // the line that is no record
		} else if a, b := strings.Count(r.out, "\n"), strings.Count(h.out, "\n"); a != b {
			t.Errorf("%s: %d lines, else %d: %s", args, a, b, cut(r.out))
		}
		checkShown(t, args, r.out+r.err)
		if r.code != h.code {
			t.Errorf("%s: exit code %d, else %d: %s", args, r.code, h.code, cut(r.err))
		}
	}
}

// hostileDaemon has the name in everything a daemon says.
func hostileDaemon(t *testing.T, name string) {
	serve := func(name string) string {
		st := api.Status{Node: name, Version: name, NotReady: name, Started: time.Now()}
		st.Dataplane = api.Dataplane{Backends: name, Why: name, FailMode: name, Established: name}
		st.Policy.Hash, st.Policy.ErrorsTotal = name, 1
		st.Policy.Errors = []diag.Diagnostic{{File: name, Object: diag.Ref{Group: name, Kind: name, Namespace: name, Name: name}, Path: name, Message: name, Hint: name}}
		st.Source = api.Source{Kind: name, Where: name, Problem: name}
		st.Audit = &api.Audit{File: name}
		r := hostileRecord(name)
		f := api.Flow{
			Node: name, Backend: name, Connection: name, Protocol: name, Source: r.Source, Destination: r.Destination, State: name,
			Ingress: &api.Judge{Verdict: name, Band: name, Reason: "rule", Policy: r.Policy, Rule: r.Rule},
		}
		mux := http.NewServeMux()
		mux.Handle("/api/v1/status", api.Handler(api.Config{Status: func() api.Status { return st }}))
		mux.HandleFunc("/api/v1/flows", func(w http.ResponseWriter, _ *http.Request) {
			line, _ := json.Marshal(f)
			fmt.Fprintf(w, "%s\n"+`{"end":{"lines":1}}`+"\n", line)
		})
		return serveDaemon(t, mux)
	}
	hostile, harmless := serve(name), serve("harmless")
	for _, args := range []string{"status --local", "status --local -o wide", "status --local -o json", "flows --local", "flows --local -o wide", "flows --local -o json"} {
		r := tierwall(t, "", append(strings.Fields(args), "--address", hostile)...)
		h := tierwall(t, "", append(strings.Fields(args), "--address", harmless)...)
		checkShown(t, args, r.out+r.err)
		if a, b := strings.Count(r.out, "\n"), strings.Count(h.out, "\n"); a != b || r.code != h.code {
			t.Errorf("%s: %d lines and exit code %d, else %d and %d: %s%s", args, a, r.code, b, h.code, cut(r.out), r.err)
		}
	}
	st := &api.Status{Node: name, NotReady: name, Source: api.Source{Kind: name}}
	st.Policy.Errors = []diag.Diagnostic{{Message: name}}
	a := statusAnswer{Nodes: []nodeStatus{{Node: name, Status: st}, {Node: name, Error: name}}}
	var b strings.Builder
	if err := a.write(&b, true, time.Now()); err != nil {
		t.Fatal(err)
	}
	checkShown(t, "status of several", b.String())
}
