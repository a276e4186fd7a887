package afxdp

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
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
func dnat(t *testing.T, ns *netlab.NS, from, to netip.AddrPort) {
	t.Helper()
	port := func(p uint16) []byte { return binary.BigEndian.AppendUint16(nil, p) }
	nft(t, ns, func(c *nftables.Conn) {
		table := c.AddTable(&nftables.Table{Name: "nat", Family: nftables.TableFamilyIPv4})
		chain := c.AddChain(&nftables.Chain{
			Name: "prerouting", Table: table, Type: nftables.ChainTypeNAT,
			Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityNATDest,
		})
		c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
			&expr.Payload{Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4, DestRegister: 1},
			&expr.Cmp{Register: 1, Data: from.Addr().AsSlice()},
			&expr.Payload{Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2, DestRegister: 1},
			&expr.Cmp{Register: 1, Data: port(from.Port())},
			&expr.Immediate{Register: 1, Data: to.Addr().AsSlice()},
			&expr.Immediate{Register: 2, Data: port(to.Port())},
			&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1, RegProtoMin: 2},
		}})
	})
}
