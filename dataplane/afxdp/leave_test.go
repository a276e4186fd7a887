package afxdp

import (
	"bytes"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/afxdp/attach"
	"github.com/tierwall/tierwall/dataplane/afxdp/kern"
	"github.com/tierwall/tierwall/dataplane/nstest"
	"github.com/tierwall/tierwall/dataplane/nstest/netlab"
)

// What is left unjudged where it comes from must meet a program where it leaves.

// datagram is a UDP packet in a frame, and mark its payload.
func datagram(t *testing.T, from, to netip.AddrPort, src, dst net.HardwareAddr, mark string) []byte {
	t.Helper()
	eth := &layers.Ethernet{SrcMAC: src, DstMAC: dst, EthernetType: layers.EthernetTypeIPv4}
	ip := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolUDP, SrcIP: from.Addr().AsSlice(), DstIP: to.Addr().AsSlice()}
	udp := &layers.UDP{SrcPort: layers.UDPPort(from.Port()), DstPort: layers.UDPPort(to.Port())}
	if err := udp.SetNetworkLayerForChecksum(ip); err != nil {
		t.Fatal(err)
	}
	b := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, eth, ip, udp, gopacket.Payload(mark)); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// The name of an answer opens nothing when the connection it answered is over, however
// often the pod tries.
func TestAnswersOfTheForgotten(t *testing.T) {
	t.Parallel()
	needReads(t)
	r := newRig(t, Config{Strict: true})
	b := r.AddPod(t, "b")
	r.know(t, b)
	friend, _ := twoOutside(t, r, 4)
	at := netip.AddrPortFrom(r.Addr4, nodePort)
	service(t, r.NS, at, netip.AddrPortFrom(b.Addr4, openPort), true)
	r.policy(judges(from(friend)))
	const port = 5555
	s := nstest.Echo(t, b.NS, "udp", b.Addr4, openPort)
	exchange(t, dialFrom(t, r.Outside, netip.AddrPortFrom(friend, port), at))
	s.Close()
	forgetConnections(t, r.NS)
	node := nstest.Echo(t, r.NS, "udp", r.Addr4, port)
	c := dialFrom(t, b.NS, s.Addr, node.Addr)
	for range 5 {
		if err := echoes(c, nstest.Blocked/4); err == nil || node.Seen() != 0 {
			t.Fatal("the pod reached the node by the name of an answer")
		}
	}
}

// An earlier run had programs on devices where this one has none: what goes there is
// the gate's again.
func TestExitsOfAnEarlierRun(t *testing.T) {
	t.Parallel()
	nstest.Need(t, canRun)
	for name, later := range map[string]attach.Config{"excluded": {Exclude: []string{netlab.Uplink}}, "clsact": {Attach: attach.Clsact}} {
		node := nstest.NewNode(t)
		a := node.AddPod(t, "a")
		c := Config{Strict: true, PinPath: nstest.BPFFS(t)}
		r := startRig(t, node, c)
		r.know(t, a)
		at := netip.AddrPortFrom(vip(4), servicePort)
		bad := nstest.Echo(t, r.Outside, "udp", r.Outside4, closedPort)
		service(t, r.NS, at, bad.Addr, false)
		r.policy(judges(func(flow.Key) bool { return false }))
		nstest.Unreachable(t, a.NS, "udp", at)
		r.stop(t)
		c.AttachConfig = later
		r = startRig(t, node, c)
		r.policy(judges(func(flow.Key) bool { return false }))
		r.know(t, a)
		nstest.Unreachable(t, a.NS, "udp", at)
		if n := bad.Seen(); n != 0 {
			t.Errorf("%s: %d denied packets left by a device that had a program", name, n)
		}
		r.stop(t)
	}
}

