package nfqueue

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/dataplane"
)

// What the kernel can do is found out by using it. That makes the kernel load the
// module, where it has one: on a node that has never used NFQUEUE nothing shows that
// it could. Versions and files tell less: distributions change both.

// Of linux/netfilter/nfnetlink_queue.h.
const (
	msgQueueConfig = unix.NFNL_SUBSYS_QUEUE<<8 | 2 // NFQNL_MSG_CONFIG
	attrConfigCmd  = 1                             // NFQA_CFG_CMD
	cmdPFUnbind    = 4                             // NFQNL_CFG_CMD_PF_UNBIND; does nothing since Linux 3.8
)

var errNoQueueing = dataplane.MissingError{
	Piece:  "way to hand packets to a process (nfnetlink_queue)",
	Module: "nfnetlink_queue", Option: "CONFIG_NETFILTER_NETLINK_QUEUE",
}

// startQueueing makes the kernel load nfnetlink_queue and reports whether queues tell
// a packet's priority (services.go). It takes CAP_NET_ADMIN.
func startQueueing(nsFD int) (priority bool, err error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: nsFD})
	if err != nil {
		return false, fmt.Errorf("open netfilter netlink: %w", err)
	}
	defer conn.Close()
	ask := func(typ uint16, attrs []byte) error {
		_, err := conn.Execute(netlink.Message{
			Header: netlink.Header{Type: netlink.HeaderType(typ), Flags: netlink.Request | netlink.Acknowledge},
			Data:   append([]byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, 0}, attrs...),
		})
		return err
	}
	// A message to a subsystem that is not there loads its module.
	switch err := ask(msgQueueConfig, appendAttr(nil, attrConfigCmd, []byte{cmdPFUnbind, 0, 0, 0})); {
	case errors.Is(err, unix.EPERM):
		return false, fmt.Errorf("ask the kernel for nfnetlink_queue: CAP_NET_ADMIN (or root) is needed: %w", err)
	case err != nil:
		missing := errNoQueueing
		missing.Cause = err
		return false, &missing
	}
	// A kernel that knows the attribute refuses one that is too short. One that does
	// not passes it over, and has no such queue of ours to give a verdict in.
	verdict := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, nfDrop), 0)
	switch err := ask(msgVerdict, appendAttr(appendAttr(nil, attrVerdict, verdict), nfqaPriority, []byte{0})); {
	case errors.Is(err, unix.ERANGE), errors.Is(err, unix.EINVAL):
		return true, nil
	case errors.Is(err, unix.ENODEV), errors.Is(err, unix.EPERM): // nobody's queue, or another program's
		return false, nil
	default:
		return false, fmt.Errorf("try whether queues tell a packet's priority: %w", cmp.Or(err, errors.New("the kernel took a verdict about nothing")))
	}
}

// probeTable is there only while an expression is tried.
const probeTable = TableName + "-probe"

// try reports whether the kernel takes a rule in a chain that the hooks lead to. It
// asks for good, because whether an expression may be in a hook is checked at the
// transaction's end, for the chains that are left. No packet meets the rule.
func (f *firewall) try(family nftables.TableFamily, hooks []*nftables.ChainHook, exprs []expr.Any) error {
	table := &nftables.Table{Name: probeTable, Family: family}
	remove := func() error {
		f.conn.DelTable(f.conn.AddTable(table))
		return f.conn.Flush()
	}
	if err := remove(); err != nil { // what a process left that was killed
		return err
	}
	f.conn.AddTable(table)
	tried := f.conn.AddChain(&nftables.Chain{Name: "tried", Table: table})
	f.conn.AddRule(&nftables.Rule{Table: table, Chain: tried, Exprs: exprs})
	for i, hook := range hooks {
		ch := f.conn.AddChain(&nftables.Chain{
			Name: fmt.Sprintf("hook%d", i), Table: table, Type: nftables.ChainTypeFilter, Hooknum: hook, Priority: nftables.ChainPriorityFilter,
		})
		f.conn.AddRule(&nftables.Rule{Table: table, Chain: ch, Exprs: verdict(expr.VerdictAccept)})
		f.conn.AddRule(&nftables.Rule{Table: table, Chain: ch, Exprs: jumpChain(tried.Name)})
	}
	if err := once(f.conn.Flush()); err != nil {
		return err
	}
	return remove()
}

// once leaves out of what a transaction failed with what it says again.
func once(err error) error {
	var all interface{ Unwrap() []error }
	if !errors.As(err, &all) {
		return err
	}
	var kept []error
	said := map[string]bool{}
	for _, e := range all.Unwrap() {
		if !said[e.Error()] {
			said[e.Error()] = true
			kept = append(kept, e)
		}
	}
	if len(kept) == 1 {
		return kept[0]
	}
	return errors.Join(kept...)
}

var (
	judgedHooks  = []*nftables.ChainHook{nftables.ChainHookForward, nftables.ChainHookInput, nftables.ChainHookOutput}
	arrivedHooks = []*nftables.ChainHook{nftables.ChainHookForward, nftables.ChainHookInput}
	earlyHooks   = []*nftables.ChainHook{nftables.ChainHookPrerouting}
)

// probe finds out what the kernel can do.
func (f *firewall) probe() error {
	priority, err := startQueueing(f.nsFD)
	if err != nil {
		return err
	}
	if f.features, err = findFeatures(f.config, f.try); err != nil {
		return err
	}
	f.features.priority = priority
	if f.config.pretend != nil {
		f.config.pretend(&f.features)
	}
	return nil
}

// A trier tries a rule in hooks: (*firewall).try.
type trier func(nftables.TableFamily, []*nftables.ChainHook, []expr.Any) error

