package afxdp

import (
	"net"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/afxdp/kern"
	"github.com/tierwall/tierwall/dataplane/nstest"
)

// inherit makes the rig's policy what its backend asks about flows of an earlier run.
func (r *rig) inherit() {
	r.backend.Inherit(func(c *dataplane.Inherited) bool {
		p := dataplane.Packet{Final: c.Final, Onward: c.Onward, Service: c.Service}
		if c.Real {
			p.Real = c.Key
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.decide(c.Key, &p) == dataplane.PassPacket
	})
}

// ofPorts returns the upcalls since the last call that are about a connection to one
// of the ports.
func (r *rig) ofPorts(ports ...uint16) []seen {
	return slices.DeleteFunc(r.upcalls(), func(s seen) bool {
		return !slices.Contains(ports, s.key.SrcPort) && !slices.Contains(ports, s.key.DstPort)
	})
}

func allowPorts(ports ...uint16) func(flow.Key, *dataplane.Packet) dataplane.Disposition {
	return func(k flow.Key, _ *dataplane.Packet) dataplane.Disposition {
		if slices.Contains(ports, k.DstPort) {
			return dataplane.PassPacket
		}
		return dataplane.DropPacket
	}
}

// Of many flows that outlived their daemon those that the next one's first table
// accepts do not come up; what it denies ends with that table, although it was not
// denied when the flows were accepted. A later change finds what was inherited.
func TestInherit(t *testing.T) {
	t.Parallel()
	nstest.Need(t, canRun)
	const many, otherPort = 150, openPort + 1
	for _, strict := range []bool{true, false} {
		node := nstest.NewNode(t)
		a, b := node.AddPod(t, "a"), node.AddPod(t, "b")
		c := Config{Strict: strict, PinPath: nstest.BPFFS(t)}
		r := startRig(t, node, c)
		r.policy(allowPorts(openPort, otherPort))
		r.update(t, a, b)
		var kept4, kept6, cut []net.Conn
		connect := func(conns *[]net.Conn, network string, to netip.AddrPort, n int) {
			for range n {
				conn := dial(t, a.NS, network, to)
				exchange(t, conn)
				*conns = append(*conns, conn)
			}
		}
		for _, network := range []string{"udp", "tcp"} {
			connect(&kept4, network, nstest.Echo(t, b.NS, network, b.Addr4, openPort).Addr, many)
			connect(&kept6, network, nstest.Echo(t, b.NS, network, b.Addr6, openPort).Addr, 5)
		}
		denied := nstest.Echo(t, b.NS, "udp", b.Addr4, otherPort)
		connect(&cut, "udp", denied.Addr, many)
		for range 2 {
			r.stop(t)
			r = startRig(t, node, c)
			r.policy(allowPorts(openPort, otherPort))
			r.inherit()
			r.update(t, a, b)
			for _, conn := range slices.Concat(kept4, kept6, cut) {
				exchange(t, conn)
			}
			if up := r.ofPorts(openPort, otherPort); len(up) > 0 {
				t.Errorf("strict %v: %d packets of flows that are accepted came up: %v …", strict, len(up), up[0])
			}
		}
		// The policy changes while nobody is there.
		r.stop(t)
		r = startRig(t, node, c)
		r.policy(allowPorts(openPort))
		r.inherit()
		r.update(t, a, b)
		arrived := denied.Seen()
		for _, conn := range cut {
			conn.Write([]byte("denied"))
		}
		for _, conn := range slices.Concat(kept4, kept6) {
			exchange(t, conn)
		}
		nstest.Eventually(t, "denied flows are judged", func() bool {
			r.mu.Lock()
			defer r.mu.Unlock()
			return len(r.seen) >= many
		})
		for _, s := range r.ofPorts(openPort, otherPort) {
			if s.key.DstPort != otherPort || s.reply {
				t.Errorf("strict %v: %v came up, reply %v", strict, s.key, s.reply)
			}
		}
		if n := denied.Seen() - arrived; n != 0 {
			t.Errorf("strict %v: %d packets of denied flows passed after the update", strict, n)
		}
		// And once it is there.
		r.policy(allowPorts())
		about := touching(flow.AddrFrom(b.Addr4))
		if err := r.backend.update([]netip.Addr{a.Addr4, a.Addr6, b.Addr4, b.Addr6}, dataplane.ChangeWithin(about)); err != nil {
			t.Fatal(err)
		}
		for _, conn := range kept6 {
			exchange(t, conn)
		}
		if up := r.ofPorts(openPort); len(up) > 0 {
			t.Errorf("strict %v: a change about others brings %v up", strict, up[0])
		}
		for _, conn := range kept4[:5] {
			if err := echoes(conn, nstest.Blocked); err == nil {
				t.Errorf("strict %v: a change of policy does not find what was inherited", strict)
			}
		}
	}
}

// Translated flows are asked about by their real ends, and are good under both names.
func TestInheritTranslated(t *testing.T) {
	t.Parallel()
	needReads(t)
	node := nstest.NewNode(t)
	a, b := node.AddPod(t, "a"), node.AddPod(t, "b")
	c := Config{Strict: true, PinPath: nstest.BPFFS(t)}
	start := func(pass func(flow.Key) bool) *rig {
		r := startRig(t, node, c)
		r.policy(judges(pass))
		r.inherit()
		r.know(t, a, b)
		return r
	}
	toPod := func(k flow.Key) bool { return k.DstPort == openPort }
	r := start(toPod)
	var fromPod, fromOutside []net.Conn
	for _, family := range []int{4, 6} {
		service(t, r.NS, netip.AddrPortFrom(nodeAddr(r, family), nodePort), netip.AddrPortFrom(b.Addr(family), openPort), true)
		service(t, r.NS, netip.AddrPortFrom(vip(family), servicePort), netip.AddrPortFrom(b.Addr(family), openPort), false)
		for _, network := range []string{"tcp", "udp"} {
			nstest.Echo(t, b.NS, network, b.Addr(family), openPort)
			fromOutside = append(fromOutside, dial(t, r.Outside, network, netip.AddrPortFrom(nodeAddr(r, family), nodePort)))
			fromPod = append(fromPod, dial(t, a.NS, network, netip.AddrPortFrom(vip(family), servicePort)))
		}
	}
	all := slices.Concat(fromPod, fromOutside)
	for range 2 { // the answer's names are known from the second on
		for _, conn := range all {
			exchange(t, conn)
		}
	}
	r.stop(t)
	r = start(toPod)
	for range 2 {
		for _, conn := range all {
			exchange(t, conn)
		}
	}
	if up := r.ofPorts(openPort, servicePort, nodePort); len(up) > 0 {
		t.Errorf("%d packets of translated flows came up: %v", len(up), up)
	}
	// By its client, whose name the packets to the backend do not bear.
	r.stop(t)
	r = start(func(k flow.Key) bool {
		return toPod(k) && k.Src != flow.AddrFrom(r.Outside4) && k.Src != flow.AddrFrom(r.Outside6)
	})
	for _, conn := range fromPod {
		exchange(t, conn)
	}
	if up := r.ofPorts(openPort, servicePort, nodePort); len(up) > 0 {
		t.Errorf("%d packets of translated flows came up: %v", len(up), up)
	}
	for _, conn := range fromOutside {
		if err := echoes(conn, nstest.Blocked); err == nil {
			t.Errorf("%s to %s: denied, and inherited", conn.LocalAddr(), conn.RemoteAddr())
		}
	}
}

// Which entries are asked about, as what, and which of them count afterwards.
func TestInheritEntries(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{Strict: true})
	pod, peer := netip.MustParseAddrPort("10.0.0.1:40000"), netip.MustParseAddrPort("10.0.0.2:80")
	host := netip.AddrPortFrom(r.Addr4, 7000)
	service, node := netip.MustParseAddrPort("10.96.0.10:80"), netip.AddrPortFrom(r.Addr4, 61000)
	cells := func(a, b netip.AddrPort) [2]uint16 {
		x, y := flow.AddrFrom(a.Addr()), flow.AddrFrom(b.Addr())
		return [2]uint16{kern.CellOf(&x), kern.CellOf(&y)}
	}
	key := func(a, b netip.AddrPort) flow.Key { return flow.MakeKey(flow.UDP, a, b) }
	led := kern.Origin{
		Client: flow.AddrFrom(pod.Addr()), Service: flow.AddrFrom(service.Addr()), Backend: flow.AddrFrom(peer.Addr()),
		ClientPort: pod.Port(), ServicePort: service.Port(), BackendPort: peer.Port(), Proto: flow.UDP, Flags: kern.OriginNAT | kern.OriginDNAT,
	}
	echo := flow.Key{Src: flow.AddrFrom(pod.Addr()), Dst: flow.AddrFrom(peer.Addr()), SrcPort: 7, DstPort: flow.ICMPEchoRequest << 8, Proto: flow.ICMP}
	second := uint64(time.Second)
	for i, c := range []struct {
		name   string
		k      flow.Key // as it was opened
		cells  [2]uint16
		flags  uint32
		origin *kern.Origin
		age    uint64 // ns
		deny   bool
		asked  flow.Key // the zero key: about nothing
		renews bool
	}{
		{name: "plain", k: key(pod, peer), cells: cells(pod, peer), asked: key(pod, peer), renews: true},
		{name: "the other way", k: key(peer, pod), cells: cells(pod, peer), asked: key(peer, pod), renews: true},
		{name: "written by an answer", k: key(pod, peer), cells: cells(peer, pod), asked: key(pod, peer), renews: true},
		{name: "echo", k: echo, cells: cells(pod, peer), asked: echo, renews: true},
		{name: "denied", k: key(pod, peer), cells: cells(pod, peer), deny: true, asked: key(pod, peer)},
		{name: "closing", k: key(pod, peer), cells: cells(pod, peer), flags: kern.FlowClosing, asked: key(pod, peer), renews: true},
		{name: "idle for too long", k: key(pod, peer), cells: cells(pod, peer), age: 121 * second},
		{name: "idle", k: key(pod, peer), cells: cells(pod, peer), age: 60 * second, asked: key(pod, peer), renews: true},
		{name: "other addresses' cells", k: key(pod, peer), cells: cells(pod, service), asked: key(pod, peer)},
		{name: "to the host", k: key(pod, host), cells: cells(pod, host), flags: kern.FlowHost, asked: key(pod, host), renews: true},
		{name: "an address that the host did not have", k: key(pod, host), cells: cells(pod, host)},
		{name: "an address that the host had", k: key(pod, peer), cells: cells(pod, peer), flags: kern.FlowHost},
		{name: "to a Service", k: key(pod, service), cells: cells(pod, peer), flags: kern.FlowTranslated, origin: &led, asked: key(pod, peer), renews: true},
		{name: "to a Service, an answer first", k: key(pod, service), cells: cells(peer, pod), flags: kern.FlowTranslated, origin: &led, asked: key(pod, peer), renews: true},
		{name: "masqueraded", k: key(node, peer), cells: cells(pod, peer), flags: kern.FlowTranslated, origin: &led, asked: key(pod, peer), renews: true},
		{name: "translated, and opened by whom conntrack takes for the answerer", k: key(peer, node), cells: cells(pod, peer), flags: kern.FlowTranslated, origin: &led},
		{name: "translated to nobody knows where", k: key(pod, service), cells: cells(pod, peer), flags: kern.FlowTranslated},
		{name: "somebody else's translation", k: key(pod, node), cells: cells(pod, peer), flags: kern.FlowTranslated, origin: &led},
	} {
		k, back := kern.MakeFlowKey(&c.k)
		old := kern.FlowState{Generation: r.backend.epoch.Current(), Last: kern.Now() - c.age, Cell: c.cells, Flags: c.flags}
		if back {
			old.Flags |= kern.FlowBack
		}
		if err := r.backend.objects.Flows.Put(&k, &old); err != nil {
			t.Fatal(err)
		}
		if c.origin != nil {
			if err := r.backend.objects.Origins.Put(&k, c.origin); err != nil {
				t.Fatal(err)
			}
		}
		var asked []flow.Key
		r.backend.Inherit(func(i *dataplane.Inherited) bool {
			asked = append(asked, i.Key)
			if i.Real != (c.origin != nil) || i.Real != !i.Service.IsZero() || !i.Final || i.Closing != (c.flags&kern.FlowClosing != 0) ||
				i.Idle < time.Duration(c.age) || i.Idle > time.Duration(c.age)+5*time.Second {
				t.Errorf("%s: asked about %+v", c.name, i)
			}
			return !c.deny
		})
		r.update(t)
		var got kern.FlowState
		if err := r.backend.objects.Flows.Lookup(&k, &got); err != nil {
			t.Fatal(err)
		}
		want := old
		if c.renews {
			want.Generation = r.backend.epoch.Current()
		}
		if got != want {
			t.Errorf("%s: entry %+v, want %+v", c.name, got, want)
		}
		if got.Generation == old.Generation && i == 0 {
			t.Fatal("nothing is renewed")
		}
		if len(asked) > 1 || c.asked.Valid() != (len(asked) == 1) || len(asked) == 1 && asked[0] != c.asked {
			t.Errorf("%s: asked about %v, want %v", c.name, asked, c.asked)
		}
		// Once only.
		r.update(t)
		if err := r.backend.objects.Flows.Lookup(&k, &got); err != nil || got != want {
			t.Errorf("%s: after another update %+v, %v, want %+v", c.name, got, err, want)
		}
		if err := r.backend.objects.Flows.Delete(&k); err != nil {
			t.Fatal(err)
		}
		_ = r.backend.objects.Origins.Delete(&k)
	}
}

