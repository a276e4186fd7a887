package nfqueue

import (
	"bytes"
	"time"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/conntrack"
	"github.com/tierwall/tierwall/dataplane"
)

// list is a compact set of connection keys without direction: those connections that
// may have the accept bit. A connection moves between these states:
//
//	            report of a worker,
//	            found by a walk             cut, last reported
//	unlisted ──────────────────► listed ──── settleTime ago ────► unlisted
//	                              │  ▲
//	  cut, reported since: a      │  │ reported again, or
//	  verdict in flight may still │  │ allowed by the policy now
//	  set the bit                 ▼  │
//	                             struck ──┐ denied still: the bit is
//	                                 ▲    │ taken once more (condemned)
//	                                 └────┘
//
// plain and other say whether the kernel has the connection under the key; again, partly
// and vague say what cannot be known of it, and make the cutter ask the kernel.
type list struct {
	addrs    numbers[flow.Addr]
	services numbers[flow.Service] // 0 is none
	at       map[pair]int32        // into conns
	conns    []conn
	free     []int32
	aliases  []alias
	struck   int           // connections that are
	named    time.Duration // until then what is told without a Service may have one that rules name
}

// numbers gives values numbers, from 0 on.
type numbers[V comparable] struct {
	of     map[V]uint32
	values []V
}

func (n *numbers[V]) number(v V) uint32 {
	i, ok := n.of[v]
	if !ok {
		if n.of == nil {
			n.of = map[V]uint32{}
		}
		i = uint32(len(n.values))
		n.values = append(n.values, v)
		n.of[v] = i
	}
	return i
}

// pair is a flow key with numbers for addresses. Of the two keys of a connection
// the list has the one that orders first (canonical).
type pair struct {
	src, dst         uint32
	srcPort, dstPort uint16
	proto            flow.Proto
}

type conn struct {
	pair
	flags   uint8
	service uint32        // where it was opened to, as told last
	told    time.Duration // the last time, by the ledger's clock
	alias   int32         // first of its aliases; -1 = none
}

// Flags of a conn.
const (
	ahead  uint8 = 1 << iota // told as opened in the direction of the key
	turned                   // told as opened in the other direction
	plain                    // the kernel has it under the key, one way or the other
	other                    // told, and the kernel may have it under another name
	again                    // other, and there may be more than one connection of the name
	struck                   // cut while a verdict in flight may still set the bit
	partly                   // struck, and there may be more of it that has the bit by right
	vague                    // told; its original destination is unknown, and a rule may depend on it
)

// alias is a connection that a walk found under another name than its key.
type alias struct {
	connection
	key  flow.Key // in the direction it was opened
	via  flow.Service
	next int32
}

// listed is a copy of a connection in the list, as far as it is denied.
type listed struct {
	key     flow.Key // the first of its two
	flags   uint8    // plain, other and again; vague alone if the kernel must be asked; 0 if only aliases are denied
	told    time.Duration
	aliases []alias
	rest    bool // some of it is not denied
}

func newList() *list {
	l := &list{at: map[pair]int32{}, named: never}
	l.services.number(flow.Service{})
	return l
}

func (l *list) len() int { return len(l.at) }

// get returns the place of a connection, a new one if it is not in the list.
func (l *list) get(k flow.Key) (c *conn, back, fresh bool) {
	first, back := canonical(k)
	p := pair{l.addrs.number(first.Src), l.addrs.number(first.Dst), first.SrcPort, first.DstPort, first.Proto}
	if i, ok := l.at[p]; ok {
		return &l.conns[i], back, false
	}
	return l.place(p), back, true
}

func (l *list) place(p pair) *conn {
	var i int32
	if n := len(l.free); n > 0 {
		i, l.free = l.free[n-1], l.free[:n-1]
	} else {
		i = int32(len(l.conns))
		l.conns = append(l.conns, conn{})
	}
	l.at[p] = i
	l.conns[i] = conn{pair: p, told: never, alias: -1}
	return &l.conns[i]
}

// never is before any time.
const never time.Duration = -1 << 62

