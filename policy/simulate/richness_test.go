package simulate

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/oracle"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/api"
)

// richness counts which words of which language decided connections, so that a
// universe that has lost a feature fails the test instead of agreeing on less. A
// key is "direction language word".
type richness map[string]int

// language is the name the wanted list gives an object's API.
func language(o *api.Object) string {
	switch o.Kind.Group {
	case "crd.antrea.io":
		if o.Namespace == "" {
			return "acnp"
		}
		return "annp"
	case "cilium.io":
		return "cilium"
	case "netpol.networking.k8s.io":
		return "kepcnp"
	case "networking.k8s.io":
		return "np"
	}
	if o.Kind.Version == "v1alpha2" {
		return "cnp"
	}
	return o.Kind.Dialect // kep, v0.1.1, v0.1.7
}

func find(objs []*api.Object, policy string) *api.Object {
	return objs[slices.IndexFunc(objs, func(o *api.Object) bool { return ref(o) == policy })]
}

// count notes what decided one direction.
func (seen richness) count(d flow.Direction, objs []*api.Object, s *Outcome, o *oracle.Outcome) {
	add := func(language, word string) { seen[d.String()+" "+language+" "+word]++ }
	for _, r := range o.Audit {
		if r.Action == rule.Skip {
			add(language(find(objs, r.Origin.Ref())), r.Origin.Word)
		}
	}
	switch s.Reason {
	case classifier.ReasonRule, classifier.ReasonAuthRequired:
		obj := find(objs, s.Policy)
		l := language(obj)
		add(l, s.Verdict.String())
		add(l, s.Reason.String())
		if o.Band == rule.BandBaseline || o.Band == rule.BandAntreaBaseline {
			add(l, "baseline "+s.Verdict.String())
		}
		if l == "acnp" || l == "annp" {
			add(l, o.Band.String())
		}
		for w := range words(ruleOf(obj, d, s)) {
			add(l, w)
		}
	case classifier.ReasonIsolation:
		for _, policy := range s.Isolating {
			add(language(find(objs, policy)), "isolation")
		}
		if len(s.Isolating) > 1 {
			add("any", "several isolations")
		}
	default:
		add("any", s.Reason.String())
	}
}

// ruleOf returns the deciding rule as it was written.
func ruleOf(o *api.Object, d flow.Direction, s *Outcome) any {
	if o.Kind.Group != "cilium.io" {
		return o.Raw["spec"].(map[string]any)[d.String()].([]any)[s.Index]
	}
	// "specs[1].egressDeny[0]" is the place itself.
	spec := o.Raw["spec"]
	field := s.Rule
	if rest, ok := strings.CutPrefix(field, "specs["); ok {
		n, tail, _ := strings.Cut(rest, "].")
		i, _ := strconv.Atoi(n)
		spec, field = o.Raw["specs"].([]any)[i], tail
	}
	field, n, _ := strings.Cut(strings.TrimSuffix(field, "]"), "[")
	i, _ := strconv.Atoi(n)
	r := spec.(map[string]any)[field].([]any)[i]
	if order := spec.(map[string]any)["order"]; order != nil && order != int64(0) {
		return []any{r, map[string]any{field: nil, "order": nil}}
	}
	return []any{r, map[string]any{field: nil}}
}

// words are the fields a rule sets, and the values that mean something by
// themselves.
func words(v any) map[string]bool {
	out := map[string]bool{}
	var walk func(key string, v any)
	walk = func(key string, v any) {
		switch v := v.(type) {
		case map[string]any:
			for k, x := range v {
				out[k] = true
				walk(k, x)
			}
		case []any:
			for _, x := range v {
				walk(key, x)
			}
		case string:
			switch key {
			case "port", "namedPort", "destinationNamedPort":
				if _, err := strconv.Atoi(v); err != nil {
					out["named port"] = true
				}
			case "group", "match", "scope", "action", "fromEntities", "toEntities":
				out[key+" "+v] = true
			}
		}
	}
	walk("", v)
	return out
}

// wanted has what must have decided in both directions, then in one of them.
var wanted = map[string][3]string{
	"any":    {"not-local, self, default, several isolations, staged", "node-local", ""},
	"np":     {"Allow, isolation, named port, endPort, ipBlock, except, namespaceSelector, podSelector", "from", "to"},
	"kep":    {"Allow, Drop, Pass, baseline Allow, baseline Drop, self, notSelf, sameLabels, notSameLabels, namespacedPods, named port, endPort, allPorts, name", "", ""},
	"v0.1.1": {"Allow, Drop, Pass, baseline Allow, baseline Drop, sameLabels, notSameLabels, namespaceSelector, podSelector, named port, portRange, portNumber, name", "", ""},
	"v0.1.7": {"Allow, Drop, Pass, baseline Allow, baseline Drop, namespaces, pods, named port, portRange, portNumber, name", "", "networks, nodes, domainNames"},
	"cnp":    {"Allow, Drop, Pass, baseline Allow, baseline Drop, namespaces, pods, named port, range, number, tcp, udp, sctp, name", "", "networks, nodes, domainNames"},
	"kepcnp": {"Allow, Drop, Empower, isolation, scope Self, scope self, scope SameLabels, scope Selector, podSelector, named port, endPort", "", ""},
	"acnp": {"Allow, Drop, Reject, Pass, action Deny, antrea-upper, antrea-lower, antrea-baseline, ipBlock, except, podSelector, namespaceSelector, match Self, sameLabels, " +
		"nodeSelector, serviceAccount, group g1, group parent, named port, endPort, sourcePort, sourceEndPort, icmp, icmpType, icmpCode, name, appliedTo", "", "toServices, igmp, igmpType, groupAddress, fqdn"},
	"annp": {"Allow, Drop, Reject, Pass, antrea-upper, antrea-lower, antrea-baseline, ipBlock, podSelector, namespaceSelector, nodeSelector, " +
		"group g1, group parent, named port, sourcePort, icmp, icmpType, icmpCode, name, appliedTo", "", "toServices"},
	"cilium": {"Allow, Drop, auth-required, isolation, order, named port, endPort, icmps", "ingress, ingressDeny, fromEndpoints, fromCIDR, fromCIDRSet, fromNodes, " +
		"fromEntities all, fromEntities world, fromEntities world-ipv4, fromEntities world-ipv6, fromEntities cluster", "egress, egressDeny, toEndpoints, toCIDR, toCIDRSet, toNodes, toServices, toFQDNs, " +
		"toEntities all, toEntities world, toEntities cluster"},
}

// atLeast is how often each wanted word has to be seen.
const atLeast = 5

func (seen richness) check(t *testing.T) {
	for _, l := range slices.Sorted(maps.Keys(wanted)) {
		lists := wanted[l]
		for _, d := range flow.Directions {
			one := lists[1]
			if d == flow.Egress {
				one = lists[2]
			}
			line := fmt.Sprintf("%-7s %-7s", d, l)
			for _, w := range strings.Split(lists[0]+", "+one, ", ") {
				if w == "" {
					continue
				}
				n := seen[d.String()+" "+l+" "+w]
				line += fmt.Sprintf(" %s=%d", strings.ReplaceAll(w, " ", "-"), n)
				if n < atLeast {
					t.Errorf("%s %s %q decided %d times, want at least %d", d, l, w, n, atLeast)
				}
			}
			t.Log(line)
		}
	}
}
