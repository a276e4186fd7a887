package conntrack

import (
	"fmt"
	"sync"

	"github.com/tierwall/tierwall/classifier/flow"
)

// blockSize is how many slots are allocated, and how many copied under one hold
// of the lock, at a time. Blocks are never moved, so growth has no long pause.
const blockSize = 64

// block is what a number of slots have.
type block struct {
	records [blockSize]Record
	links   [blockSize]link
}

// slot numbers a place for a Record: block slot/blockSize, entry slot%blockSize.
type slot int32

// Table is a bounded set of records. Use [New]; the zero value is not usable and
// a Table must not be copied. All methods may be called from any goroutine; the
// methods of the packet path are cheap because one goroutine, or few, call them.
type Table struct {
	limits Limits

	mu sync.Mutex
	// index finds and orders; records live in blocks, where the control side can
	// walk them in small steps without holding the worker up, and where the
	// garbage collector has nothing to look at.
	index  index
	blocks []*block
	fresh  []uint64 // by block: slots that got a record since ends last looked
	news   news
	used   int    // slots handed out so far, free ones included
	free   []slot // slots whose record is gone
	sweep  int    // where Expire goes on
	lastID uint64
	stats  Stats

	ends ends // has a mutex of its own, taken before mu
}

// Stats are totals since New. Records = Inserted - Replaced - Evicted - Expired -
// Removed, always.
type Stats struct {
	Records  int    // now in the table, those past their timeout but not yet swept included
	Inserted uint64 // by Insert, Join and Restore
	Replaced uint64 // by a new connection on the same tuple
	Evicted  uint64 // because the table was full
	Expired  uint64 // idle for too long
	Removed  uint64 // by Forget
	Hits     uint64 // packets whose connection Seen found
	Misses   uint64 // packets whose connection it did not find, or that open another one
}

// New makes an empty table. It panics when l.Validate would return an error:
// configuration is checked where it is read.
func New(l Limits) *Table {
	if err := l.Validate(); err != nil {
		panic(fmt.Sprintf("conntrack: invalid limits: %v", err))
	}
	l = l.withDefaults()
	return &Table{limits: l, index: newIndex(l.Records), news: newNews(), lastID: uint64(l.Worker) << 48}
}

// Result is what Seen found.
type Result uint8

// Results.
const (
	Miss     Result = iota // no connection has this tuple
	Hit                    // a packet of a known connection, from its opener
	HitReply               // a packet of a known connection, from the other side
	Reopened               // the tuple is known, but the packet opens another connection: see IsNewConnection
)

// Found reports whether the packet belongs to a known connection.
func (r Result) Found() bool { return r == Hit || r == HitReply }

// Seen accounts for a packet of the connection it belongs to, advances its state,
// and copies the record as it then is to *rec. After Miss *rec is untouched; after
// Reopened it is the old connection, which stays as it is until Insert replaces
// it, for the new one may be denied. It does not allocate.
func (t *Table) Seen(p *Packet, now int64, rec *Record) Result {
	key := canonical(p.Key)
	hash := t.index.hash(&key)
	t.mu.Lock()
	defer t.mu.Unlock()
	s, ok := t.find(&key, hash)
	if !ok {
		t.stats.Misses++
		return Miss
	}
	t.use(s)
	r := t.at(s)
	if t.idle(r, now) {
		t.remove(s)
		t.stats.Expired++
		t.stats.Misses++
		return Miss
	}
	if IsNewConnection(r, p) {
		t.stats.Misses++
		*rec = *r
		return Reopened
	}
	reply := t.hit(s, p, now)
	*rec = *r
	if reply {
		return HitReply
	}
	return Hit
}

// Lookup returns a copy of the record of the connection that k belongs to, and
// whether k is its reply direction. It is for packets that are about a connection
// without being part of it (ICMP errors), and for questions from outside the
// packet path; it changes nothing. It does not allocate.
func (t *Table) Lookup(k flow.Key, now int64) (rec Record, reply, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	key := canonical(k)
	s, ok := t.find(&key, t.index.hash(&key))
	if !ok {
		return Record{}, false, false
	}
	r := t.at(s)
	if t.idle(r, now) {
		return Record{}, false, false
	}
	return *r, k != r.Key, true
}

