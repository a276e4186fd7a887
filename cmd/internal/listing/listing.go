package listing

import (
	"cmp"
	"crypto/sha1"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/lower"
)

// None stands for a value the policy's API does not have.
const None = "<NONE>"

// Policy is one line of the list. The JSON names are the contract of
// "tierwall get policies -o json".
type Policy struct {
	Name      string `json:"name"`
	UID       string `json:"uid,omitempty"`
	Kind      string `json:"kind"`
	Group     string `json:"group"`
	Namespace string `json:"namespace,omitempty"`
	Source    string `json:"source"`    // "K8sNetworkPolicy:shop/db"; told apart by group, too
	AppliedTo string `json:"appliedTo"` // equal for equal subjects, "" for none
	// Subjects are the distinct selectors of the policy's rules, in text form.
	Subjects     []string `json:"subjects"`
	Rules        int      `json:"rules"`        // as written
	TierPriority *int32   `json:"tierPriority"` // Antrea only
	Priority     *float64 `json:"priority"`     // as written; a band of the default 0 included
	Band         string   `json:"band"`         // of the strongest rule; "" when there is none
	Dialect      string   `json:"dialect,omitempty"`
	Stage        string   `json:"stage"` // "enforce", or "audit": recorded and not enforced

	order     rule.Order
	place     bool // has a place in the order
	rules     bool // has it by its rules: isolations do not count
	selectors []*rule.Selector
}

// Selects reports whether the policy is about a pod.
func (p *Policy) Selects(e *rule.Endpoint) bool {
	return slices.ContainsFunc(p.selectors, func(s *rule.Selector) bool { return s.Matches(e) })
}

// Cells are the columns of the table, as text.
func (p *Policy) Cells() []string {
	name, tier, priority, applied := p.UID, None, None, p.AppliedTo
	if name == "" {
		name = p.Name
	}
	if p.TierPriority != nil {
		tier = strconv.Itoa(int(*p.TierPriority))
	}
	if p.Priority != nil {
		priority = strconv.FormatFloat(*p.Priority, 'g', -1, 64)
	}
	if applied == "" {
		applied = None
	}
	return []string{name, applied, strconv.Itoa(p.Rules), p.Source, tier, priority}
}

// Policies lists the policies among objs in the order they are evaluated in.
// set is what they lowered to. Groups and tiers are no policies.
func Policies(objs []*api.Object, set *rule.Set) []Policy {
	index := map[api.Ref]int{}
	out := []Policy{}
	for _, o := range objs {
		if !strings.HasSuffix(o.Kind.Kind, "NetworkPolicy") {
			continue
		}
		stage := rule.Enforce
		if lower.Staged(o.Annotations) {
			stage = rule.AuditOnly
		}
		index[o.Ref()] = len(out)
		out = append(out, Policy{
			Name: o.Name, UID: o.UID, Kind: o.Kind.Kind, Group: o.Kind.Group, Namespace: o.Namespace,
			Source: source(o), Rules: written(o), Priority: priority(o), Dialect: o.Kind.Dialect,
			Subjects: []string{}, Stage: stage.String(),
		})
	}
	add := func(o *rule.Origin, order rule.Order, subject *rule.Selector, stage rule.Stage) {
		i, ok := index[api.RefOf(o)]
		if !ok {
			return
		}
		p := &out[i]
		if s := subject.String(); !slices.Contains(p.Subjects, s) {
			p.Subjects = append(p.Subjects, s)
			p.selectors = append(p.selectors, subject)
		}
		if !p.rules && (!p.place || compareOrder(&order, &p.order) < 0) {
			p.order, p.place = order, true
		}
		p.Dialect = cmp.Or(p.Dialect, o.Dialect)
		p.Stage = stage.String()
	}
	for i := range set.Rules {
		r := &set.Rules[i]
		add(&r.Origin, r.Order, &r.Subject, r.Stage)
	}
	for i := range out {
		out[i].rules = out[i].place
	}
	for i := range set.Isolations {
		iso := &set.Isolations[i]
		add(&iso.Origin, rule.Order{Band: iso.Band}, &iso.Subject, iso.Stage)
	}
	for i := range out {
		p := &out[i]
		slices.Sort(p.Subjects)
		p.AppliedTo = identifier(p.Subjects)
		if !p.place {
			continue
		}
		p.Band = p.order.Band.String()
		switch p.order.Band {
		case rule.BandAntreaUpper, rule.BandAntreaLower, rule.BandAntreaBaseline:
			tier := p.order.Tier
			p.TierPriority = &tier
		}
	}
	slices.SortFunc(out, func(a, b Policy) int {
		if a.place != b.place {
			if a.place {
				return -1
			}
			return 1
		}
		return cmp.Or(compareOrder(&a.order, &b.order), compareName(&a, &b))
	})
	return out
}

