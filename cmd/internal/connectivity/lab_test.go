package connectivity

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/tierwall/tierwall/cmd/internal/agent"
	"github.com/tierwall/tierwall/dataplane/nstest"
	"github.com/tierwall/tierwall/dataplane/nstest/netlab"
)

const nodeName = "connectivity-node"

// The pods' networks; the first address of each is the gateway's, the node's own.
var (
	podNet4 = netip.MustParsePrefix("10.244.1.0/24")
	podNet6 = netip.MustParsePrefix("fd00:244:1::/64")
)

// party is somebody who opens or accepts connections.
type party struct {
	name string
	slot int // of a local pod; -1 outside
	ns   *netlab.NS
	tap  *tap
	// Zero where it has none.
	v4, v6    netip.Addr
	serviceID int // of a pod; 0 = it has no Service
}

func (p *party) addr(family int) netip.Addr {
	if family == 6 {
		return p.v6
	}
	return p.v4
}

// service returns the ClusterIP of a pod's Service.
func (p *party) service(family int) netip.Addr {
	if p.serviceID == 0 || !p.addr(family).IsValid() {
		return netip.Addr{}
	}
	if family == 6 {
		a := netip.MustParseAddr("fd00:96::").As16()
		a[15] = byte(p.serviceID)
		return netip.AddrFrom16(a)
	}
	return netip.AddrFrom4([4]byte{10, 96, 0, byte(p.serviceID)})
}

// Where the numbers of Services begin: of this node's pods, by slot, and of others'.
// Samples have Services of their own with lower ones.
const firstService, firstFarService = 100, 200

// lab is a node with pods and a daemon.
type lab struct {
	node    *netlab.Node
	pods    []*party // the last one is the marker's
	outside *tap
	daemon  *daemon
	t       *testing.T // of the lab, which outlives its samples' tests
	dir     string     // manifests

	mu      sync.Mutex
	servers map[string]bool // that run, see serve
	have    map[netip.Addr]bool
	port    uint16 // the next source port
}

// Topologies: how pods are connected to the node.
const (
	ptp    = "ptp"    // a veth each, routed
	bridge = "bridge" // ports of a bridge
)

func newLab(t *testing.T, topology, dataplane string, pods int) *lab {
	t.Helper()
	nstest.Need(t)
	l := &lab{t: t, servers: map[string]bool{}, have: map[netip.Addr]bool{}, port: firstSource}
	c := netlab.NodeConfig{
		Name:  nodeName,
		Node4: netip.MustParseAddr("172.20.0.1"), Outside4: netip.MustParseAddr("172.20.0.10"),
		Node6: netip.MustParseAddr("fd00:172:20::1"), Outside6: netip.MustParseAddr("fd00:172:20::10"),
		Gateway4: netip.PrefixFrom(podNet4.Addr().Next(), podNet4.Bits()),
		Gateway6: netip.PrefixFrom(podNet6.Addr().Next(), podNet6.Bits()),
	}
	if topology == bridge {
		c.Bridge = "cni0"
	}
	var err error
	if l.node, err = netlab.NewNode(c); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.node.Close(); err != nil {
			t.Error(err)
		}
	})
	l.have[c.Outside4], l.have[c.Outside6] = true, true
	l.outside = newTap(t, l.node.Outside)
	fatal(t, l.node.NS.AddRoute(netlab.Route{Via: c.Outside4, Dev: netlab.Uplink}))
	fatal(t, l.node.NS.AddRoute(netlab.Route{Via: c.Outside6, Dev: netlab.Uplink}))
	if topology == bridge {
		// As Kubernetes asks for; what bridge-nf-call-* name is per namespace.
		for _, f := range []string{"iptables", "ip6tables"} {
			nstest.Need(t, func() error { return l.node.NS.Sysctl("net/bridge/bridge-nf-call-"+f, "1") })
		}
	}
	for i := range pods + 1 {
		last := byte(i + 2)
		p := &party{slot: i, serviceID: firstService + i}
		a4, a6 := podNet4.Addr().As4(), podNet6.Addr().As16()
		a4[3], a6[15] = last, last
		p.v4, p.v6 = netip.AddrFrom4(a4), netip.AddrFrom16(a6)
		pod, err := l.node.AddPod(fmt.Sprint("slot-", i), p.v4, p.v6)
		if err != nil {
			t.Fatal(err)
		}
		p.ns, p.tap = pod.NS, newTap(t, pod.NS)
		l.pods = append(l.pods, p)
		l.serve(protoSCTP, p.ns, p.v4, 0)
		l.serve(protoSCTP, p.ns, p.v6, 0)
	}
	l.serve(protoSCTP, l.node.Outside, c.Outside4, 0)
	l.serve(protoSCTP, l.node.Outside, c.Outside6, 0)

	l.dir = t.TempDir()
	conf := agent.Default()
	conf.Node, conf.Manifests, conf.Dataplane = nodeName, agent.Paths{l.dir}, dataplane
	conf.AFXDP.PinPath = nstest.BPFFS(t)
	conf.AFXDP.UpcallRate = -1 // the suite is a flood
	conf.Metrics.Address = ""
	state := t.TempDir()
	conf.Audit.File, conf.Audit.All = filepath.Join(state, "audit.log"), true
	conf.Audit.MaxSizeMiB = 0
	l.write(t, "apiVersion: v1\nkind: Node\nmetadata: {name: "+nodeName+"}\nspec: {podCIDRs: ["+podNet4.String()+", \""+podNet6.String()+"\"]}\n")
	l.daemon = startDaemon(t, l.node.NS, conf, state)
	return l
}

