package dns

import (
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"
)

// Config bounds Names. Zero values mean the defaults.
type Config struct {
	PerSet  int // names a set takes; DefaultPerSet
	Total   int // names in all; DefaultTotal
	PerName int // addresses of a name; DefaultPerName
	// Grace is how long an address stays after its TTL has passed: for the client
	// that connects in the last moment. Negative means none.
	Grace time.Duration
	// Clock takes the place of time.Now in tests.
	Clock func() time.Time
}

// Defaults of Config, and what TTLs count as.
const (
	DefaultPerSet  = 1024
	DefaultTotal   = 10_000
	DefaultPerName = 1024
	DefaultGrace   = 10 * time.Second

	MinTTL = time.Second
	MaxTTL = 24 * time.Hour
)

// maxWaiting bounds who waits for a change that may never come into force.
const maxWaiting = 4096

// againAfter is when an address past its time that a live connection kept is
// looked at again.
const againAfter = time.Minute

// Set is an address set that DNS fills.
type Set struct {
	Name string
	// Match reports whether it wants a name: lower case, without the root's dot.
	Match func(name string) bool
}

// Names knows the addresses behind names, for the sets that want them. Every
// change has a number; see Learn and InForce.
type Names struct {
	cfg  Config
	news chan struct{} // capacity 1

	mu      sync.Mutex
	sets    []Set             // sorted by name
	perSet  map[string]*group // by set: the names in it, PerSet at most
	names   *group            // all of them, Total at most
	changes uint64            // number of the last change
	inForce uint64
	waiting []waiter
	unsaved bool
	evicted uint64
	refused uint64
}

// entry is a name. It is in at least one set, or was loaded and waits for one.
type entry struct {
	name    string
	sets    []string
	addrs   map[netip.Addr]*address
	clients []netip.Addr // who resolved it, manyClients at most; none if it was loaded
}

// manyClients is from how many clients on a name is anybody's.
const manyClients = 4

// sole returns the only client that resolved the name.
func (e *entry) sole() (c netip.Addr, ok bool) {
	if len(e.clients) != 1 {
		return c, false
	}
	return e.clients[0], true
}

// used reports whether a connection went to one of the addresses when Expire looked.
func (e *entry) used() bool {
	for _, a := range e.addrs {
		if a.used {
			return true
		}
	}
	return false
}

type address struct {
	until  time.Time // its TTL has passed
	again  time.Time // not to be looked at before
	change uint64    // the one that brought it
	used   bool      // a connection goes to it, as far as Expire has asked
}

type waiter struct {
	change uint64
	done   chan struct{}
}

// NewNames returns Names without sets and names.
func NewNames(c Config) *Names {
	for _, d := range []struct {
		v *int
		d int
	}{{&c.PerSet, DefaultPerSet}, {&c.Total, DefaultTotal}, {&c.PerName, DefaultPerName}} {
		if *d.v <= 0 {
			*d.v = d.d
		}
	}
	switch {
	case c.Grace == 0:
		c.Grace = DefaultGrace
	case c.Grace < 0:
		c.Grace = 0
	}
	if c.Clock == nil {
		c.Clock = time.Now
	}
	return &Names{cfg: c, news: make(chan struct{}, 1), names: newGroup(c.Total), perSet: map[string]*group{}}
}

// Watch replaces the sets. What is known already goes into those that want it.
// Names no set wants any more stay until their time is over: a set may come back.
func (n *Names) Watch(sets []Set) {
	sets = slices.Clone(sets)
	slices.SortFunc(sets, func(a, b Set) int { return strings.Compare(a.Name, b.Name) })
	n.mu.Lock()
	defer n.mu.Unlock()
	if slices.EqualFunc(sets, n.sets, func(a, b Set) bool { return a.Name == b.Name }) {
		return
	}
	n.sets, n.perSet = sets, make(map[string]*group, len(sets))
	for _, s := range sets {
		n.perSet[s.Name] = newGroup(n.cfg.PerSet)
	}
	for _, e := range n.names.Values() {
		e.sets = nil
		n.join(e)
	}
	n.changed()
}

