package query

import (
	"iter"
	"net/netip"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
)

// Flow is the answer about one connection. Its JSON form is a contract.
type Flow struct {
	From string `json:"from"` // "namespace/pod", or an address
	To   string `json:"to"`
	Port string `json:"port"` // as asked
	// ResolvedPort is the number a named port has on the destination pod; absent
	// when the question had a number or the pod has no such port.
	ResolvedPort uint16 `json:"resolvedPort,omitempty"`
	Verdict      string `json:"verdict"` // Allow, Drop or Reject
	Egress       Side   `json:"egress"`  // the source's policies
	Ingress      Side   `json:"ingress"` // the destination's policies
}

// Side is the decision of one direction.
type Side struct {
	Verdict string `json:"verdict"`
	Band    string `json:"band"`
	// Policy is "<kind.group>/<namespace>/<name>" of what decided, "" when no
	// policy did. For an isolation it is the first of Isolations, which all denied
	// the connection together.
	Policy string `json:"policy"`
	// Rule is the rule's own name, else "egress[2]"; "" when no rule decided.
	Rule   string `json:"rule"`
	Reason string `json:"reason"`
	// Isolations names every policy whose isolation caused the drop.
	Isolations []string `json:"isolations,omitempty"`
	// Staged is what would be decided if policies in the audit stage were
	// enforced; absent when none of them was met.
	Staged *Side `json:"staged,omitempty"`
}

// Ask decides one first packet. from and to are echoed in the answer.
func Ask(t *classifier.Table, from, to string, src, dst netip.Addr, p Port) Flow {
	f, k := question(t, from, to, src, dst, p)
	fill(t, &f, t.Lookup(k))
	return f
}

// question resolves the port and builds the key.
func question(t *classifier.Table, from, to string, src, dst netip.Addr, p Port) (Flow, flow.Key) {
	f := Flow{From: from, To: to, Port: p.Text}
	number := p.Number
	s, d := flow.AddrFrom(src), flow.AddrFrom(dst)
	if p.Name != "" {
		if e := t.Endpoint(d); e != nil {
			number = namedPort(e, p.Name, p.Proto)
		}
		f.ResolvedPort = number
	}
	return f, p.key(s, d, number)
}

// namedPort returns the number, or 0 when the pod has no such port.
func namedPort(e *rule.Endpoint, name string, proto flow.Proto) uint16 {
	for _, np := range e.Ports {
		if np.Name == name && np.Proto == proto {
			return np.Port
		}
	}
	return 0
}

func fill(t *classifier.Table, f *Flow, d classifier.Decision) {
	f.Verdict = d.Verdict.String()
	f.Egress = side(t, flow.Egress, t.Outcome(d.Egress))
	f.Ingress = side(t, flow.Ingress, t.Outcome(d.Ingress))
}

func side(t *classifier.Table, dir flow.Direction, o *classifier.Outcome) Side {
	s := half(t, dir, o.Verdict, o.Reason, o.Band, o.Rule, o.Isolations)
	if o.HasStaged {
		st := half(t, dir, o.Staged, o.StagedReason, o.StagedBand, o.StagedRule, o.StagedIsolations)
		s.Staged = &st
	}
	return s
}

func half(t *classifier.Table, dir flow.Direction, v classifier.Verdict, why classifier.Reason,
	band rule.Band, id classifier.RuleID, isolations []int32,
) Side {
	s := Side{Verdict: v.String(), Band: band.String(), Reason: why.String()}
	if id != classifier.NoRule {
		r := t.Rule(id)
		s.Policy, s.Rule = r.Origin.Ref(), r.Origin.RuleName(dir)
	}
	if why == classifier.ReasonIsolation {
		for _, i := range isolations {
			s.Isolations = append(s.Isolations, t.Isolation(i).Origin.Ref())
		}
		if len(s.Isolations) > 0 {
			s.Policy = s.Isolations[0]
		}
	}
	return s
}

// PodName is how answers name a pod.
func PodName(e *rule.Endpoint) string { return e.Namespace + "/" + e.Name }

// Family chooses the addresses a question between two sets of addresses uses.
type Family int

// Families. AnyFamily means IPv4 when both ends have it, else IPv6.
const (
	AnyFamily Family = 0
	IPv4      Family = 4
	IPv6      Family = 6
)

// pick returns one address of each side of the same family, or ok false.
func (f Family) pick(from, to []netip.Addr) (src, dst netip.Addr, ok bool) {
	for _, is4 := range []bool{true, false} {
		if (f == IPv4 && !is4) || (f == IPv6 && is4) {
			continue
		}
		s, sok := first(from, is4)
		d, dok := first(to, is4)
		if sok && dok {
			return s, d, true
		}
	}
	return netip.Addr{}, netip.Addr{}, false
}

func first(addrs []netip.Addr, is4 bool) (netip.Addr, bool) {
	for _, a := range addrs {
		if a.Is4() == is4 {
			return a, true
		}
	}
	return netip.Addr{}, false
}

// Matrix answers for every ordered pair of pods of the table's world, a pod to
// itself included, and every port: ordered by port, then source, then
// destination. Pairs without a common address of the family are left out.
func Matrix(t *classifier.Table, ports []Port, family Family) iter.Seq[Flow] {
	return func(yield func(Flow) bool) {
		pods := t.World().Endpoints
		for _, p := range ports {
			for i := range pods {
				for j := range pods {
					src, dst, ok := family.pick(pods[i].Addrs, pods[j].Addrs)
					if !ok {
						continue
					}
					if !yield(Ask(t, PodName(&pods[i]), PodName(&pods[j]), src, dst, p)) {
						return
					}
				}
			}
		}
	}
}
