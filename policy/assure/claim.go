package assure

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/tierwall/tierwall/classifier/rule"
)

// metadataName is the label with a namespace's own name, which nobody can change.
const metadataName = "kubernetes.io/metadata.name"

// Claim says what has to happen to every connection between any two pods that could
// be, not only those that are.
type Claim struct {
	From, To  string // ends, see EndForms; Services are refused
	Namespace string // of names without one
	Ports     Ports
	Expect    string // allow, deny or reject; deny is any refusal
	// By reports whether a policy, by its rule.Origin.Ref, is one that may decide.
	// nil allows all.
	By     func(ref string) bool
	Rights Rights
}

// Rights say what somebody may create or change. What they do not mention stays as
// it is: policies, Services, nodes, and with the zero value the namespaces.
type Rights struct {
	// Namespaces is "given" (the default: those there are, with their labels) or
	// "any": namespaces of any name may come, with any labels, and those there are
	// may get any labels.
	Namespaces string
	// KeepNamespaceLabels are keys that new namespaces do not have and that stay as
	// they are on the others. It matters with Namespaces "any".
	KeepNamespaceLabels []string
	// Pods are the namespaces in which pods may be created and relabelled: ends of the
	// form ns:…, or "any" (the default), or "none". In others, pods stay as they are.
	Pods []string
	// KeepLabels are keys of pod labels that new pods do not have and that stay as
	// they are on the others.
	KeepLabels []string
	// HostNetwork lets new pods use their node's network.
	HostNetwork bool
	// Policies are the namespaces in which any NetworkPolicy may be created: ends of
	// the form ns:…, or "any". Policies there are stay.
	Policies []string
	// PodNetworks are the prefixes that pods get addresses from, where nodes do not
	// say it.
	PodNetworks []netip.Prefix
}

// Values of Rights.Namespaces.
const (
	GivenNamespaces = "given"
	AnyNamespaces   = "any"
)

// claimEnd is one end of a claim.
type claimEnd struct {
	text     string
	selector rule.Selector    // of pods that may come, without alternatives
	pods     []*rule.Endpoint // of pods that are named; selector is then unused
	outside  []netip.Prefix   // of addresses; selector is then unused
}

// bySelector reports whether the end is about pods that could be.
func (e *claimEnd) bySelector() bool { return e.pods == nil && e.outside == nil }

// claimEnd reads an end of a claim.
func (w *World) claimEnd(text string, c *Claim) (claimEnd, error) {
	e := claimEnd{text: text}
	rest := text
	switch {
	case text == "any" || text == "*":
		return e, nil
	case cut(&rest, "ns:") || cut(&rest, "namespace:"):
		var err error
		e.selector, err = w.namespaceSelector(rest, c)
		return e, err
	case isSelector(text) && !strings.HasPrefix(text, "external:") && !strings.HasPrefix(text, "svc"):
		if ns, rest, ok := strings.Cut(text, "/"); ok && w.namespaces[ns] != nil {
			e.selector.Namespace, text = ns, rest
		} else if c.Namespace != "" {
			if err := w.knownNamespace(c.Namespace); err != nil {
				return e, err
			}
			e.selector.Namespace = c.Namespace
		}
		var err error
		e.selector.PodLabels, err = requirements(text)
		return e, err
	}
	end, err := w.End(text, c.Namespace)
	switch {
	case err != nil:
		return e, err
	case end.Service != nil:
		return e, fmt.Errorf("%s is a Service: a claim is about pods, say which by their labels", text)
	}
	e.pods, e.outside = end.Pods, end.Outside
	return e, nil
}

func (w *World) knownNamespace(name string) error {
	if w.namespaces[name] == nil {
		return fmt.Errorf("no namespace %s; there is %s", name, among(name, w.namespaceNames()))
	}
	return nil
}

// namespaceSelector reads what follows "ns:".
func (w *World) namespaceSelector(text string, c *Claim) (rule.Selector, error) {
	var s rule.Selector
	nsText, podText, both := strings.Cut(text, "/")
	if both && isSelector(nsText) != isSelector(text) { // a label key with a prefix
		nsText, podText, both = text, "", false
	}
	var err error
	if both {
		if s.PodLabels, err = requirements(podText); err != nil {
			return s, err
		}
	}
	if !isSelector(nsText) {
		s.Namespace = nsText
		return s, w.knownNamespace(nsText)
	}
	if s.NamespaceLabels, err = requirements(nsText); err != nil {
		return s, err
	}
	if c.Rights.Namespaces != AnyNamespaces && !w.anyNamespace(&s) {
		return s, fmt.Errorf("ns:%s matches no namespace; there is %s (with rights: {namespaces: any} it is about those that may come)",
			nsText, among(nsText, w.namespaceNames()))
	}
	return s, nil
}

