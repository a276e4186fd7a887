package nfqueue

import (
	"encoding/binary"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/dataplane/packet"
)

// Names inside the kernel. They are part of the interface: operators see them
// in "nft list ruleset", and a new version must find the table of an old one.
const (
	TableName = "tierwall"

	// Sets; the family's digit follows. Addresses of pods that policy selects,
	// the prefixes of this node's pods, addresses in them that are judged by
	// nobody: pods no policy selects, and the node's own; and networks that pods of
	// any node have addresses in (unknown.go).
	setSelected = "selected"
	setLocal    = "local"
	setFree     = "free"
	setNetworks = "networks"
	setDevices  = "devices" // of pods
	setUplinks  = "uplinks" // devices that lead to gateways
	setBridges  = "bridges" // of pods, whose frames we sent to the hooks
	// Ends of tunnels.
	setTunnelPorts     = "tunnel-ports" // UDP
	setTunnelProtocols = "tunnel-protocols"

	chainJudge  = "judge"    // queues
	chainDevice = "from-pod" // what came in by a pod's device

	counterBypassed = "bypassed"
	counterQueued   = "queued"
	counterForged   = "forged"
	counterUnknown  = "unknown"
)

// Hook priorities. We judge after everyone's filter chains (priority 0), so that
// a packet somebody else drops never costs an upcall or an audit record, and
// save a verdict of the output hook right behind.
const (
	priorityEarly nftables.ChainPriority = -90 // NF_IP_PRI_NAT_DST is -100
	priorityJudge nftables.ChainPriority = 10
	prioritySave  nftables.ChainPriority = 20
)

// features are what the kernel lets us use.
type features struct {
	queueExpr bool // native nft "queue", else xtables NFQUEUE
	fib       bool // "fib saddr type local", else the output hook asks userspace
	reject    bool // nft "reject": the kernel tells the sender, else nobody does
	back      bool // "fib saddr . iif" where packets are judged (Linux 5.19): finds out who may have sent one
	backEarly bool // the same, before routing only
	zones     bool // nft "ct zone": without it there are no zones
	priority  bool // the queue tells a packet's priority, see services.go
	// gate drops what would be queued. It holds traffic off while queues are
	// bound.
	gate bool
}

// chain is a chain to install; hook is nil for a chain that is jumped to.
type chain struct {
	name     string
	hook     *nftables.ChainHook
	priority nftables.ChainPriority
	rules    []ruleSpec
}

// ruleSpec is a rule with the comment that operators see beside it.
type ruleSpec struct {
	comment string
	exprs   []expr.Any
}

