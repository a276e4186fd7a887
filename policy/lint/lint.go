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
// lower.Build), as sorted warnings and notes. Nothing is modified.
//
// It costs distinct subjects × pods of distinct labels, and for shadowed rules up
// to the square of the rules with related subjects: fine for a command, too much
// for every update of a daemon.
func Check(objs []*api.Object, set *rule.Set, inv *inventory.Snapshot) diag.List {
	c := newChecker(objs, set, inv)
	if len(c.pods) > 0 {
		c.run(diag.SelectsNobody, c.nobody)
		c.run(diag.Overridden, c.overridden)
		c.run(diag.NoDNS, c.dns)
	}
	c.run(diag.HalfOpen, c.halfOpen)
	c.run(diag.MatchesNothing, c.nothing)
	c.run(diag.Shadowed, c.shadowed)
	c.run(diag.NetworkWithPods, c.networks)
	c.run(diag.Misplaced, c.misplaced)
	c.found.Sort()
	// One rule of a policy can be several of the set.
	c.found.Warnings = slices.CompactFunc(c.found.Warnings, diag.Diagnostic.Equal)
	return c.found
}

// Overridden is the check of that name alone. It costs distinct subjects × pods of
// distinct labels.
func Overridden(objs []*api.Object, set *rule.Set, inv *inventory.Snapshot) diag.List {
	c := newChecker(objs, set, inv)
	if len(c.pods) > 0 {
		c.run(diag.Overridden, c.overridden)
	}
	c.found.Sort()
	return c.found
}

// run does a check, whose findings get a code.
func (c *checker) run(code diag.Code, check func()) {
	n := len(c.found.Warnings)
	check()
	for i := n; i < len(c.found.Warnings); i++ {
		if c.found.Warnings[i].Code == "" {
			c.found.Warnings[i].Code = code
		}
	}
}

func newChecker(objs []*api.Object, set *rule.Set, inv *inventory.Snapshot) *checker {
	c := &checker{
		set: set, inv: inv, policies: map[api.Ref]*policy{}, pods: distinct(kube.Endpoints(inv), inv),
		selects: map[string]bool{}, taken: map[direction]bool{}, lost: map[lostTo]bool{},
	}
	for _, o := range objs {
		c.policies[o.Ref()] = &policy{object: o}
	}
	c.index()
	return c
}

// policy is an object and what was lowered from it.
type policy struct {
	object   *api.Object
	subjects []int // of its rules and isolations, in checker.subjects
}

type checker struct {
	set      *rule.Set
	inv      *inventory.Snapshot
	policies map[api.Ref]*policy
	pods     []rule.Endpoint // one of each kind that policy can tell apart
	found    diag.List

	subjects                      []subject
	ruleSubject, isolationSubject []int              // of each rule and isolation of the set
	selects                       map[string]bool    // selector in text form → selects a pod
	taken                         map[direction]bool // overridden as a whole
	lost                          map[lostTo]bool    // reported as overridden

	// For shadowed and networks, filled by the first who asks.
	covering [][]int  // subject → the subjects that include it
	rulesOf  [][]int  // subject → its rules
	skips    [2][]int // direction → the rules that skip bands
}

// of returns the policy a rule comes from, nil when its object was not given.
func (c *checker) of(o *rule.Origin) *policy {
	return c.policies[api.RefOf(o)]
}

func (c *checker) warn(o *api.Object, path, message, hint string) {
	c.found.Warnings = append(c.found.Warnings, o.Finding(path, message, hint))
}

// nobody: a policy that selects no pod.
func (c *checker) nobody() {
	for _, k := range slices.SortedFunc(maps.Keys(c.policies), api.Ref.Compare) {
		p := c.policies[k]
		if len(p.subjects) == 0 || slices.ContainsFunc(p.subjects, func(n int) bool { return !c.subjects[n].pods.empty() }) ||
			c.subjects[p.subjects[0]].selector.None {
			continue // what selects nobody by its form, its dialect has reported
		}
		hint := "compare the selector with the pods' labels; a policy may also be written before its pods exist"
		onHost := slices.ContainsFunc(c.pods, func(e rule.Endpoint) bool {
			e.HostNetwork = false
			return c.subjects[p.subjects[0]].selector.Matches(&e)
		})
		if onHost {
			hint = "the pods it would select are on the host network, where no policy selects pods"
		}
		c.warn(p.object, subjectPath(p.object), "selects no pod", hint)
	}
}

