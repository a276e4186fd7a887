package operator

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	fakediscovery "k8s.io/client-go/discovery/fake"
	fakedynamic "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/tierwall/tierwall/policy/admission"
)

func tierObject(name string, priority int64) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "crd.antrea.io/v1beta1", "kind": "Tier",
		"metadata": map[string]any{"name": name, "uid": name}, "spec": map[string]any{"priority": priority},
	}}
}

// S2-09: missing Tiers are created, those that are there stay as they are, and
// without the API nothing is asked for.
func TestTiers(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	core := fake.NewClientset()
	discovery := core.Discovery().(*fakediscovery.FakeDiscovery)
	raw := fakedynamic.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{tiers: "TierList"},
		tierObject("mine", 30), tierObject("platform", 201)) // somebody else's idea of platform
	p := newPolicies(raw, discovery, slog.New(slog.DiscardHandler), func() {})
	if err := p.look(ctx); err != nil {
		t.Fatal(err)
	}
	if created, err := createTiers(ctx, p, raw); err != nil || len(created) > 0 {
		t.Fatalf("without the API: created %v, %v", created, err)
	}
	discovery.Resources = []*metav1.APIResourceList{{
		GroupVersion: "crd.antrea.io/v1beta1",
		APIResources: []metav1.APIResource{{Name: "tiers", Kind: "Tier", Verbs: []string{"get", "list", "watch"}}, {Name: "tiers/status", Kind: "Tier"}},
	}}
	if err := p.look(ctx); err != nil {
		t.Fatal(err)
	}
	settled := func(n int) {
		t.Helper()
		eventually(t, ctx, "watch", func() error {
			if _, objects, _ := p.list(); !p.synced() || len(objects) != n {
				return context.DeadlineExceeded
			}
			return nil
		})
	}
	settled(2)
	created, err := createTiers(ctx, p, raw)
	if want := []string{"application", "baseline", "emergency", "networkops", "securityops"}; err != nil || !slices.Equal(created, want) {
		t.Fatalf("created %v, %v", created, err)
	}
	settled(7)
	if err := raw.Resource(tiers).Delete(ctx, "baseline", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	settled(6)
	if created, err := createTiers(ctx, p, raw); err != nil || !slices.Equal(created, []string{"baseline"}) {
		t.Errorf("after a deletion: created %v, %v", created, err)
	}
	for name, want := range map[string]int64{"platform": 201, "mine": 30, "baseline": 253} {
		o, err := raw.Resource(tiers).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if got, _, _ := unstructured.NestedInt64(o.Object, "spec", "priority"); got != want {
			t.Errorf("%s has priority %d, want %d", name, got, want)
		}
	}
	// The API goes away while it is watched.
	discovery.Resources = nil
	if err := p.look(ctx); err != nil {
		t.Fatal(err)
	}
	settled(0)
}

// Two replicas share one Secret, and the authority is in the configuration before
// its certificate is served.
func TestCertificates(t *testing.T) {
	ctx := context.Background()
	core := fake.NewClientset(&admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "tierwall"},
		Webhooks:   []admissionregistrationv1.ValidatingWebhook{{Name: "a"}, {Name: "b"}},
	})
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	replica := func() *certificates {
		return &certificates{client: core, namespace: "tierwall", cfg: Default().Webhook, log: slog.New(slog.DiscardHandler), now: func() time.Time { return now }}
	}
	one, two := replica(), replica()
	if _, err := one.get(nil); err == nil {
		t.Error("serves without a certificate")
	}
	for _, c := range []*certificates{one, two} {
		if err := c.ensure(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if a, b := one.serving.Load(), two.serving.Load(); !slices.Equal(a.Certificate[0], b.Certificate[0]) {
		t.Error("the replicas serve different certificates")
	}
	trusted := func() string {
		v, err := core.AdmissionregistrationV1().ValidatingWebhookConfigurations().Get(ctx, "tierwall", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if len(v.Webhooks) != 2 || string(v.Webhooks[0].ClientConfig.CABundle) != string(v.Webhooks[1].ClientConfig.CABundle) {
			t.Fatalf("webhooks %+v", v.Webhooks)
		}
		return string(v.Webhooks[0].ClientConfig.CABundle)
	}
	s, err := core.CoreV1().Secrets("tierwall").Get(ctx, "tierwall-webhook", metav1.GetOptions{})
	if err != nil || trusted() != string(s.Data[admission.KeyCA]) || trusted() == "" {
		t.Errorf("the authority of the Secret is not in the configuration: %v", err)
	}
	before := one.serving.Load()
	now = now.Add(70 * 24 * time.Hour)
	if err := one.ensure(ctx); err != nil {
		t.Fatal(err)
	}
	if slices.Equal(before.Certificate[0], one.serving.Load().Certificate[0]) {
		t.Error("20 days before its end the certificate is the same")
	}
	if err := core.AdmissionregistrationV1().ValidatingWebhookConfigurations().Delete(ctx, "tierwall", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := replica().ensure(ctx); err == nil {
		t.Error("says nothing although there is no webhook configuration")
	}
}
