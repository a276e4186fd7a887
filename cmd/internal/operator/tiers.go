package operator

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	antreaapi "github.com/tierwall/tierwall/policy/api/antrea"
	"github.com/tierwall/tierwall/policy/lower/antrea"
	"github.com/tierwall/tierwall/policy/status"
)

// tierDescriptions are what people read in the Tiers that exist by themselves.
var tierDescriptions = map[string]string{
	"emergency":   "[READ-ONLY]: for incidents; before everything else",
	"securityops": "[READ-ONLY]: for security operations",
	"networkops":  "[READ-ONLY]: for network operations",
	"platform":    "[READ-ONLY]: for the platform's own policies",
	"application": "[READ-ONLY]: the tier of policies that name none",
	"baseline":    "[READ-ONLY]: after the NetworkPolicies of Kubernetes",
}

// tiersEvery is how often the Tiers are looked at.
const tiersEvery = 5 * time.Second

// keepTiers creates the static Tiers that are missing, where the API has Tiers,
// until ctx ends (S2-09). Those that are there, and users' own, are left alone.
func keepTiers(ctx context.Context, p *policies, client dynamic.Interface, log *slog.Logger) {
	for {
		if p.synced() {
			created, err := createTiers(ctx, p, client)
			for _, name := range created {
				log.Info("default Tier created", "tier", name)
			}
			if err != nil && ctx.Err() == nil {
				log.Warn("default Tiers cannot be created", "error", err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(tiersEvery):
		}
	}
}

func createTiers(ctx context.Context, p *policies, client dynamic.Interface) (created []string, err error) {
	resource, ok := p.resource(antreaapi.APIGroup, "tiers")
	if !ok {
		return nil, nil
	}
	_, objects, _ := p.list()
	static := antrea.StaticTiers()
	for _, name := range slices.Sorted(maps.Keys(static)) {
		if slices.ContainsFunc(objects, func(o status.Object) bool { return o.Resource == resource && o.Stored.GetName() == name }) {
			continue
		}
		tier := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": resource.GroupVersion().String(), "kind": "Tier",
			"metadata": map[string]any{"name": name, "labels": map[string]any{"app.kubernetes.io/managed-by": "tierwall"}},
			"spec":     map[string]any{"priority": int64(static[name]), "description": tierDescriptions[name]},
		}}
		_, err := client.Resource(resource).Create(ctx, tier, metav1.CreateOptions{FieldManager: fieldManager})
		switch {
		case apierrors.IsAlreadyExists(err):
		case err != nil:
			return created, fmt.Errorf("create Tier %s: %w", name, err)
		default:
			created = append(created, name)
		}
	}
	return created, nil
}

// resource returns a resource as it is watched.
func (p *policies) resource(group, plural string) (schema.GroupVersionResource, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for r := range p.feeds {
		if r.Group == group && r.Resource == plural {
			return r, true
		}
	}
	return schema.GroupVersionResource{}, false
}
