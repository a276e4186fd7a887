package metrics

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/conntrack"
	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/audit"
	"github.com/tierwall/tierwall/dataplane/dns"
	"github.com/tierwall/tierwall/dataplane/hits"
	"github.com/tierwall/tierwall/dataplane/packet"
	"github.com/tierwall/tierwall/policy/assess"
	"github.com/tierwall/tierwall/policy/controller"
	"github.com/tierwall/tierwall/policy/diag"
	"github.com/tierwall/tierwall/policy/source/kube"
)

var update = flag.Bool("update", false, "write testdata and the tables in docs anew")

// fake is a daemon with a different number in every place, so that a metric
// that reads the wrong one shows.
type fake struct {
	workers  []dataplane.WorkerStats
	rings    []*dataplane.Ring
	backends []Backend
	stats    audit.Stats
	hits     []audit.Hit
	status   controller.Status
	source   kube.Status
}

func (f *fake) Workers() []dataplane.WorkerStats { return f.workers }
func (f *fake) Rings() []*dataplane.Ring         { return f.rings }

type fakeAudit struct{ *fake }

func (f fakeAudit) Stats() audit.Stats { return f.stats }
func (f fakeAudit) Hits() []audit.Hit  { return f.hits }

type fakeBackend struct {
	name  string
	stats dataplane.BackendStats
}

func (f fakeBackend) Name() string                  { return f.name }
func (f fakeBackend) Stats() dataplane.BackendStats { return f.stats }

func newFake() *fake {
	next := uint64(0)
	n := func() uint64 { next++; return next }
	worker := func(backend string, queue int) dataplane.WorkerStats {
		w := dataplane.WorkerStats{Backend: backend, Queue: queue}
		for p := range w.Paths {
			w.Paths[p] = n()
			w.Received += w.Paths[p]
		}
		for p := range w.Problems {
			w.Problems[p] = n()
		}
		w.Batches, w.Remember, w.Events, w.Lost, w.Cut, w.RecvFails, w.ApplyFail = n(), n(), n(), n(), n(), n(), n()
		w.Latency.Buckets[0], w.Latency.Buckets[36], w.Latency.Buckets[60], w.Latency.Buckets[dataplane.NumBuckets-1] = 1, 20, 300, 4000
		w.Conntrack = conntrack.Stats{Records: int(n()), Inserted: n(), Replaced: n(), Evicted: n(), Expired: n(), Removed: n(), Hits: n(), Misses: n()}
		return w
	}
	fates := func() (f dataplane.Fates) {
		for i := range f {
			f[i] = n()
		}
		return f
	}
	f := &fake{
		workers: []dataplane.WorkerStats{worker("afxdp", 0), worker("afxdp", 1), worker("nfqueue", 0)},
		rings:   []*dataplane.Ring{dataplane.NewRing(8192), dataplane.NewRing(1024)},
		backends: []Backend{
			fakeBackend{"afxdp", dataplane.BackendStats{Bypassed: n(), Dropped: n(), Upcalls: n(), Overflow: n(), Fates: fates()}},
			fakeBackend{"nfqueue", dataplane.BackendStats{Bypassed: n(), Dropped: n(), Upcalls: n(), Overflow: n()}},
		},
		stats: audit.Stats{
			Events: n(), Records: n(), Collapsed: n(), Folded: n(), RingLost: n(), WriteLost: n(), CrashLost: n(), OutputLost: n(), Unresolved: n(),
			Reopens: n(), Rotations: n(), Readers: int(n()), Dropped: n(), Windows: int(n()), Lag: 1500 * time.Microsecond,
		},
		status: controller.Status{
			Generation: n(), Objects: int(n()), Rules: int(n()), Isolations: int(n()), Pods: int(n()),
			LastAttempt: time.Unix(1767323045, 500e6), LastSuccess: time.Unix(1767323040, 0),
			Findings: diag.List{Errors: make([]diag.Diagnostic, 2), Warnings: make([]diag.Diagnostic, 3)},
			Refused:  make([]assess.Refused, 4),
		},
		source: kube.Status{Synced: true, Resources: []kube.ResourceStatus{
			{Resource: "networkpolicies.networking.k8s.io", Objects: 9001, Requests: 9002, Lists: 9003, Events: 9004, Errors: 9005, LastContact: time.Unix(1767323050, 250e6)},
			{Resource: "pods", Objects: 9006, Requests: 9007, Lists: 9008, Events: 9009, Errors: 9010, LastContact: time.Unix(1767323051, 0)},
		}, NotUnderstood: []kube.NotUnderstood{
			{Group: "crd.projectcalico.org", Kind: "GlobalNetworkPolicy", Objects: 9011}, {Group: "example.org", Kind: "TeamNetworkPolicy", Objects: kube.UnknownObjects},
		}},
		hits: []audit.Hit{
			hit("NetworkPolicy", "shop", "db", 0, "", audit.Allow, 5), hit("NetworkPolicy", "shop", "db", 1, "", audit.Allow, 7),
			hit("NetworkPolicy", "shop", "db", -1, "", audit.Drop, 11), hit("NetworkPolicy", "shop", "web", 0, "", audit.WouldDrop, 13),
			hit("AdminNetworkPolicy", "", "tenants", 2, "to \"dns\"", audit.Pass, 17),
			{Index: -1, Direction: "egress", Band: "default", Verdict: audit.Allow, Reason: "default", Packets: 19},
			{Index: -1, Reason: other, Packets: 23},
		},
	}
	for range 5 {
		f.rings[1].Put(&dataplane.Event{})
	}
	return f
}

