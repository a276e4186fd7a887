package antrea

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/api"
	antreaapi "github.com/tierwall/tierwall/policy/api/antrea"
	"github.com/tierwall/tierwall/policy/diag"
	"github.com/tierwall/tierwall/policy/internal/kube"
	"github.com/tierwall/tierwall/policy/inventory"
)

// groupName is the name of a group; namespace is empty for a ClusterGroup.
type groupName struct{ namespace, name string }

// kind returns the API kind of the group with this name.
func (n groupName) kind() string {
	if n.namespace == "" {
		return "ClusterGroup"
	}
	return "Group"
}

func (n groupName) String() string { return n.kind() + " " + n.name }

// members is what a group stands for: pods, addresses, or both where children
// mix them (S2-76). Pods are selectors, not their result, so that pods come and
// go without the group being lowered anew.
type members struct {
	pods   []rule.Selector
	blocks []rule.IPBlock
	// otherNamespaces is set when a Group selects pods outside its namespace.
	otherNamespaces bool
}

type groups map[groupName]*members

// groupsOf resolves all groups and checks what must hold among them.
func groupsOf(objs []*api.Object, inv *inventory.Snapshot, findings *diag.List) groups {
	specs := map[groupName]*antreaapi.GroupSpec{}
	all := groups{}
	var parents []*api.Object
	for _, o := range objs {
		s := groupSpec(o)
		if s == nil {
			continue
		}
		name := groupName{o.Namespace, o.Name}
		specs[name] = s
		all[name] = ownMembers(o, s, inv, findings)
		if len(s.ChildGroups) > 0 {
			parents = append(parents, o)
		}
	}
	slices.SortStableFunc(parents, func(a, b *api.Object) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	for _, o := range parents {
		f := &kube.Findings{Object: o}
		m := all[groupName{o.Namespace, o.Name}]
		for i, child := range groupSpec(o).ChildGroups {
			path, name := kube.At("spec.childGroups", i), groupName{o.Namespace, child}
			spec := specs[name]
			switch {
			case spec == nil: // S2-78, X-37
				f.Error(path, fmt.Sprintf("there is no %s", name), all.hint(name))
			case len(spec.ChildGroups) > 0: // S2-77
				f.Error(path, fmt.Sprintf("%s has childGroups itself: groups nest one level deep", name),
					"list the children of "+child+" here instead")
			default:
				c := all[name]
				m.pods = append(m.pods, c.pods...)
				m.blocks = append(m.blocks, c.blocks...)
				m.otherNamespaces = m.otherNamespaces || c.otherNamespaces
			}
		}
		findings.Add(f.List)
	}
	return all
}

// ownMembers resolves a group without its children.
func ownMembers(o *api.Object, s *antreaapi.GroupSpec, inv *inventory.Snapshot, findings *diag.List) *members {
	m := &members{}
	if s.IPBlock != nil {
		m.add(s.IPBlock)
	}
	for i := range s.IPBlocks {
		m.add(&s.IPBlocks[i])
	}
	if s.PodSelector != nil || s.NamespaceSelector != nil {
		m.pods = append(m.pods, podSelector(o.Namespace, s.PodSelector, s.NamespaceSelector))
		m.otherNamespaces = o.Namespace != "" && s.NamespaceSelector != nil
	}
	if ref := s.ServiceReference; ref != nil {
		namespace := cmp.Or(ref.Namespace, o.Namespace)
		ignored := func(why string) {
			findings.Warnings = append(findings.Warnings, o.Finding("spec.serviceReference",
				fmt.Sprintf("%s: the group has no members", why), "create the Service with a selector, or select the pods by podSelector"))
		}
		switch svc := inv.Service(namespace, ref.Name); {
		case svc == nil:
			ignored(fmt.Sprintf("there is no Service %s/%s", namespace, ref.Name))
		case len(svc.Selector) == 0: // S2-74
			ignored(fmt.Sprintf("Service %s/%s has no selector", namespace, ref.Name))
		default: // S2-73; ports do not matter (S2-75)
			m.pods = append(m.pods, rule.Selector{Namespace: namespace, PodLabels: kube.LabelsOf(svc.Selector)})
		}
	}
	return m
}

func (m *members) add(b *antreaapi.IPBlock) {
	if block, ok := block(b); ok {
		m.blocks = append(m.blocks, block)
	}
}

func (m *members) multicast() bool {
	return slices.ContainsFunc(m.blocks, func(b rule.IPBlock) bool { return multicast(b.Prefix) })
}

// find returns the group a policy's entry names: a ClusterGroup for a
// ClusterNetworkPolicy, a Group of its namespace for a NetworkPolicy (S2-80).
func (g groups) find(f *kube.Findings, path, name string) *members {
	key := groupName{f.Object.Namespace, name}
	if m := g[key]; m != nil {
		return m
	}
	hint := g.hint(key)
	if key.namespace != "" && g[groupName{name: name}] != nil {
		hint = "a NetworkPolicy can use Groups of its own namespace; the ClusterGroup of that name is for ClusterNetworkPolicies"
	}
	f.Error(path, fmt.Sprintf("there is no %s", key), hint)
	return nil
}

// hint names a group that was perhaps meant.
func (g groups) hint(want groupName) string {
	var names []string
	for n := range g {
		if n.namespace == want.namespace && n.name != want.name {
			names = append(names, n.name)
		}
	}
	slices.Sort(names)
	return cmp.Or(kube.DidYouMean(want.name, names), "create the "+want.kind())
}

// podSelector is what podSelector and namespaceSelector mean together, seen from
// a namespace: without a namespaceSelector the namespace itself, or every one
// where there is none (S2-26, S2-46…S2-48, S2-57).
func podSelector(namespace string, pods, namespaces *labelSelector) rule.Selector {
	var s rule.Selector
	if namespaces != nil {
		s.NamespaceLabels = kube.Labels(namespaces)
	} else {
		s.Namespace = namespace
	}
	if pods != nil {
		s.PodLabels = kube.Labels(pods)
	}
	return s
}

// block converts a checked block; ok is false for one that Validate refuses.
func block(b *antreaapi.IPBlock) (out rule.IPBlock, ok bool) {
	p, err := netip.ParsePrefix(b.CIDR)
	if err != nil || p.Addr().Is4In6() {
		return rule.IPBlock{}, false
	}
	out.Prefix = p.Masked()
	for _, text := range b.Except {
		e, err := netip.ParsePrefix(text)
		if err != nil || e.Addr().Is4In6() {
			return rule.IPBlock{}, false // a hole we cannot read must not be filled
		}
		out.Except = append(out.Except, e.Masked())
	}
	return out, true
}

// multicast reports whether the prefix holds multicast addresses only.
func multicast(p netip.Prefix) bool {
	if p.Addr().Is4() {
		return p.Bits() >= 4 && p.Addr().IsMulticast()
	}
	return p.Bits() >= 8 && p.Addr().IsMulticast()
}

func checkGroup(f *kube.Findings, s *antreaapi.GroupSpec, version string) {
	kube.CheckSelector(f, "spec.podSelector", s.PodSelector)
	kube.CheckSelector(f, "spec.namespaceSelector", s.NamespaceSelector)
	if s.ExternalEntitySelector != nil {
		f.Error("spec.externalEntitySelector", noExternalEntities, "select pods, or list the addresses in ipBlocks")
	}
	var ways []string
	for _, w := range []form{
		selectorForm(s.PodSelector, s.NamespaceSelector, nil),
		{name: "ipBlock", set: s.IPBlock != nil},
		{name: "ipBlocks", set: len(s.IPBlocks) > 0},
		{name: "serviceReference", set: s.ServiceReference != nil},
		{name: "childGroups", set: len(s.ChildGroups) > 0},
	} {
		if w.set {
			ways = append(ways, w.name)
		}
	}
	switch {
	case len(ways) > 1: // S2-70, S2-72
		f.Error("spec", "the group sets "+strings.Join(ways, " and "), "at most one of podSelector (with or without namespaceSelector), serviceReference, ipBlock, ipBlocks, childGroups")
	case len(ways) == 0 && s.ExternalEntitySelector == nil:
		f.Error("spec", "the group selects nothing", "set podSelector, namespaceSelector, serviceReference, ipBlocks or childGroups; `podSelector: {}` means all pods")
	}
	checkGroupBlocks(f, s, version)
	if ref := s.ServiceReference; ref != nil {
		checkReference(f, "spec.serviceReference", ref, f.Object.Namespace)
	}
	for i, c := range s.ChildGroups {
		switch at := kube.At("spec.childGroups", i); c {
		case "":
			f.Error(at, "the name is empty", "write the name of a group, or remove the item")
		case f.Object.Name: // S2-77
			f.Error(at, "the group is its own child", "remove it from childGroups")
		}
	}
}

func checkGroupBlocks(f *kube.Findings, s *antreaapi.GroupSpec, version string) {
	if s.IPBlock != nil {
		checkBlock(f, "spec.ipBlock", s.IPBlock, version)
		if version == current {
			f.Error("spec.ipBlock", "v1beta1 has no ipBlock", "write a list of one in ipBlocks")
		} else {
			f.Warn("spec.ipBlock", "ipBlock is deprecated", "write a list of one in ipBlocks")
		}
	}
	var uni, multi bool
	for i := range s.IPBlocks {
		if p, ok := checkBlock(f, kube.At("spec.ipBlocks", i), &s.IPBlocks[i], version); ok {
			multi, uni = multi || multicast(p), uni || !multicast(p)
		}
	}
	if uni && multi {
		f.Error("spec.ipBlocks", "multicast and unicast ranges in one group", "make two groups")
	}
}

// checkReference checks the name of a Service. namespace is that of the object
// which refers, "" when it is cluster-scoped.
func checkReference(f *kube.Findings, path string, ref *antreaapi.NamespacedName, namespace string) {
	if ref.Name == "" {
		f.Error(path+".name", "name is missing", "write the Service's name")
	}
	switch {
	case ref.Namespace == "" && namespace == "":
		f.Error(path+".namespace", "namespace is missing", "write the Service's namespace")
	case ref.Namespace != "" && namespace != "" && ref.Namespace != namespace:
		f.Error(path+".namespace", fmt.Sprintf("namespace %q is not the object's own", ref.Namespace),
			"a namespaced object can only refer to Services of its namespace")
	}
}
