package lint

import (
	"fmt"
	"slices"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
)

// overridden: a NetworkPolicy whose pods all are decided about by one stronger
// rule, for every pod at the other side and every port. What it says about
// addresses outside the cluster still counts.
func (c *checker) overridden() {
	for i := range c.set.Isolations {
		iso := &c.set.Isolations[i]
		p := c.of(&iso.Origin)
		if p == nil || iso.Band != rule.BandNetworkPolicy || iso.Stage != rule.Enforce {
			continue
		}
		subjects := c.selected(&iso.Subject)
		by := c.overrides(iso.Direction, subjects)
		if by == nil {
			continue
		}
		c.warn(p.object, subjectPath(p.object),
			fmt.Sprintf("%s between pods is decided by %s %s (%s) for every pod this policy selects",
				iso.Direction, by.Origin.Kind, by.Origin.Name, by.Origin.RuleName(by.Direction)+": "+by.Origin.Word),
			"only what this policy says about addresses outside the cluster has an effect")
	}
}

func (c *checker) selected(s *rule.Selector) []*rule.Endpoint {
	var out []*rule.Endpoint
	for i := range c.pods {
		if s.Matches(&c.pods[i]) {
			out = append(out, &c.pods[i])
		}
	}
	return out
}

// overrides returns the rule before the NetworkPolicies that is final for all
// subjects and everything pods may send, nil if there is none. A Skip that
// concerns one of them ends the search: behind it nothing is obvious.
func (c *checker) overrides(d flow.Direction, subjects []*rule.Endpoint) *rule.Rule {
	if len(subjects) == 0 {
		return nil
	}
	for i := range c.set.Rules {
		r := &c.set.Rules[i]
		if r.Direction != d || r.Order.Band >= rule.BandNetworkPolicy || r.Stage != rule.Enforce {
			continue
		}
		n := 0
		for _, e := range subjects {
			if r.Subject.Matches(e) {
				n++
			}
		}
		switch {
		case n == 0:
		case r.Action == rule.Skip:
			return nil
		case n == len(subjects) && everything(r):
			return r
		}
	}
	return nil
}

// everything reports whether a rule matches all traffic with all pods.
func everything(r *rule.Rule) bool {
	return slices.Contains(r.L4, rule.AnyL4) && slices.ContainsFunc(r.Peers, func(p rule.Peer) bool {
		return p.Kind == rule.PeerAny || p.Kind == rule.PeerPods && p.Relation.IsZero() && p.Pods.String() == "{}"
	})
}

// dns: pods that may open some connections, but none to a DNS server.
func (c *checker) dns() {
	servers := slices.DeleteFunc(slices.Clone(c.pods), func(e rule.Endpoint) bool { return !isDNS(&e) })
	cut := map[*policy]string{} // → a pod that is cut off
	for i := range c.pods {
		pod := &c.pods[i]
		if isDNS(pod) || !c.egressIsolated(pod) {
			continue
		}
		var listing []*policy
		reached := false
		for j := range c.set.Rules {
			r := &c.set.Rules[j]
			if r.Direction != flow.Egress || r.Action != rule.Allow || r.Stage != rule.Enforce ||
				r.Order.Band > rule.BandNetworkPolicy || len(r.Peers) == 0 || !r.Subject.Matches(pod) {
				continue
			}
			if r.Order.Band == rule.BandNetworkPolicy {
				listing = append(listing, c.of(&r.Origin))
			}
			reached = reached || c.reachesDNS(r, pod, servers)
		}
		if reached {
			continue
		}
		for _, p := range listing {
			if p != nil && cut[p] == "" {
				cut[p] = pod.Namespace + "/" + pod.Name
			}
		}
	}
	for p, pod := range cut {
		c.warn(p.object, "spec.egress", "no egress rule lets pod "+pod+" reach a DNS server",
			"allow port 53, UDP and TCP, to the DNS pods if the pod resolves names")
	}
}

func (c *checker) egressIsolated(e *rule.Endpoint) bool {
	return slices.ContainsFunc(c.set.Isolations, func(i rule.Isolation) bool {
		return i.Direction == flow.Egress && i.Band == rule.BandNetworkPolicy && i.Stage == rule.Enforce && i.Subject.Matches(e)
	})
}

// isDNS guesses which pods serve DNS by the labels every distribution uses.
func isDNS(e *rule.Endpoint) bool {
	for _, key := range []string{"k8s-app", "app", "app.kubernetes.io/name"} {
		if v := e.Labels[key]; v == "kube-dns" || v == "coredns" || v == "node-local-dns" {
			return true
		}
	}
	return false
}

// reachesDNS reports whether the rule may let pod talk to a DNS server. Without
// known servers, and for peers that are addresses, port 53 is enough.
func (c *checker) reachesDNS(r *rule.Rule, pod *rule.Endpoint, servers []rule.Endpoint) bool {
	if !slices.ContainsFunc(r.L4, func(l rule.L4) bool { return c.has53(&l) }) {
		return false
	}
	for i := range r.Peers {
		p := &r.Peers[i]
		if p.Kind != rule.PeerPods || len(servers) == 0 {
			return true
		}
		if slices.ContainsFunc(servers, func(e rule.Endpoint) bool {
			return p.Pods.Matches(&e) && p.Relation.Holds(pod, &e)
		}) {
			return true
		}
	}
	return false
}

func (c *checker) has53(l *rule.L4) bool {
	if l.Proto != flow.AnyProto && l.Proto != flow.UDP && l.Proto != flow.TCP {
		return false
	}
	if l.Name == "" {
		return l.Ports.Contains(53)
	}
	return slices.ContainsFunc(c.pods, func(e rule.Endpoint) bool {
		return slices.Contains(e.Ports, rule.NamedPort{Name: l.Name, Proto: flow.UDP, Port: 53}) ||
			slices.Contains(e.Ports, rule.NamedPort{Name: l.Name, Proto: flow.TCP, Port: 53})
	})
}