// ruleset returns every chain of our table, in an order in which chains exist
// before they are jumped to.
func ruleset(c Config, f features) []chain {
	accept, ours := c.Marks.Accept, c.Marks.Accept|c.Marks.Reply
	// The first rule is all that most packets meet. One of an accepted connection
	// that has a mark of ours comes from the fast path.
	known := ruleSpec{"accepted connection", join(ctMarkHas(accept), ctRelatedNot(), count(counterBypassed), markHasNot(ours), verdict(expr.VerdictAccept))}
	// An error bears the mark of the connection it quotes, whoever sent it.
	expected := ruleSpec{"expected by an accepted connection", join(ctMarkHas(accept), ctRelated(), transportIsNot(unix.IPPROTO_ICMP), transportIsNot(unix.IPPROTO_ICMPV6),
		count(counterBypassed), markHasNot(ours), verdict(expr.VerdictAccept))}
	byPod := ruleSpec{"from a pod's device", join(cameByPod(), jumpChain(chainDevice))}
	passed := ruleSpec{"accepted by userspace or the fast path", join(markHas(accept), gotoChain("passed"))}
	remember := ruleSpec{"the rest of the connection stays in the kernel", join(markHas(accept), setCtMark(accept))}
	forget := ruleSpec{"our bits end here", setMark(^ours, 0)}
	own := []ruleSpec{
		// Without this a connection that a policy update has cut would be opened
		// again by the node's next answer.
		{"answers to pods: judged when the pod opened the connection", join(ctDirection(reply), verdict(expr.VerdictAccept))},
	}
	if f.reject {
		// To the end that opened the connection it is an answer, see above.
		own = append(own, ruleSpec{"a refusal to the end that was called", join(ctRelated(), tcpReset(), verdict(expr.VerdictAccept))})
	}
	if f.fib {
		own = append(own,
			ruleSpec{"the node's own connection: its replies pass", join(sourceIsLocal(), setCtMark(accept))},
			ruleSpec{"the node's own traffic to its pods passes", join(sourceIsLocal(), verdict(expr.VerdictAccept))},
		)
	}
	own = append(own, ruleSpec{"sent on behalf of somebody else", gotoChain(chainJudge)})
	mine := []ruleSpec{{remember.comment, setCtMark(accept)}, forget}
	if f := c.FastMark | c.FormerMark; f != 0 {
		mine[1] = ruleSpec{"our bits end here, but for a fast path's, which look at both", join(markHasNot(f), setMark(^ours, 0))}
	}
	var first []ruleSpec // of what a fast path in front has passed
	if fast := c.FastMark; fast != 0 {
		first = []ruleSpec{{"the fast path knows it", join(markIs(accept|fast, fast), verdict(expr.VerdictAccept))}}
		// The fast path judges packets, and neither sees whose error one is nor in
		// which zone.
		aside := []ruleSpec{{"what is about a connection does not accept it", join(markHas(fast), ctRelated(), setMark(^ours, 0), verdict(expr.VerdictAccept))}}
		if f.zones {
			aside = append(aside, ruleSpec{"nor does what may have another's name", join(markHas(fast), ctZoned(), setMark(^ours, 0), verdict(expr.VerdictAccept))})
		}
		mine = append(aside, mine...)
	}
	var chains []chain
	if f.reject {
		chains = append(chains, refuse())
		mine = append([]ruleSpec{{"userspace refuses it", join(markIs(ours, ours), gotoChain("refuse"))}}, mine...)
	}
	chains = append(chains, []chain{
		// Filled by addServiceRules.
		{name: chainService + ipv4.suffix},
		{name: chainService + ipv6.suffix},
		{name: "translated", rules: []ruleSpec{
			{"tell userspace that the kernel has it under another name", setPriority(tagValue)},
			{"and which Service that is, IPv4", join(protocolIs(unix.NFPROTO_IPV4), gotoChain(chainService+ipv4.suffix))},
			{"IPv6", gotoChain(chainService + ipv6.suffix)},
		}},
		{name: chainJudge, rules: judgeRules(c, f)},
		{name: "arrived", rules: arrived(c, f)},
		{name: chainDevice, rules: fromPod(c, f)},
		{name: "own", rules: own},
		{name: "passed", rules: mine},
	}...)
	chains = append(chains, unknownChains(c, f)...)
	for _, v := range []family{ipv4, ipv6} {
		chains = append(chains,
			chain{name: "forward" + v.suffix, rules: append(unknownPods(c, v, src, dst), []ruleSpec{
				{"to a policed pod", join(v.load(dst), v.in(setSelected), gotoChain("arrived"))},
				{"from a policed pod", join(v.load(src), v.in(setSelected), gotoChain("arrived"))},
				{"to a local pod nobody knows", join(v.load(dst), v.in(setLocal), v.notIn(setFree), gotoChain("arrived"))},
				{"from a local pod nobody knows", join(v.load(src), v.in(setLocal), v.notIn(setFree), gotoChain("arrived"))},
			}...)},
			chain{name: "input" + v.suffix, rules: append(unknownPods(c, v, src), []ruleSpec{
				{"from a policed pod", join(v.load(src), v.in(setSelected), gotoChain("arrived"))},
				// A bridge gives the node itself an address among its pods'.
				{"from a local pod nobody knows", join(v.load(src), v.in(setLocal), v.notIn(setFree), notLoopback(), gotoChain("arrived"))},
			}...)},
			chain{name: "output" + v.suffix, rules: append(toUnknownPods(c, v), []ruleSpec{
				{"to a policed pod", join(v.load(dst), v.in(setSelected), gotoChain("own"))},
				{"to a local pod nobody knows", join(v.load(dst), v.in(setLocal), v.notIn(setFree), gotoChain("own"))},
			}...)},
		)
	}
	if f.backEarly && !c.AllowSpoofing {
		chains = append(chains, early(c)...)
	}
	perFamily := func(name string) []ruleSpec {
		return []ruleSpec{
			{"IPv4", join(protocolIs(unix.NFPROTO_IPV4), gotoChain(name+ipv4.suffix))},
			{"IPv6", gotoChain(name + ipv6.suffix)},
		}
	}
	return append(chains,
		chain{name: "forward", hook: nftables.ChainHookForward, priority: priorityJudge, rules: slices.Concat(first, []ruleSpec{
			known, passed, expected, byPod,
			// Between ports of a bridge, where bridge-nf-call-ip6tables is on: routing
			// takes one off the hop limit before this hook.
			{"neighbour discovery", join(neighbourDiscovery(), verdict(expr.VerdictAccept))},
		}, perFamily("forward"))},
		chain{name: "input", hook: nftables.ChainHookInput, priority: priorityJudge, rules: slices.Concat(first, []ruleSpec{
			known, passed, expected, byPod,
			{"neighbour discovery", join(neighbourDiscovery(), verdict(expr.VerdictAccept))},
		}, perFamily("input"))},
		chain{name: "output", hook: nftables.ChainHookOutput, priority: priorityJudge, rules: append([]ruleSpec{
			{"refusals pass and do not accept the connection they refuse", join(markHas(accept), setMark(^ours, 0), verdict(expr.VerdictAccept))},
			{"accepted connection", join(ctMarkHas(accept), verdict(expr.VerdictAccept))},
		}, perFamily("output")...)},
		// A packet judged in the output hook cannot take it again with the accept
		// bit: there the bit means a refusal.
		chain{name: "output-save", hook: nftables.ChainHookOutput, priority: prioritySave, rules: []ruleSpec{remember, forget}},
	)
}

