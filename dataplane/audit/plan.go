package audit

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/packet"
)

// What an event's records say depends on two things: on the decision, which a
// table makes a few hundred different ones of, and on the packet. The first part
// is worked out once per table and kept, finished text included (entry); the
// second is a handful of numbers (facts). A line is the two put together.

// entry is what one record says about the decision.
type entry struct {
	// proto has every field that does not depend on the packet. What it points
	// to is shared and never changes.
	proto  Record
	prefix []byte // from the opening brace to the time
	head   []byte // node to reason
	tail   []byte // backend and table generation
	denial bool   // one of the kind that is aggregated
	hit    *hit
}

func newEntry(r Record) entry {
	e := entry{proto: r, denial: denies(&r)}
	e.prefix = append(e.prefix, `{"v":`...)
	e.prefix = strconv.AppendInt(e.prefix, int64(r.V), 10)
	e.prefix = append(e.prefix, `,"kind":`...)
	e.prefix = append(appendString(e.prefix, r.Kind), `,"time":`...)
	e.head = r.appendHead(nil)
	e.tail = optString(e.tail, `,"backend":`, r.Backend)
	e.tail = optUint(e.tail, `,"tableGeneration":`, r.TableGeneration, false)
	return e
}

// facts is what a record says about the packet, or the packets.
type facts struct {
	time, until int64 // Unix nanoseconds; until 0 = one packet
	key         flow.Key
	hasKey      bool
	hasSrc      bool  // of the key, its source alone
	src, dst    *host // with hasKey, hasSrc
	span        *Ports
	folded      bool // no ports, no ICMP type: there were many
	flags       uint8
	length      uint32
	iface       string
	conn        uint64
	count       uint64
}

// host is what is known about an address.
type host struct {
	end   Endpoint // without a port
	names []byte   // as JSON
}

// stranger is the host of every address nothing is known about; its IP is the
// key's.
var stranger = &host{}

// plan is what an event leads to.
type plan struct {
	entries    []entry
	denials    int  // of the entries
	unresolved bool // the table was gone
}

// planKey is what plans depend on.
type planKey struct {
	generation      uint64
	egress, ingress classifier.OutcomeID
	verdict         classifier.Verdict
	cause           dataplane.Cause
	problem         packet.Problem
	backend         uint8
	forced          bool
	service         flow.Service
}

// Limits of what is kept per writer: enough for several tables' decisions, and
// for the pods that talk at a time. Beyond it the cache starts over.
const (
	maxPlans       = 8192
	maxHosts       = 16384
	maxGenerations = 4 // tables kept from the garbage collector
)

// planner works out plans and hosts, and remembers them.
type planner struct {
	build  *builder
	source Source
	hits   *hits
	plans  map[planKey]*plan
	tables map[uint64]*tableCache
	last   *tableCache // of the last event: most of the time the next one's
}

type tableCache struct {
	generation uint64
	res        Resolver
	hosts      map[flow.Addr]*host
}

func newPlanner(b *builder, s Source) *planner {
	return &planner{build: b, source: s, hits: newHits(), plans: map[planKey]*plan{}, tables: map[uint64]*tableCache{}}
}

// table returns the cache of a generation; its res is nil if the table is gone.
func (p *planner) table(generation uint64) *tableCache {
	if t := p.last; t != nil && t.generation == generation {
		return t
	}
	t := p.tables[generation]
	if t == nil {
		t = &tableCache{generation: generation, hosts: map[flow.Addr]*host{}}
		if generation != 0 {
			t.res = p.source.Resolver(generation)
		}
		if len(p.tables) >= maxGenerations {
			oldest := generation
			for g := range p.tables {
				oldest = min(oldest, g)
			}
			if oldest == generation {
				return t // older than all we keep: the last of its kind
			}
			delete(p.tables, oldest)
		}
		if t.res == nil && generation != 0 {
			return t // ask again next time
		}
		p.tables[generation] = t
	}
	p.last = t
	return t
}

func (t *tableCache) host(b *builder, a flow.Addr) *host {
	if h := t.hosts[a]; h != nil {
		return h
	}
	end := b.endpoint(a, t.res)
	if end.Pod == "" && end.Node == "" && !end.Service {
		return stranger // not kept: there is no end to them
	}
	if len(t.hosts) >= maxHosts {
		clear(t.hosts)
	}
	h := &host{end: end, names: end.appendNames(nil)}
	t.hosts[a] = h
	return h
}

