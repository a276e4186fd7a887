package rule

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/tierwall/tierwall/classifier/flow"
)

// Validate checks what lowering must guarantee. An error here is a bug in a
// dialect, not a user's mistake; it names the rule's origin.
func (s *Set) Validate() error {
	var errs []error
	bad := func(o *Origin, format string, args ...any) {
		errs = append(errs, fmt.Errorf("rule of %s: %s", o.Ref(), fmt.Sprintf(format, args...)))
	}
	for i := range s.Rules {
		r := &s.Rules[i]
		if r.Direction > flow.Egress {
			bad(&r.Origin, "no such direction: %d", r.Direction)
		}
		if int(r.Order.Band) >= NumBands {
			bad(&r.Origin, "no such band: %d", r.Order.Band)
		}
		if r.Action < Allow || r.Action > Skip {
			bad(&r.Origin, "no action")
		}
		if (r.Action == Skip) != (r.Skip != 0) {
			bad(&r.Origin, "action %s with skip set %b", r.Action, r.Skip)
		}
		if r.Auth && r.Action != Allow {
			bad(&r.Origin, "action %s cannot need authentication", r.Action)
		}
		for j := range r.Peers {
			if err := r.Peers[j].validate(); err != nil {
				bad(&r.Origin, "peer %d: %v", j, err)
			}
		}
		if err := r.validateServices(); err != nil {
			bad(&r.Origin, "%v", err)
		}
		for j := range r.L4 {
			if err := r.L4[j].validate(); err != nil {
				bad(&r.Origin, "ports entry %d: %v", j, err)
			}
		}
	}
	for i := range s.Isolations {
		iso := &s.Isolations[i]
		if iso.Direction > flow.Egress || int(iso.Band) >= NumBands {
			bad(&iso.Origin, "isolation in direction %d, band %d", iso.Direction, iso.Band)
		}
	}
	return errors.Join(errs...)
}

// validateServices: a rule to Services has no other peers, and its ports are the
// Services' own, each one number of a protocol.
func (r *Rule) validateServices() error {
	if !slices.ContainsFunc(r.Peers, func(p Peer) bool { return p.Kind == PeerService }) {
		return nil
	}
	if r.Direction != flow.Egress {
		return errors.New("a Service cannot open connections")
	}
	for i := range r.Peers {
		if r.Peers[i].Kind != PeerService {
			return errors.New("rule to Services has other peers, too")
		}
	}
	for _, l := range r.L4 {
		if !l.Proto.HasPorts() || l.Name != "" || l.Ports.First != l.Ports.Last || l.SrcPorts != AllPorts {
			return fmt.Errorf("%s of a Service: one port of one protocol is wanted", l.String())
		}
	}
	return nil
}

func (p *Peer) validate() error {
	if p.Kind < PeerAny || p.Kind > PeerService {
		return fmt.Errorf("no such kind: %d", p.Kind)
	}
	if p.Kind != PeerPods && !p.Relation.IsZero() {
		return errors.New("only pods can be related to the subject")
	}
	if p.Kind != PeerBlock {
		return nil
	}
	if err := checkPrefix(p.Block.Prefix); err != nil {
		return err
	}
	for _, e := range p.Block.Except {
		if err := checkPrefix(e); err != nil {
			return err
		}
	}
	return nil
}

func checkPrefix(p netip.Prefix) error {
	switch {
	case !p.IsValid():
		return errors.New("invalid prefix")
	case p != p.Masked():
		return fmt.Errorf("prefix %s has host bits", p)
	case p.Addr().Is4In6():
		return fmt.Errorf("prefix %s is IPv4 in mapped form", p)
	}
	return nil
}

func (l *L4) validate() error {
	if l.Ports.First > l.Ports.Last || l.SrcPorts.First > l.SrcPorts.Last {
		return fmt.Errorf("empty port range %v from %v", l.Ports, l.SrcPorts)
	}
	// A range without a protocol would mean ICMP types as well as ports.
	if l.Proto == flow.AnyProto && (l.Name == "" && l.Ports != AllPorts || l.SrcPorts != AllPorts) {
		return errors.New("a port range needs a protocol")
	}
	if l.SrcPorts != AllPorts && !l.Proto.HasPorts() {
		return fmt.Errorf("%s has no source ports", l.Proto)
	}
	return nil
}

// Validate checks the world: addresses valid and unmapped, names unique.
func (w *World) Validate() error {
	var errs []error
	nodes := map[string]bool{}
	for i := range w.Nodes {
		n := &w.Nodes[i]
		if nodes[n.Name] {
			errs = append(errs, fmt.Errorf("node %q is listed twice", n.Name))
		}
		nodes[n.Name] = true
		for _, a := range n.Addrs {
			if !usable(a) {
				errs = append(errs, fmt.Errorf("node %s has unusable address %q", n.Name, a))
			}
		}
	}
	for _, p := range w.LocalPrefixes {
		if err := checkPrefix(p); err != nil {
			errs = append(errs, fmt.Errorf("local prefixes: %w", err))
		}
	}
	for i := range w.Endpoints {
		e := &w.Endpoints[i]
		for _, a := range e.Addrs {
			if !usable(a) { // called with every table, for a hundred thousand pods
				errs = append(errs, fmt.Errorf("pod %s/%s has unusable address %q", e.Namespace, e.Name, a))
			}
		}
	}
	return errors.Join(errs...)
}

func usable(a netip.Addr) bool {
	return a.IsValid() && !a.Is4In6() && a.Zone() == "" && !a.IsUnspecified()
}

// String is a canonical text form: equal for selectors that are written alike.
// Requirement order does not matter.
func (s *Selector) String() string {
	if s.None {
		return "{none}"
	}
	var parts []string
	if s.Namespace != "" {
		parts = append(parts, fmt.Sprintf("namespace=%q", s.Namespace))
	}
	if len(s.NamespaceLabels) > 0 {
		parts = append(parts, "namespaces("+s.NamespaceLabels.String()+")")
	}
	if len(s.PodLabels) > 0 {
		parts = append(parts, "pods("+s.PodLabels.String()+")")
	}
	if s.ServiceAccount != "" {
		parts = append(parts, fmt.Sprintf("serviceAccount=%q", s.ServiceAccount))
	}
	if len(s.AnyOf) > 0 {
		alts := make([]string, len(s.AnyOf))
		for i := range s.AnyOf {
			alts[i] = s.AnyOf[i].String()
		}
		parts = append(parts, "anyOf["+strings.Join(alts, " ")+"]")
	}
	return "{" + strings.Join(parts, " ") + "}"
}

// String is a canonical text form; requirements are sorted.
func (l Labels) String() string {
	parts := make([]string, len(l))
	for i, r := range l {
		switch r.Op {
		case Exists:
			parts[i] = fmt.Sprintf("%q", r.Key)
		case NotExists:
			parts[i] = fmt.Sprintf("!%q", r.Key)
		case NotIn:
			parts[i] = fmt.Sprintf("%q!=%q", r.Key, r.Values)
		default:
			parts[i] = fmt.Sprintf("%q=%q", r.Key, r.Values)
		}
	}
	slices.Sort(parts)
	return strings.Join(parts, ",")
}

// String is "10.0.0.0/8", "10.0.0.0/8 except [10.1.0.0/16]".
func (b *IPBlock) String() string {
	s := b.Prefix.String()
	if len(b.Except) > 0 {
		s += fmt.Sprintf(" except %v", b.Except)
	}
	if b.NoPods {
		s += " without pods"
	}
	return s
}
