package auditlog

import (
	"cmp"
	"slices"
	"time"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/dataplane/audit"
)

// Effects of promoting a staged policy on a connection that was seen.
const (
	EffectDeny    = "deny"    // it passes today and would not
	EffectOpen    = "open"    // it is denied today, and the side that denies it would let it pass
	EffectUnknown = "unknown" // it is denied today by something that left no record
	EffectNone    = "none"    // nothing changes
)

// StagedPolicy is what promoting one audit-only policy would do, judged by the
// connections in the log. Every staged policy is judged as if all staged ones
// were promoted together, because that is how the daemon evaluates them.
type StagedPolicy struct {
	Policy string `json:"policy"` // "NetworkPolicy shop/db"
	// How many recorded decisions it would have taken part in, by effect.
	Deny    uint64 `json:"deny"`
	Open    uint64 `json:"open"`
	Unknown uint64 `json:"unknown"`
	None    uint64 `json:"none"`
	// Flows are the connections it would change, most frequent first.
	Flows []StagedFlow `json:"flows"`
}

// StagedFlow is a kind of connection whose fate would change.
type StagedFlow struct {
	Effect  string    `json:"effect"`
	From    string    `json:"from"`
	To      string    `json:"to"`
	Port    string    `json:"port"`
	Verdict string    `json:"verdict"` // would-drop, would-reject, would-allow
	By      string    `json:"by"`      // rule or isolation
	Records uint64    `json:"records"`
	Packets uint64    `json:"packets"`
	First   time.Time `json:"first"`
	Last    time.Time `json:"last"`
}

// Staged summarises the records of audit-only policies. Create it with
// NewStaged, feed it events, call Report at the end.
type Staged struct {
	// Keep selects the records of staged policies to count; nil counts all.
	// Events are to be fed complete all the same: the other records of a packet
	// tell what became of it.
	Keep func(*audit.Record) bool

	policies map[string]*stagedPolicy
	// pending has would-allow records of denied packets until the denial's own
	// record comes: it is written when its window closes.
	pending map[packetID]audit.Record
	flows   int
	dropped uint64 // flows beyond maxGroups
	events  uint64
	first   time.Time
	last    time.Time
}

type stagedPolicy struct {
	counts map[string]uint64
	flows  map[stagedKey]*StagedFlow
}

type stagedKey struct{ effect, from, to, port, by string }

// packetID finds the records of one denied packet.
type packetID struct {
	node string
	time int64
	key  flow.Key
}

// maxPending bounds the denied packets waited for.
const maxPending = 1 << 16

// NewStaged returns an empty summary.
func NewStaged() *Staged {
	return &Staged{policies: map[string]*stagedPolicy{}, pending: map[packetID]audit.Record{}}
}

// Add takes an event.
func (s *Staged) Add(ev Event) {
	passed := ev.Passed()
	if !passed {
		s.settle(&ev)
	}
	staged := false
	for i := range ev.Records {
		r := &ev.Records[i]
		word, ok := isWould(r.Verdict)
		if !ok || s.Keep != nil && !s.Keep(r) {
			continue
		}
		if !staged {
			staged = true
			s.events++
			s.span(r)
		}
		switch {
		case word == audit.Pass:
			s.count(r, EffectNone)
		case passed && denied(word):
			s.count(r, EffectDeny)
		case passed == (word == audit.Allow):
			s.count(r, EffectNone)
		case hasDenial(&ev):
			s.count(r, effectOf(&ev, r.Direction))
		default:
			s.wait(r)
		}
	}
}

func hasDenial(ev *Event) bool {
	return slices.ContainsFunc(ev.Records, func(r audit.Record) bool { return denied(r.Verdict) })
}

// effectOf is what letting a denied packet pass in a direction does: something
// only if that direction is the one that denies it.
func effectOf(ev *Event, direction string) string {
	for i := range ev.Records {
		if r := &ev.Records[i]; denied(r.Verdict) && r.Direction != direction {
			return EffectNone
		}
	}
	return EffectOpen
}

// settle tells the pending record of this packet, if there is one, who denied it.
func (s *Staged) settle(ev *Event) {
	if !hasDenial(ev) {
		return
	}
	id, ok := packetOf(ev.first())
	if !ok {
		return
	}
	if r, ok := s.pending[id]; ok {
		delete(s.pending, id)
		s.count(&r, effectOf(ev, r.Direction))
	}
}

