package lint

import (
	"fmt"
	mathbits "math/bits"
	"net/netip"
	"slices"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/internal/terrain"
)

// take is a connection that a rule decides although a weaker policy says otherwise.
type take struct {
	by       int // the stronger rule
	from, to *terrain.Place
	key      flow.Key
}

// taker searches the connections that stronger rules take out of the hands of
// NetworkPolicies and Cilium's policies. It carries a set of connections through
// the rules in their order, as boxes, and cuts off what each decides: what is found
// is exact, for the pods there are and for connections that no Service proxy has
// changed.
type taker struct {
	set    *rule.Set
	world  *rule.World
	ground *terrain.Terrain

	subjects map[string]bits // selector in text form → kinds
	peers    map[string]bits // relation-free peer in text form → places
	named    map[string][]namedBox
	cached   map[ruleFor][]box
	tracks   [2][]*track // direction → kind → what decides about its pods
	allows   [2][][]int  // direction → kind → the NetworkPolicies' rules that allow
	openings [2]map[int][]take
	steps    int  // what the search has cost
	cut      bool // it went on for too long: not all is found
}

// ruleFor is a rule and, where it matters, the kind of its subject; else -1.
type ruleFor struct{ rule, kind int }

// Bounds of a search.
const (
	maxSteps  = 20_000_000 // comparisons of two boxes
	maxPieces = 400        // of one rule
)

// track is the rules that can decide about a pod before a NetworkPolicy does,
// shared by kinds that have the same.
type track struct {
	strong []int // of the bands before NetworkPolicy, in order
	inBand []int // of its band, up to the last one that does not allow
}

func newTaker(set *rule.Set, world *rule.World) *taker {
	t := &taker{
		set: set, world: world, ground: terrain.New(set, world),
		subjects: map[string]bits{}, peers: map[string]bits{}, named: map[string][]namedBox{},
		cached: map[ruleFor][]box{},
	}
	for _, d := range flow.Directions {
		t.tracks[d] = make([]*track, len(t.ground.Kinds))
		t.allows[d] = make([][]int, len(t.ground.Kinds))
		t.openings[d] = map[int][]take{}
		t.prepare(d)
	}
	return t
}

// subjectsOf returns the kinds that a selector selects.
func (t *taker) subjectsOf(s *rule.Selector) bits {
	text := s.String()
	b, ok := t.subjects[text]
	if !ok {
		b = make(bits, (len(t.ground.Kinds)+63)/64)
		for i, k := range t.ground.Kinds {
			if s.Matches(t.ground.Pods[k.Members[0]]) {
				b.add(i)
			}
		}
		t.subjects[text] = b
	}
	return b
}

// prepare finds the track of every kind that a NetworkPolicy selects.
func (t *taker) prepare(d flow.Direction) {
	kinds := len(t.ground.Kinds)
	wanted := make(bits, (kinds+63)/64)
	for i := range t.set.Isolations {
		if iso := &t.set.Isolations[i]; iso.Direction == d && iso.Stage == rule.Enforce && iso.Band == rule.BandNetworkPolicy {
			t.subjectsOf(&iso.Subject).each(wanted.add)
		}
	}
	for i := range t.set.Rules {
		if r := &t.set.Rules[i]; r.Direction == d && r.Stage == rule.Enforce && r.Order.Band == rule.BandNetworkPolicy {
			t.subjectsOf(&r.Subject).each(wanted.add)
		}
	}
	strong, inBand := make([][]int, kinds), make([][]int, kinds)
	for i := range t.set.Rules {
		r := &t.set.Rules[i]
		if r.Direction != d || r.Stage != rule.Enforce || r.Order.Band > rule.BandNetworkPolicy || len(r.Peers) == 0 {
			continue
		}
		t.subjectsOf(&r.Subject).each(func(k int) {
			if r.Order.Band < rule.BandNetworkPolicy {
				strong[k] = append(strong[k], i)
				return
			}
			inBand[k] = append(inBand[k], i)
			if r.Action == rule.Allow {
				t.allows[d][k] = append(t.allows[d][k], i)
			}
		})
	}
	same := map[string]*track{}
	for k := range kinds {
		l := inBand[k]
		for len(l) > 0 && t.set.Rules[l[len(l)-1]].Action == rule.Allow {
			l = l[:len(l)-1]
		}
		if !wanted.has(k) || len(strong[k])+len(l) == 0 {
			continue
		}
		key := fmt.Sprint(strong[k], l)
		if slices.ContainsFunc(slices.Concat(strong[k], l), t.looksAtSubject) {
			key += fmt.Sprint(k) // a track of its own
		}
		if same[key] == nil {
			same[key] = &track{strong[k], l}
		}
		t.tracks[d][k] = same[key]
	}
}

