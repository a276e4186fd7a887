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
//	  ─► new connection: Service's or host's address? later hook : the table decides
func (w *Worker) decide(p *Packet, s *snapshot, now int64) Path {
	h := &p.Headers
	switch p.Problem {
	case packet.OK:
		if h.Fragment && !p.Final {
			// The other pieces cannot be judged here, and a datagram is judged as
			// a whole.
			w.count.problems[packet.LaterFragment]++
			return DeferFragment
		}
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
	if !p.FromHost && (routersOnly(&h.Key) || s != nil && fromDHCPServer(&h.Key) && s.classifier.IsPod(h.Key.Src)) {
		w.undecided(p, s, CauseForged, now)
		return DropRouterMessage
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
	w.seen = conntrack.Packet{Key: h.Key, Length: packetLength(p), TCPSeq: h.TCPSeq, TCPFlags: h.TCPFlags, Plain: p.Plain}
	// What the host opened with the address it shares is not somebody else's.
	if w.table(&h.Key).Seen(&w.seen, now, &w.rec).Found() && !(p.Masked && w.rec.Host&hostSrc != 0) {
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
	if p.Service.IsZero() && !p.Real.Valid() { // or it is known to be to none
		p.Service = w.rec.Service
	}
	learnt := p.Service != w.rec.Service
	switch {
	case learnt && w.engine.cfg.Established == Strict:
		// It was judged before the backend could tell: no rule was about the Service.
		w.rec.Service = p.Service
		if d, cause := w.rejudge(s); d.Verdict != classifier.Allow {
			p.Verdict = d.Verdict
			w.denied(p, s, cause, w.rec.Key, d, w.rec.ID, now)
			return DropCut
		}
		path = PassRejudged
	case w.rec.Generation >= s.generation: // by a peer that is ahead
	case w.engine.cfg.Established == Keep && !s.passedOn(&w.rec.Key, w.settled):
		path = PassKept
	case w.engine.cfg.Established == Strict && s.vouches(&w.rec, w.settled):
	default:
		d, cause := w.rejudge(s)
		if d.Verdict != classifier.Allow {
			p.Verdict = d.Verdict
			w.denied(p, s, cause, w.rec.Key, d, w.rec.ID, now)
			return DropCut
		}
		path = PassRejudged
	}
	p.Remember = worthRemembering(&p.Headers)
	p.Reply = p.Headers.Key != w.rec.Key // the driver may not have known
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
func (w *Worker) rejudge(s *snapshot) (classifier.Decision, Cause) { return w.settle(s, &w.rec) }

// settle gives rec the decision of s. It runs on the worker's goroutine, on those
// of its peers and on the control goroutine, of which the later ones do nothing:
// all come to the same decision, and whoever cuts counts.
func (w *Worker) settle(s *snapshot, rec *conntrack.Record) (classifier.Decision, Cause) {
	d, cause := w.judge(s, rec.Key, rec.Service, rec.Host)
	if d.Verdict == classifier.Allow {
		w.table(&rec.Key).Restamp(rec, restamped(rec, s.generation, d))
	} else if w.table(&rec.Key).Forget(rec) {
		w.cutTotal.Add(1)
	}
	return d, cause
}

// Bits of conntrack.Admission.Host: which ends of a connection are this host, in
// the direction it was opened, and what else is known of its source.
const (
	hostSrc uint8 = 1 << iota
	hostDst
	masked // not this host, although the source address is
)

// hostEnds returns the bits of a packet for the direction k is in.
func hostEnds(p *Packet, reversed bool) (host uint8) {
	src, dst := p.FromHost, p.ToHost
	if reversed {
		src, dst = dst, src
	}
	if src {
		host |= hostSrc
	}
	if dst {
		host |= hostDst
	}
	if p.Masked && !reversed {
		host |= masked
	}
	return host
}

// judge asks the table about a connection, which was opened to via unless that is
// zero. What the host itself opens needs no policy. With fail mode closed an
// end that must be a pod of this node, but is none the table knows, makes it a
// denial: nobody's policy was asked about that end.
func (w *Worker) judge(s *snapshot, k flow.Key, via flow.Service, host uint8) (classifier.Decision, Cause) {
	if host&hostSrc != 0 {
		return classifier.NodeLocal, CausePolicy
	}
	if w.engine.cfg.FailMode == FailClosed {
		src, dst := s.classifier.UnknownLocal(k)
		dst = dst && host&hostDst == 0
		if src || dst {
			mine := w.driver.IsHost(k.Src)
			src, dst = src && !mine, dst && !mine && !w.driver.IsHost(k.Dst)
		}
		if src || dst || w.perhapsHere(s, &k, host) {
			return classifier.Decision{Verdict: classifier.Drop}, CauseUnknownLocal
		}
	}
	if w.driver.IsTunnel(k.Proto, k.DstPort) && s.classifier.IsPod(k.Src) &&
		(host&hostDst != 0 || s.classifier.IsNode(k.Dst) || w.driver.IsHost(k.Dst)) {
		return classifier.Decision{Verdict: classifier.Drop}, CauseTunnel
	}
	switch {
	case host&masked != 0:
		return s.classifier.LookupMasked(k), CausePolicy
	case via.IsZero():
		return s.classifier.Lookup(k), CausePolicy
	}
	return s.classifier.LookupVia(k, via), CausePolicy
}

// perhapsHere reports whether a connection is to an address that pods of any node may
// have, and no known pod or node has: a pod of this node, perhaps, that has just started,
// and whose device our programs may not be on yet. What such a pod sends meets them first.
func (w *Worker) perhapsHere(s *snapshot, k *flow.Key, host uint8) bool {
	return host&hostDst == 0 && w.driver.IsPodNetwork(k.Dst) &&
		!s.classifier.IsPod(k.Dst) && !s.classifier.IsNode(k.Dst) && !w.driver.IsHost(k.Dst)
}

// denied reports a denial by judge.
func (w *Worker) denied(p *Packet, s *snapshot, cause Cause, k flow.Key, d classifier.Decision, conn uint64, now int64) {
	if cause == CauseUnknownLocal || cause == CauseTunnel {
		w.undecided(p, s, cause, now)
		return
	}
	w.decided(p, s, cause, k, d, conn, now)
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
	if w.shownLater(p, s, &k) {
		return DeferVIP
	}
	if isEchoReply(&k) {
		// Permission to ask is permission to be answered; an answer by itself is
		// nobody's to give, whatever the rules allow.
		if !p.Final {
			return DeferDenied
		}
		w.undecided(p, s, CauseUnsolicited, now)
		return DropUnsolicited
	}
	host := hostEnds(p, p.Reply)
	if !p.Final && w.engine.cfg.FailMode == FailClosed && w.perhapsHere(s, &k, host) {
		return DeferDenied // the later hook sees the device it leaves by
	}
	d, cause := w.judge(s, k, p.Service, host)
	if d.Verdict != classifier.Allow {
		if w.opened(p, now) {
			return w.known(p, s, now)
		}
		if p.onward() && w.maybeNodePort(&h.Key) {
			return DeferVIP
		}
		if !p.Final && !p.Reply && !h.SYNOnly() {
			// It may belong to a connection that was accepted in the other
			// direction or before we started. The later hook knows, judges and
			// records; a segment that opens a TCP connection cannot belong to
			// an older one.
			return DeferDenied
		}
		p.Verdict = d.Verdict
		w.denied(p, s, cause, k, d, 0, now)
		switch cause {
		case CauseUnknownLocal:
			return DropUnknownLocal
		case CauseTunnel:
			return DropTunnel
		}
		// Who is to be told, or reported with every packet, must come up again.
		p.Remember = d.Verdict == classifier.Drop && !d.Audit && !w.forced.deny && !w.tells(p)
		return DropPolicy
	}
	p.Remember = worthRemembering(h)
	conn, known := w.insert(p, k, conntrack.Admission{
		Generation: s.generation, Egress: uint32(d.Egress), Ingress: uint32(d.Ingress), Verdict: uint8(d.Verdict),
		Host: host, Device: p.Device, Service: p.Service, Recorded: d.Audit || w.forced.allow, Bypassed: p.Remember,
	}, now)
	if known {
		return w.known(p, s, now)
	}
	w.decided(p, s, CausePolicy, k, d, conn, now)
	return PassNew
}

// reveal puts the connection's real ends in the place of the packet's own.
func (p *Packet) reveal() {
	switch h := &p.Headers; {
	case p.Problem != packet.OK:
	case h.IsError:
		h.Inner = p.Real.Reverse()
	case h.Key.Proto != p.Real.Proto:
		// The kernel takes it for a message about the connection, and we know none
		// of that kind: it is about nobody's.
		h.IsError, h.Inner = true, flow.Key{}
	default:
		h.Key = p.Real
	}
}

// onward reports whether the packet may be deferred to where its real ends show.
func (p *Packet) onward() bool { return p.Onward && !p.Real.Valid() }

// shownLater reports whether a connection's real ends show later: to another hook, or
// to ours where the packet leaves. k is p's key, in the direction it was opened in.
func (w *Worker) shownLater(p *Packet, s *snapshot, k *flow.Key) bool {
	return !p.Final && w.translated(s, k) || p.onward() && w.toService(s, &p.Headers.Key)
}

// translated reports whether an address of a connection may be one that is about
// to be replaced: a Service's, or the host's own, which leads to pods by node
// ports and host ports. Only the later hook sees both real ends: before it the
// backend is not known yet, and behind it masquerading may have made the client
// look like the host.
func (w *Worker) translated(s *snapshot, k *flow.Key) bool {
	return s.classifier.IsVIP(k.Dst) || s.classifier.IsVIP(k.Src) ||
		w.driver.IsHost(k.Dst) || w.driver.IsHost(k.Src)
}

// toService reports whether the address a packet goes to is about to be replaced. One
// that the host has itself is not: a cache of its own may serve it.
func (w *Worker) toService(s *snapshot, k *flow.Key) bool {
	return s.classifier.IsVIP(k.Dst) && !w.driver.IsHost(k.Dst)
}

// maybeNodePort reports whether a connection may be to a Service by way of the host:
// to one of the ports that Kubernetes takes for that by default. What the host itself
// has there is judged one packet later than the rest.
func (w *Worker) maybeNodePort(k *flow.Key) bool {
	const first, last = 30000, 32767
	return k.Proto.HasPorts() && k.DstPort >= first && k.DstPort <= last && w.driver.IsHost(k.Dst)
}

func isEchoReply(k *flow.Key) bool {
	switch k.Proto {
	case flow.ICMP:
		return k.DstPort>>8 == flow.ICMPEchoReply
	case flow.ICMPv6:
		return k.DstPort>>8 == flow.ICMPv6EchoReply
	}
	return false
}

// related handles an ICMP error. The quoted packet names the flow, and the error
// follows the connection it belongs to: whoever may send may hear what became of
// it. It goes to who sent the quoted packet and to nobody else, or a quote of
// somebody else's connection would get past the policy of whoever receives it.
//
// The quote proves nothing: anybody can write one. An error about a connection
// that nobody knows is a message like any other, judged by who sends it to whom;
// or a pod that may be opened to by nobody could be sent anything, wrapped in an
// error about a connection it might have opened. So is an error of a pod that is no end
// of the connection: routers report what became of others' packets, and a pod is none.
// What the quote says of TCP sequence numbers is left to the receiver (RFC 5927 §4.1),
// because most segments pass in the kernel and no worker sees them.
//
// Errors are never remembered and leave no record when they pass: the
// connection's own does.
func (w *Worker) related(p *Packet, s *snapshot, now int64) Path {
	inner := p.Headers.Inner
	if !inner.Valid() || inner.Src != p.Headers.Key.Dst {
		w.undecided(p, s, CauseICMPInner, now)
		return DropICMPInner
	}
	stranger := w.stranger(p, s)
	if rec, _, found := w.table(&inner).Lookup(inner, now); found && (!stranger || rec.Key.Src == p.Headers.Key.Src || rec.Key.Dst == p.Headers.Key.Src) {
		w.rec = rec
		if s.vouches(&w.rec, w.settled) || w.engine.cfg.Established == Keep && !s.passedOn(&w.rec.Key, w.settled) {
			return PassRelated
		}
		if d, _ := w.rejudge(s); d.Verdict == classifier.Allow {
			return PassRelated
		}
	}
	if !p.Final || p.onward() && w.translated(s, &inner) {
		return DeferRelated // the later hook may know the connection
	}
	k, via, host := p.Headers.Key, flow.Service{}, hostEnds(p, false)
	if opened, known := w.quotes(p); known && !stranger {
		// The error travels against the quoted packet.
		k, via, host = opened, p.Service, hostEnds(p, true)&hostSrc
		if k != inner {
			host = hostEnds(p, false) & hostDst
		}
	}
	d, cause := w.judge(s, k, via, host)
	if d.Verdict == classifier.Allow {
		return PassRelated
	}
	p.Verdict = d.Verdict
	if cause == CauseUnknownLocal {
		w.undecided(p, s, cause, now)
		return DropUnknownLocal
	}
	w.decided(p, s, CauseICMPError, p.Headers.Key, d, 0, now)
	return DropRelated
}

// stranger reports whether an ICMP error comes from a pod that is no end of the
// connection it is about, as far as the quote shows.
func (w *Worker) stranger(p *Packet, s *snapshot) bool {
	src := p.Headers.Key.Src
	if p.FromHost || src == p.Headers.Inner.Dst {
		return false
	}
	if s.classifier.IsPod(src) {
		return true
	}
	unknown, _ := s.classifier.UnknownLocal(p.Headers.Key)
	return unknown && !w.driver.IsHost(src)
}

// quotes reports whether the kernel remembers the connection that an ICMP error is
// about, and returns its key in the direction it was opened in.
func (w *Worker) quotes(p *Packet) (opened flow.Key, known bool) {
	inner := p.Headers.Inner
	reply := !p.Reply // the quoted packet travelled the other way
	known = p.Related
	if !known {
		reply, known = w.driver.Remembers(inner)
	}
	if reply {
		return inner.Reverse(), known
	}
	return inner, known
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

// routersOnly reports whether the message is one that only a router may send, and only
// to its own link: a redirect (RFC 792, RFC 4861 §4.5) or a router advertisement
// (RFC 4861 §4.2). None that reaches a worker is from the pods' router, which is this
// host: it would lead the receiver's traffic to whoever sent it.
func routersOnly(k *flow.Key) bool {
	const redirect, advertisement6, redirect6 = 5, 134, 137
	switch typ := k.DstPort >> 8; k.Proto {
	case flow.ICMP:
		return typ == redirect
	case flow.ICMPv6:
		return typ == advertisement6 || typ == redirect6
	}
	return false
}

// fromDHCPServer reports whether the packet is what a DHCP server sends to clients
// (RFC 2131 §4.1, RFC 8415 §7.2), who believe it.
func fromDHCPServer(k *flow.Key) bool {
	return k.Proto == flow.UDP && (k.SrcPort == 67 && k.DstPort == 68 || k.SrcPort == 547 && k.DstPort == 546)
}

// linkScope6 reports whether a is in fe80::/10 or ff02::/16 (or ff01::/16, which
// does not even leave the interface).
func linkScope6(a *flow.Addr) bool {
	return a[0] == 0xfe && a[1]&0xc0 == 0x80 || a[0] == 0xff && (a[1]&0x0f == 2 || a[1]&0x0f == 1)
}
