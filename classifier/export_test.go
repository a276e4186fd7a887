package classifier

import (
	"runtime"
	"slices"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
)

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

// WithoutRules returns the table with nothing left of its rules but the programs
// they were compiled to: who looks at a rule finds none, or nil.
func (t *Table) WithoutRules() *Table {
	bare := *t
	bare.rules, bare.isolations = chunks[*rule.Rule]{}, chunks[*rule.Isolation]{}
	bare.subjects = slices.Clone(t.subjects)
	for i := range bare.subjects {
		bare.subjects[i].subject = nil
	}
	return &bare
}

// IntervalsRead counts the words of a connection's program that its outcome in a
// direction depends on: a search that looks at one is misled when it is another.
// The cell must be there.
func (t *Table) IntervalsRead(d flow.Direction, k flow.Key) (read, all int) {
	subject, peer := t.resolve(&k.Src), t.resolve(&k.Dst)
	if d == flow.Ingress {
		subject, peer = peer, subject
	}
	serial := t.subjects[subject.rec.subject].serial[d]
	p := (*t.mem.programs.Load())[t.mem.cells.Load().get(cellKey(serial, peer.serial()))]
	if len(p) == 1 {
		return 1, 1
	}
	slot := t.mem.slots[k.Proto]
	want := p.lookup(slot, k.DstPort, k.SrcPort)
	first, count := int(p[slot]>>32), int(uint32(p[slot]))
	for i := first; i < first+count; i++ {
		misled := slices.Clone(p)
		depends := false
		for _, last := range []uint16{0, 0xffff} {
			misled[i] = interval(last, uint32(want)+1)
			depends = depends || misled.lookup(slot, k.DstPort, k.SrcPort) != want
		}
		if depends {
			read++
		}
	}
	return read, count
}

// WaitForPrograms waits until no goroutine builds a program.
func (t *Table) WaitForPrograms() {
	for t.mem.building.Load() {
		runtime.Gosched()
	}
}
