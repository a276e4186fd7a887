package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/cmd/internal/auditlog"
	"github.com/tierwall/tierwall/conntrack"
	"github.com/tierwall/tierwall/dataplane/audit"
)

// engine is an Engine with records of its own.
type engine struct {
	records []conntrack.Record
	tables  map[uint64]*classifier.Table
	inForce *classifier.Table
}

func (e *engine) Flows(f func(string, conntrack.Record) bool) {
	for _, r := range e.records {
		if !f("nfqueue", r) {
			return
		}
	}
}
func (e *engine) TableOf(g uint64) *classifier.Table { return e.tables[g] }
func (e *engine) Table() *classifier.Table           { return e.inForce }

var (
	podA = netip.MustParseAddr("10.0.0.1")
	podB = netip.MustParseAddr("10.0.0.2")
)

// table lets shop/a reach shop/b on port 80 by a rule of one policy.
func table(t *testing.T, generation uint64) *classifier.Table {
	t.Helper()
	world := &rule.World{Node: "n1", Nodes: []rule.Node{{Name: "n1"}}, Endpoints: []rule.Endpoint{
		{Namespace: "shop", Name: "a", Node: "n1", Addrs: []netip.Addr{podA}},
		{Namespace: "shop", Name: "b", Node: "n1", Addrs: []netip.Addr{podB}},
	}}
	set := rule.Set{Rules: []rule.Rule{{
		Direction: flow.Ingress, Order: rule.Order{Band: rule.BandNetworkPolicy}, Action: rule.Allow, Peers: []rule.Peer{{Kind: rule.PeerAny}}, L4: []rule.L4{rule.AnyL4},
		Origin: rule.Origin{Group: "networking.k8s.io", Kind: "NetworkPolicy", Namespace: "shop", Name: "web", Index: 0, Generation: 7},
	}}}
	tbl, _, err := classifier.Compile(set, world, classifier.Options{Generation: generation})
	if err != nil {
		t.Fatal(err)
	}
	return tbl
}

func record(tbl *classifier.Table, id uint64, port uint16) conntrack.Record {
	k := flow.Key{Src: flow.AddrFrom(podA), Dst: flow.AddrFrom(podB), Proto: flow.TCP, SrcPort: 40000, DstPort: port}
	r := conntrack.Record{
		ID: id, Since: 1e18, LastSeen: 1e18 + 5e9, Packets: [2]uint64{3, 2}, Bytes: [2]uint64{180, 120}, Key: k, State: conntrack.Established,
	}
	r.Bypassed = true
	if tbl != nil {
		d := tbl.Lookup(k)
		r.Generation, r.Egress, r.Ingress = tbl.Generation(), uint32(d.Egress), uint32(d.Ingress)
	}
	return r
}

// serve runs the handler on a real loopback listener.
func serve(t *testing.T, cfg Config) *Client {
	t.Helper()
	if cfg.Engine == nil {
		cfg.Engine = &engine{}
	}
	if cfg.Status == nil {
		cfg.Status = func() Status { return Status{Node: "n1", Ready: true} }
	}
	s := httptest.NewServer(Handler(cfg))
	t.Cleanup(s.Close)
	return &Client{HTTP: s.Client(), Base: s.URL}
}

func TestStatus(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	c := serve(t, Config{Now: func() time.Time { return now }})
	st, err := c.Status(t.Context())
	if err != nil || st.Node != "n1" || !st.Ready || !st.Now.Equal(now) {
		t.Errorf("%+v, %v", st, err)
	}
}