// looksAtSubject reports whether what a rule matches depends on which of its
// subjects is asked about.
func (t *taker) looksAtSubject(i int) bool {
	r := &t.set.Rules[i]
	return slices.ContainsFunc(r.Peers, func(p rule.Peer) bool { return !p.Relation.IsZero() }) ||
		r.Direction == flow.Ingress && slices.ContainsFunc(r.L4, func(l rule.L4) bool { return l.Name != "" })
}

// group is kinds of subjects that the rules treat alike.
type group struct {
	kinds []int
	track *track
}

// groups divides the kinds a rule selects. Those that nothing stronger is about are
// left out.
func (t *taker) groups(subjects bits, d flow.Direction, apart bool) []group {
	var out []group
	at := map[*track]int{}
	for k, tr := range t.tracks[d] {
		if tr == nil || !subjects.has(k) {
			continue
		}
		if n, ok := at[tr]; ok && !apart {
			out[n].kinds = append(out[n].kinds, k)
			continue
		}
		at[tr] = len(out)
		out = append(out, group{[]int{k}, tr})
	}
	return out
}

// taken returns the connections that the i-th rule, an Allow of the band of
// NetworkPolicies, matches and stronger rules of other policies refuse: one for each
// such policy. all is set if they refuse every connection that it matches.
func (t *taker) taken(i int) (found []take, all bool) {
	r := &t.set.Rules[i]
	all = !slices.ContainsFunc(r.Peers, func(p rule.Peer) bool { return p.Kind == rule.PeerSet || p.Kind == rule.PeerService })
	if r.ToServices() {
		return nil, false // decided by where the connection was opened to
	}
	subjects := t.subjectsOf(&r.Subject)
	groups := t.groups(subjects, r.Direction, t.looksAtSubject(i))
	covered := 0
	seen := map[api.Ref]bool{}
	for _, g := range groups {
		covered += len(g.kinds)
		pieces := asPieces(t.boxes(i, g.kinds[0]))
		for _, j := range slices.Concat(g.track.strong, g.track.inBand) {
			if j >= i {
				break
			}
			pieces = t.pass(pieces, j, g.kinds[0], func(hit *box) {
				q := &t.set.Rules[j]
				by := api.RefOf(&q.Origin)
				denies := q.Action != rule.Allow && by != api.RefOf(&r.Origin)
				if !all && (!denies || seen[by]) {
					return
				}
				w, ok := t.witness(g.kinds, hit, r.Direction)
				if ok && denies && !seen[by] {
					seen[by] = true
					w.by = j
					found = append(found, w)
				}
				all = all && (denies || !ok)
			})
			if pieces == nil {
				break
			}
		}
		if all {
			all = !slices.ContainsFunc(pieces, func(p piece) bool {
				_, ok := t.witness(g.kinds, &p.box, r.Direction)
				return ok
			})
		}
	}
	return found, all && covered == subjects.count()
}

func asPieces(boxes []box) []piece {
	out := make([]piece, len(boxes))
	for i, b := range boxes {
		out[i] = piece{box: b}
	}
	return out
}