// tell adds a connection that a worker saw packets of. What is told a second time
// may be another connection that shows the same ends, unless the kernel itself has
// it by these.
func (l *list) tell(r *conntrack.Record, now time.Duration) {
	if !r.Key.Valid() {
		return // nobody accepts it
	}
	c, back, fresh := l.get(r.Key)
	l.acquit(c)
	if back {
		c.flags |= turned
	} else {
		c.flags |= ahead
	}
	service := l.services.number(r.Service)
	if c.flags&(plain|other) != 0 && service != c.service {
		c.flags |= vague
	}
	c.service, c.told = service, now
	if !r.Plain && service == 0 && now < l.named {
		c.flags |= vague
	}
	if r.Plain && nameable(&r.Key) {
		c.flags |= plain
	} else {
		c.flags |= other
	}
	if c.flags&other != 0 && (!fresh || r.Packets[0]+r.Packets[1] > 1 || !nameable(&r.Key)) {
		c.flags |= again
	}
}

// found adds a connection of the kernel's table.
func (l *list) found(e *entry, k flow.Key) {
	c, back, _ := l.get(k)
	if c.flags&other != 0 {
		c.flags |= again
	}
	if c.flags&struck != 0 {
		c.flags |= partly
	}
	if !e.zoned && nameable(&k) && e.shows(&k) {
		c.flags |= plain
		if back {
			c.flags |= turned
		} else {
			c.flags |= ahead
		}
		return
	}
	l.aliases = append(l.aliases, alias{
		connection: connection{e.family, bytes.Clone(e.rawOrig), bytes.Clone(e.rawZone)},
		key:        k, via: e.via(), next: c.alias,
	})
	c.alias = int32(len(l.aliases) - 1)
}

// name notes that rules name more Services from now on, and that until a time what
// is told may not know.
func (l *list) name(until time.Duration) {
	l.named = until
	for i := range l.conns {
		if c := &l.conns[i]; c.flags&other != 0 && c.service == 0 {
			c.flags |= vague
		}
	}
}

// copyTold adds what from was told since a time, and what is struck there.
func (l *list) copyTold(from *list, since time.Duration) {
	l.named = from.named
	for _, i := range from.at {
		c := &from.conns[i]
		if c.flags&(plain|other) == 0 || c.told < since && c.flags&struck == 0 {
			continue
		}
		p := c.pair
		p.src, p.dst = l.addrs.number(from.addrs.values[c.src]), l.addrs.number(from.addrs.values[c.dst])
		n := l.place(p)
		n.flags, n.told = c.flags, c.told
		if n.flags&struck != 0 {
			l.struck++
		}
		n.service = l.services.number(from.services.values[c.service])
	}
}

// strike notes that a connection was cut, or what was denied of it. It is removed,
// unless it was told since a time: then it is struck.
func (l *list) strike(v *listed, since time.Duration) {
	p, i, ok := l.find(v.key)
	switch {
	case !ok:
	case l.conns[i].told >= since:
		l.condemn(&l.conns[i], v.rest)
	case v.rest:
		l.acquit(&l.conns[i])
	default:
		l.remove(p, i)
	}
}

// replace puts what the kernel's table has of a key, the first of two, in the place of
// what was told of it. If that was since a time it is struck.
func (l *list) replace(k flow.Key, entries []entry, since time.Duration) {
	p, i, ok := l.find(k)
	if ok && l.conns[i].told >= since {
		l.condemn(&l.conns[i], len(entries) > 0)
		return
	}
	if ok {
		l.remove(p, i)
	}
	for j := range entries {
		if k, ok := entries[j].key(); ok {
			l.found(&entries[j], k)
		}
	}
}

// condemn strikes a connection, or the part of it that was denied.
func (l *list) condemn(c *conn, part bool) {
	l.acquit(c)
	l.struck++
	c.flags |= struck
	if part || c.alias >= 0 {
		c.flags |= partly
	}
}

func (l *list) acquit(c *conn) {
	if c.flags&struck != 0 {
		c.flags &^= struck | partly
		l.struck--
	}
}

func (l *list) find(k flow.Key) (p pair, i int32, ok bool) {
	src, ok1 := l.addrs.of[k.Src]
	dst, ok2 := l.addrs.of[k.Dst]
	p = pair{src, dst, k.SrcPort, k.DstPort, k.Proto}
	i, ok = l.at[p]
	return p, i, ok && ok1 && ok2
}

