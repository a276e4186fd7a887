package controller_test

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/controller"
	"github.com/tierwall/tierwall/policy/diag"
	"github.com/tierwall/tierwall/policy/internal/fixture"
	"github.com/tierwall/tierwall/policy/inventory"
)

const world = "namespace x\nnode n1 192.0.2.1\npod x/a\npod x/b app=b"

const deny = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: deny, namespace: x}
spec: {podSelector: {matchLabels: {app: b}}}
---
`

const allow = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: allow, namespace: x}
spec: {podSelector: {matchLabels: {app: b}}, ingress: [{}]}
---
`

// The empty peer is refused by validation, not by decoding.
const broken = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: broken, namespace: x}
spec: {podSelector: {}, ingress: [{from: [{}]}]}
---
`

// source is a Source in memory.
type source struct {
	changes chan struct{}
	mu      sync.Mutex
	objs    []*api.Object
	inv     *inventory.Snapshot
	found   diag.List
	loads   int
	onLoad  func()
}

func (s *source) Changes() <-chan struct{} { return s.changes }

func (s *source) Load(context.Context) ([]*api.Object, *inventory.Snapshot, diag.List) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.loads++
	if s.onLoad != nil {
		s.onLoad()
	}
	return s.objs, s.inv, s.found
}

// publisher keeps what it was given.
type publisher struct {
	mu     sync.Mutex
	err    error
	tables []*classifier.Table
}

func (p *publisher) Publish(t *classifier.Table, _ *classifier.Report) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tables = append(p.tables, t)
	return p.err
}

func (p *publisher) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err = err
}

// published returns the tables so far.
func (p *publisher) published() []*classifier.Table {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.tables)
}

func (s *source) loaded() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.loads
}

// sleep lets fake time pass and everybody finish.
func sleep(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// rig is a controller in a synctest bubble: time stands still until everybody
// waits.
type rig struct {
	t   *testing.T
	src *source
	pub *publisher
	ctl *controller.Controller
	log *strings.Builder
}

func start(t *testing.T, yaml string, change func(*controller.Config)) *rig {
	t.Helper()
	r := &rig{t: t, pub: &publisher{}, log: &strings.Builder{}}
	r.src = &source{changes: make(chan struct{}, 1), inv: fixture.MustWorld(t, world).Inventory}
	r.src.objs = fixture.MustObjects(t, yaml)
	cfg := controller.Config{Source: r.src, Publisher: r.pub, Logger: slog.New(slog.NewTextHandler(r.log, nil))}
	if change != nil {
		change(&cfg)
	}
	var err error
	if r.ctl, err = controller.New(cfg); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); r.ctl.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	synctest.Wait()
	return r
}

// set replaces the source's objects and waits until the controller is idle.
func (r *rig) set(yaml string) {
	r.t.Helper()
	objs := fixture.MustObjects(r.t, yaml)
	r.change(func() { r.src.objs = objs })
}

func (r *rig) change(f func()) {
	r.src.mu.Lock()
	f()
	r.src.mu.Unlock()
	r.src.changes <- struct{}{}
	sleep(controller.DefaultMinInterval)
}

// want checks how many tables were published and what the last one says about
// a connection to x/b.
func (r *rig) want(what string, tables int, verdict classifier.Verdict, generation uint64, errs int) {
	r.t.Helper()
	st := r.ctl.Status()
	if len(r.pub.published()) != tables || st.Generation != generation || len(st.Findings.Errors) != errs {
		r.t.Fatalf("%s: %d tables, generation %d, errors %v; want %d, %d and %d of them",
			what, len(r.pub.published()), st.Generation, st.Findings.Errors, tables, generation, errs)
	}
	if tables == 0 {
		return
	}
	last := r.pub.published()[tables-1]
	k := flow.MakeKey(flow.TCP, netip.MustParseAddrPort("10.0.0.1:1024"), netip.MustParseAddrPort("10.0.0.2:80"))
	if got := last.Lookup(k).Verdict; got != verdict {
		r.t.Errorf("%s: the last table says %s, want %s", what, got, verdict)
	}
	if last.Generation() < generation {
		r.t.Errorf("%s: table of generation %d", what, last.Generation())
	}
}

func TestPublishesChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, deny, nil)
		select {
		case <-r.ctl.Ready():
		default:
			t.Error("a table is published, but not ready")
		}
		r.want("first", 1, classifier.Drop, 1, 0)
		r.set(deny + allow)
		r.want("allowed", 2, classifier.Allow, 2, 0)
		st := r.ctl.Status()
		if st.Objects != 2 || st.Rules != 1 || st.Isolations != 2 || st.Pods != 2 || len(st.PolicyHash) != 16 ||
			!st.LastSuccess.Equal(st.LastAttempt) || st.LastSuccess.IsZero() {
			t.Errorf("status: %+v", st)
		}
		r.set("")
		r.want("none", 3, classifier.Allow, 3, 0)
		r.change(func() { r.src.inv = fixture.MustWorld(t, world+"\npod x/c").Inventory })
		r.want("a new pod", 4, classifier.Allow, 4, 0)
		if h := r.ctl.Status().PolicyHash; h == st.PolicyHash {
			t.Error("another policy, the same hash")
		}
	})
}

// Pods of other nodes that are not known yet are in doubt where Node objects have no pod
// CIDRs, too, and are no pods of this node that are not known.
func TestPodCIDRs(t *testing.T) {
	const denyPods = `
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: deny}
spec:
  tier: Admin
  priority: 1
  subject: {pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: b}}}}
  ingress:
  - {action: Deny, from: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: c}}}}]}
