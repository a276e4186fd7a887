package lint

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/diag"
	"github.com/tierwall/tierwall/policy/internal/kube"
	"github.com/tierwall/tierwall/policy/inventory"
)

// Check returns what looks wrong about set, lowered from objs over inv (see
// lower.Build), as sorted warnings. Nothing is modified.
//
// It costs rules × pods of distinct labels: fine for a command, too much for
// every update of a daemon.
func Check(objs []*api.Object, set *rule.Set, inv *inventory.Snapshot) diag.List {
	c := checker{set: set, inv: inv, policies: map[id]*policy{}, pods: distinct(kube.Endpoints(inv), inv)}
	for _, o := range objs {
		c.policies[id{o.Kind.Group, o.Kind.Kind, o.Namespace, o.Name}] = &policy{object: o}
	}
	for i := range set.Rules {
		if p := c.of(&set.Rules[i].Origin); p != nil {
			p.subjects = append(p.subjects, &set.Rules[i].Subject)
		}
	}
	for i := range set.Isolations {
		if p := c.of(&set.Isolations[i].Origin); p != nil {
			p.subjects = append(p.subjects, &set.Isolations[i].Subject)
		}
	}
	if len(c.pods) > 0 {
		c.nobody()
		c.overridden()
		c.dns()
	}
	c.nothing()
	c.misplaced()
	c.found.Sort()
	return c.found
}

type id struct{ group, kind, namespace, name string }

// policy is an object and what was lowered from it.
type policy struct {
	object   *api.Object
	subjects []*rule.Selector
}

type checker struct {
	set      *rule.Set
	inv      *inventory.Snapshot
	policies map[id]*policy
	pods     []rule.Endpoint // one of each kind that policy can tell apart
	found    diag.List
}

// of returns the policy a rule comes from, nil when its object was not given.
func (c *checker) of(o *rule.Origin) *policy {
	return c.policies[id{o.Group, o.Kind, o.Namespace, o.Name}]
}

func (c *checker) warn(o *api.Object, path, message, hint string) {
	c.found.Warnings = append(c.found.Warnings, o.Finding(path, message, hint))
}

// distinct keeps one pod of those that selectors and named ports cannot tell
// apart: a Deployment's replicas count once.
func distinct(pods []rule.Endpoint, inv *inventory.Snapshot) []rule.Endpoint {
	seen := map[string]bool{}
	var out []rule.Endpoint
	for i := range pods {
		p := &pods[i]
		p.Ports = inv.Pods[i].Ports
		key := fmt.Sprint(p.Namespace, p.ServiceAccount, p.HostNetwork, p.Labels, p.Ports) // fmt sorts maps
		if !seen[key] {
			seen[key] = true
			out = append(out, *p)
		}
	}
	return out
}

// nobody: a policy that selects no pod.
func (c *checker) nobody() {
	for _, k := range slices.SortedFunc(maps.Keys(c.policies), compareID) {
		p := c.policies[k]
		if len(p.subjects) == 0 || slices.ContainsFunc(p.subjects, func(s *rule.Selector) bool {
			return slices.ContainsFunc(c.pods, func(e rule.Endpoint) bool { return s.Matches(&e) })
		}) {
			continue
		}
		hint := "compare the selector with the pods' labels; a policy may also be written before its pods exist"
		onHost := slices.ContainsFunc(c.pods, func(e rule.Endpoint) bool {
			e.HostNetwork = false
			return p.subjects[0].Matches(&e)
		})
		if onHost {
			hint = "the pods it would select are on the host network, where no policy selects pods"
		}
		c.warn(p.object, subjectPath(p.object), "selects no pod", hint)
	}
}

func compareID(a, b id) int {
	return strings.Compare(a.group+"\x00"+a.kind+"\x00"+a.namespace+"\x00"+a.name, b.group+"\x00"+b.kind+"\x00"+b.namespace+"\x00"+b.name)
}

// subjectPath is where a kind writes its subject.
func subjectPath(o *api.Object) string {
	switch o.Kind.Kind {
	case "NetworkPolicy":
		return "spec.podSelector"
	case "AdminNetworkPolicy":
		return "spec.subject"
	}
	return "spec"
}

