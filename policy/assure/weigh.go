package assure

import (
	"net/netip"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
)

// LogEnd is an end of a connection that was seen.
type LogEnd struct {
	Namespace, Pod string // "" for an address outside
	Labels         map[string]string
	Addr           netip.Addr
}

// weightKey names the connections between two ends of one family and protocol; an
// end outside is "".
type weightKey struct {
	from, to, protocol string
	family             int
}

type weight struct {
	src, dst netip.Addr
	port     uint16
	count    uint64
}

// weights are connections that were seen.
type weights struct {
	unitOf map[podKey]string
	byNS   map[string][]*rule.Endpoint
	seen   map[weightKey][]weight
}

// Weigh counts connections that were really seen, so that Changes tells how many
// each change concerns. A pod that is not in the new state counts as one of its
// namespace with all labels that were recorded. ok is false if an end is unknown.
// Call it before Changes.
func (d *Diff) Weigh(from, to LogEnd, proto flow.Proto, port uint16, count uint64) (ok bool) {
	if d.weights == nil {
		d.weights = &weights{unitOf: map[podKey]string{}, byNS: map[string][]*rule.Endpoint{}, seen: map[weightKey][]weight{}}
		for i := range d.units {
			for _, s := range d.units[i].slots {
				if s.now.Name != "" {
					d.weights.unitOf[keyOf(s.now)] = d.units[i].name
					d.weights.byNS[s.now.Namespace] = append(d.weights.byNS[s.now.Namespace], s.now)
				}
			}
		}
	}
	w := d.weights
	a, ok1 := w.name(&from)
	b, ok2 := w.name(&to)
	if !ok1 || !ok2 {
		return false
	}
	k := weightKey{a, b, d.programs.nameOf(proto), 6}
	if from.Addr.Unmap().Is4() {
		k.family = 4
	}
	for i := range w.seen[k] {
		if x := &w.seen[k][i]; x.port == port && (a != "" || x.src == from.Addr) && (b != "" || x.dst == to.Addr) {
			x.count += count
			return true
		}
	}
	w.seen[k] = append(w.seen[k], weight{from.Addr.Unmap(), to.Addr.Unmap(), port, count})
	return true
}

func (w *weights) name(e *LogEnd) (string, bool) {
	if e.Pod == "" {
		return "", true
	}
	if n, ok := w.unitOf[podKey{e.Namespace, e.Pod}]; ok {
		return n, true
	}
	for _, p := range w.byNS[e.Namespace] {
		if len(e.Labels) > 0 && hasAll(p.Labels, e.Labels) {
			return w.unitOf[keyOf(p)], true
		}
	}
	return "", false
}

func hasAll(labels, want map[string]string) bool {
	for k, v := range want {
		if got, ok := labels[k]; !ok || got != v {
			return false
		}
	}
	return true
}

func (p *programs) nameOf(proto flow.Proto) string {
	for i := range p.protos[:len(p.protos)-1] {
		if p.protos[i] == proto {
			return proto.String()
		}
	}
	return Other
}

// seen counts the weighed connections of a change.
func (d *Diff) seen(c *Change) uint64 {
	if d.weights == nil {
		return 0
	}
	k := weightKey{c.From, c.To, c.Protocol, c.Family}
	from, err := netip.ParsePrefix(c.From)
	if err == nil {
		k.from = ""
	}
	to, err := netip.ParsePrefix(c.To)
	if err == nil {
		k.to = ""
	}
	n := uint64(0)
	for _, w := range d.weights.seen[k] {
		if c.Ports[0] <= w.port && w.port <= c.Ports[1] && (!from.IsValid() || from.Contains(w.src)) && (!to.IsValid() || to.Contains(w.dst)) {
			n += w.count
		}
	}
	return n
}

// Units names everything that was compared, in order: workloads or pods, then
// addresses of nodes.
func (d *Diff) Units() []string {
	out := make([]string, len(d.units))
	for i := range d.units {
		out[i] = d.units[i].name
	}
	return out
}

// Protocols names the protocols that changes of a family are about: all together
// they are all there are.
func (d *Diff) Protocols(family int) []string { return d.programs.protocolNames(family) }

func (p *programs) protocolNames(family int) []string {
	var out []string
	for i, proto := range p.protos {
		if !skips(proto, family == 4) {
			out = append(out, p.protoName(i))
		}
	}
	return out
}

// AllPorts returns the ports that a protocol has, by its name in a Change.
func AllPorts(protocol string) [2]uint16 {
	p, err := flow.ParseProto(protocol)
	if err != nil {
		return [2]uint16{}
	}
	r := ports(p)
	return [2]uint16{r.First, r.Last}
}
