package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tierwall/tierwall/cmd/internal/auditlog"
	"github.com/tierwall/tierwall/cmd/internal/cli"
)

// record is the n-th line of a log; n is its source port.
func record(n int) string {
	return fmt.Sprintf(`{"v":1,"kind":"flow","time":"2026-01-02T03:04:05.006Z","node":"node-1","verdict":"Drop","stage":"enforce",`+
		`"direction":"ingress","band":"networkpolicy","policy":{"group":"networking.k8s.io","kind":"NetworkPolicy","namespace":"shop","name":"db"},`+
		`"isolations":[{"group":"networking.k8s.io","kind":"NetworkPolicy","namespace":"shop","name":"db"},{"kind":"NetworkPolicy","namespace":"shop","name":"all"}],`+
		`"reason":"isolation","source":{"ip":"10.244.1.10","port":%d,"namespace":"shop","pod":"frontend"},`+
		`"destination":{"ip":"10.244.2.12","port":5432,"namespace":"shop","pod":"db"},"protocol":"TCP","length":60,"count":3}`, n)
}

const (
	ruleRecord = `{"v":1,"kind":"flow","time":"2026-01-02T03:04:06Z","verdict":"Allow","stage":"enforce","direction":"ingress","band":"admin",` +
		`"policy":{"group":"policy.networking.k8s.io","kind":"AdminNetworkPolicy","name":"monitoring"},"rule":{"name":"scrape","index":0},"reason":"rule",` +
		`"source":{"ip":"fd00::1"},"destination":{"ip":"fd00::2","port":9100},"protocol":"TCP","count":1}`
	icmpRecord = `{"v":1,"kind":"flow","time":"2026-01-02T03:04:07Z","verdict":"Drop","stage":"audit","direction":"egress",` +
		`"policy":{"group":"networking.k8s.io","kind":"NetworkPolicy","namespace":"x","name":"p"},"rule":{"index":2},"reason":"rule","label":"l1",` +
		`"source":{"ip":"10.0.0.1"},"destination":{"ip":"10.0.0.2"},"protocol":"ICMP","icmpType":8,"icmpCode":0,"count":1}`
	lostRecord = `{"v":1,"kind":"lost","time":"2026-01-02T03:04:08Z","reason":"ring-full","count":17}`
)

const (
	fileRecord   = `{"v":1,"kind":"file","time":"2026-01-02T03:04:04Z","node":"node-1","count":0,"seq":1,"prev":"0000000000000000000000000000000000000000000000000000000000000000"}`
	wouldRecord  = `{"v":1,"kind":"flow","time":"2026-01-03T00:00:01Z","verdict":"would-drop","stage":"audit","direction":"ingress","policy":{"kind":"NetworkPolicy","namespace":"shop","name":"new"},"rule":{"index":0},"reason":"rule","source":{"ip":"10.0.0.1","namespace":"shop","pod":"web"},"destination":{"ip":"10.0.0.2","port":80,"namespace":"shop","pod":"db"},"protocol":"TCP","connection":"1f","count":1}`
	foldedRecord = `{"v":1,"kind":"flow","time":"2026-01-03T00:00:02Z","until":"2026-01-03T00:00:03Z","verdict":"Drop","stage":"enforce","direction":"ingress","policy":{"kind":"NetworkPolicy","namespace":"shop","name":"db"},"reason":"isolation","source":{"ip":"192.0.2.7"},"destination":{"ip":"10.0.0.2","namespace":"shop","pod":"db"},"protocol":"TCP","ports":{"first":1,"last":65535},"count":65534}`
)

func TestAuditTailText(t *testing.T) {
	log := strings.Join([]string{fileRecord, record(1), ruleRecord, icmpRecord, lostRecord, "not a record", wouldRecord, foldedRecord}, "\n") + "\n"
	r := tierwall(t, log, "audit", "tail", "--utc", "-n", "-1", "-")
	golden(t, "audit.txt", r.out)
}

