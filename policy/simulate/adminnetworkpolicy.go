package simulate

import (
	"slices"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/api/kepanp"
	"github.com/tierwall/tierwall/policy/inventory"
)

// positive and baseline tell the two halves of AdminNetworkPolicy apart: before
// and after NetworkPolicy (S0-17, S0-18).
func positive(priority int32) bool { return priority > 0 }
func baseline(priority int32) bool { return priority == 0 }

// adminNetworkPolicies answers for the policies whose priority is in the half.
// done is false when evaluation goes on after them: nothing matched, or a
// positive Pass (S0-06). A Pass of the baseline half has nowhere to go on but
// the default.
func (s *Simulator) adminNetworkPolicies(c *connection, d flow.Direction, subject *inventory.Pod, half func(int32) bool) (o Outcome, done bool) {
	for _, p := range s.anp {
		if !half(p.priority) || !s.anpSubject(p.subject, subject) {
			continue
		}
		for i := range p.rules[d] {
			r := &p.rules[d][i]
			if !s.anpMatch(c, d, subject, r) {
				continue
			}
			switch r.action {
			case "Allow": // S0-05
				return decided(classifier.Allow, p.obj, d, r.name, i), true
			case "Deny": // S0-04
				return decided(classifier.Drop, p.obj, d, r.name, i), true
			case "Pass":
				return Outcome{}, false
			}
		}
	}
	return Outcome{}, false
}

// admin is one AdminNetworkPolicy.
type admin struct {
	obj      *api.Object // identity: the envelope is authoritative
	priority int32
	subject  *kepanp.Subject
	rules    [2][]anpRule // by flow.Direction, in the order they are written (S0-19)
}

// anpRule is an ingress or egress rule.
type anpRule struct {
	name, action string
	l4           *kepanp.L4Selector
	peers        []kepanp.Peer
}

func newAdmin(o *api.Object, spec *kepanp.Spec) admin {
	p := admin{obj: o, priority: *spec.Priority, subject: &spec.Subject}
	for i := range spec.Ingress {
		r := &spec.Ingress[i]
		p.rules[flow.Ingress] = append(p.rules[flow.Ingress], anpRule{r.Name, r.Action, &r.L4Selector, r.From})
	}
	for i := range spec.Egress {
		r := &spec.Egress[i]
		p.rules[flow.Egress] = append(p.rules[flow.Egress], anpRule{r.Name, r.Action, &r.L4Selector, r.To})
	}
	return p
}

func (s *Simulator) anpSubject(sub *kepanp.Subject, pod *inventory.Pod) bool {
	if sub.NamespaceAndPodSelector != nil { // S0-26
		return s.selects(sub.NamespaceAndPodSelector.NamespaceSelector, s.nsLabels[pod.Namespace]) &&
			s.selects(sub.NamespaceAndPodSelector.PodSelector, pod.Labels)
	}
	return s.selects(sub.NamespaceSelector, s.nsLabels[pod.Namespace]) // S0-25
}

// anpMatch asks one rule: L4 and one of the peers must match (S0-29, S0-30). No
// peers match nothing (S0-31), and only pods are peers (S0-40, S0-50).
func (s *Simulator) anpMatch(c *connection, d flow.Direction, subject *inventory.Pod, r *anpRule) bool {
	peer := c.peer(d).pod
	if peer == nil {
		return false
	}
	if !slices.ContainsFunc(r.peers, func(p kepanp.Peer) bool { return s.anpPeer(&p, subject, peer) }) {
		return false
	}
	if r.l4.AllPorts != nil && *r.l4.AllPorts { // S0-55
		return true
	}
	return slices.ContainsFunc(r.l4.Ports, func(p kepanp.Port) bool { // S0-56
		return portMatches(c, p.Protocol, p.Port, p.EndPort)
	})
}

func (s *Simulator) anpPeer(p *kepanp.Peer, subject, peer *inventory.Pod) bool {
	switch {
	case p.Namespaces != nil:
		return s.namespaceSet(p.Namespaces, subject, peer)
	case p.NamespacedPods != nil:
		n, pods := p.NamespacedPods.Namespaces, p.NamespacedPods.Pods
		return n != nil && pods != nil && s.namespaceSet(n, subject, peer) && s.podSet(pods, subject, peer)
	}
	return false // S0-33, X-23
}

func (s *Simulator) namespaceSet(n *kepanp.NamespaceSet, subject, peer *inventory.Pod) bool {
	ours, theirs := s.nsLabels[subject.Namespace], s.nsLabels[peer.Namespace]
	switch {
	case n.Self != nil:
		return *n.Self && peer.Namespace == subject.Namespace // S0-37
	case n.NotSelf != nil:
		return *n.NotSelf && peer.Namespace != subject.Namespace // S0-39
	case n.NamespaceSelector != nil:
		return s.selects(n.NamespaceSelector, theirs)
	case n.SameLabels != nil:
		return sameLabels(n.SameLabels, ours, theirs)
	case n.NotSameLabels != nil:
		return notSameLabels(n.NotSameLabels, ours, theirs)
	}
	return false // S0-35
}

func (s *Simulator) podSet(p *kepanp.PodSet, subject, peer *inventory.Pod) bool {
	switch {
	case p.PodSelector != nil:
		return s.selects(p.PodSelector, peer.Labels)
	case p.SameLabels != nil: // S0-48
		return sameLabels(p.SameLabels, subject.Labels, peer.Labels)
	case p.NotSameLabels != nil: // S0-49
		return notSameLabels(p.NotSameLabels, subject.Labels, peer.Labels)
	}
	return false // S0-46
}

// sameLabels: the peer carries every key with the subject's value (S0-41); no
// keys select nothing (S0-42).
func sameLabels(keys []string, ours, theirs labels.Set) bool {
	for _, k := range keys {
		if !ours.Has(k) || !theirs.Has(k) || ours.Get(k) != theirs.Get(k) {
			return false
		}
	}
	return len(keys) > 0
}

// notSameLabels: for at least one key the peer does not carry the subject's
// value; a subject that lacks a key itself is left alone; no keys select
// nothing (S0-44).
func notSameLabels(keys []string, ours, theirs labels.Set) bool {
	differ := false
	for _, k := range keys {
		if !ours.Has(k) {
			return false
		}
		differ = differ || !theirs.Has(k) || theirs.Get(k) != ours.Get(k)
	}
	return differ
}