// fromPod is for what came in by a pod's device, whatever its addresses say, before it is
// sorted by these. What is accepted in the fast path, or of an accepted connection, does
// not get here.
func fromPod(c Config, f features) (rules []ruleSpec) {
	// Userspace drops and records these. No table is asked.
	for _, typ := range []byte{routerAdvertisement, redirect6} {
		rules = append(rules, ruleSpec{"no pod is a router", join(icmpIs(unix.NFPROTO_IPV6, unix.IPPROTO_ICMPV6, typ), gotoChain(chainJudge))})
	}
	rules = append(rules,
		ruleSpec{"no pod is a router", join(icmpIs(unix.NFPROTO_IPV4, unix.IPPROTO_ICMP, redirect4), gotoChain(chainJudge))},
		ruleSpec{"neighbour discovery", join(neighbourDiscovery(), verdict(expr.VerdictAccept))},
	)
	if f.back && !c.AllowSpoofing {
		for _, v := range []family{ipv4, ipv6} {
			rules = append(rules, ruleSpec{"forged: not the pod's address", join(v.is(), noWayBack(), count(counterForged), verdict(expr.VerdictDrop))})
		}
	}
	return append(rules,
		ruleSpec{"no pod is a DHCP server", join(protocolIs(unix.NFPROTO_IPV4), udpFromTo(67, 68), gotoChain("arrived"))},
		ruleSpec{"nor a DHCPv6 server", join(protocolIs(unix.NFPROTO_IPV6), udpFromTo(547, 546), gotoChain("arrived"))},
		ruleSpec{"perhaps to a tunnel", join(transportIs(unix.IPPROTO_UDP), []expr.Any{
			&expr.Payload{DestRegister: reg1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
			&expr.Lookup{SourceRegister: reg1, SetName: setTunnelPorts},
		}, gotoChain("arrived"))},
		ruleSpec{"perhaps to a tunnel", join([]expr.Any{
			&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg1}, &expr.Lookup{SourceRegister: reg1, SetName: setTunnelProtocols},
		}, gotoChain("arrived"))},
	)
}

