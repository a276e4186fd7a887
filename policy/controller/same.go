package controller

import (
	"maps"
	"reflect"
	"slices"

	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/inventory"
)

// sameWorld reports whether two worlds are equal. Worlds made of one source share
// what did not change, label maps above all: a hundred thousand pods take a few
// milliseconds, where reflect.DeepEqual takes hundreds and forty megabytes.
func sameWorld(a, b *rule.World) bool {
	if a == nil || b == nil {
		return a == b
	}
	return sameButPods(a, b) && len(a.Endpoints) == len(b.Endpoints) && sameEndpoints(a.Endpoints, b.Endpoints)
}

func sameButPods(a, b *rule.World) bool {
	return a.Node == b.Node && slices.Equal(a.LocalPrefixes, b.LocalPrefixes) && slices.Equal(a.VIPs, b.VIPs) &&
		slices.EqualFunc(a.Nodes, b.Nodes, sameNode) && maps.EqualFunc(a.Sets, b.Sets, slices.Equal)
}

// sameWorld reports whether the world in force is this one, which is of a view.
func (c *Controller) sameWorld(world *rule.World, view *inventory.View) bool {
	if c.slim {
		return view.SameEndpoints(c.view) && sameButPods(c.world, world)
	}
	return sameWorld(c.world, world)
}

// sameSet reports whether the set in force is this one.
func (c *Controller) sameSet(set *rule.Set) bool {
	if c.set != nil {
		return sameSet(c.set, set) || reflect.DeepEqual(*c.set, *set)
	}
	was := c.table.Policy()
	return reflect.DeepEqual(was, *set)
}

func sameNode(a, b rule.Node) bool {
	return a.Name == b.Name && slices.Equal(a.Addrs, b.Addrs) && slices.Equal(a.PodCIDRs, b.PodCIDRs)
}

func sameEndpoints(a, b []rule.Endpoint) bool {
	for i := range a {
		x, y := &a[i], &b[i]
		if x.Namespace != y.Namespace || x.Name != y.Name || x.ServiceAccount != y.ServiceAccount || x.Node != y.Node ||
			x.HostNetwork != y.HostNetwork || !slices.Equal(x.Addrs, y.Addrs) || !slices.Equal(x.Ports, y.Ports) ||
			!sameLabels(x.Labels, y.Labels) || !sameLabels(x.NamespaceLabels, y.NamespaceLabels) {
			return false
		}
	}
	return true
}

// sameLabels is maps.Equal that knows a map from itself.
func sameLabels(a, b map[string]string) bool {
	return len(a) == len(b) && (reflect.ValueOf(a).Pointer() == reflect.ValueOf(b).Pointer() || maps.Equal(a, b))
}