---
`
	synctest.Test(t, func(t *testing.T) {
		for _, networks := range [][]netip.Prefix{nil, {netip.MustParsePrefix("203.0.113.0/24")}} {
			inv := fixture.MustWorld(t, "namespace x\nnode n1 192.0.2.1\npod x/a node=n1\npod x/b app=b node=n1").Inventory
			r := start(t, denyPods, func(c *controller.Config) { c.Source.(*source).inv, c.Node, c.PodCIDRs = inv, "n1", networks })
			tables := r.pub.published()
			if len(tables) != 1 {
				t.Fatalf("%d tables: %s", len(tables), r.log)
			}
			to := r.src.inv.Pods[slices.IndexFunc(r.src.inv.Pods, func(p inventory.Pod) bool { return p.Name == "b" })].IPs[0]
			k := flow.MakeKey(flow.TCP, netip.MustParseAddrPort("203.0.113.9:1"), netip.AddrPortFrom(to, 80))
			want := classifier.Allow
			if len(networks) > 0 {
				want = classifier.Drop
			}
			if d := tables[0].Lookup(k); d.Verdict != want {
				t.Errorf("networks %v: %v, want %v", networks, d.Verdict, want)
			}
			if src, dst := tables[0].UnknownLocal(k); src || dst {
				t.Errorf("networks %v: an end is taken for a pod of this node", networks)
			}
		}
	})
}

func TestSameInputPublishesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, deny+allow, nil)
		hash := r.ctl.Status().PolicyHash
		for i := range 10 {
			objs := fixture.MustObjects(t, deny+allow)
			rand.Shuffle(2, func(i, j int) { objs[i], objs[j] = objs[j], objs[i] })
			r.change(func() { r.src.objs, r.src.inv = objs, fixture.MustWorld(t, world).Inventory })
			r.want("again", 1, classifier.Allow, 1, 0)
			if r.src.loaded() != i+2 {
				t.Fatalf("%d loads after %d changes", r.src.loaded(), i+1)
			}
		}
		if got := r.ctl.Status().PolicyHash; got != hash {
			t.Errorf("hash went from %s to %s", hash, got)
		}
	})
}

func TestBadInputKeepsTheLastGoodTable(t *testing.T) {
	boom := errors.New("boom")
	var fail atomic.Bool
	compile := func(s rule.Set, w *rule.World, o classifier.Options) (*classifier.Table, *classifier.Report, error) {
		if fail.Load() {
			return nil, nil, boom
		}
		return classifier.Compile(s, w, o)
	}
	for name, bad := range map[string]func(*rig) func(){
		"refused object": func(r *rig) func() { o := fixture.MustObjects(r.t, allow+broken); return func() { r.src.objs = o } },
		"unknown kind": func(r *rig) func() {
			return func() { r.src.objs = []*api.Object{{Kind: api.Kind{Kind: "Wall"}}} }
		},
		"source error": func(r *rig) func() {
			return func() {
				r.src.objs, r.src.inv = nil, nil
				r.src.found.Errors = []diag.Diagnostic{{Message: "no such directory"}}
			}
		},
		"node gone":     func(r *rig) func() { return func() { r.src.inv = &inventory.Snapshot{} } },
		"compile error": func(r *rig) func() { return func() { r.src.objs = nil; fail.Store(true) } },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fail.Store(false)
				r := start(t, deny, func(c *controller.Config) { c.Compile = compile; c.Node = "" })
				if name == "node gone" {
					r = start(t, deny, func(c *controller.Config) { c.Node = "n1" })
				}
				r.want("before", 1, map[bool]classifier.Verdict{true: classifier.Allow, false: classifier.Drop}[name == "node gone"], 1, 0)
				good := r.ctl.Status()
				good1, goodInv := r.src.objs, r.src.inv
				sleep(time.Minute)
				r.change(bad(r))
				st := r.ctl.Status()
				if len(r.pub.published()) != 1 || len(st.Findings.Errors) != 1 {
					t.Fatalf("%d tables, %v", len(r.pub.published()), st.Findings)
				}
				if st.Generation != 1 || st.PolicyHash != good.PolicyHash || !st.LastSuccess.Equal(good.LastSuccess) ||
					!st.LastAttempt.After(good.LastAttempt) {
					t.Errorf("before %+v, after %+v", good, st)
				}
				log := r.log.String()
				if !strings.Contains(log, "last good table stays in force") {
					t.Error(log)
				}
				r.ctl.Reload()
				sleep(time.Minute)
				if r.log.String() != log {
					t.Errorf("the same error is logged twice:\n%s", r.log)
				}
				fail.Store(false)
				// The way back: the old input is in force already, a new one is published.
				r.change(func() { r.src.objs, r.src.inv, r.src.found = good1, goodInv, diag.List{} })
				if st := r.ctl.Status(); len(r.pub.published()) != 1 || len(st.Findings.Errors) != 0 || !st.LastSuccess.After(good.LastSuccess) {
					t.Errorf("after the fix: %d tables, %+v", len(r.pub.published()), st)
				}
				r.set("")
				r.want("after", 2, classifier.Allow, 2, 0)
			})
		})
	}
}

// Nothing is published before an input without errors.
func TestBadFromTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, broken, nil)
		r.want("broken", 0, 0, 0, 1)
		select {
		case <-r.ctl.Ready():
			t.Error("ready without a table")
		default:
		}
		r.set(deny)
		r.want("fixed", 1, classifier.Drop, 1, 0)
		<-r.ctl.Ready()
	})
}

func TestPublishErrorIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, deny, nil)
		r.pub.fail(errors.New("device busy"))
		r.set(deny + allow)
		r.want("refused", 2, classifier.Allow, 1, 1)
		sleep(2*controller.DefaultRetryInterval + controller.DefaultRetryInterval/2)
		r.want("retried", 4, classifier.Allow, 1, 1)
		r.pub.fail(nil)
		sleep(controller.DefaultRetryInterval)
		r.want("taken", 5, classifier.Allow, 5, 0)
		sleep(time.Hour)
		r.want("no more retries", 5, classifier.Allow, 5, 0)
		seen := map[uint64]bool{}
		for _, table := range r.pub.published() {
			if seen[table.Generation()] {
				t.Errorf("two tables of generation %d", table.Generation())
			}
			seen[table.Generation()] = true
		}
		// An old input is published too when nobody knows what is in force.
		r.pub.fail(errors.New("device busy"))
		r.set(deny)
		r.pub.fail(nil)
		r.set(deny + allow)
		r.want("the input before the failure", 7, classifier.Allow, 7, 0)
	})
}

func TestStormCoalesces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, deny, nil)
		sleep(time.Second)
		// A change every 100 µs for a second; the last one allows.
		const storm = 10_000
		objs := fixture.MustObjects(t, deny+allow)
		var starts []time.Time
		r.src.mu.Lock()
		r.src.onLoad = func() { starts = append(starts, time.Now()) }
		r.src.mu.Unlock()
		began := time.Now()
		for i := range storm {
			if i == storm-1 {
				r.src.mu.Lock()
				r.src.objs = objs
				r.src.mu.Unlock()
			}
			select {
			case r.src.changes <- struct{}{}:
			default:
			}
			time.Sleep(100 * time.Microsecond)
		}
		sleep(controller.DefaultMinInterval)
		if n := len(starts); n < 90 || n > 102 {
			t.Errorf("%d loads in one second, want about one each %s", n, controller.DefaultMinInterval)
		}
		if d := starts[0].Sub(began); d > 0 {
			t.Errorf("the first change after a quiet time waited %s", d)
		}
		for i := 1; i < len(starts); i++ {
			if d := starts[i].Sub(starts[i-1]); d < controller.DefaultMinInterval {
				t.Fatalf("loads %s apart", d)
			}
		}
		r.want("after the storm", 2, classifier.Allow, 2, 0)
	})
}

// A change that arrives while the source is read is not lost.
func TestChangeDuringLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, deny, nil)
		r.change(func() {
			r.src.onLoad = func() {
				r.src.onLoad = nil
				r.src.changes <- struct{}{}
			}
		})
		sleep(time.Second)
		if r.src.loaded() != 3 {
			t.Errorf("%d loads, want the first, the change, and the change during that", r.src.loaded())
		}
	})
}

func TestReloadAndEndOfChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, deny, nil)
		close(r.src.changes)
		sleep(time.Hour)
		if r.src.loaded() != 1 {
			t.Fatalf("%d loads after the end of changes", r.src.loaded())
		}
		objs := fixture.MustObjects(t, deny+allow)
		r.src.mu.Lock()
		r.src.objs = objs
		r.src.mu.Unlock()
		for range 5 {
			r.ctl.Reload()
		}
		sleep(time.Second)
		r.want("reload", 2, classifier.Allow, 2, 0)
	})
}

func TestNewRefuses(t *testing.T) {
	for name, cfg := range map[string]controller.Config{
		"nothing":           {},
		"no publisher":      {Source: &source{}},
		"no source":         {Publisher: &publisher{}},
		"negative interval": {Source: &source{}, Publisher: &publisher{}, MinInterval: -1},
	} {
		if _, err := controller.New(cfg); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