func (w *World) anyNamespace(s *rule.Selector) bool {
	for name, l := range w.namespaces {
		if (s.Namespace == "" || s.Namespace == name) && s.NamespaceLabels.Matches(l) {
			return true
		}
	}
	return false
}

// requirements reads a label selector that some labels can match.
func requirements(text string) (rule.Labels, error) {
	sel, err := labels.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("label selector %q: %w", text, err)
	}
	reqs, _ := sel.Requirements()
	var out rule.Labels
	for _, r := range reqs {
		x := rule.Requirement{Key: r.Key()}
		switch r.Operator() {
		case selection.In, selection.Equals, selection.DoubleEquals:
			x.Op = rule.In
		case selection.NotIn, selection.NotEquals:
			x.Op = rule.NotIn
		case selection.Exists:
			x.Op = rule.Exists
		case selection.DoesNotExist:
			x.Op = rule.NotExists
		default:
			return nil, fmt.Errorf("label selector %q: operator %q cannot be used in a claim", text, r.Operator())
		}
		if x.Op == rule.In || x.Op == rule.NotIn {
			x.Values = slices.Sorted(slices.Values(r.Values().List()))
		}
		out = append(out, x)
	}
	if !satisfiable(out) {
		return nil, fmt.Errorf("label selector %q can match nothing: its requirements contradict each other", text)
	}
	return out, nil
}

// satisfiable reports whether some labels match all requirements.
func satisfiable(l rule.Labels) bool {
	for _, r := range l {
		ok := false
		for _, v := range append(mentioned(l, r.Key), nil, fresh(mentioned(l, r.Key), "")) {
			ok = ok || matchesValue(l, r.Key, v)
		}
		if !ok {
			return false
		}
	}
	return true
}

// matchesValue asks the requirements about one key for a value, nil for none.
func matchesValue(l rule.Labels, key string, value *string) bool {
	var set map[string]string
	if value != nil {
		set = map[string]string{key: *value}
	}
	for i := range l {
		if l[i].Key == key && !l[i].Matches(set) {
			return false
		}
	}
	return true
}

// mentioned lists the values that requirements mention for a key.
func mentioned(l rule.Labels, key string) []*string {
	var out []*string
	for i := range l {
		if l[i].Key == key {
			for j := range l[i].Values {
				out = append(out, &l[i].Values[j])
			}
		}
	}
	return out
}

// fresh returns a value that is not among values.
func fresh(values []*string, suffix string) *string {
	for n := 1; ; n++ {
		v := "other" + suffix
		if n > 1 {
			v = fmt.Sprintf("other%s-%d", suffix, n)
		}
		if !slices.ContainsFunc(values, func(x *string) bool { return x != nil && *x == v }) {
			return &v
		}
	}
}

// check refuses rights that mean nothing.
func (r *Rights) check(w *World) error {
	switch r.Namespaces {
	case "", GivenNamespaces, AnyNamespaces:
	default:
		return fmt.Errorf("rights.namespaces: %q: want given or any", r.Namespaces)
	}
	if len(r.KeepNamespaceLabels) > 0 && r.Namespaces != AnyNamespaces {
		return errors.New("rights.keepNamespaceLabels: means nothing without namespaces: any, as namespaces keep all their labels")
	}
	if slices.Contains(r.KeepNamespaceLabels, metadataName) {
		return fmt.Errorf("rights.keepNamespaceLabels: %s: nobody can change this label anyway", metadataName)
	}
	return nil
}

// namespacesOf reads a list of namespaces of rights.
func (w *World) namespacesOf(field string, list []string, c *Claim) ([]rule.Selector, error) {
	var out []rule.Selector
	for _, text := range list {
		rest := text
		switch {
		case text == "any":
			out = append(out, rule.Selector{})
			continue
		case text == "none" && len(list) == 1:
			return nil, nil
		case !cut(&rest, "ns:"):
			return nil, fmt.Errorf("rights.%s: %q: want namespaces: ns:shop, ns:team=a, or any", field, text)
		}
		s, err := w.namespaceSelector(rest, c)
		if err != nil {
			return nil, fmt.Errorf("rights.%s: %w", field, err)
		}
		if len(s.PodLabels) > 0 {
			return nil, fmt.Errorf("rights.%s: %q: want namespaces, without labels of pods", field, text)
		}
		out = append(out, s)
	}
	return out, nil
}
