package nfqueue

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/nstest"
	"github.com/tierwall/tierwall/dataplane/nstest/netlab"
)

// whole is a node with two pods, a real table and a real engine on this backend.
type whole struct {
	*nstest.Node
	a, b    *netlab.Pod
	live    *classifier.Live
	engine  *dataplane.Engine
	backend *Backend
}

func pod(p *netlab.Pod, labels map[string]string) rule.Endpoint {
	return rule.Endpoint{Namespace: "x", Name: p.Name, Labels: labels, Node: "n", Addrs: []netip.Addr{p.Addr4, p.Addr6}}
}

// to makes the policy that is named after its action: for what goes to pod b's
// port.
func to(action rule.Action, port uint16) classifier.PolicyChange {
	origin := rule.Origin{Kind: "Policy", Namespace: "x", Name: action.String()}
	ports := rule.PortRange{First: port, Last: port}
	return classifier.PolicyChange{Ref: classifier.RefOf(&origin), Set: rule.Set{Rules: []rule.Rule{{
		Direction: flow.Ingress, Order: rule.Order{Band: rule.BandAdmin},
		Subject: rule.Selector{PodLabels: rule.Labels{{Key: "pod", Op: rule.In, Values: []string{"b"}}}},
		Peers:   []rule.Peer{{Kind: rule.PeerAny}}, Action: action,
		L4:     []rule.L4{{Proto: flow.TCP, Ports: ports, SrcPorts: rule.AllPorts}, {Proto: flow.UDP, Ports: ports, SrcPorts: rule.AllPorts}},
		Origin: origin,
	}}}}
}

func newWhole(t *testing.T, cfg dataplane.Config) *whole {
	t.Helper()
	nstest.Need(t, queueing)
	w := &whole{Node: nstest.NewNode(t)}
	w.a, w.b = w.AddPod(t, "a"), w.AddPod(t, "b")
	if err := w.NS.Do(func() (err error) { w.backend, err = New(Config{Queues: 2}); return err }); err != nil {
		t.Fatal(err)
	}
	cfg.Backends = []dataplane.Backend{w.backend}
	w.engine = dataplane.New(cfg)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.engine.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := errors.Join(<-done, w.backend.Close()); err != nil {
			t.Error(err)
		}
	})
	world := &rule.World{
		Node:          "n",
		Endpoints:     []rule.Endpoint{pod(w.a, map[string]string{"pod": "a"}), pod(w.b, map[string]string{"pod": "b"})},
		Nodes:         []rule.Node{{Name: "n", Addrs: []netip.Addr{w.Addr4, w.Addr6}}},
		LocalPrefixes: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/24"), netip.MustParsePrefix("fd00:10:244::/64")},
	}
	live, report, err := classifier.NewLive(rule.Set{}, world, classifier.Options{Generation: 1})
	if err != nil {
		t.Fatal(err)
	}
	w.live = live
	if _, err := w.engine.SetTable(live.Table(), dataplane.ChangeOf(report)); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *whole) apply(t *testing.T, d classifier.Delta) (cut int) {
	t.Helper()
	table, report, err := w.live.Apply(&d)
	if err != nil {
		t.Fatal(err)
	}
	cut, err = w.engine.SetTable(table, dataplane.ChangeOf(report))
	if err != nil {
		t.Fatal(err)
	}
	return cut
}

// From a policy that rejects to the reset at the client, and from a policy change
// to the end of a live connection, which learns it if it is to.
func TestWholeReject(t *testing.T) {
	for _, tell := range []bool{false, true} {
		w := newWhole(t, dataplane.Config{CutReset: tell})
		nstest.Need(t, func() error {
			if !w.backend.fw.features.reject {
				return errNoReject
			}
			return nil
		})
		w.apply(t, classifier.Delta{Policies: []classifier.PolicyChange{to(rule.Reject, portBad)}})
		for _, family := range families {
			refused(t, "rejected", w.a.NS, "tcp", at(w.b.Addr(family), portBad), unix.ECONNREFUSED)
		}
		nstest.Echo(t, w.b.NS, "tcp", w.b.Addr4, portGood)
		c := dial(t, w.a.NS, "tcp", at(w.b.Addr4, portGood))
		alive(t, c, "before the change")
		if cut := w.apply(t, classifier.Delta{Policies: []classifier.PolicyChange{to(rule.Deny, portGood)}}); cut == 0 {
			t.Error("the change cut nothing")
		}
		err := netlab.Exchange(c, []byte("still there?"), nstest.Blocked)
		if told := errors.Is(err, unix.ECONNRESET); err == nil || told != tell {
			t.Errorf("with CutReset %v a cut connection says %v", tell, err)
		}
	}
}