// Colour is for terminals: the words stay the same.
func TestAuditLineColour(t *testing.T) {
	var plain, painted bytes.Buffer
	for _, p := range []auditlog.Printer{{W: &plain, Zone: time.UTC}, {W: &painted, Zone: time.UTC, Style: cli.Painted()}} {
		for _, line := range []string{record(1), ruleRecord, icmpRecord, lostRecord, wouldRecord} {
			if err := p.Print([]byte(line)); err != nil {
				t.Fatal(err)
			}
		}
	}
	stripped := painted.String()
	for {
		i := strings.Index(stripped, "\x1b[")
		if i < 0 {
			break
		}
		stripped = stripped[:i] + stripped[i+strings.IndexByte(stripped[i:], 'm')+1:]
	}
	if stripped != plain.String() || painted.Len() == plain.Len() {
		t.Errorf("painted %q\nplain %q", painted.String(), plain.String())
	}
}

func TestAuditTailFormats(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(path, []byte(record(1)+"\n"+record(2)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := tierwall(t, "", "audit", "tail", "-n", "1", "-o", "json", path); r.out != record(2)+"\n" {
		t.Errorf("json: %q", r.out)
	}
	r := tierwall(t, "", "audit", "tail", "-o", "antrea", path)
	lines := strings.Split(strings.TrimSpace(r.out), "\n")
	if len(lines) != 2 || !strings.Contains(lines[0], "K8sNetworkPolicy:shop/db") || !strings.Contains(lines[1], "10.244.1.10 2 10.244.2.12 5432 TCP 60") {
		t.Errorf("antrea: %q", r.out)
	}
}

func TestAuditTailLastLines(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	var all strings.Builder
	for i := 1; i <= 25; i++ {
		all.WriteString(record(i) + "\n")
	}
	if err := os.WriteFile(path, []byte(all.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ n, first, count int }{{0, 0, 0}, {1, 25, 1}, {7, 19, 7}, {25, 1, 25}, {40, 1, 25}, {-1, 1, 25}} {
		r := tierwall(t, "", "audit", "tail", "-n", fmt.Sprint(tt.n), "-o", "json", path)
		var want strings.Builder
		for i := range tt.count {
			want.WriteString(record(tt.first+i) + "\n")
		}
		if r.out != want.String() || r.code != 0 {
			t.Errorf("-n %d: %d lines, want %d from %d on", tt.n, strings.Count(r.out, "\n"), tt.count, tt.first)
		}
	}
}

// syncBuffer is written by a command and read by its test.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// until waits until the output holds text.
func (s *syncBuffer) until(t *testing.T, text string) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !strings.Contains(s.String(), text); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited 5 s for %q; got\n%s", text, s.String())
		}
	}
}

// background runs a command until its context ends; end returns its exit code.
func background(t *testing.T, out io.Writer, args ...string) (end func() int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	code := make(chan int, 1)
	var errs bytes.Buffer
	go func() { code <- run(ctx, args, strings.NewReader(""), out, &errs) }()
	return func() int {
		cancel()
		c := <-code
		if c != cli.ExitOK {
			t.Logf("exit %d: %s", c, errs.String())
		}
		return c
	}
}

func appendLine(t *testing.T, path, line string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := fmt.Fprintln(f, line); err != nil {
		t.Fatal(err)
	}
}

// Following prints the past once, then everything new that matches, also after
// a rotation and from a file that comes later.
func TestAuditTailFollow(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	var out syncBuffer
	end := background(t, &out, "audit", "tail", "-f", "-n", "2", "-o", "json", "--verdict", "Drop", path)
	appendLine(t, path, record(1))
	out.until(t, record(1))
	appendLine(t, path, ruleRecord) // an Allow
	appendLine(t, path, record(2))
	out.until(t, record(2))
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	appendLine(t, path, record(3))
	out.until(t, record(3))
	if code := end(); code != cli.ExitOK {
		t.Errorf("exit %d", code)
	}
	if want := record(1) + "\n" + record(2) + "\n" + record(3) + "\n"; out.String() != want {
		t.Errorf("printed\n%s\nwant\n%s", out.String(), want)
	}
}

