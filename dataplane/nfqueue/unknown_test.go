package nfqueue

import (
	"net/netip"
	"testing"

	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/nstest"
	"github.com/tierwall/tierwall/dataplane/nstest/netlab"
)

var podNetworks = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/48")}

// newNodeWithoutCIDRs is newCluster on a node whose Node object has no pod CIDRs: the
// configuration names networks that pods of all nodes have addresses in. Outside, two
// addresses are pods' of another node: of a block that leads there, and a single one out
// of this node's block.
func newNodeWithoutCIDRs(t *testing.T, c Config) (w *world, remote map[int][]netip.Addr) {
	t.Helper()
	c.PodCIDRs = podNetworks
	w = newWorld(t, c, everything)
	w.judge.selected = []netip.Addr{w.a.Addr4, w.a.Addr6}
	w.judge.locals = []netip.Addr{w.a.Addr4, w.a.Addr6, w.b.Addr4, w.b.Addr6}
	w.update(t)
	remote = map[int][]netip.Addr{
		4: {netip.MustParseAddr("10.244.9.9"), netip.MustParseAddr("10.244.0.77")},
		6: {netip.MustParseAddr("fd00:10:244:9::9"), netip.MustParseAddr("fd00:10:244::77")},
	}
	for family, addrs := range remote {
		via, block := w.Outside4, 24
		if family == 6 {
			via, block = w.Outside6, 64
		}
		for i, a := range addrs {
			to := netip.PrefixFrom(a, a.BitLen())
			if err := w.Outside.Addr("lo", to); err != nil {
				t.Fatal(err)
			}
			if i == 0 {
				to = netip.PrefixFrom(a, block).Masked()
			}
			if err := w.NS.AddRoute(netlab.Route{Dst: to, Via: via, Dev: netlab.Uplink}); err != nil {
				t.Fatal(err)
			}
		}
	}
	return w, remote
}

// A pod that policy does not know passes nothing and hears nothing, on a node without pod
// CIDRs, too, whoever is at the other end; the node's own connections to it pass.
// Pods of other nodes that policy does not know are no such pods.
func TestUnknownPodOfNodeWithoutCIDRs(t *testing.T) {
	w, remote := newNodeWithoutCIDRs(t, Config{Queues: 1})
	late := w.AddPod(t, "late")
	for _, family := range families {
		outside, node := w.Outside4, w.Addr4
		if family == 6 {
			outside, node = w.Outside6, w.Addr6
		}
		for _, network := range networks {
			for _, p := range []*netlab.Pod{w.a, w.b, late} {
				nstest.Echo(t, p.NS, network, p.Addr(family), portGood)
			}
			nstest.Echo(t, w.Outside, network, outside, portGood)
			nstest.Echo(t, w.NS, network, node, portGood)
			nstest.Unreachable(t, late.NS, network, at(outside, portGood))
			nstest.Unreachable(t, w.Outside, network, at(late.Addr(family), portGood))
			for _, known := range []*netlab.Pod{w.a, w.b} {
				nstest.Unreachable(t, late.NS, network, at(known.Addr(family), portGood))
				nstest.Unreachable(t, known.NS, network, at(late.Addr(family), portGood))
			}
			nstest.Unreachable(t, late.NS, network, at(node, portGood))
			w.want(t, "nobody is asked about a pod that is not known")
			nstest.Reach(t, w.NS, network, at(late.Addr(family), portGood))
			nstest.Reach(t, w.b.NS, network, at(outside, portGood))
			nstest.Reach(t, w.b.NS, network, at(node, portGood))
			for _, r := range remote[family] {
				nstest.Echo(t, w.Outside, network, r, portGood)
				nstest.Reach(t, w.b.NS, network, at(r, portGood))
				if err := w.Outside.ProbeFrom(network, netip.AddrPortFrom(r, 0), at(w.b.Addr(family), portGood), nstest.Timeout); err != nil {
					t.Errorf("%v to a pod that is not selected: %v", r, err)
				}
			}
			w.want(t, "pods that nobody selects, and the node")
			for _, r := range remote[family] {
				if err := w.Outside.ProbeFrom(network, netip.AddrPortFrom(r, 0), at(w.a.Addr(family), portGood), nstest.Timeout); err != nil {
					t.Errorf("%v to the selected pod: %v", r, err)
				}
				w.want(t, "a selected pod", key(network, r, w.a.Addr(family), portGood))
			}
		}
	}
	s := w.backend.Stats()
	if s.Fates[dataplane.DropUnknownPod] == 0 || s.Dropped < s.Fates[dataplane.DropUnknownPod] {
		t.Errorf("%d packets counted as unknown, %d as dropped", s.Fates[dataplane.DropUnknownPod], s.Dropped)
	}
	w.judge.locals = append(w.judge.locals, late.Addr4, late.Addr6)
	w.update(t)
	nstest.Reach(t, late.NS, "tcp", at(w.Outside4, portGood))
	nstest.Reach(t, w.Outside, "udp", at(late.Addr6, portGood))
	w.want(t, "the pod that is known now")
}