// What the later hook judges is left to it all along.
func TestInheritLater(t *testing.T) {
	t.Parallel()
	nstest.Need(t, canRun)
	node := nstest.NewNode(t)
	a, b := node.AddPod(t, "a"), node.AddPod(t, "b")
	c := Config{PinPath: nstest.BPFFS(t)}
	deferred := func(flow.Key, *dataplane.Packet) dataplane.Disposition { return dataplane.DeferPacket }
	r := startRig(t, node, c)
	r.policy(deferred)
	r.update(t, a, b)
	conn := dial(t, a.NS, "udp", nstest.Echo(t, b.NS, "udp", b.Addr4, openPort).Addr)
	exchange(t, conn)
	for _, inherits := range []bool{true, false} {
		r.stop(t)
		r = startRig(t, node, c)
		r.policy(deferred)
		if inherits {
			r.inherit()
		}
		r.update(t, a, b)
		exchange(t, conn)
		if up := r.ofPorts(openPort); (len(up) == 0) != inherits {
			t.Errorf("inherits %v: came up: %v", inherits, up)
		}
	}
}

// A daemon that dies while it takes over leaves flows that are judged by its table
// alone. The next one, which has another, does not take them for its own.
func TestInheritHalfWay(t *testing.T) {
	t.Parallel()
	nstest.Need(t, canRun)
	node := nstest.NewNode(t)
	a, b := node.AddPod(t, "a"), node.AddPod(t, "b")
	c := Config{Strict: true, PinPath: nstest.BPFFS(t)}
	r := startRig(t, node, c)
	r.update(t, a, b)
	s := nstest.Echo(t, b.NS, "udp", b.Addr4, openPort)
	conn := dial(t, a.NS, "udp", s.Addr)
	exchange(t, conn)
	for range 2 { // in a row
		r.stop(t)
		r = startRig(t, node, c)
		r.inherit()
		renew := r.backend.takeover.Renewal()
		died := make(chan struct{})
		go func() {
			defer close(died)
			_ = r.backend.epoch.Advance(dataplane.Change{}, func(g uint64) {
				renew(g)
				runtime.Goexit() // and no further
			})
		}()
		<-died
		if got := entryOf(t, r, conn).Generation; got != r.backend.epoch.Current() {
			t.Fatalf("an entry of generation %d was not renewed", got)
		}
		exchange(t, conn)
	}
	r.stop(t)
	r = startRig(t, node, c)
	r.policy(allowPorts())
	// Of an Update this is what ends flows.
	if err := r.backend.epoch.Advance(dataplane.Change{}, nil); err != nil {
		t.Fatal(err)
	}
	arrived := s.Seen()
	if err := echoes(conn, nstest.Blocked); err == nil || s.Seen() != arrived {
		t.Error("a denied flow passes that an unfinished takeover had accepted")
	}
}

