package controller

import (
	"net/netip"
	"reflect"
	"slices"
	"time"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/assess"
	"github.com/tierwall/tierwall/policy/diag"
	"github.com/tierwall/tierwall/policy/inventory"
	"github.com/tierwall/tierwall/policy/lower"
)

// maxStep is how many pods, or objects, a step takes on: with more of them
// looking at everything costs no more.
const maxStep = 4096

// step puts into force what has changed since what is in force, at the cost of
// that: pods, and objects that stand alone (lower.StandsAlone). It has no notion of
// its own of what anything means; where it is not sure to come to what a look at
// everything comes to, done is false and nothing has happened. Like update it
// returns an error when trying again may help.
func (c *Controller) step(objs []*api.Object, view *inventory.View, findings diag.List) (done bool, err error) {
	if c.compiler == nil || !c.cfg.Isolate || !c.known || c.last.view != c.view || len(findings.Errors) > 0 || len(c.last.built.Findings.Errors) > 0 {
		return false, nil
	}
	pods, ok := view.Since(c.view)
	if !ok || len(pods) > maxStep || c.last.hosts && slices.ContainsFunc(pods, changesHosts) {
		return false, nil
	}
	edits, ok := c.edits(objs)
	if !ok {
		return false, nil
	}
	d := classifier.Delta{Generation: c.generation + 1}
	for i := range edits {
		e := &edits[i]
		if ok = c.alone(e, view); !ok {
			return false, nil
		}
		if !e.same {
			d.Policies = append(d.Policies, classifier.PolicyChange{Ref: classifier.PolicyRef(e.ref), Set: e.now})
		}
	}
	for _, p := range pods {
		if p.New != nil {
			if e, ok := view.Endpoint(p.New); ok {
				d.Pods = append(d.Pods, e)
				continue
			}
		}
		if p.Old != nil && len(p.Old.IPs) > 0 {
			d.DropPods = append(d.DropPods, classifier.PodName{Namespace: p.Old.Namespace, Name: p.Old.Name})
		}
	}
	mark, learnt, ok := c.relearn(pods, &d)
	if !ok {
		return false, nil
	}
	if len(d.Policies)+len(d.Pods)+len(d.DropPods)+len(d.Sets) > 0 {
		began := time.Now()
		table, report, err := c.compiler.Update(&d)
		if err != nil {
			return false, nil // a look at everything tells why
		}
		compiled := time.Since(began)
		c.generation++
		if err := c.cfg.Publisher.Publish(table, report); err != nil {
			c.forget()
			findings.Errors = append(findings.Errors, unpublished(err))
			c.failed(findings)
			c.after(Attempt{})
			return true, err
		}
		c.stepped(table, &d, edits)
		c.taken(objs, edits)
		c.inForce(report.Rules, report.Isolations, report.Endpoints, len(findings.Warnings)+len(c.last.built.Findings.Warnings), compiled)
	} else {
		c.taken(objs, edits)
	}
	c.view, c.last.view = view, view
	if learnt {
		c.learnt(mark)
	}
	findings.Add(c.last.built.Findings)
	c.succeeded(findings)
	c.after(Attempt{InForce: true, Objects: c.input, World: view})
	return true, nil
}

// changesHosts reports whether addresses of pods on the host network are others.
func changesHosts(p inventory.PodChange) bool {
	addrs := func(p *inventory.Pod) []netip.Addr {
		if p == nil || !p.HostNetwork {
			return nil
		}
		return p.IPs
	}
	return !slices.Equal(addrs(p.Old), addrs(p.New))
}

// edit is one object that has come, changed or gone.
type edit struct {
	ref      api.Ref
	old, new *api.Object // nil where there is none
	was, now rule.Set
	found    diag.List // of new: no finding
	same     bool      // was and now
}

// edits returns which objects are others than in the last attempt. ok is false
// where that cannot be told, or is too much.
func (c *Controller) edits(objs []*api.Object) (edits []edit, ok bool) {
	was, now := c.last.objects, objs
	if len(was) == len(now) && (len(was) == 0 || &was[0] == &now[0]) {
		return nil, true
	}
	for len(was) > 0 && len(now) > 0 && was[0] == now[0] {
		was, now = was[1:], now[1:]
	}
	for len(was) > 0 && len(now) > 0 && was[len(was)-1] == now[len(now)-1] {
		was, now = was[:len(was)-1], now[:len(now)-1]
	}
	old := make(map[api.Ref]*api.Object, len(was))
	for _, o := range was {
		old[o.Ref()] = o
	}
	if len(old) < len(was) {
		return nil, false // two of one name
	}
	seen := make(map[api.Ref]struct{}, len(now))
	for _, o := range now {
		ref := o.Ref()
		if _, twice := seen[ref]; twice {
			return nil, false
		}
		seen[ref] = struct{}{}
		if before := old[ref]; before != o {
			edits = append(edits, edit{ref: ref, old: before, new: o})
		}
		delete(old, ref)
	}
	for ref, o := range old {
		edits = append(edits, edit{ref: ref, old: o})
	}
	return edits, len(edits) <= maxStep
}

