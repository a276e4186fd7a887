package inventory

import (
	"net/netip"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/tierwall/tierwall/classifier/rule"
)

// A peer that only the living world can resolve is lowered to the name of an
// address set (rule.PeerSet). The name says what belongs into the set, so that
// dialects need not hand anything else on:
//
//	node-selector:SELECTOR   addresses of the nodes a label selector selects, those
//	                         of their devices included (Node.DeviceAddrs)
//	service:NAMESPACE/NAME   ClusterIPs of a Service
//	fqdn:PATTERN             answers to names an Antrea fqdn pattern selects
//	domain:PATTERN           answers to names a domainNames pattern selects
//	cilium-fqdn:PATTERN      answers to names a toFQDNs name or pattern selects,
//	                         without pods and nodes
//
// The three kinds of DNS sets differ in what * stands for.
//
// Objects tell the first two. The others are learnt from DNS (NameMatcher); no
// object knows them, and here they are empty.
const (
	nodeSelectorPrefix = "node-selector:"
	servicePrefix      = "service:"
	fqdnPrefix         = "fqdn:"
	domainPrefix       = "domain:"
	ciliumFQDNPrefix   = "cilium-fqdn:"
)

// NodeSelectorSet names the set of the addresses of the nodes s selects. ok is
// false for a selector no API server would accept, and for nil, which means
// different things to different APIs.
func NodeSelectorSet(s *metav1.LabelSelector) (name string, ok bool) {
	if s == nil {
		return "", false
	}
	sel, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return "", false
	}
	return nodeSelectorPrefix + sel.String(), true
}

// ServiceSet names the set of a Service's ClusterIPs.
func ServiceSet(namespace, name string) string { return servicePrefix + namespace + "/" + name }

// FQDNSet names the set of the addresses behind the names an Antrea pattern
// selects.
func FQDNSet(pattern string) string { return fqdnPrefix + strings.ToLower(pattern) }

// DomainSet names the set of the addresses behind the names a domainNames
// pattern selects.
func DomainSet(pattern string) string { return domainPrefix + strings.ToLower(pattern) }

// CiliumFQDNSet names the set of the addresses behind the names a Cilium toFQDNs
// item selects, those of pods and nodes left out.
func CiliumFQDNSet(pattern string) string { return ciliumFQDNPrefix + strings.ToLower(pattern) }

// NodeSet reports whether a set holds addresses of nodes.
func NodeSet(name string) bool { return strings.HasPrefix(name, nodeSelectorPrefix) }

// LearntSet reports whether a set can only be filled from DNS answers.
func LearntSet(name string) bool {
	return strings.HasPrefix(name, fqdnPrefix) || strings.HasPrefix(name, domainPrefix) ||
		strings.HasPrefix(name, ciliumFQDNPrefix)
}

// LearntOutside reports whether a set is filled from DNS answers without addresses of
// pods and nodes.
func LearntOutside(name string) bool { return strings.HasPrefix(name, ciliumFQDNPrefix) }

// SetNames returns the names of all address sets the rules ask for, sorted.
func SetNames(set *rule.Set) []string {
	var names []string
	for i := range set.Rules {
		for j := range set.Rules[i].Peers {
			if p := &set.Rules[i].Peers[j]; p.Kind == rule.PeerSet || p.Kind == rule.PeerService {
				names = append(names, p.Set)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// FillSets puts the address sets the rules ask for into the world, as far as
// objects tell them. Everybody who builds a world for a rule set calls it.
func (s *Snapshot) FillSets(w *rule.World, set *rule.Set) { w.Sets = s.Sets(SetNames(set)) }

// Sets returns the named address sets, each sorted and without duplicates. What
// the snapshot cannot tell, or has no object for, is there and empty. It is nil
// when no name is asked for.
func (s *Snapshot) Sets(names []string) map[string][]netip.Prefix {
	if len(names) == 0 {
		return nil
	}
	sets := make(map[string][]netip.Prefix, len(names))
	for _, name := range names {
		var addrs []netip.Addr
		if text, ok := strings.CutPrefix(name, nodeSelectorPrefix); ok {
			addrs = s.nodeAddrs(text)
		} else if text, ok := strings.CutPrefix(name, servicePrefix); ok {
			namespace, svc, _ := strings.Cut(text, "/")
			if o := s.Service(namespace, svc); o != nil {
				addrs = slices.Clone(o.ClusterIPs)
			}
		}
		slices.SortFunc(addrs, netip.Addr.Compare)
		addrs = slices.Compact(addrs)
		prefixes := make([]netip.Prefix, len(addrs))
		for i, a := range addrs {
			prefixes[i] = netip.PrefixFrom(a, a.BitLen())
		}
		sets[name] = prefixes
	}
	return sets
}

// nodeAddrs returns the addresses of the nodes a selector in text form selects.
func (s *Snapshot) nodeAddrs(selector string) []netip.Addr {
	sel, err := labels.Parse(selector)
	if err != nil {
		return nil // not a name NodeSelectorSet made
	}
	var out []netip.Addr
	for i := range s.Nodes {
		if sel.Matches(labels.Set(s.Nodes[i].Labels)) {
			out = append(append(out, s.Nodes[i].Addrs...), s.Nodes[i].DeviceAddrs...)
		}
	}
	return out
}

// Service returns a Service by name, nil when the snapshot has none.
func (s *Snapshot) Service(namespace, name string) *Service {
	i, ok := slices.BinarySearchFunc(s.Services, [2]string{namespace, name}, func(svc Service, key [2]string) int {
		if c := strings.Compare(svc.Namespace, key[0]); c != 0 {
			return c
		}
		return strings.Compare(svc.Name, key[1])
	})
	if !ok {
		return nil
	}
	return &s.Services[i]
}