// pass takes pieces past the j-th rule, for subjects of kind k: what it decides is
// given to decided and cut off, what it skips goes on without the bands it names.
func (t *taker) pass(pieces []piece, j, k int, decided func(hit *box)) []piece {
	r := &t.set.Rules[j]
	for _, b := range t.boxes(j, k) {
		var next []piece
		for n := range pieces {
			p := &pieces[n]
			t.steps++
			if p.skipped.Has(r.Order.Band) || !p.meets(&b) {
				next = append(next, *p)
				continue
			}
			hit := p.intersect(&b)
			for _, rest := range p.minus(&b, nil) {
				next = append(next, piece{rest, p.skipped})
			}
			if r.Action == rule.Skip {
				next = append(next, piece{hit, p.skipped | r.Skip})
			} else {
				decided(&hit)
			}
		}
		pieces = next
		if len(pieces) > maxPieces || t.steps > maxSteps {
			t.cut = true
			return nil
		}
	}
	return pieces
}

// boxes returns what the i-th rule matches for subjects of kind k.
func (t *taker) boxes(i, k int) []box {
	r := &t.set.Rules[i]
	at := ruleFor{i, -1}
	if t.looksAtSubject(i) {
		at.kind = k
	}
	if b, ok := t.cached[at]; ok {
		return b
	}
	subject := t.ground.Pods[t.ground.Kinds[k].Members[0]]
	peers := make(bits, (len(t.ground.Places)+63)/64)
	for j := range r.Peers {
		p := &r.Peers[j]
		among := t.peersOf(p)
		if p.Relation.IsZero() {
			for w, word := range among {
				peers[w] |= word
			}
			continue
		}
		among.each(func(n int) {
			if p.Relation.Holds(subject, t.ground.Places[n].Pod) {
				peers.add(n)
			}
		})
	}
	var out []box
	if !peers.empty() {
		for j := range r.L4 {
			out = append(out, boxesOf(&r.L4[j], peers, t.namedPorts(&r.L4[j], r.Direction, subject))...)
		}
	}
	t.cached[at] = out
	return out
}

// peersOf returns the places among which a peer is, relations aside.
func (t *taker) peersOf(p *rule.Peer) bits {
	plain := *p
	plain.Relation = rule.Relation{}
	text := fmt.Sprint(p.Kind, p.Block.NoPods, " ", &plain)
	b, ok := t.peers[text]
	if !ok {
		b = placesOf(t.ground, &plain, t.world)
		t.peers[text] = b
	}
	return b
}

// namedPorts returns what a named port stands for: at the subject for ingress, at
// each peer for egress.
func (t *taker) namedPorts(l *rule.L4, d flow.Direction, subject *rule.Endpoint) []namedBox {
	if l.Name == "" {
		return nil
	}
	if d == flow.Ingress {
		all := make(bits, (len(t.ground.Places)+63)/64)
		for i := range t.ground.Places {
			all.add(i)
		}
		var out []namedBox
		for _, p := range subject.Ports {
			if p.Name == l.Name {
				out = append(out, namedBox{p.Proto, p.Port, all})
			}
		}
		return out
	}
	if out, ok := t.named[l.Name]; ok {
		return out
	}
	var out []namedBox
	for i := range t.ground.Places {
		pod := t.ground.Places[i].Pod
		if pod == nil {
			break // pods come first
		}
		for _, p := range pod.Ports {
			if p.Name != l.Name {
				continue
			}
			at := slices.IndexFunc(out, func(b namedBox) bool { return b.proto == p.Proto && b.port == p.Port })
			if at < 0 {
				at = len(out)
				out = append(out, namedBox{p.Proto, p.Port, make(bits, (len(t.ground.Places)+63)/64)})
			}
			out[at].peers.add(i)
		}
	}
	t.named[l.Name] = out
	return out
}

