package nfqueue

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"testing"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/dataplane/nstest"
	"github.com/tierwall/tierwall/dataplane/nstest/netlab"
)

// A Service as the rules of kube-proxy make it: 10.96.0.10:80 and node port 30080
// to a backend pod, both TCP and UDP.
const (
	servicePort = 80
	nodePort    = 30080
)

var clusterIP = netip.MustParseAddr("10.96.0.10")

// proxyRules are the rules of kube-proxy in the two modes that use them, reduced
// to one Service with one endpoint; %[1]s is the endpoint, %[2]d its port. The
// hooks, priorities and marks are kube-proxy's. local is external traffic policy
// Local: no masquerade of what comes in by the node port.
func proxyRules(mode string, backend netip.Addr, port uint16, local bool) (program []string, rules string) {
	masq := "ip saddr != 10.244.0.0/16 "
	if mode == "nftables" {
		external := "mark set mark or 0x4000"
		if local {
			external = "counter"
		}
		return []string{"nft", "-f", "-"}, fmt.Sprintf(`
table ip kube-proxy {
	chain endpoint {
		ip saddr %[1]s mark set mark or 0x4000
		meta l4proto tcp dnat to %[1]s:%[2]d
		meta l4proto udp dnat to %[1]s:%[2]d
	}
	chain services {
		ip daddr 10.96.0.10 meta l4proto { tcp, udp } th dport 80 %[3]s mark set mark or 0x4000
		ip daddr 10.96.0.10 meta l4proto { tcp, udp } th dport 80 goto endpoint
		fib daddr type local meta l4proto { tcp, udp } th dport 30080 %[4]s
		fib daddr type local meta l4proto { tcp, udp } th dport 30080 goto endpoint
	}
	chain nat-prerouting { type nat hook prerouting priority dstnat; jump services; }
	chain nat-output { type nat hook output priority -100; jump services; }
	chain nat-postrouting {
		type nat hook postrouting priority srcnat;
		mark and 0x4000 == 0 return
		mark set mark xor 0x4000
		masquerade fully-random
	}
}`, backend, port, masq, external)
	}
	external := "-j KUBE-MARK-MASQ"
	if local {
		external = ""
	}
	rules = "*nat\n:KUBE-SERVICES - [0:0]\n:KUBE-MARK-MASQ - [0:0]\n:KUBE-POSTROUTING - [0:0]\n:KUBE-SEP - [0:0]\n" +
		"-A PREROUTING -j KUBE-SERVICES\n-A OUTPUT -j KUBE-SERVICES\n-A POSTROUTING -j KUBE-POSTROUTING\n" +
		"-A KUBE-MARK-MASQ -j MARK --or-mark 0x4000\n" +
		"-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN\n-A KUBE-POSTROUTING -j MARK --xor-mark 0x4000\n-A KUBE-POSTROUTING -j MASQUERADE --random-fully\n" +
		fmt.Sprintf("-A KUBE-SEP -s %s/32 -j KUBE-MARK-MASQ\n", backend)
	for _, proto := range networks {
		rules += fmt.Sprintf("-A KUBE-SERVICES ! -s 10.244.0.0/16 -d 10.96.0.10/32 -p %s --dport 80 -j KUBE-MARK-MASQ\n", proto) +
			fmt.Sprintf("-A KUBE-SERVICES -d 10.96.0.10/32 -p %s --dport 80 -j KUBE-SEP\n", proto) +
			fmt.Sprintf("-A KUBE-SERVICES -m addrtype --dst-type LOCAL -p %s --dport 30080 %s\n", proto, external) +
			fmt.Sprintf("-A KUBE-SERVICES -m addrtype --dst-type LOCAL -p %s --dport 30080 -j KUBE-SEP\n", proto) +
			fmt.Sprintf("-A KUBE-SEP -p %s -j DNAT --to-destination %s:%d\n", proto, backend, port)
	}
	return []string{"iptables-nft-restore"}, rules + "COMMIT\n"
}

