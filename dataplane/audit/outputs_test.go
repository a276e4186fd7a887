package audit

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/packet"
)

// town is a world that knows nodes and Services, too.
type town struct{ *world }

func (t town) Resolver(gen uint64) Resolver {
	if t.world.Resolver(gen) == nil {
		return nil
	}
	return t
}

func (town) NodeOf(a flow.Addr) *rule.Node {
	if a.String() == "192.0.2.1" {
		return &rule.Node{Name: "n7"}
	}
	return nil
}
func (town) ServiceOf(flow.Service) string { return "" }
func (town) IsVIP(a flow.Addr) bool        { return a.String() == "10.96.0.10" }

// TestWhoIsWho: pods with the labels asked for, nodes, Services, strangers.
func TestWhoIsWho(t *testing.T) {
	src := newWorld()
	src.pods[toWeb.Src].Labels = map[string]string{"app": "a\"b", "team": "red", "secret": "no"}
	var l file
	l.room = -1
	w, err := New(Config{
		Source: town{src}, Open: func() (io.WriteCloser, error) { return &l, nil }, Labels: []string{"team", "app", "none"},
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, k := range []flow.Key{toWeb, tcp("192.0.2.1:1", "10.96.0.10:53"), tcp("198.51.100.1:1", "10.0.0.2:80")} {
		for range 2 { // worked out, remembered
			e := allowed(uint64(i))
			e.Key = k
			src.ring.Put(&e)
		}
	}
	w.step(w.clock())
	var got []string
	for line := range bytes.Lines(l.Bytes()) {
		r, err := Parse(line)
		if err != nil {
			t.Fatal(err)
		}
		if r.Direction != "ingress" {
			continue
		}
		ends, err := json.Marshal([]*Endpoint{r.Source, r.Destination})
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, string(ends))
	}
	want := []string{
		`[{"ip":"10.0.0.1","port":53646,"namespace":"x","pod":"a","node":"n1","labels":{"app":"a\"b","team":"red"}},{"ip":"10.0.0.2","port":80,"namespace":"y","pod":"b","node":"n2"}]`,
		`[{"ip":"192.0.2.1","port":1,"node":"n7"},{"ip":"10.96.0.10","port":53,"service":true}]`,
		`[{"ip":"198.51.100.1","port":1},{"ip":"10.0.0.2","port":80,"namespace":"y","pod":"b","node":"n2"}]`,
	}
	want = []string{want[0], want[0], want[1], want[1], want[2], want[2]}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestTeeIsTheLine: what Tee is told is what the line says.
func TestTeeIsTheLine(t *testing.T) {
	var told []Record
	l := newLog(t, Config{Tee: func(r Record) { told = append(told, r) }})
	scenario(l)
	if diff := cmp.Diff(l.records(), told, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
	if len(told) < 15 {
		t.Errorf("only %d records", len(told))
	}
}

// TestIsolatingPoliciesAreBounded: a label names eight policies at most.
func TestIsolatingPoliciesAreBounded(t *testing.T) {
	r := Record{Kind: KindFlow}
	for i := range 10 {
		r.Isolations = append(r.Isolations, Policy{Kind: "NetworkPolicy", Namespace: "x", Name: fmt.Sprint("p", i)})
	}
	r.Policy = &r.Isolations[0]
	h := newHits().of(&r)
	if h.what.Policy != (Policy{}) || strings.Count(h.what.Isolating, "x/p") != 8 || !strings.HasSuffix(h.what.Isolating, " and 2 more") {
		t.Errorf("%+v", h.what)
	}
	if r.Isolations = r.Isolations[:1]; newHits().of(&r).what.Policy != r.Isolations[0] {
		t.Error("one isolating policy is the one that decided")
	}
}

// TestHits: each line of policy has its packets counted.
func TestHits(t *testing.T) {
	l := newLog(t, Config{})
	for range 3 {
		l.put(dataplane.Event{Key: toWeb, Verdict: classifier.Allow, Egress: oQuiet, Ingress: oPassThenNP})
		l.put(denied(1))
	}
	l.after(2 * time.Second)
	got := map[string]uint64{}
	for _, h := range l.w.Hits() {
		got[fmt.Sprint(h.Verdict, " ", h.Policy.Name, h.Isolating, " ", h.Index)] = h.Packets
	}
	// A default deny is all isolating policies', not the first one's.
	want := map[string]uint64{
		"Pass tenants 1": 3, "Allow allow-tcp-80 0": 3,
		"Drop networkpolicy.networking.k8s.io/y/deny-all,networkpolicy.networking.k8s.io/y/web -1": 3,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestPortScan: many sources, every port; windows and lines stay few, every
// packet is counted, and the folded records tell the span.
func TestPortScan(t *testing.T) {
	const sources, ports, limit = 20, 2000, 64
	l := newLog(t, Config{MaxAggregates: limit})
	for p := 1; p <= ports; p++ {
		for s := range sources {
			e := denied(40000)
			e.Key.Src = flow.AddrFrom(netip.AddrFrom4([4]byte{198, 18, 0, byte(s)}))
			e.Key.DstPort = uint16(p)
			l.put(e)
		}
		l.after(100 * time.Microsecond)
	}
	l.after(2 * time.Second)
	var total, folded uint64
	spans := map[Ports]int{}
	for _, r := range l.records() {
		total += r.Count
		if r.Ports != nil {
			folded += r.Count
			spans[*r.Ports]++
			if r.Source.Port != 0 || r.Destination.Port != 0 || r.TCPFlags != "" {
				t.Errorf("a folded record names one packet's ports: %+v", r)
			}
		}
	}
	if total != sources*ports || len(l.records()) != limit+sources {
		t.Errorf("%d packets in %d records, want %d in %d", total, len(l.records()), sources*ports, limit+sources)
	}
	if folded != sources*ports-limit || spans[Ports{4, ports}] == 0 || len(spans) > 2 {
		t.Errorf("%d folded, spans %v", folded, spans)
	}
	if s := l.w.Stats(); s.Folded+sources != folded || s.Windows != 0 {
		t.Errorf("stats %+v, %d folded", s, folded)
	}
}

// TestSteadyState: once a decision is known, recording it again allocates nothing.
func TestSteadyState(t *testing.T) {
	l := newLog(t, Config{Chain: true})
	l.Grow(1 << 20)
	one := func() {
		l.put(dataplane.Event{Key: toWeb, Verdict: classifier.Allow, Egress: oQuiet, Ingress: oPassThenNP, Conn: 1, Device: 7, TCPFlags: packet.SYN})
		l.put(denied(7))
		l.after(2 * time.Second) // the window closes
		l.after(0)
		l.Reset()
	}
	for range 10 {
		one()
	}
	if n := testing.AllocsPerRun(200, one); n > 0 {
		t.Errorf("%.0f allocations", n)
	}
}

// RFC 5424 §6, written from its grammar: one message, header and JSON.
var reSyslog = regexp.MustCompile(`^<(\d{1,3})>1 (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,6})?Z) ([!-~]{1,255}) ([!-~]{1,48}) (\d+) ([!-~]{1,32}) - (\{.*\})$`)

func checkSyslog(t *testing.T, msg string) Record {
	t.Helper()
	m := reSyslog.FindStringSubmatch(msg)
	if m == nil {
		t.Fatalf("not RFC 5424: %q", msg)
	}
	r, err := Parse([]byte(m[7]))
	if err != nil {
		t.Fatal(err)
	}
	pri, _ := strconv.Atoi(m[1])
	want := map[string]int{Allow: 6, Pass: 6, Drop: 4, Reject: 4, WouldDrop: 5}[r.Verdict]
	if r.Kind == KindLost {
		want = 3
	}
	if pri != 13*8+want || m[3] != "n1" || m[4] != "tierwall" || m[6] != r.Kind {
		t.Errorf("header of a %s %s record: %q", r.Kind, r.Verdict, msg[:60])
	}
	return r
}

func TestSyslogDatagrams(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	target, err := ParseSyslog("unix://" + path)
	if err != nil {
		t.Fatal(err)
	}
	l := newLog(t, Config{Syslog: &target})
	l.put(dataplane.Event{Key: toWeb, Verdict: classifier.Allow, Egress: oQuiet, Ingress: oPassThenNP})
	l.put(denied(1))
	l.put(dataplane.Event{Key: toWeb, Verdict: classifier.Allow, Egress: oStaged, Ingress: oNotLocal})
	l.put(dataplane.Event{Cause: dataplane.CauseLost, Count: 3, Last: l.now})
	l.after(0)
	l.after(2 * time.Second)
	if err := l.w.finish(); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 64<<10)
	var got []string
	for range l.records() {
		if err := c.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
			t.Fatal(err)
		}
		n, err := c.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		r := checkSyslog(t, string(buf[:n]))
		got = append(got, r.Kind+r.Verdict)
	}
	if s := strings.Join(got, " "); s != "flowPass flowAllow flowwould-drop lost flowDrop" {
		t.Errorf("messages %s", s)
	}
}

// TestSyslogAway: a TCP receiver that goes away and comes back. Everything it
// did not get is in a lost record, and the log itself has everything.
func TestSyslogAway(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	if err := ln.Close(); err != nil { // nobody listens
		t.Fatal(err)
	}
	target, err := ParseSyslog("tcp://" + addr)
	if err != nil {
		t.Fatal(err)
	}
	l := newLog(t, Config{Syslog: &target})
	d := l.w.feeds[0]
	until := func(what string, cond func() bool) {
		t.Helper()
		for end := time.Now().Add(30 * time.Second); !cond(); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("not within 10 s: %s", what)
			}
		}
	}
	allow := dataplane.Event{Key: toWeb, Verdict: classifier.Allow, Egress: oQuiet, Ingress: oPassThenNP}
	for i := range 5 {
		l.put(allow)
		l.after(time.Millisecond)
		until("a failure is counted", func() bool { return d.lost.Load() == uint64(2*(i+1)) })
	}
	if ln, err = net.Listen("tcp", addr); err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	time.Sleep(time.Duration(retryEvery)) // the sender's own pause, in real time
	l.put(allow)
	l.after(2 * time.Second)
	conn, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	in := bufio.NewReader(conn)
	var got []string
	var missing uint64
	for range 3 {
		size, err := in.ReadString(' ')
		if err != nil {
			t.Fatal(err)
		}
		n, err := strconv.Atoi(strings.TrimSuffix(size, " "))
		if err != nil {
			t.Fatal(err)
		}
		msg := make([]byte, n)
		if _, err := io.ReadFull(in, msg); err != nil {
			t.Fatal(err)
		}
		r := checkSyslog(t, string(msg))
		got = append(got, r.Kind+r.Verdict)
		if r.Kind == KindLost {
			missing += r.Count
		}
	}
	if s := strings.Join(got, " "); s != "lost flowPass flowAllow" || missing != 10 {
		t.Errorf("messages %s, %d missing, want 10", s, missing)
	}
	if n := len(l.records()); n != 12 {
		t.Errorf("%d records in the log, want 12", n)
	}
	if s := l.w.Stats(); s.OutputLost != 10 || s.WriteLost != 0 {
		t.Errorf("stats %+v", s)
	}
	if err := l.w.finish(); err != nil {
		t.Fatal(err)
	}
}

func TestParseSyslog(t *testing.T) {
	for s, want := range map[string]SyslogTarget{
		"unix:///dev/log":      {"unixgram", "/dev/log"},
		"udp://10.0.0.1:514":   {"udp", "10.0.0.1:514"},
		"tcp://[fd00::1]:601":  {"tcp", "[fd00::1]:601"},
		"tcp://logs.local:601": {"tcp", "logs.local:601"},
	} {
		if got, err := ParseSyslog(s); got != want || err != nil {
			t.Errorf("%s: %v, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "/dev/log", "udp://host", "http://host:80", "tcp://:601", "tcp://host:601/path", "unix://dev/log", "\x00"} {
		if got, err := ParseSyslog(s); err == nil {
			t.Errorf("%q: %v", s, got)
		}
	}
}

// slow is a writer that blocks until it is let go.
type slow struct {
	gate chan struct{}
	mu   sync.Mutex
	bytes.Buffer
}

func (s *slow) Write(b []byte) (int, error) {
	<-s.gate
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Buffer.Write(b)
}

// TestStdoutBlocked: a pipe nobody reads stops neither the log nor the writer,
// and what did not fit is told once somebody does.
func TestStdoutBlocked(t *testing.T) {
	out := &slow{gate: make(chan struct{})}
	l := newLog(t, Config{Stdout: out})
	const n = 2000
	for range n {
		l.put(dataplane.Event{Key: toWeb, Verdict: classifier.Allow, Egress: oQuiet, Ingress: oPassThenNP})
		l.after(time.Millisecond)
	}
	if got := len(l.records()); got != 2*n {
		t.Fatalf("%d records in the log, want %d", got, 2*n)
	}
	close(out.gate)
	l.after(2 * time.Second)
	if err := l.w.finish(); err != nil {
		t.Fatal(err)
	}
	var records, lost uint64
	for line := range bytes.Lines(out.Bytes()) {
		r, err := Parse(line)
		if err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		if r.Kind == KindLost {
			lost += r.Count
		} else {
			records++
		}
	}
	if records+lost != 2*n || lost == 0 || l.w.Stats().OutputLost != lost {
		t.Errorf("%d records and %d lost, want %d together; stats %+v", records, lost, 2*n, l.w.Stats())
	}
}

// TestStream: readers get records as they come; one that does not read is
// disconnected and holds up nobody.
func TestStream(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	if old, err := net.Listen("unix", path); err != nil {
		t.Fatal(err)
	} else {
		old.(*net.UnixListener).SetUnlinkOnClose(false)
		old.Close() // an earlier run's socket is in the way
	}
	l := newLog(t, Config{Stream: path})
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("socket: %v %v", st, err)
	}
	connect := func() net.Conn {
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	fast, lazy := connect(), connect()
	defer fast.Close()
	defer lazy.Close()
	for end := time.Now().Add(30 * time.Second); l.w.Stats().Readers != 2; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("readers are not accepted")
		}
	}
	if _, err := newStream(path, l.w.log); err == nil {
		t.Error("a second stream took the socket of a living one")
	}
	const n = 3000
	seen := make(chan error, 1)
	go func() {
		s := bufio.NewScanner(fast)
		for i := range n {
			if !s.Scan() {
				seen <- fmt.Errorf("the stream ended after %d records: %w", i, s.Err())
				return
			}
			if r, err := Parse(s.Bytes()); err != nil || r.Connection != strconv.FormatInt(int64(i+1), 16) {
				seen <- fmt.Errorf("record %d is %s: %w", i, s.Bytes(), err)
				return
			}
		}
		seen <- nil
	}()
	for i := range n {
		l.put(dataplane.Event{Key: toWeb, Verdict: classifier.Allow, Egress: oNotLocal, Ingress: oQuietRule, Forced: true, Conn: uint64(i + 1)})
		l.after(time.Millisecond)
		time.Sleep(20 * time.Microsecond) // the reader's share of a small machine
	}
	if err := <-seen; err != nil {
		t.Error(err)
	}
	if s := l.w.Stats(); s.Readers != 1 || s.Dropped != 1 {
		t.Errorf("stats %+v, want the lazy reader dropped", s)
	}
	if err := l.w.finish(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(fast); err != nil {
		t.Errorf("the stream does not end in order: %v", err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
}

// TestRingMirror: what a ring was offered is counted where it outlives us.
func TestRingMirror(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	src := newWorld()
	src.ring = dataplane.NewRing(4)
	w, err := New(Config{Source: src, Path: path, State: true})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 10 { // six find it full
		e := allowed(uint64(i + 1))
		src.ring.Put(&e)
	}
	if n, last := w.state.offered(); n != 10 || last == 0 {
		t.Errorf("%d offered, last at %d", n, last)
	}
	// The process dies here: nothing of it was written.
	if err := w.state.close(); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second restart has nothing to tell any more
		src = newWorld()
		if w, err = New(Config{Source: src, Path: path, State: true}); err != nil {
			t.Fatal(err)
		}
		if err := w.finish(); err != nil {
			t.Fatal(err)
		}
	}
	all := readAll(t, path)
	if len(all) != 1 || all[0].Kind != KindLost || all[0].Reason != LostCrash || all[0].Count != 10 || all[0].Events != 10 || all[0].Seq != 1 {
		t.Errorf("log after the crash: %+v", all)
	}
}