// The rules hold while no daemon runs, and a later one that has no such configuration
// does not keep them.
func TestUnknownPodWithoutDaemon(t *testing.T) {
	w, remote := newNodeWithoutCIDRs(t, Config{Queues: 1})
	nstest.Echo(t, w.b.NS, "tcp", w.b.Addr4, portGood)
	w.stop(t)
	late := w.AddPod(t, "late")
	check := func(when string) {
		nstest.Unreachable(t, late.NS, "tcp", at(w.b.Addr4, portGood))
		for _, r := range remote[4] {
			if err := w.Outside.ProbeFrom("tcp", netip.AddrPortFrom(r, 0), at(w.b.Addr4, portGood), nstest.Timeout); err != nil {
				t.Errorf("%s: %v to a pod that is not selected: %v", when, r, err)
			}
		}
	}
	check("without a daemon")
	w.start(t, Config{Queues: 1, PodCIDRs: podNetworks})
	check("before the first table")
	w.update(t)
	check("with the first table")
	w.stop(t)
	w.start(t, Config{Queues: 1})
	w.update(t)
	nstest.Reach(t, late.NS, "tcp", at(w.b.Addr4, portGood))
}

// With fail mode open a pod that is not known is nobody's concern.
func TestUnknownPodFailOpen(t *testing.T) {
	w, _ := newNodeWithoutCIDRs(t, Config{Queues: 1, FailOpen: true})
	late := w.AddPod(t, "late")
	nstest.Echo(t, w.b.NS, "tcp", w.b.Addr4, portGood)
	nstest.Reach(t, late.NS, "tcp", at(w.b.Addr4, portGood))
}

// A connection of a pod that is gone is cut, also one that a pod no policy selects had
// with a selected pod.
func TestUpdateCutsForgottenPod(t *testing.T) {
	w, _ := newNodeWithoutCIDRs(t, Config{Queues: 1})
	nstest.Echo(t, w.a.NS, "tcp", w.a.Addr4, portGood)
	c := dial(t, w.b.NS, "tcp", at(w.a.Addr4, portGood))
	alive(t, c, "both pods are known")
	w.judge.locals = []netip.Addr{w.a.Addr4, w.a.Addr6}
	if cut := w.update(t); cut != 1 {
		t.Errorf("Update cut %d connections, want 1", cut)
	}
	if err := netlab.Exchange(c, []byte("still?"), nstest.Timeout/10); err == nil {
		t.Error("the connection of the pod that is gone goes on")
	}
}

// From outside nobody passes for a pod of this node.
func TestForgedPodOfNodeWithoutCIDRs(t *testing.T) {
	w, _ := newNodeWithoutCIDRs(t, Config{Queues: 1})
	if f := w.backend.fw.features; !f.back {
		t.Skip("the kernel has no \"fib saddr . iif\" in the forward hook")
	}
	nstest.Echo(t, w.a.NS, "udp", w.a.Addr6, portGood)
	if err := w.Outside.Addr("lo", netip.PrefixFrom(w.b.Addr6, 128)); err != nil {
		t.Fatal(err)
	}
	if err := w.Outside.ProbeFrom("udp", netip.AddrPortFrom(w.b.Addr6, 0), at(w.a.Addr6, portGood), nstest.Timeout/10); err == nil {
		t.Error("a forged packet was answered")
	}
	w.want(t, "a forged address")
	if n := w.backend.Stats().Fates[dataplane.DropForged]; n == 0 {
		t.Error("no packet counted as forged")
	}
}
