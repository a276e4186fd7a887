package status

import (
	"slices"
	"strings"
	"time"

	"github.com/tierwall/tierwall/policy/enforcement"
	"github.com/tierwall/tierwall/policy/inventory"
)

// Nodes is what the nodes say they enforce, sorted so that asking about one object
// does not walk all nodes. It is immutable.
type Nodes struct {
	// Desired are the nodes that should enforce, by name: every Linux node.
	Desired []string
	// Silent are those of them without a fresh report, and those that cannot say
	// what they enforce. Sorted.
	Silent []string

	versions map[string][]uint64 // resource → observed by each node that speaks, ascending
	refused  map[enforcement.Object][]refusal
}

type refusal struct {
	node, message string
	version       uint64
	inForce       int64
}

// NewNodes sorts reports. Reports of nodes that the world does not have, and stale
// ones, do not count. Nothing given is modified.
func NewNodes(world *inventory.Snapshot, reports []*enforcement.Report, now time.Time) *Nodes {
	n := &Nodes{versions: map[string][]uint64{}, refused: map[enforcement.Object][]refusal{}}
	speaks := map[string]bool{}
	for i := range world.Nodes {
		// Policy of Windows nodes is somebody else's.
		if os := world.Nodes[i].Labels["kubernetes.io/os"]; os == "" || os == "linux" {
			n.Desired = append(n.Desired, world.Nodes[i].Name)
			speaks[world.Nodes[i].Name] = false
		}
	}
	for _, r := range reports {
		// A node that refuses more than it can list may refuse anything.
		if done, ok := speaks[r.Node]; !ok || done || r.StaleAt(now) || r.RefusedTotal > len(r.Refused) {
			continue
		}
		speaks[r.Node] = true
		for resource, v := range r.Observed {
			n.versions[resource] = append(n.versions[resource], v)
		}
		for i := range r.Refused {
			f := &r.Refused[i]
			n.refused[f.Object] = append(n.refused[f.Object], refusal{r.Node, f.Message, f.ResourceVersion, f.InForce})
		}
	}
	for _, v := range n.versions {
		slices.Sort(v)
	}
	for _, l := range n.refused {
		slices.SortFunc(l, func(a, b refusal) int { return strings.Compare(a.node, b.node) })
	}
	for _, name := range n.Desired {
		if !speaks[name] {
			n.Silent = append(n.Silent, name)
		}
	}
	slices.Sort(n.Silent)
	return n
}

// Count is what the nodes do about one object.
type Count struct {
	Desired, Enforced, Refused int
	// Why is what the first node that refuses the object says.
	Why string
}

// Count asks about a version of an object. It costs O(log nodes).
func (n *Nodes) Count(o enforcement.Object, version uint64) Count {
	seen := n.versions[o.Resource]
	first, _ := slices.BinarySearch(seen, version)
	c := Count{Desired: len(n.Desired), Enforced: len(seen) - first}
	for _, r := range n.refused[o] {
		if r.version < version {
			continue // about an older one
		}
		c.Refused++
		if c.Why == "" {
			c.Why = r.message
		}
		c.Enforced-- // a node has seen what it refuses
	}
	c.Enforced = max(c.Enforced, 0)
	return c
}
