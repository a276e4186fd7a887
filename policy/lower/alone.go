package lower

import (
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/diag"
	"github.com/tierwall/tierwall/policy/inventory"
	"github.com/tierwall/tierwall/policy/lower/cilium"
	"github.com/tierwall/tierwall/policy/lower/networkpolicy"
)

// StandsAlone reports whether what an object brings to the rules depends on no
// other object and nothing of the world but its own Namespace, and whether no
// finding about others depends on it: NetworkPolicies are so. Objects of all other
// kinds share tiers, groups or ranks, or look at nodes and Services.
func StandsAlone(o *api.Object) bool {
	return o.Kind.Group == networkpolicy.Group && o.Kind.Version == networkpolicy.Version && o.Kind.Kind == networkpolicy.Name
}

// Alone validates and lowers one object that stands alone: [Options.Build] brings
// the same rules for it, whatever else there is. namespace is its own, nil if there
// is none. The set is sorted, and empty if there are errors.
func Alone(o *api.Object, namespace *inventory.Namespace) (rule.Set, diag.List) {
	found := Validate(o)
	if len(found.Errors) > 0 {
		return rule.Set{}, found
	}
	inv := &inventory.Snapshot{}
	if namespace != nil {
		inv.Namespaces = []inventory.Namespace{*namespace}
	}
	set, more := networkpolicy.Dialect{}.Lower([]*api.Object{o}, inv)
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
