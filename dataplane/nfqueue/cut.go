package nfqueue

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/conntrack"
	"github.com/tierwall/tierwall/dataplane"
)

const (
	// fewAddrs is up to how many addresses are looked up one by one in the kernel's
	// table instead of walking all of it (kernelTable.clear has the costs).
	fewAddrs = 4
	// againEvery is how often the bit is taken once more from connections that may
	// have got it after it was taken. The engine comes by twice a second, and more
	// often while policy changes.
	againEvery = 200 * time.Millisecond
	// lateAfter is after what time a packet has been judged that was in the queue
	// when rules came to name its Service.
	lateAfter = 100 * time.Millisecond
	// relistPause is how many times longer than it took to make the list anew the
	// next time is not for.
	relistPause = 20
)

// denies reports whether a connection, in the direction it was opened, and to a
// Service unless that is zero, is to lose the accept bit.
type denies func(flow.Key, flow.Service) bool

// cutter is what a Backend needs to cut connections. Its fields belong to whoever
// has Backend.mu, but for beside, and the ledger, which has a lock of its own.
type cutter struct {
	table  *kernelTable
	beside *kernelTable // the same for relist, which does not hold the lock
	ledger *ledger

	againAt  time.Time    // not before
	relistAt time.Time    // not before
	denied   denies       // by the table of the last update
	lateAt   [2]time.Time // when to walk for what nobody has told of; zero = never
	walks    int          // through the kernel's table, for tests
}

// Learns implements dataplane.Backend.
func (b *Backend) Learns() bool { return true }

// Learn implements dataplane.Backend.
func (b *Backend) Learn(backend string, news []conntrack.Record, missed bool) {
	if missed || backend != b.Name() && b.config.FastMark == 0 {
		// Nobody tells of what a fast path of another kind marks by itself.
		b.ledger.lose()
	}
	b.ledger.learn(news)
	if news != nil {
		return
	}
	if b.ipvs.look() {
		b.ledger.lose()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return
	}
	now := time.Now()
	if now.After(b.againAt) {
		b.againAt = now.Add(againEvery)
		if _, err := b.cutListed(b.ledger.condemned(b.denied), b.denied); err != nil {
			b.config.Logger.Warn("connections that were cut may have been accepted once more", "error", err)
		}
	}
	if late := b.lateAt[0]; !late.IsZero() && now.After(late) {
		b.lateAt = [2]time.Time{b.lateAt[1]}
		if _, err := b.walk(b.denied); err != nil {
			b.config.Logger.Warn("connections may have been accepted by mistake", "error", err)
		}
	}
	if b.ledger.stale() && now.After(b.relistAt) {
		b.relistAt = now.Add(time.Hour) // the goroutine sets it when it is done
		b.background.Go(b.relist)
	}
}

// name notes that rules name Services that they did not before: of connections to
// these only the kernel knows. The packets that wait for their verdict now do not
// tell either.
func (b *Backend) name() {
	b.ledger.name()
	b.late(lateAfter)
}

// late has the kernel's table walked in a moment, and that put off by nobody.
func (b *Backend) late(after time.Duration) {
	at := time.Now().Add(after)
	switch {
	case b.lateAt[0].IsZero():
		b.lateAt[0] = at
	case at.Before(b.lateAt[0]):
		b.lateAt = [2]time.Time{at, b.lateAt[0]}
	default:
		b.lateAt[1] = at
	}
}

// cut takes the accept bit from every connection the change concerns and denied is
// true of. It costs what it finds where the ledger is complete.
func (b *Backend) cut(c dataplane.Change, denied denies) (int, error) {
	expected, err := b.table.expected()
	if err != nil {
		b.config.Logger.Debug("every change of policy walks the kernel's connections", "error", err)
		b.ledger.lose()
	} else {
		b.ledger.expect(expected)
	}
	if !c.All() {
		if victims, complete := b.ledger.denied(c, denied); complete {
			return b.cutListed(victims, denied)
		}
	}
	if b.ledger.burnt() {
		b.late(b.ledger.settle)
	}
	if addrs, few := c.Touched(fewAddrs); few {
		n, err := b.look(addrs, denied, func(*entry, flow.Key) {})
		b.ledger.unsettled(denied)
		return n, err
	}
	return b.walk(denied)
}

// look cuts what the kernel's table has of a few addresses, and says what stays.
func (b *Backend) look(addrs []flow.Addr, denied denies, stays func(*entry, flow.Key)) (int, error) {
	b.walks++
	return b.table.clear(addrs, func(e *entry, k flow.Key, ok bool) bool {
		if !ok || denied(k, e.via()) {
			return true // a connection we cannot read is a connection we cannot allow
		}
		stays(e, k)
		return false
	})
}

