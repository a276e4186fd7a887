package classifier

import (
	"net/netip"

	"github.com/tierwall/tierwall/classifier/rule"
)

// LocalPodCIDRs returns the prefixes that the pods of the table's node live in,
// or those of every node if the table is for no node in particular. An address
// in one of them that is not in Locals belongs to a pod nobody has told us of.
// The cost is one comparison per node of the cluster.
func (t *Table) LocalPodCIDRs() (cidrs []netip.Prefix) {
	t.nodes.each(func(n **rule.Node) {
		if *n != nil && (t.node == "" || (*n).Name == t.node) {
			cidrs = append(cidrs, (*n).PodCIDRs...)
		}
	})
	return cidrs
}
