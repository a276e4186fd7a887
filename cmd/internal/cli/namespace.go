package cli

import (
	"fmt"
	"slices"

	"github.com/tierwall/tierwall/policy/diag"
)

// CheckNamespace refuses a namespace that nothing that was read is in; "" is none.
// Where the namespaces of a cluster could not be listed, one without pods and
// policies may exist all the same, and passes.
func (in *Input) CheckNamespace(name string) error {
	if name == "" || slices.ContainsFunc(in.Gaps, func(g Gap) bool { return g.Resource == "namespaces" }) {
		return nil
	}
	var known []string
	for i := range in.Snapshot.Namespaces {
		known = append(known, in.Snapshot.Namespaces[i].Name)
	}
	for i := range in.Snapshot.Services {
		known = append(known, in.Snapshot.Services[i].Namespace)
	}
	for _, o := range in.Objects {
		if o.Namespace != "" {
			known = append(known, o.Namespace)
		}
	}
	if slices.Contains(known, name) {
		return nil
	}
	return fmt.Errorf("no namespace %s%s", name, diag.Among(name, known))
}