func TestFlows(t *testing.T) {
	old, cur := table(t, 1), table(t, 9)
	e := &engine{tables: map[uint64]*classifier.Table{9: cur}, inForce: cur}
	e.records = []conntrack.Record{record(cur, 0xa1, 80), record(old, 0xa2, 81), record(cur, 0xa3, 443)}
	c := serve(t, Config{Node: "n1", Engine: e})
	ask := func(words auditlog.Words, limit int) (got []Flow, end End) {
		t.Helper()
		end, err := c.Flows(t.Context(), words, limit, func(f *Flow) error {
			got = append(got, *f)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return got, end
	}

	got, end := ask(nil, 0)
	if len(got) != 3 || end != (End{Lines: 3}) {
		t.Fatalf("%d flows, %+v", len(got), end)
	}
	f := got[0]
	if f.Node != "n1" || f.Source.Name() != "shop/a" || f.Destination.Name() != "shop/b" || f.Destination.Port != 80 || f.Source.Port != 40000 ||
		f.Connection != "a1" || f.State != "established" || !f.InKernel || f.Alive != AliveUnknown || f.Packets != (Count{3, 2}) || f.Bytes != (Count{180, 120}) ||
		f.TableGeneration != 9 || f.Rejudged || f.Since.Unix() != 1e9 || f.LastSeen.Sub(f.Since) != 5*time.Second {
		t.Errorf("%+v", f)
	}
	if in := f.Ingress; in == nil || in.Policy == nil || in.Policy.Name != "web" || in.Policy.Generation != 7 || in.Rule == nil || in.Reason != "rule" {
		t.Errorf("ingress %+v", in)
	}
	if want := "ingress NetworkPolicy shop/web: ingress[0]"; f.Decided() != want {
		t.Errorf("decided by %q, want %q", f.Decided(), want)
	}
	// The table that admitted it is forgotten: judged by the one in force, and told so.
	if f := got[1]; !f.Rejudged || f.TableGeneration != 9 || f.Ingress == nil || f.Ingress.Policy == nil {
		t.Errorf("%+v", f)
	}

	for _, tt := range []struct {
		words auditlog.Words
		want  int
	}{
		{auditlog.Words{"port": {"80", "443"}}, 2},
		{auditlog.Words{"port": {"80"}, "protocol": {"UDP"}}, 0},
		{auditlog.Words{"policy": {"NetworkPolicy/shop/web"}}, 3},
		{auditlog.Words{"policy": {"other"}}, 0},
		{auditlog.Words{"from": {"shop/a"}, "to": {"10.0.0.2"}}, 3},
		{auditlog.Words{"from": {"shop/b"}}, 0},
	} {
		if got, _ := ask(tt.words, 0); len(got) != tt.want {
			t.Errorf("%v: %d flows, want %d", tt.words, len(got), tt.want)
		}
	}
	if got, end := ask(nil, 1); len(got) != 1 || end != (End{Lines: 1, Omitted: 2}) {
		t.Errorf("limited: %d flows, %+v", len(got), end)
	}
}

// Before the first table there are addresses and no names.
func TestFlowsWithoutTable(t *testing.T) {
	c := serve(t, Config{Engine: &engine{records: []conntrack.Record{record(nil, 1, 80)}}})
	if _, err := c.Flows(t.Context(), nil, 0, func(f *Flow) error {
		if f.Source.Name() != "10.0.0.1" || f.Ingress != nil || f.Decided() != "default" {
			t.Errorf("%+v", f)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// A question that is not understood is not answered as if it were another.
func TestRefuses(t *testing.T) {
	c := serve(t, Config{NoAudit: "no log here"})
	for path, want := range map[string]string{
		"flows?prot=TCP":       `400 unknown parameter "prot"`,
		"flows?limit=0":        "400 ",
		"flows?since=1h":       `400 unknown parameter "since"`,
		"flows?port=x":         "400 port: ",
		"flows?verdict=Maybe":  `400 verdict "Maybe": want one of`,
		"status?x=1":           "400 ",
		"audit?lines=many":     "400 ",
		"audit?follow=perhaps": "400 ",
		"audit?after=-1":       "400 ",
		"audit?heard=noon":     "400 ",
		"audit":                "409 no log here",
		"nothing":              "404 there is no /api/v1/nothing",
	} {
		_, err := c.get(t.Context(), strings.SplitN(path, "?", 2)[0], query(t, path))
		var r *RefusedError
		if !errors.As(err, &r) || !strings.HasPrefix(fmt.Sprintf("%d %s", r.Status, r.Text), want) {
			t.Errorf("%s: %v, want %s", path, err, want)
		}
	}
	for _, method := range []string{http.MethodPost, http.MethodDelete, http.MethodPut} {
		req, _ := http.NewRequest(method, c.Base+Prefix+"flows", nil)
		if resp, err := c.HTTP.Do(req); err != nil || resp.StatusCode != http.StatusMethodNotAllowed {
			t.Errorf("%s: %v, %v", method, resp, err)
		}
	}
}

func query(t *testing.T, path string) map[string][]string {
	t.Helper()
	req, err := http.NewRequest(http.MethodGet, "http://x/"+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	return req.URL.Query()
}

// Only both ends on loopback addresses and a name of the machine itself get in.
func TestLocalOnly(t *testing.T) {
	h := Handler(Config{Engine: &engine{}, Status: func() Status { return Status{} }})
	for _, tt := range []struct {
		name, local, remote, host string
		want                      int
	}{
		{"loopback", "127.0.0.1:7380", "127.0.0.1:5000", "127.0.0.1:7380", 200},
		{"by name", "127.0.0.1:7380", "127.0.0.1:5000", "localhost:7380", 200},
		{"IPv6", "[::1]:7380", "[::1]:5000", "[::1]:7380", 200},
		{"from the network", "10.0.0.1:7380", "10.0.0.9:5000", "10.0.0.1:7380", 403},
		{"a local process at the node's address", "10.0.0.1:7380", "10.0.0.1:5000", "127.0.0.1:7380", 403},
		{"a spoofed source", "10.0.0.1:7380", "127.0.0.1:5000", "127.0.0.1:7380", 403},
		{"a browser with a rebound name", "127.0.0.1:7380", "127.0.0.1:5000", "evil.example:7380", 403},
	} {
		local, err := net.ResolveTCPAddr("tcp", tt.local)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{"status", "flows", "audit"} {
			r := httptest.NewRequest(http.MethodGet, Prefix+path, nil)
			r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, local))
			r.RemoteAddr, r.Host = tt.remote, tt.host
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if got := w.Code; (got == http.StatusForbidden) != (tt.want == http.StatusForbidden) {
				t.Errorf("%s: %s answers %d", tt.name, path, got)
			}
		}
	}
}

// More than maxListings readers at a time are turned away, and let in again.
func TestLimited(t *testing.T) {
	e := &blocked{release: make(chan struct{}), entered: make(chan struct{}, maxListings)}
	c := serve(t, Config{Engine: e})
	done := make(chan error, maxListings)
	for range maxListings {
		go func() {
			_, err := c.Flows(context.Background(), nil, 0, func(*Flow) error { return nil })
			done <- err
		}()
	}
	for range maxListings {
		<-e.entered
	}
	_, err := c.Flows(t.Context(), nil, 0, nil)
	var r *RefusedError
	if !errors.As(err, &r) || r.Status != http.StatusTooManyRequests {
		t.Errorf("one too many: %v", err)
	}
	close(e.release)
	for range maxListings {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if _, err := c.Flows(t.Context(), nil, 0, nil); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

type blocked struct {
	engine
	entered, release chan struct{}
}

func (b *blocked) Flows(func(string, conntrack.Record) bool) {
	select {
	case b.entered <- struct{}{}:
	default:
	}
	<-b.release
}

// An answer without its last line is not taken for a short one.
func TestCut(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", linesType)
		_, _ = io.WriteString(w, `{"node":"n1"}`+"\n")
	}))
	defer s.Close()
	c := &Client{HTTP: s.Client(), Base: s.URL}
	if _, err := c.Flows(t.Context(), nil, 0, func(*Flow) error { return nil }); !errors.Is(err, ErrCut) {
		t.Errorf("flows: %v", err)
	}
	if err := c.Audit(t.Context(), Tail{}, TailFuncs{}); !errors.Is(err, ErrCut) {
		t.Errorf("audit: %v", err)
	}
}

// line is an audit record.
func line(t *testing.T, seq uint64, verdict string) []byte {
	t.Helper()
	r := audit.Record{
		V: audit.Version, Kind: audit.KindFlow, Time: time.Unix(int64(seq), 0).UTC(), Node: "n1", Verdict: verdict, Count: 1, Seq: seq,
		Source: &audit.Endpoint{IP: podA}, Destination: &audit.Endpoint{IP: podB, Port: 80}, Protocol: "TCP",
	}
	b, err := r.Append(nil, audit.JSON)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func write(t *testing.T, path string, chunks ...[]byte) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(bytes.Join(chunks, nil)); err != nil {
		t.Fatal(err)
	}
}

func TestAuditPast(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	write(t, path, line(t, 1, "Drop"), []byte("no record\n"), line(t, 2, "Allow"), line(t, 3, "Drop"))
	c := serve(t, Config{AuditFile: path})
	for _, tt := range []struct {
		name string
		q    Tail
		want []string
	}{
		{"all", Tail{Lines: -1}, []string{"1", "raw", "2", "3"}},
		{"the last", Tail{Lines: 2}, []string{"2", "3"}},
		{"filtered", Tail{Lines: 10, Filter: auditlog.Words{"verdict": {"drop"}}}, []string{"1", "raw", "3"}},
		{"resumed", Tail{Lines: 1, After: 1}, []string{"raw", "2", "3"}},
		{"resumed in another log", Tail{Lines: 1, After: 50}, []string{"3"}},
	} {
		var got []string
		err := c.Audit(t.Context(), tt.q, TailFuncs{Line: func(b []byte) error {
			if n := auditlog.SeqOf(b); n > 0 {
				got = append(got, fmt.Sprint(n))
			} else if string(b) == "no record" {
				got = append(got, "raw")
			}
			return nil
		}})
		if err != nil || !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v, %v, want %v", tt.name, got, err, tt.want)
		}
	}
	// Records that are gone when a reader comes back are told.
	gone := filepath.Join(t.TempDir(), "audit.log")
	write(t, gone, line(t, 7, "Drop"))
	var missing Missing
	err := serve(t, Config{AuditFile: gone}).Audit(t.Context(), Tail{After: 3}, TailFuncs{
		Line: func([]byte) error { return nil }, Missing: func(m Missing) error { missing = m; return nil },
	})
	if err != nil || missing != (Missing{4, 6}) {
		t.Errorf("missing %+v, %v", missing, err)
	}
	if err := serve(t, Config{AuditFile: path + "x"}).Audit(t.Context(), Tail{}, TailFuncs{}); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("no log: %v", err)
	}
}

// A stream goes on with what is written, shows that it lives, and outlasts the
// server's timeouts.
func TestAuditFollow(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	write(t, path, line(t, 1, "Drop"))
	s := httptest.NewUnstartedServer(Handler(Config{
		Engine: &engine{}, Status: func() Status { return Status{} }, AuditFile: path, Alive: 10 * time.Millisecond,
	}))
	const limit = time.Second
	s.Config.ReadTimeout, s.Config.WriteTimeout = limit, limit
	s.Start()
	defer s.Close()
	c := &Client{HTTP: s.Client(), Base: s.URL}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	enough := errors.New("enough")
	var seqs []uint64
	caught, alive, began := false, 0, time.Now()
	err := c.Audit(ctx, Tail{Lines: 10, Follow: true}, TailFuncs{
		Line: func(b []byte) error {
			seqs = append(seqs, auditlog.SeqOf(b))
			if len(seqs) == 2 {
				return enough
			}
			return nil
		},
		Caught: func() error {
			if len(seqs) != 1 {
				t.Errorf("the past is over after %v", seqs)
			}
			caught = true
			return nil
		},
		Alive: func(time.Time) error {
			if alive++; alive > 5 && time.Since(began) > 2*limit && len(seqs) == 1 {
				write(t, path, line(t, 2, "Drop"))
				alive = -1 << 30
			}
			return nil
		},
	})
	if !errors.Is(err, enough) || !caught || !slices.Equal(seqs, []uint64{1, 2}) {
		t.Errorf("%v, caught %v, records %v", err, caught, seqs)
	}
}
