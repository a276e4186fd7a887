package listing

import (
	"strings"
	"testing"

	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/api"
)

func object(group, kind, namespace, name string) *api.Object {
	return &api.Object{Kind: api.Kind{Group: group, Kind: kind}, Namespace: namespace, Name: name}
}

func origin(o *api.Object) rule.Origin {
	return rule.Origin{Group: o.Kind.Group, Kind: o.Kind.Kind, Namespace: o.Namespace, Name: o.Name}
}

// A policy's place is that of its strongest rule. Isolation, which has a band
// and no order in it, gives a place only to policies without rules.
func TestPlace(t *testing.T) {
	late := object("cilium.io", "CiliumNetworkPolicy", "x", "a-late")
	early := object("cilium.io", "CiliumNetworkPolicy", "x", "b-early")
	isolates := object("networking.k8s.io", "NetworkPolicy", "x", "c-isolates")
	nothing := object("networking.k8s.io", "NetworkPolicy", "x", "d-nothing")
	group := object("crd.antrea.io", "ClusterGroup", "", "e-group")
	two := object("netpol.networking.k8s.io", "ClusterNetworkPolicy", "", "f-two")
	np := rule.BandNetworkPolicy
	set := &rule.Set{
		Rules: []rule.Rule{
			{Order: rule.Order{Band: np, Priority: 3}, Origin: origin(late)},
			{Order: rule.Order{Band: np, Priority: -1}, Origin: origin(early)},
			{Order: rule.Order{Band: rule.BandClusterAllow}, Origin: origin(two)},
			{Order: rule.Order{Band: rule.BandClusterDeny}, Origin: origin(two)},
			{Order: rule.Order{Band: rule.BandAdmin}, Origin: rule.Origin{Kind: "AdminNetworkPolicy", Name: "not among the objects"}},
		},
		Isolations: []rule.Isolation{{Band: np, Origin: origin(late)}, {Band: np, Origin: origin(isolates)}},
	}
	list := Policies([]*api.Object{nothing, late, group, isolates, early, two}, set)
	var got []string
	for _, p := range list {
		got = append(got, p.Name+"="+p.Band)
	}
	if s := strings.Join(got, " "); s != "f-two=cluster-deny b-early=networkpolicy c-isolates=networkpolicy a-late=networkpolicy d-nothing=" {
		t.Errorf("got %s", s)
	}
}

// Equal subjects, equal identifiers, and the form of a UUID of version 5.
func TestIdentifier(t *testing.T) {
	a, b := identifier([]string{"x"}), identifier([]string{"x", "y"})
	if a != identifier([]string{"x"}) || a == b || identifier(nil) != "" {
		t.Errorf("%s, %s, %q", a, b, identifier(nil))
	}
	if len(a) != 36 || a[14] != '5' || !strings.ContainsRune("89ab", rune(a[19])) {
		t.Errorf("got %s", a)
	}
}

func TestSourceTellsGroupsApart(t *testing.T) {
	for want, o := range map[string]*api.Object{
		"AntreaClusterNetworkPolicy:p":     object("crd.antrea.io", "ClusterNetworkPolicy", "", "p"),
		"K8sClusterNetworkPolicy:p":        object("policy.networking.k8s.io", "ClusterNetworkPolicy", "", "p"),
		"KEPClusterNetworkPolicy:p":        object("netpol.networking.k8s.io", "ClusterNetworkPolicy", "", "p"),
		"AntreaNetworkPolicy:n/p":          object("crd.antrea.io", "NetworkPolicy", "n", "p"),
		"K8sNetworkPolicy:n/p":             object("networking.k8s.io", "NetworkPolicy", "n", "p"),
		"CiliumClusterwideNetworkPolicy:p": object("cilium.io", "CiliumClusterwideNetworkPolicy", "", "p"),
	} {
		if got := source(o); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}
