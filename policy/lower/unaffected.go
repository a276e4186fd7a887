package lower

import (
	"net/netip"

	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/inventory"
)

// Unaffected reports whether objects are sure to lower to the same rules in two
// worlds, without lowering them: they differ in pods only. Rules say what pods are
// selected by, not which pods these are; most changes of a cluster are of that
// sort. Findings may differ: witnesses of a conflict are pods. false says nothing.
//
// Lists that have not changed are recognised by being the same list in memory.
func Unaffected(objs []*api.Object, a, b *inventory.Snapshot) bool {
	switch {
	case a == b:
		return true
	case a == nil || b == nil || !sameList(a.Namespaces, b.Namespaces) || !sameList(a.Nodes, b.Nodes) || !sameList(a.Services, b.Services):
		return false
	}
	return !DependsOnHosts(objs) || sameHostAddrs(a.Pods, b.Pods)
}

func sameList[T any](a, b []T) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

func sameHostAddrs(a, b []inventory.Pod) bool {
	addrs := func(pods []inventory.Pod) map[netip.Addr]bool {
		out := map[netip.Addr]bool{}
		for i := range pods {
			if pods[i].HostNetwork {
				for _, ip := range pods[i].IPs {
					out[ip] = true
				}
			}
		}
		return out
	}
	x, y := addrs(a), addrs(b)
	for ip := range x {
		if !y[ip] {
			return false
		}
	}
	return len(x) == len(y)
}
