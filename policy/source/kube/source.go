package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/diag"
	"github.com/tierwall/tierwall/policy/inventory"
	"github.com/tierwall/tierwall/policy/lower"
)

// Config says what a Source reads. REST is required.
type Config struct {
	// REST is how to reach the API server; see [ForDaemon].
	REST *rest.Config
	// Kinds are the policy kinds, in the dialects' order: of several versions of
	// one kind the first that is served is read. nil means lower.Kinds.
	Kinds []api.Kind
	// Snapshot is the file that keeps what is in force for a start without an API
	// server. "" = none.
	Snapshot string
	// SnapshotMaxAge is the age from which a snapshot is not used. 0 means
	// DefaultSnapshotMaxAge.
	SnapshotMaxAge time.Duration
	// SnapshotWait is how long to wait for the API server at the start before the
	// snapshot is used. 0 means DefaultSnapshotWait.
	SnapshotWait time.Duration
	// OnNode, if not nil, is told of every Node as the API server sends it. It must
	// return quickly, and not keep or change the Node.
	OnNode func(*corev1.Node)
	// OnList, if not nil, is told when all of a resource has been read, which leaves
	// garbage of the size of what was read. It must return quickly.
	OnList func(resource string, objects int)
	// Logger receives changes of state. nil means slog.Default.
	Logger *slog.Logger
}

// Defaults of Config.
const (
	DefaultSnapshotMaxAge = 24 * time.Hour
	DefaultSnapshotWait   = 10 * time.Second
)

// Source reads a cluster. It implements controller.Follower: Follow waits for the
// first complete view (or the snapshot), and from then on returns what is known at
// once, whether the API server answers or not. Create it with New, and call Run.
type Source struct {
	cfg Config
	log *slog.Logger

	changes chan struct{} // capacity 1
	ready   chan struct{} // closed when Load has something to return
	rescan  chan struct{} // capacity 1; discovery is to look again
	keep    chan struct{} // capacity 1; kept is new

	pods       *pods
	namespaces *simple[inventory.Namespace]
	nodes      *simple[inventory.Node]
	services   *simple[inventory.Service]

	mu sync.Mutex
	// What is read. policies is by group and kind.
	feeds      []*feed // of the world
	definition *feed
	policies   map[groupKind]*policyFeed
	resolved   bool // discovery has told once which policy resources there are
	unserved   []diag.Diagnostic
	foreign    []NotUnderstood
	synced     bool
	restored   *restored // from disk, until synced
	readyDone  bool

	// What Load returned last, by what it was made of.
	change  uint64 // counts changes
	loaded  uint64 // change of the last Load
	inForce uint64 // change of the input in force
	// versions are those of the input in force, and of the last Load.
	forceVersions, loadVersions map[string]uint64
	parts                       [][]*api.Object // of objects, by resource
	objects                     []*api.Object
	world                       *inventory.View
	snap                        *inventory.Snapshot // of snapOf
	snapOf                      *inventory.View
	kept                        kept // for the snapshot file
}

// kept is what a table in force was made of.
type kept struct {
	objects []*api.Object
	world   *inventory.View
}

type groupKind struct{ group, kind string }

type policyFeed struct {
	*feed
	sink *policies
	kind api.Kind
}