func hit(kind, ns, name string, index int, rule, verdict string, packets uint64) audit.Hit {
	return audit.Hit{
		Policy: audit.Policy{Group: "networking.k8s.io", Kind: kind, Namespace: ns, Name: name}, Rule: rule, Index: index,
		Direction: "ingress", Band: "networkpolicy", Verdict: verdict, Packets: packets,
	}
}

var fakeNames = Names{
	Known:    dns.Stats{Sets: 8001, Names: 8002, Addresses: 8003, Evicted: 8004, Refused: 8005},
	Observed: dns.ObserverStats{Queries: 8005, Answers: 8006, Unasked: 8007, Foreign: 8008, Unreadable: 8009, Waited: 8010, Late: 8011, Crowded: 8012},
}

func (f *fake) collector() *Collector {
	return NewCollector(Config{
		Missing:  map[string]bool{"afxdp": true, "nfqueue": false},
		Unjudged: func() map[string]int { return map[string]int{UnjudgedBridge: 1, UnjudgedNetkit: 0} },
		Engine:   f, Backends: f.backends, Hits: func() ([]hits.Rule, error) { return fakeMatches, nil }, Audit: fakeAudit{f}, Policy: func() controller.Status { return f.status },
		Source: func() kube.Status { return f.source }, Names: func() Names { return fakeNames }, Node: "node-1", Version: "v1.2.3",
	})
}

func page(t *testing.T, h http.Handler, path string) (int, string) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	b, err := io.ReadAll(w.Result().Body)
	if err != nil {
		t.Fatal(err)
	}
	return w.Code, string(b)
}

// own serves the collector's metrics alone.
func own(c *Collector) http.Handler {
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(c)
	return promhttp.HandlerFor(reg, promhttp.HandlerOpts{ErrorHandling: promhttp.HTTPErrorOnError})
}

func ready() error { return nil }

// TestPage is the golden test of the whole page.
func TestPage(t *testing.T) {
	_, got := page(t, own(newFake().collector()), "/")
	const path = "testdata/metrics.txt"
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v (run with -update to write it)", err)
	}
	if got != string(want) {
		t.Errorf("the page changed (run with -update and read the change)\n%s", diffLines(string(want), got))
	}
}

