package connectivity

import (
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/tierwall/tierwall/dataplane/nstest"
)

// Modes of kube-proxy.
const (
	nftables = "nftables"
	iptables = "iptables"
)

// masqueradeMark is kube-proxy's mark of packets to masquerade.
const masqueradeMark = 0x4000

// nodePort returns the node port of a pod's Service for the port at an index of
// the sample's.
func nodePort(slot, index int) int { return 30000 + slot*8 + index }

// proxy installs the rules that kube-proxy makes for one Service per pod, each with
// one endpoint, in place of those before: hooks, priorities, marks and masquerading
// are its own. Node ports lead to this node's pods. Source ports are kept, which
// kube-proxy does not promise, so that a tap knows an attempt again.
func (l *lab) proxy(t *testing.T, mode string, parties []*party, ports []uint16) {
	t.Helper()
	backends := slices.DeleteFunc(slices.Clone(parties), func(p *party) bool { return p.serviceID == 0 })
	if mode == nftables {
		l.run(t, nftRules(backends, ports), "nft", "-f", "-")
		return
	}
	for _, family := range []int{4, 6} {
		program := map[int]string{4: "iptables-nft-restore", 6: "ip6tables-nft-restore"}[family]
		l.run(t, iptablesRules(backends, ports, family), program)
	}
}

// run runs a program in the node's namespace.
func (l *lab) run(t *testing.T, input string, program ...string) {
	t.Helper()
	nstest.Need(t, func() error { _, err := exec.LookPath(program[0]); return err },
		func() error { _, err := exec.LookPath("nsenter"); return err })
	cmd := exec.Command("nsenter", append([]string{"--net=" + l.node.NS.Path()}, program...)...)
	cmd.Stdin = strings.NewReader(input)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", program, err, out)
	}
}

func nftRules(backends []*party, ports []uint16) string {
	var b strings.Builder
	for _, family := range []int{4, 6} {
		f, pods0 := "ip", podNet4
		if family == 6 {
			f, pods0 = "ip6", podNet6
		}
		fmt.Fprintf(&b, "table %s kube-proxy {}\ndelete table %s kube-proxy\ntable %s kube-proxy {\n", f, f, f)
		var services, node strings.Builder
		for _, p := range backends {
			addr, service := p.addr(family), p.service(family)
			if !addr.IsValid() {
				continue
			}
			fmt.Fprintf(&b, " chain endpoint%d {\n  %s saddr %s mark set mark or %#x\n", p.serviceID, f, addr, masqueradeMark)
			for _, proto := range []string{"tcp", "udp", "sctp"} {
				for i, n := range ports {
					fmt.Fprintf(&b, "  meta l4proto %s th dport { %d, %d } dnat to %s\n", proto, n, nodePort(p.slot, i), target(addr.String(), family, n))
				}
			}
			b.WriteString(" }\n")
			for i, n := range ports {
				match := fmt.Sprintf("%s daddr %s meta l4proto { tcp, udp, sctp } th dport %d", f, service, n)
				fmt.Fprintf(&services, "  %s %s saddr != %s mark set mark or %#x\n  %s goto endpoint%d\n", match, f, pods0, masqueradeMark, match, p.serviceID)
				if p.slot < 0 {
					continue
				}
				match = fmt.Sprintf("fib daddr type local meta l4proto { tcp, udp, sctp } th dport %d", nodePort(p.slot, i))
				fmt.Fprintf(&node, "  %s mark set mark or %#x\n  %s goto endpoint%d\n", match, masqueradeMark, match, p.serviceID)
			}
		}
		fmt.Fprintf(&b, ` chain services {
%s%s }
 chain nat-prerouting { type nat hook prerouting priority dstnat; jump services; }
 chain nat-output { type nat hook output priority -100; jump services; }
 chain nat-postrouting {
  type nat hook postrouting priority srcnat;
  mark and %#x == 0 return
  mark set mark xor %#x
  masquerade
 }
}
`, services.String(), node.String(), masqueradeMark, masqueradeMark)
	}
	return b.String()
}

func target(addr string, family int, port uint16) string {
	if family == 6 {
		addr = "[" + addr + "]"
	}
	return fmt.Sprintf("%s:%d", addr, port)
}

func iptablesRules(backends []*party, ports []uint16, family int) string {
	var b strings.Builder
	all := podNet4.String()
	if family == 6 {
		all = podNet6.String()
	}
	backends = slices.DeleteFunc(slices.Clone(backends), func(p *party) bool { return !p.addr(family).IsValid() })
	fmt.Fprintf(&b, "*nat\n:KUBE-SERVICES - [0:0]\n:KUBE-MARK-MASQ - [0:0]\n:KUBE-POSTROUTING - [0:0]\n")
	for _, p := range backends {
		fmt.Fprintf(&b, ":KUBE-SEP-%d - [0:0]\n", p.serviceID)
	}
	fmt.Fprintf(&b, "-A PREROUTING -j KUBE-SERVICES\n-A OUTPUT -j KUBE-SERVICES\n-A POSTROUTING -j KUBE-POSTROUTING\n"+
		"-A KUBE-MARK-MASQ -j MARK --or-mark %#[1]x\n"+
		"-A KUBE-POSTROUTING -m mark ! --mark %#[1]x/%#[1]x -j RETURN\n-A KUBE-POSTROUTING -j MARK --xor-mark %#[1]x\n-A KUBE-POSTROUTING -j MASQUERADE\n", masqueradeMark)
	for _, p := range backends {
		addr, service := p.addr(family), p.service(family)
		fmt.Fprintf(&b, "-A KUBE-SEP-%d -s %s -j KUBE-MARK-MASQ\n", p.serviceID, addr)
		for _, proto := range []string{"tcp", "udp", "sctp"} {
			for i, n := range ports {
				ways := []struct{ dst, masq string }{{fmt.Sprintf("-d %s -p %s --dport %d", service, proto, n), "! -s " + all + " "}}
				if p.slot >= 0 {
					ways = append(ways, struct{ dst, masq string }{fmt.Sprintf("-m addrtype --dst-type LOCAL -p %s --dport %d", proto, nodePort(p.slot, i)), ""})
				}
				for _, m := range ways {
					fmt.Fprintf(&b, "-A KUBE-SERVICES %s%s -j KUBE-MARK-MASQ\n-A KUBE-SERVICES %s -j KUBE-SEP-%d\n", m.masq, m.dst, m.dst, p.serviceID)
				}
				fmt.Fprintf(&b, "-A KUBE-SEP-%d -p %s --dport %d -j DNAT --to-destination %s\n", p.serviceID, proto, n, target(addr.String(), family, n))
				fmt.Fprintf(&b, "-A KUBE-SEP-%d -p %s --dport %d -j DNAT --to-destination %s\n", p.serviceID, proto, nodePort(p.slot, i), target(addr.String(), family, n))
			}
		}
	}
	return b.String() + "COMMIT\n"
}