// Types of messages that only routers send (RFC 792, RFC 4861 §4).
const (
	redirect4           = 5
	routerAdvertisement = 134
	redirect6           = 137
)

// icmpIs matches an ICMP message by its type.
func icmpIs(nfproto, proto, typ byte) []expr.Any {
	return join(protocolIs(nfproto), transportIs(proto), []expr.Any{
		&expr.Payload{DestRegister: reg1, Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: 1},
		compare(expr.CmpOpEq, []byte{typ}),
	})
}

// udpFromTo matches UDP by both ports.
func udpFromTo(src, dst uint16) []expr.Any {
	ports := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, src), dst)
	return join(transportIs(unix.IPPROTO_UDP), []expr.Any{
		&expr.Payload{DestRegister: reg1, Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: 4},
		compare(expr.CmpOpEq, ports),
	})
}

// cameByPod matches what came in by a pod's device.
func cameByPod() []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyIIF, Register: reg1}, &expr.Lookup{SourceRegister: reg1, SetName: setDevices}}
}

// arrived is for packets to be judged that came from outside this host. Policy goes
// by addresses, so one that its sender cannot have makes no sense to judge: the
// node's own, from which everything is allowed, and which IPv6 routing takes
// from anybody; and one of this node's pods on another way than back to that pod.
func arrived(c Config, f features) (rules []ruleSpec) {
	forged := func(match []expr.Any) []expr.Any { return join(match, count(counterForged), verdict(expr.VerdictDrop)) }
	if f.fib && !c.AllowSpoofing {
		rules = append(rules, ruleSpec{"forged: the node's own address", forged(join(notLoopback(), sourceIsLocal()))})
	}
	if f.back && !c.AllowSpoofing {
		for _, v := range []family{ipv4, ipv6} {
			rules = append(rules, ruleSpec{"forged: a local pod's address, from elsewhere", forged(join(v.is(), v.load(src), v.in(setLocal), noWayBack()))})
			rules = append(rules, forgedUnknown(c, v)...)
		}
	}
	return append(rules, ruleSpec{"ask", gotoChain(chainJudge)})
}

// early looks for what arrived does not find where the kernel takes "fib saddr . iif"
// before routing only: packets that are going to be judged and have the address of one
// of this node's pods on another way than back to that pod.
func early(c Config) (chains []chain) {
	for _, v := range []family{ipv4, ipv6} {
		chains = append(chains, chain{name: "early" + v.suffix, rules: append(forgedEarly(c, v), []ruleSpec{
			{"from elsewhere", join(v.load(src), v.notIn(setLocal), verdict(expr.VerdictReturn))},
			{"back where it came from", join(wayBack(), verdict(expr.VerdictReturn))},
			{"forged: a policed pod's address", join(v.load(src), v.in(setSelected), gotoChain("forged"))},
			{"forged: the address of a local pod nobody knows", join(v.load(src), v.notIn(setFree), gotoChain("forged"))},
			{"forged: a local pod's address, to a policed pod", join(v.load(dst), v.in(setSelected), gotoChain("forged"))},
			{"forged: a local pod's address, to a local pod nobody knows", join(v.load(dst), v.in(setLocal), v.notIn(setFree), gotoChain("forged"))},
		}...)})
	}
	chains = append([]chain{{name: "forged", rules: []ruleSpec{{"another's address", join(count(counterForged), verdict(expr.VerdictDrop))}}}}, chains...)
	// Behind the translation of destinations: who is called shows.
	return append(chains, chain{name: "early", hook: nftables.ChainHookPrerouting, priority: priorityEarly, rules: []ruleSpec{
		{"accepted connection", join(ctMarkHas(c.Marks.Accept), verdict(expr.VerdictReturn))},
		{"judged by the fast path", join(markHas(c.Marks.Accept|c.FastMark), verdict(expr.VerdictReturn))},
		{"the node's own", join(loopback(), verdict(expr.VerdictReturn))},
		{"IPv4", join(protocolIs(unix.NFPROTO_IPV4), gotoChain("early"+ipv4.suffix))},
		{"IPv6", gotoChain("early" + ipv6.suffix)},
	}})
}