func diffLines(want, got string) string {
	var b strings.Builder
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	for _, l := range w {
		if !slices.Contains(g, l) {
			b.WriteString("- " + l + "\n")
		}
	}
	for _, l := range g {
		if !slices.Contains(w, l) {
			b.WriteString("+ " + l + "\n")
		}
	}
	return b.String()
}

// TestLint runs promlint over everything that is served, the process's own
// metrics included.
func TestLint(t *testing.T) {
	code, got := page(t, Handler(newFake().collector(), ready), "/metrics")
	if code != http.StatusOK {
		t.Fatalf("%d: %s", code, got)
	}
	found, err := promlint.New(strings.NewReader(got)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range found {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	for _, name := range []string{"go_goroutines ", "process_cpu_seconds_total ", "tierwall_policy_generation "} {
		if !strings.Contains(got, "\n"+name) {
			t.Errorf("the page has no %s", name)
		}
	}
}

// Every metric that is declared is on the page, and the page has no other.
func TestDeclared(t *testing.T) {
	_, got := page(t, own(newFake().collector()), "/")
	names := map[string]bool{}
	for _, d := range all {
		name, _ := nameAndHelp(d)
		names[name] = true
		if !strings.Contains(got, "# TYPE "+name+" ") {
			t.Errorf("%s is declared and not collected", name)
		}
	}
	if n := strings.Count(got, "# TYPE "); n != len(names) || len(names) != len(all) {
		t.Errorf("%d metrics on the page, %d declared with %d names", n, len(all), len(names))
	}
}

var descText = regexp.MustCompile(`^Desc\{fqName: "([^"]*)", help: "(.*)", constLabels: \{\}, variableLabels: \{(.*)\}\}$`)

func nameAndHelp(d *prometheus.Desc) (name, help string) {
	m := descText.FindStringSubmatch(d.String())
	if m == nil {
		panic("a description prints as " + d.String())
	}
	return m[1], strings.NewReplacer(`\"`, `"`, `\\`, `\`).Replace(m[2])
}

// TestDoc keeps the table in docs/metrics.md equal to the declarations.
func TestDoc(t *testing.T) {
	_, got := page(t, own(newFake().collector()), "/")
	var b strings.Builder
	b.WriteString("| Metric | Type | Labels | Meaning |\n|---|---|---|---|\n")
	for _, d := range all {
		name, help := nameAndHelp(d)
		_, after, _ := strings.Cut(got, "# TYPE "+name+" ")
		kind, _, _ := strings.Cut(after, "\n")
		var labels []string
		for _, l := range strings.Split(descText.FindStringSubmatch(d.String())[3], ",") {
			if l != "" {
				labels = append(labels, "`"+l+"`")
			}
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", name, kind, strings.Join(labels, " "), help)
	}
	const path, begin, end = "../../../docs/metrics.md", "<!-- metrics: begin, written by a test -->\n", "<!-- metrics: end -->"
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := bytes.Cut(text, []byte(begin))
	_, after, ok2 := bytes.Cut(rest, []byte(end))
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the table: %q and %q", path, begin, end)
	}
	want := string(before) + begin + b.String() + end + string(after)
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if string(text) != want {
		t.Errorf("%s is out of date (run with -update)\n%s", path, diffLines(string(text), want))
	}
}

var fakeMatches = []hits.Rule{
	{ID: match("db", 0), Hits: 12}, {ID: match("db", 1)}, {ID: match("db", -1), Hits: 3},
}

func match(policy string, index int) hits.ID {
	return hits.ID{
		Policy:    classifier.PolicyRef{Group: "networking.k8s.io", Kind: "NetworkPolicy", Namespace: "shop", Name: policy},
		Direction: flow.Ingress, Index: index,
	}
}

// Series by rule are bounded, the sum over all of them is that of the hits, and no
// counter goes back when rules are removed. Rules that never decided are a number.
func TestMatchesAreBounded(t *testing.T) {
	var rules []hits.Rule
	total := 0
	for i := range 500 {
		rules = append(rules, hits.Rule{ID: match(fmt.Sprintf("p%03d", i), 0), Hits: uint64(i)})
		total += i
	}
	f := newFake()
	c := NewCollector(Config{Engine: f, Hits: func() ([]hits.Rule, error) { return rules, nil }, Policy: func() controller.Status { return f.status }, MaxRules: 20})
	read := func() (series int, sum, other float64) {
		_, text := page(t, own(c), "/")
		for line := range strings.Lines(text) {
			if !strings.HasPrefix(line, "tierwall_rule_matches_total{") {
				continue
			}
			series++
			v, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndex(line, " "):]), 64)
			if err != nil {
				t.Fatal(err)
			}
			sum += v
			if strings.Contains(line, `policy="other"`) {
				other = v
			}
		}
		if !strings.Contains(text, "tierwall_rules_unmatched 1\n") && len(rules) == 500 {
			t.Error("one rule of 500 never decided, and the page does not say so")
		}
		return series, sum, other
	}
	series, sum, before := read()
	if series != 21 || sum != float64(total) {
		t.Errorf("%d series add up to %v, want 21 and %d", series, sum, total)
	}
	rules = rules[100:]
	if _, _, after := read(); after < before {
		t.Errorf("a counter went back from %v to %v", before, after)
	}
}

// A default deny was counted for the first of the isolating policies.
func TestIsolationIsNotOnePolicys(t *testing.T) {
	f := newFake()
	f.hits = []audit.Hit{{Isolating: "np/shop/all,np/shop/db", Index: -1, Direction: "ingress", Band: "networkpolicy", Verdict: audit.Drop, Packets: 11}}
	c := NewCollector(Config{Engine: f, Audit: fakeAudit{f}, Policy: func() controller.Status { return f.status }})
	_, text := page(t, own(c), "/")
	if !strings.Contains(text, `tierwall_audited_verdicts_total{band="networkpolicy",direction="ingress",policy="np/shop/all,np/shop/db",verdict="Drop"} 11`) {
		t.Error(text)
	}
}

// The number of series is bounded whatever the policies are, and sums stay.
func TestBounded(t *testing.T) {
	f := newFake()
	f.hits = nil
	var packets uint64
	for i := range 5000 {
		f.hits = append(f.hits, hit("NetworkPolicy", "ns", fmt.Sprintf("p%04d", i), i%3, "", audit.Drop, uint64(5000-i)))
		packets += uint64(5000 - i)
	}
	c := NewCollector(Config{
		Engine: f, Audit: fakeAudit{f}, Policy: func() controller.Status { return f.status }, MaxPolicies: 10, MaxRules: 20,
	})
	sum := func() (series map[string]uint64, total uint64) {
		_, text := page(t, own(c), "/")
		series = map[string]uint64{}
		for line := range strings.Lines(text) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), "} ")
			if labels, ok := strings.CutPrefix(name, "tierwall_audited_verdicts_total{"); ok {
				var n float64
				if _, err := fmt.Sscan(value, &n); err != nil {
					t.Fatal(err)
				}
				series[labels] = uint64(n)
				total += uint64(n)
			}
		}
		if n := strings.Count(text, "\ntierwall_rule_hits_total{"); n != 21 {
			t.Errorf("%d series of rules, want 20 and the others", n)
		}
		return series, total
	}
	first, total := sum()
	if len(first) != 11 || total != packets || !strings.Contains(fmt.Sprint(first), "/ns/p0000") {
		t.Errorf("%d series with %d packets of %d: %v", len(first), total, packets, first)
	}
	// A latecomer that is heavier than all does not push anybody out: no
	// counter goes back.
	f.hits = append(f.hits, hit("NetworkPolicy", "ns", "late", 0, "", audit.Drop, 1e6))
	second, total := sum()
	if total != packets+1e6 {
		t.Errorf("%d packets, want %d", total, packets+1e6)
	}
	for labels, n := range first {
		if second[labels] < n {
			t.Errorf("%s went from %d to %d", labels, n, second[labels])
		}
	}
}

// policies of one kind and name in two APIs are counted apart.
func TestTwoAPIsOneName(t *testing.T) {
	kubernetes, antrea := hit("NetworkPolicy", "x", "deny", 0, "", audit.Drop, 3), hit("NetworkPolicy", "x", "deny", 0, "", audit.Drop, 5)
	antrea.Policy.Group, antrea.Band = "crd.antrea.io", "networkpolicy"
	f := newFake()
	f.hits = []audit.Hit{kubernetes, antrea}
	c := NewCollector(Config{Engine: f, Audit: fakeAudit{f}, Policy: func() controller.Status { return f.status }})
	_, text := page(t, own(c), "/")
	for label, packets := range map[string]string{"networkpolicy.networking.k8s.io/x/deny": "3", "networkpolicy.crd.antrea.io/x/deny": "5"} {
		for _, name := range []string{"tierwall_audited_verdicts_total", "tierwall_rule_hits_total"} {
			if !slices.ContainsFunc(strings.Split(text, "\n"), func(line string) bool {
				return strings.HasPrefix(line, name+"{") && strings.Contains(line, `"`+label+`"`) && strings.HasSuffix(line, "} "+packets)
			}) {
				t.Errorf("no %s of %s with %s packets:\n%s", name, label, packets, text)
			}
		}
	}
}

// Histogram bounds are cumulative, exact at the engine's own limits.
func TestHistogram(t *testing.T) {
	_, text := page(t, own(newFake().collector()), "/")
	for _, want := range []string{
		// Bucket 36 begins at 1024 ns, bucket 60 at 65536 ns; the last is open.
		`tierwall_verdict_latency_seconds_bucket{backend="nfqueue",le="1.024e-06"} 1`,
		`tierwall_verdict_latency_seconds_bucket{backend="nfqueue",le="4.096e-06"} 21`,
		`tierwall_verdict_latency_seconds_bucket{backend="nfqueue",le="6.5536e-05"} 21`,
		`tierwall_verdict_latency_seconds_bucket{backend="nfqueue",le="0.000262144"} 321`,
		`tierwall_verdict_latency_seconds_bucket{backend="nfqueue",le="1.073741824"} 321`,
		`tierwall_verdict_latency_seconds_bucket{backend="nfqueue",le="+Inf"} 4321`,
		`tierwall_verdict_latency_seconds_count{backend="nfqueue"} 4321`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("no %s", want)
		}
	}
}

func TestNoAuditLog(t *testing.T) {
	f := newFake()
	c := NewCollector(Config{Engine: f, Policy: func() controller.Status { return f.status }})
	if code, text := page(t, own(c), "/"); code != http.StatusOK || strings.Contains(text, "tierwall_audit_") {
		t.Errorf("%d\n%s", code, text)
	}
}

func TestProbesAndNothingElse(t *testing.T) {
	var why error
	h := Handler(newFake().collector(), func() error { return why })
	for _, path := range []string{"/healthz", "/readyz"} {
		if code, text := page(t, h, path); code != http.StatusOK || text != "ok\n" {
			t.Errorf("%s: %d %q", path, code, text)
		}
	}
	why = errors.New("no policy yet")
	if code, text := page(t, h, "/readyz"); code != http.StatusServiceUnavailable || text != "no policy yet\n" {
		t.Errorf("not ready: %d %q", code, text)
	}
	if code, _ := page(t, h, "/healthz"); code != http.StatusOK {
		t.Errorf("a daemon without a policy is restarted: %d", code)
	}
	for _, path := range []string{"/", "/debug/pprof/", "/debug/pprof/profile", "/debug/vars", "/metrics/x"} {
		if code, _ := page(t, h, path); code != http.StatusNotFound {
			t.Errorf("%s answers %d", path, code)
		}
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/metrics", nil))
	if w.Code != http.StatusMethodNotAllowed {
		t.Errorf("POST answers %d", w.Code)
	}
}

// Serving starts when the address can be had, and ends with its context.
func TestServe(t *testing.T) {
	hold, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := hold.Addr().String()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	log := &lockedBuffer{news: make(chan string, 16)}
	done := make(chan struct{})
	logger := slog.New(slog.NewTextHandler(log, nil))
	go func() {
		Serve(ctx, address, Handler(newFake().collector(), ready), logger)
		close(done)
	}()
	if line := <-log.news; !strings.Contains(line, "metrics not served") || !strings.Contains(line, address) {
		t.Errorf("an address in use: %s", line)
	}
	hold.Close()
	select {
	case line := <-log.news:
		if !strings.Contains(line, "metrics served") {
			t.Errorf("log: %s", line)
		}
	case <-time.After(4 * retryListen):
		t.Fatal("not served although the address is free")
	}
	resp, err := http.Get("http://" + address + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if err != nil || !bytes.Contains(b, []byte("tierwall_packets_total{")) {
		t.Errorf("error %v, page\n%s", err, b)
	}
	cancel()
	<-done
	if _, err := net.DialTimeout("tcp", address, time.Second); err == nil {
		t.Error("somebody still listens")
	}
}

type lockedBuffer struct{ news chan string }

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.news <- string(p)
	return len(p), nil
}

// The numbers of the fake are different, so this catches mixed-up fields that a
// golden would bless.
func TestRightNumbers(t *testing.T) {
	f := newFake()
	_, text := page(t, own(f.collector()), "/")
	w := f.workers[2]
	for name, want := range map[string]uint64{
		`batches_total{backend="nfqueue"}`: w.Batches, `offloads_total{backend="nfqueue"}`: w.Remember,
		`connections_cut_total{backend="nfqueue"}`: w.Cut, `connections_evicted_total{backend="nfqueue"}`: w.Conntrack.Evicted,
		`packets_total{backend="nfqueue",disposition="drop",path="policy"}`:        w.Paths[dataplane.DropPolicy],
		`packets_total{backend="nfqueue",disposition="pass",path="new"}`:           w.Paths[dataplane.PassNew],
		`packet_problems_total{problem="` + packet.NotIP.String() + `"}`:           f.workers[0].Problems[packet.NotIP] + f.workers[1].Problems[packet.NotIP] + w.Problems[packet.NotIP],
		`kernel_packets_total{backend="afxdp",disposition="drop",reason="forged"}`: f.backends[0].Stats().Fates[dataplane.DropForged],
		`audit_records_lost_total{cause="write-failed"}`:                           f.stats.WriteLost, `audit_records_lost_total{cause="crash"}`: f.stats.CrashLost,
		`audit_records_written_total`: f.stats.Records, `audit_records_deduplicated_total`: f.stats.Collapsed,
		`event_ring_depth`: 5, `event_ring_capacity`: 1024, `policy_errors`: 2, `policy_rules`: uint64(f.status.Rules),
		`audited_verdicts_total{band="networkpolicy",direction="ingress",policy="networkpolicy.networking.k8s.io/shop/db",verdict="Allow"}`: 12,
		`audited_verdicts_total{band="networkpolicy",direction="ingress",policy="networkpolicy.networking.k8s.io/shop/db",verdict="Drop"}`:  11,
		`rule_hits_total{direction="ingress",policy="networkpolicy.networking.k8s.io/shop/db",rule="ingress[1]",verdict="Allow"}`:           7,
	} {
		if line := fmt.Sprintf("\ntierwall_%s %d\n", name, want); !strings.Contains(text, line) {
			t.Errorf("no line %q", line[1:])
		}
	}
}