// Insert adds the connection that p is the first packet of and returns its ID.
// key is in the direction the connection was opened, which p.Key or its reverse
// must be. A record with the same tuple is replaced; a full table loses the record
// that has been idle for longest. An invalid key is not stored, and its ID is 0.
func (t *Table) Insert(key flow.Key, p *Packet, a Admission, now int64) uint64 {
	id, _ := t.insert(key, p, a, now, nil)
	return id
}

// Join is Insert for a table that several goroutines fill. If another one has
// inserted p's connection since Seen did not find it, Join does with p what Seen
// does, copies the record to *rec, and returns true and no ID.
func (t *Table) Join(key flow.Key, p *Packet, a Admission, now int64, rec *Record) (id uint64, joined bool) {
	return t.insert(key, p, a, now, rec)
}

// Again is Seen for a packet that Seen has just not found, in case another goroutine
// has inserted its connection since. The packet counts once.
func (t *Table) Again(p *Packet, now int64, rec *Record) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	key := canonical(p.Key)
	s, ok := t.find(&key, t.index.hash(&key))
	if !ok {
		return false
	}
	t.use(s)
	return t.join(s, p, now, rec)
}

func (t *Table) insert(key flow.Key, p *Packet, a Admission, now int64, join *Record) (id uint64, joined bool) {
	if !key.Valid() {
		return 0, false
	}
	reply := p.Key != key
	rec := Record{Admission: a, Since: now, LastSeen: now, Key: key, State: start(p, reply), Plain: p.Plain}
	if isSYN(p.TCPFlags) && key.Proto == flow.TCP {
		rec.ISN = p.TCPSeq
	}
	rec.count(p, reply)
	canon := canonical(key)
	hash := t.index.hash(&canon)

	t.mu.Lock()
	defer t.mu.Unlock()
	s, ok := t.find(&canon, hash)
	if ok {
		t.use(s)
	}
	if ok && join != nil && t.join(s, p, now, join) {
		return 0, true
	}
	t.lastID++
	rec.ID = t.lastID
	t.stats.Inserted++
	if ok {
		t.stats.Replaced++
		t.news.leave(s, t.at(s))
		*t.at(s) = rec
		t.news.note(s)
		return rec.ID, false
	}
	if t.index.n == t.limits.Records {
		t.remove(t.index.oldest)
		t.stats.Evicted++
	}
	s = t.acquire()
	*t.at(s) = rec
	t.fresh[s/blockSize] |= 1 << (s % blockSize)
	t.news.note(s)
	t.enter(s, hash)
	return rec.ID, false
}

// Restore adds a connection that the kernel has kept to itself since before there was
// this table: open, its last packet seen at the given time, none counted. It takes
// nobody's place, and reports false if the tuple is known or the table is full. It is
// no news.
func (t *Table) Restore(key flow.Key, a Admission, lastSeen int64) bool {
	if !key.Valid() {
		return false
	}
	canon := canonical(key)
	hash := t.index.hash(&canon)
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.find(&canon, hash); ok || t.index.n == t.limits.Records {
		return false
	}
	t.lastID++
	t.stats.Inserted++
	s := t.acquire()
	*t.at(s) = Record{
		Admission: a, ID: t.lastID, Since: lastSeen, LastSeen: lastSeen, Key: key,
		State: start(&Packet{Key: key}, false),
	}
	t.fresh[s/blockSize] |= 1 << (s % blockSize)
	t.enter(s, hash)
	return true
}

// Restamp gives the connection of which rec is a copy a new admission, after it
// was judged again. It does nothing and returns false if that connection is gone,
// was replaced by another on its tuple, or has been restamped since rec was
// copied. On success *rec follows.
func (t *Table) Restamp(rec *Record, a Admission) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	s, ok := t.same(rec)
	if !ok {
		return false
	}
	r := t.at(s)
	r.Admission, rec.Admission = a, a
	return true
}

// Forget removes the connection of which rec is a copy, under the conditions of
// Restamp.
func (t *Table) Forget(rec *Record) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	s, ok := t.same(rec)
	if !ok {
		return false
	}
	t.remove(s)
	t.stats.Removed++
	return true
}

// Each calls fn with a copy of every record until fn returns false. A connection
// that is in the table from the beginning of the call to its end is visited
// exactly once, others at most once for each time they were inserted. Records past
// their timeout are visited until they are swept. fn may call any method.
func (t *Table) Each(fn func(Record) bool) {
	var copied [blockSize]Record
	for block := 0; ; block++ {
		t.mu.Lock()
		more := block < len(t.blocks)
		if more {
			copied = t.blocks[block].records
		}
		t.mu.Unlock()
		if !more {
			return
		}
		for i := range copied {
			if copied[i].State != NoState && !fn(copied[i]) {
				return
			}
		}
	}
}

