package operator

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/tierwall/tierwall/policy/enforcement"
	"github.com/tierwall/tierwall/policy/lower/antrea"
	"github.com/tierwall/tierwall/policy/source/kube"
	"github.com/tierwall/tierwall/policy/status"
)

func resource(group, version, plural string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: group, Version: version, Resource: plural}
}

var (
	tiers = resource("crd.antrea.io", "v1beta1", "tiers")
	acnps = resource("crd.antrea.io", "v1beta1", "clusternetworkpolicies")
	cnps  = resource("policy.networking.k8s.io", "v1alpha2", "clusternetworkpolicies")
)

// TestCluster runs the controller part against the API server of KUBECONFIG, which
// must be able to reach 127.0.0.1 of this test, have the CRDs of deploy/crds, and
// not run a controller part already. Nodes' reports are made up: daemons are not
// needed.
func TestCluster(t *testing.T) {
	kubeconfig := os.Getenv("KUBECONFIG")
	if kubeconfig == "" {
		t.Skip("KUBECONFIG names no cluster")
	}
	config, err := kube.ForDaemon(kubeconfig, "tierwall-test")
	if err != nil {
		t.Fatal(err)
	}
	config.QPS, config.Burst = 100, 100
	core, raw := kubernetes.NewForConfigOrDie(config), dynamic.NewForConfigOrDie(config)
	ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
	defer cancel()
	if _, err := raw.Resource(tiers).List(ctx, metav1.ListOptions{}); apierrors.IsNotFound(err) {
		t.Skip("the cluster has no CRDs of crd.antrea.io: apply deploy/crds")
	}
	ns, err := core.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "tierwall-test-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	id := ns.Name
	clean := func(f func(context.Context) error) {
		t.Cleanup(func() {
			c, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			if err := f(c); err != nil && !apierrors.IsNotFound(err) {
				t.Error(err)
			}
		})
	}
	clean(func(c context.Context) error { return core.CoreV1().Namespaces().Delete(c, id, metav1.DeleteOptions{}) })

	// The webhook, reached by address.
	port := freePort(t)
	url, none, ignore, seconds := fmt.Sprintf("https://127.0.0.1:%d/validate", port), admissionregistrationv1.SideEffectClassNone, admissionregistrationv1.Ignore, int32(5)
	hook := &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: id},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: "policy.tierwall.io", ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: &url}, SideEffects: &none,
			FailurePolicy: &ignore, TimeoutSeconds: &seconds, AdmissionReviewVersions: []string{"v1"},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{"CREATE", "UPDATE", "DELETE"},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{"crd.antrea.io", "policy.networking.k8s.io", "networking.k8s.io"}, APIVersions: []string{"*"}, Resources: []string{"*"}},
			}},
		}},
	}
	if _, err := core.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(ctx, hook, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	clean(func(c context.Context) error {
		return core.AdmissionregistrationV1().ValidatingWebhookConfigurations().Delete(c, id, metav1.DeleteOptions{})
	})

	cfg := Default()
	cfg.Enabled, cfg.Kubeconfig, cfg.Namespace, cfg.Identity, cfg.Address = true, kubeconfig, id, "test", ""
	cfg.Webhook.Address, cfg.Webhook.Configuration, cfg.Webhook.Names = fmt.Sprintf("127.0.0.1:%d", port), id, "127.0.0.1"
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- Run(running, cfg) }()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()

	// S2-09: the default Tiers, and one again after somebody got rid of it.
	static := antrea.StaticTiers()
	eventually(t, ctx, "default Tiers", func() error {
		for name, priority := range static {
			o, err := raw.Resource(tiers).Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if p, _, _ := unstructured.NestedInt64(o.Object, "spec", "priority"); p != int64(priority) {
				return fmt.Errorf("%s has priority %d", name, p)
			}
		}
		return nil
	})
	mine := []string{}
	make1 := func(r schema.GroupVersionResource, namespace, text string) error {
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(text), &o.Object); err != nil {
			t.Fatal(err)
		}
		_, err := raw.Resource(r).Namespace(namespace).Create(ctx, o, metav1.CreateOptions{})
		if err == nil && namespace == "" {
			mine = append(mine, o.GetName())
			clean(func(c context.Context) error { return raw.Resource(r).Delete(c, o.GetName(), metav1.DeleteOptions{}) })
		}
		return err
	}
	acnp := func(name, tier, action string) string {
		return fmt.Sprintf(`{apiVersion: crd.antrea.io/v1beta1, kind: ClusterNetworkPolicy, metadata: {name: %s-%s},
  spec: {tier: %s, priority: 5, appliedTo: [{podSelector: {matchLabels: {only: %s}}}], ingress: [{action: %s, from: [{podSelector: {}}]}]}}`, id, name, tier, id, action)
	}
	denied := func(err error, part string) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), "denied the request") || !strings.Contains(err.Error(), part) {
			t.Errorf("want a denial with %q, got %v", part, err)
		}
	}
	// The webhook answers once its authority is known to the API server.
	eventually(t, ctx, "webhook", func() error {
		err := make1(acnps, "", acnp("probe", "nowhere", "Drop"))
		if err == nil {
			_ = raw.Resource(acnps).Delete(ctx, id+"-probe", metav1.DeleteOptions{})
			return fmt.Errorf("a policy of no tier is accepted")
		}
		if !strings.Contains(err.Error(), `spec.tier: there is no tier "nowhere"`) {
			return err
		}
		return nil
	})
	denied(raw.Resource(tiers).Delete(ctx, "emergency", metav1.DeleteOptions{}), "one of the six") // S2-09
	tier := fmt.Sprintf("{apiVersion: crd.antrea.io/v1beta1, kind: Tier, metadata: {name: %s}, spec: {priority: 37}}", id)
	for _, step := range []error{make1(tiers, "", tier), make1(acnps, "", acnp("p", id, "Drop"))} { // at once: S2-04 waits for the watch
		if step != nil {
			t.Fatal(step)
		}
	}
	denied(raw.Resource(tiers).Delete(ctx, id, metav1.DeleteOptions{}), "ClusterNetworkPolicy "+id+"-p") // S2-07

	// Status of both shapes, by reports of all nodes.
	if err := make1(cnps, "", fmt.Sprintf(`{apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy, metadata: {name: %s-c},
  spec: {tier: Admin, priority: 5, subject: {pods: {namespaceSelector: {}, podSelector: {matchLabels: {only: %s}}}}, ingress: [{action: Deny, from: [{namespaces: {}}]}]}}`, id, id)); err != nil {
		t.Fatal(err)
	}
	get := func(r schema.GroupVersionResource, name, kind, want string) func() error {
		return func() error {
			o, err := raw.Resource(r).Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			list, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
			for _, item := range list {
				c, _ := item.(map[string]any)
				if got := fmt.Sprint(c["status"], " ", c["reason"], " ", c["message"]); c["type"] == kind && strings.HasPrefix(got, want) {
					return nil
				}
			}
			return fmt.Errorf("no %s %q in %v", kind, want, list)
		}
	}
	eventually(t, ctx, "Accepted of the ClusterNetworkPolicy", get(cnps, id+"-c", status.Accepted, "True Accepted"))
	eventually(t, ctx, "Accepted of the Antrea policy", get(acnps, id+"-p", status.Accepted, "True Accepted"))
	eventually(t, ctx, "Enforced without reports", get(cnps, id+"-c", status.Enforced, "False NoReport 0 of "))
	nodes, err := core.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range nodes.Items {
		lease := &coordinationv1.Lease{}
		if err := enforcement.Encode(&enforcement.Report{
			Node: nodes.Items[i].Name, Time: time.Now(),
			Observed: map[string]uint64{cnps.GroupResource().String(): 1 << 60, acnps.GroupResource().String(): 1 << 60},
		}, lease); err != nil {
			t.Fatal(err)
		}
		if _, err := core.CoordinationV1().Leases(id).Create(ctx, lease, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	n := len(nodes.Items)
	eventually(t, ctx, "Enforced", get(cnps, id+"-c", status.Enforced, fmt.Sprintf("True AllNodes %d of %d nodes", n, n)))
	eventually(t, ctx, "realized", func() error {
		o, err := raw.Resource(acnps).Get(ctx, id+"-p", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if s, _, _ := unstructured.NestedMap(o.Object, "status"); s["phase"] != "Realized" || s["currentNodesRealized"] != int64(n) {
			return fmt.Errorf("status %v", s)
		}
		return nil
	})
	if len(mine) < 3 {
		t.Errorf("made only %v", mine)
	}
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// eventually tries until f is content, at most until ctx ends.
func eventually(t *testing.T, ctx context.Context, what string, f func() error) {
	t.Helper()
	began := time.Now()
	for {
		err := f()
		if err == nil {
			t.Logf("%s after %v", what, time.Since(began).Round(time.Millisecond))
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: %v", what, err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}