func side(d flow.Direction) string {
	if d == flow.Ingress {
		return "from"
	}
	return "to"
}

func rulePath(r *rule.Rule) string { return fmt.Sprintf("spec.%s[%d]", r.Direction, r.Origin.Index) }

// nothing: rules that can never match.
func (c *checker) nothing() {
	for i := range c.set.Rules {
		r := &c.set.Rules[i]
		p := c.of(&r.Origin)
		if p == nil {
			continue
		}
		if contradictory(&r.Subject) {
			c.warn(p.object, subjectPath(p.object), "the selector contradicts itself: no pod can match it", "")
			continue
		}
		if len(r.Peers) == 0 {
			c.warn(p.object, rulePath(r), fmt.Sprintf("the rule matches nothing because `%s` is empty", side(r.Direction)),
				"in this API an empty list matches no peer: write a selector that matches all")
			continue
		}
		for j := range r.Peers {
			if peer := &r.Peers[j]; peer.Kind == rule.PeerPods && contradictory(&peer.Pods) {
				c.warn(p.object, fmt.Sprintf("%s.%s[%d]", rulePath(r), side(r.Direction), j),
					"the selector contradicts itself: no pod can match it", "")
			}
		}
		for _, l := range r.L4 {
			if l.Name != "" && c.portNowhere(r, &l) {
				c.warn(p.object, rulePath(r), fmt.Sprintf("no pod the rule concerns has a %s port named %q", l.Proto, l.Name),
					"a named port is looked up in the container ports of the connection's destination")
			}
		}
	}
}

// portNowhere reports whether there are pods that could be the rule's
// destination, and none has the named port.
func (c *checker) portNowhere(r *rule.Rule, l *rule.L4) bool {
	candidates := 0
	for i := range c.pods {
		e := &c.pods[i]
		if !destination(r, e) {
			continue
		}
		candidates++
		if slices.ContainsFunc(e.Ports, func(p rule.NamedPort) bool {
			return p.Name == l.Name && (l.Proto == flow.AnyProto || p.Proto == l.Proto)
		}) {
			return false
		}
	}
	return candidates > 0
}

// destination reports whether e may be the destination of a connection the rule
// matches; relations to the subject count as fulfilled.
func destination(r *rule.Rule, e *rule.Endpoint) bool {
	if r.Direction == flow.Ingress {
		return r.Subject.Matches(e)
	}
	return slices.ContainsFunc(r.Peers, func(p rule.Peer) bool {
		return p.Kind != rule.PeerPods || p.Pods.Matches(e)
	})
}

// contradictory reports whether a selector's requirements exclude each other.
func contradictory(s *rule.Selector) bool {
	return contradiction(s.NamespaceLabels) || contradiction(s.PodLabels)
}

func contradiction(l rule.Labels) bool {
	for _, r := range l {
		if r.Op != rule.In {
			if r.Op == rule.Exists && slices.ContainsFunc(l, func(o rule.Requirement) bool { return o.Key == r.Key && o.Op == rule.NotExists }) {
				return true
			}
			continue
		}
		// The values the key may have, tried against everything asked of it.
		if !slices.ContainsFunc(r.Values, func(v string) bool {
			for _, o := range l {
				if o.Key == r.Key && !o.Matches(map[string]string{r.Key: v}) {
					return false
				}
			}
			return true
		}) {
			return true
		}
	}
	return false
}

// misplaced: tierwall.io annotations on namespaces.
func (c *checker) misplaced() {
	for i := range c.inv.Namespaces {
		ns := &c.inv.Namespaces[i]
		for _, k := range slices.Sorted(maps.Keys(ns.Annotations)) {
			if strings.HasPrefix(k, kube.AnnotationPrefix) {
				c.found.Warnings = append(c.found.Warnings, diag.Diagnostic{
					File: ns.File, Object: "Namespace " + ns.Name, Path: fmt.Sprintf("metadata.annotations[%q]", k),
					Message: "has no effect on a namespace", Hint: "annotate the policies",
				})
			}
		}
	}
}
