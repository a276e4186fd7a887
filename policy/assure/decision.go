package assure

import (
	"encoding/json"
	"strings"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
)

// Decision is what a table decides about a connection, and by which rule. Its JSON
// form is a contract.
type Decision struct {
	Verdict string `json:"verdict"` // Allow, Drop or Reject
	// Policy is "<kind.group>/<namespace>/<name>" of what decided, "" where no
	// policy did. For an isolation it is the first of Isolations, which all refuse
	// the connection together.
	Policy string `json:"policy"`
	// Rule is the rule's own name, else "egress[2]"; "" for an isolation, and where
	// no policy decided.
	Rule string `json:"rule"`
	// Direction is the side that decided: egress, of the source's policies, or
	// ingress. An allowed connection is decided by both; one of them is named.
	Direction string `json:"direction"`
	// Isolations are all policies whose isolation refuses the connection.
	Isolations Policies `json:"isolations,omitempty"`
}

// Policies are references of policies, one a line, so that a [Decision] can be
// compared. In JSON they are a list.
type Policies string

// List returns the references.
func (p Policies) List() []string {
	if p == "" {
		return nil
	}
	return strings.Split(string(p), "\n")
}

// MarshalJSON writes the list.
func (p Policies) MarshalJSON() ([]byte, error) { return json.Marshal(p.List()) }

// UnmarshalJSON reads the list.
func (p *Policies) UnmarshalJSON(data []byte) error {
	var list []string
	err := json.Unmarshal(data, &list)
	*p = Policies(strings.Join(list, "\n"))
	return err
}

// Allowed reports whether the connection passes.
func (d *Decision) Allowed() bool { return d.Verdict == classifier.Allow.String() }

// side is what one direction comes to: outcomes of different tables are the same
// side if a person could not tell them apart.
type side struct {
	verdict      classifier.Verdict
	policy, rule string
	isolations   Policies
}

// sides numbers the sides that occur. Number 0 is not used.
type sides struct {
	list []side
	ids  map[side]int32
}

func newSides() *sides { return &sides{list: make([]side, 1), ids: map[side]int32{}} }

func (s *sides) id(x side) int32 {
	id, ok := s.ids[x]
	if !ok {
		id = int32(len(s.list))
		s.list = append(s.list, x)
		s.ids[x] = id
	}
	return id
}

// sideOf reads an outcome of a table.
func sideOf(t *classifier.Table, d flow.Direction, id classifier.OutcomeID) side {
	o := t.Outcome(id)
	s := side{verdict: o.Verdict}
	switch {
	case o.Rule != classifier.NoRule:
		origin := &t.Rule(o.Rule).Origin
		s.policy, s.rule = origin.Ref(), origin.RuleName(d)
	case o.Reason == classifier.ReasonIsolation && len(o.Isolations) > 0:
		refs := make([]string, len(o.Isolations))
		for i, id := range o.Isolations {
			refs[i] = t.Isolation(id).Origin.Ref()
		}
		s.policy, s.isolations = refs[0], Policies(strings.Join(refs, "\n"))
	}
	return s
}

func (s *side) decision(d flow.Direction) Decision {
	return Decision{Verdict: s.verdict.String(), Policy: s.policy, Rule: s.rule, Direction: d.String(), Isolations: s.isolations}
}

// decides returns the direction that decides a connection: egress comes first. An
// allowed one has no single direction, ok is false.
func (s *sides) decides(egress, ingress int32) (d flow.Direction, id int32, ok bool) {
	switch {
	case s.list[egress].verdict != classifier.Allow:
		return flow.Egress, egress, true
	case s.list[ingress].verdict != classifier.Allow:
		return flow.Ingress, ingress, true
	}
	return flow.Ingress, ingress, false
}

// decision names what decided a connection. Where both directions allow it, a rule
// comes before no rule, and the destination's before the source's.
func (s *sides) decision(egress, ingress int32) Decision {
	d, id, ok := s.decides(egress, ingress)
	if !ok && s.list[ingress].policy == "" && s.list[egress].policy != "" {
		d, id = flow.Egress, egress
	}
	return s.list[id].decision(d)
}

// Kind says what a change does to a connection.
type Kind string

// Kinds, in the order changes are listed.
const (
	Opened Kind = "opened" // refused before, allowed now
	Closed Kind = "closed" // allowed before, refused now
	// OtherRule is the same answer by another rule, or another way to refuse.
	OtherRule Kind = "rule"
)

// Kinds lists them in order.
var Kinds = [...]Kind{Opened, Closed, OtherRule}

// same reports whether answers name the same verdict, policy and rule. Which policies
// isolate besides the one that is named makes no change of it.
func (s *sides) same(a, b int32) bool {
	x, y := &s.list[a], &s.list[b]
	return a == b || x.verdict == y.verdict && x.policy == y.policy && x.rule == y.rule
}

// change compares the sides of a connection in two tables. ok is false if nothing
// changed.
func (s *sides) change(oldEgress, oldIngress, egress, ingress int32) (kind Kind, before, after Decision, ok bool) {
	bd, b, denied := s.decides(oldEgress, oldIngress)
	ad, a, deniedNow := s.decides(egress, ingress)
	switch {
	case denied && !deniedNow:
		kind = Opened
		ad, a = bd, pick(bd, egress, ingress) // what allows it now where it was refused
	case !denied && deniedNow:
		kind = Closed
		bd, b = ad, pick(ad, oldEgress, oldIngress)
	case denied:
		if s.same(b, a) {
			return "", before, after, false
		}
		kind = OtherRule
	default:
		if s.same(oldIngress, ingress) {
			if s.same(oldEgress, egress) {
				return "", before, after, false
			}
			bd, b, ad, a = flow.Egress, oldEgress, flow.Egress, egress
		}
		kind = OtherRule
	}
	return kind, s.list[b].decision(bd), s.list[a].decision(ad), true
}

func pick(d flow.Direction, egress, ingress int32) int32 {
	if d == flow.Egress {
		return egress
	}
	return ingress
}

// ports are those a protocol's packets can have: TCP, UDP and SCTP have no port 0
// (RFC 6335, section 6), ICMP and IGMP have type<<8|code, other protocols have none.
func ports(p flow.Proto) rule.PortRange {
	switch {
	case p.HasPorts():
		return rule.PortRange{First: 1, Last: 0xffff}
	case p == flow.ICMP || p == flow.ICMPv6 || p == flow.IGMP:
		return rule.AllPorts
	}
	return rule.PortRange{}
}

// SourcePort is the source port of the client that questions are about: one of the
// range that clients are given and that policies with source ports rarely name.
const SourcePort = 40000