// New checks the configuration and returns a Source that reads nothing yet.
func New(cfg Config) (*Source, error) {
	if cfg.REST == nil {
		return nil, errors.New("kube: REST is required")
	}
	if cfg.Kinds == nil {
		cfg.Kinds = lower.Kinds()
	}
	if cfg.SnapshotMaxAge < 0 || cfg.SnapshotWait < 0 {
		return nil, errors.New("kube: negative duration")
	}
	if cfg.SnapshotMaxAge == 0 {
		cfg.SnapshotMaxAge = DefaultSnapshotMaxAge
	}
	if cfg.SnapshotWait == 0 {
		cfg.SnapshotWait = DefaultSnapshotWait
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.OnNode == nil {
		cfg.OnNode = func(*corev1.Node) {}
	}
	if cfg.OnList == nil {
		cfg.OnList = func(string, int) {}
	}
	s := &Source{
		cfg: cfg, log: cfg.Logger, changes: make(chan struct{}, 1), ready: make(chan struct{}), rescan: make(chan struct{}, 1), keep: make(chan struct{}, 1),
		pods: newPods(), namespaces: newNamespaces(), nodes: newNodes(cfg.OnNode), services: newServices(),
		policies: map[groupKind]*policyFeed{},
	}
	for _, f := range []struct {
		resource string
		sink     sink
	}{{"pods", s.pods}, {"namespaces", s.namespaces}, {"nodes", s.nodes}, {"services", s.services}} {
		s.feeds = append(s.feeds, &feed{src: s, resource: f.resource, sink: f.sink})
	}
	s.definition = &feed{src: s, resource: definitions, sink: newDefinitions(cfg.Kinds, s.lookAgain)}
	return s, nil
}

// Run reads until ctx ends. Call it once.
func (s *Source) Run(ctx context.Context) error {
	c, err := newClients(s.cfg.REST)
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	for _, f := range s.feeds {
		wg.Go(func() { f.run(ctx, c.core(f.resource), exampleOf(f.resource)) })
	}
	wg.Go(func() { s.definition.run(ctx, c.definitions(), exampleOf(definitions)) })
	wg.Go(func() { s.discover(ctx, c, &wg) })
	if s.cfg.Snapshot != "" {
		wg.Go(func() { s.restoreLate(ctx) })
		wg.Go(func() { s.save(ctx) })
	}
	<-ctx.Done()
	return nil
}

// Changes delivers a value when Load may have something new.
func (s *Source) Changes() <-chan struct{} { return s.changes }

// changedIf tells who waits for changes. The caller holds the lock.
func (s *Source) changedIf(changed bool) {
	if !changed {
		return
	}
	s.change++
	if s.synced {
		s.tell()
	}
}

func (s *Source) tell() {
	select {
	case s.changes <- struct{}{}:
	default: // one is waiting already
	}
}

// checkSynced is called when a resource has been read for the first time, or one
// less is waited for. The caller holds the lock.
func (s *Source) checkSynced() {
	if s.synced || len(s.waiting()) > 0 {
		return
	}
	s.synced = true
	if s.restored != nil {
		s.log.Info("API server read, the snapshot is not used any longer")
		s.restored = nil
	}
	s.change++
	s.open()
	s.tell()
}

// waiting names what has not been read yet. The caller holds the lock.
func (s *Source) waiting() []string {
	var out []string
	for _, f := range append(slices.Clip(s.feeds), s.definition) {
		if !f.stats.Synced {
			out = append(out, f.resource)
		}
	}
	if !s.resolved {
		out = append(out, "API discovery")
	}
	for _, f := range s.policies {
		if !f.stats.Synced {
			out = append(out, f.resource)
		}
	}
	slices.Sort(out)
	return out
}

// open lets Load return. The caller holds the lock.
func (s *Source) open() {
	if !s.readyDone {
		s.readyDone = true
		close(s.ready)
	}
}

// Load is [Source.Follow] with all of the world at once, the same pointer as long
// as it has not changed.
func (s *Source) Load(ctx context.Context) ([]*api.Object, *inventory.Snapshot, diag.List) {
	objs, view, found := s.Follow(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.snapOf != view {
		s.snap, s.snapOf = view.Snapshot(), view
	}
	return objs, s.snap, found
}

// Follow returns the policies and the world as known now. The first call waits
// until everything has been read once, or the snapshot is used, or ctx ends.
// Objects that could not be decoded are there with Problems. What is returned is
// read only; what did not change is the same memory as in the call before.
func (s *Source) Follow(ctx context.Context) ([]*api.Object, *inventory.View, diag.List) {
	select {
	case <-ctx.Done():
		return nil, inventory.ViewOf(&inventory.Snapshot{}), diag.List{}
	case <-s.ready:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.loaded = s.change
	s.pods.follow()
	s.loadVersions = s.versions()
	if s.restored != nil {
		return s.restored.objects, s.restored.view, diag.List{Warnings: s.restored.findings()}
	}
	found := diag.List{Warnings: slices.Clone(s.unserved)}
	notUnderstood(s.foreign, &found)
	var parts [][]*api.Object
	for _, f := range s.sortedPolicies() {
		var part []*api.Object
		part, found.Warnings = f.sink.load(found.Warnings)
		parts = append(parts, part)
	}
	if !slices.EqualFunc(parts, s.parts, sameList) {
		s.parts, s.objects = parts, slices.Concat(parts...)
	}
	found.Add(s.pods.findings())
	for _, of := range []map[objectName]diag.List{s.pods.found, s.namespaces.found, s.nodes.found, s.services.found} {
		for _, n := range slices.SortedFunc(maps.Keys(of), compareNames) {
			// What could not be read of an object of the world is left out of it; that
			// must not keep everything else from being enforced.
			found.Warnings = append(found.Warnings, of[n].Errors...)
			found.Warnings = append(found.Warnings, of[n].Warnings...)
		}
	}
	return s.objects, s.view(), found
}

// sameList reports whether two lists are the same memory.
func sameList[T any](a, b []T) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// view returns the world, the same pointer as long as it has not changed.
func (s *Source) view() *inventory.View {
	others := len(s.namespaces.pending) + len(s.nodes.pending) + len(s.services.pending)
	if s.world != nil && !s.pods.changed && others == 0 {
		return s.world
	}
	var namespaces []inventory.Namespace
	if s.world != nil && len(s.namespaces.pending) == 0 && !s.pods.mentioned {
		namespaces = s.world.Namespaces
	} else {
		namespaces = withImplied(s.namespaces.flush(), s.pods.namespaces)
	}
	s.world = inventory.NewView(namespaces, s.nodes.flush(), s.services.flush(), s.pods.flush())
	return s.world
}

func (s *Source) sortedPolicies() []*policyFeed {
	return slices.SortedFunc(maps.Values(s.policies), func(a, b *policyFeed) int { return strings.Compare(a.resource, b.resource) })
}

// versions returns how far each policy resource has been read.
func (s *Source) versions() map[string]uint64 {
	out := make(map[string]uint64, len(s.policies))
	if !s.synced {
		return out // what is in force is from disk
	}
	for _, f := range s.policies {
		if f.stats.Synced {
			out[f.resource] = f.stats.Version
		}
	}
	return out
}

// InForce tells that what the last Follow returned is in force, apart from objects
// that were refused one by one: objs and world are what the table was made of, and
// are kept for the snapshot. Follow and InForce belong to one goroutine.
func (s *Source) InForce(objs []*api.Object, world *inventory.View) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inForce, s.forceVersions = s.loaded, s.loadVersions
	s.pods.inForce()
	if s.restored != nil {
		return
	}
	s.kept = kept{objs, world}
	select {
	case s.keep <- struct{}{}:
	default:
	}
}

// Observed returns, by resource, the version up to which everything is in force.
// As long as nothing has changed since, events that mean nothing to policy count.
func (s *Source) Observed() map[string]uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.synced && s.inForce == s.change {
		return s.versions()
	}
	return maps.Clone(s.forceVersions)
}

// ResourceOf returns the resource a kind is served as, "" when it is not.
func (s *Source) ResourceOf(k api.Kind) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.policies[groupKind{k.Group, k.Kind}]; f != nil {
		return f.resource
	}
	return ""
}