// judgeRules prepare a packet for userspace.
func judgeRules(c Config, f features) []ruleSpec {
	rules := []ruleSpec{
		{"bits of other software are no verdict", setMark(^(c.Marks.Accept | c.Marks.Reply), 0)},
		{"nor is a priority like ours a name", join(priorityIsTag(), setPriority(0))},
	}
	if f.zones {
		rules = append(rules, ruleSpec{"a zone is part of a name", join(ctZoned(), setPriority(tagValue))})
	}
	return append(rules,
		ruleSpec{"translated", join(ctDNAT(), jumpChain("translated"))},
		ruleSpec{"tell userspace the direction", join(ctDirection(reply), setMark(^uint32(0), c.Marks.Reply))},
		ruleSpec{"tell userspace that an error is about a connection", join(ctRelated(), transportIs(unix.IPPROTO_ICMP), setMark(^uint32(0), c.Marks.Accept))},
		ruleSpec{"tell userspace that an error is about a connection", join(ctRelated(), transportIs(unix.IPPROTO_ICMPV6), setMark(^uint32(0), c.Marks.Accept))},
		ruleSpec{"ask userspace", join(count(counterQueued), queue(c, f))},
	)
}

// refuse tells the sender of a packet and drops it. The kernel knows what must not
// be answered and limits ICMP (net.ipv4.icmp_ratelimit), and the answer belongs to
// the connection of the packet: behind a Service it comes from the Service's
// address.
func refuse() chain {
	return chain{name: "refuse", rules: []ruleSpec{
		{"reset (S2-21)", join(transportIs(unix.IPPROTO_TCP), reject(unix.NFT_REJECT_TCP_RST, 0))},
		// RFC 1122 §3.2.2.1 and RFC 4443 §3.1
		{"host administratively prohibited (S2-22)", join(protocolIs(unix.NFPROTO_IPV4), reject(unix.NFT_REJECT_ICMP_UNREACH, 10))},
		{"communication administratively prohibited (S2-22)", reject(unix.NFT_REJECT_ICMP_UNREACH, 1)},
	}}
}

func reject(typ uint32, code uint8) []expr.Any {
	return []expr.Any{&expr.Reject{Type: typ, Code: code}}
}

func transportIs(proto byte) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg1}, compare(expr.CmpOpEq, []byte{proto})}
}

func transportIsNot(proto byte) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg1}, compare(expr.CmpOpNeq, []byte{proto})}
}

// markIs matches packets of whose mark the bits have this value.
func markIs(bits, value uint32) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyMARK, Register: reg1}, masked(bits, 0), compare(expr.CmpOpEq, host32(value))}
}

// family is what differs between the protocols: set names end in the suffix.
type family struct {
	suffix   string
	src, len uint32 // of the source address in the header; the destination follows
}

var (
	ipv4 = family{"4", 12, 4} // RFC 791 §3.1
	ipv6 = family{"6", 8, 16} // RFC 8200 §3
)

// load puts an address into reg1.
func (v family) load(s side) []expr.Any {
	load := &expr.Payload{DestRegister: reg1, Base: expr.PayloadBaseNetworkHeader, Offset: v.src, Len: v.len}
	if s == dst {
		load.Offset += load.Len
	}
	return []expr.Any{load}
}

// is matches packets of the family.
func (v family) is() []expr.Any {
	if v == ipv4 {
		return protocolIs(unix.NFPROTO_IPV4)
	}
	return protocolIs(unix.NFPROTO_IPV6)
}

func (v family) in(set string) []expr.Any {
	return []expr.Any{&expr.Lookup{SourceRegister: reg1, SetName: set + v.suffix}}
}

