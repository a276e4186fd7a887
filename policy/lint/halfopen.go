package lint

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/diag"
	"github.com/tierwall/tierwall/policy/inventory"
)

// Bounds of the search for half-open rules.
const (
	maxLookups   = 2_000_000
	maxPortsEach = 64 // ports tried of a rule about a range
)

// HalfOpen is the check of that name alone.
func HalfOpen(objs []*api.Object, set *rule.Set, inv *inventory.Snapshot) diag.List {
	c := newChecker(objs, set, inv)
	c.run(diag.HalfOpen, c.halfOpen)
	c.found.Sort()
	return c.found
}

// halfOpen: rules that allow connections between pods of which not one gets through,
// because the policies that isolate the other end in the other direction allow none of
// them. A rule of which one connection passes is not reported, nor one whose
// connections a Deny refuses: that is somebody's decision.
func (c *checker) halfOpen() {
	if len(c.pods) == 0 {
		return
	}
	world := c.inv.World("")
	c.inv.FillSets(world, c.set)
	set := rule.Set{Rules: slices.Clone(c.set.Rules), Isolations: slices.Clone(c.set.Isolations)}
	table, _, err := classifier.Compile(set, world, classifier.Options{})
	if err != nil {
		return // what cannot be compiled is reported elsewhere
	}
	h := halves{checker: c, table: table, ports: portsOf(c.set)}
	for i := range c.set.Rules {
		r := &c.set.Rules[i]
		p := c.of(&r.Origin)
		if p == nil || r.Stage != rule.Enforce || r.Action != rule.Allow || r.Auth || r.ToServices() || len(r.Peers) == 0 ||
			slices.ContainsFunc(r.Peers, func(p rule.Peer) bool { return p.Kind != rule.PeerPods }) {
			continue
		}
		if w, ok := h.refused(r); ok {
			c.warn(p.object, rulePath(r), w, "allow the connection in the other direction, too, or remove the rule")
		}
		if h.lookups > maxLookups {
			return // the rest is not looked at: a warning that would have to guess is not given
		}
	}
}

type halves struct {
	*checker
	table   *classifier.Table
	ports   []uint16
	lookups int
}

// refused returns an example of the rule's connections, if all are refused by the
// isolation of the other end.
func (h *halves) refused(r *rule.Rule) (example string, found bool) {
	for i := range h.pods {
		subject := &h.pods[i]
		if subject.HostNetwork || !r.Subject.Matches(subject) {
			continue
		}
		for j := range h.pods {
			peer := &h.pods[j]
			if i == j || peer.HostNetwork || !slices.ContainsFunc(r.Peers, func(p rule.Peer) bool {
				return p.Pods.Matches(peer) && (p.Relation.IsZero() || p.Relation.Holds(subject, peer))
			}) {
				continue
			}
			from, to := subject, peer
			if r.Direction == flow.Ingress {
				from, to = peer, subject
			}
			text, passes := h.pair(r, from, to)
			if passes || h.lookups > maxLookups {
				return "", false
			}
			if !found && text != "" {
				example, found = text, true
			}
		}
	}
	return example, found
}

// pair tries a rule's connections between two pods. passes is set as soon as one is not
// refused by isolation.
func (h *halves) pair(r *rule.Rule, from, to *rule.Endpoint) (example string, passes bool) {
	src, dst, ok := addressesOf(from, to)
	if !ok {
		return "", true // not known yet: nothing can be said
	}
	for i := range r.L4 {
		l := &r.L4[i]
		ports, ok := h.portsFor(l, to)
		if !ok {
			return "", true
		}
		for _, proto := range triedOf(l.Proto) {
			for _, port := range ports {
				h.lookups++
				k := flow.MakeKey(proto, netip.AddrPortFrom(src, max(l.SrcPorts.First, 1)), netip.AddrPortFrom(dst, port))
				d := h.table.Lookup(k)
				mine, others := h.table.Outcome(d.Egress), h.table.Outcome(d.Ingress)
				other := flow.Ingress
				if r.Direction == flow.Ingress {
					mine, others, other = others, mine, flow.Egress
				}
				switch {
				case mine.Verdict != classifier.Allow:
					continue // decided by somebody stronger on its own side
				case others.Verdict == classifier.Allow || others.Reason != classifier.ReasonIsolation:
					return "", true
				}
				if example == "" {
					iso := h.table.Isolation(others.Isolations[0])
					example = fmt.Sprintf("allows connections that no %s rule allows: %s/%s -> %s/%s %d/%s is refused by the %s isolation of %s %s",
						other, from.Namespace, from.Name, to.Namespace, to.Name, port, proto, other, iso.Origin.Kind, nameOf(&iso.Origin))
					if n := len(others.Isolations); n > 1 {
						example += fmt.Sprintf(" and %d more", n-1)
					}
				}
			}
		}
	}
	return example, false
}

func nameOf(o *rule.Origin) string {
	if o.Namespace == "" {
		return o.Name
	}
	return o.Namespace + "/" + o.Name
}

// addressesOf returns addresses of one family.
func addressesOf(from, to *rule.Endpoint) (src, dst netip.Addr, ok bool) {
	for _, a := range from.Addrs {
		for _, b := range to.Addrs {
			if a.Is4() == b.Is4() && a != b {
				return a, b, true
			}
		}
	}
	return netip.Addr{}, netip.Addr{}, false
}

// portsFor returns the ports to try for a rule's ports at a destination. ok is false
// where they are too many to try all that rules tell apart.
func (h *halves) portsFor(l *rule.L4, to *rule.Endpoint) (ports []uint16, ok bool) {
	if l.Name != "" {
		for _, p := range to.Ports {
			if p.Name == l.Name && (l.Proto == flow.AnyProto || p.Proto == l.Proto) {
				ports = append(ports, p.Port)
			}
		}
		return ports, true
	}
	if l.Ports.First == l.Ports.Last {
		return []uint16{l.Ports.First}, true
	}
	ports = append(ports, max(l.Ports.First, 1))
	for _, p := range to.Ports {
		if l.Ports.Contains(p.Port) {
			ports = append(ports, p.Port)
		}
	}
	for _, p := range h.ports {
		if l.Ports.Contains(p) {
			ports = append(ports, p)
		}
	}
	slices.Sort(ports)
	ports = slices.Compact(ports)
	return ports, len(ports) <= maxPortsEach
}

// portsOf returns the ports that rules of a set name, as one of each range: what tells
// ports apart.
func portsOf(set *rule.Set) []uint16 {
	seen := map[uint16]bool{}
	for i := range set.Rules {
		for j := range set.Rules[i].L4 {
			l := &set.Rules[i].L4[j]
			if l.Name == "" && l.Ports != rule.AllPorts {
				seen[l.Ports.First] = true
				if l.Ports.Last < 0xffff {
					seen[l.Ports.Last+1] = true
				}
			}
		}
	}
	out := make([]uint16, 0, len(seen))
	for p := range seen {
		out = append(out, p)
	}
	slices.Sort(out)
	return out
}

func triedOf(p flow.Proto) []flow.Proto {
	if p == flow.AnyProto {
		return []flow.Proto{flow.TCP, flow.UDP, flow.SCTP}
	}
	return []flow.Proto{p}
}
