package e2e

import (
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"
)

// The controller part, with the rights it is deployed with: it becomes ready, its
// webhook denies what daemons would refuse, and a policy's status says when every
// node has it.
func TestController(t *testing.T) {
	c := connect(t)
	ns, _ := daemonSet()
	for deadline := time.Now().Add(time.Minute); ; {
		d, err := c.core.AppsV1().Deployments(ns).Get(t.Context(), "tierwall-controller", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			t.Skip("the controller part is not deployed")
		}
		if err != nil {
			t.Fatal(err)
		}
		if d.Status.ReadyReplicas == *d.Spec.Replicas {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the controller is not ready: %+v", d.Status)
		}
		time.Sleep(time.Second)
	}
	// A kind whose definition is ours: upstream's may be there instead of ours for others.
	policies := c.dynamic.Resource(schema.GroupVersionResource{Group: "crd.antrea.io", Version: "v1beta1", Resource: "clusternetworkpolicies"})
	policy := func(labels string) *unstructured.Unstructured {
		o := &unstructured.Unstructured{}
		err := yaml.Unmarshal([]byte(strings.ReplaceAll(`
apiVersion: crd.antrea.io/v1beta1
kind: ClusterNetworkPolicy
metadata: {generateName: tierwall-e2e-}
spec:
  priority: 7
  appliedTo: [{namespaceSelector: {$LABELS: {tierwall-e2e: nobody}}}]
  ingress: [{action: Drop, from: [{namespaceSelector: {}}]}]`, "$LABELS", labels)), &o.Object)
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	made, err := policies.Create(t.Context(), policy("matchlabels"), metav1.CreateOptions{})
	for deadline := time.Now().Add(30 * time.Second); err == nil; { // kube-proxy and the certificate may be on their way
		if err := policies.Delete(t.Context(), made.GetName(), metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if time.Now().After(deadline) {
			t.Error("a misspelt field: accepted; the API server's log says whether it could call the webhook")
			break
		}
		time.Sleep(time.Second)
		made, err = policies.Create(t.Context(), policy("matchlabels"), metav1.CreateOptions{})
	}
	if err != nil && (!strings.Contains(err.Error(), "matchlabels") || !strings.Contains(err.Error(), "policy.tierwall.io")) {
		t.Errorf("denied, but not by the webhook or without naming the field: %v", err)
	}
	t.Logf("a misspelt field: %v", err)

	began := time.Now()
	if made, err = policies.Create(t.Context(), policy("matchLabels"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := policies.Delete(t.Context(), made.GetName(), metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	}()
	for deadline := began.Add(time.Minute); ; time.Sleep(200 * time.Millisecond) {
		if made, err = policies.Get(t.Context(), made.GetName(), metav1.GetOptions{}); err != nil {
			t.Fatal(err)
		}
		accepted, _ := condition(made, "Accepted")
		enforced, message := condition(made, "Enforced")
		if accepted == "True" && enforced == "True" {
			t.Logf("after %v: %s", time.Since(began).Round(100*time.Millisecond), message)
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not enforced after a minute: %v", made.Object["status"])
		}
	}
}

// condition returns a condition's status and message.
func condition(o *unstructured.Unstructured, kind string) (status, message string) {
	list, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	for _, entry := range list {
		if m, ok := entry.(map[string]any); ok && m["type"] == kind {
			status, _ = m["status"].(string)
			message, _ = m["message"].(string)
		}
	}
	return status, message
}
