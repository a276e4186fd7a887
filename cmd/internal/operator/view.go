package operator

import (
	"context"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/tierwall/tierwall/policy/admission"
	"github.com/tierwall/tierwall/policy/controller"
	"github.com/tierwall/tierwall/policy/enforcement"
	"github.com/tierwall/tierwall/policy/inventory"
	"github.com/tierwall/tierwall/policy/status"
)

// loadEvery is the least time between two snapshots of the world.
const loadEvery = time.Second

// view is everything the controller part knows. It implements status.View.
type view struct {
	policies *policies
	leases   cache.SharedIndexInformer
	changes  chan struct{} // capacity 1

	mu      sync.Mutex
	world   *inventory.Snapshot
	version uint64 // of world
}

func newView() *view { return &view{changes: make(chan struct{}, 1)} }

// changed wakes whoever reads changes.
func (v *view) changed() {
	select {
	case v.changes <- struct{}{}:
	default:
	}
}

// follow keeps the world up to date until ctx ends.
func (v *view) follow(ctx context.Context, src controller.Source) {
	for {
		_, snap, found := src.Load(ctx)
		if ctx.Err() != nil {
			return
		}
		if snap != nil && len(found.Errors) == 0 || v.World() == nil && snap != nil {
			v.mu.Lock()
			if v.world != snap {
				v.world = snap
				v.version++
			}
			v.mu.Unlock()
			v.changed()
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(loadEvery):
		}
		select {
		case <-ctx.Done():
			return
		case <-src.Changes():
		}
	}
}

// synced reports whether Review and status have what they need.
func (v *view) synced() bool { return v.World() != nil && v.policies.synced() }

// Objects implements status.View.
func (v *view) Objects() []status.Object {
	_, objects, _ := v.policies.list()
	return objects
}

// World implements status.View. It is nil before everything is in sync, so that
// nothing is said about half of a cluster.
func (v *view) World() *inventory.Snapshot {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.world
}

// Reports implements status.View.
func (v *view) Reports() []*enforcement.Report {
	var out []*enforcement.Report
	for _, obj := range v.leases.GetStore().List() {
		if l, ok := obj.(*coordinationv1.Lease); ok {
			if r, err := enforcement.Decode(l); err == nil { // a node that cannot be read is silent
				out = append(out, r)
			}
		}
	}
	return out
}

// review is the world for admission.
func (v *view) review() *admission.World {
	if !v.synced() {
		return nil
	}
	n, _, good := v.policies.list()
	v.mu.Lock()
	defer v.mu.Unlock()
	// Both numbers only grow; their sum changes when either does.
	return &admission.World{Version: n + v.version, Objects: good, Inventory: v.world}
}

// statusView is view once it is in sync.
type statusView struct{ *view }

func (s statusView) World() *inventory.Snapshot {
	if !s.synced() || !s.leases.HasSynced() {
		return nil
	}
	return s.view.World()
}