// Wanted reports whether there are sets.
func (n *Names) Wanted() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.sets) > 0
}

// Learn takes in the addresses that client resolved a name to. It returns nil when all
// of them are in force, or nobody wants the name, or there is no room for it, or too
// many wait already; else a channel that is closed when they are.
func (n *Names) Learn(client netip.Addr, name string, records []record) <-chan struct{} {
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	n.mu.Lock()
	defer n.mu.Unlock()
	e, _ := n.names.Get(name)
	if e == nil || len(e.sets) == 0 {
		if len(records) == 0 || !slices.ContainsFunc(n.sets, func(s Set) bool { return s.Match(name) }) {
			return nil
		}
		if e == nil {
			e = &entry{name: name, addrs: map[netip.Addr]*address{}, clients: []netip.Addr{client}}
			if !n.add(e) {
				return nil
			}
		}
		n.join(e)
		if len(e.sets) == 0 {
			n.forget(e)
			return nil
		}
	}
	n.askedBy(e, client)
	for _, s := range e.sets {
		n.perSet[s].Get(name)
	}
	now := n.cfg.Clock()
	var need uint64
	added := false
	for _, r := range records {
		until := now.Add(min(max(r.ttl, MinTTL), MaxTTL))
		a := e.addrs[r.addr]
		if a == nil {
			if len(e.addrs) >= n.cfg.PerName {
				n.evictAddr(e)
			}
			if !added {
				n.changed()
				added = true
			}
			a = &address{change: n.changes}
			e.addrs[r.addr] = a
		}
		if until.After(a.until) {
			a.until, a.again = until, time.Time{}
			n.unsaved = true
		}
		need = max(need, a.change)
	}
	if need <= n.inForce || len(n.waiting) >= maxWaiting {
		return nil
	}
	w := waiter{need, make(chan struct{})}
	n.waiting = append(n.waiting, w)
	return w.done
}

// add takes in a name that is not known. If there are too many, one goes. It reports
// false if none can.
func (n *Names) add(e *entry) bool {
	if n.names.full() {
		out := n.names.victim(e)
		if out == nil {
			n.refused++
			return false
		}
		n.evicted++
		n.forget(out)
		n.changed()
	}
	n.names.add(e)
	return true
}

// join puts a name that is in no set into those that want it and have room. A name
// that has to leave its last set is forgotten.
func (n *Names) join(e *entry) {
	for _, s := range n.sets {
		if !s.Match(e.name) {
			continue
		}
		in := n.perSet[s.Name]
		if in.full() {
			out := in.victim(e)
			if out == nil {
				n.refused++
				continue
			}
			in.remove(out)
			out.sets = slices.DeleteFunc(out.sets, func(name string) bool { return name == s.Name })
			n.evicted++
			if len(out.sets) == 0 {
				n.forget(out)
			}
			n.changed()
		}
		in.add(e)
		e.sets = append(e.sets, s.Name)
	}
}

// askedBy notes that a client resolved a name.
func (n *Names) askedBy(e *entry, client netip.Addr) {
	if len(e.clients) >= manyClients || slices.Contains(e.clients, client) {
		return
	}
	groups := []*group{n.names}
	for _, s := range e.sets {
		groups = append(groups, n.perSet[s])
	}
	for _, g := range groups {
		g.count(e, -1)
	}
	e.clients = append(e.clients, client)
	for _, g := range groups {
		g.count(e, 1)
	}
}

// evictAddr makes room for an address: the one whose time is over first goes.
func (n *Names) evictAddr(e *entry) {
	var first netip.Addr
	for a, d := range e.addrs {
		if f := e.addrs[first]; f == nil || d.until.Before(f.until) || d.until.Equal(f.until) && a.Less(first) {
			first = a
		}
	}
	delete(e.addrs, first)
	n.evicted++
	n.changed()
}

