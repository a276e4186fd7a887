package classifier

import (
	"encoding/binary"
	"slices"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
)

// likeness is what Matcher.Likeness compares ends by, and what PolicyProgram
// remembers.
type likeness struct {
	rules []*ruleEntry // those that select a subject; of a rule with relations one for each peer, without it
	ports map[string]bool
	keys  [2][]string // labels that relations compare: of namespaces, of pods
	names bool        // relations compare namespaces by name

	programs map[string]map[string]program // by subject's rules and direction, then by matches
	subjects map[uint32]string             // subject's rules, by serial
}

// Likeness returns what is equal for ends that [Matcher.PolicyProgram] cannot tell
// apart, as subject or as peer. Labels that no policy mentions are not in it, so
// many ends of different classes are alike. Two that are not may have the same
// programs all the same.
func (x *Matcher) Likeness(e End) string {
	if x.like == nil {
		x.like = newLikeness(x.t)
	}
	l, p := x.like, e.party.rec.peer
	key := []byte{byte(p.kind)}
	if rep := p.rep(); rep != nil {
		if l.names {
			key = appendText(key, rep.Namespace)
		}
		for i, labels := range []map[string]string{rep.NamespaceLabels, rep.Labels} {
			for _, k := range l.keys[i] {
				v, ok := labels[k]
				if ok {
					key = append(key, 1)
				}
				key = appendText(key, v)
			}
		}
		for _, np := range rep.Ports {
			if l.ports[np.Name] {
				key = append(appendText(key, np.Name), byte(np.Proto), byte(np.Port>>8), byte(np.Port))
			}
		}
	}
	key = append(key, '/')
	nobody := &subject{rep: &rule.Endpoint{}} // the rules have no relations
	for _, r := range l.rules {
		key = append(key, byte(r.matchPeers(nobody, p)))
	}
	if !e.Local() {
		return string(key)
	}
	s := &x.t.subjects[e.party.rec.subject]
	return string(key) + x.rulesOf(flow.Egress, s) + "/" + x.rulesOf(flow.Ingress, s)
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func newLikeness(t *Table) *likeness {
	l := &likeness{ports: map[string]bool{}, programs: map[string]map[string]program{}, subjects: map[uint32]string{}}
	seen := map[RuleID]bool{}
	for i := range t.subjects {
		if t.subjects[i].subject == nil {
			continue
		}
		for _, d := range flow.Directions {
			for _, r := range t.subjects[i].rules[d] {
				if !seen[r.id] {
					seen[r.id] = true
					l.add(r)
				}
			}
		}
	}
	for i := range l.keys {
		slices.Sort(l.keys[i])
		l.keys[i] = slices.Compact(l.keys[i])
	}
	return l
}

func (l *likeness) add(r *ruleEntry) {
	for _, l4 := range r.rule.L4 {
		if l4.Name != "" {
			l.ports[l4.Name] = true
		}
	}
	if !r.relates() {
		l.rules = append(l.rules, r)
		return
	}
	for i := range r.rule.Peers {
		peer := r.rule.Peers[i]
		l.names = l.names || peer.Relation.Namespace != rule.AnyNamespace
		l.keys[0] = append(l.keys[0], peer.Relation.NamespaceLabels.Keys...)
		l.keys[1] = append(l.keys[1], peer.Relation.PodLabels.Keys...)
		peer.Relation = rule.Relation{}
		one := &ruleEntry{id: r.id, rule: &rule.Rule{Peers: []rule.Peer{peer}}}
		if r.sets != nil {
			one.sets = r.sets[i : i+1]
		}
		l.rules = append(l.rules, one)
	}
}

// rulesOf is equal for subjects with the same rules and isolations in a direction,
// and the same meaning of their named ports.
func (x *Matcher) rulesOf(d flow.Direction, s *subjectRef) string {
	if text, ok := x.like.subjects[s.serial[d]]; ok {
		return text
	}
	key := []byte{byte(d)}
	for _, r := range s.rules[d] {
		key = binary.AppendUvarint(key, uint64(r.id))
	}
	key = append(key, '/')
	for _, i := range s.isolations[d] {
		key = binary.AppendUvarint(key, uint64(i.index))
	}
	if d == flow.Ingress {
		for _, np := range s.rep.Ports {
			if x.like.ports[np.Name] {
				key = append(appendText(key, np.Name), byte(np.Proto), byte(np.Port>>8), byte(np.Port))
			}
		}
	}
	x.like.subjects[s.serial[d]] = string(key)
	return string(key)
}

// PolicyProgram returns what the policies of subject alone decide: Program as it is
// where the two ends are not on one node, whose own addresses always reach its pods
// . It remembers without bound, and fills no cell of the table.
func (x *Matcher) PolicyProgram(d flow.Direction, subject, peer End) Program {
	m := x.t.mem
	if !subject.Local() {
		return Program{&m.slots, notLocalProgram}
	}
	if x.like == nil {
		x.like = newLikeness(x.t)
	}
	var (
		msBuf  [64]match
		keyBuf [128]byte
	)
	s, p := &x.t.subjects[subject.party.rec.subject], peer.party.rec.peer
	ms := x.matches(d, s.subject, p, msBuf[:0])
	key := s.matchKey(d, p, ms, keyBuf[:0])
	rules := x.rulesOf(d, s)
	known := x.like.programs[rules]
	if known == nil {
		known = map[string]program{}
		x.like.programs[rules] = known
	}
	prog, ok := known[string(key)]
	if !ok {
		prog = m.buildProgram(d, s.subject, s.candidates(d, p, ms))
		known[string(key)] = prog
	}
	return Program{&m.slots, prog}
}