// plan returns what e leads to.
func (p *planner) plan(e *dataplane.Event, t *tableCache) *plan {
	key := planKey{
		generation: e.Generation, egress: e.Egress, ingress: e.Ingress, verdict: e.Verdict,
		cause: e.Cause, problem: e.Problem, backend: e.Backend, forced: e.Forced, service: e.Service,
	}
	if pl := p.plans[key]; pl != nil {
		return pl
	}
	pl := &plan{}
	policy := e.Cause == dataplane.CausePolicy || e.Cause == dataplane.CauseICMPError
	pl.unresolved = t.res == nil && (policy || e.Generation != 0)
	bare := *e // the packet's part is added later
	bare.Key, bare.Conn, bare.Device, bare.Length, bare.TCPFlags, bare.Time, bare.Count = flow.Key{}, 0, 0, 0, 0, 0, 0
	p.build.records(&bare, t.res, func(r Record) {
		r.Time, r.Count = time.Time{}, 0
		en := newEntry(r)
		en.hit = p.hits.of(&r)
		if en.denial {
			pl.denials++
		}
		pl.entries = append(pl.entries, en)
	})
	if pl.unresolved {
		return pl // the next table of this generation may be known
	}
	if len(p.plans) >= maxPlans {
		clear(p.plans)
	}
	p.plans[key] = pl
	return pl
}

// facts fills f for an event.
func (p *planner) facts(f *facts, e *dataplane.Event, t *tableCache, wall int64) {
	*f = facts{time: wall, key: e.Key, hasKey: e.Key.Valid(), length: e.Length, iface: p.build.ifname(e.Device), conn: e.Conn, count: e.Count}
	if f.hasSrc = onlySource(&e.Key); f.hasSrc {
		f.src = t.host(p.build, e.Key.Src)
	}
	if f.hasKey {
		f.src, f.dst = t.host(p.build, e.Key.Src), t.host(p.build, e.Key.Dst)
		if e.Key.Proto == flow.TCP {
			f.flags = e.TCPFlags
		}
	}
}

// onlySource reports whether all that a key says is who sent the packets.
func onlySource(k *flow.Key) bool { return *k == flow.Key{Src: k.Src} && k.Src != flow.Addr{} }

// numbering is the part of a line that belongs to the file.
type numbering struct {
	seq, events uint64
	prev        []byte // hexadecimal; nil = no chain
}

// protoTexts has the names of all protocols as JSON.
var protoTexts = func() (t [256][]byte) {
	for p := range t {
		t[p] = appendString([]byte(`,"protocol":`), flow.Proto(p).String())
	}
	return t
}()

// appendJSON puts entry and facts together: byte for byte what record's
// appendJSON says.
func (e *entry) appendJSON(b []byte, f *facts, n numbering, s *stamps) []byte {
	b = append(b, e.prefix...)
	b = s.append(b, f.time)
	if f.until != 0 {
		b = s.append(append(b, `,"until":`...), f.until)
	}
	b = append(b, e.head...)
	if f.hasSrc {
		b = append(b, `,"source":{"ip":`...)
		b = appendHost(b, f.key.Src, f.src, 0, false)
	}
	if f.hasKey {
		k := &f.key
		ports := k.Proto.HasPorts() && !f.folded
		b = append(b, `,"source":{"ip":`...)
		b = appendHost(b, k.Src, f.src, k.SrcPort, ports)
		b = append(b, `,"destination":{"ip":`...)
		b = appendHost(b, k.Dst, f.dst, k.DstPort, ports)
		b = append(b, protoTexts[k.Proto]...)
		if hasType(k.Proto) && !f.folded {
			b = optUint(b, `,"icmpType":`, uint64(k.DstPort>>8), true)
			b = optUint(b, `,"icmpCode":`, uint64(k.DstPort&0xff), true)
		}
		if f.span != nil {
			b = appendPorts(b, *f.span)
		}
		if f.flags != 0 {
			b = optString(b, `,"tcpFlags":`, flagTexts[f.flags])
		}
	}
	b = optUint(b, `,"length":`, uint64(f.length), false)
	b = optString(b, `,"interface":`, f.iface)
	b = append(b, e.tail...)
	if f.conn != 0 {
		b = append(b, `,"connection":"`...)
		b = append(strconv.AppendUint(b, f.conn, 16), '"')
	}
	b = optUint(b, `,"count":`, f.count, true)
	b = optUint(b, `,"seq":`, n.seq, false)
	b = optUint(b, `,"events":`, n.events, false)
	if n.prev != nil {
		b = append(b, `,"prev":"`...)
		b = append(append(b, n.prev...), '"')
	}
	return append(b, '}', '\n')
}

// hasType reports whether a key has an ICMP or IGMP type in the place of a port.
func hasType(p flow.Proto) bool { return p == flow.ICMP || p == flow.ICMPv6 || p == flow.IGMP }