// The daemon's stream: what comes is filtered and printed, and a daemon that
// hangs up is a finding.
func TestAuditTailSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		fmt.Fprintf(c, "%s\n%s\n", record(1), ruleRecord)
		c.Close()
	}()
	r := tierwall(t, "", "audit", "tail", "--socket", path, "-o", "json", "--verdict", "Allow")
	if r.out != ruleRecord+"\n" || r.code != cli.ExitFinding || !strings.Contains(r.err, "hung up") {
		t.Errorf("%+v", r)
	}
	if r := tierwall(t, "", "audit", "tail", "--socket", path+"x"); r.code != cli.ExitUsage || !strings.Contains(r.err, "audit.stream") {
		t.Errorf("no socket: %+v", r)
	}
}

// auditLog is a log of three files, the oldest compressed.
func auditLog(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "audit.log")
	f, err := os.Create(path + ".20260102T030400.000000000Z.gz")
	if err != nil {
		t.Fatal(err)
	}
	z := gzip.NewWriter(f)
	fmt.Fprintln(z, record(1))
	if err := errors.Join(z.Close(), f.Close()); err != nil {
		t.Fatal(err)
	}
	appendLine(t, path+".20260102T040400.000000000Z", strings.Replace(ruleRecord, "03:04", "03:05", 1))
	appendLine(t, path, wouldRecord)
	appendLine(t, path, foldedRecord)
	return path
}

func TestAuditQuery(t *testing.T) {
	path := auditLog(t)
	lines := strings.Join([]string{record(1), strings.Replace(ruleRecord, "03:04", "03:05", 1), wouldRecord, foldedRecord}, "\n") + "\n"
	if r := tierwall(t, "", "audit", "query", "-o", "json", path); r.out != lines || r.code != cli.ExitOK {
		t.Errorf("everything, oldest first: %+v", r)
	}
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"--verdict", "drop"}, record(1) + "\n" + foldedRecord + "\n"},
		{[]string{"--policy", "AdminNetworkPolicy/*"}, strings.Replace(ruleRecord, "03:04", "03:05", 1) + "\n"},
		{[]string{"--cidr", "192.0.2.0/24", "--to", "shop/"}, foldedRecord + "\n"},
		{[]string{"--port", "5432/TCP", "--verdict", "Drop"}, record(1) + "\n" + foldedRecord + "\n"},
		{[]string{"--since", "2026-01-03T00:00:00Z", "--until", "2026-01-03T00:00:01Z"}, wouldRecord + "\n"},
		{[]string{"--from", "shop/web"}, wouldRecord + "\n"},
		{[]string{"--pod", "nobody"}, ""},
	} {
		r := tierwall(t, "", append([]string{"audit", "query", "-o", "json", path}, tt.args...)...)
		if r.out != tt.want || r.code != cli.ExitOK {
			t.Errorf("%v: %+v", tt.args, r)
		}
	}
	r := tierwall(t, "", "audit", "query", "--utc", path)
	golden(t, "audit-query.txt", r.out)
}

// Words and values that nothing can match are mistakes, not empty answers.
func TestAuditFilterMistakes(t *testing.T) {
	path := auditLog(t)
	for _, args := range [][]string{
		{"--verdict", "Deny"},
		{"--direction", "in"},
		{"--stage", "dry-run"},
		{"--kind", "conn"},
		{"--band", "5"},
		{"--cidr", "10.0.0.0/33"},
		{"--port", "http"},
		{"--since", "someday"},
		{"--pod", "["},
		{"--from", "a["},
	} {
		r := tierwall(t, "", append([]string{"audit", "query", path}, args...)...)
		if r.code != cli.ExitUsage || !strings.Contains(r.err, args[0]) || !strings.Contains(r.err, "tierwall audit query --help") {
			t.Errorf("%v: %+v", args, r)
		}
	}
}

