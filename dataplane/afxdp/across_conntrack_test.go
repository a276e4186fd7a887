package afxdp

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/dataplane/nstest"
	"github.com/tierwall/tierwall/dataplane/nstest/netlab"
)

// What is translated stays with the stack, in both directions, and so does DNS.
func TestTranslatedStaysInTheStack(t *testing.T) {
	r := newRig(t, Config{Strict: true, Accelerate: true})
	r.policy(allowAll)
	a, b := r.AddPod(t, "a"), r.AddPod(t, "b")
	const nodePort = 30080
	dnat(t, r.NS, netip.AddrPortFrom(r.Addr4, nodePort), netip.AddrPortFrom(b.Addr4, openPort))
	r.update(t, a, b)
	for _, network := range []string{"udp", "tcp"} {
		nstest.Echo(t, b.NS, network, b.Addr4, openPort)
		c := dial(t, a.NS, network, netip.AddrPortFrom(r.Addr4, nodePort))
		if n := r.went(t, func() {
			for range 50 {
				exchange(t, c)
			}
		}); n != 0 {
			t.Errorf("%s: %d translated packets went across", network, n)
		}
	}
	dns := dial(t, a.NS, "udp", nstest.Echo(t, b.NS, "udp", b.Addr4, 53).Addr)
	if n := r.went(t, func() {
		for range 50 {
			exchange(t, dns)
		}
	}); n != 0 {
		t.Errorf("%d DNS packets went across", n)
	}
}

// stateful installs the rules of a firewall that drops what connection tracking
// calls invalid and lets nothing but SYNs open TCP connections.
func stateful(t *testing.T, ns *netlab.NS) {
	t.Helper()
	in := func(bits uint32, v expr.VerdictKind) []expr.Any {
		return []expr.Any{
			&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
			&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binary.NativeEndian.AppendUint32(nil, bits), Xor: make([]byte, 4)},
			&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
			&expr.Verdict{Kind: v},
		}
	}
	nft(t, ns, func(c *nftables.Conn) {
		table := c.AddTable(&nftables.Table{Name: "stateful", Family: nftables.TableFamilyINet})
		chain := c.AddChain(&nftables.Chain{
			Name: "forward", Table: table, Type: nftables.ChainTypeFilter,
			Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter,
		})
		for _, exprs := range [][]expr.Any{
			in(expr.CtStateBitINVALID, expr.VerdictDrop),
			in(expr.CtStateBitESTABLISHED, expr.VerdictAccept),
		} {
			c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: exprs})
		}
	})
}

// Connection tracking survives: a TCP connection it watches closely does not go
// across; one it is liberal about does, and may come back at any time, past rules
// that drop what is invalid.
func TestAcrossAndConnectionTracking(t *testing.T) {
	for _, liberal := range []bool{false, true} {
		t.Run(fmt.Sprintf("liberal=%v", liberal), func(t *testing.T) {
			nstest.Need(t, canRun)
			node := nstest.NewNode(t)
			stateful(t, node.NS)
			value := map[bool]string{true: "1", false: "0"}[liberal]
			if err := node.NS.Sysctl("net/netfilter/nf_conntrack_tcp_be_liberal", value); err != nil {
				t.Fatal(err)
			}
			r := startRig(t, node, Config{Accelerate: true})
			a, b := r.AddPod(t, "a"), r.AddPod(t, "b")
			r.update(t, a, b)
			for _, addr := range []netip.Addr{b.Addr4, b.Addr6} {
				c := dial(t, a.NS, "tcp", nstest.Echo(t, b.NS, "tcp", addr, openPort).Addr)
				n := r.went(t, func() {
					// More than a window, so that what comes back is far out of it.
					if err := transfer(c, randomBytes(16<<20)); err != nil {
						t.Fatal(err)
					}
				})
				if (n != 0) != liberal {
					t.Errorf("%d packets of a tracked TCP connection went across", n)
				}
				// Back to the stack: after a change of policy, and after a while.
				for range 3 {
					r.update(t, a, b)
					if err := transfer(c, randomBytes(1<<20)); err != nil {
						t.Fatalf("after a change of policy: %v", err)
					}
				}
				time.Sleep(wayTime + 2*coarseTick(t))
				exchange(t, c)
				// It can be closed, and both ends hear of it.
				c.(*net.TCPConn).CloseWrite()
				c.SetReadDeadline(time.Now().Add(nstest.Timeout))
				if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, context.DeadlineExceeded) || isTimeout(err) {
					t.Errorf("the connection does not close: %v", err)
				}
				nstest.Eventually(t, "connection tracking knows that it is closed", func() bool {
					return !established(t, r.NS, netip.AddrPortFrom(addr, openPort))
				})
				udp := dial(t, a.NS, "udp", nstest.Echo(t, b.NS, "udp", addr, openPort).Addr)
				r.learn(t, udp)
			}
		})
	}
}

func isTimeout(err error) bool {
	var n net.Error
	return errors.As(err, &n) && n.Timeout()
}

// established reports whether connection tracking has an established TCP
// connection to a server.
func established(t testing.TB, ns *netlab.NS, to netip.AddrPort) (found bool) {
	t.Helper()
	if err := ns.Do(func() error {
		family := netlink.InetFamily(unix.AF_INET)
		if to.Addr().Is6() {
			family = unix.AF_INET6
		}
		flows, err := netlink.ConntrackTableList(netlink.ConntrackTable, family)
		if err != nil {
			return err
		}
		for _, f := range flows {
			dst, _ := netip.AddrFromSlice(f.Forward.DstIP)
			if f.Forward.Protocol != unix.IPPROTO_TCP || f.Forward.DstPort != to.Port() || dst.Unmap() != to.Addr() {
				continue
			}
			tcp, ok := f.ProtoInfo.(*netlink.ProtoInfoTCP)
			found = found || ok && tcp.State == nl.TCP_CONNTRACK_ESTABLISHED
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return found
}
