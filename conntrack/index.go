package conntrack

import (
	"hash/maphash"
	"math/bits"

	"github.com/tierwall/tierwall/classifier/flow"
)

// index finds the slot of a connection and keeps the slots in order of use. It is
// part of the table, under its lock; ADR 8 compares it with an LRU package.
//
//	cells   [ ][hash, slot][ ][hash, slot][hash, slot][ ] …   linear probing
//	links   newest ⇄ slot ⇄ slot ⇄ … ⇄ oldest                 next to the records
//
// A cell has enough of the hash that a tuple nobody knows is told without looking
// at a record, and an entry can move without it. The hash has a random seed: which
// tuples collide is not for senders to know.
type index struct {
	seed   maphash.Seed
	cells  []cell // a power of two, at most half in use
	newest slot
	oldest slot
	n      int
}

// cell is a place for an entry: a hash and a slot plus one; 0 = free.
type cell struct {
	hash  uint32
	place int32
}

// link is a slot's place in the order of use, and where its cell is looked for.
type link struct {
	newer, older slot
	hash         uint32
}

// nowhere ends the order of use.
const nowhere slot = -1

func newIndex(records int) index {
	return index{
		seed:  maphash.MakeSeed(),
		cells: make([]cell, 1<<bits.Len(uint(2*records-1))), // pages nobody has written cost nothing
		// the order is empty
		newest: nowhere, oldest: nowhere,
	}
}

func (x *index) hash(key *flow.Key) uint32 {
	var b [37]byte
	copy(b[:], key.Src[:])
	copy(b[16:], key.Dst[:])
	b[32], b[33] = byte(key.SrcPort), byte(key.SrcPort>>8)
	b[34], b[35] = byte(key.DstPort), byte(key.DstPort>>8)
	b[36] = byte(key.Proto)
	return uint32(maphash.Bytes(x.seed, b[:]))
}

// The rest are methods of Table: comparing keys and linking slots takes records.

// find returns the slot of the connection with a canonical key, which has the given
// hash.
func (t *Table) find(key *flow.Key, hash uint32) (s slot, ok bool) {
	x := &t.index
	mask := uint32(len(x.cells) - 1)
	for at := hash & mask; x.cells[at].place != 0; at = (at + 1) & mask {
		if c := x.cells[at]; c.hash == hash {
			s = slot(c.place - 1)
			if k := &t.at(s).Key; *k == *key || canonical(*k) == *key {
				return s, true
			}
		}
	}
	return nowhere, false
}

// use makes s the most recently used.
func (t *Table) use(s slot) {
	if t.index.newest != s {
		t.unlink(s)
		t.link(s)
	}
}

// enter files s under the hash of its record's canonical key, which must not be in
// the index.
func (t *Table) enter(s slot, hash uint32) {
	x := &t.index
	mask := uint32(len(x.cells) - 1)
	at := hash & mask
	for x.cells[at].place != 0 {
		at = (at + 1) & mask
	}
	x.cells[at] = cell{hash, int32(s) + 1}
	x.n++
	t.linkOf(s).hash = hash
	t.link(s)
}

// leave takes s out of the index. Entries that were pushed on by the one that goes
// move up.
func (t *Table) leave(s slot) {
	x := &t.index
	mask := uint32(len(x.cells) - 1)
	at := t.linkOf(s).hash & mask
	for x.cells[at].place != int32(s)+1 {
		at = (at + 1) & mask
	}
	for next := (at + 1) & mask; x.cells[next].place != 0; next = (next + 1) & mask {
		// How far from home it is, and how far it would have to go back.
		if c := x.cells[next]; (next-c.hash)&mask >= (next-at)&mask {
			x.cells[at] = c
			at = next
		}
	}
	x.cells[at] = cell{}
	x.n--
	t.unlink(s)
}

func (t *Table) linkOf(s slot) *link { return &t.blocks[s/blockSize].links[s%blockSize] }

func (t *Table) link(s slot) {
	x := &t.index
	l := t.linkOf(s)
	l.newer, l.older = nowhere, x.newest
	if x.newest != nowhere {
		t.linkOf(x.newest).newer = s
	} else {
		x.oldest = s
	}
	x.newest = s
}

func (t *Table) unlink(s slot) {
	x, l := &t.index, *t.linkOf(s)
	if l.newer != nowhere {
		t.linkOf(l.newer).older = l.older
	} else {
		x.newest = l.older
	}
	if l.older != nowhere {
		t.linkOf(l.older).newer = l.newer
	} else {
		x.oldest = l.newer
	}
}
