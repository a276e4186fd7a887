package simulate

import (
	"slices"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/api/kepanp"
	"github.com/tierwall/tierwall/policy/inventory"
)

// newKEP converts an AdminNetworkPolicy of the KEP: a larger number is stronger,
// 0 comes after NetworkPolicy (S0-14, S0-17, S0-18). Internals know no ceiling
// (S0-16); 1001-p is where p stands among released objects.
func (s *Simulator) newKEP(o *api.Object, spec *kepanp.Spec) upstreamPolicy {
	p := upstreamPolicy{obj: o, rank: kepWeakest - int64(*spec.Priority), subject: func(pod *inventory.Pod) bool {
		return s.anpSubject(&spec.Subject, pod)
	}}
	if *spec.Priority == 0 {
		p.level = baselineLevel
	}
	add := func(d flow.Direction, name, action string, l4 *kepanp.L4Selector, peers []kepanp.Peer) {
		p.rules[d] = append(p.rules[d], upstreamRule{name, action, func(c *connection, d flow.Direction, subject *inventory.Pod) bool {
			return s.anpMatch(c, d, subject, l4, peers)
		}})
	}
	for i := range spec.Ingress {
		r := &spec.Ingress[i]
		add(flow.Ingress, r.Name, r.Action, &r.L4Selector, r.From)
	}
	for i := range spec.Egress {
		r := &spec.Egress[i]
		add(flow.Egress, r.Name, r.Action, &r.L4Selector, r.To)
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
func (s *Simulator) anpMatch(c *connection, d flow.Direction, subject *inventory.Pod, l4 *kepanp.L4Selector, peers []kepanp.Peer) bool {
	peer := c.peer(d)
	if !slices.ContainsFunc(peers, func(p kepanp.Peer) bool {
		return peer.is(func(pod *inventory.Pod) bool { return s.anpPeer(&p, subject, pod) })
	}) {
		return false
	}
	if l4.AllPorts != nil && *l4.AllPorts { // S0-55
		return true
	}
	return slices.ContainsFunc(l4.Ports, func(p kepanp.Port) bool { // S0-56
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
