package recommend

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/assure"
)

// End is an end of a connection as a log has it.
type End struct {
	Namespace, Pod string // "" for an address that no pod had
	Labels         map[string]string
	Addr           netip.Addr
	Node           string // the pod's node, or the node that has the address
	Service        bool   // the address is a Service's
}

func (e *End) name() string {
	if e.Pod != "" {
		return e.Namespace + "/" + e.Pod
	}
	return e.Addr.String()
}

// Connection is one decision of a log.
type Connection struct {
	From, To      End
	Proto         flow.Proto
	SrcPort, Port uint16 // Port is type<<8|code for ICMP
	Allowed       bool   // the connection was admitted; else it was refused
	// BySource is set for a decision of the node that decides for the source: a
	// connection between two nodes has one of either node.
	BySource bool
	// Answer is set for a TCP packet that opens nothing: it bears an ACK.
	Answer bool
	Time   time.Time
	Count  uint64 // packets
	// Names are the DNS names by which a rule let the connection pass.
	Names []string
}

// Bounds of what is remembered of a log.
const (
	// maxConnections bounds different connections. Beyond it outside addresses are
	// widened to prefixes, at last to everything.
	maxConnections = 1 << 20
	// maxAddresses bounds the outside addresses of one workload, direction and port.
	// Beyond it these are widened: nobody reads more, and each costs a class.
	maxAddresses = 1000
	maxUncovered = 1000   // different connections listed as not covered
	maxNames     = 100000 // names of pods that the manifests do not have
)

// widths are the prefix lengths outside addresses are widened to, by step.
var widths = [...][2]int{{32, 128}, {24, 64}, {16, 48}, {8, 32}, {0, 0}}

// Seen are connections that were seen, of some pods.
type Seen struct {
	world    *assure.World
	groups   *groups
	units    []*group                // chosen, in order
	subjects map[*rule.Endpoint]bool // pods that policies for them select

	pods     map[[2]string]*rule.Endpoint
	nodeOf   map[netip.Addr]string
	gone     map[[2]string]*rule.Endpoint // pods of the log that the manifests do not have
	taken    map[string]map[string]bool   // by workload: those names
	ends     []seenEnd
	ids      map[seenEnd]int32
	conns    map[connKey]*tally
	buckets  map[bucketKey]*bucket
	step     int // of widths
	limit    int // of conns; maxConnections
	uncover  map[uncoveredKey]*Uncovered
	more     uint64
	answers  uint64
	local    uint64 // from a node to its own pods
	total    uint64 // decisions given to Add
	relevant uint64 // of those, about the chosen
	unknown  map[string]bool
	known    uint64 // ends that are pods of the manifests
}

// seenEnd is a pod of the manifests, or addresses.
type seenEnd struct {
	pod    *rule.Endpoint
	prefix netip.Prefix
	node   string
}

type connKey struct {
	from, to int32
	proto    flow.Proto
	is4      bool
	port     uint16
}

// bucketKey names the outside addresses that a workload talks to at a port.
type bucketKey struct {
	group    *group
	outbound bool // they are the destinations
	proto    flow.Proto
	port     uint16
	is4      bool
}

type bucket struct {
	step  int // of widths
	addrs map[netip.Prefix]bool
}

// tally counts decisions of one kind of connection.
type tally struct {
	allowed, denied [2]uint64 // by the destination's node, by the source's
	names           []string
}

// count is how many connections there were: what both ends' nodes recorded is the
// same connections.
func (t *tally) count() uint64 { return max(t.allowed[0], t.allowed[1]) }

// passed reports whether connections came through: where the destination's node
// has refused all it has seen, none did.
func (t *tally) passed() bool {
	return t.count() > 0 && (t.allowed[0] > 0 || t.denied[0] == 0)
}

func (t *tally) refused() uint64 { return max(t.denied[0], t.denied[1]) }

