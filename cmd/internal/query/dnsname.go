package query

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/assure"
	"github.com/tierwall/tierwall/policy/inventory"
)

// NameAnswer is the decision about an address that a DNS name leads to.
type NameAnswer struct {
	// Names are the names or patterns of rules that the address is behind; empty: no
	// name that a rule has leads to it.
	Names   []string `json:"names"`
	Verdict string   `json:"verdict"`
	Egress  Side     `json:"egress"`
}

// maxNames is how many names of one pod's rules are tried two at a time.
const maxNames = 24

// domainName reports whether text can only be meant as a DNS name.
func domainName(text string) bool {
	text = strings.TrimSuffix(strings.ToLower(text), ".")
	return strings.Contains(text, ".") && len(validation.IsDNS1123Subdomain(text)) == 0
}

// namePattern is the pattern of a set learnt from DNS.
func namePattern(set string) string {
	_, pattern, _ := strings.Cut(set, ":")
	return pattern
}

// sampleName is a name that a pattern selects, and as few other patterns as can be.
func sampleName(pattern string) string {
	pattern = strings.ReplaceAll(pattern, "**.", "*.")
	return strings.ReplaceAll(pattern, "*", "some-name")
}

// naming evaluates the rules of one pod for addresses behind DNS names. Only the pod's
// own rules are in it: names are peers of egress rules.
type naming struct {
	compiler   classifier.Compiler
	empty      *classifier.Table // the table in which no address has a name
	generation uint64
	sets       []string // those learnt from DNS, sorted
	filled     []string // the sets that hold an address now
}

// newNaming compiles the egress rules of a pod. It is nil when none of them has a DNS
// name.
func newNaming(t *classifier.Table, pod *rule.Endpoint) (*naming, error) {
	n := &naming{}
	if pod == nil {
		return nil, nil
	}
	all := t.Policy()
	var own rule.Set
	for i := range all.Rules {
		if r := &all.Rules[i]; r.Direction == flow.Egress && r.Subject.Matches(pod) {
			own.Rules = append(own.Rules, *r)
		}
	}
	for i := range all.Isolations {
		if s := &all.Isolations[i]; s.Direction == flow.Egress && s.Subject.Matches(pod) {
			own.Isolations = append(own.Isolations, *s)
		}
	}
	n.sets = slices.DeleteFunc(inventory.SetNames(&own), func(s string) bool { return !inventory.LearntSet(s) })
	if len(n.sets) == 0 {
		return nil, nil
	}
	var err error
	n.empty, _, err = n.compiler.Compile(own, t.World(), classifier.Options{Generation: 1})
	n.generation = 1
	return n, err
}

// behind returns the table in which an address is in these sets and in no other.
func (n *naming) behind(a netip.Addr, sets []string) (*classifier.Table, error) {
	fill := map[string][]netip.Prefix{}
	for _, s := range n.filled {
		fill[s] = nil
	}
	for _, s := range sets {
		fill[s] = []netip.Prefix{netip.PrefixFrom(a, a.BitLen())}
	}
	if len(fill) == 0 {
		return n.empty, nil
	}
	n.generation++
	t, _, err := n.compiler.Refill(fill, n.generation)
	n.filled = slices.Clone(sets)
	return t, err
}

// matching returns the sets that a DNS name belongs to.
func (n *naming) matching(name string) []string {
	if n == nil {
		return nil
	}
	var out []string
	for _, s := range n.sets {
		if match, ok := inventory.NameMatcher(s); ok && match(name) {
			out = append(out, s)
		}
	}
	return out
}

// combinations are the sets that an address may be in: those of one name, or of two.
func (n *naming) combinations() [][]string {
	var out [][]string
	seen := map[string]bool{}
	add := func(sets []string) {
		slices.Sort(sets)
		sets = slices.Compact(sets)
		if key := strings.Join(sets, "\n"); len(sets) > 0 && !seen[key] {
			seen[key] = true
			out = append(out, sets)
		}
	}
	for _, s := range n.sets {
		add(n.matching(sampleName(namePattern(s))))
	}
	if single := len(out); single <= maxNames {
		for i := range single {
			for j := range i {
				add(slices.Concat(out[i], out[j]))
			}
		}
	}
	return out
}