// findFeatures finds out which rules the kernel takes. What it lacks is left out of the
// ruleset, so a rule counts as unknown to the kernel only if the kernel says that: where
// trying it fails for another reason, what would be left out is not known to be missing.
func findFeatures(c Config, try trier) (f features, err error) {
	inet := nftables.TableFamilyINet
	if err := try(inet, judgedHooks, ctMarkHas(c.Marks.Accept)); err != nil {
		if errors.Is(err, unix.EPERM) {
			return f, fmt.Errorf("ask the kernel for nf_tables: CAP_NET_ADMIN (or root) is needed: %w", err)
		}
		return f, &dataplane.MissingError{
			Piece:  "nf_tables with connection marks",
			Module: "-a nf_tables nft_ct nf_conntrack", Option: "CONFIG_NF_TABLES, CONFIG_NF_TABLES_INET, CONFIG_NFT_CT and CONFIG_NF_CONNTRACK_MARK", Cause: err,
		}
	}
	if f.queueExpr, err = findQueue(c, try); err != nil {
		return f, err
	}
	for _, want := range []struct {
		name  string
		found *bool
		hooks []*nftables.ChainHook
		rule  []expr.Any
	}{
		{"fib saddr type", &f.fib, judgedHooks, sourceIsLocal()},
		{"fib saddr . iif", &f.back, arrivedHooks, noWayBack()},
		{"fib saddr . iif before routing", &f.backEarly, earlyHooks, noWayBack()},
		{"reject", &f.reject, judgedHooks, reject(unix.NFT_REJECT_TCP_RST, 0)},
		{"ct zone", &f.zones, judgedHooks, ctZoned()},
	} {
		if want.found == &f.backEarly && f.back {
			continue
		}
		err := try(inet, want.hooks, want.rule)
		if err != nil && !unknownToKernel(err) {
			return f, fmt.Errorf("try whether the kernel has nftables' %q: %w", want.name, err)
		}
		*want.found = err == nil
	}
	return f, nil
}

// findQueue reports whether the kernel has nftables' own queue expression. If it has
// neither that nor the target of xtables, the error says so.
func findQueue(c Config, try trier) (native bool, err error) {
	inet := nftables.TableFamilyINet
	expression := try(inet, judgedHooks, queue(c, features{queueExpr: true}))
	if expression == nil {
		return true, nil
	}
	target := queue(c, features{})
	// In a table of family inet the kernel does not know which module to load for
	// a target of xtables; in one of family ip it does.
	_ = try(nftables.TableFamilyIPv4, arrivedHooks, target)
	if err := try(inet, judgedHooks, target); err != nil {
		return false, &dataplane.MissingError{
			Piece:  "rule that queues packets, neither nftables' own nor xtables' NFQUEUE",
			Module: "nft_queue", Option: "CONFIG_NFT_QUEUE (or CONFIG_NFT_COMPAT and CONFIG_NETFILTER_XT_TARGET_NFQUEUE)",
			Cause: fmt.Errorf("queue: %w; NFQUEUE: %w", expression, err),
		}
	}
	return false, nil
}

// unknownToKernel reports whether all that a transaction failed with is what the kernel
// answers to a rule it does not have: no such expression or module, not in this hook or
// family, no such attribute.
func unknownToKernel(err error) bool {
	var all interface{ Unwrap() []error }
	if errors.As(err, &all) {
		parts := all.Unwrap()
		for _, e := range parts {
			if !unknownToKernel(e) {
				return false
			}
		}
		return len(parts) > 0
	}
	for _, no := range []unix.Errno{unix.ENOENT, unix.EOPNOTSUPP, unix.EINVAL, unix.EAFNOSUPPORT, unix.EPROTONOSUPPORT, unix.EPROTOTYPE} {
		if errors.Is(err, no) {
			return true
		}
	}
	return false
}

var errNoFib = dataplane.MissingError{
	Piece:  "way to tell whether a packet's source is forged (nftables' fib expression)",
	Module: "-a nft_fib_inet nft_fib_ipv4 nft_fib_ipv6", Option: "CONFIG_NFT_FIB_INET, CONFIG_NFT_FIB_IPV4 and CONFIG_NFT_FIB_IPV6",
}

// Lacks returns what was configured and the backend cannot do on this kernel, or nil.
func (b *Backend) Lacks() error {
	f := b.fw.features
	if b.config.AllowSpoofing || f.fib && (f.back || f.backEarly) {
		return nil
	}
	return &errNoFib
}

// Facts says in a line how the backend works on this kernel, for operators.
func (b *Backend) Facts() string {
	f := b.fw.features
	facts := []string{"queues by xtables' NFQUEUE"}
	if f.queueExpr {
		facts[0] = "queues by nftables' queue expression"
	}
	switch {
	case b.config.AllowSpoofing:
		facts = append(facts, "forged sources are allowed")
	case f.fib && f.back:
		facts = append(facts, "forged sources are dropped")
	case f.fib && f.backEarly:
		facts = append(facts, "forged sources are dropped before routing")
	}
	return strings.Join(append(facts, b.Limits()...), "; ")
}

// Limits says what the backend does not do on this kernel and does on others.
func (b *Backend) Limits() (limits []string) {
	f := b.fw.features
	switch {
	case b.config.AllowSpoofing, f.fib && (f.back || f.backEarly):
	case f.fib:
		limits = append(limits, "of forged sources only the node's own addresses are found (nft_fib)")
	default:
		limits = append(limits, "forged sources are not found (no nft_fib: run \"modprobe nft_fib_inet\")")
	}
	if !f.reject {
		limits = append(limits, "refusals are not answered (no nft_reject: run \"modprobe nft_reject_inet\")")
	}
	if !f.priority {
		limits = append(limits, "rules about Services see the backend only (Linux 5.18)")
	}
	return limits
}