// subjectPath is where a kind writes its subject.
func subjectPath(o *api.Object) string {
	switch o.Kind.Group {
	case "networking.k8s.io":
		return "spec.podSelector"
	case upstreamGroup:
		return "spec.subject"
	case "netpol.networking.k8s.io", "crd.antrea.io":
		return "spec.appliedTo"
	}
	return "spec"
}

func side(d flow.Direction) string {
	if d == flow.Ingress {
		return "from"
	}
	return "to"
}

// rulePath is where a rule is written. Cilium's rules that are no items of
// spec.ingress or spec.egress are called by their place.
func rulePath(r *rule.Rule) string {
	switch o := &r.Origin; {
	case o.Group != "cilium.io" || o.Rule == "":
		return fmt.Sprintf("spec.%s[%d]", r.Direction, o.Index)
	case strings.HasPrefix(o.Rule, "specs["):
		return o.Rule
	}
	return "spec." + r.Origin.Rule
}

// ruleRef names a rule of another policy.
func ruleRef(r *rule.Rule) string {
	o := &r.Origin
	name := o.Name
	if o.Namespace != "" {
		name = o.Namespace + "/" + name
	}
	return fmt.Sprintf("%s of %s %s", r.RuleName(), o.Kind, name)
}

// nothing: rules that can never match.
func (c *checker) nothing() {
	for i := range c.set.Rules {
		r := &c.set.Rules[i]
		p := c.of(&r.Origin)
		if p == nil {
			continue
		}
		if contradictory(&r.Subject) {
			c.warn(p.object, subjectPath(p.object), "the selector contradicts itself: no pod can match it", "remove one of the requirements that exclude each other")
			continue
		}
		if len(r.Peers) == 0 {
			if r.Origin.Dialect != "kep" {
				continue // an empty list means everybody there: its dialect has said what is missing
			}
			c.warn(p.object, rulePath(r), fmt.Sprintf("the rule matches nothing because `%s` is empty", side(r.Direction)),
				"in this API an empty list matches no peer: write a selector that matches all")
			continue
		}
		contradicts := false
		for j := range r.Peers {
			if peer := &r.Peers[j]; peer.Kind == rule.PeerPods && contradictory(&peer.Pods) {
				contradicts = true
				c.warn(p.object, fmt.Sprintf("%s.%s[%d]", rulePath(r), side(r.Direction), j),
					"the selector contradicts itself: no pod can match it", "remove one of the requirements that exclude each other")
			}
		}
		if !contradicts {
			c.nobodyThere(p, r)
		}
		for _, l := range r.L4 {
			if l.Name != "" && c.portNowhere(r, &l) {
				c.warn(p.object, rulePath(r), fmt.Sprintf("no pod the rule concerns has a %s port named %q", l.Proto, l.Name),
					"a named port is looked up in the container ports of the connection's destination")
			}
		}
	}
}

// nobodyThere: a rule whose peers are nobody there is.
func (c *checker) nobodyThere(p *policy, r *rule.Rule) {
	nodes := false
	for i := range r.Peers {
		peer := &r.Peers[i]
		switch {
		case peer.Kind == rule.PeerPods && !peer.Pods.None && len(c.pods) > 0 && !c.anyPod(&peer.Pods):
		case peer.Kind == rule.PeerSet && len(c.inv.Nodes) > 0 && inventory.NodeSet(peer.Set) && len(c.inv.Sets([]string{peer.Set})[peer.Set]) == 0:
			nodes = true
		default:
			return // somebody, or not for this check to say
		}
	}
	if nodes {
		c.warn(p.object, rulePath(r), fmt.Sprintf("`%s` selects no node there is now", side(r.Direction)), "compare the selector with the nodes' labels")
		return
	}
	c.warn(p.object, rulePath(r), fmt.Sprintf("`%s` selects no pod there is now", side(r.Direction)),
		"compare the selectors with the labels of pods and namespaces; a rule may also be written before its peers exist")
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
					File: ns.File, Object: api.Ref{Kind: "Namespace", Name: ns.Name}, Path: fmt.Sprintf("metadata.annotations[%q]", k),
					Message: "has no effect on a namespace", Hint: "annotate the policies",
				})
			}
		}
	}
}