// SortByName sorts by namespace, name and source.
func SortByName(policies []Policy) {
	slices.SortFunc(policies, func(a, b Policy) int { return compareName(&a, &b) })
}

func compareName(a, b *Policy) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name), strings.Compare(a.Source, b.Source))
}

// compareOrder is [rule.Compare] without what belongs to rules. Within the bands
// that have no order, a policy's place is its name alone.
func compareOrder(a, b *rule.Order) int {
	return cmp.Or(cmp.Compare(a.Band, b.Band), cmp.Compare(a.Tier, b.Tier), cmp.Compare(a.Priority, b.Priority))
}

// source is "Kind:namespace/name", with the words of antctl where it has one. A
// kind's name alone is not enough: three APIs have a ClusterNetworkPolicy.
func source(o *api.Object) string {
	kind := o.Kind.Kind
	switch group := o.Kind.Group; {
	case group == "crd.antrea.io":
		kind = "Antrea" + kind
	case kind == "NetworkPolicy" || kind == "ClusterNetworkPolicy" && group == "policy.networking.k8s.io":
		kind = "K8s" + kind
	case group == "netpol.networking.k8s.io":
		kind = "KEP" + kind
	}
	if o.Namespace == "" {
		return kind + ":" + o.Name
	}
	return kind + ":" + o.Namespace + "/" + o.Name
}

// specs returns the rules' parents: spec, and what a Cilium policy has in specs.
func specs(o *api.Object) []map[string]any {
	var out []map[string]any
	if s, ok := o.Raw["spec"].(map[string]any); ok {
		out = append(out, s)
	}
	list, _ := o.Raw["specs"].([]any)
	for _, s := range list {
		if s, ok := s.(map[string]any); ok {
			out = append(out, s)
		}
	}
	return out
}

// written counts the rules the author wrote, in every API's lists of them.
func written(o *api.Object) int {
	n := 0
	for _, s := range specs(o) {
		for _, key := range []string{"ingress", "egress", "ingressDeny", "egressDeny"} {
			list, _ := s[key].([]any)
			n += len(list)
		}
	}
	return n
}

// priority is the number the author wrote, nil where there is none.
func priority(o *api.Object) *float64 {
	for _, s := range specs(o) {
		for _, key := range []string{"priority", "order"} {
			var f float64
			switch v := s[key].(type) {
			case int64:
				f = float64(v)
			case float64:
				f = v
			case json.Number:
				f, _ = v.Float64()
			default:
				continue
			}
			return &f
		}
	}
	return nil
}

// identifier is a name-based UUID (RFC 9562, section 5.5, in the null
// namespace) of the subjects: equal subjects, equal identifier. No subjects, "".
func identifier(subjects []string) string {
	if len(subjects) == 0 {
		return ""
	}
	var namespace [16]byte
	h := sha1.Sum(append(namespace[:], strings.Join(subjects, "\n")...))
	u := h[:16]
	u[6] = u[6]&0x0f | 0x50 // version 5
	u[8] = u[8]&0x3f | 0x80 // variant
	x := hex.EncodeToString(u)
	return fmt.Sprintf("%s-%s-%s-%s-%s", x[:8], x[8:12], x[12:16], x[16:20], x[20:])
}