// A pod that starts before anybody has heard of it leaks nothing and is counted;
// the same pod flows as soon as it is known.
func TestWholePodStart(t *testing.T) {
	w := newWhole(t, dataplane.Config{})
	late := w.AddPod(t, "late")
	s := nstest.Echo(t, w.Outside, "udp", w.Outside4, portGood)
	nstest.Unreachable(t, late.NS, "udp", s.Addr)
	if n := w.engine.Stats().Paths[dataplane.DropUnknownLocal]; n == 0 || s.Seen() != 0 {
		t.Errorf("%d packets dropped as of an unknown pod, %d arrived", n, s.Seen())
	}
	nstest.Echo(t, late.NS, "tcp", late.Addr4, portGood)
	nstest.Reach(t, w.NS, "tcp", at(late.Addr4, portGood)) // a probe of the node
	w.apply(t, classifier.Delta{Pods: []rule.Endpoint{pod(late, nil)}})
	nstest.Reach(t, late.NS, "udp", s.Addr)
	// Gone again: what it had is cut.
	c := dial(t, late.NS, "udp", s.Addr)
	alive(t, c, "known")
	w.apply(t, classifier.Delta{DropPods: []classifier.PodName{{Namespace: "x", Name: "late"}}})
	dead(t, c, "a pod that is gone")
}

// While policies and pods change a hundred times a second, connections they do not
// concern go on undisturbed, the ones they do are cut each time, and no packet is
// unaccounted for.
func TestWholeStorm(t *testing.T) {
	const changes, every = 100, 10 * time.Millisecond
	w := newWhole(t, dataplane.Config{})
	// Policy selects b all the time, so its connections are ours.
	w.apply(t, classifier.Delta{Policies: []classifier.PolicyChange{to(rule.Allow, portGood), to(rule.Deny, portBad)}})
	good := nstest.Echo(t, w.b.NS, "tcp", w.b.Addr4, portGood)
	bad := nstest.Echo(t, w.b.NS, "udp", w.b.Addr4, portBad)
	fillConntrack(t, w.NS, 2000)
	c := dial(t, w.a.NS, "tcp", good.Addr)
	flood := dial(t, w.a.NS, "udp", bad.Addr)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			flood.Write([]byte("denied"))
			if err := netlab.Exchange(c, []byte("alive?"), nstest.Timeout); err != nil {
				t.Errorf("exchange %d of a connection no change concerns: %v", n, err)
				return
			}
		}
	})
	var slowest time.Duration
	began := time.Now()
	for i := range changes {
		if d := time.Until(began.Add(time.Duration(i) * every)); d > 0 {
			time.Sleep(d)
		}
		other := rule.Endpoint{
			Namespace: "x", Name: fmt.Sprint("other", i%7), Node: "n", Labels: map[string]string{"version": fmt.Sprint(i)},
			Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, 244, 0, byte(100 + i%7)})},
		}
		now := time.Now()
		if cut := w.apply(t, classifier.Delta{Pods: []rule.Endpoint{other}}); cut != 0 {
			t.Errorf("change %d cut %d connections of others", i, cut)
		}
		slowest = max(slowest, time.Since(now))
	}
	took := time.Since(began)
	close(stop)
	wg.Wait()
	if bad.Seen() != 0 {
		t.Errorf("%d denied datagrams arrived", bad.Seen())
	}
	t.Logf("%d changes in %v, the slowest %v", changes, took.Round(time.Millisecond), slowest.Round(time.Microsecond))
	nstest.Eventually(t, "received = sum of outcomes", func() bool {
		st, bst := w.engine.Stats(), w.backend.Stats()
		var sum uint64
		for _, n := range st.Paths {
			sum += n
		}
		return sum == st.Received && sum == bst.Upcalls && bst.Overflow == 0 && bst.Dropped == 0
	})
}

