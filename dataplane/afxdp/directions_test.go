package afxdp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/afxdp/kern"
	"github.com/tierwall/tierwall/dataplane/nstest"
	"github.com/tierwall/tierwall/dataplane/nstest/netlab"
)

// ingress makes a policy about what goes to a pod's port; 0 is every port.
func ingress(name string, action rule.Action, band rule.Band, pod string, port uint16) classifier.PolicyChange {
	origin := rule.Origin{Kind: "Policy", Namespace: "x", Name: name}
	ports := rule.AllPorts
	if port != 0 {
		ports = rule.PortRange{First: port, Last: port}
	}
	r := rule.Rule{
		Direction: flow.Ingress, Order: rule.Order{Band: band}, Action: action, Origin: origin,
		Subject: rule.Selector{PodLabels: rule.Labels{{Key: "pod", Op: rule.In, Values: []string{pod}}}},
		Peers:   []rule.Peer{{Kind: rule.PeerAny}},
		L4:      []rule.L4{{Proto: flow.TCP, Ports: ports, SrcPorts: rule.AllPorts}, {Proto: flow.UDP, Ports: ports, SrcPorts: rule.AllPorts}},
	}
	return classifier.PolicyChange{Ref: classifier.RefOf(&origin), Set: rule.Set{Rules: []rule.Rule{r}}}
}

// pinned runs f, again and again until it fails, on a thread that is confined to a CPU.
func pinned(t *testing.T, wg *sync.WaitGroup, cpu int, f func() error) {
	wg.Go(func() {
		runtime.LockOSThread() // never unlocked: the thread ends with its affinity
		var s unix.CPUSet
		s.Set(cpu)
		if err := unix.SchedSetaffinity(0, &s); err != nil {
			t.Error(err)
			return
		}
		for f() == nil {
		}
	})
}

// A real table, a real engine and a queue per CPU: the client is on one CPU and the
// server on another, so that each direction comes up at a worker of its own, and
// changes of policy bring both up all the time. No answer is taken for a flow of its
// own, which policy would deny, and nothing that is denied passes.
func TestDirectionsOnTwoQueues(t *testing.T) {
	nstest.TwoProcessors(t)
	nstest.Need(t, canRun)
	// The kernel's map of flows knows directions, too: once with it, and once while
	// everything is taken out of it all the time.
	for _, forget := range []bool{false, true} {
		t.Run(fmt.Sprintf("forget=%t", forget), func(t *testing.T) { directionsOnTwoQueues(t, forget) })
	}
}