// A bridge has a port that nobody watches. What a pod sends there straight, past the
// node, is judged where it comes from: as the packet it is, whatever is known of the
// connection to a Service that it says to be of.
func TestBridgePortNobodyWatches(t *testing.T) {
	t.Parallel()
	needReads(t)
	for _, strict := range []bool{true, false} {
		r := newRig(t, Config{Strict: strict, AttachConfig: AttachConfig{Exclude: []string{"wire0"}}})
		addBridge(t, r.Node)
		_ = r.NS.Sysctl("net/bridge/bridge-nf-call-iptables", "0") // where there is br_netfilter
		a, b := addBridged(t, r.Node, "a"), addBridged(t, r.Node, "b")
		wire := nstest.New(t)
		if err := netlab.Pair(r.NS, "wire0", wire.NS, "eth0"); err != nil {
			t.Fatal(err)
		}
		port, err := r.NS.Link("wire0")
		if err != nil {
			t.Fatal(err)
		}
		bridge, err := r.NS.Link(bridgeName)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.NS.Handle().LinkSetMaster(port, bridge); err != nil {
			t.Fatal(err)
		}
		r.know(t, a, b)
		at := netip.AddrPortFrom(vip(4), servicePort)
		service(t, r.NS, at, netip.AddrPortFrom(b.Addr4, openPort), true)
		nstest.Echo(t, b.NS, "udp", b.Addr4, openPort)
		allowed := judges(func(k flow.Key) bool { return k.Dst == flow.AddrFrom(b.Addr4) && k.DstPort == openPort })
		r.policy(allowed)
		client := netip.AddrPortFrom(a.Addr4, 4444)
		if strict { // its name is remembered as a Service's, once gate has seen it
			c := dialFrom(t, a.NS, client, at)
			_ = echoes(c, nstest.Blocked/2)
			exchange(t, c)
		} else {
			r.policy(func(k flow.Key, p *dataplane.Packet) dataplane.Disposition {
				if !p.Final { // the later hook's
					return dataplane.DeferPacket
				}
				return allowed(k, p)
			})
			exchange(t, dialFrom(t, a.NS, client, at))
		}
		mac := map[*netlab.NS]net.HardwareAddr{}
		for ns, dev := range map[*netlab.NS]string{a.NS: netlab.PodDevice, wire.NS: "eth0"} {
			m, err := ns.MAC(dev)
			if err != nil {
				t.Fatal(err)
			}
			mac[ns] = m
		}
		next := capture(t, wire.NS, "eth0")
		send := inject(t, a.NS, netlab.PodDevice)
		for range 3 {
			send(datagram(t, client, at, mac[a.NS], mac[wire.NS], "<denied>"))
		}
		time.Sleep(nstest.Blocked / 4)
		r.policy(allowAll)
		r.know(t, a, b)
		send(datagram(t, client, at, mac[a.NS], mac[wire.NS], "<allowed>"))
		for f := next(); !bytes.Contains(f, []byte("<allowed>")); f = next() {
			if bytes.Contains(f, []byte("<denied>")) {
				t.Errorf("strict %v: a frame for a stranger passed by the name of a connection to a Service", strict)
			}
		}
	}
}

// masqueradeTo gives packets for an address the node's own, whoever sends them.
func masqueradeTo(t *testing.T, ns *netlab.NS, to netip.Addr) {
	t.Helper()
	nft(t, ns, func(c *nftables.Conn) {
		table := c.AddTable(&nftables.Table{Name: natTable, Family: nftables.TableFamilyIPv4})
		post := c.AddChain(&nftables.Chain{
			Name: "all", Table: table, Type: nftables.ChainTypeNAT,
			Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource,
		})
		c.AddRule(&nftables.Rule{Table: table, Chain: post, Exprs: []expr.Any{
			&expr.Payload{Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4, DestRegister: 1},
			&expr.Cmp{Register: 1, Data: to.AsSlice()},
			&expr.Masq{},
		}})
	})
}

