package classifier

import (
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/gaissmai/bart"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
)

// Table is an immutable compiled policy. Any number of goroutines may use it.
type Table struct {
	generation uint64
	world      *rule.World
	rules      []rule.Rule      // canonical order
	isolations []rule.Isolation // canonical order
	peerAtoms  [][]uint32       // per rule and peer: number of its selector, block or set

	addrs    addrTable          // pods and nodes, exact
	prefixes bart.Table[uint32] // prefixes of policies → index of leaves
	podCIDRs bart.Lite          // addresses in here without a record are unknown
	leaves   []record           // one per prefix; leaves[0] is "no prefix"
	unknown  record             // the unknown address
	vips     map[flow.Addr]struct{}
	slots    [256]uint8 // protocol → program slot
	protos   []flow.Proto

	dirs     [2]direction
	selected []netip.Addr
	locals   []netip.Addr

	fill     sync.Mutex // serialises cell filling; guards consing
	consing  consing
	programs atomic.Pointer[[]*program]
	outcomes atomic.Pointer[[]*Outcome]
}

// direction is the part of a table that belongs to one flow.Direction.
type direction struct {
	subjects []subjectClass
	peers    []peerClass
	rows     []row // parallel to subjects
}

// row holds the cells of one subject class, indexed by peer class. Zero means
// not filled; other values are a program's index plus one.
type row []atomic.Uint32

// record is what an address resolves to.
type record struct {
	endpoint int32 // index into world.Endpoints, -1 if not a pod's own address
	node     int32 // node that has this address, -1 if none
	runsOn   int32 // node the pod runs on, -1 if none or not a pod
	local    bool  // a pod policed here: subject is valid
	subject  [2]uint32
	peer     [2]uint32
}

// Lookup decides a connection. k is in the direction the connection was opened;
// an invalid key is dropped by the default of its zero classes, never allowed
// by accident. No allocation once the cells involved are filled.
func (t *Table) Lookup(k flow.Key) Decision {
	src, dst := t.resolve(&k.Src), t.resolve(&k.Dst)
	eg := t.decide(flow.Egress, src, dst, &k)
	in := t.decide(flow.Ingress, dst, src, &k)
	v := eg.verdict()
	if v == Allow {
		v = in.verdict()
	}
	return Decision{Verdict: v, Egress: eg, Ingress: in, Audit: eg.audit() || in.audit()}
}

func (t *Table) decide(d flow.Direction, subject, peer *record, k *flow.Key) OutcomeID {
	if !subject.local {
		return outcomeNotLocal
	}
	if k.Src == k.Dst {
		return outcomeSelf
	}
	if d == flow.Ingress && peer.node >= 0 && peer.node == subject.runsOn {
		return outcomeNodeLocal
	}
	s, p := subject.subject[d], peer.peer[d]
	cell := &t.dirs[d].rows[s][p]
	id := cell.Load()
	if id == 0 {
		id = t.fillCell(d, s, p)
	}
	return (*t.programs.Load())[id-1].lookup(t.slots[k.Proto], k.DstPort, k.SrcPort)
}

// resolve maps an address to its record: exact, unknown, or by prefix.
func (t *Table) resolve(a *flow.Addr) *record {
	if r := t.addrs.get(a); r != nil {
		return r
	}
	ip := a.Netip()
	if t.podCIDRs.Contains(ip) {
		return &t.unknown
	}
	if leaf, ok := t.prefixes.Lookup(ip); ok {
		return &t.leaves[leaf]
	}
	return &t.leaves[0]
}

// Generation returns Options.Generation.
func (t *Table) Generation() uint64 { return t.generation }

// World returns the world the table was compiled for. Read only.
func (t *Table) World() *rule.World { return t.world }

// Outcome resolves an id from a Decision of this table. Zero yields nil.
func (t *Table) Outcome(id OutcomeID) *Outcome {
	if id == 0 {
		return nil
	}
	return (*t.outcomes.Load())[id.index()]
}

// Rule resolves a rule id of this table. The result is read only.
func (t *Table) Rule(id RuleID) *rule.Rule { return &t.rules[id] }

// Isolation resolves an isolation index of this table. The result is read only.
func (t *Table) Isolation(i int32) *rule.Isolation { return &t.isolations[i] }

// Endpoint returns the pod that has the address as its own, or nil. Addresses
// shared by host-network pods belong to the node and yield nil.
func (t *Table) Endpoint(a flow.Addr) *rule.Endpoint {
	if r := t.addrs.get(&a); r != nil && r.endpoint >= 0 {
		return &t.world.Endpoints[r.endpoint]
	}
	return nil
}

// NodeOf returns the node that has the address, or nil.
func (t *Table) NodeOf(a flow.Addr) *rule.Node {
	if r := t.addrs.get(&a); r != nil && r.node >= 0 {
		return &t.world.Nodes[r.node]
	}
	return nil
}

// IsVIP reports whether a is a Service address (see rule.World.VIPs).
func (t *Table) IsVIP(a flow.Addr) bool {
	_, ok := t.vips[a]
	return ok
}

// Selected returns the addresses of local pods that at least one rule or
// isolation selects in either direction, sorted. Only their traffic needs
// judging. The result is read only.
func (t *Table) Selected() []netip.Addr { return t.selected }

// Locals returns the addresses of all local pods, sorted. The result is read
// only.
func (t *Table) Locals() []netip.Addr { return t.locals }
