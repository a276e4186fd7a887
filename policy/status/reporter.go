package status

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/tierwall/tierwall/policy/enforcement"
	"github.com/tierwall/tierwall/policy/inventory"
)

// View is what a Reporter looks at. Its methods return what is known at once, and
// the results are not modified.
type View interface {
	Objects() []Object
	World() *inventory.Snapshot
	Reports() []*enforcement.Report
}

// Client writes status. The patch is a JSON merge patch of the status subresource.
type Client interface {
	PatchStatus(ctx context.Context, r schema.GroupVersionResource, namespace, name string, patch []byte) (*unstructured.Unstructured, error)
}

// Recorder writes events; record.EventRecorder is one.
type Recorder interface {
	Event(object runtime.Object, eventType, reason, message string)
}

// Limits bound what a Reporter writes and how often it looks. A zero field means
// its default.
type Limits struct {
	Writes    float64       // status news a second; 20
	Refreshes float64       // statuses a second in which only words changed; 2
	Events    float64       // events a second; 5
	Look      time.Duration // least time between two looks at reports; 1 s
	Relower   time.Duration // least time between judging again because the world changed; 30 s
}

func (l *Limits) fill() {
	or := func(v *float64, d float64) {
		if *v == 0 {
			*v = d
		}
	}
	or(&l.Writes, 20)
	or(&l.Refreshes, 2)
	or(&l.Events, 5)
	if l.Look == 0 {
		l.Look = time.Second
	}
	if l.Relower == 0 {
		l.Relower = 30 * time.Second
	}
}

// Stats counts what a Reporter did since it was made.
type Stats struct {
	Objects, Refused        int // at the last look
	Writes, Errors, Events  uint64
	Waiting                 int // statuses that wait for their turn
	LastLook                time.Time
	LookSeconds             float64 // of the last look
	Conflicts, Unsupported  uint64  // writes that came too late; resources without status
	EventsSuppressed, Looks uint64
}

// unsupportedFor is how long a resource without a status subresource is left alone.
const unsupportedFor = 10 * time.Minute

// Reporter keeps status up to date. Create it with NewReporter.
type Reporter struct {
	view   View
	client Client
	events Recorder
	judge  Judge
	limits Limits
	log    *slog.Logger
	now    func() time.Time

	// Of Run's goroutine.
	verdicts    []Verdict
	judged      map[types.UID]string // resourceVersion-free content judged last
	judgedOrder []types.UID          // of the verdicts
	round       uint64               // counts judgements
	judgedAt    time.Time
	worldThen   *inventory.Snapshot
	versions    map[types.UID]asked
	told        map[types.UID]string // the last event of an object
	eventLimit  flowcontrol.PassiveRateLimiter

	mu      sync.Mutex
	queue   map[types.UID]job
	written map[types.UID]done
	made    map[types.UID]inputs // forgotten when a write fails
	// unsupported says until when a resource is left alone.
	unsupported map[schema.GroupVersionResource]time.Time
	stats       Stats
	wake        chan struct{}
}

// asked is which version nodes have to have of an object.
type asked struct {
	content string
	version uint64
}

// inputs is what a status was last made of: nothing needs to be compared while
// they are the same.
type inputs struct {
	version string // stored
	round   uint64 // of judging
	count   Count
	silent  string
}

// done is what was written last.
type done struct {
	words   string // set when the API server kept only a part
	version uint64 // of the object after the write
}

type job struct {
	object Object
	plan   plan
}

// NewReporter returns a Reporter that does nothing until Run. events may be nil.
func NewReporter(view View, client Client, events Recorder, judge Judge, limits Limits, log *slog.Logger) *Reporter {
	limits.fill()
	return &Reporter{
		view: view, client: client, events: events, judge: judge, limits: limits, log: log, now: time.Now,
		versions: map[types.UID]asked{}, told: map[types.UID]string{}, unsupported: map[schema.GroupVersionResource]time.Time{},
		queue: map[types.UID]job{}, written: map[types.UID]done{}, made: map[types.UID]inputs{}, wake: make(chan struct{}, 1),
		eventLimit: flowcontrol.NewTokenBucketPassiveRateLimiter(float32(limits.Events), int(10*limits.Events)),
	}
}

