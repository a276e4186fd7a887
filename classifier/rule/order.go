package rule

import (
	"cmp"
	"slices"
	"strings"
)

// Compare orders two rules of one direction by precedence: negative when a is
// evaluated before b. It is total for rules of distinct origin.
func Compare(a, b *Rule) int {
	return cmp.Or(
		cmp.Compare(a.Order.Band, b.Order.Band),
		cmp.Compare(a.Order.Tier, b.Order.Tier),
		cmp.Compare(a.Order.Priority, b.Order.Priority),
		cmp.Compare(a.Order.Class, b.Order.Class),
		strings.Compare(a.Order.Name, b.Order.Name),
		cmp.Compare(a.Order.Index, b.Order.Index),
		cmp.Compare(a.Action.strictness(), b.Action.strictness()),
		compareOrigin(&a.Origin, &b.Origin),
	)
}

// CompareIsolations orders two isolations of one direction as decisions list
// them: by band, then origin.
func CompareIsolations(a, b *Isolation) int {
	return cmp.Or(cmp.Compare(a.Band, b.Band), compareOrigin(&a.Origin, &b.Origin))
}

func compareOrigin(a, b *Origin) int {
	return cmp.Or(
		strings.Compare(a.Group, b.Group),
		strings.Compare(a.Kind, b.Kind),
		strings.Compare(a.Namespace, b.Namespace),
		strings.Compare(a.Name, b.Name),
		cmp.Compare(a.Index, b.Index),
		strings.Compare(a.Rule, b.Rule),
	)
}

// Sort brings the set into canonical order: rules by direction and precedence,
// isolations by direction, band and origin. Two sets lowered from the same
// objects are equal after Sort, whatever order the objects came in.
func (s *Set) Sort() {
	slices.SortStableFunc(s.Rules, func(a, b Rule) int {
		return cmp.Or(cmp.Compare(a.Direction, b.Direction), Compare(&a, &b))
	})
	slices.SortStableFunc(s.Isolations, func(a, b Isolation) int {
		return cmp.Or(cmp.Compare(a.Direction, b.Direction), CompareIsolations(&a, &b))
	})
}

// Add appends another set's rules and isolations.
func (s *Set) Add(o Set) {
	s.Rules = append(s.Rules, o.Rules...)
	s.Isolations = append(s.Isolations, o.Isolations...)
}

// Ref returns the policy as the CLI and the audit log name it:
// "<kind>.<group>/<namespace>/<name>"; cluster-scoped kinds leave the
// namespace part empty: "adminnetworkpolicy.policy.networking.k8s.io//name".
func (o *Origin) Ref() string {
	return strings.ToLower(o.Kind) + "." + o.Group + "/" + o.Namespace + "/" + o.Name
}