// NewSeen prepares to count the connections of the pods chosen.
func NewSeen(w *assure.World, chosen []*rule.Endpoint) *Seen {
	s := &Seen{
		world: w, groups: newGroups(w), subjects: map[*rule.Endpoint]bool{}, pods: map[[2]string]*rule.Endpoint{}, nodeOf: map[netip.Addr]string{},
		gone: map[[2]string]*rule.Endpoint{}, taken: map[string]map[string]bool{}, ids: map[seenEnd]int32{}, conns: map[connKey]*tally{}, buckets: map[bucketKey]*bucket{},
		limit: maxConnections, uncover: map[uncoveredKey]*Uncovered{}, unknown: map[string]bool{},
	}
	for _, e := range w.Pods() {
		s.pods[[2]string{e.Namespace, e.Name}] = e
	}
	nodes := w.Table.World().Nodes
	for i := range nodes {
		for _, a := range nodes[i].Addrs {
			s.nodeOf[a] = nodes[i].Name
		}
	}
	for _, e := range chosen {
		u := s.groups.of[e]
		if u == nil || slices.Contains(s.units, u) {
			continue
		}
		s.units = append(s.units, u)
		s.groups.reduce(u)
		for _, p := range u.matched {
			if !p.HostNetwork {
				s.subjects[p] = true
			}
		}
	}
	slices.SortFunc(s.units, func(a, b *group) int {
		return cmp.Or(strings.Compare(a.title, b.title), strings.Compare(a.name, b.name))
	})
	return s
}

// Reasons not to cover a connection.
const (
	WhyUnknownPod = "the manifests have neither the pod nor a workload that it belongs to"
	WhyFamily     = "the pod has no address of this family in the manifests"
	WhyHost       = "the pod is on the host network, where no policy selects pods"
	WhyDenied     = "it was denied"
)

// Verdict is what Add makes of a connection.
type Verdict uint8

// Verdicts. What is not Counted is no connection to replay.
const (
	Counted Verdict = iota
	Irrelevant
	Uncoverable
	Refused
	AnswerOnly
)

// Add counts a connection. from and to are the pods that stand for its ends, nil
// for addresses.
func (s *Seen) Add(c *Connection) (v Verdict, from, to *rule.Endpoint) {
	s.total++
	return s.judge(c, true)
}

// Judge says of a connection what Add said, without counting it; after all were
// added it also knows which were refused elsewhere, and which were answers.
func (s *Seen) Judge(c *Connection) (v Verdict, from, to *rule.Endpoint) { return s.judge(c, false) }

func (s *Seen) judge(c *Connection, count bool) (v Verdict, from, to *rule.Endpoint) {
	a, whyA := s.resolve(&c.From, c)
	b, whyB := s.resolve(&c.To, c)
	from, to = a.pod, b.pod
	if !(from != nil && s.subjects[from]) && !(to != nil && s.subjects[to]) {
		if count && (whyA == WhyHost && s.hosted(&c.From) || whyB == WhyHost && s.hosted(&c.To)) {
			s.refuse(c, WhyHost)
		}
		if !(whyA == WhyUnknownPod && s.ours(&c.From)) && !(whyB == WhyUnknownPod && s.ours(&c.To)) {
			return Irrelevant, from, to
		}
	}
	if count {
		s.relevant++
	}
	for _, why := range []string{whyA, whyB} {
		if why == WhyUnknownPod || why == WhyFamily {
			if count {
				s.refuse(c, why)
			}
			return Uncoverable, from, to
		}
	}
	if from == to && from != nil {
		return Irrelevant, from, to // to itself: no policy decides it
	}
	if to != nil && a.node != "" && a.node == to.Node {
		if count {
			s.local++
		}
		return Irrelevant, from, to // a node reaches its own pods whatever policies say
	}
	if s.isAnswer(c, a, b) {
		if count {
			s.answers++
		}
		return AnswerOnly, from, to
	}
	if !count {
		k, ok := s.find(a, b, c)
		if t := s.conns[k]; !ok || t == nil || c.Allowed && !t.passed() {
			return Refused, from, to
		}
		return Counted, from, to
	}
	t := s.tally(a, b, c)
	side := 0
	if c.BySource {
		side = 1
	}
	if c.Allowed {
		t.allowed[side]++
		for _, n := range c.Names {
			if !slices.Contains(t.names, n) {
				t.names = append(t.names, n)
			}
		}
	} else {
		t.denied[side]++
	}
	return Counted, from, to
}

// isAnswer reports whether a packet belongs to a connection in the other direction
// that has been seen: an answer that came when the connection was forgotten. Only
// packets to ports that clients have, from a port that the other side was asked at,
// are answers.
func (s *Seen) isAnswer(c *Connection, a, b seenEnd) bool {
	if c.Proto != flow.UDP && !(c.Proto == flow.TCP && c.Answer) || c.Port < 1024 || c.SrcPort == 0 || c.SrcPort >= c.Port {
		return false
	}
	k, ok := s.find(b, a, &Connection{From: c.To, To: c.From, Proto: c.Proto, Port: c.SrcPort})
	t := s.conns[k]
	return ok && t != nil && t.passed()
}

