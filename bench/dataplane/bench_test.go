package dataplane

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/bench/internal/child"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/dataplane/nstest"
	"github.com/tierwall/tierwall/dataplane/nstest/netlab"
	"github.com/tierwall/tierwall/dataplane/packet"
)

// TestMain lets the test binary be the child the benchmark starts of itself.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == StockCommand {
		cmd := stockCommand()
		cmd.SetArgs(os.Args[2:])
		if err := cmd.Execute(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	code := m.Run()
	remove()
	os.Exit(code)
}

// needs says what a lab cannot do without on this machine.
func needs() error {
	l, err := newLab()
	if err != nil {
		return err
	}
	return errors.Join(l.missing(), l.close())
}

// daemon builds tierwalld once for all tests. It is removed by TestMain.
var daemon = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "tierwall-bench-test-")
	if err != nil {
		return "", err
	}
	remove = func() { os.RemoveAll(dir) }
	p, err := findPrograms(context.Background(), "", dir)
	return p.daemon, err
})

var remove = func() {}

// quick runs a command the short way and checks what every report promises.
func quick(t *testing.T, name string, more ...string) *Report {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: a run of the benchmark takes 15 s")
	}
	nstest.Need(t, needs)
	daemon, err := daemon()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	var out, progress bytes.Buffer
	for _, cmd := range Commands() {
		if cmd.Name() != name {
			continue
		}
		cmd.SetOut(&out)
		cmd.SetErr(&progress)
		cmd.SetArgs(append(more, "--quick", "-o", "json", "--daemon", daemon,
			"--plots", filepath.Join(dir, "plots"), "--record", filepath.Join(dir, "results")))
		if err := cmd.ExecuteContext(t.Context()); err != nil {
			t.Fatalf("%v\n%s", err, progress.Bytes())
		}
	}
	var r Report
	d := json.NewDecoder(&out)
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		t.Fatal(err)
	}
	if r.Command != name || r.Rounds != 1 || r.Machine.Kernel == "" || r.Machine.CPUs == 0 || r.Seconds <= 0 {
		t.Errorf("head of the report: %+v", r)
	}
	seen := map[string]bool{}
	for _, res := range r.Results {
		if seen[res.Case] || res.Unit == "" || res.Min > res.Value && !strings.Contains(res.Unit, "packets") {
			t.Errorf("result twice or incomplete: %+v", res)
		}
		seen[res.Case] = true
		m, _ := split(res.Case)
		b, err := os.ReadFile(filepath.Join(dir, "plots", m+".svg"))
		if err != nil || xml.Unmarshal(b, new(struct{})) != nil {
			t.Errorf("plot of %s is not XML: %v", m, err)
		}
	}
	if files, err := os.ReadDir(filepath.Join(dir, "results")); err != nil || len(files) != 2 {
		t.Errorf("recorded %v (%v), want a JSON and a markdown file", files, err)
	}
	return &r
}

