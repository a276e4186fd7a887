package rule

import (
	"net/netip"

	"github.com/tierwall/tierwall/classifier/flow"
)

// World is everything the rules are evaluated against. It is immutable once
// handed to the classifier.
type World struct {
	// Node is the node whose pods are policed here. "" means every pod is
	// local: the offline view of matrix and explain.
	Node      string
	Endpoints []Endpoint
	Nodes     []Node
	// VIPs are Service addresses: packets to them are judged after the Service
	// proxy has chosen a backend, never before.
	VIPs []netip.Addr
	// LocalPrefixes are the prefixes the pods of Node get their addresses from.
	// An address inside one that is no local pod's is a pod that is not known
	// yet, or is gone; see classifier.Table.UnknownLocal. Empty where that is not
	// known.
	LocalPrefixes []netip.Prefix
	// Sets are address sets by name (node addresses, FQDN answers, Services).
	Sets map[string][]netip.Prefix
}

// Endpoint is a pod as policy sees it.
type Endpoint struct {
	Namespace, Name string
	Labels          map[string]string
	NamespaceLabels map[string]string
	ServiceAccount  string
	Node            string
	HostNetwork     bool         // shares its node's addresses; never selected
	Addrs           []netip.Addr // unmapped; at most one per family in Kubernetes
	Ports           []NamedPort
}

// Addr returns the endpoint's first address of a family.
func (e *Endpoint) Addr(is4 bool) (netip.Addr, bool) {
	for _, a := range e.Addrs {
		if a.Is4() == is4 {
			return a, true
		}
	}
	return netip.Addr{}, false
}

// NamedPort is a container port with a name.
type NamedPort struct {
	Name  string
	Proto flow.Proto
	Port  uint16
}

// Node is a cluster node.
type Node struct {
	Name  string
	Addrs []netip.Addr
	// PodCIDRs are the prefixes the node's pods live in. An address inside one
	// that no endpoint has is unknown: a pod may have it that is not known yet.
	PodCIDRs []netip.Prefix
}

// Local reports whether the endpoint's policy is enforced in this world: it
// runs on the world's node, or the world has none.
func (w *World) Local(e *Endpoint) bool {
	return !e.HostNetwork && (w.Node == "" || e.Node == w.Node)
}
