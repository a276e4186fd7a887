package audit

import (
	"bufio"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/audit"
	"github.com/tierwall/tierwall/dataplane/packet"
)

// scene is a node with pods and policies, compiled twice: with logging asked for
// by every rule, and by none.
//
// 200 pods "shop/web-n" accept TCP 80 from the pods of "front", which an admin
// policy passes on to the developers' one ("Pass", logged as well: two records
// for a connection); everything else is denied by isolation, one record.
type scene struct {
	audited, quiet *classifier.Table
	clients, pods  []netip.Addr
}

const (
	webPods   = 200
	frontPods = 500
	webPort   = 80
)

func newScene() (*scene, error) {
	s := &scene{}
	world := &rule.World{Node: "node-1", Nodes: []rule.Node{
		{Name: "node-1", Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}},
		{Name: "node-2", Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.2")}, PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.2.0.0/16")}},
	}}
	pod := func(ns, name, node string, ip netip.Addr) {
		world.Endpoints = append(world.Endpoints, rule.Endpoint{
			Namespace: ns, Name: name, Node: node, Addrs: []netip.Addr{ip},
			Labels:          map[string]string{"app": ns, "pod-template-hash": "5d4f8c7b9"},
			NamespaceLabels: map[string]string{"kubernetes.io/metadata.name": ns},
		})
	}
	for i := range webPods {
		ip := netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})
		s.pods = append(s.pods, ip)
		pod("shop", fmt.Sprintf("web-5d4f8c7b9-%05d", i), "node-1", ip)
	}
	for i := range frontPods {
		ip := netip.AddrFrom4([4]byte{10, 2, byte(i >> 8), byte(i)})
		s.clients = append(s.clients, ip)
		pod("front", fmt.Sprintf("proxy-7c6d9f8b4-%05d", i), "node-2", ip)
	}
	for i, t := range []**classifier.Table{&s.audited, &s.quiet} {
		var err error
		if *t, _, err = classifier.Compile(policies(i == 0), world, classifier.Options{Generation: 1}); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func policies(logged bool) rule.Set {
	web := rule.Selector{Namespace: "shop"}
	np := rule.Origin{Group: "networking.k8s.io", Kind: "NetworkPolicy", Namespace: "shop", Name: "web-from-front", Generation: 3, Word: "Allow"}
	isolation := np
	isolation.Index, isolation.Word = -1, ""
	return rule.Set{
		Rules: []rule.Rule{
			{
				Direction: flow.Ingress, Action: rule.Skip, Skip: rule.Bands(rule.BandAntreaUpper, rule.BandAdmin), Audit: logged,
				Order:   rule.Order{Band: rule.BandAdmin, Priority: 10, Name: "tenants"},
				Subject: web, Peers: []rule.Peer{{Kind: rule.PeerPods, Pods: rule.Selector{Namespace: "front"}}}, L4: []rule.L4{rule.AnyL4},
				Origin: rule.Origin{Group: "policy.networking.k8s.io", Kind: "AdminNetworkPolicy", Name: "tenants", Rule: "front-may-ask", Word: "Pass", Generation: 1},
			},
			{
				Direction: flow.Ingress, Action: rule.Allow, Audit: logged, Order: rule.Order{Band: rule.BandNetworkPolicy, Name: np.Name},
				Subject: web, Peers: []rule.Peer{{Kind: rule.PeerPods, Pods: rule.Selector{Namespace: "front"}}},
				L4:     []rule.L4{{Proto: flow.TCP, Ports: rule.PortRange{First: webPort, Last: webPort}, SrcPorts: rule.AllPorts}},
				Origin: np,
			},
		},
		Isolations: []rule.Isolation{{Direction: flow.Ingress, Band: rule.BandNetworkPolicy, Subject: web, Audit: logged, Origin: isolation}},
	}
}

// source feeds a writer from one ring.
type source struct {
	ring  *dataplane.Ring
	table *classifier.Table
}

func (s source) Rings() []*dataplane.Ring { return []*dataplane.Ring{s.ring} }
func (s source) BackendNames() []string   { return []string{"nfqueue"} }
func (s source) Resolver(generation uint64) audit.Resolver {
	if generation != s.table.Generation() {
		return nil
	}
	return s.table
}

// maker makes events as a worker does, of decisions the table makes.
type maker struct {
	key      flow.Key
	decision classifier.Decision
	event    dataplane.Event
	n        uint64
	s        *scene
}

// next returns the next event of a mix: of ten new connections nine are
// allowed, one is denied and never asked for again.
func (m *maker) next(now int64) *dataplane.Event {
	m.n++
	src, dst := m.s.clients[m.n%frontPods], m.s.pods[m.n/7%webPods]
	port := uint16(webPort)
	if m.n%10 == 0 {
		port = 1024 + uint16(m.n/10)
	}
	m.key = flow.MakeKey(flow.TCP, netip.AddrPortFrom(src, 32768+uint16(m.n%28000)), netip.AddrPortFrom(dst, port))
	m.decision = m.s.audited.Lookup(m.key)
	m.event = dataplane.Event{
		Time: now, Generation: 1, Count: 1, Key: m.key, Verdict: m.decision.Verdict, Egress: m.decision.Egress, Ingress: m.decision.Ingress,
		Device: 7, Length: 60, TCPFlags: packet.SYN,
	}
	if m.event.Verdict == classifier.Allow {
		m.event.Conn = 1<<48 | m.n
	}
	return &m.event
}

// machine is where the figures come from.
type machine struct {
	Kernel string `json:"kernel"`
	CPU    string `json:"cpu"`
	CPUs   int    `json:"cpus"`
	Go     string `json:"go"`
	FS     string `json:"fileSystem"`
	// Load is the load average when the run began: above zero, somebody else
	// used the machine, and figures of time are worse than the machine's own.
	Load string    `json:"load"`
	Date time.Time `json:"date"`
}

func (m machine) String() string {
	return fmt.Sprintf("%s, %d × %s, %s, log files on %s, load %s, %s", m.Kernel, m.CPUs, m.CPU, m.Go, m.FS, m.Load, m.Date.Format(time.DateOnly))
}

func thisMachine(dir string) machine {
	m := machine{CPUs: runtime.NumCPU(), Go: runtime.Version(), Date: time.Now().UTC().Truncate(time.Second), Kernel: "unknown", CPU: "unknown", FS: "unknown"}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		m.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	var fs unix.Statfs_t
	if unix.Statfs(dir, &fs) == nil {
		m.FS = map[int64]string{unix.EXT4_SUPER_MAGIC: "ext4", unix.XFS_SUPER_MAGIC: "xfs", unix.BTRFS_SUPER_MAGIC: "btrfs", unix.TMPFS_MAGIC: "tmpfs", unix.OVERLAYFS_SUPER_MAGIC: "overlay"}[fs.Type]
		if m.FS == "" {
			m.FS = fmt.Sprintf("%#x", fs.Type)
		}
	}
	if b, err := os.ReadFile("/proc/loadavg"); err == nil {
		m.Load, _, _ = strings.Cut(string(b), " ")
	}
	if f, err := os.Open("/proc/cpuinfo"); err == nil {
		defer f.Close()
		for s := bufio.NewScanner(f); s.Scan(); {
			if name, ok := strings.CutPrefix(s.Text(), "model name"); ok {
				m.CPU = strings.TrimSpace(strings.TrimLeft(name, "\t :"))
				break
			}
		}
	}
	return m
}
