package lower

import (
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/diag"
	"github.com/tierwall/tierwall/policy/internal/kube"
	"github.com/tierwall/tierwall/policy/inventory"
	"github.com/tierwall/tierwall/policy/lower/cilium"
	"github.com/tierwall/tierwall/policy/lower/networkpolicy"
)

// StandsAlone reports whether what an object brings to the rules depends on no
// other object, and whether no finding about others depends on it: NetworkPolicies
// and Cilium's are so. Objects of all other kinds share tiers, groups or ranks.
func StandsAlone(o *api.Object) bool {
	return o.Kind.Group == networkpolicy.Group && o.Kind.Version == networkpolicy.Version && o.Kind.Kind == networkpolicy.Name ||
		o.Kind.Group == cilium.Group && o.Kind.Version == cilium.Version
}

// Alone validates and lowers one object that stands alone: [Options.Build] brings
// the same rules for it, whatever else there is. The set is sorted, and empty if
// there are errors, as for an object that does not stand alone.
//
// It costs a walk over nodes and pods for Cilium's objects, and nothing of the kind
// for NetworkPolicies.
func Alone(o *api.Object, v *inventory.View) (rule.Set, diag.List) {
	found := Validate(o)
	if len(found.Errors) > 0 {
		return rule.Set{}, found
	}
	var d Dialect
	inv := &inventory.Snapshot{}
	switch {
	case !StandsAlone(o):
		found.Errors = append(found.Errors, o.Finding("", "objects of this kind are lowered together", kube.InternalHint))
		return rule.Set{}, found
	case o.Kind.Group == networkpolicy.Group:
		d = networkpolicy.Dialect{}
		if n := v.Namespace(o.Namespace); n != nil { // annotations of others are not about it
			inv.Namespaces = []inventory.Namespace{*n}
		}
	default:
		d = cilium.Dialect{}
		inv.Namespaces, inv.Nodes, inv.Services = v.Namespaces, v.Nodes, v.Services
		v.EachPod(func(p *inventory.Pod) {
			if p.HostNetwork { // others do not change what a node's address is
				inv.Pods = append(inv.Pods, *p)
			}
		})
	}
	set, more := d.Lower([]*api.Object{o}, inv)
	found.Add(more)
	set.Sort()
	return set, found
}

// DependsOnHosts reports whether rules of the objects may depend on the addresses
// of pods on the host network, which is all of pods that rules ever depend on:
// they are nodes' addresses, which Cilium's blocks leave out.
func DependsOnHosts(objs []*api.Object) bool {
	for _, o := range objs {
		if o.Kind.Group == cilium.Group {
			return true
		}
	}
	return false
}
