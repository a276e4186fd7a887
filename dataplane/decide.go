package dataplane

import (
	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/conntrack"
	"github.com/tierwall/tierwall/dataplane/packet"
)

// decide finds a packet's path, keeps the connection table and reports events.
// s is nil before the first table. The order of checks:
//
//	not IP ─► malformed ─► link-local signalling ─► no table yet
//	  ─► ICMP error: the connection it is about decides
//	  ─► known connection: its record decides, or the table again if it is older
//	  ─► new connection: Service address? later hook : the table decides
func (w *Worker) decide(p *Packet, s *snapshot, now int64) Path {
	h := &p.Headers
	switch p.Problem {
	case packet.OK:
	case packet.NotIP:
		return PassNotIP
	case packet.LaterFragment:
		w.count.problems[p.Problem]++
		if !p.Final {
			return DeferFragment
		}
		w.undecided(p, s, CauseProblem, now)
		return DropProblem
	default:
		w.count.problems[p.Problem]++
		w.undecided(p, s, CauseProblem, now)
		return DropProblem
	}
	if linkLocalSignal(&h.Key) {
		return PassLinkLocal
	}
	if s == nil {
		return w.notReady(p, now)
	}
	if h.IsError {
		return w.related(p, s, now)
	}
	w.seen = conntrack.Packet{Key: h.Key, Length: packetLength(p), TCPSeq: h.TCPSeq, TCPFlags: h.TCPFlags}
	if w.conns.Seen(&w.seen, now, &w.rec).Found() {
		return w.known(p, s, now)
	}
	return w.first(p, s, now)
}

// notReady handles packets that come before the first table.
func (w *Worker) notReady(p *Packet, now int64) Path {
	switch {
	case w.engine.cfg.FailMode != FailOpen:
		w.undecided(p, nil, CauseNotReady, now)
		return DropNotReady
	case p.Final:
		return PassNotReady // and not remembered: the first table must see it
	}
	return DeferNotReady
}

// known handles a packet of a connection in the table, whose record is w.rec.
// Only allowed connections are there.
func (w *Worker) known(p *Packet, s *snapshot, now int64) Path {
	path := PassHit
	if w.rec.Generation != s.generation {
		if w.engine.cfg.Established == Keep {
			path = PassKept
		} else {
			d := w.rejudge(s)
			if d.Verdict != classifier.Allow {
				p.Verdict = d.Verdict
				w.decided(p, s, CausePolicy, w.rec.Key, d, w.rec.ID, now)
				return DropCut
			}
			path = PassRejudged
		}
	}
	p.Remember = worthRemembering(&p.Headers)
	return path
}

// worthRemembering reports whether the kernel should learn a connection from
// this packet. One that is being closed is not worth it, and a kernel that
// learned it from its FIN would not see that it ends.
func worthRemembering(h *packet.Headers) bool {
	return h.Key.Proto != flow.TCP || h.TCPFlags&(packet.FIN|packet.RST) == 0
}

// rejudge asks the table again about w.rec, which an older one allowed, and
// restamps or forgets it.
func (w *Worker) rejudge(s *snapshot) classifier.Decision {
	d := s.classifier.Lookup(w.rec.Key)
	// Either call does nothing if the control goroutine was here first; it came
	// to the same decision and counted what it cut.
	if d.Verdict == classifier.Allow {
		w.conns.Restamp(&w.rec, restamped(&w.rec, s.generation, d))
	} else if w.conns.Forget(&w.rec) {
		w.cutTotal.Add(1)
	}
	return d
}

// restamped is rec's admission by the table of generation.
func restamped(rec *conntrack.Record, generation uint64, d classifier.Decision) conntrack.Admission {
	a := rec.Admission
	a.Generation, a.Egress, a.Ingress, a.Verdict = generation, uint32(d.Egress), uint32(d.Ingress), uint8(d.Verdict)
	return a
}