func (s *Staged) wait(r *audit.Record) {
	id, ok := packetOf(r)
	if _, taken := s.pending[id]; !ok || taken || len(s.pending) >= maxPending {
		s.count(r, EffectUnknown)
		return
	}
	s.pending[id] = *r
}

func packetOf(r *audit.Record) (packetID, bool) {
	k, ok := KeyOf(r)
	return packetID{r.Node, r.Time.UnixNano(), k}, ok
}

func (s *Staged) span(r *audit.Record) {
	if s.first.IsZero() || r.Time.Before(s.first) {
		s.first = r.Time
	}
	if r.Time.After(s.last) {
		s.last = r.Time
	}
}

// count books a record on the policy that would decide, or on all that isolate.
func (s *Staged) count(r *audit.Record, effect string) {
	var names []string
	deciders := r.Deciders()
	for i := range deciders {
		names = append(names, PolicyName(&deciders[i]))
	}
	if len(names) == 0 {
		names = []string{r.Reason}
	}
	for _, name := range names {
		p := s.policies[name]
		if p == nil {
			p = &stagedPolicy{counts: map[string]uint64{}, flows: map[stagedKey]*StagedFlow{}}
			s.policies[name] = p
		}
		p.counts[effect]++
		if effect == EffectNone {
			continue
		}
		k := stagedKey{effect, r.Source.Name(), r.Destination.Name(), Port(r), By(r)}
		f := p.flows[k]
		if f == nil {
			if s.flows >= maxGroups {
				s.dropped++
				continue
			}
			s.flows++
			f = &StagedFlow{
				Effect: effect, From: k.from, To: k.to, Port: k.port, Verdict: r.Verdict, By: k.by, First: r.Time, Last: r.Time,
			}
			p.flows[k] = f
		}
		f.Records++
		f.Packets += r.Count
		if r.Time.Before(f.First) {
			f.First = r.Time
		}
		if r.Time.After(f.Last) {
			f.Last = r.Time
		}
	}
}

// StagedReport is the summary.
type StagedReport struct {
	Policies []StagedPolicy `json:"policies"` // those that would change most first
	Events   uint64         `json:"events"`   // recorded decisions that met a staged policy
	First    *time.Time     `json:"first,omitempty"`
	Last     *time.Time     `json:"last,omitempty"`
	// Unlisted counts changed connections beyond the bound on different flows:
	// they are in the counts and not in the lists.
	Unlisted uint64 `json:"unlisted"`
	Lost     uint64 `json:"lost"` // what the log itself says is missing
	Bad      uint64 `json:"bad"`  // lines that are no records
}

// Report ends the summary. Flows per policy are cut to n; negative means all.
func (s *Staged) Report(n int) StagedReport {
	for id, r := range s.pending {
		s.count(&r, EffectUnknown)
		delete(s.pending, id)
	}
	out := StagedReport{Policies: []StagedPolicy{}, Events: s.events, Unlisted: s.dropped}
	if s.events > 0 {
		first, last := s.first, s.last
		out.First, out.Last = &first, &last
	}
	for name, p := range s.policies {
		sp := StagedPolicy{
			Policy: name, Deny: p.counts[EffectDeny], Open: p.counts[EffectOpen],
			Unknown: p.counts[EffectUnknown], None: p.counts[EffectNone], Flows: []StagedFlow{},
		}
		for _, f := range p.flows {
			sp.Flows = append(sp.Flows, *f)
		}
		slices.SortFunc(sp.Flows, func(a, b StagedFlow) int {
			return cmp.Or(cmp.Compare(b.Packets, a.Packets), cmp.Compare(a.Effect, b.Effect), cmp.Compare(a.From, b.From),
				cmp.Compare(a.To, b.To), cmp.Compare(a.Port, b.Port), cmp.Compare(a.By, b.By))
		})
		if n >= 0 && n < len(sp.Flows) {
			sp.Flows = sp.Flows[:n]
		}
		out.Policies = append(out.Policies, sp)
	}
	slices.SortFunc(out.Policies, func(a, b StagedPolicy) int {
		return cmp.Or(cmp.Compare(b.Deny+b.Open, a.Deny+a.Open), cmp.Compare(a.Policy, b.Policy))
	})
	return out
}
