package dataplane

import (
	"encoding/binary"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/conntrack"
)

// table is where the connection of k is, or would be. Where a backend scatters
// packets over its workers, so that the packets of one connection do not meet in
// one of them, its connections are shared out by name; a worker then takes the lock
// of another one's table, for the tens of nanoseconds that an operation lasts.
// Everybody else has the worker's own table, whose lock only the worker and the
// control side know.
func (w *Worker) table(k *flow.Key) *conntrack.Table {
	if len(w.peers) == 0 {
		return w.conns
	}
	return w.peers[share(k, len(w.peers))].conns
}

// insert adds the connection that w.seen is the first packet of. known reports that
// a peer was faster, which had another packet of it at the same time: then it is one
// connection all the same, and w.rec its record.
func (w *Worker) insert(p *Packet, k flow.Key, a conntrack.Admission, now int64) (id uint64, known bool) {
	t := w.table(&k)
	if len(w.peers) == 0 || p.Masked {
		return t.Insert(k, &w.seen, a, now), false
	}
	return t.Join(k, &w.seen, a, now, &w.rec)
}

// opened reports whether a peer has accepted the connection of w.seen since it was
// not known here: what is denied as the first packet of one may be an answer. w.rec
// is its record then.
func (w *Worker) opened(p *Packet, now int64) bool {
	return len(w.peers) > 0 && !p.Masked && w.table(&w.seen.Key).Again(&w.seen, now, &w.rec)
}

// introduce makes the workers of drivers that scatter known to each other.
func introduce(workers []*Worker) {
	if len(workers) < 2 {
		return
	}
	for _, w := range workers {
		if !w.driver.Scattered() {
			return
		}
	}
	for _, w := range workers {
		w.peers = workers
	}
}

// share maps a connection to one of n, in both directions alike.
func share(k *flow.Key, n int) int {
	src, dst := uint64(k.SrcPort), uint64(k.DstPort)
	switch k.Proto {
	case flow.ICMP, flow.ICMPv6, flow.IGMP: // no end's own
		src, dst = 0, 0
	}
	h := end(&k.Src, src) + end(&k.Dst, dst) // a sum does not know which is which
	return int(h >> 32 * uint64(n) >> 32)
}

// end spreads an address and a port over 64 bits: multiplications by odd constants
// (those of xxHash), each followed by bringing the good bits, the upper ones, down.
func end(a *flow.Addr, port uint64) uint64 {
	h := (binary.LittleEndian.Uint64(a[:]) ^ port) * 0x9e3779b185ebca87
	h ^= h >> 29
	h = (h ^ binary.LittleEndian.Uint64(a[8:])) * 0xc2b2ae3d27d4eb4f
	h ^= h >> 32
	return h * 0x165667b19e3779f9
}
