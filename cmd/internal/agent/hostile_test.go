package agent

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tierwall/tierwall/cmd/internal/world"
	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/nstest"
	"github.com/tierwall/tierwall/dataplane/nstest/adversary"
	"github.com/tierwall/tierwall/dataplane/nstest/netlab"
)

// hostileRig is a world of the given shape.
func hostileRig(t *testing.T, dp, topology string) *rig {
	if topology == "ptp" {
		return newRig(t, dp)
	}
	nstest.Need(t)
	c := netlab.NodeConfig{
		Name: world.NodeName, Bridge: "cni0", Node4: netip.MustParseAddr("192.0.2.1"), Outside4: netip.MustParseAddr("192.0.2.10"),
		Gateway4: netip.MustParsePrefix("10.244.7.1/24"), Gateway6: netip.MustParsePrefix("fd00:244:7::1/64"),
	}
	node, err := netlab.NewNode(c)
	if err != nil {
		t.Fatal(err)
	}
	w := &world.World{Node: node}
	for _, h := range world.Plan() {
		if h.Name == world.OutsideName {
			h.NS = node.Outside
		} else {
			p, err := node.AddPod(h.Name, h.Addr4, h.Addr6)
			if err != nil {
				t.Fatal(err)
			}
			h.NS = p.NS
		}
		w.Hosts = append(w.Hosts, h)
		for _, n := range world.Networks {
			for _, f := range []int{4, 6} {
				nstest.Echo(t, h.NS, n, h.Addr(f), 80)
			}
		}
	}
	t.Cleanup(func() { w.Close() })
	return rigOf(t, w, dp)
}

// nextHop is the link-layer address from sends to, to reach to.
func (r *rig) nextHop(from, to, topology string) net.HardwareAddr {
	r.t.Helper()
	ns, dev := r.world.Host(to).NS, netlab.PodDevice
	if topology == "ptp" {
		ns, dev = r.world.Node.NS, r.world.Node.Pod(from).HostDevice
	}
	mac, err := ns.MAC(dev)
	if err != nil {
		r.t.Fatal(err)
	}
	return mac
}

// stats reads what the daemon wrote at its end.
func (r *rig) stats() (s Stats) {
	r.t.Helper()
	b, err := os.ReadFile(filepath.Join(r.state, "stats.json"))
	if err != nil {
		r.t.Fatal(err)
	}
	if err := json.Unmarshal(b, &s); err != nil {
		r.t.Fatal(err)
	}
	return s
}

const onlyXWeb = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: from-x, namespace: y}
spec:
  podSelector: {matchLabels: {pod: b}}
  ingress:
  - from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: x}}}]
    ports: [{protocol: UDP, port: 80},{protocol: TCP, port: 80}]
