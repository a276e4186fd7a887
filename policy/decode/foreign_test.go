package decode_test

import (
	"strings"
	"testing"

	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/decode"
	"github.com/tierwall/tierwall/policy/diag"
	"github.com/tierwall/tierwall/policy/lower"
)

func decodeText(text string) ([]*api.Object, diag.List) {
	d := decode.Decoder{Kinds: lower.Kinds()}
	return d.Decode("", []byte(text))
}

// TestHintForAForeignGroup: a kind of another project's group is recognised by its
// group, and the hint is not to write it as some other API's kind of that name.
func TestHintForAForeignGroup(t *testing.T) {
	for _, c := range []struct{ version, kind, path, want string }{
		{"projectcalico.org/v3", "NetworkPolicy", "apiVersion", "Calico's NetworkPolicy is another API"},
		{"crd.projectcalico.org/v1", "NetworkPolicy", "apiVersion", "Calico's NetworkPolicy is another API"},
		{"projectcalico.org/v3", "GlobalNetworkPolicy", "kind", "policy.networking.k8s.io/v1alpha2 ClusterNetworkPolicy"},
		{"crd.projectcalico.org/v1", "Tier", "apiVersion", "Calico's tiers order Calico's policies only"},
		{"projectcalico.org/v3", "StagedNetworkPolicy", "kind", "tierwall.io/stage: audit"},
		{"projectcalico.org/v3", "StagedGlobalNetworkPolicy", "kind", "tierwall.io/stage: audit"},
		{"projectcalico.org/v3", "StagedKubernetesNetworkPolicy", "kind", "networking.k8s.io/v1 NetworkPolicy with the annotation tierwall.io/stage: audit"},
		{"projectcalico.org/v3", "GlobalNetworkSet", "kind", "ipBlock or networks"},
		{"projectcalico.org/v3", "HostEndpoint", "kind", "no equivalent; remove it"},
		{"extensions/v1beta1", "NetworkPolicy", "apiVersion", "write apiVersion: networking.k8s.io/v1;"},
		{"security.antrea.tanzu.vmware.com/v1alpha1", "ClusterNetworkPolicy", "apiVersion", "write apiVersion: crd.antrea.io/v1beta1"},
		{"core.antrea.tanzu.vmware.com/v1alpha2", "ClusterGroup", "apiVersion", "write apiVersion: crd.antrea.io/v1beta1"},
		{"policy.networking.k8s.io/v1beta1", "ClusterNetworkPolicy", "apiVersion", "use policy.networking.k8s.io/v1alpha2"},
		{"networking.k8s.io/v1beta1", "NetworkPolicy", "apiVersion", "use networking.k8s.io/v1"},
		{"networking.k8.io/v1", "NetworkPolicy", "apiVersion", "write apiVersion: networking.k8s.io/v1"},
		{"networking.k8s.io/v1", "ClusterNetworkPolicy", "apiVersion", "write apiVersion: policy.networking.k8s.io/v1alpha2"},
		{"example.org/v1", "NetworkPolicy", "apiVersion", "write apiVersion: networking.k8s.io/v1 if you mean that NetworkPolicy"},
		{"example.org/v1", "TeamNetworkPolicy", "kind", "no equivalent; remove it"},
		{"k8s.ovn.org/v1", "EgressFirewall", "kind", "egress rules"},
		{"cilium.io/v2", "CiliumCIDRGroup", "kind", "fromCIDRSet"},
	} {
		_, found := decodeText("{apiVersion: " + c.version + ", kind: " + c.kind + ", metadata: {name: a}, spec: {}}")
		if len(found.Errors) != 1 || found.Errors[0].Path != c.path || !strings.Contains(found.Errors[0].Hint, c.want) {
			t.Errorf("%s %s: got %v, want a hint %q at %s", c.version, c.kind, found.Errors, c.want, c.path)
		}
	}
	// What steers packets, and what a mesh's proxies enforce, is no policy here.
	for _, k := range [][2]string{{"cilium.io/v2", "CiliumEgressGatewayPolicy"}, {"cilium.io/v2", "CiliumLocalRedirectPolicy"}, {"security.istio.io/v1", "AuthorizationPolicy"}} {
		if _, found := decodeText("{apiVersion: " + k[0] + ", kind: " + k[1] + ", metadata: {name: a}}"); len(found.Errors) > 0 {
			t.Errorf("%v: %v", k, found.Errors)
		}
	}
}

// TestHintForNamespaceSelectorUnderNamespaces: `namespaces.namespaceSelector` is of
// release v0.1.1's peers alone; elsewhere the hint says what namespaces takes there.
func TestHintForNamespaceSelectorUnderNamespaces(t *testing.T) {
	const (
		in      = "namespaces: {namespaceSelector: {matchLabels: {a: b}}}"
		admin   = "apiVersion: policy.networking.k8s.io/v1alpha1, kind: AdminNetworkPolicy"
		cluster = "apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy"
	)
	for _, c := range []struct{ name, text, want string }{
		{"v0.1.1", "{" + admin + ", metadata: {name: a}, spec: {priority: 1, subject: {namespaces: {}}, ingress: [{action: Deny, from: [{" + in + "}]}]}}", ""},
		{"v0.1.1 peer in a policy of v0.1.7", "{" + admin + ", metadata: {name: a}, spec: {priority: 1, subject: {namespaces: {}}, egress: [{action: Deny, to: [{networks: [10.0.0.0/8]}, {" + in + "}]}]}}", "write `namespaces: {matchLabels: …}`"},
		{"subject of AdminNetworkPolicy", "{" + admin + ", metadata: {name: a}, spec: {priority: 1, subject: {" + in + "}}}", "write `namespaces: {matchLabels: …}`"},
		{"peer of v1alpha2", "{" + cluster + ", metadata: {name: a}, spec: {tier: Admin, priority: 1, subject: {namespaces: {}}, ingress: [{action: Deny, from: [{" + in + "}]}]}}", "write `namespaces: {matchLabels: …}`"},
		{"subject of v1alpha2", "{" + cluster + ", metadata: {name: a}, spec: {tier: Admin, priority: 1, subject: {" + in + "}}}", "write `namespaces: {matchLabels: …}`"},
		{"Antrea", "{apiVersion: crd.antrea.io/v1beta1, kind: ClusterNetworkPolicy, metadata: {name: a}, spec: {priority: 1, appliedTo: [{namespaceSelector: {}}], ingress: [{action: Drop, from: [{" + in + "}]}]}}", "write namespaceSelector in the peer"},
		{"KEP", "{apiVersion: netpol.networking.k8s.io/v1alpha1, kind: ClusterNetworkPolicy, metadata: {name: a}, spec: {appliedTo: {namespaceSelector: {}}, ingress: [{action: Deny, from: [{" + in + "}]}]}}", "write namespaceSelector in the peer"},
	} {
		_, found := decodeText(c.text)
		switch {
		case c.want == "" && len(found.Errors) > 0, c.want != "" && (len(found.Errors) == 0 || !strings.Contains(found.Errors[0].Hint, c.want)):
			t.Errorf("%s: got %v, want a hint %q", c.name, found.Errors, c.want)
		}
	}
}
