package afxdp

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/dataplane/nstest/netlab"
)

// nft runs f with a connection inside a namespace and flushes it.
func nft(t *testing.T, ns *netlab.NS, f func(c *nftables.Conn)) {
	t.Helper()
	if err := ns.Do(func() error {
		c, err := nftables.New()
		if err != nil {
			return err
		}
		f(c)
		return c.Flush()
	}); err != nil {
		t.Fatalf("nftables: %v", err)
	}
}

// countMarked counts the packets in the forward hook whose mark has any of bits.
func countMarked(t *testing.T, ns *netlab.NS, bits uint32) func() uint64 {
	t.Helper()
	table := &nftables.Table{Name: fmt.Sprintf("test-%#x", bits), Family: nftables.TableFamilyINet}
	mask := binary.NativeEndian.AppendUint32(nil, bits)
	nft(t, ns, func(c *nftables.Conn) {
		c.AddTable(table)
		c.AddObj(&nftables.CounterObj{Table: table, Name: "marked"})
		chain := c.AddChain(&nftables.Chain{
			Name: "forward", Table: table, Type: nftables.ChainTypeFilter,
			Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter,
		})
		c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
			&expr.Meta{Key: expr.MetaKeyMARK, Register: 1},
			&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: mask, Xor: make([]byte, 4)},
			&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
			&expr.Objref{Type: 1, Name: "marked"}, // NFT_OBJECT_COUNTER
		}})
	})
	return func() (n uint64) {
		if err := ns.Do(func() error {
			c, err := nftables.New()
			if err != nil {
				return err
			}
			o, err := c.GetObject(&nftables.CounterObj{Table: table, Name: "marked"})
			if err != nil {
				return err
			}
			counter, ok := o.(*nftables.CounterObj)
			if !ok {
				return fmt.Errorf("object %T", o)
			}
			n = counter.Packets
			return nil
		}); err != nil {
			t.Fatalf("read the counter: %v", err)
		}
		return n
	}
}

// dnat leads TCP and UDP packets for one address and port to another.
func dnat(t *testing.T, ns *netlab.NS, from, to netip.AddrPort) { service(t, ns, from, to, false) }

// service is dnat for packets that pass through a namespace and, with masquerade,
// gives them its address: what a Service proxy does. It adds to what is there.
func service(t *testing.T, ns *netlab.NS, from, to netip.AddrPort, masquerade bool) {
	t.Helper()
	port := func(p uint16) []byte { return binary.BigEndian.AppendUint16(nil, p) }
	mark := binary.NativeEndian.AppendUint32(nil, 0x4000)
	family, nfproto, offset := nftables.TableFamilyIPv4, uint32(unix.NFPROTO_IPV4), uint32(16)
	if from.Addr().Is6() {
		family, nfproto, offset = nftables.TableFamilyIPv6, unix.NFPROTO_IPV6, 24
	}
	addr := from.Addr().AsSlice()
	nft(t, ns, func(c *nftables.Conn) {
		table := c.AddTable(&nftables.Table{Name: natTable, Family: family})
		pre := c.AddChain(&nftables.Chain{
			Name: "prerouting", Table: table, Type: nftables.ChainTypeNAT,
			Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityNATDest,
		})
		rule := []expr.Any{
			&expr.Payload{Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: uint32(len(addr)), DestRegister: 1},
			&expr.Cmp{Register: 1, Data: addr},
			&expr.Payload{Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2, DestRegister: 1},
			&expr.Cmp{Register: 1, Data: port(from.Port())},
		}
		if masquerade {
			rule = append(rule, &expr.Immediate{Register: 1, Data: mark}, &expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: 1})
		}
		c.AddRule(&nftables.Rule{Table: table, Chain: pre, Exprs: append(
			rule,
			&expr.Immediate{Register: 1, Data: to.Addr().AsSlice()},
			&expr.Immediate{Register: 2, Data: port(to.Port())},
			&expr.NAT{Type: expr.NATTypeDestNAT, Family: nfproto, RegAddrMin: 1, RegProtoMin: 2},
		)})
		if !masquerade {
			return
		}
		post := c.AddChain(&nftables.Chain{
			Name: "postrouting", Table: table, Type: nftables.ChainTypeNAT,
			Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource,
		})
		c.AddRule(&nftables.Rule{Table: table, Chain: post, Exprs: []expr.Any{
			&expr.Meta{Key: expr.MetaKeyMARK, Register: 1},
			&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: mark, Xor: make([]byte, 4)},
			&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
			&expr.Masq{},
		}})
	})
}

const natTable = "nat"

// forgetServices removes what service did in a namespace, and the connections that
// know of it.
func forgetServices(t *testing.T, ns *netlab.NS, family int) {
	t.Helper()
	f := nftables.TableFamilyIPv4
	if family == 6 {
		f = nftables.TableFamilyIPv6
	}
	nft(t, ns, func(c *nftables.Conn) { c.DelTable(&nftables.Table{Name: natTable, Family: f}) })
	forgetConnections(t, ns)
}

// forgetConnections makes conntrack forget everything, as time does.
func forgetConnections(t *testing.T, ns *netlab.NS) {
	t.Helper()
	if err := ns.Do(func() error { return netlink.ConntrackTableFlush(netlink.ConntrackTable) }); err != nil {
		t.Fatal(err)
	}
}