func (v family) notIn(set string) []expr.Any {
	return []expr.Any{&expr.Lookup{SourceRegister: reg1, SetName: set + v.suffix, Invert: true}}
}

// Numbers of the kernel's rule language that the libraries do not name.
const (
	reg1  = 1 // 16-byte register, the verdict register is 0
	reply = 1 // enum ip_conntrack_dir: IP_CT_DIR_REPLY
)

// side is the address of a packet that a rule looks at.
type side uint8

const (
	src side = iota
	dst
)

func join(parts ...[]expr.Any) (all []expr.Any) {
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

// host32 encodes a number as registers hold it: host byte order.
func host32(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

// masked computes reg1 = reg1 & and ^ xor.
func masked(and, xor uint32) expr.Any {
	return &expr.Bitwise{SourceRegister: reg1, DestRegister: reg1, Len: 4, Mask: host32(and), Xor: host32(xor)}
}

func compare(op expr.CmpOp, data []byte) expr.Any {
	return &expr.Cmp{Op: op, Register: reg1, Data: data}
}

// markHas matches packets whose mark has any of the bits.
func markHas(bits uint32) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyMARK, Register: reg1}, masked(bits, 0), compare(expr.CmpOpNeq, host32(0))}
}

// markHasNot matches packets whose mark has none of the bits.
func markHasNot(bits uint32) []expr.Any {
	return markIs(bits, 0)
}

// setMark sets the packet mark to (mark & keep) with the bits of set on.
func setMark(keep, set uint32) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: reg1}, masked(keep&^set, set),
		&expr.Meta{Key: expr.MetaKeyMARK, Register: reg1, SourceRegister: true},
	}
}

// ctMarkHas matches packets of a tracked connection with the bit in its mark. A
// packet without a connection does not match (nft_ct ends the rule).
func ctMarkHas(bit uint32) []expr.Any {
	return []expr.Any{&expr.Ct{Key: expr.CtKeyMARK, Register: reg1}, masked(bit, 0), compare(expr.CmpOpNeq, host32(0))}
}

// setCtMark sets the bit in the connection's mark; without a connection it ends
// the rule.
func setCtMark(bit uint32) []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeyMARK, Register: reg1}, masked(^bit, bit),
		&expr.Ct{Key: expr.CtKeyMARK, Register: reg1, SourceRegister: true},
	}
}

func ctDirection(dir byte) []expr.Any {
	return []expr.Any{&expr.Ct{Key: expr.CtKeyDIRECTION, Register: reg1}, compare(expr.CmpOpEq, []byte{dir})}
}

// ctRelated matches packets that belong to a connection without being its own:
// among what the host sends, refusals of packets of it.
func ctRelated() []expr.Any {
	return []expr.Any{&expr.Ct{Key: expr.CtKeySTATE, Register: reg1}, masked(expr.CtStateBitRELATED, 0), compare(expr.CmpOpNeq, host32(0))}
}

// ctRelatedNot matches a connection's own packets.
func ctRelatedNot() []expr.Any {
	return []expr.Any{&expr.Ct{Key: expr.CtKeySTATE, Register: reg1}, masked(expr.CtStateBitRELATED, 0), compare(expr.CmpOpEq, host32(0))}
}

// ctZoned matches packets of a connection in another zone than the default one.
func ctZoned() []expr.Any {
	return []expr.Any{&expr.Ct{Key: expr.CtKeyZONE, Register: reg1}, compare(expr.CmpOpNeq, binary.NativeEndian.AppendUint16(nil, 0))}
}

// tcpReset matches TCP segments that only end something (RFC 9293 §3.1).
func tcpReset() []expr.Any {
	return join(transportIs(unix.IPPROTO_TCP), []expr.Any{
		&expr.Payload{DestRegister: reg1, Base: expr.PayloadBaseTransportHeader, Offset: 13, Len: 1},
		&expr.Bitwise{SourceRegister: reg1, DestRegister: reg1, Len: 1, Mask: []byte{packet.RST}, Xor: []byte{0}},
		compare(expr.CmpOpNeq, []byte{0}),
	})
}