// TestWholeAddressNoPodHas is X-61 with packets: rules about addresses judge a
// bridge's foot and another node's flannel device, which are in pod networks and are
// no pod's. Selectors stay in doubt there.
func TestWholeAddressNoPodHas(t *testing.T) {
	w := newWhole(t, dataplane.Config{})
	foot, device := netip.MustParseAddr("10.244.0.254"), netip.MustParseAddr("10.244.9.0")
	if err := errors.Join(
		w.NS.Addr(w.b.HostDevice, netip.PrefixFrom(foot, 32)),
		w.Outside.Addr(netlab.PodDevice, netip.PrefixFrom(device, 32)),
		w.NS.AddRoute(netlab.Route{Dst: netip.MustParsePrefix("10.244.9.0/24"), Via: w.Outside4, Dev: netlab.Uplink}),
	); err != nil {
		t.Fatal(err)
	}
	// both allows pod b what peer matches, and nothing else.
	both := func(peer rule.Peer) classifier.PolicyChange {
		o := rule.Origin{Kind: "Policy", Namespace: "x", Name: "p"}
		subject := rule.Selector{PodLabels: rule.Labels{{Key: "pod", Op: rule.In, Values: []string{"b"}}}}
		var set rule.Set
		for _, d := range flow.Directions {
			set.Rules = append(set.Rules, rule.Rule{
				Direction: d, Order: rule.Order{Band: rule.BandNetworkPolicy}, Subject: subject, Peers: []rule.Peer{peer},
				L4: []rule.L4{rule.AnyL4}, Action: rule.Allow, Origin: o,
			})
			set.Isolations = append(set.Isolations, rule.Isolation{Direction: d, Band: rule.BandNetworkPolicy, Subject: subject, Origin: o})
		}
		return classifier.PolicyChange{Ref: classifier.RefOf(&o), Set: set}
	}
	block := func(prefix string) rule.Peer {
		return rule.Peer{Kind: rule.PeerBlock, Block: rule.IPBlock{Prefix: netip.MustParsePrefix(prefix)}}
	}
	cidr := func(p string) []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix(p)} }
	w.apply(t, classifier.Delta{Nodes: []rule.Node{
		{Name: "n", Addrs: []netip.Addr{w.Addr4, w.Addr6}, PodCIDRs: cidr("10.244.0.0/24")},
		{Name: "n2", PodCIDRs: cidr("10.244.9.0/24")},
	}})
	nstest.Echo(t, w.NS, "tcp", foot, portGood)
	nstest.Echo(t, w.Outside, "tcp", device, portGood)
	nstest.Echo(t, w.b.NS, "tcp", w.b.Addr4, portGood)
	fromDevice := func() error {
		return w.Outside.ProbeFrom("tcp", netip.AddrPortFrom(device, 0), at(w.b.Addr4, portGood), nstest.Blocked)
	}
	w.apply(t, classifier.Delta{Policies: []classifier.PolicyChange{both(block("10.244.0.0/16"))}})
	nstest.Reach(t, w.b.NS, "tcp", at(foot, portGood))
	nstest.Reach(t, w.b.NS, "tcp", at(device, portGood))
	if err := fromDevice(); err != nil {
		t.Errorf("X-61: from another node's device, allowed by its address: %v", err)
	}
	for name, peer := range map[string]rule.Peer{"other addresses": block("203.0.113.0/24"), "pods": {Kind: rule.PeerPods}} {
		w.apply(t, classifier.Delta{Policies: []classifier.PolicyChange{both(peer)}})
		nstest.Unreachable(t, w.b.NS, "tcp", at(foot, portGood))
		nstest.Unreachable(t, w.b.NS, "tcp", at(device, portGood))
		if fromDevice() == nil {
			t.Errorf("X-61: from another node's device, where %s are allowed: it passed", name)
		}
	}
}
