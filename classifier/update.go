package classifier

import (
	"net/netip"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
)

// Update is [Live.Apply] on what the last successful Compile, Refill or Update
// led to: for who knows what changed, at the cost of that. Compile can follow, and
// finds what Update left. ErrNothingCompiled is returned before the first Compile.
func (c *Compiler) Update(d *Delta) (*Table, *Report, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.live == nil {
		return nil, nil, ErrNothingCompiled
	}
	t, report, err := c.live.Apply(d)
	if err != nil {
		return nil, nil, err
	}
	if len(d.Pods)+len(d.DropPods)+len(d.Namespaces) > 0 {
		c.pods = nil
	}
	if len(d.Policies) > 0 {
		c.set, c.setKnown = rule.Set{}, false
	}
	return t, report, nil
}

// Policy returns what an object brings to the policy in force, in canonical order
// if it came so. Its rules are read only. It is empty for an object that brings
// nothing, and before the first Compile.
func (c *Compiler) Policy(ref PolicyRef) rule.Set {
	c.mu.Lock()
	defer c.mu.Unlock()
	var set rule.Set
	if c.live == nil {
		return set
	}
	c.live.mu.Lock()
	defer c.live.mu.Unlock()
	if p := c.live.policies[ref]; p != nil {
		for _, r := range p.rules {
			set.Rules = append(set.Rules, *r.rule)
		}
		for _, i := range p.isolations {
			set.Isolations = append(set.Isolations, *i.rule)
		}
	}
	return set
}

// Knows reports whether an address is that of a pod or a node.
func (t *Table) Knows(a netip.Addr) bool {
	key := flow.AddrFrom(a)
	return t.addrs.get(&key).rec != nil
}
