package simulate

import (
	"cmp"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/api/kepcnp"
	"github.com/tierwall/tierwall/policy/inventory"
)

// clusterPolicy is one ClusterNetworkPolicy or ClusterDefaultNetworkPolicy of
// KEP-2091 as of 2021.
type clusterPolicy struct {
	obj       *api.Object
	appliedTo *kepcnp.AppliedTo
	// isolates by direction, for a ClusterDefaultNetworkPolicy: its key is
	// present, null included.
	isolates [2]bool
	rules    [2][]clusterRule
}

// clusterRule is a rule; action is "" in a ClusterDefaultNetworkPolicy, where
// every rule allows (S1-04).
type clusterRule struct {
	action string
	ports  []networkingv1.NetworkPolicyPort
	peers  []kepcnp.Peer
}

func newCluster(o *api.Object, spec *kepcnp.Spec) clusterPolicy {
	p := clusterPolicy{obj: o, appliedTo: spec.AppliedTo}
	for _, r := range spec.Ingress {
		p.rules[flow.Ingress] = append(p.rules[flow.Ingress], clusterRule{r.Action, r.Ports, r.From})
	}
	for _, r := range spec.Egress {
		p.rules[flow.Egress] = append(p.rules[flow.Egress], clusterRule{r.Action, r.Ports, r.To})
	}
	return p
}

func newClusterDefault(o *api.Object, spec *kepcnp.DefaultSpec) clusterPolicy {
	p := clusterPolicy{obj: o, appliedTo: spec.AppliedTo}
	raw, _ := o.Raw["spec"].(map[string]any)
	for _, d := range flow.Directions {
		_, p.isolates[d] = raw[d.String()]
	}
	for _, r := range spec.Ingress {
		p.rules[flow.Ingress] = append(p.rules[flow.Ingress], clusterRule{"", r.Ports, r.From})
	}
	for _, r := range spec.Egress {
		p.rules[flow.Egress] = append(p.rules[flow.Egress], clusterRule{"", r.Ports, r.To})
	}
	return p
}

func sortClusterPolicies(ps []clusterPolicy) {
	slices.SortFunc(ps, func(a, b clusterPolicy) int { return cmp.Compare(a.obj.Name, b.obj.Name) })
}

// clusterPolicies answers for ClusterNetworkPolicy: over all policies, is there
// an Empower; if not, a Deny; then, either way, an Allow (S1-05…S1-10). Where
// several rules of the action match, the first by policy name is named. An Empower
// in doubt counts whatever other ones there are.
func (s *Simulator) clusterPolicies(c *connection, d flow.Direction, subject *inventory.Pod) (o Outcome, done bool) {
	empowered := no
	for _, m := range s.clusterRules(c, d, subject, s.cluster, "Empower") {
		if m.matches == inDoubt {
			return doubted(), true
		}
		empowered = max(empowered, m.matches)
	}
	if empowered == no {
		if o, done = strongest(d, s.clusterRules(c, d, subject, s.cluster, "Deny"), classifier.Drop); done {
			return o, true
		}
	}
	return strongest(d, s.clusterRules(c, d, subject, s.cluster, "Allow"), classifier.Allow)
}

// clusterLine is a rule that has been asked.
type clusterLine struct {
	obj     *api.Object
	index   int
	matches answer
}

// clusterRules asks the rules with an action, by policy name and index.
func (s *Simulator) clusterRules(c *connection, d flow.Direction, subject *inventory.Pod, policies []clusterPolicy, action string) (out []clusterLine) {
	for _, p := range policies {
		for i := range p.rules[d] {
			if r := &p.rules[d][i]; r.action == action {
				out = append(out, clusterLine{p.obj, i, c.ask(func(c *connection) bool { return s.clusterMatch(c, d, subject, &p, r) })})
			}
		}
	}
	return out
}

// strongest is the answer of rules that all have one verdict.
func strongest(d flow.Direction, lines []clusterLine, v classifier.Verdict) (o Outcome, done bool) {
	i, a := first(len(lines), func(i int) answer { return lines[i].matches }, func(int) bool { return v == classifier.Allow })
	switch a {
	case no:
		return Outcome{}, false
	case inDoubt:
		return doubted(), true
	}
	return decided(v, lines[i].obj, d, "", lines[i].index), true
}

// clusterDefaults answers for ClusterDefaultNetworkPolicy: their rules add up,
// and what none of them allows is dropped for who is isolated (S1-13, S1-14,
// S1-17). It is only asked about pods no NetworkPolicy isolates (S1-18).
func (s *Simulator) clusterDefaults(c *connection, d flow.Direction, subject *inventory.Pod) (o Outcome, done bool) {
	var isolating []string
	for _, p := range s.clusterDefault {
		if p.isolates[d] && s.clusterSubject(&p, subject) {
			isolating = append(isolating, ref(p.obj))
		}
	}
	if o, done = strongest(d, s.clusterRules(c, d, subject, s.clusterDefault, ""), classifier.Allow); done {
		return o, true
	}
	return isolated(isolating)
}

// clusterSubject: namespaceSelector is required, podSelector narrows (S1-23).
func (s *Simulator) clusterSubject(p *clusterPolicy, pod *inventory.Pod) bool {
	a := p.appliedTo
	return s.selects(a.NamespaceSelector, s.nsLabels[pod.Namespace]) && (a.PodSelector == nil || s.selects(a.PodSelector, pod.Labels))
}

// clusterMatch asks one rule. No peers mean every source (S1-26), but whatever a
// rule says, it is about traffic inside the cluster (S1-36): only pods are peers.
func (s *Simulator) clusterMatch(c *connection, d flow.Direction, subject *inventory.Pod, p *clusterPolicy, r *clusterRule) bool {
	if !s.clusterSubject(p, subject) || !c.peer(d).is(func(pod *inventory.Pod) bool {
		return len(r.peers) == 0 || slices.ContainsFunc(r.peers, func(p kepcnp.Peer) bool { return s.clusterPeer(&p, subject, pod) })
	}) {
		return false
	}
	return len(r.ports) == 0 || slices.ContainsFunc(r.ports, func(p networkingv1.NetworkPolicyPort) bool { // S1-25
		return portMatches(c, p.Protocol, p.Port, p.EndPort)
	})
}

func (s *Simulator) clusterPeer(p *kepcnp.Peer, subject, peer *inventory.Pod) bool {
	ours, theirs := s.nsLabels[subject.Namespace], s.nsLabels[peer.Namespace]
	namespace := false
	if n := p.Namespaces; n == nil {
		namespace = s.selects(p.NamespaceSelector, theirs)
	} else {
		switch strings.ToLower(n.Scope) {
		case "self": // S1-34
			namespace = subject.Namespace == peer.Namespace
		case "selector": // S1-33
			namespace = s.selects(n.Selector, theirs)
		case "samelabels": // S1-35
			namespace = sameLabels(n.Labels, ours, theirs)
		}
	}
	return namespace && (p.PodSelector == nil || s.selects(p.PodSelector, peer.Labels))
}
