package agent

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/tierwall/tierwall/cmd/internal/world"
	"github.com/tierwall/tierwall/dataplane/nstest"
	"github.com/tierwall/tierwall/dataplane/nstest/netlab"
)

// A Service as the rules of kube-proxy's nftables mode make it: a cluster address
// and a node port that lead to y/b port 80.
const (
	servicePort = 8000
	nodePort    = 30080
)

var clusterIP = map[int]netip.Addr{4: netip.MustParseAddr("10.96.0.10"), 6: netip.MustParseAddr("fd00:96::10")}

// proxyRules are reduced to one Service with one endpoint; the hooks, priorities
// and marks are kube-proxy's. %[1]s is ip or ip6, %[2]s the endpoint, %[3]s the
// same in a DNAT expression, %[4]s the Service's address, %[5]d its port, %[6]d
// the node port, %[7]s the pods' network.
const proxyRules = `
table %[1]s kube-proxy {
	chain endpoint {
		%[1]s saddr %[2]s mark set mark or 0x4000
		meta l4proto tcp dnat to %[3]s:80
		meta l4proto udp dnat to %[3]s:80
	}
	chain services {
		%[1]s daddr %[4]s meta l4proto { tcp, udp } th dport %[5]d %[1]s saddr != %[7]s mark set mark or 0x4000
		%[1]s daddr %[4]s meta l4proto { tcp, udp } th dport %[5]d goto endpoint
		fib daddr type local meta l4proto { tcp, udp } th dport %[6]d mark set mark or 0x4000
		fib daddr type local meta l4proto { tcp, udp } th dport %[6]d goto endpoint
	}
	chain nat-prerouting { type nat hook prerouting priority dstnat; jump services; }
	chain nat-output { type nat hook output priority -100; jump services; }
	chain nat-postrouting {
		type nat hook postrouting priority srcnat;
		mark and 0x4000 == 0 return
		mark set mark xor 0x4000
		masquerade fully-random
	}
}
`

const service = `apiVersion: v1
kind: Service
metadata: {name: b, namespace: y}
spec:
  type: NodePort
  clusterIP: 10.96.0.10
  clusterIPs: [10.96.0.10, "fd00:96::10"]
  ipFamilies: [IPv4, IPv6]
  selector: {pod: b}
  ports: [{port: 8000, targetPort: 80, nodePort: 30080}]
`

func (r *rig) proxy() {
	r.t.Helper()
	var rules bytes.Buffer
	for family, table := range map[int]string{4: "ip", 6: "ip6"} {
		a, pods := r.world.Host("y/b").Addr(family), r.world.Node.Gateway4
		to := a.String()
		if family == 6 {
			to, pods = "["+to+"]", r.world.Node.Gateway6
		}
		fmt.Fprintf(&rules, proxyRules, table, a, to, clusterIP[family], servicePort, nodePort, pods.Masked())
	}
	nstest.Need(r.t, func() error { _, err := exec.LookPath("nft"); return err },
		func() error { _, err := exec.LookPath("nsenter"); return err })
	cmd := exec.Command("nsenter", "--net="+r.world.Node.NS.Path(), "nft", "-f", "-")
	cmd.Stdin = &rules
	if out, err := cmd.CombinedOutput(); err != nil {
		r.t.Fatalf("nft: %v\n%s", err, out)
	}
}

// TestServices: a pod reaches a Service whose backend is on its node by the
// Service's address, the node's address and the gateway's, itself included, with
// strict reverse path filtering and without; and a policy on the backend sees the
// client behind all of it.
func TestServices(t *testing.T) {
	for _, dp := range dataplanes {
		for _, strict := range []string{"0", "1"} {
			t.Run(dp+"/rp_filter "+strict, func(t *testing.T) {
				r := newRig(t, dp)
				for _, dev := range []string{"all", "default"} {
					if err := r.world.Node.NS.Sysctl("net/ipv4/conf/"+dev+"/rp_filter", strict); err != nil {
						t.Fatal(err)
					}
				}
				r.proxy()
				r.write("service.yaml", service)
				r.start()
				every := r.ways()
				r.services(every, map[string]bool{"x/a": true, "y/b": true, "z/a": true})
				before := strings.Count(r.logText(), "policy in force")
				r.write("policy.yaml", allowFromX)
				r.until("the policy is in force", func() bool { return strings.Count(r.logText(), "policy in force") > before })
				if r.opens("udp", "z/a", "y/b", 4) {
					t.Error("z is not refused")
				}
				if dp == "afxdp" {
					// Alone it judges behind the proxy, where masquerading has
					// replaced the client by the node (docs/architecture.md).
					r.services(every[:2], map[string]bool{"x/a": true, "z/a": false})
					return
				}
				// A pod reaches itself whatever the policy says.
				r.services(every, map[string]bool{"x/a": true, "y/b": true, "z/a": false})
			})
		}
	}
}

// ways returns every address that leads to y/b, the Service's own first.
func (r *rig) ways() []netip.AddrPort {
	n := r.world.Node
	return []netip.AddrPort{
		netip.AddrPortFrom(clusterIP[4], servicePort), netip.AddrPortFrom(clusterIP[6], servicePort),
		netip.AddrPortFrom(n.Addr4, nodePort), netip.AddrPortFrom(n.Addr6, nodePort),
		netip.AddrPortFrom(n.Gateway4.Addr(), nodePort), netip.AddrPortFrom(n.Gateway6.Addr(), nodePort),
	}
}

// services tries to reach y/b in these ways; want is by client.
func (r *rig) services(ways []netip.AddrPort, want map[string]bool) {
	r.t.Helper()
	for _, to := range ways {
		for from, allowed := range want {
			for _, network := range world.Networks {
				if err := r.through(r.world.Host(from).NS, network, to, allowed); (err == nil) != allowed {
					r.t.Errorf("%s to %s over %s: %v, want allowed %t", from, to, network, err, allowed)
				}
			}
		}
	}
}

// through opens a connection and uses it a few times.
func (r *rig) through(from *netlab.NS, network string, to netip.AddrPort, allowed bool) error {
	wait := nstest.Blocked
	if allowed {
		wait = nstest.Timeout
	}
	ctx, cancel := context.WithTimeout(r.t.Context(), wait)
	defer cancel()
	c, err := from.Dial(ctx, network, netip.AddrPort{}, to)
	if err != nil {
		return err
	}
	defer func(c net.Conn) { c.Close() }(c)
	for range 3 {
		if err := netlab.Exchange(c, []byte("hello"), wait); err != nil {
			return err
		}
	}
	return nil
}