// EachTouching calls fn with a copy of every record one of whose addresses
// touched says yes to, until fn returns false. touched is asked once for each
// distinct address, and answers the same all the time. What Each says of records
// and of fn holds here, too.
//
// It takes in what was inserted since the last call, looks at addresses, then at
// eight bytes per record, and copies only what fn gets: of many records with few
// addresses a few are found in no time. Callers wait for each other; fn must not
// call EachTouching.
func (t *Table) EachTouching(touched func(flow.Addr) bool, fn func(Record) bool) {
	t.ends.mu.Lock()
	defer t.ends.mu.Unlock()
	t.catchUp()
	marks := t.ends.mark(touched)
	if marks == nil {
		return
	}
	var slots [blockSize]slot
	var copied [blockSize]Record
	for at := 0; at < len(t.ends.slots); {
		n := 0
		at, n = t.ends.marked(marks, at, &slots)
		t.mu.Lock()
		for i, s := range slots[:n] {
			copied[i] = *t.at(s)
		}
		t.mu.Unlock()
		for i := range copied[:n] {
			if copied[i].State != NoState && !fn(copied[i]) {
				return
			}
		}
	}
}

// Expire forgets records that have been idle past their timeout and returns how
// many. It examines at most limit slots, going on where the last call stopped, so
// that calling it with a small limit after every batch keeps the table swept; a
// limit of Limits.Records examines everything.
func (t *Table) Expire(now int64, limit int) (expired int) {
	for examined := 0; examined < limit; examined += blockSize {
		t.mu.Lock()
		step := min(min(limit, t.used)-examined, blockSize)
		for range step {
			if t.sweep >= t.used {
				t.sweep = 0
			}
			if r := t.at(slot(t.sweep)); r.State != NoState && t.idle(r, now) {
				t.remove(slot(t.sweep))
				t.stats.Expired++
				expired++
			}
			t.sweep++
		}
		t.mu.Unlock()
		if step < blockSize {
			break
		}
	}
	return expired
}

// Len returns how many records the table has.
func (t *Table) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.index.n
}

// Stats returns the totals at one instant.
func (t *Table) Stats() Stats {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.stats
	s.Records = t.index.n
	return s
}

// The rest runs with t.mu held.

func (t *Table) at(s slot) *Record { return &t.blocks[s/blockSize].records[s%blockSize] }

// join makes a hit of what Seen counted as a miss, if p belongs to the connection in s.
func (t *Table) join(s slot, p *Packet, now int64, rec *Record) bool {
	r := t.at(s)
	if t.idle(r, now) || IsNewConnection(r, p) {
		return false
	}
	t.stats.Misses--
	t.hit(s, p, now)
	*rec = *r
	return true
}

// hit accounts for a packet of the connection in s. reply: from the other side.
func (t *Table) hit(s slot, p *Packet, now int64) (reply bool) {
	t.stats.Hits++
	r := t.at(s)
	reply = p.Key != r.Key
	r.State = advance(r.State, p, reply)
	r.LastSeen = max(r.LastSeen, now)
	r.count(p, reply)
	r.Plain = r.Plain && p.Plain
	t.news.note(s)
	return reply
}

func (t *Table) idle(r *Record, now int64) bool {
	return now-r.LastSeen > int64(t.limits.Timeouts.Idle(r))
}

// same finds the record that rec is a copy of.
func (t *Table) same(rec *Record) (s slot, ok bool) {
	key := canonical(rec.Key)
	if s, ok = t.find(&key, t.index.hash(&key)); ok {
		r := t.at(s)
		ok = r.ID == rec.ID && r.Generation == rec.Generation
	}
	return s, ok
}

// remove removes the record in s.
func (t *Table) remove(s slot) {
	t.leave(s)
	t.news.leave(s, t.at(s))
	*t.at(s) = Record{}
	t.free = append(t.free, s)
}

// acquire returns an empty slot.
func (t *Table) acquire() slot {
	if n := len(t.free); n > 0 {
		s := t.free[n-1]
		t.free = t.free[:n-1]
		return s
	}
	if t.used == len(t.blocks)*blockSize {
		t.blocks = append(t.blocks, new(block))
		t.fresh, t.news.slots = append(t.fresh, 0), append(t.news.slots, 0)
	}
	t.used++
	return slot(t.used - 1)
}
