package nfqueue

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
)

// Services. We see a connection after DNAT, but some rules are about where it was
// opened to (S2-98). The kernel knows: it is the destination of the original tuple.
// A queued packet does not bring it (only with CONFIG_NETFILTER_NETLINK_GLUE_CT),
// so a map finds a number for it and the packet carries that as its priority, a
// tag. The map has just the Services that rules name.
//
//	ct original daddr . protocol . proto-dst ─@services─► tag ─► meta priority
//	   ─► NFQA_PRIORITY (Linux 5.18) ─► Packet.Service;  the verdict clears it
//
// A tag without a number says only that the kernel has the connection under other
// addresses than the packet shows (or in a zone): what was translated, to a Service no
// rule names. What has no tag has the name it shows; see list.
//
// Forwarding sets the priority from the TOS field, of IPv4 only; what a tagged
// packet had is lost. That is the first packet of a translated connection.

const (
	mapServices = "services"

	// A tag is a number below the mask. Priorities of other software are small, or
	// the handle of a traffic class; no such handle is this.
	tagValue = 0x54570000
	tagMask  = 0xffff0000
	maxTags  = 0xffff

	ctStatusDNAT = 1 << 5 // enum ip_conntrack_status: IPS_DST_NAT
)

func isTag(priority uint32) bool { return priority&tagMask == tagValue }

// serviceKey is a key of the map.
type serviceKey struct {
	flow.Service
	proto flow.Proto
}

// tags gives Services their numbers. A number keeps its meaning while its Service
// is named by rules, and after that until there is no other number left: packets
// that wait in a queue have it. Drivers read while the Backend assigns.
type tags struct {
	byTag  atomic.Pointer[[]flow.Service] // tag 1 first
	tagOf  map[serviceKey]uint32          // in the map
	unused []uint32                       // longest unused first
}

// service returns what a tag stands for; zero for a tag nobody gave.
func (t *tags) service(tag uint32) flow.Service {
	list := t.byTag.Load()
	if i := int(tag&^tagMask) - 1; list != nil && i >= 0 && i < len(*list) {
		return (*list)[i]
	}
	return flow.Service{}
}

// assign gives a tag to every Service and returns them, whether there are some that
// had none before, and how many got none.
func (t *tags) assign(services []classifier.ServicePort) (m map[serviceKey]uint32, more bool, left int) {
	if len(services) == 0 && len(t.tagOf) == 0 {
		return nil, false, 0
	}
	m = make(map[serviceKey]uint32, len(services))
	var fresh []serviceKey
	for _, s := range services {
		k := serviceKey{s.Service, s.Proto}
		if _, twice := m[k]; twice {
			continue
		}
		if m[k] = t.tagOf[k]; m[k] == 0 {
			fresh = append(fresh, k)
		}
	}
	for k, tag := range t.tagOf {
		if _, still := m[k]; !still {
			t.unused = append(t.unused, tag)
		}
	}
	var list []flow.Service
	if old := t.byTag.Load(); old != nil {
		list = slices.Clone(*old)
	}
	for _, k := range fresh {
		switch {
		case len(list) < maxTags:
			list = append(list, k.Service)
			m[k] = tagValue | uint32(len(list))
		case len(t.unused) > 0:
			m[k], t.unused = t.unused[0], t.unused[1:]
			list[m[k]&^tagMask-1] = k.Service
		default:
			delete(m, k)
			left++
		}
	}
	t.tagOf = m
	t.byTag.Store(&list)
	return m, len(fresh) > left, left
}

// regKey is the first of the 4-byte registers the map's key is put together in
// (NFT_REG32_04).
const regKey = 12

var serviceTypes = map[family]nftables.SetDatatype{
	ipv4: nftables.MustConcatSetType(nftables.TypeIPAddr, nftables.TypeInetProto, nftables.TypeInetService),
	ipv6: nftables.MustConcatSetType(nftables.TypeIP6Addr, nftables.TypeInetProto, nftables.TypeInetService),
}

func serviceMap(t *nftables.Table, v family) *nftables.Set {
	return &nftables.Set{
		Table: t, Name: mapServices + v.suffix, IsMap: true, Concatenation: true,
		KeyType: serviceTypes[v], DataType: nftables.TypeMark,
	}
}

func ctDNAT() []expr.Any {
	return []expr.Any{&expr.Ct{Key: expr.CtKeySTATUS, Register: reg1}, masked(ctStatusDNAT, 0), compare(expr.CmpOpNeq, host32(0))}
}

// chainService is the chain, by family, that looks the original destination up.
const chainService = "service"

// Numbers of nf_tables (linux/netfilter/nf_tables.h) for the rule of that chain.
const (
	msgNewRule    = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWRULE
	msgBatchBegin = 0x10
	msgBatchEnd   = 0x11

	ctDstIP, ctDstIP6 = 20, 22 // NFT_CT_DST_IP, NFT_CT_DST_IP6; Linux 4.17
)

