package kube

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/tierwall/tierwall/policy/enforcement"
)

// Reconnecting after the API server was away: the first try comes after about a
// second, later ones at most backoffCap apart, each up to twice that by jitter, so
// that the nodes of a large cluster do not come back in one moment.
const (
	backoffFirst = 800 * time.Millisecond
	backoffCap   = 15 * time.Second
)

// ident names an item. Items are no API objects: the reflector takes keys and
// versions from the objects they are made of.
type ident struct{ namespace, name string }

func (i *ident) id() objectName { return objectName(*i) }

// objectName names an object inside its resource.
type objectName struct{ namespace, name string }

// sink keeps the objects of one resource, in the form we need them. read converts
// and may run at any time; the others are called with the Source's lock held, and
// report whether what Load returns is another now.
type sink interface {
	// read returns an object of the API server as an item. An item is returned as
	// it is.
	read(obj any) (any, error)
	set(item any) bool
	remove(objectName) bool
	replace(items []any) bool
	len() int
}

// feed is the store that the reflector of one resource fills. It implements
// cache.TransformingStore, so that while listing, too, no object is kept as the API
// server sent it: a hundred thousand Pods in that form are a gigabyte.
type feed struct {
	src      *Source
	resource string // plural name and group
	sink     sink
	cancel   context.CancelFunc // for those that end before the Source

	// Guarded by src.mu.
	stats ResourceStatus
}

// run lists and watches until ctx ends. example is of the type the API server's
// objects are decoded into.
func (f *feed) run(ctx context.Context, lw cache.ListWatch, example any) {
	backoff := wait.Backoff{Duration: backoffFirst, Cap: backoffCap, Steps: 8, Factor: 2, Jitter: 1}
	r := cache.NewReflectorWithOptions(f.observed(lw), example, f, cache.ReflectorOptions{
		Name: f.resource, TypeDescription: f.resource, Backoff: &backoff,
	})
	delay := backoff.DelayWithReset(clock.RealClock{}, 2*time.Minute)
	_ = delay.Until(ctx, true, true, func(ctx context.Context) (bool, error) {
		if err := r.ListAndWatchWithContext(ctx); err != nil && ctx.Err() == nil {
			f.failed(err)
		}
		return false, nil
	})
}

// observed returns lw with a look at what the API server answers: the reflector
// tries some failures again without telling anybody.
func (f *feed) observed(lw cache.ListWatch) *cache.ListWatch {
	list, watchIt := lw.ListWithContextFunc, lw.WatchFuncWithContext
	lw.ListWithContextFunc = func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
		o, err := list(ctx, opts)
		f.answered(ctx, err)
		return o, err
	}
	lw.WatchFuncWithContext = func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
		w, err := watchIt(ctx, opts)
		f.answered(ctx, err)
		return w, err
	}
	return &lw
}

// answered notes the end of a request.
func (f *feed) answered(ctx context.Context, err error) {
	f.src.mu.Lock()
	f.stats.Requests++
	f.src.mu.Unlock()
	if err != nil && ctx.Err() == nil {
		f.failed(err)
	}
}

func (f *feed) Transformer() cache.TransformFunc { return f.sink.read }

func (f *feed) Add(obj any) error { return f.Update(obj) }

func (f *feed) Update(obj any) error {
	item, err := f.sink.read(obj)
	if err != nil {
		return err
	}
	version := versionOf(obj)
	f.src.mu.Lock()
	defer f.src.mu.Unlock()
	f.stats.Events++
	f.saw(version)
	f.src.changedIf(f.sink.set(item))
	return nil
}

func (f *feed) Delete(obj any) error {
	o, err := meta.Accessor(obj)
	if err != nil {
		return fmt.Errorf("%s: %w", f.resource, err)
	}
	f.src.mu.Lock()
	defer f.src.mu.Unlock()
	f.stats.Events++
	f.saw(versionOf(obj))
	f.src.changedIf(f.sink.remove(objectName{o.GetNamespace(), o.GetName()}))
	return nil
}

func (f *feed) Replace(objs []any, resourceVersion string) error {
	items := make([]any, len(objs))
	for i, obj := range objs {
		var err error
		if items[i], err = f.sink.read(obj); err != nil {
			return err
		}
	}
	version, err := enforcement.ParseVersion(resourceVersion)
	if err != nil {
		return fmt.Errorf("list of %s: %w", f.resource, err)
	}
	defer f.src.cfg.OnList(f.resource, len(objs))
	f.src.mu.Lock()
	defer f.src.mu.Unlock()
	f.stats.Lists++
	f.stats.Version = version // may be lower than before: etcd was restored
	f.contact()
	news := f.sink.replace(items)
	first := !f.stats.Synced
	f.stats.Synced = true
	f.src.changedIf(news)
	if first {
		f.src.checkSynced()
	}
	return nil
}

// Resync is not asked for: nothing here depends on time.
func (f *feed) Resync() error { return nil }

// UpdateResourceVersion is called after every event, bookmarks included.
func (f *feed) UpdateResourceVersion(resourceVersion string) {
	version, err := enforcement.ParseVersion(resourceVersion)
	if err != nil {
		return
	}
	f.src.mu.Lock()
	defer f.src.mu.Unlock()
	f.saw(version)
}

// saw notes that everything up to a version is in the sink.
func (f *feed) saw(version uint64) {
	f.stats.Version = max(f.stats.Version, version)
	f.contact()
}

// contact notes that the API server has told us something.
func (f *feed) contact() {
	f.stats.LastContact = time.Now()
	if f.stats.Error != "" {
		f.stats.Error = ""
		f.src.log.Info("resource can be read again", "resource", f.resource)
	}
}

// failed is told why listing or watching ended.
func (f *feed) failed(err error) {
	f.src.mu.Lock()
	defer f.src.mu.Unlock()
	f.stats.Errors++
	first := f.stats.Error == ""
	f.stats.Error = err.Error()
	if first {
		f.src.log.Warn("resource cannot be read, what is known of it stays", "resource", f.resource, "error", err)
	}
}

// versionOf returns the resourceVersion of an object, 0 where it has none.
func versionOf(obj any) uint64 {
	o, err := meta.Accessor(obj)
	if err != nil {
		return 0
	}
	v, err := enforcement.ParseVersion(o.GetResourceVersion())
	if err != nil {
		return 0
	}
	return v
}
