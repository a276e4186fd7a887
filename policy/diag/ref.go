package diag

import (
	"cmp"
	"strings"
)

// Ref names an object whatever the version it is written in: two objects are the
// same object if, and only if, their Refs are equal. Text is for
// people; programs compare Refs. The zero value names nothing.
//
// Other packages call it api.Ref.
type Ref struct {
	Group, Kind     string // Group is "" for the core API, and where it is not known
	Namespace, Name string // Namespace is "" for cluster-wide kinds
}

// sharedKinds are the kinds that several policy APIs have. NetworkPolicy without a
// group is that of networking.k8s.io.
var sharedKinds = map[string]string{"NetworkPolicy": "networking.k8s.io", "ClusterNetworkPolicy": ""}

// String returns "Kind namespace/name", or "Kind name" for a cluster-wide object,
// followed by the group in parentheses where other APIs have a kind of that name:
// "NetworkPolicy shop/db (crd.antrea.io)".
func (r Ref) String() string {
	s := r.short()
	if usual, shared := sharedKinds[r.Kind]; shared && r.Group != "" && r.Group != usual {
		s += " (" + r.Group + ")"
	}
	return s
}

// short is String without a group.
func (r Ref) short() string {
	name := r.Name
	if r.Namespace != "" {
		name = r.Namespace + "/" + name
	}
	if r.Kind == "" || name == "" {
		return r.Kind + name
	}
	return r.Kind + " " + name
}

// parseShort is the inverse of short.
func parseShort(group, text string) Ref {
	kind, name, _ := strings.Cut(text, " ")
	namespace, rest, found := strings.Cut(name, "/")
	if !found {
		namespace, rest = "", name
	}
	return Ref{Group: group, Kind: kind, Namespace: namespace, Name: rest}
}

// IsZero reports whether r names nothing.
func (r Ref) IsZero() bool { return r == Ref{} }

// Compare orders Refs by kind, namespace, name and group.
func (r Ref) Compare(o Ref) int {
	return cmp.Or(strings.Compare(r.Kind, o.Kind), strings.Compare(r.Namespace, o.Namespace),
		strings.Compare(r.Name, o.Name), strings.Compare(r.Group, o.Group))
}