// TestDataplane checks the contract of the output, and that every subject works:
// a subject that lost what it should deliver has no values.
func TestDataplane(t *testing.T) {
	r := quick(t, "dataplane")
	var want []string
	for _, m := range []string{"established_udp", "tcp_throughput", "tcp_throughput_8", "new_udp", "tcp_connect", "connect_p99", "tcp_connect_audited"} {
		for _, s := range []string{"kernel", "conntrack", "nft1000", "nfqueue_stock", "nfqueue", "afxdp", "auto", "afxdp_accelerated"} {
			want = append(want, m+"/"+s)
		}
	}
	var got []string
	for _, res := range r.Results {
		got = append(got, res.Case)
		if res.Value <= 0 || res.Ratio <= 0 {
			t.Errorf("%s: value %v, ratio %v, want both positive", res.Case, res.Value, res.Ratio)
		}
		base := r.find(res.Base)
		if base == nil {
			t.Errorf("%s: base %q is no case", res.Case, res.Base)
			continue
		}
		// One round: its ratio is the ratio of the values.
		if d := res.Ratio*base.Value/res.Value - 1; d > 1e-9 || d < -1e-9 {
			t.Errorf("%s: ratio %v is not %v / %v", res.Case, res.Ratio, res.Value, base.Value)
		}
		if d := res.BestRatio/res.Ratio - 1; d > 1e-9 || d < -1e-9 {
			t.Errorf("%s: ratio of the best rounds %v, of the only round %v", res.Case, res.BestRatio, res.Ratio)
		}
		if m, _ := split(res.Case); m == "connect_p99" && (res.P50 > res.Value || res.Value > res.P999) {
			t.Errorf("%s: quantiles %v, %v, %v out of order", res.Case, res.P50, res.Value, res.P999)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("cases\n%q\nwant\n%q", got, want)
	}
	if len(r.Targets) != len(dataplaneTargets) {
		t.Errorf("%d targets judged, want %d", len(r.Targets), len(dataplaneTargets))
	}
}

// TestCluster: every subject is compared with the same node without it, whose
// Service proxy has its rules.
func TestCluster(t *testing.T) {
	r := quick(t, "dataplane", "--cluster", "--subjects", "kernel,conntrack,auto", "--measurements", "tcp_connect,new_udp")
	var got []string
	for _, res := range r.Results {
		got = append(got, res.Case+" to "+res.Base)
	}
	want := []string{
		"tcp_connect/kernel@cluster to tcp_connect/kernel@cluster", "tcp_connect/auto@cluster to tcp_connect/kernel@cluster",
		"new_udp/kernel@cluster to new_udp/kernel@cluster", "new_udp/auto@cluster to new_udp/kernel@cluster",
	}
	if !slices.Equal(got, want) {
		t.Errorf("cases\n%q\nwant\n%q", got, want)
	}
}

// TestServiceProxy: a packet to a Service's address leaves for one of its endpoints.
func TestServiceProxy(t *testing.T) {
	nstest.Need(t)
	l, err := newLab()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := l.close(); err != nil {
			t.Error(err)
		}
	}()
	const services = 300 // the number in the address is more than a byte
	if err := l.serviceProxy(services); err != nil {
		t.Fatal(err)
	}
	if err := l.node.NS.AddRoute(netlab.Route{Dst: netip.MustParsePrefix("10.245.0.0/16"), Via: l.node.Outside4, Dev: netlab.Uplink}); err != nil {
		t.Fatal(err)
	}
	if err := l.clients[0].NS.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		to := unix.SockaddrInet4{Port: 80, Addr: [4]byte{10, 96, 2, byte(services - 1 - 256)}}
		if err := unix.Connect(fd, &to); !errors.Is(err, unix.EINPROGRESS) {
			return err
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	flows, err := l.ct.ConntrackTableList(netlink.ConntrackTable, unix.AF_INET)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range flows {
		to := f.Reverse.SrcIP.To4()
		if f.Forward.DstPort == 80 && to[0] == 10 && to[1] == 245 && int(to[2])<<7|int(to[3])>>1 == services-1 && f.Reverse.SrcPort == 8080 {
			return
		}
	}
	t.Errorf("no connection is translated: %v", flows)
}

// TestStress checks what must hold at any speed, for the two that have a forward
// hook: alone, the fast path ends with its process.
func TestStress(t *testing.T) {
	for name, zeros := range map[string][]string{
		"flood":   {"flood_lost_flows", "flood_denied_passed"},
		"churn":   nil,
		"restart": {"restart_lost_flows", "restart_denied_passed"},
	} {
		t.Run(name, func(t *testing.T) {
			r := quick(t, name, "--subjects", "nfqueue,auto")
			for _, res := range r.Results {
				for _, z := range zeros {
					if strings.HasPrefix(res.Case, z) && res.Value != 0 {
						t.Errorf("%s: %v %s, want 0", res.Case, res.Value, res.Unit)
					}
				}
			}
			for _, positive := range []string{"flood_goodput", "flood_offered", "churn_goodput", "churn_edits", "churn_deny_p99", "restart_denied_offered"} {
				for _, s := range []string{subjectNFQueue, subjectAuto} {
					if res := r.find(positive + "/" + s); strings.HasPrefix(positive, name) && (res == nil || res.Value <= 0) {
						t.Errorf("%s/%s: %+v, want a positive value", positive, s, res)
					}
				}
			}
		})
	}
}

func TestSpread(t *testing.T) {
	for _, tc := range []struct {
		values []float64
		want   Spread
	}{
		{nil, Spread{}},
		{[]float64{3}, Spread{3, 3, 3}},
		{[]float64{9, 1}, Spread{5, 1, 9}},
		{[]float64{7, 1, 2}, Spread{2, 1, 7}},
	} {
		if got := spread(tc.values); got != tc.want {
			t.Errorf("spread of %v = %v, want %v", tc.values, got, tc.want)
		}
	}
	// Ratios are taken round by round: a slow second round of both changes none.
	if got, want := ratios([]float64{8, 4, 9}, []float64{10, 5, 10}), (Spread{0.8, 0.8, 0.9}); got != want {
		t.Errorf("ratios %v, want %v", got, want)
	}
}

func TestQuantile(t *testing.T) {
	var v []time.Duration
	for i := range 1000 {
		v = append(v, time.Duration(i+1))
	}
	for q, want := range map[float64]time.Duration{0: 1, 0.5: 501, 0.99: 991, 0.999: 1000, 1: 1000} {
		if got := quantile(v, q); got != want {
			t.Errorf("%v-quantile of 1 to 1000 = %d, want %d", q, got, want)
		}
	}
	if got := quantile(nil, 0.5); got != 0 {
		t.Errorf("median of nothing = %d, want 0", got)
	}
}

// TestOthers: this process, its descendants and the kernel's threads are not others.
func TestOthers(t *testing.T) {
	const self = 100
	times := func(parent int, own, used time.Duration) child.Times {
		return child.Times{Parent: parent, Own: own, Used: used}
	}
	got := others(map[int]child.Times{
		1: times(0, 1, 1), 2: times(0, 2, 2), 3: times(2, 4, 4), // init, kthreadd, a kernel thread
		50: times(1, 8, 16), self: times(50, 32, 32), // a shell that waited for 8, and this
		101: times(self, 64, 64), 102: times(101, 128, 128), 103: times(99, 256, 256), // its child and grandchild; whose parent has just ended
	}, self)
	if want := time.Duration(1 + 16 + 256); got != want {
		t.Errorf("others used %d, want %d", got, want)
	}
}

// TestConnects: what counts has been accepted by the server, and nothing was
// dropped for want of room in its backlog.
func TestConnects(t *testing.T) {
	nstest.Need(t, needs)
	l, err := newLab()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := l.close(); err != nil {
			t.Error(err)
		}
	}()
	rate, took, err := l.connects(t.Context(), mostCallers, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if opened := int(rate + 0.5); opened < mostCallers || opened > len(took) {
		t.Errorf("%d connections counted, %d opened by %d callers", opened, len(took), mostCallers)
	}
	var b []byte
	if err := l.server.NS.Do(func() (err error) {
		for _, name := range []string{"snmp", "netstat"} {
			part, rerr := os.ReadFile("/proc/thread-self/net/" + name)
			b, err = append(b, part...), errors.Join(err, rerr)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	var names []string
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if names == nil || names[0] != f[0] {
			names = f
			continue
		}
		for i := range f {
			got[names[i]] = f[i]
		}
		names = nil
	}
	for name, want := range map[string]string{"PassiveOpens": fmt.Sprint(len(took)), "ListenOverflows": "0", "ListenDrops": "0"} {
		if got[name] != want {
			t.Errorf("%s %q, want %q", name, got[name], want)
		}
	}
}

func TestJudge(t *testing.T) {
	r := &Report{Results: []Result{
		{Case: "rate/x", Value: 50, Ratios: map[string]Spread{"kernel": {Median: 0.9}}},
		{Case: "lost/x", Value: 3},
	}}
	r.judge([]target{
		{name: "rate/x", base: "kernel", bound: 0.8},
		{name: "rate/x", base: "kernel", bound: 0.95},
		{name: "rate/x", base: "conntrack", bound: 1}, // not measured: no verdict
		{name: "lost/x", atMost: true},
		{name: "lost/x", atMost: true, bound: 3},
		{name: "lost/y", atMost: true}, // not measured
	})
	var got []string
	for _, v := range r.Targets {
		got = append(got, fmt.Sprintf("%s %s %s %v %t", v.Case, v.Base, v.Want, v.Got, v.Passed))
	}
	want := []string{
		"rate/x rate/kernel >= 0.8 0.9 true", "rate/x rate/kernel >= 0.95 0.9 false",
		"lost/x  <= 0 3 false", "lost/x  <= 3 3 true",
	}
	if !slices.Equal(got, want) {
		t.Errorf("verdicts\n%q\nwant\n%q", got, want)
	}
}

// TestLags feeds a series of edits with known effects.
func TestLags(t *testing.T) {
	at := func(ms int) time.Time { return time.Unix(0, int64(ms)*int64(time.Millisecond)) }
	o := &observation{edits: []edit{{at(10), true}, {at(20), false}, {at(30), true}, {at(40), false}}, got: map[uint16][]bool{1: nil}}
	arrived := map[int]bool{13: true, 14: true, 15: true, 19: true, 21: true, 23: true, 45: true, 49: true}
	for ms := 1; ms < 50; ms++ {
		o.sent = append(o.sent, at(ms))
		o.got[1] = append(o.got[1], arrived[ms])
	}
	ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
	// Allowed at 10: the first arrives at 13. Allowed at 30: none does before 40.
	if got, want := o.first(1), []lag{{ms(3), false}, {ms(10), true}}; !slices.Equal(got, want) {
		t.Errorf("first %v, want %v", got, want)
	}
	// Denied at 20: the last passes at 23. Denied at 40: 45 passes (the last probe
	// of the series marks its end and is not looked at).
	if got, want := o.last(1), []lag{{ms(3), false}, {ms(5), false}}; !slices.Equal(got, want) {
		t.Errorf("last %v, want %v", got, want)
	}
	sorted, never := settle(o.first(1))
	if !slices.Equal(sorted, []time.Duration{ms(3), ms(10)}) || never != 1 {
		t.Errorf("settled %v, %v never", sorted, never)
	}
}

// TestFrame has the project's own parser read what the load generator sends.
func TestFrame(t *testing.T) {
	src, dst := netip.MustParseAddr("10.244.0.10"), netip.MustParseAddr("10.244.0.2")
	f := frame([]byte{2, 0, 0, 0, 0, 1}, []byte{2, 0, 0, 0, 0, 2}, src, dst)
	binary.BigEndian.PutUint16(f[offsetSourcePort:], 20001)
	binary.BigEndian.PutUint16(f[offsetDestinationPort:], portUDP)
	var h packet.Headers
	if p := packet.ParseEthernet(f[:], &h); p != packet.OK {
		t.Fatalf("the parser says %v", p)
	}
	want := flow.MakeKey(flow.UDP, netip.AddrPortFrom(src, 20001), netip.AddrPortFrom(dst, portUDP))
	if h.Key != want {
		t.Errorf("flow %v, want %v", h.Key, want)
	}
	var sum uint32
	for i := 14; i < 34; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(f[i:]))
	}
	if sum = sum>>16 + sum&0xffff; sum != 0xffff {
		t.Errorf("header checksum is wrong: sum %#x", sum)
	}
}

// TestPorts: no port of new flows is well-known or an established flow's, and
// none repeats before all were used.
func TestPorts(t *testing.T) {
	l := &lab{}
	seen := map[uint16]bool{}
	for range 65536 - 1024 - flowsPerClient {
		p := l.port(3)
		if p < 1024 || p >= firstPort && p < firstPort+flowsPerClient || seen[p] {
			t.Fatalf("port %d", p)
		}
		seen[p] = true
	}
	if p := l.port(3); !seen[p] {
		t.Errorf("port %d comes as a surprise", p)
	}
}

// TestUnknown: mistakes on the command line name what is possible.
func TestUnknown(t *testing.T) {
	for _, args := range [][]string{{"-o", "xml"}, {"--subjects", "magic"}, {"--rounds", "-1"}} {
		cmd := Commands()[0]
		cmd.SetOut(io.Discard)
		cmd.SetErr(io.Discard)
		cmd.SetArgs(args)
		if err := cmd.Execute(); err == nil || !strings.Contains(err.Error(), "want") {
			t.Errorf("%q: error %v, want one that says what is wanted", args, err)
		}
	}
}

// TestMarkdown renders the rows people compare.
func TestMarkdown(t *testing.T) {
	r := &Report{Command: "dataplane", Rounds: 3, Results: []Result{{
		Case: "new_udp/afxdp", Value: 123456, Unit: "flows/s", Min: 100000, Max: 2e6,
		Ratios: map[string]Spread{subjectConntrack: {0.7, 0.65, 0.71}},
	}}, Targets: []Verdict{{Case: "new_udp/afxdp", Base: "new_udp/conntrack", Want: ">= 0.7", Got: 0.7, Passed: true}}}
	var b bytes.Buffer
	if err := r.Write(&b, "markdown"); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| case | median | min | max | unit | to conntrack |\n|---|---|---|---|---|---|\n",
		"| new_udp/afxdp | 123k | 100k | 2M | flows/s | 0.70 (0.65-0.71) |\n",
		"| new_udp/afxdp | new_udp/conntrack | >= 0.7 | 0.7 | yes |\n",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
}
