package nfqueue

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/tierwall/tierwall/dataplane/nstest"
)

// newCluster is a world with a pod that policy selects (a), one that is known and
// not selected (b), and a third that runs, but of which the table has not heard.
func newCluster(t *testing.T, c Config) *world {
	t.Helper()
	w := newWorld(t, c, nothing)
	w.judge.selected = []netip.Addr{w.a.Addr4, w.a.Addr6}
	w.judge.locals = []netip.Addr{w.a.Addr4, w.a.Addr6, w.b.Addr4, w.b.Addr6}
	w.judge.prefixes = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/24"), netip.MustParsePrefix("fd00:10:244::/64"), netip.MustParsePrefix("10.244.0.64/26")}
	w.update(t)
	return w
}

// Whoever has an address among the pods of this node and is not known is judged,
// both ways, both families; what is known and selected by nobody costs nothing.
func TestUnknownPodIsJudged(t *testing.T) {
	w := newCluster(t, Config{Queues: 1})
	late := w.AddPod(t, "late")
	for _, family := range families {
		outside := w.Outside4
		if family == 6 {
			outside = w.Outside6
		}
		for _, network := range networks {
			nstest.Echo(t, late.NS, network, late.Addr(family), portGood)
			nstest.Echo(t, w.b.NS, network, w.b.Addr(family), portGood)
			nstest.Echo(t, w.Outside, network, outside, portGood)

			nstest.Unreachable(t, late.NS, network, at(outside, portGood))
			nstest.Unreachable(t, w.Outside, network, at(late.Addr(family), portGood))
			nstest.Unreachable(t, late.NS, network, at(w.b.Addr(family), portGood))
			seen := map[string]bool{}
			for _, q := range w.asked(t, 3) {
				seen[anyPort(q.key)] = true
			}
			for _, want := range []string{
				key(network, late.Addr(family), outside, portGood),
				key(network, outside, late.Addr(family), portGood),
				key(network, late.Addr(family), w.b.Addr(family), portGood),
			} {
				if !seen[want] {
					t.Errorf("%s was not judged", want)
				}
			}
			nstest.Reach(t, w.b.NS, network, at(outside, portGood))
			nstest.Reach(t, w.Outside, network, at(w.b.Addr(family), portGood))
			w.want(t, "pods that are known and not selected")
		}
	}

	// Known now, and selected by nobody: free at once.
	w.judge.locals = append(w.judge.locals, late.Addr4, late.Addr6)
	w.update(t)
	nstest.Reach(t, late.NS, "tcp", at(w.Outside4, portGood))
	nstest.Reach(t, w.Outside, "udp", at(late.Addr6, portGood))
	w.want(t, "the pod that is known now")
}

// X-58 holds for pods nobody has heard of: the node's probes need no policy.
func TestNodeReachesUnknownPod(t *testing.T) {
	w := newCluster(t, Config{Queues: 1})
	late := w.AddPod(t, "late")
	for _, family := range families {
		for _, network := range networks {
			nstest.Echo(t, late.NS, network, late.Addr(family), portGood)
			nstest.Reach(t, w.NS, network, at(late.Addr(family), portGood))
		}
	}
	w.want(t, "node to a pod nobody knows")
	if cut := w.update(t); cut != 0 {
		t.Errorf("Update cut %d connections of the node", cut)
	}
	// And no more than that: what such a pod opens to its node is judged.
	s := nstest.Echo(t, w.NS, "tcp", w.Addr4, portGood)
	nstest.Unreachable(t, late.NS, "tcp", s.Addr)
	if w.asked(t, 1); s.Seen() != 0 {
		t.Errorf("an unknown pod reached its node, %d times", s.Seen())
	}
}

// A bridge gives the node an address among its pods'. It is no pod's: the node
// talks to itself, and known pods to it, as ever.
func TestNodeAddressInPodPrefix(t *testing.T) {
	w := newCluster(t, Config{Queues: 1})
	gw := netip.MustParseAddr("10.244.0.254")
	if err := w.NS.Addr(w.b.HostDevice, netip.PrefixFrom(gw, 32)); err != nil {
		t.Fatal(err)
	}
	nstest.Echo(t, w.NS, "tcp", gw, portGood)
	nstest.Reach(t, w.NS, "tcp", at(gw, portGood))
	nstest.Reach(t, w.b.NS, "tcp", at(gw, portGood))
	w.want(t, "the node's own address")
}

// A connection to a pod that is gone is cut: its address may be another's soon.
func TestUpdateCutsGonePod(t *testing.T) {
	for _, open := range []bool{false, true} {
		w := newCluster(t, Config{Queues: 1, FailOpen: open})
		w.judge.policy(everything)
		nstest.Echo(t, w.a.NS, "tcp", w.a.Addr4, portGood)
		c := dial(t, w.b.NS, "tcp", at(w.a.Addr4, portGood))
		alive(t, c, "both pods are known")
		w.judge.selected = nil
		w.judge.locals = []netip.Addr{w.b.Addr4, w.b.Addr6}
		want := 1
		if open { // doubt is no reason to deny then
			want = 0
		}
		if cut := w.update(t); cut != want {
			t.Errorf("fail open %v: Update cut %d connections, want %d", open, cut, want)
		}
	}
}

// The prefixes follow the table, survive a restart, and may nest.
func TestLocalPrefixes(t *testing.T) {
	w := newCluster(t, Config{Queues: 1})
	late := w.AddPod(t, "late")
	nstest.Echo(t, w.b.NS, "tcp", w.b.Addr4, portGood)
	w.stop(t)
	nstest.Unreachable(t, late.NS, "tcp", at(w.b.Addr4, portGood))
	w.start(t, Config{Queues: 1})
	w.judge.take()
	nstest.Unreachable(t, late.NS, "tcp", at(w.b.Addr4, portGood))
	w.asked(t, 1) // after a restart, before a table
	w.judge.prefixes = []netip.Prefix{netip.MustParsePrefix("10.250.0.0/16"), netip.MustParsePrefix("255.255.255.0/24"), netip.MustParsePrefix("ffff:ffff:ffff:ffff::/64")}
	w.update(t)
	nstest.Reach(t, late.NS, "tcp", at(w.b.Addr4, portGood))
	w.judge.prefixes = nil
	w.update(t)
	got, err := w.backend.fw.installed()
	if err != nil {
		t.Fatal(err)
	}
	if len(got.local[0])+len(got.local[1])+len(got.free) != 0 || len(got.selected) != 2 {
		t.Errorf("without prefixes the sets hold %+v, want the two selected addresses only", got)
	}
}

func TestRanges(t *testing.T) {
	var list []netip.Prefix
	for _, s := range []string{"10.1.0.0/16", "10.0.0.0/16", "10.0.5.0/24", "10.0.0.0/16", "fd00::/64", "255.255.0.0/16", "10.0.255.255/32"} {
		list = append(list, netip.MustParsePrefix(s))
	}
	var got []string
	for _, e := range ranges(list, true) {
		a, _ := netip.AddrFromSlice(e.Key)
		s := a.String()
		if e.IntervalEnd {
			s += " end"
		}
		got = append(got, s)
	}
	want := "[10.0.0.0 10.1.0.0 end 10.1.0.0 10.2.0.0 end 255.255.0.0]"
	if s := fmt.Sprint(got); s != want {
		t.Errorf("ranges are %s, want %s", s, want)
	}
	if n := len(ranges(list, false)); n != 2 {
		t.Errorf("%d elements for one IPv6 prefix, want 2", n)
	}
}
