package query

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
)

// Explanation is a Flow with the story behind it. Its JSON form is a contract.
type Explanation struct {
	Flow
	FromIP string `json:"fromIP"`
	ToIP   string `json:"toIP"`
	Family int    `json:"family"` // 4 or 6
	Packet string `json:"packet"` // the first packet that was judged, as text
	// Via is the address and port of the Service the connection was opened to, by
	// which rules to Services judge it; absent when it was opened to the destination.
	Via string `json:"via,omitempty"`
	// Notes say what else matters, such as whose address the other side sees.
	Notes []string `json:"notes,omitempty"`
	// FromMadeUp and ToMadeUp are set where the end's address was made up, since the
	// manifests have none.
	FromMadeUp bool `json:"fromMadeUp,omitempty"`
	ToMadeUp   bool `json:"toMadeUp,omitempty"`
	// DependsOnName is there when the answer depends on which DNS names lead to the
	// destination's address. Its first is the decision where no name of a rule does,
	// which is the one of the other fields.
	DependsOnName []NameAnswer `json:"dependsOnName,omitempty"`
	Trace         Trace        `json:"trace"`

	outside []string // the addresses that the answer is about, of a name outside
}

// Trace has the bands of both directions, in the order they were evaluated.
// A side that needed no walk (a pod to itself, the node to its pod, a pod of
// another node) has none.
type Trace struct {
	Egress  []BandTrace `json:"egress"`
	Ingress []BandTrace `json:"ingress"`
	// The rules of each direction that are about other subjects, not listed.
	EgressOthers  int `json:"egressOthers"`
	IngressOthers int `json:"ingressOthers"`
}

// BandTrace says what one band did with the connection.
type BandTrace struct {
	Band string `json:"band"`
	// Result is "matched", "skipped", "isolated", "no-match" or "not-reached".
	Result string      `json:"result"`
	Rules  []RuleTrace `json:"rules"`
	// Isolations are the policies of the band that isolate the subject.
	Isolations []string `json:"isolations"`
	// StagedIsolations are those of Isolations that are not enforced: policies in
	// the audit stage.
	StagedIsolations []string `json:"stagedIsolations,omitempty"`
}

// RuleTrace says what one rule did with the connection.
type RuleTrace struct {
	Policy  string `json:"policy"`
	Rule    string `json:"rule"`
	Action  string `json:"action"` // the word the policy uses, else allow, deny, reject, skip
	Stage   string `json:"stage"`  // enforce or audit
	Matched bool   `json:"matched"`
	// Why names what did not fit: "peer", "port", "unknown-peer", "skipped" or
	// "not-reached"; "" when the rule matched. Detail says it in words.
	Why    string `json:"why,omitempty"`
	Detail string `json:"detail,omitempty"`
}

// Explain decides one connection and records why.
func Explain(t *classifier.Table, from, to Target, p Port, family Family) (Explanation, error) {
	if err := CheckPort(t.World().Endpoints, p); err != nil {
		return Explanation{}, err
	}
	src, dst, ok := family.pick(from.Addrs, to.Addrs)
	if !ok {
		return Explanation{}, noFamily(from, to, family)
	}
	e := explain(t, from.Name, to.Name, src, dst, p, flow.Service{})
	e.Notes = to.Notes
	return e, nil
}

// ExplainVia is Explain for two addresses, of a connection that was opened to via.
func ExplainVia(t *classifier.Table, from, to string, src, dst netip.Addr, p Port, via flow.Service) Explanation {
	return explain(t, from, to, src, dst, p, via)
}

func explain(t *classifier.Table, from, to string, src, dst netip.Addr, p Port, via flow.Service) Explanation {
	f, k := question(t, from, to, src, dst, p)
	tr := t.ExplainVia(k, via)
	fill(t, &f, tr.Decision)
	e := Explanation{Flow: f, FromIP: src.String(), ToIP: dst.String(), Family: 6, Packet: k.String(), Via: via.String()}
	if src.Is4() {
		e.Family = 4
	}
	e.Trace.Egress = bands(t, flow.Egress, &tr.Sides[flow.Egress])
	e.Trace.Ingress = bands(t, flow.Ingress, &tr.Sides[flow.Ingress])
	e.Trace.EgressOthers = tr.Sides[flow.Egress].OtherSubjects
	e.Trace.IngressOthers = tr.Sides[flow.Ingress].OtherSubjects
	return e
}

func noFamily(from, to Target, family Family) error {
	if family == AnyFamily {
		return fmt.Errorf("%s and %s have no address family in common", from.Name, to.Name)
	}
	for _, end := range []Target{from, to} {
		if _, ok := first(end.Addrs, family == IPv4); !ok {
			return fmt.Errorf("%s has no IPv%d address", end.Name, family)
		}
	}
	return nil
}

func bands(t *classifier.Table, dir flow.Direction, s *classifier.TraceSide) []BandTrace {
	out := make([]BandTrace, 0, len(s.Bands))
	for _, b := range s.Bands {
		bt := BandTrace{
			Band: b.Band.String(), Result: string(b.Result),
			Rules: make([]RuleTrace, 0, len(b.Rules)), Isolations: make([]string, 0, len(b.Isolations)),
		}
		for _, tr := range b.Rules {
			r := t.Rule(tr.Rule)
			action := r.Origin.Word
			if action == "" {
				action = r.Action.String()
			}
			bt.Rules = append(bt.Rules, RuleTrace{
				Policy: r.Origin.Ref(), Rule: r.Origin.RuleName(dir), Action: action, Stage: r.Stage.String(),
				Matched: tr.Matched, Why: tr.Why, Detail: tr.Detail,
			})
		}
		for _, i := range b.Isolations {
			iso := t.Isolation(i)
			bt.Isolations = append(bt.Isolations, iso.Origin.Ref())
			if iso.Stage == rule.AuditOnly {
				bt.StagedIsolations = append(bt.StagedIsolations, iso.Origin.Ref())
			}
		}
		out = append(out, bt)
	}
	return out
}

// nearest orders rules that did not match by how close they came: only the port
// differs, then only the peer, then the rest. Order within a group is kept.
func nearest(rules []RuleTrace) []RuleTrace {
	distance := func(r RuleTrace) int {
		switch r.Why {
		case "":
			return 0
		case "unknown-peer":
			return 1
		case "port":
			return 2
		case "peer":
			return 3
		case "skipped":
			return 4
		}
		return 5
	}
	out := slices.Clone(rules)
	slices.SortStableFunc(out, func(a, b RuleTrace) int { return distance(a) - distance(b) })
	return out
}