// walk looks at all of the kernel's table, and lists what stays.
func (b *Backend) walk(denied denies) (int, error) {
	b.walks++
	draft := b.ledger.begin()
	n, err := b.table.clear(nil, func(e *entry, k flow.Key, ok bool) bool {
		if !ok || denied(k, e.via()) {
			return true
		}
		b.ledger.found(draft, e, k)
		return false
	})
	b.ledger.end(draft, err == nil)
	b.ledger.unsettled(denied)
	return n, err
}

// cutListed cuts what the ledger says is denied, and looks for what goes by a name
// nobody knows.
func (b *Backend) cutListed(victims []listed, denied denies) (int, error) {
	if len(victims) == 0 {
		return 0, nil
	}
	alone, err := b.alone(victims)
	if err != nil {
		return 0, err
	}
	n, err := b.take(victims)
	if err != nil {
		return n, err
	}
	var sure []listed
	unsure := map[flow.Key][]entry{}
	addrs := map[flow.Addr]struct{}{}
	for i := range victims {
		v := &victims[i]
		if v.flags&(other|vague) == 0 || alone[i] {
			sure = append(sure, *v)
			continue
		}
		unsure[v.key] = nil
		_, src := addrs[v.key.Src]
		if _, dst := addrs[v.key.Dst]; !src && !dst {
			addrs[v.key.Src] = struct{}{}
		}
	}
	b.ledger.strike(sure)
	var more int
	switch {
	case len(addrs) == 0:
	case len(addrs) > fewAddrs:
		more, err = b.walk(denied)
	default:
		more, err = b.look(slices.Collect(maps.Keys(addrs)), denied, func(e *entry, k flow.Key) {
			first, _ := canonical(k)
			if list, ok := unsure[first]; ok {
				unsure[first] = append(list, e.clone())
			}
		})
		if err == nil {
			b.ledger.replace(unsure)
		}
	}
	return n + more, err
}

// alone reports of which connections whose names may be others we know the name all
// the same: one was told, and one that has the bit has the ends it showed, in the
// direction of an answer. (Where its source was translated, too, another connection
// may have these ends. That one was not told, or there were two; so it does not have
// the bit.)
func (b *Backend) alone(victims []listed) ([]bool, error) {
	alone := make([]bool, len(victims))
	var names []connection
	var of []int
	for i := range victims {
		if v := &victims[i]; v.flags&(other|again) == other && nameable(&v.key) {
			both := named(v.key)
			names, of = append(names, both[:]...), append(of, i, i)
		}
	}
	marked, err := b.table.marked(names)
	for j, ok := range marked {
		alone[of[j]] = alone[of[j]] || ok
	}
	return alone, err
}

// take takes the bit from connections by their names, and returns from how many.
func (b *Backend) take(victims []listed) (n int, err error) {
	var conns []connection
	for i := range victims {
		v := &victims[i]
		if v.flags&(plain|other) != 0 && nameable(&v.key) {
			both := named(v.key)
			conns = append(conns, both[:]...)
		}
		for j := range v.aliases {
			conns = append(conns, v.aliases[j].connection)
		}
	}
	found, err := b.table.clearMarks(conns)
	if err != nil {
		return 0, err
	}
	for i := range victims {
		v := &victims[i]
		if v.flags&(plain|other) != 0 && nameable(&v.key) {
			if found[0] || found[1] { // it has both names, or there are two
				n++
			}
			found = found[2:]
		}
		for range v.aliases {
			if found[0] {
				n++
			}
			found = found[1:]
		}
	}
	return n, nil
}

// relist makes the ledger's list anew, beside whatever goes on.
func (b *Backend) relist() {
	began := time.Now()
	err := b.list()
	took := time.Since(began)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.relistAt = time.Now().Add(relistPause * took)
	if err != nil && !b.closed {
		b.config.Logger.Debug("the kernel's connections cannot be listed", "error", err)
	}
}

func (b *Backend) list() error {
	expected, err := b.beside.expected()
	if err != nil {
		return err
	}
	b.ledger.expect(expected)
	draft, everything := b.ledger.begin(), true
	_, err = b.beside.find(dumpFilter{}, func(e *entry, k flow.Key, ok bool) bool {
		if everything = everything && ok; everything {
			b.ledger.found(draft, e, k)
		}
		return false
	})
	b.ledger.end(draft, err == nil && everything)
	if err != nil {
		return fmt.Errorf("list connections: %w", err)
	}
	return nil
}

// ipvs says whether there may be IPVS. No rule can tell what it has translated, so
// with it an answer does not show the name of its connection. Any goroutine may ask.
type ipvs struct{ atomic.Bool }

// look looks whether it is there, and reports whether it has come since.
func (i *ipvs) look() bool {
	for _, path := range []string{"/sys/module/ip_vs", "/proc/net/ip_vs"} {
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			return !i.Swap(true)
		}
	}
	return false
}