// first handles the first packet of a connection, w.seen. It may reuse the tuple
// of an older one: that record stays until this connection is allowed.
func (w *Worker) first(p *Packet, s *snapshot, now int64) Path {
	h := &p.Headers
	k := h.Key
	if p.Reply {
		k = k.Reverse() // judged in the direction it was opened in
	}
	if !p.Final && (s.classifier.IsVIP(k.Dst) || s.classifier.IsVIP(k.Src)) {
		return DeferVIP
	}
	d := s.classifier.Lookup(k)
	if d.Verdict != classifier.Allow {
		if !p.Final && !p.Reply && !h.SYNOnly() {
			// It may belong to a connection that was accepted in the other
			// direction or before we started. The later hook knows, judges and
			// records; a segment that opens a TCP connection cannot belong to
			// an older one.
			return DeferDenied
		}
		p.Verdict = d.Verdict
		w.decided(p, s, CausePolicy, k, d, 0, now)
		return DropPolicy
	}
	p.Remember = worthRemembering(h)
	conn := w.conns.Insert(k, &w.seen, conntrack.Admission{
		Generation: s.generation, Egress: uint32(d.Egress), Ingress: uint32(d.Ingress), Verdict: uint8(d.Verdict),
		Device: p.Device, Recorded: d.Audit || w.forced.allow, Bypassed: p.Remember,
	}, now)
	w.decided(p, s, CausePolicy, k, d, conn, now)
	return PassNew
}

// related handles an ICMP error. The quoted packet names the flow: the error
// travels against it, so a connection that may exist may also hear of its
// errors. Errors are never remembered and leave no record when they pass: the
// connection's own does.
func (w *Worker) related(p *Packet, s *snapshot, now int64) Path {
	inner := p.Headers.Inner
	if !inner.Valid() {
		w.undecided(p, s, CauseICMPInner, now)
		return DropICMPInner
	}
	if rec, _, found := w.conns.Lookup(inner, now); found {
		w.rec = rec
		if w.rec.Generation == s.generation || w.engine.cfg.Established == Keep {
			return PassRelated
		}
		if w.rejudge(s).Verdict == classifier.Allow {
			return PassRelated
		}
	}
	if !p.Final && (s.classifier.IsVIP(inner.Dst) || s.classifier.IsVIP(inner.Src)) {
		return DeferRelated
	}
	d := s.classifier.Lookup(inner)
	if d.Verdict == classifier.Allow {
		return PassRelated
	}
	if !p.Final {
		return DeferRelated // the later hook may know the connection
	}
	p.Verdict = d.Verdict
	w.decided(p, s, CauseICMPError, p.Headers.Key, d, 0, now)
	return DropRelated
}

// linkLocalSignal reports whether the packet is signalling that keeps a link
// working and that no router forwards: IPv6 neighbour discovery (RFC 4861),
// multicast listener and router discovery (RFC 2710, RFC 3810, RFC 4286) and
// IGMP for link-local groups (RFC 3376). Policy must not break these, or a pod
// loses its gateway.
//
// The type alone would be a hole, since a pod can send any type anywhere: one
// address must be of link scope, which routers do not forward (RFC 4291
// §2.5.6 and §2.7, RFC 5771 §4).
func linkLocalSignal(k *flow.Key) bool {
	switch k.Proto {
	case flow.ICMPv6:
		switch typ := k.DstPort >> 8; {
		case typ >= 130 && typ <= 137, typ == 143, typ >= 151 && typ <= 153:
			return linkScope6(&k.Src) || linkScope6(&k.Dst)
		}
	case flow.IGMP:
		return k.Dst.Is4() && k.Dst[12] == 224 && k.Dst[13] == 0 && k.Dst[14] == 0 // 224.0.0.0/24
	}
	return false
}

// linkScope6 reports whether a is in fe80::/10 or ff02::/16 (or ff01::/16, which
// does not even leave the interface).
func linkScope6(a *flow.Addr) bool {
	return a[0] == 0xfe && a[1]&0xc0 == 0x80 || a[0] == 0xff && (a[1]&0x0f == 2 || a[1]&0x0f == 1)
}