// serviceRule is the payload of the message that adds the rule
//
//	meta priority set ct original ip daddr . ct protocol . ct original proto-dst map @services4
//
// The nftables library cannot write these "ct" keys with a direction, and the ones
// it can are such that nft(8) refuses to show the table.
func (v family) serviceRule() []byte {
	key, next := uint32(ctDstIP), uint32(regKey+1)
	if v == ipv6 {
		key, next = ctDstIP6, regKey+4
	}
	ct := func(key, register uint32, original bool) []byte {
		b := appendAttr32(appendAttr32(nil, unix.NFTA_CT_KEY, key), unix.NFTA_CT_DREG, register)
		if original {
			b = appendAttr(b, unix.NFTA_CT_DIRECTION, []byte{0}) // IP_CT_DIR_ORIGINAL
		}
		return b
	}
	lookup := appendAttr(nil, unix.NFTA_LOOKUP_SET, cString(mapServices+v.suffix))
	lookup = appendAttr32(appendAttr32(lookup, unix.NFTA_LOOKUP_SREG, regKey), unix.NFTA_LOOKUP_DREG, reg1)
	priority := appendAttr32(appendAttr32(nil, unix.NFTA_META_KEY, unix.NFT_META_PRIORITY), unix.NFTA_META_SREG, reg1)

	var exprs []byte
	add := func(name string, data []byte) {
		e := appendAttr(nil, unix.NFTA_EXPR_NAME, cString(name))
		e = appendAttr(e, unix.NFTA_EXPR_DATA|unix.NLA_F_NESTED, data)
		exprs = appendAttr(exprs, unix.NFTA_LIST_ELEM|unix.NLA_F_NESTED, e)
	}
	add("ct", ct(key, regKey, true))
	add("ct", ct(unix.NFT_CT_PROTOCOL, next, false))
	add("ct", ct(unix.NFT_CT_PROTO_DST, next+1, true))
	add("lookup", lookup)
	add("meta", priority)

	b := []byte{unix.NFPROTO_INET, unix.NFNETLINK_V0, 0, 0}
	b = appendAttr(b, unix.NFTA_RULE_TABLE, cString(TableName))
	b = appendAttr(b, unix.NFTA_RULE_CHAIN, cString(chainService+v.suffix))
	return appendAttr(b, unix.NFTA_RULE_EXPRESSIONS|unix.NLA_F_NESTED, exprs)
}

func cString(s string) []byte { return append([]byte(s), 0) }

// addServiceRules completes a table that was just created, on the same socket: who
// watches for changes by others must not take it for one.
func (f *firewall) addServiceRules() error {
	batch := []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, unix.NFNL_SUBSYS_NFTABLES}
	flags := netlink.Request | netlink.Acknowledge | netlink.Create | netlink.Append
	_, err := f.nl.SendMessages([]netlink.Message{
		{Header: netlink.Header{Type: msgBatchBegin, Flags: netlink.Request}, Data: batch},
		{Header: netlink.Header{Type: msgNewRule, Flags: flags}, Data: ipv4.serviceRule()},
		{Header: netlink.Header{Type: msgNewRule, Flags: flags}, Data: ipv6.serviceRule()},
		{Header: netlink.Header{Type: msgBatchEnd, Flags: netlink.Request}, Data: batch},
	})
	if err != nil {
		return fmt.Errorf("add rules for Services: %w", err)
	}
	var errs []error
	for range 2 {
		if _, err := f.nl.Receive(); err != nil {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("add rules for Services: %w", err)
	}
	return nil
}

func priorityIsTag() []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyPRIORITY, Register: reg1}, masked(tagMask, 0), compare(expr.CmpOpEq, host32(tagValue))}
}

func setPriority(p uint32) []expr.Any {
	return []expr.Any{
		&expr.Immediate{Register: reg1, Data: host32(p)},
		&expr.Meta{Key: expr.MetaKeyPRIORITY, Register: reg1, SourceRegister: true},
	}
}

// changeServices adds to the transaction what turns the map of a family from old
// to m.
func (f *firewall) changeServices(set *nftables.Set, v family, old, m map[serviceKey]uint32) error {
	for part := range slices.Chunk(serviceElements(v, m, old), elementsPerMessage/2) {
		if err := f.conn.SetAddElements(set, part); err != nil {
			return err
		}
	}
	for part := range slices.Chunk(serviceElements(v, old, m), elementsPerMessage/2) {
		if err := f.conn.SetDeleteElements(set, part); err != nil {
			return err
		}
	}
	return nil
}

// serviceElements returns the elements of a family that m has and not does not, in
// the order of their tags.
func serviceElements(v family, m, not map[serviceKey]uint32) (elements []nftables.SetElement) {
	for k, tag := range m {
		if _, there := not[k]; there || k.Addr.Is4() != (v == ipv4) {
			continue
		}
		key := append(k.Addr.Netip().AsSlice(), byte(k.proto), 0, 0, 0)
		key = append(binary.BigEndian.AppendUint16(key, k.Port), 0, 0)
		elements = append(elements, nftables.SetElement{Key: key, Val: host32(tag)})
	}
	slices.SortFunc(elements, func(a, b nftables.SetElement) int {
		return cmp.Or(slices.Compare(a.Val, b.Val), slices.Compare(a.Key, b.Key))
	})
	return elements
}