func TestAuditTop(t *testing.T) {
	path := auditLog(t)
	golden(t, "audit-top.txt", tierwall(t, "", "audit", "top", "--utc", "--by", "verdict,policy,source", path).out)
	golden(t, "audit-top.json", tierwall(t, "", "audit", "top", "--by", "policy", "-n", "1", "-o", "json", path).out)
	if r := tierwall(t, "", "audit", "top", "--by", "colour", path); r.code != cli.ExitUsage || !strings.Contains(r.err, "destination-namespace") {
		t.Errorf("%+v", r)
	}
}

func TestAuditStaged(t *testing.T) {
	path := auditLog(t)
	golden(t, "audit-staged.txt", tierwall(t, "", "audit", "staged", "--utc", path).out)
	golden(t, "audit-staged.json", tierwall(t, "", "audit", "staged", "-o", "json", path).out)
	if r := tierwall(t, "", "audit", "staged", "--policy", "other", path); r.out != "No recorded connection met a staged policy.\n" {
		t.Errorf("%+v", r)
	}
}

// The quickstart's policies let the frontend to the API and nobody else to the
// database.
func TestAuditSimulate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	flow := func(verdict, from, to string, port int, policy, connection string) string {
		ns1, pod1, _ := strings.Cut(from, "/")
		ns2, pod2, _ := strings.Cut(to, "/")
		return fmt.Sprintf(`{"v":1,"kind":"flow","time":"2026-01-02T03:04:05Z","verdict":%q,"stage":"enforce","direction":"ingress",`+
			`"policy":{"group":"networking.k8s.io","kind":"NetworkPolicy","namespace":%q,"name":%q},"rule":{"index":0},"reason":"rule",`+
			`"source":{"ip":"10.9.9.9","port":40000,"namespace":%q,"pod":%q},"destination":{"ip":"10.9.9.8","port":%d,"namespace":%q,"pod":%q},`+
			`"protocol":"TCP","connection":%q,"count":1}`, verdict, ns2, policy, ns1, pod1, port, ns2, pod2, connection)
	}
	appendLine(t, path, flow("Allow", "shop/frontend", "shop/db", 5432, "old", "a"))
	appendLine(t, path, flow("Allow", "shop/frontend", "shop/db", 5432, "old", "b"))
	appendLine(t, path, flow("Drop", "shop/frontend", "shop/backend-0", 8080, "old", ""))
	appendLine(t, path, flow("Allow", "shop/gone", "shop/backend-0", 8080, "old", "c"))
	r := tierwall(t, "", "audit", "simulate", "--manifests", quickstart, path)
	golden(t, "audit-simulate.txt", r.out)
	if r.code != cli.ExitOK {
		t.Errorf("exit %d: %s", r.code, r.err)
	}
	r = tierwall(t, "", "audit", "simulate", "--manifests", quickstart, "--check", "-o", "json", "--verdict", "Drop", path)
	golden(t, "audit-simulate.json", r.out)
	if r.code != cli.ExitFinding {
		t.Errorf("--check with changes: exit %d", r.code)
	}
	// Policies alone, with the pods from elsewhere: no policies, no changes but
	// what the old ones denied.
	empty := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(empty, []byte("apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: p, namespace: other}\nspec: {podSelector: {}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r = tierwall(t, "", "audit", "simulate", "--manifests", empty, "--inventory", quickstart, path)
	if !strings.HasPrefix(r.out, "4 decisions in the log, 3 judged again: 1 would get another verdict, 2 the same for another reason, 0 stay as they are.\n") ||
		!strings.Contains(r.out, "Drop -> Allow  shop/frontend -> shop/backend-0") {
		t.Errorf("%+v", r)
	}
	if r := tierwall(t, "", "audit", "simulate", "--manifests", broken, path); r.code != cli.ExitFinding || r.out != "" {
		t.Errorf("broken candidates: %+v", r)
	}
	if r := tierwall(t, "", "audit", "simulate", path); r.code != cli.ExitUsage || !strings.Contains(r.err, "--manifests is required") {
		t.Errorf("no candidates: %+v", r)
	}
}

// chained writes a log whose lines carry hashes, over two files.
func chained(t *testing.T, n int) (path string, lines []string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "audit.log")
	prev := strings.Repeat("0", 64)
	for i := range n {
		line := strings.TrimSuffix(record(i+1), "}") + fmt.Sprintf(`,"seq":%d,"prev":%q}`, i+1, prev)
		sum := sha256.Sum256([]byte(line))
		prev = hex.EncodeToString(sum[:])
		lines = append(lines, line)
		name := path
		if i < n/2 {
			name += ".20260102T030405.000000000Z"
		}
		appendLine(t, name, line)
	}
	return path, lines
}

