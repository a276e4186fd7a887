package agent

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/cmd/internal/world"
	"github.com/tierwall/tierwall/dataplane/nstest"
	"github.com/tierwall/tierwall/dataplane/nstest/adversary"
	"github.com/tierwall/tierwall/dataplane/nstest/netlab"
)

// fieldPolicy is what package adversary's rows are about: y/b lets in x/a alone, and x/a
// nobody.
const fieldPolicy = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: from-x, namespace: y}
spec:
  podSelector: {matchLabels: {pod: b}}
  ingress:
  - from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: x}}, podSelector: {matchLabels: {pod: a}}}]
    ports: [{protocol: UDP, port: 80}, {protocol: TCP, port: 80}]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: nobody, namespace: x}
spec:
  podSelector: {matchLabels: {pod: a}}
  ingress: []
`

// grounds are where attacks are tried: every dataplane, pods routed and on a bridge.
var grounds = []struct{ topology, dataplane string }{
	{"ptp", "nfqueue"},
	{"ptp", "afxdp"},
	{"ptp", "auto"},
	{"bridge", "nfqueue"},
	{"bridge", "afxdp"},
	{"bridge", "auto"},
}

// fieldRig is a daemon's world with package adversary's field in it.
type fieldRig struct {
	*rig
	*adversary.Field
	conns   []net.Conn        // of others, which must live
	dropped map[string]uint64 // frames of the attacker by Attack.Reason
	node    *locals
}

func newFieldRig(t *testing.T, topology, dataplane string) *fieldRig {
	t.Helper()
	f := &fieldRig{rig: hostileRig(t, dataplane, topology), dropped: map[string]uint64{}, Field: &adversary.Field{
		ServerPort: 80, UDPPort: map[int]uint16{}, TCPPort: map[int]uint16{}, FarPort: map[int]uint16{},
	}}
	if topology == "bridge" && dataplane != "afxdp" {
		// As Kubernetes asks for: or what stays on the bridge meets no hook of nfqueue's.
		for _, family := range []string{"iptables", "ip6tables"} {
			nstest.Need(t, func() error { return f.world.Node.NS.Sysctl("net/bridge/bridge-nf-call-"+family, "1") })
		}
	}
	f.conf.AFXDP.UpcallRate = -1
	f.write("policy.yaml", fieldPolicy)
	f.start()
	f.node = listenAll(t, f.world.Node.NS)
	party := func(name string, peer net.HardwareAddr) *adversary.Party {
		h := f.world.Host(name)
		return &adversary.Party{Name: name, Addr4: h.Addr4, Addr6: h.Addr6, NS: h.NS, Wire: adversary.OpenWire(t, h.NS, peer)}
	}
	uplink, err := f.world.Node.NS.MAC(netlab.Uplink)
	if err != nil {
		t.Fatal(err)
	}
	f.Attacker = party("z/a", f.gateway("z/a", topology))
	f.Client, f.Server, f.Outside = party("x/a", nil), party("y/b", nil), party("outside", uplink)
	f.Bystander = party("x/b", nil)
	f.Node = &adversary.Party{Name: "the node", Addr4: f.world.Node.Addr4, Addr6: f.world.Node.Addr6, NS: f.world.Node.NS}
	for _, family := range []int{4, 6} {
		if topology == "bridge" {
			for _, p := range []*adversary.Party{f.Client, f.Server, f.Bystander} {
				f.Attacker.Wire.Beside(p.Addr(family), p.Wire.MAC)
			}
		}
		port := func(network, to string) uint16 {
			c := f.dial(network, "x/a", to, family)
			if to != "outside" { // routers may say that this one ends
				f.conns = append(f.conns, c)
			}
			return netip.MustParseAddrPort(c.LocalAddr().String()).Port()
		}
		f.UDPPort[family], f.TCPPort[family], f.FarPort[family] = port("udp", "y/b"), port("tcp", "y/b"), port("udp", "outside")
	}
	return f
}

// gateway is the link-layer address of a pod's gateway.
func (r *rig) gateway(pod, topology string) net.HardwareAddr {
	r.t.Helper()
	dev := "cni0"
	if topology == "ptp" {
		dev = r.world.Node.Pod(pod).HostDevice
	}
	mac, err := r.world.Node.NS.MAC(dev)
	if err != nil {
		r.t.Fatal(err)
	}
	return mac
}

// try sends rows and looks for them at everybody but who sent them.
func (f *fieldRig) try(rows []adversary.Attack, topology, dataplane string) {
	t := f.t
	t.Helper()
	type shot struct {
		what    string
		from    *adversary.Party
		arrives bool
	}
	shots := map[string]shot{} // by mark
	heard := map[*adversary.Party]func() [][]byte{f.Node: f.node.take}
	for _, p := range []*adversary.Party{f.Attacker, f.Client, f.Server, f.Outside, f.Bystander} {
		heard[p] = p.Wire.Take
	}
	for i := range rows {
		a := &rows[i]
		if a.Skip != nil && a.Skip(dataplane, topology) != "" {
			continue
		}
		for _, family := range []int{4, 6} {
			if len(a.Families) > 0 && !slices.Contains(a.Families, family) {
				continue
			}
			mark := fmt.Sprintf("<%04d>", len(shots))
			shots[mark] = shot{fmt.Sprintf("IPv%d %s", family, a.Name), a.Sender(f.Field), a.Arrives}
			n := a.Send(f.Field, family, mark)
			if n == 0 {
				t.Errorf("%s: sends nothing", shots[mark].what)
			}
			if a.Reason != "" && a.Sender(f.Field) == f.Attacker {
				f.dropped[a.Reason] += uint64(n)
			}
		}
	}
	// What was sent before has been judged when these come back.
	for _, c := range f.conns {
		if !alive(c) {
			t.Errorf("%s: a connection of others ended", c.LocalAddr())
		}
	}
	time.Sleep(20 * time.Millisecond)
	seen := map[string]bool{}
	for p, take := range heard {
		for _, b := range take() {
			for mark, s := range shots {
				if s.from == p || !bytes.Contains(b, []byte(mark)) {
					continue
				}
				if !s.arrives && !seen[mark] {
					t.Errorf("%s: arrived at %s: %x", s.what, p.Name, b)
				}
				seen[mark] = true
			}
		}
	}
	for mark, s := range shots {
		if s.arrives && !seen[mark] {
			t.Errorf("%s: did not arrive", s.what)
		}
	}
}

// recorded fails the test for drops of the rows that the audit log does not tell, once
// the daemon has stopped.
func (f *fieldRig) recorded() {
	t := f.t
	t.Helper()
	log, err := os.ReadFile(f.conf.Audit.File)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]uint64{} // packets by reason
	for line := range bytes.Lines(log) {
		var r struct {
			Kind, Verdict, Reason string
			Source                *struct{ IP netip.Addr }
			Count                 uint64
		}
		if err := json.Unmarshal(line, &r); err != nil {
			t.Fatal(err)
		}
		if r.Source == nil || r.Verdict == "Allow" || r.Source.IP != f.Attacker.Addr4 && r.Source.IP != f.Attacker.Addr6 {
			continue
		}
		if r.Reason == "" || r.Kind == "flow" {
			r.Reason = adversary.Policy
		}
		got[r.Reason] += max(r.Count, 1)
	}
	for reason, n := range f.dropped {
		// A datagram in fragments is one packet to some dataplanes, and none to others.
		if got[reason] < n || reason == adversary.Policy && got[reason] != n {
			t.Errorf("the audit log has %d packets of the attacker for reason %q, want %d", got[reason], reason, n)
		}
	}
}

// onGrounds runs rows on every ground.
func onGrounds(t *testing.T, rows []adversary.Attack) {
	for _, g := range grounds {
		t.Run(g.topology+"/"+g.dataplane, func(t *testing.T) {
			f := newFieldRig(t, g.topology, g.dataplane)
			f.try(rows, g.topology, g.dataplane)
			f.stop(syscall.SIGTERM)
			f.recorded()
		})
	}
}

// A pod that is no end of a connection says that something is wrong with it.
func TestICMPErrorsOfThirdPods(t *testing.T) { onGrounds(t, adversary.ICMPErrors()) }

// locals are raw sockets that get what a host takes for its own, behind its firewall.
type locals struct {
	mu      sync.Mutex
	arrived [][]byte
}

func listenAll(t *testing.T, ns *netlab.NS) *locals {
	l := &locals{}
	for _, s := range []struct{ family, proto int }{
		{unix.AF_INET, 1},
		{unix.AF_INET, 6},
		{unix.AF_INET, 17},
		{unix.AF_INET, 50},
		{unix.AF_INET6, 58},
		{unix.AF_INET6, 6},
		{unix.AF_INET6, 17},
		{unix.AF_INET6, 50},
	} {
		var file *os.File
		if err := ns.Do(func() error {
			fd, err := unix.Socket(s.family, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, s.proto)
			file = os.NewFile(uintptr(fd), "raw")
			return err
		}); err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			buf := make([]byte, 1<<16)
			for {
				n, err := file.Read(buf)
				if err != nil {
					return
				}
				l.mu.Lock()
				l.arrived = append(l.arrived, append([]byte(nil), buf[:n]...))
				l.mu.Unlock()
			}
		}()
		t.Cleanup(func() {
			file.Close()
			<-done
		})
	}
	return l
}

func (l *locals) take() [][]byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.arrived
	l.arrived = nil
	return a
}

// freeSources lets the node's routing take any source from anybody.
func (f *fieldRig) freeSources() {
	f.t.Helper()
	n := f.world.Node
	for _, dev := range []string{"all", "default", netlab.Uplink, n.Pod("z/a").HostDevice} {
		if err := n.NS.Sysctl("net/ipv4/conf/"+dev+"/rp_filter", "0"); err != nil {
			f.t.Fatal(err)
		}
	}
	_ = n.NS.Sysctl("net/ipv4/conf/cni0/rp_filter", "0") // if there is a bridge
}

// A pod sends with addresses that are not its own: while policy knows it, and when
// policy has forgotten it, or not heard of it yet, in its own name, too.
func TestForeignSources(t *testing.T) {
	for _, g := range grounds {
		t.Run(g.topology+"/"+g.dataplane, func(t *testing.T) {
			f := newFieldRig(t, g.topology, g.dataplane)
			f.freeSources()
			f.try(adversary.ForeignSources(), g.topology, g.dataplane)
			inventory, err := world.Manifests()
			if err != nil {
				t.Fatal(err)
			}
			var rest []string
			for doc := range strings.SplitSeq(string(inventory), "---\n") {
				if !strings.Contains(doc, "uid: demo-z-a") {
					rest = append(rest, doc)
				}
			}
			f.write("world.yaml", strings.Join(rest, "---\n"))
			f.until("the pod is forgotten", func() bool {
				return f.world.Host("z/a").NS.Probe("udp", f.to("outside", 4, 80), 50*time.Millisecond) != nil
			})
			f.try(adversary.ForeignSources(), g.topology, g.dataplane)
			f.try(adversary.OwnSource(), g.topology, g.dataplane)
			f.stop(syscall.SIGTERM)
		})
	}
}

// A pod says that it is the router, or a DHCP server.
func TestRouterAndServerClaims(t *testing.T) {
	rows := append(adversary.RouterClaims(), adversary.DHCPServer()...)
	for _, g := range grounds {
		t.Run(g.topology+"/"+g.dataplane, func(t *testing.T) {
			f := newFieldRig(t, g.topology, g.dataplane)
			dev := "cni0"
			if g.topology == "ptp" {
				dev = f.world.Node.Pod("z/a").HostDevice
			}
			// The node believes routers, as it may on its uplink.
			if err := f.world.Node.NS.Sysctl("net/ipv6/conf/"+dev+"/accept_ra", "2"); err != nil {
				t.Fatal(err)
			}
			f.try(rows, g.topology, g.dataplane)
			f.stop(syscall.SIGTERM)
			f.recorded()
		})
	}
}

// A pod sends the node's tunnels packets as another node does. One tunnel is there when
// the daemon starts, one is made later.
func TestTunnelsFromPods(t *testing.T) {
	for _, g := range grounds {
		t.Run(g.topology+"/"+g.dataplane, func(t *testing.T) {
			f := newFieldRig(t, g.topology, g.dataplane)
			f.freeSources()
			f.tunnel(0)
			f.tunnel(1)
			time.Sleep(100 * time.Millisecond)
			f.try(adversary.Tunnels(), g.topology, g.dataplane)
			f.stop(syscall.SIGTERM)
			f.recorded()
		})
	}
}

// tunnel makes one of the node's tunnels.
func (f *fieldRig) tunnel(i int) {
	f.t.Helper()
	ns := f.world.Node.NS
	name := fmt.Sprint("vxlan", i)
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr = name, adversary.VXLANMAC
	if err := ns.Handle().LinkAdd(&netlink.Vxlan{
		LinkAttrs: attrs, VxlanId: adversary.VXLANID, Port: int(adversary.VXLANPorts[i]), SrcAddr: f.Node.Addr4.AsSlice(),
	}); err != nil {
		f.t.Fatal(err)
	}
	if err := ns.Sysctl("net/ipv4/conf/"+name+"/rp_filter", "0"); err != nil {
		f.t.Fatal(err)
	}
	if err := ns.Up(name); err != nil {
		f.t.Fatal(err)
	}
	if i > 0 {
		return // packets of any source come out of it
	}
	for _, p := range adversary.VXLANNets {
		if err := ns.Addr(name, p); err != nil {
			f.t.Fatal(err)
		}
	}
}

// What a pod sent and nobody let through is in the audit log, packet by packet: as a
// record of its own, as part of a count, or as lost. Another pod's few packets are not
// lost among them.
func TestDropsAreRecordedByPod(t *testing.T) {
	for _, g := range grounds {
		t.Run(g.topology+"/"+g.dataplane, func(t *testing.T) {
			f := newFieldRig(t, g.topology, g.dataplane)
			f.freeSources()
			const many, few = 3000, 9
			quiet := adversary.OpenWire(t, f.world.Host("z/b").NS, f.gateway("z/b", g.topology))
			e := adversary.Ends{Src: f.Attacker.Addr4, Dst: f.Server.Addr4}
			for i := range many {
				f.Attacker.Wire.IP(e.Packet(6, e.TCP(uint16(1024+i), 80, "SF", "bad flags")))
				if i%50 == 0 { // the queues are finite
					time.Sleep(2 * time.Millisecond)
				}
			}
			z := adversary.Ends{Src: f.world.Host("z/b").Addr4, Dst: f.Server.Addr4}
			for i := range few {
				quiet.IP(z.Packet(6, z.TCP(uint16(1024+i), 80, "SF", "bad flags")))
			}
			forged := adversary.Ends{Src: netip.MustParseAddr("203.0.113.9"), Dst: f.Server.Addr4}
			for i := range 50 {
				f.Attacker.Wire.IP(forged.Packet(17, forged.UDP(uint16(1024+i), 80, "forged")))
			}
			for _, c := range f.conns {
				if !alive(c) {
					t.Errorf("%s: a connection of others ended", c.LocalAddr())
				}
			}
			time.Sleep(50 * time.Millisecond)
			f.stop(syscall.SIGTERM)
			log, err := os.ReadFile(f.conf.Audit.File)
			if err != nil {
				t.Fatal(err)
			}
			got := map[string]uint64{}
			for line := range bytes.Lines(log) {
				var r struct {
					Reason string
					Source struct{ Namespace, Pod string }
					Count  uint64
				}
				if err := json.Unmarshal(line, &r); err != nil {
					t.Fatal(err)
				}
				got[r.Reason+" "+r.Source.Namespace+"/"+r.Source.Pod] += max(r.Count, 1)
			}
			if n := got["bad-tcp-flags z/a"]; n != many {
				t.Errorf("%d of z/a's %d malformed packets in the log", n, many)
			}
			if n := got["bad-tcp-flags z/b"]; n != few {
				t.Errorf("%d of z/b's %d malformed packets in the log", n, few)
			}
			// The rules of nfqueue count what they drop as forged, and do not say whose it was.
			if n := got["forged z/a"]; n != 50 && g.dataplane != "nfqueue" {
				t.Errorf("%d of z/a's 50 forged packets in the log: %v", n, got)
			}
		})
	}
}