// What the node opened to a pod lets the pod answer the node, and not whoever is
// masqueraded under the same name later.
func TestAnswerToTheNodeIsNobodyElses(t *testing.T) {
	t.Parallel()
	needReads(t)
	for _, exclude := range [][]string{nil, {netlab.Uplink}} {
		r := newRig(t, Config{Strict: true, AttachConfig: AttachConfig{Exclude: exclude}})
		b := r.AddPod(t, "b")
		r.know(t, b)
		_, stranger := twoOutside(t, r, 4)
		r.policy(judges(func(flow.Key) bool { return false }))
		const port = 5555
		s := nstest.Echo(t, b.NS, "udp", b.Addr4, openPort)
		node := dialFrom(t, r.NS, netip.AddrPortFrom(nodeAddrTo(t, r, b), port), s.Addr)
		exchange(t, node)
		node.Close()
		s.Close()
		forgetConnections(t, r.NS)
		masqueradeTo(t, r.NS, b.Addr4)
		// The pod does not get it; the node keeps the name for it.
		client := dialFrom(t, r.Outside, netip.AddrPortFrom(stranger, port), s.Addr)
		if err := echoes(client, nstest.Blocked/2); err == nil {
			t.Fatal("a client that is denied got through")
		}
		pod := dialFrom(t, b.NS, s.Addr, netip.AddrPortFrom(nodeAddrTo(t, r, b), port))
		for range 3 {
			if _, err := pod.Write([]byte("leak")); err != nil {
				t.Fatal(err)
			}
		}
		buf := make([]byte, 64)
		if err := client.SetReadDeadline(time.Now().Add(nstest.Blocked / 2)); err != nil {
			t.Fatal(err)
		}
		if n, err := client.Read(buf); err == nil {
			t.Errorf("exclude %v: %q reached a client that is denied", exclude, buf[:n])
		}
		r.policy(judges(from(stranger)))
		pod.Close()
		nstest.Echo(t, b.NS, "udp", b.Addr4, openPort)
		r.know(t, b)
		exchange(t, client)
	}
}

// nodeAddrTo is the node's address that it uses towards a pod.
func nodeAddrTo(t *testing.T, r *rig, p *netlab.Pod) netip.Addr {
	t.Helper()
	c := dialFrom(t, r.NS, netip.AddrPort{}, netip.AddrPortFrom(p.Addr4, 9))
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap()
}

// Something on the way may change addresses without a connection. What then bears the
// node's address is nobody's, and does not leave.
func TestUntrackedServiceDoesNotLeave(t *testing.T) {
	t.Parallel()
	needReads(t)
	r := newRig(t, Config{Strict: true})
	a := r.AddPod(t, "a")
	r.know(t, a)
	r.policy(func(k flow.Key, p *dataplane.Packet) dataplane.Disposition {
		if p.Onward && !p.Real.Valid() && k.Dst == flow.AddrFrom(vip(4)) {
			return dataplane.DeferPacket
		}
		return dataplane.PassPacket
	})
	at := netip.AddrPortFrom(vip(4), servicePort)
	s := nstest.Echo(t, r.Outside, "udp", r.Outside4, servicePort)
	rewrite := func(offset uint32, addr netip.Addr) []expr.Any {
		return []expr.Any{
			&expr.Payload{Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4, DestRegister: 1},
			&expr.Immediate{Register: 1, Data: addr.AsSlice()},
			&expr.Payload{OperationType: expr.PayloadWrite, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: 4, SourceRegister: 1, CsumType: expr.CsumTypeInet, CsumOffset: 10, CsumFlags: 1},
		}
	}
	to := func(addr netip.Addr) []expr.Any {
		return []expr.Any{
			&expr.Payload{Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4, DestRegister: 1},
			&expr.Cmp{Register: 1, Data: addr.AsSlice()},
		}
	}
	nft(t, r.NS, func(c *nftables.Conn) {
		table := c.AddTable(&nftables.Table{Name: "stateless", Family: nftables.TableFamilyIPv4})
		chain := func(name string, hook *nftables.ChainHook) *nftables.Chain {
			return c.AddChain(&nftables.Chain{Name: name, Table: table, Type: nftables.ChainTypeFilter, Hooknum: hook, Priority: nftables.ChainPriorityRaw})
		}
		pre, post := chain("pre", nftables.ChainHookPrerouting), chain("post", nftables.ChainHookPostrouting)
		c.AddRule(&nftables.Rule{Table: table, Chain: pre, Exprs: append(append(to(vip(4)), &expr.Notrack{}), rewrite(16, r.Outside4)...)})
		c.AddRule(&nftables.Rule{Table: table, Chain: post, Exprs: append(to(r.Outside4), rewrite(12, r.Addr4)...)})
	})
	dropped := r.counter(t, kern.CountDrop)
	c := dialFrom(t, a.NS, netip.AddrPort{}, at)
	for range 3 {
		_ = echoes(c, nstest.Blocked/4)
	}
	if n := s.Seen(); n != 0 {
		t.Errorf("%d packets left that nobody could judge", n)
	}
	if n := r.counter(t, kern.CountDrop) - dropped; n != 3 {
		t.Errorf("%d packets dropped where they leave, want 3: the test is broken", n)
	}
}

