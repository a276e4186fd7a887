package controller

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/assess"
	"github.com/tierwall/tierwall/policy/diag"
	"github.com/tierwall/tierwall/policy/inventory"
	"github.com/tierwall/tierwall/policy/lower"
)

// Source has policies and the world they are about.
type Source interface {
	// Load returns everything there is now. With error findings the rest is not
	// used. It returns early when ctx ends, with whatever.
	Load(ctx context.Context) ([]*api.Object, *inventory.Snapshot, diag.List)
	// Changes delivers a value when Load may have something new. One value may
	// stand for any number of changes; values that change nothing are harmless. A
	// closed or nil channel means there will be none.
	Changes() <-chan struct{}
}

// Follower is a Source that can tell what changed.
type Follower interface {
	Source
	// Follow is Load, with the world as a view: what did not change is the same
	// memory as in the call before. It is called instead of Load.
	Follow(ctx context.Context) ([]*api.Object, *inventory.View, diag.List)
}

// Publisher puts a table into force. When it returns an error the table may be in
// force or not; it will be offered again, under a new generation.
//
// The report tells how the table differs from the one compiled before it, which
// need not be the one in force: see classifier.Report.Between.
type Publisher interface {
	Publish(*classifier.Table, *classifier.Report) error
}

// Defaults of Config.
const (
	DefaultMinInterval   = 10 * time.Millisecond
	DefaultRetryInterval = time.Second
)

// Config says what a Controller works with. Source and Publisher are required.
type Config struct {
	Source    Source
	Publisher Publisher
	// Node is the node policed; "" polices every pod.
	Node string
	// PodCIDRs are networks that pods of any node get addresses from, beside those of
	// Node objects: an address in them that no known pod has is unknown, not outside the
	// cluster (classifier/rule.Node).
	PodCIDRs []netip.Prefix
	// MinInterval is the least time between the starts of two updates. 0 means
	// DefaultMinInterval.
	MinInterval time.Duration
	// RetryInterval is the time after which a failed Publish is tried again. 0
	// means DefaultRetryInterval.
	RetryInterval time.Duration
	// Isolate keeps errors to the objects they are about: such an object is
	// refused, the version of it that is in force stays, and everything else
	// applies. Without it any error keeps all of the input from applying.
	Isolate bool
	// After, if not nil, is called after every attempt, on the goroutine in Run.
	After func(Attempt)
	// Logger receives changes of state. nil means slog.Default.
	Logger *slog.Logger
	// Lower tunes the translation of policies.
	Lower lower.Options
	// Compile builds tables. nil means a classifier.Compiler of its own, which
	// builds only what changed since the table before.
	Compile func(rule.Set, *rule.World, classifier.Options) (*classifier.Table, *classifier.Report, error)
	// Learner fills address sets from DNS answers. nil leaves them empty.
	Learner Learner
}

// Attempt is how one attempt to put the source's input into force ended.
type Attempt struct {
	// InForce is set when the input of the last Load is in force, but for objects
	// that were refused one by one.
	InForce bool
	// Objects and World are what the table in force was made of, if InForce. Read
	// only.
	Objects []*api.Object
	World   *inventory.View
}

// Status is what a controller has reached.
type Status struct {
	// Generation of the table in force; 0 before the first.
	Generation uint64
	// PolicyHash identifies the rules in force: equal on all nodes that enforce
	// the same policies. "" before the first table.
	PolicyHash string
	// Objects, Rules, Isolations and Pods count what is in force.
	Objects, Rules, Isolations, Pods int
	// LastAttempt is when the last update ended, LastSuccess when one last ended
	// with its input in force. Zero when never.
	LastAttempt, LastSuccess time.Time
	// Findings are those of the last attempt. With errors, the table in force is
	// an older one. Read only.
	Findings diag.List
	// Refused are the objects the last attempt refused, with Config.Isolate. Their
	// errors are not among Findings. Read only.
	Refused []assess.Refused
}

// Controller runs the path from source to publisher. Create it with New.
type Controller struct {
	cfg    Config
	reload chan struct{} // capacity 1
	ready  chan struct{} // closed with the first table

	// Owned by the goroutine in Run.
	generation uint64               // last one given to a table
	compiler   *classifier.Compiler // nil with Config.Compile
	isolation  isolation
	last       lastBuild
	// What is in force, if known: else what comes next is published, even the same.
	known bool
	table *classifier.Table
	input []*api.Object
	view  *inventory.View
	set   *rule.Set // nil after steps that changed it: then table has it
	sum   digest    // of set
	world *rule.World
	slim  bool // world is without its pods, which view has

	refilled   time.Time // when the last refill ended
	refillTook time.Duration

	mu     sync.Mutex
	status Status
}