// entryOf reads the entry of a UDP connection.
func entryOf(t *testing.T, r *rig, conn net.Conn) (s kern.FlowState) {
	t.Helper()
	k := flow.MakeKey(flow.UDP, netip.MustParseAddrPort(conn.LocalAddr().String()), netip.MustParseAddrPort(conn.RemoteAddr().String()))
	f, _ := kern.MakeFlowKey(&k)
	if err := r.backend.objects.Flows.Lookup(&f, &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// While flows are taken over their packets pass, entries change and others appear:
// what is renewed is what was asked about.
func TestInheritUnderTraffic(t *testing.T) {
	t.Parallel()
	nstest.Need(t, canRun)
	node := nstest.NewNode(t)
	a, b := node.AddPod(t, "a"), node.AddPod(t, "b")
	c := Config{Strict: true, PinPath: nstest.BPFFS(t)}
	r := startRig(t, node, c)
	const otherPort = openPort + 1
	r.policy(allowPorts(openPort, otherPort))
	r.update(t, a, b)
	open, closed := nstest.Echo(t, b.NS, "udp", b.Addr4, openPort), nstest.Echo(t, b.NS, "udp", b.Addr4, otherPort)
	var kept, cut []net.Conn
	for range 40 {
		kept, cut = append(kept, dial(t, a.NS, "udp", open.Addr)), append(cut, dial(t, a.NS, "udp", closed.Addr))
		exchange(t, kept[len(kept)-1])
		exchange(t, cut[len(cut)-1])
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			for i := range kept {
				select {
				case <-stop:
					return
				default:
				}
				kept[i].Write([]byte("x"))
				cut[i].Write([]byte("x"))
			}
		}
	}()
	defer func() { <-done }()
	defer close(stop)
	for range 3 {
		r.stop(t)
		r = startRig(t, node, c)
		r.policy(allowPorts(openPort))
		r.inherit()
		r.update(t, a, b)
		// What was on its way waits for the server, which has a lot to do. The denied
		// flows' packets are sent all the time: one that was renewed never ends.
		nstest.Eventually(t, "accepted flows go on, and denied ones do not", func() bool {
			arrived, passed := closed.Seen(), open.Seen()
			time.Sleep(50 * time.Millisecond)
			return open.Seen() > passed+100 && closed.Seen() == arrived
		})
		for _, s := range r.ofPorts(openPort) {
			t.Errorf("%v came up", s.key)
		}
	}
}
