package dataplane

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/dataplane/nstest/netlab"
)

// Ports of the server pod. Policy allows what the clients use; every other port
// is denied.
const (
	portUDP     = 9000 // small datagrams, counted and dropped at the server's device
	portStream  = 9100 // TCP throughput
	portConnect = 9200 // TCP connections: the first of mostCallers ports, one per caller
	portProbe   = 9002 // UDP flows whose permission changes; received by a socket
	portLive    = 9003 // one UDP flow whose permission changes; received by a socket
	portDenied  = 10000
)

// mostCallers is how many threads open connections at the same time.
const mostCallers = 32

const (
	nodeName    = "bench-node"
	clientCount = 8
)

// lab is one node with eight client pods, a server pod and two for special use:
//
//	c0 … c7, bad, odd ──veth── node ──veth── server
//
// Several clients, because NFQUEUE spreads packets over queues by address pair.
type lab struct {
	node    *netlab.Node
	clients []*netlab.Pod
	server  *netlab.Pod
	bad     *netlab.Pod // sends what policy denies
	odd     *netlab.Pod // its labels change
	atSrv   *counter    // UDP that reached the server's device
	atCli   []*counter  // UDP answers that reached a client's device
	senders []*sender   // one per client
	dir     string      // manifests and the daemon's files
	mounted bool        // a BPF file system, on dir/bpf
	ct      *netlink.Handle
	ports   [clientCount]uint16
	closers []func() error
}

func addr4(last byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 244, 0, last}) }

// newLab builds a lab. On error nothing is left.
func newLab() (l *lab, err error) {
	l = &lab{}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.close())
			l = nil
		}
	}()
	if l.dir, err = os.MkdirTemp("", "tierwall-bench-"); err != nil {
		return l, err
	}
	if err := os.Mkdir(l.path("manifests"), 0o755); err != nil {
		return l, err
	}
	// What the daemon pins ends with the lab.
	if err := os.Mkdir(l.path("bpf"), 0o700); err != nil {
		return l, err
	}
	if err := unix.Mount("bpf", l.path("bpf"), "bpf", 0, "mode=0700"); err != nil {
		return l, fmt.Errorf("mount a BPF file system: %w", err)
	}
	l.mounted = true
	if l.node, err = netlab.NewNode(netlab.NodeConfig{Name: nodeName}); err != nil {
		return l, err
	}
	// A handle of its own: one that has no netfilter socket would fall back to
	// the namespace of the calling thread.
	if l.ct, err = netlink.NewHandleAt(netns.NsHandle(l.node.NS.FD()), unix.NETLINK_NETFILTER); err != nil {
		return l, err
	}
	if l.server, err = l.node.AddPod("server", addr4(2), netip.Addr{}); err != nil {
		return l, err
	}
	if l.atSrv, err = newCounter(l.server.NS, offsetDestinationPort, portProbe, portLive); err != nil {
		return l, err
	}
	l.closers = append(l.closers, l.atSrv.close)
	for i := range clientCount {
		p, err := l.node.AddPod(fmt.Sprintf("c%d", i), addr4(byte(10+i)), netip.Addr{})
		if err != nil {
			return l, err
		}
		l.clients = append(l.clients, p)
		c, err := newCounter(p.NS, offsetSourcePort)
		if err != nil {
			return l, err
		}
		l.closers = append(l.closers, c.close)
		l.atCli = append(l.atCli, c)
		s, err := newSender(p.NS, p.Addr4, l.server.Addr4)
		if err != nil {
			return l, err
		}
		l.closers = append(l.closers, s.close)
		l.senders = append(l.senders, s)
	}
	if l.bad, err = l.node.AddPod("bad", addr4(100), netip.Addr{}); err != nil {
		return l, err
	}
	if l.odd, err = l.node.AddPod("odd", addr4(101), netip.Addr{}); err != nil {
		return l, err
	}
	return l, errors.Join(l.write("world.yaml", l.world("client")), l.write("policy.yaml", policy(portUDP)))
}

func (l *lab) path(name string) string { return filepath.Join(l.dir, name) }