func protocolIs(nfproto byte) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: reg1}, compare(expr.CmpOpEq, []byte{nfproto})}
}

// notLoopback matches packets that came from outside this host, loopback the others.
func notLoopback() []expr.Any { return deviceType(expr.CmpOpNeq, unix.ARPHRD_LOOPBACK) }

func loopback() []expr.Any { return deviceType(expr.CmpOpEq, unix.ARPHRD_LOOPBACK) }

func deviceType(op expr.CmpOp, typ uint16) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyIIFTYPE, Register: reg1}, compare(op, binary.NativeEndian.AppendUint16(nil, typ))}
}

// neighbourDiscovery matches what RFC 4861 §6.1 and §7.1 let a node accept: hop
// limit 255 proves the packet was not forwarded.
func neighbourDiscovery() []expr.Any {
	return join(protocolIs(unix.NFPROTO_IPV6), []expr.Any{
		&expr.Payload{DestRegister: reg1, Base: expr.PayloadBaseNetworkHeader, Offset: 7, Len: 1}, // hop limit
		compare(expr.CmpOpEq, []byte{255}),
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg1}, compare(expr.CmpOpEq, []byte{unix.IPPROTO_ICMPV6}),
		&expr.Payload{DestRegister: reg1, Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: 1},
		compare(expr.CmpOpGte, []byte{133}), compare(expr.CmpOpLte, []byte{137}),
	})
}

// sourceIsLocal matches packets whose source is an address of this host.
func sourceIsLocal() []expr.Any {
	return []expr.Any{
		&expr.Fib{Register: reg1, FlagSADDR: true, ResultADDRTYPE: true},
		compare(expr.CmpOpEq, host32(unix.RTN_LOCAL)),
	}
}

// noWayBack matches packets whose sender is not reached by the device they came in
// by, wayBack the others.
func noWayBack() []expr.Any { return fibBack(expr.CmpOpEq) }

func wayBack() []expr.Any { return fibBack(expr.CmpOpNeq) }

func fibBack(op expr.CmpOp) []expr.Any {
	return []expr.Any{&expr.Fib{Register: reg1, FlagSADDR: true, FlagIIF: true, ResultOIF: true}, compare(op, host32(0))}
}

func count(name string) []expr.Any {
	return []expr.Any{&expr.Objref{Type: unix.NFT_OBJECT_COUNTER, Name: name}}
}

func verdict(k expr.VerdictKind) []expr.Any { return []expr.Any{&expr.Verdict{Kind: k}} }

func jumpChain(name string) []expr.Any {
	return []expr.Any{&expr.Verdict{Kind: expr.VerdictJump, Chain: name}}
}

func gotoChain(name string) []expr.Any {
	return []expr.Any{&expr.Verdict{Kind: expr.VerdictGoto, Chain: name}}
}

// queue hands the packet to one of our queues, chosen by a hash of the address
// pair that is the same for both directions.
func queue(c Config, f features) []expr.Any {
	if f.gate {
		return verdict(expr.VerdictDrop)
	}
	if f.queueExpr {
		q := &expr.Queue{Num: c.QueueNum, Total: uint16(c.Queues)}
		if c.FailOpen {
			q.Flag = expr.QueueFlagBypass
		}
		return []expr.Any{q}
	}
	// struct xt_NFQ_info_v3 { u16 queuenum, queues_total, flags; }, padded to 8
	// as XT_ALIGN asks; NFQ_FLAG_BYPASS is 1. Host byte order.
	info := binary.NativeEndian.AppendUint16(nil, c.QueueNum)
	info = binary.NativeEndian.AppendUint16(info, uint16(c.Queues))
	var flags uint16
	if c.FailOpen {
		flags = 1
	}
	info = binary.NativeEndian.AppendUint16(info, flags)
	padded := xt.Unknown(append(info, 0, 0))
	return []expr.Any{&expr.Target{Name: "NFQUEUE", Rev: 3, Info: &padded}}
}