func (n *Names) forget(e *entry) {
	for _, s := range e.sets {
		n.perSet[s].remove(e)
	}
	n.names.remove(e)
}

// changed counts a change and announces it.
func (n *Names) changed() {
	n.changes++
	n.unsaved = true
	select {
	case n.news <- struct{}{}:
	default:
	}
}

// News delivers a value after changes; one may stand for many.
func (n *Names) News() <-chan struct{} { return n.news }

// Fill puts the addresses of each set that is watched into the map, sorted and
// without duplicates, and returns the number of the last change in it. Keys that
// are not in the map are left out.
func (n *Names) Fill(sets map[string][]netip.Prefix) uint64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, s := range n.sets {
		if _, ok := sets[s.Name]; ok {
			sets[s.Name] = []netip.Prefix{}
		}
	}
	for _, e := range n.names.Values() {
		for _, s := range e.sets {
			if _, ok := sets[s]; !ok {
				continue
			}
			for a := range e.addrs {
				sets[s] = append(sets[s], netip.PrefixFrom(a, a.BitLen()))
			}
		}
	}
	for _, s := range n.sets {
		if l, ok := sets[s.Name]; ok {
			slices.SortFunc(l, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
			sets[s.Name] = slices.Compact(l)
		}
	}
	return n.changes
}

// InForce tells that the changes up to a number are in force. Numbers do not
// decrease.
func (n *Names) InForce(change uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.inForce = max(n.inForce, change)
	n.waiting = slices.DeleteFunc(n.waiting, func(w waiter) bool {
		if w.change > n.inForce {
			return false
		}
		close(w.done)
		return true
	})
}

// Expire forgets addresses whose time is over, but those that live reports a
// connection with. live is asked without a lock held, at most once; nil means that
// there are none. If it fails, nothing is forgotten. Where a bound is reached it also
// finds out which addresses are in use: their names are not put out.
func (n *Names) Expire(live func([]netip.Addr) (map[netip.Addr]bool, error)) error {
	now := n.cfg.Clock()
	over := func(a *address) bool { return now.After(a.until.Add(n.cfg.Grace)) && !now.Before(a.again) }
	n.mu.Lock()
	ask := map[netip.Addr]struct{}{}
	for _, e := range n.names.Values() {
		// Where there is no room, one of the names has to go soon.
		crowded := n.names.full() || slices.ContainsFunc(e.sets, func(s string) bool { return n.perSet[s].full() })
		for a, d := range e.addrs {
			if crowded || over(d) {
				ask[a] = struct{}{}
			}
		}
	}
	n.mu.Unlock()
	if len(ask) == 0 {
		return nil
	}
	var used map[netip.Addr]bool
	if live != nil {
		addrs := make([]netip.Addr, 0, len(ask))
		for a := range ask {
			addrs = append(addrs, a)
		}
		var err error
		if used, err = live(addrs); err != nil {
			return err
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	gone := false
	for _, e := range n.names.Values() {
		for a, d := range e.addrs {
			_, asked := ask[a]
			d.used = used[a]
			switch {
			case !asked || !over(d): // learnt anew meanwhile
			case used[a] && len(e.sets) > 0:
				d.again = now.Add(againAfter)
			default:
				delete(e.addrs, a)
				gone = true
			}
		}
		if len(e.addrs) == 0 {
			n.forget(e)
		}
	}
	if gone {
		n.changed()
	}
	return nil
}

// Stats are totals and sizes.
type Stats struct {
	Sets, Names, Addresses int
	Evicted                uint64 // names and addresses put out by a bound
	Refused                uint64 // names not taken in, because all others are in use
}

// Stats returns how much is known.
func (n *Names) Stats() Stats {
	n.mu.Lock()
	defer n.mu.Unlock()
	s := Stats{Sets: len(n.sets), Names: n.names.Len(), Evicted: n.evicted, Refused: n.refused}
	for _, e := range n.names.Values() {
		s.Addresses += len(e.addrs)
	}
	return s
}