// find returns the key of a connection. ok is false if one of its ends was not seen
// yet.
func (s *Seen) find(a, b seenEnd, c *Connection) (k connKey, ok bool) {
	k = connKey{proto: c.Proto, is4: c.From.Addr.Unmap().Is4(), port: c.Port}
	if bk, out, found := s.bucketOf(&a, &b, k); found {
		if u := s.buckets[bk]; u != nil {
			out.prefix = masked(out.prefix, max(u.step, s.step))
		}
	}
	from, ok1 := s.ids[a]
	to, ok2 := s.ids[b]
	k.from, k.to = from, to
	return k, ok1 && ok2
}

// tally returns where a connection is counted.
func (s *Seen) tally(a, b seenEnd, c *Connection) *tally {
	if k, ok := s.find(a, b, c); ok {
		if t := s.conns[k]; t != nil {
			return t
		}
	}
	if len(s.conns) >= s.limit && s.step+1 < len(widths) {
		s.widen()
	}
	k := connKey{proto: c.Proto, is4: c.From.Addr.Unmap().Is4(), port: c.Port}
	if bk, out, found := s.bucketOf(&a, &b, k); found {
		u := s.buckets[bk]
		if u == nil {
			u = &bucket{addrs: map[netip.Prefix]bool{}}
			s.buckets[bk] = u
		}
		if len(u.addrs) >= maxAddresses && !u.addrs[masked(out.prefix, max(u.step, s.step))] {
			for len(u.addrs) > maxAddresses/2 && u.step+1 < len(widths) {
				u.step++
				u.narrow(u.step)
			}
			s.recount(func(of bucketKey) bool { return of == bk })
		}
		out.prefix = masked(out.prefix, max(u.step, s.step))
		u.addrs[out.prefix] = true
	}
	k.from, k.to = s.id(a), s.id(b)
	t := s.conns[k]
	if t == nil {
		t = &tally{}
		s.conns[k] = t
	}
	return t
}

// bucketOf finds the bucket of a connection with one end outside, and that end.
func (s *Seen) bucketOf(a, b *seenEnd, k connKey) (bk bucketKey, out *seenEnd, ok bool) {
	switch {
	case a.pod != nil && b.pod == nil && b.node == "":
		return bucketKey{s.groups.of[a.pod], true, k.proto, k.port, k.is4}, b, true
	case b.pod != nil && a.pod == nil && a.node == "":
		return bucketKey{s.groups.of[b.pod], false, k.proto, k.port, k.is4}, a, true
	}
	return bk, nil, false
}

// masked widens an address to the prefix of a step.
func masked(p netip.Prefix, step int) netip.Prefix {
	bits := widths[step][1]
	if p.Addr().Is4() {
		bits = widths[step][0]
	}
	if p.Bits() > bits {
		p = netip.PrefixFrom(p.Addr(), bits).Masked()
	}
	return p
}

func (u *bucket) narrow(step int) {
	wide := map[netip.Prefix]bool{}
	for p := range u.addrs {
		wide[masked(p, step)] = true
	}
	u.addrs = wide
}

func (s *Seen) id(e seenEnd) int32 {
	id, ok := s.ids[e]
	if !ok {
		id = int32(len(s.ends))
		s.ends = append(s.ends, e)
		s.ids[e] = id
	}
	return id
}

// widen takes all outside addresses together to wider prefixes, so that fewer
// connections differ.
func (s *Seen) widen() {
	for len(s.conns) > s.limit/2 && s.step+1 < len(widths) {
		s.step++
		for _, u := range s.buckets {
			u.narrow(max(u.step, s.step))
		}
		s.recount(func(bucketKey) bool { return true })
	}
}

// recount counts the connections of buckets anew, by the prefixes they have now.
func (s *Seen) recount(concerns func(bucketKey) bool) {
	ends, conns := s.ends, s.conns
	s.ends, s.ids, s.conns = nil, map[seenEnd]int32{}, make(map[connKey]*tally, len(conns))
	for k, t := range conns {
		a, b := ends[k.from], ends[k.to]
		if bk, out, ok := s.bucketOf(&a, &b, k); ok && concerns(bk) {
			out.prefix = masked(out.prefix, max(s.buckets[bk].step, s.step))
		}
		k.from, k.to = s.id(a), s.id(b)
		old := s.conns[k]
		if old == nil {
			s.conns[k] = t
			continue
		}
		for side := range t.allowed {
			old.allowed[side] += t.allowed[side]
			old.denied[side] += t.denied[side]
		}
		for _, n := range t.names {
			if !slices.Contains(old.names, n) {
				old.names = append(old.names, n)
			}
		}
	}
}