func directionsOnTwoQueues(t *testing.T, forget bool) {
	node := nstest.NewNode(t)
	a, b := node.AddPod(t, "a"), node.AddPod(t, "b")
	var backend *Backend
	if err := node.NS.Do(func() (err error) { backend, err = New(Config{Strict: true, Queues: 2}); return err }); err != nil {
		t.Fatal(err)
	}
	engine := dataplane.New(dataplane.Config{Backends: []dataplane.Backend{backend}})
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- engine.Run(ctx) }()
	running := true
	halt := func() {
		if stop(); running {
			running = false
			if err := errors.Join(<-done, backend.Close()); err != nil {
				t.Error(err)
			}
		}
	}
	defer halt()

	pod := func(p *netlab.Pod) rule.Endpoint {
		return rule.Endpoint{Namespace: "x", Name: p.Name, Labels: map[string]string{"pod": p.Name}, Node: "n", Addrs: []netip.Addr{p.Addr4, p.Addr6}}
	}
	live, report, err := classifier.NewLive(rule.Set{}, &rule.World{
		Node: "n", Endpoints: []rule.Endpoint{pod(a), pod(b)},
		Nodes:         []rule.Node{{Name: "n", Addrs: []netip.Addr{node.Addr4, node.Addr6}}},
		LocalPrefixes: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/24"), netip.MustParsePrefix("fd00:10:244::/64")},
	}, classifier.Options{Generation: 1})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := engine.SetTable(live.Table(), dataplane.ChangeOf(report)); err != nil {
		t.Fatal(err)
	}
	apply := func(policies ...classifier.PolicyChange) (cut int) {
		table, report, err := live.Apply(&classifier.Delta{Policies: policies})
		if err == nil {
			cut, err = engine.SetTable(table, dataplane.ChangeOf(report))
		}
		if err != nil {
			t.Error(err)
		}
		return cut
	}
	apply(ingress("a", rule.Deny, rule.BandAdmin, "a", 0), ingress("b", rule.Deny, rule.BandAdmin, "b", closedPort))

	// Each flow goes both ways at once: the client and the server send on their own.
	const flows = 4
	var load, senders sync.WaitGroup
	var open []net.Conn
	var over atomic.Bool
	var sent, got [flows][2]atomic.Uint64
	for i := range flows {
		addr := []netip.Addr{b.Addr4, b.Addr6}[i%2]
		server := listen(t, b.NS, netip.AddrPortFrom(addr, openPort+uint16(i)))
		client := dial(t, a.NS, "udp", netip.AddrPortFrom(addr, openPort+uint16(i)))
		open = append(open, server, client)
		if _, err := client.Write([]byte("hello")); err != nil {
			t.Fatal(err)
		}
		var buf [64]byte
		server.SetReadDeadline(time.Now().Add(nstest.Timeout))
		_, from, err := server.ReadFromUDPAddrPort(buf[:])
		if err != nil {
			t.Fatalf("flow %d: %v", i, err)
		}
		server.SetReadDeadline(time.Time{})
		send := func(way int, f func([]byte) error) func() error {
			return func() error {
				if over.Load() {
					return errors.New("enough")
				}
				time.Sleep(200 * time.Microsecond)
				// No more than rings and sockets have room for: a worker or a
				// reader that is not let run loses nothing.
				if n := &sent[i][way]; n.Load() < got[i][way].Load()+64 {
					n.Add(1)
					return f([]byte("data"))
				}
				return nil
			}
		}
		receive := func(n *atomic.Uint64, c net.Conn) func() error {
			var buf [64]byte
			return func() error {
				if _, err := c.Read(buf[:]); err != nil {
					return err
				}
				n.Add(1)
				return nil
			}
		}
		pinned(t, &senders, 0, send(0, func(p []byte) error { _, err := client.Write(p); return err }))
		pinned(t, &senders, 1, send(1, func(p []byte) error { _, err := server.WriteToUDPAddrPort(p, from); return err }))
		pinned(t, &load, 0, receive(&got[i][1], client))
		pinned(t, &load, 1, receive(&got[i][0], server))
	}
	forbidden := nstest.Echo(t, a.NS, "tcp", a.Addr4, openPort)
	stopOffer := offer(t, b.NS, forbidden.Addr)
	cut, changes := 0, 0
	// Each queue has something to do, however slow the machine is.
	busy := func() bool {
		for _, w := range engine.Workers() {
			if w.Received < 40 {
				return false
			}
		}
		return changes >= 20
	}
	for began := time.Now(); time.Since(began) < 2*time.Second || !busy() && time.Since(began) < 2*nstest.Timeout; changes++ {
		action := []rule.Action{rule.Deny, rule.Allow}[changes%2]
		cut += apply(ingress("other", action, rule.BandAdmin, "b", 9))
		if forget {
			forgetFlows(t, backend)
		}
		time.Sleep(2 * time.Millisecond)
	}
	over.Store(true)
	senders.Wait() // one may be about to send
	stopOffer()
	same := func() bool {
		for i := range flows {
			for way := range 2 {
				if sent[i][way].Load() != got[i][way].Load() {
					return false
				}
			}
		}
		return true
	}
	for deadline := time.Now().Add(nstest.Timeout); !same() && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	for _, c := range open {
		c.Close()
	}
	load.Wait()
	for i := range flows {
		for way, name := range []string{"there", "back"} {
			if s, g := sent[i][way].Load(), got[i][way].Load(); s != g || s < 100 {
				t.Errorf("flow %d %s: %d of %d datagrams arrived", i, name, g, s)
			}
		}
	}
	if n := forbidden.Seen(); n != 0 {
		t.Errorf("%d denied connections arrived", n)
	}
	if cut != 0 {
		t.Errorf("changes that were about none of them cut %d connections", cut)
	}

	// What is denied from now on passes in neither direction.
	late := listen(t, b.NS, netip.AddrPortFrom(b.Addr4, openPort+flows))
	client := dial(t, a.NS, "udp", netip.AddrPortFrom(b.Addr4, openPort+flows))
	client.Write([]byte("hello"))
	var buf [64]byte
	late.SetReadDeadline(time.Now().Add(nstest.Timeout))
	_, from, err := late.ReadFromUDPAddrPort(buf[:])
	if err != nil {
		t.Fatal(err)
	}
	if n := apply(ingress("late", rule.Deny, rule.BandAdmin, "b", openPort+flows)); n != 1 {
		t.Errorf("%d connections cut, want 1", n)
	}
	for cpu := range 2 {
		onCPU(t, cpu, func() error { _, err := client.Write([]byte("more")); return err })
		onCPU(t, cpu, func() error { _, err := late.WriteToUDPAddrPort([]byte("more"), from); return err })
	}
	for name, c := range map[string]net.Conn{"there": late, "back": client} {
		c.SetReadDeadline(time.Now().Add(nstest.Blocked))
		if _, err := c.Read(buf[:]); err == nil {
			t.Errorf("a datagram of the connection that was cut went %s", name)
		}
	}

	halt()
	t.Logf("%d changes", changes)
	total := engine.Stats()
	if sum := total.Passed() + total.Deferred() + total.Dropped(); sum != total.Received {
		t.Errorf("%d packets received, %d judged", total.Received, sum)
	}
	for _, w := range engine.Workers() {
		if w.Received < 40 {
			t.Errorf("queue %d had %d packets", w.Queue, w.Received)
		}
	}
	if s := backend.Stats(); s.Fates[dataplane.FateUpcall] != total.Received+s.Overflow || s.Overflow != 0 {
		t.Errorf("%d packets went up, %d were received, %d lost", s.Fates[dataplane.FateUpcall], total.Received, s.Overflow)
	}
	if total.Paths[dataplane.DropCut] != 0 {
		t.Errorf("%d packets of connections that were cut by a worker", total.Paths[dataplane.DropCut])
	}
}

// forgetFlows empties the kernel's map of flows.
func forgetFlows(t *testing.T, b *Backend) {
	t.Helper()
	if err := b.thread.do(func() error {
		var k kern.FlowKey
		var s kern.FlowState
		var all []kern.FlowKey
		each := b.objects.Flows.Iterate()
		for each.Next(&k, &s) {
			all = append(all, k)
		}
		for _, k := range all {
			if err := b.objects.Flows.Delete(k); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
				return err
			}
		}
		return each.Err()
	}); err != nil {
		t.Fatal(err)
	}
}

// listen opens a UDP socket.
func listen(t *testing.T, ns *netlab.NS, at netip.AddrPort) (c *net.UDPConn) {
	t.Helper()
	if err := ns.Do(func() (err error) { c, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at)); return err }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}