// An address that the node gets is no longer of whoever had it: what was accepted
// under it is judged again.
func TestNodeGetsAnAddress(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{Strict: true})
	b := r.AddPod(t, "b")
	r.know(t, b)
	friend, _ := twoOutside(t, r, 6)
	s := nstest.Echo(t, b.NS, "udp", b.Addr6, openPort)
	c := dialFrom(t, r.Outside, netip.AddrPortFrom(friend, 4444), s.Addr)
	exchange(t, c)
	r.upcalls()
	exchange(t, c)
	if up := r.connections(); len(up) != 0 {
		t.Fatalf("came up: %v", up)
	}
	if err := r.NS.Addr("lo", netip.PrefixFrom(friend, 128)); err != nil {
		t.Fatal(err)
	}
	nstest.Eventually(t, "the flow is judged again", func() bool {
		_, err := c.Write([]byte("ping"))
		return err == nil && slices.ContainsFunc(r.connections(), func(s seen) bool { return s.key.Proto == flow.UDP })
	})
}

// What is left to the later hook is left to it only where it looks: not on the way from
// one pod of a bridge to another, whatever was left to it under the same name before.
func TestBridgedNameLeftToTheHook(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	addBridge(t, r.Node)
	_ = r.NS.Sysctl("net/bridge/bridge-nf-call-iptables", "0") // where there is br_netfilter
	a, b := addBridged(t, r.Node, "a"), addBridged(t, r.Node, "b")
	r.know(t, a, b)
	r.policy(func(k flow.Key, p *dataplane.Packet) dataplane.Disposition {
		switch {
		case !p.Final: // as the worker does with what it denies and does not know
			return dataplane.DeferPacket
		case k.DstPort == openPort:
			return dataplane.PassPacket
		}
		return dataplane.DropPacket
	})
	bridge, err := r.NS.MAC(bridgeName)
	if err != nil {
		t.Fatal(err)
	}
	src, err := a.NS.MAC(netlab.PodDevice)
	if err != nil {
		t.Fatal(err)
	}
	dst, err := b.NS.MAC(netlab.PodDevice)
	if err != nil {
		t.Fatal(err)
	}
	from, to := netip.AddrPortFrom(a.Addr4, 4444), netip.AddrPortFrom(b.Addr4, closedPort)
	send, next := inject(t, a.NS, netlab.PodDevice), capture(t, b.NS, netlab.PodDevice)
	for range 3 { // there is no hook behind the bridge here: these pass
		send(datagram(t, from, to, src, bridge, "<by the node>"))
	}
	nstest.Eventually(t, "the name is the hook's", func() bool { return r.counter(t, kern.CountLater) > 0 })
	for range 3 {
		send(datagram(t, from, to, src, dst, "<denied>"))
	}
	time.Sleep(nstest.Blocked / 4)
	send(datagram(t, from, netip.AddrPortFrom(b.Addr4, openPort), src, dst, "<allowed>"))
	for f := next(); !bytes.Contains(f, []byte("<allowed>")); f = next() {
		if bytes.Contains(f, []byte("<denied>")) {
			t.Error("a denied frame passed from pod to pod by a name that was left to the later hook")
		}
	}
}