func (l *lab) close() error {
	var errs []error
	for _, c := range l.closers {
		errs = append(errs, c())
	}
	l.closers = nil
	if l.ct != nil {
		l.ct.Close()
	}
	if l.node != nil {
		errs = append(errs, l.node.Close())
	}
	if l.mounted {
		errs = append(errs, unix.Unmount(l.path("bpf"), unix.MNT_DETACH))
	}
	if l.dir != "" {
		errs = append(errs, os.RemoveAll(l.dir))
	}
	return errors.Join(errs...)
}

// forget empties the node's connection table, so that one measurement does not
// fill it for the next. A kernel that tracks nothing has none.
func (l *lab) forget() error {
	err := l.ct.ConntrackTableFlush(netlink.ConntrackTable)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil
	}
	return err
}

// write replaces a manifest in one step, as the daemon's manual asks.
func (l *lab) write(name, text string) error {
	tmp := l.path("." + name)
	if err := os.WriteFile(tmp, []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, filepath.Join(l.path("manifests"), name))
}

// world describes node and pods. role is the label of pod odd.
func (l *lab) world(role string) string {
	var b strings.Builder
	fmt.Fprintf(&b, `apiVersion: v1
kind: Node
metadata: {name: %s}
spec: {podCIDRs: [10.244.0.0/24]}
status: {addresses: [{type: InternalIP, address: %s}]}
---
apiVersion: v1
kind: Namespace
metadata: {name: bench, labels: {name: bench}}
`, nodeName, l.node.Addr4)
	pod := func(p *netlab.Pod, role string) {
		fmt.Fprintf(&b, `---
apiVersion: v1
kind: Pod
metadata: {namespace: bench, name: %s, uid: bench-%s, labels: {role: %s}}
spec: {nodeName: %s, containers: [{name: main, image: bench}]}
status: {phase: Running, podIP: %s, podIPs: [{ip: %s}]}
`, p.Name, p.Name, role, nodeName, p.Addr4, p.Addr4)
	}
	pod(l.server, "server")
	for _, p := range l.clients {
		pod(p, "client")
	}
	pod(l.bad, "client")
	pod(l.odd, role)
	return b.String()
}

// policy isolates both ends: a packet from pod to pod is judged twice, once for
// its source and once for its destination. The server accepts UDP ports udp and
// the TCP ports of the benchmark from clients; clients may send to the server.
func policy(udp ...int) string {
	var b strings.Builder
	b.WriteString(`apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {namespace: bench, name: client}
spec:
  podSelector: {matchLabels: {role: client}}
  policyTypes: [Egress]
  egress: [{to: [{podSelector: {matchLabels: {role: server}}}]}]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {namespace: bench, name: server}
spec:
  podSelector: {matchLabels: {role: server}}
  policyTypes: [Ingress]
  ingress:
  - from: [{podSelector: {matchLabels: {role: client}}}]
    ports:
`)
	for _, p := range udp {
		fmt.Fprintf(&b, "    - {protocol: UDP, port: %d}\n", p)
	}
	fmt.Fprintf(&b, "    - {protocol: TCP, port: %d}\n", portStream)
	fmt.Fprintf(&b, "    - {protocol: TCP, port: %d, endPort: %d}\n", portConnect, portConnect+mostCallers-1)
	return b.String()
}

// macs returns the hardware addresses of a pod's device and of the node's end.
func macs(ns *netlab.NS, gateway netip.Addr) (own, node net.HardwareAddr, err error) {
	link, err := ns.Link(netlab.PodDevice)
	if err != nil {
		return nil, nil, err
	}
	neighbours, err := ns.Handle().NeighList(link.Attrs().Index, unix.AF_INET)
	if err != nil {
		return nil, nil, err
	}
	for _, n := range neighbours {
		if a, ok := netip.AddrFromSlice(n.IP); ok && a.Unmap() == gateway {
			return link.Attrs().HardwareAddr, n.HardwareAddr, nil
		}
	}
	return nil, nil, fmt.Errorf("pod %s does not know its gateway %s", ns.Name(), gateway)
}
