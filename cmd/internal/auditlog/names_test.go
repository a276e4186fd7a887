package auditlog

import (
	"testing"

	"github.com/tierwall/tierwall/dataplane/audit"
)

// two policies have two names, whatever their kinds are called.
func TestTwoAPIsOneName(t *testing.T) {
	want := map[string]audit.Policy{
		"NetworkPolicy x/deny":                              {Group: "networking.k8s.io", Kind: "NetworkPolicy", Namespace: "x", Name: "deny"},
		"NetworkPolicy x/deny (crd.antrea.io)":              {Group: "crd.antrea.io", Kind: "NetworkPolicy", Namespace: "x", Name: "deny"},
		"ClusterNetworkPolicy a (crd.antrea.io)":            {Group: "crd.antrea.io", Kind: "ClusterNetworkPolicy", Name: "a"},
		"ClusterNetworkPolicy a (netpol.networking.k8s.io)": {Group: "netpol.networking.k8s.io", Kind: "ClusterNetworkPolicy", Name: "a"},
		"ClusterNetworkPolicy a (policy.networking.k8s.io)": {Group: "policy.networking.k8s.io", Kind: "ClusterNetworkPolicy", Name: "a"},
		"AdminNetworkPolicy a":                              {Group: "policy.networking.k8s.io", Kind: "AdminNetworkPolicy", Name: "a"},
		"NetworkPolicy x/old":                               {Kind: "NetworkPolicy", Namespace: "x", Name: "old"}, // a record without groups
	}
	for name, p := range want {
		if got := PolicyName(&p); got != name {
			t.Errorf("%+v is called %q, want %q", p, got, name)
		}
	}
}