`

// TestHostile sends what a pod can put on its wire to a pod and a port that policy
// denies it, some thousand frames: none may arrive, and the daemon is none the worse.
func TestHostile(t *testing.T) {
	for _, c := range []struct{ topology, dataplane string }{
		// On a bridge nfqueue sees no frames with tags (docs/compatibility.md).
		{"ptp", "nfqueue"}, {"ptp", "afxdp"}, {"ptp", "auto"}, {"bridge", "afxdp"}, {"bridge", "auto"},
	} {
		t.Run(c.topology+"/"+c.dataplane, func(t *testing.T) {
			r := hostileRig(t, c.dataplane, c.topology)
			r.conf.AFXDP.UpcallRate = -1
			r.write("policy.yaml", onlyXWeb)
			r.start()
			victim := r.world.Host("y/b")
			heard := adversary.OpenWire(t, victim.NS, nil)
			sent := 0
			for _, from := range []string{"z/a", "x/a"} {
				h := r.world.Host(from)
				w := adversary.OpenWire(t, h.NS, r.nextHop(from, "y/b", c.topology))
				for _, family := range []int{4, 6} {
					e := adversary.Ends{Src: h.Addr(family), Dst: victim.Addr(family)}
					for _, s := range adversary.Corpus(w, e, 80, 999) {
						for _, f := range s.Frames {
							_ = w.Frame(f) // some are too short for the kernel
							sent++
						}
					}
					for _, typ := range []string{"tcp", "udp"} { // marks the end of what was sent before
						if !r.reaches(typ, "x/a", "y/b", family) {
							t.Errorf("x/a > y/b %s IPv%d does not pass behind all that", typ, family)
						}
					}
					time.Sleep(20 * time.Millisecond)
					for _, b := range heard.Take() {
						if bytes.Contains(b, []byte(adversary.Evil)) {
							t.Errorf("%s > y/b IPv%d: arrived %x", from, family, b)
						}
					}
				}
			}
			r.stop(syscall.SIGTERM)
			s := r.stats()
			if s.Paths["drop/problem"] == 0 || s.Paths["drop/policy"] == 0 || s.Paths["drop/related"] == 0 || s.Paths["drop/unsolicited"] == 0 {
				t.Errorf("of %d frames: %+v", sent, s)
			}
			var up, paths uint64
			for fate, n := range s.Kernel {
				if strings.HasSuffix(fate, " "+dataplane.FateUpcall.String()) {
					up += n
				}
			}
			for _, n := range s.Paths {
				paths += n
			}
			if up != s.Upcalls+s.Overflow || paths != s.Upcalls {
				t.Errorf("the kernel sent %d packets up; %d came, %d were lost, %d took a path", up, s.Upcalls, s.Overflow, paths)
			}
			log, err := os.ReadFile(r.conf.Audit.File)
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range []string{`"reason":"bad-tcp-flags"`, `"reason":"bad-port"`, `"reason":"unsolicited-reply"`} {
				if !bytes.Contains(log, []byte(want)) {
					t.Errorf("no %s in the audit log", want)
				}
			}
		})
	}
}

// TestForgedSources sends from addresses that the sender cannot have, from a pod and
// from outside, with reverse path filtering off: policy goes by addresses, so none
// may arrive, whatever policy says of who has them.
func TestForgedSources(t *testing.T) {
	for _, dp := range dataplanes {
		t.Run(dp, func(t *testing.T) {
			r := newRig(t, dp)
			n := r.world.Node
			for _, dev := range []string{"all", "default", netlab.Uplink, n.Pod("z/a").HostDevice} {
				if err := n.NS.Sysctl("net/ipv4/conf/"+dev+"/rp_filter", "0"); err != nil {
					t.Fatal(err)
				}
			}
			r.write("policy.yaml", allowFromX)
			r.start()
			x, victim := r.world.Host("x/a"), r.world.Host("y/b")
			heard := adversary.OpenWire(t, victim.NS, nil)
			uplink, err := n.NS.MAC(netlab.Uplink)
			if err != nil {
				t.Fatal(err)
			}
			sent := map[string]string{} // by mark
			for from, w := range map[string]*adversary.Wire{
				"z/a": adversary.OpenWire(t, r.world.Host("z/a").NS, r.nextHop("z/a", "y/b", "ptp")), "outside": adversary.OpenWire(t, n.Outside, uplink),
			} {
				for name, src := range map[string][2]netip.Addr{
					"x/a": {x.Addr4, x.Addr6}, "the node": {n.Addr4, n.Addr6}, "the gateway": {n.Gateway4.Addr(), n.Gateway6.Addr()}, "y/b": {victim.Addr4, victim.Addr6},
				} {
					for _, e := range []adversary.Ends{{Src: src[0], Dst: victim.Addr4}, {Src: src[1], Dst: victim.Addr6}} {
						mark := fmt.Sprintf("<%d>", len(sent))
						sent[mark] = fmt.Sprintf("%s as %s to %v", from, name, e.Dst)
						port := uint16(20000 + len(sent))
						w.IP(e.Packet(17, e.UDP(port, 80, mark)))
						w.IP(e.Packet(6, e.TCP(port, 80, "S", mark)))
						w.IP(e.Packet(e.ICMPProto(), e.ICMP(map[bool]uint8{true: 8, false: 128}[e.Src.Is4()], 0, uint32(port)<<16, []byte(mark))))
					}
				}
			}
			if !r.reaches("tcp", "x/a", "y/b", 4) || !r.reaches("udp", "x/a", "y/b", 6) {
				t.Error("x/a itself is refused")
			}
			time.Sleep(20 * time.Millisecond)
			for _, b := range heard.Take() {
				for mark, what := range sent {
					if bytes.Contains(b, []byte(mark)) {
						t.Errorf("%s: arrived", what)
					}
				}
			}
			r.stop(syscall.SIGTERM)
			if s := r.stats(); s.KernelDrops == 0 {
				t.Errorf("nothing was counted: %+v", s)
			}
		})
	}
}
