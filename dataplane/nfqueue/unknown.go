package nfqueue

import (
	"net/netip"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/classifier/flow"
)

// Where the table does not say which addresses this node's pods have (the Node object has
// no pod CIDRs), Config.PodCIDRs names networks that the pods of all nodes share. An
// address in them that is neither selected nor free may be a pod's on another node, or a
// pod's here that has just started: the device tells. A pod is behind a veth, or a bridge,
// that no route to a gateway or to another network uses. This is known without having seen
// the device before, so that the pod's first packet is dropped, too.

// Chains for packets with such an address; they return for devices towards other nodes.
const (
	chainUnknownFrom = "unknown-from"
	chainUnknownTo   = "unknown-to"
	chainUnknownOut  = "unknown-out"
)

// forgotten reports whether an address in Config.PodCIDRs was a known pod's of this node
// and is no longer: the next pod with it may be another one.
func (b *Backend) forgotten(before pods, a flow.Addr) bool {
	if !b.config.dropsUnknown() {
		return false
	}
	ip := a.Netip()
	known := func(p *pods) bool {
		_, selected := p.selected[ip]
		_, free := p.free[ip]
		return selected || free
	}
	return known(&before) && !known(&b.fw.pods) && slices.ContainsFunc(b.config.PodCIDRs, func(p netip.Prefix) bool { return p.Contains(ip) })
}

// dropsUnknown reports whether the rules below are in the table.
func (c Config) dropsUnknown() bool { return !c.FailOpen && len(c.PodCIDRs) > 0 }

// nobody matches packets with an address of the pods' networks that no known pod of this
// node has.
func (v family) nobody(s side) []expr.Any {
	return join(v.load(s), v.in(setNetworks), v.notIn(setSelected), v.notIn(setFree))
}

// unknownPods returns the first rules of a chain that looks at these addresses. It comes
// before the rules about selected pods: policy was not asked about the unknown end.
func unknownPods(c Config, v family, sides ...side) (rules []ruleSpec) {
	if !c.dropsUnknown() {
		return nil
	}
	for _, s := range sides {
		chain, comment := chainUnknownFrom, "perhaps from a local pod that is not known"
		if s == dst {
			chain, comment = chainUnknownTo, "perhaps to a local pod that is not known"
		}
		rules = append(rules, ruleSpec{comment, join(v.nobody(s), jumpChain(chain))})
	}
	return rules
}

// toUnknownPods is unknownPods for the output hook.
func toUnknownPods(c Config, v family) []ruleSpec {
	if !c.dropsUnknown() {
		return nil
	}
	return []ruleSpec{{"perhaps to a local pod that is not known", join(v.nobody(dst), jumpChain(chainUnknownOut))}}
}

// unknownChains drop what comes from, or goes to, a device that pods may be behind. What
// the node itself opens to such a pod passes, and is marked so that the pod can
// answer.
func unknownChains(c Config, f features) []chain {
	if !c.dropsUnknown() {
		return nil
	}
	drop := func(match []expr.Any) []expr.Any {
		return join(match, count(counterUnknown), verdict(expr.VerdictDrop))
	}
	devices := func(index expr.MetaKey, kind expr.MetaKey) []ruleSpec {
		in := func(set string) []expr.Any {
			return []expr.Any{&expr.Meta{Key: index, Register: reg1}, &expr.Lookup{SourceRegister: reg1, SetName: set}}
		}
		return []ruleSpec{
			{"a device of pods", drop(in(setDevices))},
			{"a device towards other nodes", join(in(setUplinks), verdict(expr.VerdictReturn))},
			{"a veth", drop(kindIs(kind, "veth"))},
			{"a bridge", drop(kindIs(kind, "bridge"))},
		}
	}
	own := []ruleSpec{{"the node's own", join(sourceIsLocal(), gotoChain("own"))}}
	if !f.fib {
		own[0].exprs = gotoChain("own")
	}
	return []chain{
		{name: chainUnknownFrom, rules: devices(expr.MetaKeyIIF, metaInKind)},
		{name: chainUnknownTo, rules: devices(expr.MetaKeyOIF, metaOutKind)},
		{name: chainUnknownOut, rules: append(own, devices(expr.MetaKeyOIF, metaOutKind)...)},
	}
}

// forgedUnknown finds the address of a known pod of this node on another way than back to
// that pod, as arrived does for pods in the table's prefixes.
func forgedUnknown(c Config, v family) (rules []ruleSpec) {
	if !c.dropsUnknown() {
		return nil
	}
	for _, set := range []string{setSelected, setFree} {
		rules = append(rules, ruleSpec{
			"forged: a local pod's address, from elsewhere",
			join(v.is(), v.load(src), v.in(setNetworks), v.in(set), noWayBack(), count(counterForged), verdict(expr.VerdictDrop)),
		})
	}
	return rules
}

// forgedEarly is forgedUnknown for kernels that look back before routing only.
func forgedEarly(c Config, v family) []ruleSpec {
	if !c.dropsUnknown() {
		return nil
	}
	return []ruleSpec{
		{"forged: a policed pod's address", join(v.load(src), v.in(setNetworks), v.in(setSelected), noWayBack(), gotoChain("forged"))},
		{"forged: a local pod's address, to a policed pod", join(v.load(src), v.in(setNetworks), v.in(setFree), v.load(dst), v.in(setSelected), noWayBack(), gotoChain("forged"))},
	}
}

// Of enum nft_meta_keys (Linux 5.1); the libraries do not name them.
const (
	metaInKind  expr.MetaKey = 26 // NFT_META_IIFKIND
	metaOutKind expr.MetaKey = 27 // NFT_META_OIFKIND
)

// kindIs matches packets by the kind of a device, as "ip link add type" has it.
func kindIs(key expr.MetaKey, kind string) []expr.Any {
	name := make([]byte, unix.IFNAMSIZ)
	copy(name, kind)
	return []expr.Any{&expr.Meta{Key: key, Register: reg1}, compare(expr.CmpOpEq, name)}
}
