package lint

import (
	"fmt"
	"net/netip"

	"github.com/tierwall/tierwall/classifier/rule"
)

// upstreamGroup is the API group whose peers have a list called networks.
const upstreamGroup = "policy.networking.k8s.io"

// networks: prefixes of an upstream policy in which pods live. Its author may
// think of addresses outside only; the API means pods as well.
func (c *checker) networks() {
	var pods []netip.Addr
	for i := range c.inv.Pods {
		if p := &c.inv.Pods[i]; !p.HostNetwork {
			pods = append(pods, p.IPs...)
		}
	}
	covered := map[netip.Prefix]bool{} // policies repeat their prefixes
	for i := range c.set.Rules {
		r := &c.set.Rules[i]
		p := c.of(&r.Origin)
		if p == nil || r.Origin.Group != upstreamGroup {
			continue
		}
		for j := range r.Peers {
			b := &r.Peers[j].Block
			if r.Peers[j].Kind != rule.PeerBlock || b.NoPods || len(b.Except) > 0 {
				continue
			}
			covers, ok := covered[b.Prefix]
			if !ok {
				covers = c.coversPodAddrs(b.Prefix, pods)
				covered[b.Prefix] = covers
			}
			if !covers || c.podsDecided(i, r) {
				continue
			}
			c.warn(p.object, rulePath(r)+"."+side(r.Direction), fmt.Sprintf("network %s covers addresses of pods: the rule (%s) is about them, too", b.Prefix, r.Origin.Word),
				"if addresses outside are meant, let a rule for `namespaces: {}` go before it")
		}
	}
}

func (c *checker) coversPodAddrs(prefix netip.Prefix, pods []netip.Addr) bool {
	for i := range c.inv.Nodes {
		for _, cidr := range c.inv.Nodes[i].PodCIDRs {
			if prefix.Overlaps(cidr) {
				return true
			}
		}
	}
	for _, a := range pods {
		if prefix.Contains(a) {
			return true
		}
	}
	return false
}

// podsDecided reports whether a stronger rule takes all pods out of the i-th
// rule's hands.
func (c *checker) podsDecided(i int, r *rule.Rule) bool {
	onlyPods := *r
	onlyPods.Peers = []rule.Peer{{Kind: rule.PeerPods}}
	return c.before(i, &onlyPods) != nil
}