// opened returns the connections of a kind of pods that stronger rules allow and the
// NetworkPolicies that isolate it refuse: one for each stronger policy.
func (t *taker) opened(k int, d flow.Direction) []take {
	if found, ok := t.openings[d][k]; ok || t.tracks[d][k] == nil {
		return found
	}
	var found []take
	seen := map[api.Ref]bool{}
	for at, j := range t.tracks[d][k].strong {
		q := &t.set.Rules[j]
		if q.Action != rule.Allow || q.Auth || seen[api.RefOf(&q.Origin)] {
			continue
		}
		pieces := asPieces(t.boxes(j, k))
		for _, i := range slices.Concat(t.tracks[d][k].strong[:at], t.allows[d][k]) {
			if pieces == nil {
				break
			}
			pieces = t.pass(pieces, i, k, func(*box) {})
		}
		for n := range pieces {
			if w, ok := t.witness([]int{k}, &pieces[n].box, d); ok && !pieces[n].skipped.Has(q.Order.Band) {
				w.by = j
				seen[api.RefOf(&q.Origin)] = true
				found = append(found, w)
				break
			}
		}
	}
	t.openings[d][k] = found
	return found
}

// witness returns a connection in a box of pods of these kinds. What no policy is
// asked about is none: a pod's traffic to itself, and a node's to its pods.
func (t *taker) witness(kinds []int, b *box, d flow.Direction) (take, bool) {
	key4, ok4 := b.example(true)
	key6, ok6 := b.example(false)
	for w, word := range b.peers {
		for ; word != 0; word &= word - 1 {
			peer := &t.ground.Places[w*64+mathbits.TrailingZeros64(word)]
			if is4 := peer.Addr.Is4(); is4 && !ok4 || !is4 && !ok6 {
				continue
			}
			for _, k := range kinds {
				for _, m := range t.ground.Kinds[k].Members {
					if d == flow.Ingress && slices.Contains(peer.Nodes, t.ground.Pods[m].Node) {
						continue
					}
					for _, n := range t.ground.OfPod[m] {
						subject := &t.ground.Places[n]
						if subject.Addr.Is4() != peer.Addr.Is4() || subject.Addr == peer.Addr {
							continue
						}
						out := take{from: subject, to: peer, key: key4}
						if !peer.Addr.Is4() {
							out.key = key6
						}
						if d == flow.Ingress {
							out.from, out.to = peer, subject
						}
						out.key.Src, out.key.Dst = flow.AddrFrom(out.from.Addr), flow.AddrFrom(out.to.Addr)
						return out, true
					}
				}
			}
		}
	}
	return take{}, false
}

// placesOf returns the places among which a peer is for a subject, relations aside.
func placesOf(t *terrain.Terrain, p *rule.Peer, world *rule.World) bits {
	b := make(bits, (len(t.Places)+63)/64)
	from, to := 0, len(t.Places)
	if p.Kind == rule.PeerPods && p.Pods.Namespace != "" {
		var ok bool
		if from, ok = t.Spaces[p.Pods.Namespace]; !ok {
			return b
		}
	}
	var single map[netip.Addr]bool
	var wide []netip.Prefix
	if p.Kind == rule.PeerSet || p.Kind == rule.PeerService {
		single = map[netip.Addr]bool{}
		for _, x := range world.Sets[p.Set] {
			if x.IsSingleIP() {
				single[x.Addr()] = true
			} else {
				wide = append(wide, x)
			}
		}
	}
	for i := from; i < to; i++ {
		at := &t.Places[i]
		match := false
		switch p.Kind {
		case rule.PeerAny:
			match = true
		case rule.PeerPods:
			if at.Pod == nil || p.Pods.Namespace != "" && at.Pod.Namespace != p.Pods.Namespace {
				return b // pods come first, by namespace
			}
			match = p.Pods.Matches(at.Pod)
		case rule.PeerBlock:
			match = p.Block.Contains(at.Addr) && (!p.Block.NoPods || at.Pod == nil)
		case rule.PeerSet, rule.PeerService:
			match = single[at.Addr] || slices.ContainsFunc(wide, func(x netip.Prefix) bool { return x.Contains(at.Addr) })
		}
		if match {
			b.add(i)
		}
	}
	return b
}
