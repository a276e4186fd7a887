package inventory

import (
	"slices"
	"strings"

	"github.com/tierwall/tierwall/classifier/rule"
)

// View is a cluster at one moment, like a [Snapshot], from somebody who hears of
// changes one by one: views that follow each other share what did not change, and
// tell what did. It is immutable. Make one with [NewView] or [ViewOf].
type View struct {
	Namespaces []Namespace
	Nodes      []Node
	Services   []Service

	pods Pods
	snap *Snapshot // of ViewOf
}

// NewView returns a view. The lists are sorted, kept, and as long as one is the
// same in the next view, the same memory.
func NewView(namespaces []Namespace, nodes []Node, services []Service, pods Pods) *View {
	return &View{Namespaces: namespaces, Nodes: nodes, Services: services, pods: pods}
}

// ViewOf returns a snapshot as a view that can be compared with no other one.
func ViewOf(s *Snapshot) *View {
	return &View{Namespaces: s.Namespaces, Nodes: s.Nodes, Services: s.Services, snap: s}
}

// Snapshot returns all of the view. It is made anew in every call, which copies
// all pods, and is the caller's but for what pods refer to.
func (v *View) Snapshot() *Snapshot {
	if v.snap != nil {
		return v.snap
	}
	return &Snapshot{Namespaces: v.Namespaces, Nodes: v.Nodes, Services: v.Services, Pods: v.pods.List()}
}

// EachPod calls f with every pod, in order. What f gets is read only.
func (v *View) EachPod(f func(*Pod)) {
	if v.snap == nil {
		v.pods.Each(f)
		return
	}
	for i := range v.snap.Pods {
		f(&v.snap.Pods[i])
	}
}

// Whole returns the snapshot that ViewOf was given, nil for other views.
func (v *View) Whole() *Snapshot { return v.snap }

// SameEndpoints reports whether the worlds of two views have the same pods. false
// says nothing where one of the two is of a snapshot.
func (v *View) SameEndpoints(o *View) bool {
	if v.snap != nil || o.snap != nil {
		return v == o
	}
	if !sameList(v.Namespaces, o.Namespaces) && !slices.EqualFunc(v.Namespaces, o.Namespaces, func(a, b Namespace) bool {
		return a.Name == b.Name && sameMap(a.Labels, b.Labels)
	}) {
		return false
	}
	return !slices.ContainsFunc(v.pods.Since(o.pods), func(c PodChange) bool {
		return c.Old != nil && len(c.Old.IPs) > 0 || c.New != nil && len(c.New.IPs) > 0
	})
}

// Since returns which pods are others than in another view, which may be nil. ok
// is false where that is not all that differs, or where the two cannot be
// compared: for sure they are the same but for these pods only if it is true.
func (v *View) Since(was *View) (changes []PodChange, ok bool) {
	if v == was {
		return nil, true
	}
	if was == nil || v.snap != nil || was.snap != nil || !sameList(v.Namespaces, was.Namespaces) ||
		!sameList(v.Nodes, was.Nodes) || !sameList(v.Services, was.Services) {
		return nil, false
	}
	return v.pods.Since(was.pods), true
}

// sameList reports whether two lists are the same memory.
func sameList[T any](a, b []T) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// Namespace returns a namespace by name, nil when the view has none.
func (v *View) Namespace(name string) *Namespace {
	i, ok := slices.BinarySearchFunc(v.Namespaces, name, func(n Namespace, name string) int { return strings.Compare(n.Name, name) })
	if !ok {
		return nil
	}
	return &v.Namespaces[i]
}

// Endpoint returns one of the view's pods as [Snapshot.World] does. ok is false
// for one without an address, which is in no world.
func (v *View) Endpoint(p *Pod) (e rule.Endpoint, ok bool) {
	if len(p.IPs) == 0 {
		return rule.Endpoint{}, false
	}
	var labels map[string]string
	if n := v.Namespace(p.Namespace); n != nil {
		labels = n.Labels
	}
	return p.endpoint(labels), true
}

func (p *Pod) endpoint(namespaceLabels map[string]string) rule.Endpoint {
	return rule.Endpoint{
		Namespace: p.Namespace, Name: p.Name,
		Labels: p.Labels, NamespaceLabels: namespaceLabels,
		ServiceAccount: p.ServiceAccount, Node: p.Node, HostNetwork: p.HostNetwork,
		Addrs: p.IPs, Ports: p.Ports,
	}
}