// dependsOnName fills in what decides about an address outside the cluster when a DNS
// name of a rule leads to it, if that makes a difference.
func dependsOnName(t *classifier.Table, e *Explanation, from Target, dst netip.Addr, p Port) error {
	d := flow.AddrFrom(dst)
	if t.IsPod(d) || t.IsNode(d) || t.IsVIP(d) {
		return nil
	}
	n, err := newNaming(t, from.Pod)
	if n == nil || err != nil {
		return err
	}
	src, ok := first(from.Addrs, dst.Is4())
	if !ok {
		return nil
	}
	answers := []NameAnswer{{Names: []string{}, Verdict: e.Verdict, Egress: e.Egress}}
	differ := false
	for _, sets := range n.combinations() {
		named, err := n.behind(dst, sets)
		if err != nil {
			return err
		}
		f := Ask(named, e.From, e.To, src, dst, p)
		differ = differ || f.Verdict != e.Verdict
		answer := NameAnswer{Verdict: f.Verdict, Egress: f.Egress}
		for _, s := range sets {
			answer.Names = append(answer.Names, namePattern(s))
		}
		slices.Sort(answer.Names)
		answer.Names = slices.Compact(answer.Names)
		answers = append(answers, answer)
	}
	if differ {
		e.DependsOnName = compactNames(answers)
	}
	return nil
}

// compactNames leaves out names together that are decided as one of them alone.
func compactNames(list []NameAnswer) []NameAnswer {
	single := map[string][]string{}
	for _, a := range list {
		if len(a.Names) == 1 {
			single[a.Names[0]] = append(single[a.Names[0]], a.Verdict)
		}
	}
	return slices.DeleteFunc(list, func(a NameAnswer) bool {
		return len(a.Names) > 1 && slices.ContainsFunc(a.Names, func(n string) bool { return slices.Contains(single[n], a.Verdict) }) &&
			!slices.ContainsFunc(a.Names, func(n string) bool { return single[n] != nil && !slices.Contains(single[n], a.Verdict) })
	})
}

// explainName explains connections to a DNS name outside the cluster, for a client
// that has resolved it. Which addresses it has is not known: where rules about
// prefixes tell outside addresses apart, there is an answer for each part.
func explainName(t *classifier.Table, inv *inventory.Snapshot, from Target, name string, p Port, family Family) ([]Explanation, error) {
	name = strings.TrimSuffix(strings.ToLower(name), ".")
	n, err := newNaming(t, from.Pod)
	if err != nil {
		return nil, err
	}
	sets := n.matching(name)
	var out []Explanation
	w := assure.NewWorld(inv, t)
	for _, is4 := range []bool{true, false} {
		if family == IPv4 && !is4 || family == IPv6 && is4 {
			continue
		}
		src, ok := first(from.Addrs, is4)
		if !ok {
			continue
		}
		for _, region := range w.Regions(is4) {
			e := explain(t, from.Name, name, src, region.Addr, p, flow.Service{})
			if len(sets) > 0 {
				named, err := n.behind(region.Addr, sets)
				if err != nil {
					return nil, err
				}
				others := e.Trace.EgressOthers
				e = explain(named, from.Name, name, src, region.Addr, p, flow.Service{})
				e.Trace.EgressOthers = others
			}
			e.ToIP = ""
			e.Packet = strings.Replace(e.Packet, region.Addr.String(), name, 1)
			e.resolved(t, sets, region)
			out = appendAlike(out, e)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s has no IPv%d address", from.Name, family)
	}
	if len(out) == 1 {
		out[0].outside = nil
	}
	return out, nil
}

// resolved notes what is assumed about the name's addresses.
func (e *Explanation) resolved(t *classifier.Table, sets []string, region assure.Region) {
	for _, p := range region.Prefixes {
		e.outside = append(e.outside, p.String())
	}
	patterns := map[string]bool{}
	for _, s := range sets {
		patterns[namePattern(s)] = true
	}
	names := slices.Sorted(maps.Keys(patterns))
	switch {
	case len(names) > 0:
		e.Notes = append(e.Notes, fmt.Sprintf("rules name it (%s): the answer is about the addresses that %s gets for it from DNS, outside the cluster", strings.Join(names, ", "), e.From))
	default:
		e.Notes = append(e.Notes, "no rule of "+e.From+" names it: the answer is about any address outside the cluster")
	}
}

// appendAlike appends an explanation, or its addresses to one with the same decision.
func appendAlike(out []Explanation, e Explanation) []Explanation {
	for i := range out {
		if out[i].Verdict == e.Verdict && sameSide(&out[i].Egress, &e.Egress) {
			out[i].outside = append(out[i].outside, e.outside...)
			return out
		}
	}
	return append(out, e)
}
