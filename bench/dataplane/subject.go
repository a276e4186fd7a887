package dataplane

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"github.com/mdlayher/netlink"
)

// Subjects, in the order they are reported.
const (
	subjectKernel    = "kernel"        // forwarding, no rules, no connection tracking
	subjectConntrack = "conntrack"     // one stateful nft chain
	subjectNft1000   = "nft1000"       // the same with 1,000 rules that a new connection walks
	subjectStock     = "nfqueue_stock" // the same, new connections queued to an accept-all loop
	subjectNFQueue   = "nfqueue"       // tierwalld --dataplane nfqueue
	subjectAFXDP     = "afxdp"         // tierwalld --dataplane afxdp
	subjectAuto      = "auto"          // tierwalld --dataplane auto
	// tierwalld --dataplane afxdp --accelerate
	subjectAccelerated = "afxdp_accelerated"
)

var (
	allSubjects = []string{subjectKernel, subjectConntrack, subjectNft1000, subjectStock, subjectNFQueue, subjectAFXDP, subjectAuto, subjectAccelerated}
	ourSubjects = []string{subjectNFQueue, subjectAFXDP, subjectAuto}
)

// withoutCopy returns the subject that "subject#2" is another one of. Measured
// beside each other, the two should be equal: how much they are not is what the
// machine adds to every ratio.
func withoutCopy(subject string) string {
	subject, _, _ = strings.Cut(subject, "#")
	return subject
}

// linearRules is what subject nft1000 has.
const linearRules = 1000

// stockQueue is the first of the queues of subject nfqueue_stock.
const (
	stockQueue  = 7100
	stockQueues = 2
)

// install puts a subject between the lab's pods. The daemon is nil where there
// is none; the lab's end stops it too.
func (l *lab) install(ctx context.Context, subject string, programs programs) (*process, error) {
	subject = withoutCopy(subject)
	if subject != withoutNode(subject) {
		if err := l.serviceProxy(clusterServices); err != nil {
			return nil, err
		}
	}
	switch subject = withoutNode(subject); subject {
	case subjectKernel:
		return nil, nil
	case subjectConntrack:
		return nil, l.firewall(nil, accept())
	case subjectNft1000:
		return nil, l.firewall(strangers(), accept())
	case subjectStock:
		// Queues before rules: a queue nobody reads drops.
		p, err := l.startStock(ctx, programs)
		if err != nil {
			return nil, err
		}
		return p, l.firewall(nil, queueToStock())
	case subjectNFQueue, subjectAFXDP, subjectAuto:
		return l.startDaemon(ctx, programs, subject)
	case subjectAccelerated:
		return l.startDaemon(ctx, programs, subjectAFXDP, "--accelerate")
	}
	return nil, fmt.Errorf("unknown subject %q: want one of %q", subject, allSubjects)
}

// firewall is the forward chain every stateful packet filter has:
//
//	ct state established,related accept
//	… middle …
//	ct state new: last
//	policy drop
func (l *lab) firewall(middle [][]expr.Any, last []expr.Any) error {
	conn, err := nftables.New(nftables.WithNetNSFd(l.node.NS.FD()), nftables.WithSockOptions(func(nl *netlink.Conn) error {
		// A transaction is one message, with one answer per rule.
		return errors.Join(nl.SetWriteBuffer(4<<20), nl.SetReadBuffer(4<<20))
	}))
	if err != nil {
		return fmt.Errorf("open nf_tables netlink: %w", err)
	}
	policy := nftables.ChainPolicyDrop
	t := conn.AddTable(&nftables.Table{Name: "bench", Family: nftables.TableFamilyIPv4})
	c := conn.AddChain(&nftables.Chain{
		Name: "forward", Table: t, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter, Policy: &policy,
	})
	add := func(exprs []expr.Any) { conn.AddRule(&nftables.Rule{Table: t, Chain: c, Exprs: exprs}) }
	add(append(ctState(expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED), accept()...))
	for _, m := range middle {
		add(m)
	}
	add(append(ctState(expr.CtStateBitNEW), last...))
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("install rules: %w", err)
	}
	return nil
}

// ctState matches connections in any of the states.
func ctState(bits uint32) []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(bits), Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
	}
}

func accept() []expr.Any { return []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}} }

// strangers are rules none of which matches: "ip saddr 198.18.x.y drop"
// (addresses for benchmarks, RFC 2544).
func strangers() (rules [][]expr.Any) {
	for i := range linearRules {
		rules = append(rules, []expr.Any{
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 12, Len: 4},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{198, 18, byte(i >> 8), byte(i)}},
			&expr.Verdict{Kind: expr.VerdictDrop},
		})
	}
	return rules
}

// queueToStock is the xtables NFQUEUE target (through nft_compat), which kernels
// without the nft queue expression have too; revision 3 takes number, count and
// flags as host-order u16s, padded to 8 bytes.
func queueToStock() []expr.Any {
	info := binary.NativeEndian.AppendUint16(nil, stockQueue)
	info = binary.NativeEndian.AppendUint16(info, stockQueues)
	padded := xt.Unknown(append(info, 0, 0, 0, 0))
	return []expr.Any{&expr.Target{Name: "NFQUEUE", Rev: 3, Info: &padded}}
}

// missing says what the machine lacks for subjects that use nf_tables, or nil.
func (l *lab) missing() error {
	conn, err := nftables.New(nftables.WithNetNSFd(l.node.NS.FD()))
	if err != nil {
		return fmt.Errorf("nf_tables: %w", err)
	}
	try := func(what string, exprs []expr.Any) error {
		t := conn.AddTable(&nftables.Table{Name: "bench-probe", Family: nftables.TableFamilyIPv4})
		c := conn.AddChain(&nftables.Chain{Name: "probe", Table: t})
		conn.AddRule(&nftables.Rule{Table: t, Chain: c, Exprs: exprs})
		conn.DelTable(t)
		if err := conn.Flush(); err != nil {
			return fmt.Errorf("the kernel lacks %s: %w", what, err)
		}
		return nil
	}
	return errors.Join(
		try("nft ct state", append(ctState(expr.CtStateBitNEW), accept()...)),
		try("the xtables NFQUEUE target (nft_compat, xt_NFQUEUE)", queueToStock()),
	)
}
