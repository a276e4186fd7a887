package classifier

import "github.com/tierwall/tierwall/classifier/flow"

// SetSerialLimits makes numbering begin again that early.
func (l *Live) SetSerialLimits(subject, peer uint32) { l.limits = serialLimits{subject, peer} }

// Series counts how often numbering began.
func (t *Table) Series() uint64 { return t.series }

// SharesMemory reports whether two tables remember together.
func (t *Table) SharesMemory(o *Table) bool { return t.mem == o.mem }

// CellCount is the number of cells there is room for.
func (t *Table) CellCount() int { return len(t.mem.cells.Load().words) }

// Idle returns how many prefixes are kept although nothing mentions them.
func (l *Live) Idle() int { return len(l.idle) }

// Counts returns the sizes of what must not leak.
func (l *Live) Counts() map[string]int {
	prefixes := 0
	for _, u := range l.uses {
		if !u.idle() {
			prefixes++
		}
	}
	scopes := 0
	for _, s := range l.scopes {
		scopes += len(s)
	}
	return map[string]int{
		"policies": len(l.policies), "scopes": scopes, "subjects": len(l.subjects), "rules": l.ruleIDs.used(),
		"isolations": l.isolationIDs.used(), "namespaces": len(l.namespaces), "pods": l.podCount, "local pods": l.localCount,
		"identities": l.identities.count, "contested": len(l.contested), "nodes": len(l.nodes),
		"node claims": len(l.nodeClaims), "pod CIDRs": len(l.podCIDRs), "regions": len(l.regions), "prefixes": prefixes,
		"addresses": l.s.addrs.count(), "sets": len(l.sets), "set numbers": l.setIDs.used(),
	}
}

// PeerClasses returns how many classes addresses have, and how many addresses
// are counted as their users.
func (l *Live) PeerClasses() (classes, users int) {
	seen := map[*peerClass]bool{}
	l.s.addrs.each(func(_ flow.Addr, r *record) {
		if !seen[r.peer] {
			users += int(r.peer.refs)
		}
		seen[r.peer] = true
	})
	return l.peerCount, users
}