func appendHost(b []byte, a flow.Addr, h *host, port uint16, ports bool) []byte {
	b = append(b, '"')
	if a.Is4() {
		for i, octet := range a[12:] {
			if i > 0 {
				b = append(b, '.')
			}
			b = strconv.AppendUint(b, uint64(octet), 10)
		}
	} else {
		b = a.Netip().AppendTo(b)
	}
	b = append(b, '"')
	if ports {
		b = optUint(b, `,"port":`, uint64(port), false)
	}
	return append(append(b, h.names...), '}')
}

// record returns entry and facts as a Record, with nothing shared that its
// owner might change by accident, bar the policies.
func (e *entry) record(f *facts, n numbering) Record {
	r := e.proto
	r.Time = time.Unix(0, f.time).UTC()
	if f.until != 0 {
		until := time.Unix(0, f.until).UTC()
		r.Until = &until
	}
	if f.hasSrc {
		src := f.src.end
		src.IP = f.key.Src.Netip()
		r.Source = &src
	}
	if f.hasKey {
		k := &f.key
		src, dst := f.src.end, f.dst.end
		src.IP, dst.IP = k.Src.Netip(), k.Dst.Netip()
		if k.Proto.HasPorts() && !f.folded {
			src.Port, dst.Port = k.SrcPort, k.DstPort
		}
		if hasType(k.Proto) && !f.folded {
			typ, code := uint8(k.DstPort>>8), uint8(k.DstPort)
			r.ICMPType, r.ICMPCode = &typ, &code
		}
		r.Source, r.Destination, r.Protocol = &src, &dst, k.Proto.String()
		r.Ports, r.TCPFlags = f.span, flagTexts[f.flags]
	}
	r.Length, r.Interface, r.Count = f.length, f.iface, f.count
	if f.conn != 0 {
		r.Connection = strconv.FormatUint(f.conn, 16)
	}
	r.Seq, r.Events, r.Prev = n.seq, n.events, string(n.prev)
	return r
}

// Hit counts the packets recorded for one line of policy. Allowed connections
// count once, denied packets each.
type Hit struct {
	Policy    Policy // zero where no policy decided, and where several isolate
	Isolating string // with Policy zero: the policies that isolate, see refs
	Rule      string // the rule's name; "" if it has none or there is no rule
	Index     int    // the rule's index, -1 without a rule
	Direction string
	Band      string
	Verdict   string
	Stage     string
	Reason    string
	Packets   uint64
}

// maxHits bounds the lines of policy counted apart; what comes later counts as
// one Hit whose Reason is "other".
const maxHits = 16384

type hit struct {
	what    Hit // Packets unused
	packets atomic.Uint64
}

// hits counts by line of policy. Entries share counters with their successors
// of newer tables, so the counts outlive policy changes elsewhere. The lock is
// for finding a counter, not for counting.
type hits struct {
	mu  sync.Mutex
	all map[Hit]*hit
}

func newHits() *hits { return &hits{all: map[Hit]*hit{}} }

func (h *hits) of(r *Record) *hit {
	if r.Kind != KindFlow {
		return nil
	}
	k := Hit{Index: -1, Direction: r.Direction, Band: r.Band, Verdict: r.Verdict, Stage: r.Stage, Reason: r.Reason}
	switch d := r.Deciders(); len(d) {
	case 0:
	case 1:
		k.Policy = d[0]
		k.Policy.Generation = 0
	default:
		k.Isolating = refs(d)
	}
	if r.Rule != nil {
		k.Rule, k.Index = r.Rule.Name, r.Rule.Index
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.all[k]
	if c == nil {
		if len(h.all) >= maxHits {
			k = Hit{Index: -1, Reason: "other"}
			if c = h.all[k]; c != nil {
				return c
			}
		}
		c = &hit{what: k}
		h.all[k] = c
	}
	return c
}

// maxRefs bounds the policies that refs names.
const maxRefs = 8

// refs names policies as matrix and explain do, separated by commas.
func refs(policies []Policy) string {
	var b strings.Builder
	for i := range policies {
		if i == maxRefs {
			fmt.Fprintf(&b, " and %d more", len(policies)-i)
			break
		}
		if i > 0 {
			b.WriteByte(',')
		}
		p := &policies[i]
		o := rule.Origin{Group: p.Group, Kind: p.Kind, Namespace: p.Namespace, Name: p.Name}
		b.WriteString(o.Ref())
	}
	return b.String()
}

func (h *hits) list() []Hit {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := make([]Hit, 0, len(h.all))
	for _, c := range h.all {
		x := c.what
		x.Packets = c.packets.Load()
		out = append(out, x)
	}
	return out
}