// alone lowers an edited object, if it stands alone, nothing was or is to be said
// about it, and it is in force as the source had it. Rules that use address sets
// are left to a look at everything: that finds out which sets are in use.
func (c *Controller) alone(e *edit, view *inventory.View) bool {
	if c.isolation.good[e.ref] != e.old || slices.ContainsFunc(c.last.built.Refused, func(r assess.Refused) bool { return r.Object.Ref() == e.ref }) {
		return false
	}
	silent := func(l diag.List) bool { return len(l.Errors)+len(l.Warnings) == 0 }
	if e.old != nil {
		if _, found := lower.Alone(e.old, view); !silent(found) {
			return false
		}
	}
	if e.new != nil {
		if e.now, e.found = lower.Alone(e.new, view); !silent(e.found) {
			return false
		}
	}
	e.was = c.compiler.Policy(classifier.PolicyRef(e.ref))
	e.same = reflect.DeepEqual(e.was, e.now)
	return len(inventory.SetNames(&e.was))+len(inventory.SetNames(&e.now)) == 0
}

// relearn adds to d the learnt sets that leave out addresses of the cluster, as
// far as pods that come and go make them others. learnt is set if it has looked.
// ok is false where it cannot tell.
func (c *Controller) relearn(pods []inventory.PodChange, d *classifier.Delta) (mark uint64, learnt, ok bool) {
	if c.cfg.Learner == nil || len(pods) == 0 {
		return 0, false, true
	}
	sets := map[string][]netip.Prefix{}
	for name := range c.world.Sets {
		if inventory.LearntSet(name) {
			sets[name] = nil
			learnt = learnt || inventory.WithoutCluster(name)
		}
	}
	if !learnt {
		return 0, false, true
	}
	here := map[netip.Addr]bool{} // of those that changed: whether a pod has it for sure
	for _, p := range pods {
		if p.Old != nil {
			for _, a := range p.Old.IPs {
				here[a] = here[a] || false
			}
		}
		if p.New != nil {
			for _, a := range p.New.IPs {
				here[a] = true
			}
		}
	}
	ok = true
	mark = c.learnSets(sets, func(a netip.Addr) bool {
		has, changed := here[a]
		if !changed {
			return c.table.Knows(a)
		}
		ok = ok && has // somebody else may have it, or not
		return has
	})
	for name, prefixes := range sets {
		if !slices.Equal(prefixes, c.world.Sets[name]) {
			if d.Sets == nil {
				d.Sets = map[string][]netip.Prefix{}
			}
			d.Sets[name] = prefixes
		}
	}
	return mark, true, ok
}

// stepped notes that a table made by d is in force.
func (c *Controller) stepped(table *classifier.Table, d *classifier.Delta, edits []edit) {
	c.table = table
	if len(d.Policies) > 0 {
		c.set = nil
		for i := range edits {
			c.sum.replace(&edits[i].was, &edits[i].now)
		}
	}
	if len(d.Sets) > 0 {
		c.world = withSets(c.world, d.Sets)
	}
}

// taken notes that objects, which differ by edits from those of the last attempt,
// are in force.
func (c *Controller) taken(objs []*api.Object, edits []edit) {
	c.last.objects = objs
	if len(edits) == 0 {
		return
	}
	for i := range edits {
		e := &edits[i]
		delete(c.isolation.judged.now, e.old)
		delete(c.isolation.good, e.ref)
		if e.new != nil {
			c.isolation.judged.now[e.new] = e.found
			c.isolation.good[e.ref] = e.new
			c.last.hosts = c.last.hosts || lower.DependsOnHosts([]*api.Object{e.new})
		}
	}
	c.last.built.Objects = instead(objs, c.last.built.Refused)
	c.last.built.Set, c.last.whole = rule.Set{}, false // of other objects
	c.input = c.last.built.Objects
}

// instead returns objects with what is in force in the place of those refused.
func instead(objs []*api.Object, refused []assess.Refused) []*api.Object {
	if len(refused) == 0 {
		return objs
	}
	by := make(map[*api.Object]*api.Object, len(refused))
	for i := range refused {
		by[refused[i].Object] = refused[i].InForce
	}
	out := make([]*api.Object, 0, len(objs))
	for _, o := range objs {
		older, is := by[o]
		if is {
			o = older
		}
		if o != nil {
			out = append(out, o)
		}
	}
	return out
}
