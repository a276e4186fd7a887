package operator

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"

	"github.com/tierwall/tierwall/policy/admission"
	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/lower"
	"github.com/tierwall/tierwall/policy/status"
)

// lookEvery is how often API discovery is asked which policy kinds are served.
const lookEvery = 15 * time.Second

// policies watches every policy object, as the API server has it: with the status,
// and with what does not decode.
type policies struct {
	raw      dynamic.Interface
	discover discovery.DiscoveryInterface
	log      *slog.Logger
	changed  func()

	mu      sync.Mutex
	feeds   map[schema.GroupVersionResource]*feed
	version uint64
	looked  bool

	// What was made of version listed.
	listed  uint64
	objects []status.Object
	good    []*api.Object
	decoded map[types.UID]decoded
}

type feed struct {
	informer cache.SharedIndexInformer
	stop     context.CancelFunc
}

type decoded struct {
	version string
	object  *api.Object
}

func newPolicies(raw dynamic.Interface, d discovery.DiscoveryInterface, log *slog.Logger, changed func()) *policies {
	return &policies{
		raw: raw, discover: d, log: log, changed: changed,
		feeds: map[schema.GroupVersionResource]*feed{}, decoded: map[types.UID]decoded{}, version: 1,
	}
}

// run follows what is served until ctx ends.
func (p *policies) run(ctx context.Context) {
	failing := ""
	for {
		wait := lookEvery
		if err := p.look(ctx); err != nil {
			if err.Error() != failing {
				p.log.Warn("API discovery failed, what is watched stays", "error", err)
			}
			failing, wait = err.Error(), time.Second
		} else {
			failing = ""
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// look starts and ends watches. Of several versions of a kind the first in
// lower.Kinds that is served is read, as the daemons do.
func (p *policies) look(ctx context.Context) error {
	groups, err := p.discover.ServerGroups()
	if err != nil {
		return fmt.Errorf("API groups: %w", err)
	}
	served := map[string]bool{}
	for _, g := range groups.Groups {
		for _, v := range g.Versions {
			served[v.GroupVersion] = true
		}
	}
	lists := map[string]*metav1.APIResourceList{}
	have := map[schema.GroupKind]schema.GroupVersionResource{}
	for _, k := range lower.Kinds() {
		gv := schema.GroupVersion{Group: k.Group, Version: k.Version}
		gk := schema.GroupKind{Group: k.Group, Kind: k.Kind}
		if _, ok := have[gk]; ok || !served[gv.String()] {
			continue
		}
		list := lists[gv.String()]
		if list == nil {
			if list, err = p.discover.ServerResourcesForGroupVersion(gv.String()); err != nil {
				return fmt.Errorf("resources of %s: %w", gv, err)
			}
			lists[gv.String()] = list
		}
		for _, r := range list.APIResources {
			if r.Kind == k.Kind && !strings.Contains(r.Name, "/") && slices.Contains(r.Verbs, "watch") {
				have[gk] = gv.WithResource(r.Name)
			}
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	want := map[schema.GroupVersionResource]bool{}
	for _, r := range have {
		want[r] = true
		if p.feeds[r] == nil {
			p.start(ctx, r)
		}
	}
	for r, f := range p.feeds {
		if !want[r] {
			p.log.Info("policy API is gone", "resource", r.GroupResource().String(), "version", r.Version)
			f.stop()
			delete(p.feeds, r)
			p.touch()
		}
	}
	p.looked = true
	return nil
}

// start watches a resource. Called with the lock held.
func (p *policies) start(ctx context.Context, r schema.GroupVersionResource) {
	ctx, stop := context.WithCancel(ctx)
	informer := dynamicinformer.NewFilteredDynamicInformer(p.raw, r, metav1.NamespaceAll, 0, cache.Indexers{}, nil).Informer()
	_ = informer.SetTransform(func(obj any) (any, error) { // fails only after it was started
		if o, ok := obj.(*unstructured.Unstructured); ok {
			o.SetManagedFields(nil)
		}
		return obj, nil
	})
	note := func() {
		p.mu.Lock()
		p.touch()
		p.mu.Unlock()
	}
	_, _ = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{ // fails only after it was stopped
		AddFunc: func(any) { note() }, UpdateFunc: func(_, _ any) { note() }, DeleteFunc: func(any) { note() },
	})
	p.feeds[r] = &feed{informer, stop}
	p.log.Info("policy API is watched", "resource", r.GroupResource().String(), "version", r.Version)
	go informer.RunWithContext(ctx)
	go func() {
		if cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
			note()
		}
	}()
}

// touch notes a change. Called with the lock held.
func (p *policies) touch() {
	p.version++
	p.changed()
}

// synced reports whether everything that is served was listed.
func (p *policies) synced() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.looked {
		return false
	}
	for _, f := range p.feeds {
		if !f.informer.HasSynced() {
			return false
		}
	}
	return true
}

// list returns everything there is, sorted, with a number that changes with it.
func (p *policies) list() (uint64, []status.Object, []*api.Object) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listed == p.version {
		return p.listed, p.objects, p.good
	}
	p.listed = p.version
	var objects []status.Object
	for r, f := range p.feeds {
		for _, obj := range f.informer.GetStore().List() {
			if o, ok := obj.(*unstructured.Unstructured); ok {
				objects = append(objects, status.Object{Resource: r, Stored: o})
			}
		}
	}
	slices.SortFunc(objects, func(a, b status.Object) int {
		return strings.Compare(string(a.Stored.GetUID()), string(b.Stored.GetUID()))
	})
	var good []*api.Object
	seen := make(map[types.UID]decoded, len(objects))
	for _, o := range objects {
		d, ok := p.decoded[o.Stored.GetUID()]
		if !ok || d.version != o.Stored.GetResourceVersion() {
			d.version = o.Stored.GetResourceVersion()
			d.object, _ = admission.Decode(o.Stored.Object)
		}
		seen[o.Stored.GetUID()] = d
		if d.object != nil && o.Stored.GetDeletionTimestamp() == nil {
			good = append(good, d.object)
		}
	}
	p.objects, p.good, p.decoded = objects, good, seen
	return p.listed, objects, good
}
