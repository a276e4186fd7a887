package nfqueue

import (
	"encoding/binary"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"golang.org/x/sys/unix"
)

// Names inside the kernel. They are part of the interface: operators see them
// in "nft list ruleset", and a new version must find the table of an old one.
const (
	TableName = "tierwall"

	setSelected4    = "selected4"
	setSelected6    = "selected6"
	counterBypassed = "bypassed"
	counterQueued   = "queued"
)

// Hook priorities. We judge after everyone's filter chains (priority 0), so that
// a packet somebody else drops never costs an upcall or an audit record, and
// save a verdict right behind.
const (
	priorityJudge nftables.ChainPriority = 10
	prioritySave  nftables.ChainPriority = 20
)

// features are what the kernel lets us use.
type features struct {
	queueExpr bool // native nft "queue", else xtables NFQUEUE
	fib       bool // "fib saddr type local", else the output hook asks userspace
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
	known := ruleSpec{"accepted connection", join(ctMarkHas(accept), count(counterBypassed), verdict(expr.VerdictAccept))}
	passed := ruleSpec{"accepted by the fast path; chain save remembers it", join(markHas(accept), verdict(expr.VerdictAccept))}
	own := []ruleSpec{
		// Without this a connection that a policy update has cut would be opened
		// again by the node's next answer.
		{"answers to pods: judged when the pod opened the connection", join(ctDirection(reply), verdict(expr.VerdictAccept))},
	}
	if f.fib {
		own = append(own,
			ruleSpec{"the node's own connection: its replies pass", join(sourceIsLocal(), setCtMark(accept))},
			ruleSpec{"the node's own traffic to its pods passes", join(sourceIsLocal(), verdict(expr.VerdictAccept))},
		)
	}
	own = append(own, ruleSpec{"sent on behalf of somebody else", gotoChain("judge")})
	save := []ruleSpec{
		{"the rest of the connection stays in the kernel", join(markHas(accept), setCtMark(accept))},
		{"our bits end here", join(markHas(ours), setMark(^ours, 0))},
	}
	return []chain{
		{name: "judge", rules: []ruleSpec{
			{"bits of other software are no verdict", setMark(^ours, 0)},
			{"tell userspace the direction", join(ctDirection(reply), setMark(^uint32(0), c.Marks.Reply))},
			{"ask userspace", join(count(counterQueued), queue(c, f))},
		}},
		{name: "own", rules: own},
		{name: "forward", hook: nftables.ChainHookForward, priority: priorityJudge, rules: []ruleSpec{
			known,
			passed,
			{"to a policed pod", join(addressIn(unix.NFPROTO_IPV4, dst), gotoChain("judge"))},
			{"from a policed pod", join(addressIn(unix.NFPROTO_IPV4, src), gotoChain("judge"))},
			{"to a policed pod", join(addressIn(unix.NFPROTO_IPV6, dst), gotoChain("judge"))},
			{"from a policed pod", join(addressIn(unix.NFPROTO_IPV6, src), gotoChain("judge"))},
		}},
		{name: "forward-save", hook: nftables.ChainHookForward, priority: prioritySave, rules: save},
		{name: "input", hook: nftables.ChainHookInput, priority: priorityJudge, rules: []ruleSpec{
			known,
			passed,
			{"neighbour discovery", join(neighbourDiscovery(), verdict(expr.VerdictAccept))},
			{"from a policed pod", join(addressIn(unix.NFPROTO_IPV4, src), gotoChain("judge"))},
			{"from a policed pod", join(addressIn(unix.NFPROTO_IPV6, src), gotoChain("judge"))},
		}},
		{name: "input-save", hook: nftables.ChainHookInput, priority: prioritySave, rules: save},
		{name: "output", hook: nftables.ChainHookOutput, priority: priorityJudge, rules: []ruleSpec{
			{"refusals pass and do not accept the connection they refuse", join(markHas(accept), setMark(^ours, 0), verdict(expr.VerdictAccept))},
			{"accepted connection", join(ctMarkHas(accept), verdict(expr.VerdictAccept))},
			{"to a policed pod", join(addressIn(unix.NFPROTO_IPV4, dst), gotoChain("own"))},
			{"to a policed pod", join(addressIn(unix.NFPROTO_IPV6, dst), gotoChain("own"))},
		}},
		{name: "output-save", hook: nftables.ChainHookOutput, priority: prioritySave, rules: save},
	}
}

// Numbers of the kernel's rule language that the libraries do not name.
const (
	reg1  = 1 // 16-byte register, the verdict register is 0
	reply = 1 // enum ip_conntrack_dir: IP_CT_DIR_REPLY

	fibLocal = unix.RTN_LOCAL
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

func protocolIs(nfproto byte) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: reg1}, compare(expr.CmpOpEq, []byte{nfproto})}
}

// addressIn matches packets of a family whose source or destination is a
// selected pod.
func addressIn(nfproto byte, s side) []expr.Any {
	load := &expr.Payload{DestRegister: reg1, Base: expr.PayloadBaseNetworkHeader}
	set := setSelected4
	if nfproto == unix.NFPROTO_IPV4 {
		load.Offset, load.Len = 12, 4 // RFC 791 §3.1
	} else {
		load.Offset, load.Len = 8, 16 // RFC 8200 §3
		set = setSelected6
	}
	if s == dst {
		load.Offset += load.Len
	}
	return join(protocolIs(nfproto), []expr.Any{load, &expr.Lookup{SourceRegister: reg1, SetName: set}})
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
		compare(expr.CmpOpEq, host32(fibLocal)),
	}
}

func count(name string) []expr.Any {
	return []expr.Any{&expr.Objref{Type: unix.NFT_OBJECT_COUNTER, Name: name}}
}

func verdict(k expr.VerdictKind) []expr.Any { return []expr.Any{&expr.Verdict{Kind: k}} }

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