// write replaces the manifests in one step.
func (l *lab) write(t *testing.T, text string) {
	t.Helper()
	tmp := filepath.Join(l.dir, ".next")
	fatal(t, os.WriteFile(tmp, []byte(text), 0o600))
	fatal(t, os.Rename(tmp, filepath.Join(l.dir, "sample.yaml")))
}

// far makes the host outside have addresses, which stand for other nodes, their
// pods and machines beyond.
func (l *lab) far(t *testing.T, name string, addrs []netip.Addr) *party {
	t.Helper()
	p := &party{name: name, slot: -1, ns: l.node.Outside, tap: l.outside}
	for _, a := range addrs {
		if !l.have[a] {
			l.have[a] = true
			fatal(t, l.node.Outside.Addr("lo", netip.PrefixFrom(a, a.BitLen())))
			l.serve(protoSCTP, l.node.Outside, a, 0)
		}
		if a.Is4() {
			p.v4 = a
		} else {
			p.v6 = a
		}
	}
	return p
}

// serve starts a server that ends with the lab, unless it runs. SCTP's serves
// every port.
func (l *lab) serve(proto byte, ns *netlab.NS, at netip.Addr, port uint16) {
	l.t.Helper()
	key := fmt.Sprint(proto, at, port)
	if l.servers[key] {
		return
	}
	l.servers[key] = true
	if proto != protoSCTP {
		nstest.Echo(l.t, ns, networkOf(proto), at, port)
		return
	}
	c, err := rawSocket(ns, protoSCTP, at)
	if err != nil {
		l.t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		serveSCTP(c)
	}()
	l.t.Cleanup(func() {
		c.Close()
		<-done
	})
}

// Source ports of attempts. Nothing else uses them: they are above the ports that
// samples name and below nothing.
const firstSource = 33000

// forgetConnections makes the node's conntrack forget what it knows. A connection
// that was denied behind conntrack may be in its table for minutes, and takes its
// source port away from another one: the tap would not know that one again.
func (l *lab) forgetConnections(t *testing.T) {
	t.Helper()
	fatal(t, l.node.NS.Do(func() error { return netlink.ConntrackTableFlush(netlink.ConntrackTable) }))
}

// source returns a source port that no attempt of late has had.
func (l *lab) source() uint16 {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.port++
	if l.port == 0 {
		l.port = firstSource
	}
	return l.port
}

func networkOf(proto byte) string {
	if proto == 6 {
		return "tcp"
	}
	return "udp"
}

func fatal(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
