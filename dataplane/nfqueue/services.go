package nfqueue

import (
	"cmp"
	"encoding/binary"
	"slices"
	"sync/atomic"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

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
// Forwarding sets the priority from the TOS field, of IPv4 only; what a tagged
// packet had is lost. That is the first packet of a connection to such a Service.

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

// assign gives a tag to every Service and returns them, and how many got none.
func (t *tags) assign(services []classifier.ServicePort) (m map[serviceKey]uint32, left int) {
	if len(services) == 0 && len(t.tagOf) == 0 {
		return nil, 0
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
	return m, left
}

// Registers of 4 bytes: the key of the map must be in consecutive ones. The
// address comes as 16 bytes for both families, so what follows one of IPv4 is
// loaded over its rest.
const regKey = 12 // NFT_REG32_04

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

// tagService looks the original destination up and sets the priority.
func (v family) tagService() []expr.Any {
	next := uint32(regKey + v.len/4)
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeyDST, Register: regKey}, // direction 0 is the original one
		&expr.Ct{Key: expr.CtKeyPROTOCOL, Register: next},
		&expr.Ct{Key: expr.CtKeyPROTODST, Register: next + 1},
		&expr.Lookup{SourceRegister: regKey, DestRegister: reg1, IsDestRegSet: true, SetName: mapServices + v.suffix},
		&expr.Meta{Key: expr.MetaKeyPRIORITY, Register: reg1, SourceRegister: true},
	}
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