// Status is what a Source has reached.
type Status struct {
	// Synced is set once everything has been read; it stays set while the API
	// server is away.
	Synced bool
	// Waiting names the resources that have not been read yet.
	Waiting []string
	// Snapshot is the time of the snapshot in use, zero when none is.
	Snapshot time.Time
	// Resources are sorted by name.
	Resources []ResourceStatus
	// NotUnderstood are policy kinds that are installed and that no dialect reads, by
	// group and kind. Read only.
	NotUnderstood []NotUnderstood
}

// ResourceStatus is what has been read of a resource. Counts are since the start.
type ResourceStatus struct {
	Resource string
	Objects  int
	Version  uint64 // resourceVersion up to which everything has been read
	Synced   bool   // read completely at least once
	Requests uint64 // lists and watches begun
	Lists    uint64 // times everything was read
	Events   uint64
	Errors   uint64
	// Error is why the last request failed; "" when the API server has answered
	// since.
	Error string
	// LastContact is when the API server last sent something, bookmarks included.
	LastContact time.Time
}

// Status returns the state at this moment.
func (s *Source) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := Status{Synced: s.synced, Waiting: s.waiting(), NotUnderstood: s.foreign}
	if s.restored != nil {
		st.Snapshot = s.restored.time
	}
	feeds := append(slices.Clip(s.feeds), s.definition)
	for _, f := range s.policies {
		feeds = append(feeds, f.feed)
	}
	for _, f := range feeds {
		r := f.stats
		r.Resource, r.Objects = f.resource, f.sink.len()
		st.Resources = append(st.Resources, r)
	}
	slices.SortFunc(st.Resources, func(a, b ResourceStatus) int { return strings.Compare(a.Resource, b.Resource) })
	return st
}

// Ready returns what is still waited for, or nil.
func (s *Source) Ready() error {
	st := s.Status()
	switch {
	case st.Synced:
		return nil
	case !st.Snapshot.IsZero():
		return fmt.Errorf("the API server has not been read yet, a snapshot of %s is in force", st.Snapshot.UTC().Format(time.RFC3339))
	}
	for _, r := range st.Resources {
		if r.Error != "" && !r.Synced {
			return fmt.Errorf("waiting for %s: %s: %s", strings.Join(st.Waiting, ", "), r.Resource, r.Error)
		}
	}
	return fmt.Errorf("waiting for %s", strings.Join(st.Waiting, ", "))
}