func (l *list) remove(p pair, i int32) {
	l.acquit(&l.conns[i])
	delete(l.at, p)
	l.conns[i] = conn{alias: -1}
	l.free = append(l.free, i)
}

// mostNamed is up to how many addresses are looked up one by one.
const mostNamed = 1024

// touched marks the addresses that the change touches; nil if there are none.
func (l *list) touched(c dataplane.Change) (marks []bool) {
	mark := func(n uint32) {
		if marks == nil {
			marks = make([]bool, len(l.addrs.values))
		}
		marks[n] = true
	}
	if addrs, ok := c.Touched(mostNamed); ok {
		for _, a := range addrs {
			if n, ok := l.addrs.of[a]; ok {
				mark(n)
			}
		}
		return marks
	}
	for n, a := range l.addrs.values {
		if c.Touches(a) {
			mark(uint32(n))
		}
	}
	return marks
}

// denied copies what judge denies of the connections with an end that the change
// touches, but for what is struck.
func (l *list) denied(c dataplane.Change, judge func(flow.Key, flow.Service) bool) (victims []listed) {
	touched := l.touched(c)
	if touched == nil {
		return nil
	}
	for i := range l.conns {
		c := &l.conns[i]
		if c.proto == flow.AnyProto || c.flags&(struck|partly) == struck || !touched[c.src] && !touched[c.dst] {
			continue
		}
		if v, ok := l.judge(c, judge); ok {
			victims = append(victims, v)
		}
	}
	return victims
}

// judge copies what is denied of a connection.
func (l *list) judge(c *conn, judge func(flow.Key, flow.Service) bool) (v listed, denied bool) {
	k := flow.Key{Src: l.addrs.values[c.src], Dst: l.addrs.values[c.dst], SrcPort: c.srcPort, DstPort: c.dstPort, Proto: c.proto}
	v = listed{key: k, told: c.told}
	via := l.services.values[c.service]
	switch {
	case c.flags&ahead != 0 && judge(k, via), c.flags&turned != 0 && judge(k.Reverse(), via):
		v.flags = c.flags & (plain | other | again)
	case c.flags&vague != 0:
		v.flags = vague
	default:
		v.rest = c.flags&(plain|other) != 0
	}
	for i := c.alias; i >= 0; i = l.aliases[i].next {
		if a := &l.aliases[i]; judge(a.key, a.via) {
			v.aliases = append(v.aliases, *a)
		} else {
			v.rest = true
		}
	}
	return v, v.flags != 0 || v.aliases != nil
}

// condemned copies what judge denies of what is struck; the rest is not any more.
func (l *list) condemned(judge func(flow.Key, flow.Service) bool) (victims []listed, acquitted []flow.Key) {
	if l.struck == 0 {
		return nil, nil
	}
	for i := range l.conns {
		c := &l.conns[i]
		if c.flags&struck == 0 {
			continue
		}
		if v, ok := l.judge(c, judge); ok {
			victims = append(victims, v)
		} else {
			acquitted = append(acquitted, v.key)
		}
	}
	return victims, acquitted
}

// unsettled strikes what judge denies of the connections told since a time.
func (l *list) unsettled(since time.Duration, judge func(flow.Key, flow.Service) bool) {
	for i := range l.conns {
		c := &l.conns[i]
		if c.proto == flow.AnyProto || c.told < since {
			continue
		}
		if _, ok := l.judge(c, judge); ok {
			l.condemn(c, true) // nobody has looked at this one alone
		}
	}
}

// canonical returns the one of a key and its reverse that orders first, and whether
// that is the reverse. What has no reverse stays as it is.
func canonical(k flow.Key) (first flow.Key, back bool) {
	if k.Proto == flow.IGMP || (k.Proto == flow.ICMP || k.Proto == flow.ICMPv6) && !isEcho(k.Proto, uint8(k.DstPort>>8)) {
		return k, false
	}
	r := k.Reverse()
	switch c := bytes.Compare(k.Src[:], r.Src[:]); {
	case c < 0, c == 0 && (k.SrcPort < r.SrcPort || k.SrcPort == r.SrcPort && k.DstPort <= r.DstPort):
		return k, false
	}
	return r, true
}
