package inventory

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/diag"
)

// World returns the snapshot as the classifier sees it from a node; "" makes
// every pod local, the view of the offline tools. A node the snapshot does not
// have gives a world in which that node has no addresses: use [Snapshot.WorldOf]
// where that is a mistake.
//
// Pods without an address are left out. The world shares label maps and slices
// with the snapshot; both are read only.
func (s *Snapshot) World(node string) *rule.World {
	w := &rule.World{
		Node:      node,
		Endpoints: make([]rule.Endpoint, 0, len(s.Pods)),
		Nodes:     make([]rule.Node, 0, len(s.Nodes)),
	}
	labels := make(map[string]map[string]string, len(s.Namespaces))
	for i := range s.Namespaces {
		labels[s.Namespaces[i].Name] = s.Namespaces[i].Labels
	}
	nodeAddr := map[netip.Addr]bool{}
	for i := range s.Nodes {
		n := &s.Nodes[i]
		w.Nodes = append(w.Nodes, rule.Node{Name: n.Name, Addrs: n.Addrs, PodCIDRs: n.PodCIDRs})
		if n.Name == node {
			w.LocalPrefixes = n.PodCIDRs
		}
		for _, a := range n.Addrs {
			nodeAddr[a] = true
		}
	}
	for i := range s.Pods {
		p := &s.Pods[i]
		if len(p.IPs) == 0 {
			continue
		}
		w.Endpoints = append(w.Endpoints, p.endpoint(labels[p.Namespace]))
	}
	for i := range s.Services {
		w.VIPs = append(w.VIPs, s.Services[i].ClusterIPs...)
		for _, a := range s.Services[i].ExternalIPs {
			// A node's own address stays one: not every packet to it meets the
			// Service proxy.
			if !nodeAddr[a] {
				w.VIPs = append(w.VIPs, a)
			}
		}
	}
	slices.SortFunc(w.VIPs, netip.Addr.Compare)
	w.VIPs = slices.Compact(w.VIPs)
	return w
}

// WorldOf is [Snapshot.World] for a node that has to exist.
func (s *Snapshot) WorldOf(node string) (*rule.World, error) {
	if node == "" {
		return s.World(node), nil
	}
	names := make([]string, len(s.Nodes))
	for i := range s.Nodes {
		if names[i] = s.Nodes[i].Name; names[i] == node {
			return s.World(node), nil
		}
	}
	return nil, fmt.Errorf("node %q is not among the %d nodes%s", node, len(names), diag.Among(node, names))
}