// New checks the configuration and returns a controller that does nothing yet.
func New(cfg Config) (*Controller, error) {
	if cfg.Source == nil || cfg.Publisher == nil {
		return nil, errors.New("controller: Source and Publisher are required")
	}
	if cfg.MinInterval < 0 || cfg.RetryInterval < 0 {
		return nil, errors.New("controller: negative interval")
	}
	if cfg.MinInterval == 0 {
		cfg.MinInterval = DefaultMinInterval
	}
	if cfg.RetryInterval == 0 {
		cfg.RetryInterval = DefaultRetryInterval
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	c := &Controller{reload: make(chan struct{}, 1), ready: make(chan struct{})}
	if cfg.Compile == nil {
		c.compiler = new(classifier.Compiler)
		cfg.Compile = c.compiler.Compile
	}
	c.cfg = cfg
	return c, nil
}

// Reload asks for an update as a change of the source does. It never blocks.
func (c *Controller) Reload() {
	select {
	case c.reload <- struct{}{}:
	default: // one is waiting already
	}
}

// Ready is closed when the first table has been published.
func (c *Controller) Ready() <-chan struct{} { return c.ready }

// Status returns the state at this moment.
func (c *Controller) Status() Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.status
}

// Run updates once, then after every change, until ctx ends. Call it once.
func (c *Controller) Run(ctx context.Context) {
	changes := c.cfg.Source.Changes()
	for {
		began := time.Now()
		var retry <-chan time.Time
		if err := c.update(ctx); err != nil {
			retry = time.After(c.cfg.RetryInterval)
		}
		if !c.wait(ctx, &changes, retry) {
			return
		}
		c.coalesce(ctx, &changes, c.cfg.MinInterval-time.Since(began))
	}
}

// wait returns true when there is a reason for an update, false when ctx ended.
// A closed channel becomes nil, which never has news.
func (c *Controller) wait(ctx context.Context, changes *<-chan struct{}, retry <-chan time.Time) bool {
	for {
		select {
		case <-ctx.Done():
			return false
		case _, ok := <-*changes:
			if ok {
				return true
			}
			*changes = nil
		case <-c.reload:
			return true
		case <-c.news():
			c.refill()
		case <-retry:
			return true
		}
	}
}

// coalesce takes in the changes that arrive for a while: the update that follows
// covers them.
func (c *Controller) coalesce(ctx context.Context, changes *<-chan struct{}, while time.Duration) {
	if while <= 0 {
		return
	}
	over := time.After(while)
	for {
		select {
		case <-ctx.Done():
			return
		case <-over:
			return
		case <-c.reload:
		case <-c.news():
			c.refill()
		case _, ok := <-*changes:
			if !ok {
				*changes = nil
			}
		}
	}
}

// update takes one look at the source and puts it in force if it is right and
// new. The error is non-nil when trying again may help without a change.
func (c *Controller) update(ctx context.Context) error {
	objs, view, findings := c.load(ctx)
	if ctx.Err() != nil {
		return nil // what was loaded may be cut short
	}
	if done, err := c.step(objs, view, findings); done {
		return err
	}
	b := assess.Result{Objects: objs}
	var snap *inventory.Snapshot
	if len(findings.Errors) == 0 {
		snap = view.Snapshot()
		switch {
		case !c.cfg.Isolate:
			b.Set, b.Findings = c.cfg.Lower.Build(objs, snap)
		case c.last.stands(objs, view):
			b = c.last.built
		default:
			b = c.isolation.build(c.cfg.Lower, objs, snap)
			c.last = lastBuild{objects: objs, built: b, whole: true}
			if len(b.Findings.Errors) == 0 {
				c.last.hosts = lower.DependsOnHosts(b.Objects)
			}
		}
		c.last.view = view
	}
	findings.Add(b.Findings)
	c.refused(b.Refused)
	if len(findings.Errors) > 0 {
		var err error
		if c.cfg.Isolate && len(b.Findings.Errors) > 0 {
			err = c.follow(view, snap)
		}
		c.failed(findings)
		c.after(Attempt{})
		return err
	}
	problem, err := c.install(b.Set, b.Objects, view, snap, len(findings.Warnings))
	if problem != nil {
		findings.Errors = append(findings.Errors, *problem)
		c.failed(findings)
		c.after(Attempt{})
		return err
	}
	if c.cfg.Isolate {
		c.isolation.accept(b.Objects)
	}
	c.succeeded(findings)
	c.after(Attempt{InForce: true, Objects: b.Objects, World: view})
	return nil
}

// load asks the source.
func (c *Controller) load(ctx context.Context) ([]*api.Object, *inventory.View, diag.List) {
	if f, ok := c.cfg.Source.(Follower); ok {
		return f.Follow(ctx)
	}
	objs, snap, findings := c.cfg.Source.Load(ctx)
	if snap == nil {
		snap = &inventory.Snapshot{} // with errors there need not be one
	}
	return objs, inventory.ViewOf(snap), findings
}

func (c *Controller) after(a Attempt) {
	if c.cfg.After != nil {
		c.cfg.After(a)
	}
}

// follow takes the policies in force to another world: while the new ones are
// wrong together, pods that come are policed all the same.
func (c *Controller) follow(view *inventory.View, snap *inventory.Snapshot) error {
	if c.input == nil {
		return nil
	}
	opts := c.cfg.Lower
	opts.Validate = c.isolation.judged.validate
	set, found := opts.Build(c.input, snap)
	if len(found.Errors) > 0 {
		return nil // they need the old world: the last table stays as it is
	}
	_, err := c.install(set, c.input, view, snap, len(found.Warnings))
	return err
}

