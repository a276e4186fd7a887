package e2e

import (
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"
)

var (
	adminPolicies = schema.GroupVersionResource{Group: "policy.networking.k8s.io", Version: "v1alpha1", Resource: "adminnetworkpolicies"}
	antreaTiers   = schema.GroupVersionResource{Group: "crd.antrea.io", Version: "v1beta1", Resource: "tiers"}
)

// X-05, S0-63, S0-88: the editor of a namespace writes its Antrea NetworkPolicies,
// reads every policy and writes no cluster-wide one.
func TestNamespaceEditor(t *testing.T) {
	c := connect(t)
	ns := c.namespace(t, "rbac")
	const user = "tierwall-e2e-editor"
	_, err := c.core.RbacV1().RoleBindings(ns).Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "edit"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "edit"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: user}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		verb, group, resource, ns string
		want                      bool
	}{
		{"create", "crd.antrea.io", "networkpolicies", ns, true},
		{"list", "crd.antrea.io", "networkpolicies", ns, true},
		{"create", "crd.antrea.io", "networkpolicies", "kube-system", false},
		{"create", "crd.antrea.io", "clusternetworkpolicies", "", false},
		{"update", "crd.antrea.io", "tiers", "", false},
		{"create", "policy.networking.k8s.io", "adminnetworkpolicies", "", false},
		{"delete", "policy.networking.k8s.io", "clusternetworkpolicies", "", false},
		{"create", "netpol.networking.k8s.io", "clusternetworkpolicies", "", false},
	} {
		review, err := c.core.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), &authorizationv1.SubjectAccessReview{
			Spec: authorizationv1.SubjectAccessReviewSpec{User: user, ResourceAttributes: &authorizationv1.ResourceAttributes{
				Verb: tt.verb, Group: tt.group, Resource: tt.resource, Namespace: tt.ns,
			}},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if review.Status.Allowed != tt.want {
			t.Errorf("%s %s.%s in %q: allowed is %v, want %v", tt.verb, tt.resource, tt.group, tt.ns, review.Status.Allowed, tt.want)
		}
	}
}

// X-08, S0-66: a misspelt field of a selector is refused or kept, never dropped: the
// selector left over would select everything.
func TestUnknownFieldIsNotDropped(t *testing.T) {
	c := connect(t)
	o := &unstructured.Unstructured{}
	err := yaml.Unmarshal([]byte(`
apiVersion: policy.networking.k8s.io/v1alpha1
kind: AdminNetworkPolicy
metadata: {generateName: tierwall-e2e-}
spec:
  priority: 1
  subject: {namespaceSelector: {matchLabels: {tierwall-e2e: nobody}}}
  egress:
  - action: Allow
    l4Selector: {allPorts: true}
    to:
    - namespacedPods:
        namespaces: {namespaceSelector: {matchlabels: {name: kube-system}}}
        pods: {podSelector: {matchLabels: {app: kube-dns}}}`), &o.Object)
	if err != nil {
		t.Fatal(err)
	}
	made, err := c.dynamic.Resource(adminPolicies).Create(t.Context(), o, metav1.CreateOptions{})
	if apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || err != nil && strings.Contains(err.Error(), "matchlabels") {
		return // the admission webhook is there
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.dynamic.Resource(adminPolicies).Delete(t.Context(), made.GetName(), metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	}()
	text, err := yaml.Marshal(made.Object["spec"])
	if err != nil || !strings.Contains(string(text), "matchlabels:") {
		t.Errorf("the API server dropped matchlabels (%v):\n%s", err, text)
	}
}

// S2-06, X-33: the API server itself keeps a Tier's priority and range.
func TestTierRules(t *testing.T) {
	c := connect(t)
	tier := func(priority int64) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "crd.antrea.io/v1beta1", "kind": "Tier", "metadata": map[string]any{"name": "tierwall-e2e"},
			"spec": map[string]any{"priority": priority},
		}}
	}
	tiers := c.dynamic.Resource(antreaTiers)
	if _, err := tiers.Create(t.Context(), tier(256), metav1.CreateOptions{}); err == nil {
		t.Error("priority 256: accepted")
	}
	if _, err := tiers.Create(t.Context(), tier(61), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := tiers.Delete(t.Context(), "tierwall-e2e", metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	}()
	if _, err := tiers.Apply(t.Context(), "tierwall-e2e", tier(62), metav1.ApplyOptions{FieldManager: "e2e", Force: true}); err == nil {
		t.Error("priority changed: accepted")
	}
}
