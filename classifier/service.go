package classifier

import (
	"cmp"
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
)

// Connections to Services. The Service proxy replaces the destination before any
// hook of ours sees it; who knows where the connection was opened to asks
// LookupVia. Rules to Services (rule.PeerService) are matched with that, all other
// rules with the backend, in the one order all rules have.
//
// For one Service a rule to Services either matches whatever the rest of the key
// says, or not at all. So the answer is a program like any other, built of the
// rules that match; it depends on the subject, the backend's class, the leaf of the
// Service's address, its port and the protocol.

// ServicePort is one port of a Service that a rule names.
type ServicePort struct {
	flow.Service
	Proto flow.Proto
	Set   string // by which address set the rule knows it
}

// Services returns what the rules to Services name, sorted: the connections for
// which LookupVia may answer otherwise than Lookup. Prefixes of more than one
// address in a set are left out: no Service has such. Read only.
func (t *Table) Services() []ServicePort { return t.services }

// ServiceOf returns the name of the address set by which a rule knows the Service,
// "" if none does.
func (t *Table) ServiceOf(via flow.Service) string {
	i, _ := slices.BinarySearchFunc(t.services, ServicePort{Service: via}, compareServicePorts)
	if i < len(t.services) && t.services[i].Service == via {
		return t.services[i].Set // of several names the first; a Service has one address
	}
	return ""
}

func compareServicePorts(a, b ServicePort) int {
	return cmp.Or(slices.Compare(a.Addr[:], b.Addr[:]), cmp.Compare(a.Port, b.Port), cmp.Compare(a.Proto, b.Proto), cmp.Compare(a.Set, b.Set))
}

// services lists what rules to Services name now, and sets with the addresses.
func (l *Live) services() (list []ServicePort, sets map[string][]netip.Prefix) {
	if len(l.toServices) == 0 {
		return nil, nil
	}
	sets = map[string][]netip.Prefix{}
	for e := range l.toServices {
		for i := range e.rule.Peers {
			name := e.rule.Peers[i].Set
			sets[name] = l.setOf(name).index
			for _, p := range sets[name] {
				if !p.IsSingleIP() {
					continue
				}
				for _, l4 := range e.rule.L4 {
					list = append(list, ServicePort{
						Service: flow.Service{Addr: flow.AddrFrom(p.Addr()), Port: l4.Ports.First}, Proto: l4.Proto, Set: name,
					})
				}
			}
		}
	}
	slices.SortFunc(list, compareServicePorts)
	return slices.Clip(slices.Compact(list)), sets
}

// sameServices reports whether rules to Services that both tables have mean the
// same addresses. A rule that only one has makes other subjects.
func (s *state) sameServices(o *state) bool {
	for name, prefixes := range s.serviceSets {
		if there, ok := o.serviceSets[name]; ok && !slices.Equal(prefixes, there) {
			return false
		}
	}
	return true
}

// LookupVia decides a connection that was opened to via; k has the backend as its
// destination. The zero via is Lookup. It allocates nothing once the answer for the
// Service and the backend's class was asked for; where more of them are in use than
// are remembered (viaSlots), it takes the lock of first touches at times.
func (t *Table) LookupVia(k flow.Key, via flow.Service) Decision {
	if via.IsZero() {
		return t.Lookup(k)
	}
	src, dst := t.resolve(&k.Src), t.resolve(&k.Dst)
	eg, in := outcomeNotLocal, outcomeNotLocal
	if src.local() {
		eg = t.decideVia(src, dst, &k, via)
	}
	if dst.local() {
		in = t.decide(flow.Ingress, dst, src, &k)
	}
	v := eg.verdict()
	if v == Allow {
		v = in.verdict()
	}
	return Decision{Verdict: v, Egress: eg, Ingress: in, Audit: (eg|in)&outcomeAudit != 0}
}

// viaKey names an answer for a Service. No serial is used twice while a memory
// lasts.
type viaKey struct {
	subject, peer, leaf uint32
	port                uint16
	proto               flow.Proto
}

type viaCell struct {
	key     viaKey
	program uint32
}

