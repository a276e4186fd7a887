package cilium

import (
	"fmt"
	"net/netip"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/api/cilium"
	"github.com/tierwall/tierwall/policy/internal/kube"
	"github.com/tierwall/tierwall/policy/inventory"
)

// The entities, as Cilium names them.
const (
	entityAll        = "all"
	entityNone       = "none"
	entityWorld      = "world"
	entityWorld4     = "world-ipv4"
	entityWorld6     = "world-ipv6"
	entityCluster    = "cluster"
	entityHost       = "host"
	entityRemoteNode = "remote-node"
	entityInit       = "init"
	entityHealth     = "health"
	entityIngress    = "ingress"
	entityUnmanaged  = "unmanaged"
	entityAPIServer  = "kube-apiserver"
)

var (
	nobody    = rule.Peer{Kind: rule.PeerPods, Pods: rule.Selector{None: true}}
	anybody   = rule.Peer{Kind: rule.PeerAny}
	everyIPv4 = netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	everyIPv6 = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
)

// blocks makes peers of prefixes outside the cluster. Holes are shared by all
// rules of the same prefix: there may be one for every node.
type blocks struct {
	nodes []netip.Prefix // the addresses of all nodes, sorted, unique
	holes map[netip.Prefix][]netip.Prefix
	// strays are addresses of host-network pods that no Node object lists: some
	// node's all the same.
	strays []rule.Peer
}

func newBlocks(inv *inventory.Snapshot) *blocks {
	b := &blocks{holes: map[netip.Prefix][]netip.Prefix{}}
	listed := map[netip.Prefix]bool{}
	for i := range inv.Nodes {
		for _, a := range slices.Concat(inv.Nodes[i].Addrs, inv.Nodes[i].DeviceAddrs) {
			p := netip.PrefixFrom(a, a.BitLen())
			listed[p] = true
			b.nodes = append(b.nodes, p)
		}
	}
	for i := range inv.Pods {
		if !inv.Pods[i].HostNetwork {
			continue
		}
		for _, a := range inv.Pods[i].IPs {
			if p := netip.PrefixFrom(a, a.BitLen()); !listed[p] {
				listed[p] = true
				b.nodes = append(b.nodes, p)
				b.strays = append(b.strays, rule.Peer{Kind: rule.PeerBlock, Block: rule.IPBlock{Prefix: p, NoPods: true}})
			}
		}
	}
	slices.SortFunc(b.nodes, func(x, y netip.Prefix) int { return x.Addr().Compare(y.Addr()) })
	b.nodes = slices.Compact(b.nodes)
	return b
}

// peer returns the addresses of p, without except, that are neither pods nor
// nodes. Both are masked.
func (b *blocks) peer(p netip.Prefix, except []netip.Prefix) rule.Peer {
	holes, ok := b.holes[p]
	if !ok {
		for _, n := range b.nodes {
			if p.Contains(n.Addr()) {
				holes = append(holes, n)
			}
		}
		b.holes[p] = holes
	}
	if len(except) > 0 {
		holes = append(slices.Clone(except), holes...)
	}
	return rule.Peer{Kind: rule.PeerBlock, Block: rule.IPBlock{Prefix: p, Except: holes, NoPods: true}}
}

// peers lowers the other side of a rule. What Validate refuses selects nobody.
func (l *lowering) peers(ln *line) []rule.Peer {
	switch {
	case ln.silent():
		return []rule.Peer{nobody}
	case ln.open():
		return []rule.Peer{anybody}
	}
	var out []rule.Peer
	for i := range ln.endpoints {
		out = append(out, rule.Peer{Kind: rule.PeerPods, Pods: podSelector(&ln.endpoints[i], l.object.Namespace)})
	}
	for _, s := range ln.cidr {
		if p, ok := parseCIDR(s); ok {
			out = append(out, l.blocks.peer(p, nil))
		}
	}
	for i := range ln.cidrSet {
		if p, except, ok := parseSet(&ln.cidrSet[i]); ok {
			out = append(out, l.blocks.peer(p, except))
		}
	}
	out = append(out, l.entities(ln)...)
	for i := range ln.services {
		out = append(out, l.service(&ln.services[i], kube.At(ln.field("Services"), i))...)
	}
	for i := range ln.fqdns {
		if p := fqdnPattern(&ln.fqdns[i]); p != "" {
			out = append(out, rule.Peer{Kind: rule.PeerSet, Set: inventory.CiliumFQDNSet(p)})
		}
	}
	for i := range ln.nodes {
		if name, ok := inventory.NodeSelectorSet(nodeSelector(&ln.nodes[i])); ok {
			out = append(out, rule.Peer{Kind: rule.PeerSet, Set: name})
		}
	}
	if len(out) == 0 {
		out = append(out, nobody)
	}
	return out
}