// install puts rules into force in a world unless they are. snap is all of view. A
// problem says why it could not; then err is non-nil when trying again may help.
func (c *Controller) install(set rule.Set, objs []*api.Object, view *inventory.View, snap *inventory.Snapshot, warnings int) (*diag.Diagnostic, error) {
	world, err := snap.WorldOf(c.cfg.Node)
	if err != nil {
		return &diag.Diagnostic{
			Message: err.Error(), Hint: "add the Node object, or correct the node's name in the configuration",
		}, nil
	}
	for i := range world.Nodes {
		if n := &world.Nodes[i]; n.Name == c.cfg.Node {
			n.PodCIDRs = slices.Concat(n.PodCIDRs, c.cfg.PodCIDRs)
		}
	}
	snap.FillSets(world, &set)
	mark := c.learn(world)
	same := c.known && c.sameSet(&set)
	if same && c.sameWorld(world, view) {
		c.input, c.view = objs, view
		c.learnt(mark)
		return nil, nil
	}
	began := time.Now()
	table, report, err := c.cfg.Compile(set, world, classifier.Options{Generation: c.generation + 1})
	if err != nil {
		return &diag.Diagnostic{Message: "the policy cannot be compiled: " + err.Error(), Hint: "the last good policy stays in force; please report this with the policies"}, nil
	}
	compiled := time.Since(began)
	c.generation++
	if err := c.cfg.Publisher.Publish(table, report); err != nil {
		c.forget()
		problem := unpublished(err)
		return &problem, err
	}
	c.known, c.table, c.set, c.input, c.view = true, table, &set, objs, view
	pods := len(world.Endpoints)
	if c.slim = c.compiler != nil && view.Whole() == nil; c.slim {
		lean := *world
		lean.Endpoints = nil
		world = &lean
	}
	c.world = world
	c.learnt(mark)
	if !same { // encoding thousands of rules takes a while: not while others wait
		c.sum = sumOf(&set)
	}
	c.inForce(len(set.Rules), len(set.Isolations), pods, warnings, compiled)
	return nil, nil
}

// forget is called when a table is in force by half, perhaps: the next input must
// be published, even the old one.
func (c *Controller) forget() { c.known, c.set, c.world, c.view = false, nil, nil, nil }

func unpublished(err error) diag.Diagnostic {
	return diag.Diagnostic{Message: "the table cannot be put in force: " + err.Error(), Hint: "it is tried again; see the daemon's log"}
}

// inForce records that a table is in force.
func (c *Controller) inForce(rules, isolations, pods, warnings int, compiled time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := &c.status
	first := s.Generation == 0
	s.Generation, s.PolicyHash = c.generation, c.sum.String()
	s.Objects, s.Rules, s.Isolations, s.Pods = len(c.input), rules, isolations, pods
	if first {
		close(c.ready)
	}
	c.cfg.Logger.Info("policy in force", "generation", c.generation, "hash", s.PolicyHash, "objects", s.Objects,
		"rules", s.Rules, "isolations", s.Isolations, "pods", s.Pods, "warnings", warnings, "compile", compiled)
}

// refused records which objects are refused, and says what is new about it.
func (c *Controller) refused(now []assess.Refused) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := map[*api.Object]bool{}
	for _, r := range c.status.Refused {
		before[r.Object] = true
	}
	c.status.Refused = now
	for _, r := range now {
		if before[r.Object] {
			continue // said before
		}
		for i, d := range r.Errors[:min(maxSaid, len(r.Errors))] {
			c.cfg.Logger.Error("object refused", "object", d.Object.String(), "number", i+1, "path", d.Path, "error", d.Message, "hint", d.Hint,
				"older version in force", r.InForce != nil)
		}
	}
}

// maxSaid is how many errors of one thing are logged.
const maxSaid = 10

// failed records an attempt that left the table as it was.
func (c *Controller) failed(findings diag.List) {
	c.mu.Lock()
	defer c.mu.Unlock()
	news := !reflect.DeepEqual(c.status.Findings, findings)
	c.status.Findings, c.status.LastAttempt = findings, time.Now()
	if !news {
		return // said before
	}
	c.cfg.Logger.Error("policy rejected, last good table stays in force",
		"errors", len(findings.Errors), "warnings", len(findings.Warnings), "generation", c.status.Generation)
	for i, d := range findings.Errors[:min(maxSaid, len(findings.Errors))] {
		c.cfg.Logger.Error("policy error", "number", i+1, "file", d.File, "object", d.Object.String(), "path", d.Path,
			"error", d.Message, "hint", d.Hint)
	}
}

// succeeded records an attempt whose input is in force.
func (c *Controller) succeeded(findings diag.List) {
	c.mu.Lock()
	defer c.mu.Unlock()
	recovered := len(c.status.Findings.Errors) > 0
	c.status.Findings, c.status.LastAttempt = findings, time.Now()
	c.status.LastSuccess = c.status.LastAttempt
	if recovered {
		c.cfg.Logger.Info("policy accepted again", "generation", c.status.Generation)
	}
}