// viaSlots is how many answers a memory keeps; 300 KB where all are in use.
const viaSlots = 1 << 12

// viaCells are like cells a cache of answers that are right for every table of the
// memory. Cells are immutable: a reader needs no lock.
type viaCells [viaSlots]atomic.Pointer[viaCell]

func (k *viaKey) slot() uint64 {
	h := mix(uint64(k.subject)<<32 | uint64(k.peer))
	return mix(h^uint64(k.leaf)<<32^uint64(k.port)<<8^uint64(k.proto)) % viaSlots
}

func (t *Table) decideVia(subject, peer party, k *flow.Key, via flow.Service) OutcomeID {
	s := t.subjects[subject.rec.subject].subject
	if !s.services || subject.rec == peer.rec {
		return t.decide(flow.Egress, subject, peer, k)
	}
	leaf := t.leafOf(via.Addr)
	key := viaKey{s.serial[flow.Egress], peer.serial(), leaf.party.serial(), via.Port, k.Proto}
	if cells := t.mem.via.Load(); cells != nil {
		if c := cells[key.slot()].Load(); c != nil && c.key == key {
			return t.mem.outcome(c.program, k)
		}
	}
	return t.fillVia(s, peer.rec.peer, leaf, k, via, key)
}

// leafOf returns what prefixes say of an address, whoever has it.
func (t *Table) leafOf(a flow.Addr) *leaf {
	if l, ok := t.prefixes.Lookup(a.Netip()); ok {
		return l
	}
	return t.none
}

// fillVia is fill for connections through a Service.
func (t *Table) fillVia(s *subject, p *peerClass, leaf *leaf, k *flow.Key, via flow.Service, key viaKey) OutcomeID {
	const d = flow.Egress
	m := t.mem
	var (
		msBuf  [32]match
		keyBuf [64]byte
	)
	ms := s.matchesVia(p, leaf, k.Proto, via.Port, msBuf[:0])
	// No other key begins with zero and goes on.
	text := s.matchKey(d, p, ms, append(keyBuf[:0], 0))

	id := m.known(s.serial[d], text)
	if id == 0 {
		cands := s.candidatesVia(p, ms)
		if id = m.decideAll(d, s, text, cands, false); id == 0 {
			return m.internOutcome(s, walk(d, s, cands, k.Proto, k.DstPort, k.SrcPort))
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	cells := m.via.Load()
	if cells == nil {
		cells = new(viaCells)
		m.via.Store(cells)
	}
	cells[key.slot()].Store(&viaCell{key, id})
	return m.outcome(id, k)
}

// matchesVia is matches for a connection that was opened to a Service: rules to
// Services that match it have met all their conditions.
func (s *subject) matchesVia(p *peerClass, service *leaf, proto flow.Proto, port uint16, out []match) []match {
	for i, r := range s.rules[flow.Egress] {
		if r.rule.ToServices() {
			if r.matchesService(service, proto, port) {
				out = append(out, match{i, false})
			}
		} else if c := r.matchPeers(s, p); c != no {
			out = append(out, match{i, c == maybe})
		}
	}
	return out
}

func (r *ruleEntry) matchesService(service *leaf, proto flow.Proto, port uint16) bool {
	for i := range r.rule.L4 {
		if l := &r.rule.L4[i]; l.Proto != proto || !l.Ports.Contains(port) {
			continue
		}
		for _, set := range r.sets {
			if _, ok := slices.BinarySearch(service.sets, set); ok {
				return true
			}
		}
		return false
	}
	return false
}

// candidatesVia is candidates where rules to Services are matched already.
func (s *subject) candidatesVia(p *peerClass, ms []match) []candidate {
	out := make([]candidate, 0, len(ms))
	for _, m := range ms {
		r := s.rules[flow.Egress][m.index]
		if r.rule.ToServices() {
			out = append(out, candidate{id: r.id, rule: r.rule, l4: []portMatch{{proto: flow.AnyProto, dst: rule.AllPorts, src: rule.AllPorts}}})
			continue
		}
		out = append(out, s.candidates(flow.Egress, p, []match{m})...)
	}
	return out
}