// Stats returns the counters at this moment.
func (r *Reporter) Stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.stats
	s.Waiting = len(r.queue)
	return s
}

// Run looks after every value on changes, and every minute, until ctx ends.
func (r *Reporter) Run(ctx context.Context, changes <-chan struct{}) {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { r.write(ctx) })
	every := time.NewTicker(time.Minute)
	defer every.Stop()
	for {
		r.Look()
		select { // the least time between two looks
		case <-ctx.Done():
			return
		case <-time.After(r.limits.Look):
		}
		select {
		case <-ctx.Done():
			return
		case <-changes:
		case <-every.C:
		}
	}
}

// Look compares what is with what the objects say, once, and queues what has to be
// written. Run calls it.
func (r *Reporter) Look() {
	began := r.now()
	objects, world, reports := r.view.Objects(), r.view.World(), r.view.Reports()
	if world == nil {
		return // not in sync yet
	}
	r.rejudge(objects, world, began)
	nodes := NewNodes(world, reports, began)
	versions := make(map[types.UID]asked, len(objects))
	refused, silent := 0, strings.Join(nodes.Silent, ",")
	for i := range objects {
		o, v := &objects[i], &r.verdicts[i]
		if len(v.Errors) > 0 || v.Mixed {
			refused++
		}
		if !HasStatus(o.Resource.Group, o.Resource.Resource) {
			if o.Resource.Group != antreaGroup {
				r.tell(o, v)
			}
			continue
		}
		if o.Stored.GetDeletionTimestamp() != nil {
			continue
		}
		uid := o.Stored.GetUID()
		a := r.ask(o)
		versions[uid] = a
		r.queueStatus(o, v, nodes, a.version, silent, began)
	}
	r.versions = versions
	r.forget(objects)
	r.mu.Lock()
	r.stats.Objects, r.stats.Refused, r.stats.LastLook = len(objects), refused, began
	r.stats.LookSeconds = r.now().Sub(began).Seconds()
	r.stats.Looks++
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// rejudge judges when an object's content changed, and now and then when only the
// world did.
func (r *Reporter) rejudge(objects []Object, world *inventory.Snapshot, now time.Time) {
	contents := make(map[types.UID]string, len(objects))
	changed := len(objects) != len(r.judged)
	for i := range objects {
		uid, c := objects[i].Stored.GetUID(), content(objects[i].Stored)
		contents[uid] = c
		changed = changed || r.judged[uid] != c
	}
	if changed || len(r.verdicts) != len(objects) || world != r.worldThen && now.Sub(r.judgedAt) >= r.limits.Relower {
		r.verdicts = r.judge.Judge(objects, world)
		r.round++
		r.judged, r.judgedAt, r.worldThen, r.judgedOrder = contents, now, world, order(objects)
		return
	}
	// The same objects, perhaps in another order.
	if by := order(objects); !slices.Equal(by, r.judgedOrder) {
		at := make(map[types.UID]int, len(by))
		for i, uid := range r.judgedOrder {
			at[uid] = i
		}
		verdicts := make([]Verdict, len(by))
		for i, uid := range by {
			verdicts[i] = r.verdicts[at[uid]]
		}
		r.verdicts, r.judgedOrder = verdicts, by
	}
}

// ask returns the version nodes have to have reached: that with which the content
// was first seen. A status that says a generation is enforced is believed when
// nothing else is known, which is after a start.
func (r *Reporter) ask(o *Object) asked {
	c := content(o.Stored)
	if a, ok := r.versions[o.Stored.GetUID()]; ok && a.content == c {
		return a
	}
	_, known := r.versions[o.Stored.GetUID()]
	version, err := enforcement.ParseVersion(o.Stored.GetResourceVersion())
	if err != nil {
		r.log.Warn("a version that is no number: nothing counts as enforced", "resource", o.Resource.GroupResource().String(), "error", err)
		return asked{c, ^uint64(0)}
	}
	if !known && saysEnforced(o.Stored) {
		version = 0
	}
	return asked{c, version}
}

func saysEnforced(o *unstructured.Unstructured) bool {
	list, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	for _, item := range list {
		m, _ := item.(map[string]any)
		generation, _, _ := unstructured.NestedInt64(m, "observedGeneration")
		if m["type"] == Enforced && m["status"] == "True" && generation == o.GetGeneration() {
			return true
		}
	}
	return false
}

func (r *Reporter) queueStatus(o *Object, v *Verdict, nodes *Nodes, version uint64, silent string, now time.Time) {
	if until, ok := r.unsupportedUntil(o.Resource); ok && now.Before(until) {
		return
	}
	name := enforcement.Object{
		Resource: o.Resource.GroupResource().String(), Namespace: o.Stored.GetNamespace(), Name: o.Stored.GetName(),
	}
	uid := o.Stored.GetUID()
	in := inputs{o.Stored.GetResourceVersion(), r.round, nodes.Count(name, version), silent}
	r.mu.Lock()
	before, made := r.made[uid]
	r.made[uid] = in
	r.mu.Unlock()
	if made && before == in {
		return
	}
	p, err := status(o, v, in.count, nodes.Silent, now)
	if err != nil {
		r.log.Error("status cannot be made", "error", err)
		return
	}
	stored, _ := enforcement.ParseVersion(o.Stored.GetResourceVersion())
	r.mu.Lock()
	defer r.mu.Unlock()
	d := r.written[uid]
	if p.diff == same || d.words != "" && d.words == p.words() || stored < d.version {
		delete(r.queue, uid) // said already, or said and not seen yet
		return
	}
	r.queue[uid] = job{*o, p}
}

func (r *Reporter) unsupportedUntil(res schema.GroupVersionResource) (time.Time, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t, ok := r.unsupported[res]
	return t, ok
}

// forget drops what is remembered of objects that are gone.
func (r *Reporter) forget(objects []Object) {
	here := make(map[types.UID]bool, len(objects))
	for i := range objects {
		here[objects[i].Stored.GetUID()] = true
	}
	for uid := range r.told {
		if !here[uid] {
			delete(r.told, uid)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for uid := range r.written {
		if !here[uid] {
			delete(r.written, uid)
		}
	}
	for uid := range r.queue {
		if !here[uid] {
			delete(r.queue, uid)
		}
	}
	for uid := range r.made {
		if !here[uid] {
			delete(r.made, uid)
		}
	}
}

// Reasons of events.
const (
	EventRefused    = "PolicyRefused"
	EventOverridden = "PolicyOverridden"
	EventAccepted   = "PolicyAccepted" // after it was refused
)

// tell writes an event about an object without a status, if there is news.
func (r *Reporter) tell(o *Object, v *Verdict) {
	uid := o.Stored.GetUID()
	kind, reason, message := corev1.EventTypeWarning, "", ""
	switch {
	case len(v.Errors) > 0:
		reason, message = EventRefused, text(v.Errors)
	case len(v.Overridden) > 0:
		reason, message = EventOverridden, text(v.Overridden)
	case r.told[uid] != "":
		kind, reason, message = corev1.EventTypeNormal, EventAccepted, "the policy is understood, and no stronger one takes its say about pods away"
	default:
		return
	}
	now := reason + message
	switch reason {
	case EventAccepted:
		now = ""
	case EventOverridden: // examples change with the pods
		now = reason
		for _, d := range v.Overridden {
			now += "\x00" + d.Path + "\x00" + d.Override.By.Group + "\x00" + d.Override.By.String() + "\x00" + d.Override.Rule
		}
	}
	if r.events == nil || r.told[uid] == now {
		return
	}
	if !r.eventLimit.TryAccept() {
		r.mu.Lock()
		r.stats.EventsSuppressed++ // not told: the next look tries again
		r.mu.Unlock()
		return
	}
	r.told[uid] = now
	r.events.Event(&corev1.ObjectReference{
		APIVersion: o.Stored.GetAPIVersion(), Kind: o.Stored.GetKind(), UID: uid,
		Namespace: o.Stored.GetNamespace(), Name: o.Stored.GetName(), ResourceVersion: o.Stored.GetResourceVersion(),
	}, kind, reason, message)
	r.mu.Lock()
	r.stats.Events++
	r.mu.Unlock()
}

// write takes from the queue until ctx ends: news first.
func (r *Reporter) write(ctx context.Context) {
	urgent := flowcontrol.NewTokenBucketRateLimiter(float32(r.limits.Writes), max(1, int(2*r.limits.Writes)))
	idle := flowcontrol.NewTokenBucketRateLimiter(float32(r.limits.Refreshes), max(1, int(r.limits.Refreshes)))
	defer urgent.Stop()
	defer idle.Stop()
	for {
		j, ok := r.next(news)
		limiter := urgent
		if !ok {
			if j, ok = r.next(wording); ok && !idle.TryAccept() {
				r.putBack(j) // news may come while we wait
				ok = false
			}
			limiter = nil
		}
		if !ok {
			select {
			case <-ctx.Done():
				return
			case <-r.wake:
			case <-time.After(time.Duration(float64(time.Second) / max(r.limits.Refreshes, 0.1))):
			}
			continue
		}
		if limiter != nil && limiter.Wait(ctx) != nil {
			return
		}
		r.patch(ctx, j)
	}
}

func (r *Reporter) next(d difference) (job, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for uid, j := range r.queue {
		if j.plan.diff == d {
			delete(r.queue, uid)
			return j, true
		}
	}
	return job{}, false
}

func (r *Reporter) putBack(j job) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, newer := r.queue[j.object.Stored.GetUID()]; !newer {
		r.queue[j.object.Stored.GetUID()] = j
	}
}

func (r *Reporter) patch(ctx context.Context, j job) {
	o := j.object.Stored
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	after, err := r.client.PatchStatus(ctx, j.object.Resource, o.GetNamespace(), o.GetName(), j.plan.patch)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		delete(r.made, o.GetUID())
	}
	switch {
	case err == nil:
		r.stats.Writes++
		d := done{}
		d.version, _ = enforcement.ParseVersion(after.GetResourceVersion())
		if !kept(after, &j.plan) {
			d.words = j.plan.words()
		}
		r.written[o.GetUID()] = d
	case apierrors.IsConflict(err):
		r.stats.Conflicts++ // the next look has the newer version
	case apierrors.IsNotFound(err):
		// Deleted meanwhile; or the definition has no status subresource, which looks
		// the same. Then every object of it would be tried for ever.
		r.stats.Unsupported++
		if o.GetDeletionTimestamp() == nil && r.unsupported[j.object.Resource].IsZero() {
			r.log.Info("status not written: deleted, or the resource has no status", "resource", j.object.Resource.GroupResource().String(), "name", o.GetName())
		}
		r.unsupported[j.object.Resource] = r.now().Add(unsupportedFor)
		if !isSubresourceMissing(err) {
			delete(r.unsupported, j.object.Resource)
		}
	case errors.Is(err, context.Canceled):
	default:
		r.stats.Errors++
		r.log.Warn("status not written", "resource", j.object.Resource.GroupResource().String(), "namespace", o.GetNamespace(), "name", o.GetName(), "error", err)
	}
}

// isSubresourceMissing tells the 404 of a path that is not served from that of an
// object that is gone: only the latter names the object.
func isSubresourceMissing(err error) bool {
	var s apierrors.APIStatus
	if !errors.As(err, &s) {
		return false
	}
	d := s.Status().Details
	return d == nil || d.Name == ""
}

// kept reports whether the API server stored everything that was written.
func kept(o *unstructured.Unstructured, p *plan) bool {
	state, _, _ := unstructured.NestedMap(o.Object, "status")
	for k := range state {
		if _, ok := p.state[k]; !ok {
			delete(state, k)
		}
	}
	stored := plan{state: state}
	return stored.words() == p.words()
}

// order lists the UIDs of objects.
func order(objects []Object) []types.UID {
	out := make([]types.UID, len(objects))
	for i := range objects {
		out[i] = objects[i].Stored.GetUID()
	}
	return out
}