// proxy installs the rules in the node's namespace.
func (w *world) proxy(t *testing.T, mode string, backend netip.Addr, port uint16, local bool) {
	t.Helper()
	program, rules := proxyRules(mode, backend, port, local)
	nstest.Need(t, func() error { _, err := exec.LookPath(program[0]); return err },
		func() error { _, err := exec.LookPath("nsenter"); return err })
	cmd := exec.Command("nsenter", append([]string{"--net=" + w.NS.Path()}, program...)...)
	cmd.Stdin = bytes.NewBufferString(rules)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", program, err, out)
	}
}

// judged returns what was asked about a connection, and forgets all else: cut
// connections of earlier tests may still try.
func (w *world) judged(c net.Conn) (mine []question) {
	for _, q := range w.judge.take() {
		if q.key.SrcPort == localPort(c) {
			mine = append(mine, q)
		}
	}
	return mine
}

func localPort(c net.Conn) uint16 {
	return netip.MustParseAddrPort(c.LocalAddr().String()).Port()
}

// What goes to a Service is judged with the backend as its destination and the
// client as its source, on every way in, in both modes of kube-proxy; once per
// connection; and a policy on the backend's port holds.
func TestServices(t *testing.T) {
	for _, mode := range []string{"nftables", "iptables"} {
		for _, local := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, external traffic policy local %v", mode, local), func(t *testing.T) {
				w := newWorld(t, Config{Queues: 2}, toPort(portGood))
				w.proxy(t, mode, w.b.Addr4, portGood, local)
				// The node asks for a route before its packets meet the proxy.
				if err := w.NS.AddRoute(netlab.Route{Via: w.Outside4, Dev: netlab.Uplink}); err != nil {
					t.Fatal(err)
				}
				for _, network := range networks {
					nstest.Echo(t, w.b.NS, network, w.b.Addr4, portGood)
					for _, path := range []struct {
						name string
						from *netlab.NS
						src  netip.Addr
						to   netip.AddrPort
					}{
						{"pod to Service", w.a.NS, w.a.Addr4, at(clusterIP, servicePort)},
						{"pod to its own Service", w.b.NS, w.b.Addr4, at(clusterIP, servicePort)},
						{"outside to node port", w.Outside, w.Outside4, at(w.Addr4, nodePort)},
						{"pod to node port", w.a.NS, w.a.Addr4, at(w.Addr4, nodePort)},
					} {
						c := dial(t, path.from, network, path.to)
						for range 3 {
							alive(t, c, path.name+" over "+network)
						}
						want := key(network, path.src, w.b.Addr4, portGood)
						if got := w.judged(c); len(got) != 1 || anyPort(got[0].key) != want || got[0].reply {
							t.Errorf("%s over %s: judged %+v, want once %s", path.name, network, got, want)
						}

						// The update finds the connection by the same key.
						w.judge.policy(func(k flow.Key) bool { return k.SrcPort != localPort(c) })
						if cut := w.update(t); cut != 1 {
							t.Errorf("%s over %s: Update cut %d connections, want 1", path.name, network, cut)
						}
						dead(t, c, path.name+" after the update")
						w.judge.policy(toPort(portGood))
						c.Close()
					}
					// The node's own use of a Service is nobody's policy.
					nstest.Reach(t, w.NS, network, at(clusterIP, servicePort))
					for _, q := range w.judge.take() {
						if q.key.Src.Netip() == w.Addr4 {
							t.Errorf("node to Service over %s: judged %+v", network, q)
						}
					}
				}
			})
		}
		t.Run(mode+" denied", func(t *testing.T) {
			w := newWorld(t, Config{Queues: 1}, toPort(portGood))
			w.proxy(t, mode, w.b.Addr4, portBad, true)
			for _, network := range networks {
				s := nstest.Echo(t, w.b.NS, network, w.b.Addr4, portBad)
				nstest.Unreachable(t, w.a.NS, network, at(clusterIP, servicePort))
				nstest.Unreachable(t, w.Outside, network, at(w.Addr4, nodePort))
				if s.Seen() != 0 {
					t.Errorf("the backend saw %d denied %s connections", s.Seen(), network)
				}
			}
		})
	}
}
