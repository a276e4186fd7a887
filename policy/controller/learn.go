package controller

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/inventory"
)

// Learner knows the addresses behind DNS names. Its methods are called by the
// goroutine in Run.
type Learner interface {
	// Fill puts what is known into those of the sets that are learnt
	// (inventory.LearntSet), sorted and without duplicates; the map's keys are all
	// sets the rules ask for. It returns a number that identifies the state of
	// knowledge and never decreases.
	Fill(sets map[string][]netip.Prefix) uint64
	// InForce tells that what Fill returned this number with is in force.
	InForce(uint64)
	// News delivers a value when Fill may have something new. One value may stand
	// for any number of changes.
	News() <-chan struct{}
}

// learn fills the learnt sets of a world.
func (c *Controller) learn(world *rule.World) uint64 {
	var cluster map[netip.Addr]struct{} // made when first asked for
	return c.learnSets(world.Sets, func(a netip.Addr) bool {
		if cluster == nil {
			cluster = clusterAddrs(world)
		}
		_, own := cluster[a]
		return own
	})
}

// learnSets fills those of the sets that are learnt. own tells addresses of pods
// and nodes from others.
func (c *Controller) learnSets(sets map[string][]netip.Prefix, own func(netip.Addr) bool) uint64 {
	if c.cfg.Learner == nil {
		return 0
	}
	mark := c.cfg.Learner.Fill(sets)
	for name, prefixes := range sets {
		if inventory.WithoutCluster(name) && len(prefixes) > 0 {
			sets[name] = slices.DeleteFunc(prefixes, func(p netip.Prefix) bool { return own(p.Addr()) })
		}
	}
	return mark
}

// withSets returns a world with other addresses in some of its sets.
func withSets(w *rule.World, sets map[string][]netip.Prefix) *rule.World {
	out := *w
	out.Sets = maps.Clone(w.Sets)
	maps.Copy(out.Sets, sets)
	return &out
}

// clusterAddrs returns the addresses of pods and nodes.
func clusterAddrs(world *rule.World) map[netip.Addr]struct{} {
	m := make(map[netip.Addr]struct{}, len(world.Endpoints)*2)
	for i := range world.Endpoints {
		for _, a := range world.Endpoints[i].Addrs {
			m[a] = struct{}{}
		}
	}
	for i := range world.Nodes {
		for _, a := range world.Nodes[i].Addrs {
			m[a] = struct{}{}
		}
	}
	return m
}

// learnt tells the learner what is in force.
func (c *Controller) learnt(mark uint64) {
	if c.cfg.Learner != nil {
		c.cfg.Learner.InForce(mark)
	}
}

// news is the learner's channel, nil without one.
func (c *Controller) news() <-chan struct{} {
	if c.cfg.Learner == nil {
		return nil
	}
	return c.cfg.Learner.News()
}

// longestPause bounds the rest between two refills.
const longestPause = 20 * time.Millisecond

// pace lets refills take no more than half of the time: with many answers at once
// each brings many of them into force.
func (c *Controller) pace() (began time.Time, done func()) {
	time.Sleep(min(c.refillTook, longestPause) - time.Since(c.refilled))
	began = time.Now()
	return began, func() {
		c.refilled = time.Now()
		c.refillTook = c.refilled.Sub(began)
	}
}

// refill brings the learnt sets up to date without looking at the source: whoever
// got the answer with the new address is waiting to use it.
func (c *Controller) refill() {
	if !c.known {
		return // the update that is due fills them
	}
	began, done := c.pace()
	defer done()
	world := *c.world
	world.Sets = maps.Clone(c.world.Sets)
	for name := range world.Sets {
		if inventory.LearntSet(name) {
			world.Sets[name] = nil
		}
	}
	mark := c.learnSets(world.Sets, c.table.Knows)
	changed := map[string][]netip.Prefix{}
	for name, prefixes := range world.Sets {
		if !slices.Equal(prefixes, c.world.Sets[name]) {
			changed[name] = prefixes
		}
	}
	if len(changed) == 0 {
		c.learnt(mark)
		return
	}
	table, report, err := c.compileSets(&world, changed)
	if err != nil {
		c.cfg.Logger.Error("what was learnt from DNS cannot be compiled", "error", err)
		c.Reload()
		return
	}
	c.generation++
	if err := c.cfg.Publisher.Publish(table, report); err != nil {
		c.cfg.Logger.Warn("what was learnt from DNS cannot be put in force, trying again", "error", err)
		c.forget()
		c.Reload()
		return
	}
	c.world, c.table = &world, table
	c.learnt(mark)
	c.mu.Lock()
	c.status.Generation = c.generation
	c.mu.Unlock()
	c.cfg.Logger.Debug("names in force", "generation", c.generation, "sets", len(changed), "elapsed", time.Since(began))
}

func (c *Controller) compileSets(world *rule.World, changed map[string][]netip.Prefix) (*classifier.Table, *classifier.Report, error) {
	if c.compiler != nil {
		return c.compiler.Refill(changed, c.generation+1)
	}
	return c.cfg.Compile(*c.set, world, classifier.Options{Generation: c.generation + 1})
}