// allNodes is the set of the addresses of every node.
func allNodes() rule.Peer {
	name, _ := inventory.NodeSelectorSet(&metav1.LabelSelector{})
	return rule.Peer{Kind: rule.PeerSet, Set: name}
}

func (l *lowering) entities(ln *line) []rule.Peer {
	var out []rule.Peer
	for _, e := range ln.entities {
		switch e {
		case entityAll:
			out = append(out, anybody)
		case entityWorld:
			out = append(out, l.blocks.peer(everyIPv4, nil), l.blocks.peer(everyIPv6, nil))
		case entityWorld4:
			out = append(out, l.blocks.peer(everyIPv4, nil))
		case entityWorld6:
			out = append(out, l.blocks.peer(everyIPv6, nil))
		case entityCluster:
			out = append(out, rule.Peer{Kind: rule.PeerPods}, allNodes())
			out = append(out, l.blocks.strays...)
		case entityHost:
			// On ingress the own node is let in before rules are asked. On
			// egress host comes with remote-node, which stands for both.
		case entityRemoteNode:
			if ln.direction == flow.Ingress || slices.Contains(ln.entities, entityHost) {
				out = append(out, allNodes())
				out = append(out, l.blocks.strays...)
			}
		}
	}
	return out
}

// service lowers one item of toServices to the pods of the Services it names. A
// name without a namespace is looked for in every namespace, as in Cilium.
func (l *lowering) service(s *cilium.Service, path string) []rule.Peer {
	var match func(*inventory.Service) bool
	var what, namespace string
	switch {
	case s.K8sService != nil && s.K8sServiceSelector == nil:
		path, what, namespace = path+".k8sService", s.K8sService.ServiceName, s.K8sService.Namespace
		match = func(svc *inventory.Service) bool { return svc.Name == what }
	case s.K8sService == nil && s.K8sServiceSelector != nil:
		sel, err := metav1.LabelSelectorAsSelector(nodeSelector(selectorOrNone(s.K8sServiceSelector.Selector)))
		if err != nil || s.K8sServiceSelector.Selector == nil {
			return nil
		}
		path, what, namespace = path+".k8sServiceSelector", "the selector", s.K8sServiceSelector.Namespace
		match = func(svc *inventory.Service) bool { return sel.Matches(labels.Set(svc.Labels)) }
	default:
		return nil
	}
	var out []rule.Peer
	found := false
	for i := range l.inv.Services {
		svc := &l.inv.Services[i]
		if namespace != "" && svc.Namespace != namespace || !match(svc) {
			continue
		}
		found = true
		if len(svc.Selector) == 0 {
			l.warn(path, fmt.Sprintf("Service %s/%s has no selector: where it leads to is not known, and the rule does not match it", svc.Namespace, svc.Name),
				"write the addresses of its backends with toCIDR")
			continue
		}
		out = append(out, rule.Peer{Kind: rule.PeerPods, Pods: rule.Selector{
			Namespace: svc.Namespace, PodLabels: kube.LabelsOf(svc.Selector),
		}})
	}
	// An inventory without Services is the check of policies by themselves.
	if !found && len(l.inv.Services) > 0 {
		l.warn(path, "there is no such Service: "+what+" matches nothing", "create the Service, or correct name and namespace")
	}
	return out
}

func selectorOrNone(s *metav1.LabelSelector) *metav1.LabelSelector {
	if s == nil {
		return &metav1.LabelSelector{}
	}
	return s
}

// parseCIDR reads a prefix, or an address as a prefix of its full length.
func parseCIDR(s string) (netip.Prefix, bool) {
	if p, ok := parsePrefix(s); ok {
		return p, true
	}
	a, err := netip.ParseAddr(s)
	if err != nil || a.Is4In6() || a.Zone() != "" {
		return netip.Prefix{}, false
	}
	return netip.PrefixFrom(a, a.BitLen()), true
}

func parsePrefix(s string) (netip.Prefix, bool) {
	p, err := netip.ParsePrefix(s)
	if err != nil || p.Addr().Is4In6() {
		return netip.Prefix{}, false
	}
	return p.Masked(), true
}

// parseSet reads one item of a CIDR set. A hole that cannot be read must not be
// filled, so it refuses the whole.
func parseSet(c *cilium.CIDRRule) (p netip.Prefix, except []netip.Prefix, ok bool) {
	p, ok = parsePrefix(c.CIDR)
	if !ok || c.CIDRGroupRef != "" || c.CIDRGroupSelector != nil {
		return p, nil, false
	}
	for _, s := range c.Except {
		e, ok := parsePrefix(s)
		if !ok || e.Bits() < p.Bits() || !p.Contains(e.Addr()) {
			return p, nil, false
		}
		except = append(except, e)
	}
	return p, except, true
}