func TestAuditVerify(t *testing.T) {
	path, lines := chained(t, 10)
	old := path + ".20260102T030405.000000000Z"
	hash := func(line string) string {
		sum := sha256.Sum256([]byte(line))
		return hex.EncodeToString(sum[:])
	}
	r := tierwall(t, "", "audit", "verify", path)
	if r.code != cli.ExitOK || !strings.Contains(r.out, "verified: 10 lines in 2 files") || !strings.Contains(r.out, "Last hash, of record 10: "+hash(lines[9])) {
		t.Fatalf("%+v", r)
	}
	if r := tierwall(t, "", "audit", "verify", path, "--known", hash(lines[2])); r.code != cli.ExitOK || !strings.Contains(r.out, old+":3.") {
		t.Errorf("a known hash: %+v", r)
	}
	if r := tierwall(t, "", "audit", "verify", path, "--known", "beef"); r.code != cli.ExitUsage {
		t.Errorf("no hash: %+v", r)
	}
	write := func(name string, lines ...string) {
		if err := os.WriteFile(name, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cut := append(append([]string{}, lines[5:7]...), lines[8:]...)
	changed := append([]string{}, lines[5:]...)
	changed[2] = strings.Replace(changed[2], "10.244.1.10", "10.244.1.11", 1)
	for name, tt := range map[string]struct {
		lines []string
		args  []string
		want  string
	}{
		"a line changed":          {changed, nil, path + ":4"},
		"a line removed":          {cut, nil, path + ":3"},
		"the first line removed":  {lines[6:], nil, path + ":1"},
		"lines swapped":           {[]string{lines[5], lines[7], lines[6], lines[8], lines[9]}, nil, path + ":2"},
		"something added":         {append([]string{"hello"}, lines[5:]...), nil, path + ":1"},
		"the end cut, hash known": {lines[5:8], []string{"--known", hash(lines[9])}, "no line has the known hash"},
	} {
		write(path, tt.lines...)
		r := tierwall(t, "", append([]string{"audit", "verify", path}, tt.args...)...)
		if r.code != cli.ExitFinding || !strings.Contains(r.out, tt.want) {
			t.Errorf("%s: %+v", name, r)
		}
		if r := tierwall(t, "", append([]string{"audit", "verify", "-o", "json", path}, tt.args...)...); r.code != cli.ExitFinding || !strings.Contains(r.out, `"ok": false`) {
			t.Errorf("%s, JSON: %+v", name, r)
		}
	}
	plain := filepath.Join(t.TempDir(), "log")
	write(plain, record(1))
	if r := tierwall(t, "", "audit", "verify", plain); r.code != cli.ExitFinding || !strings.Contains(r.out, "not protected") {
		t.Errorf("no chain: %+v", r)
	}
}
