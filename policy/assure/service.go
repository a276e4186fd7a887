package assure

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/policy/inventory"
)

// service asks about connections to a Service: each of its ports that is asked
// about leads to every backend that the Service proxy would choose from.
func (q *asker) service(from, to End) ([]Case, error) {
	s, asked := to.Service, q.ports
	name := "svc/" + s.Namespace + "/" + s.Name
	if s.Headless && asked.Name == "" {
		// Clients reach the pods' own addresses, at the port they use.
		if err := q.backends(from, to, nil); err != nil {
			return nil, err
		}
		return q.out, q.err(from, to)
	}
	var declared []string
	found := false
	for i := range s.Ports {
		sp := &s.Ports[i]
		text := sp.Text()
		if sp.Name != "" {
			text += " (" + sp.Name + ")"
		}
		declared = append(declared, text)
		if !wantsServicePort(asked, sp) {
			continue
		}
		proto, err := flow.ParseProto(sp.Proto)
		if err != nil {
			return nil, err
		}
		found = true
		q.ports = Ports{Text: sp.Text(), Proto: proto, First: sp.Port, Last: sp.Port}
		if err := q.backends(from, to, sp); err != nil {
			return nil, err
		}
	}
	q.ports = asked
	switch {
	case found:
		return q.out, q.err(from, to)
	case len(declared) == 0:
		return nil, fmt.Errorf("%s has no ports", name)
	}
	return nil, fmt.Errorf("%s has no port %s; it has %s", name, asked.Text, strings.Join(declared, ", "))
}

// backends asks about the connections to a port of a Service; sp is nil if it is
// headless and any port is meant.
func (q *asker) backends(from, to End, sp *inventory.ServicePort) error {
	s := to.Service
	all, err := q.world.Snapshot.Backends(s, sp)
	if err != nil {
		return err
	}
	chosen := inventory.Chosen(all)
	if len(chosen) == 0 {
		return fmt.Errorf("svc/%s/%s has no ready backend (%s, for one, is not): the Service proxy refuses connections to it", s.Namespace, s.Name, all[0].Name)
	}
	for _, group := range perNode(s, from) {
		backends := chosen
		if group.node != "" {
			backends = slices.DeleteFunc(slices.Clone(chosen), func(b inventory.Backend) bool { return b.Node != "" && b.Node != group.node })
			if len(backends) == 0 {
				return fmt.Errorf("svc/%s/%s has no ready backend on node %s, where %s is, and its internalTrafficPolicy is Local: the Service proxy there drops connections to it",
					s.Namespace, s.Name, group.node, PodName(group.from.Pods[0]))
			}
		}
		q.clients(group.from, backends, sp, s)
	}
	return nil
}

// clients asks about the connections of an end to backends.
func (q *asker) clients(from End, backends []inventory.Backend, sp *inventory.ServicePort, s *inventory.Service) {
	asked := q.ports
	defer func() { q.ports = asked }()
	type port struct {
		number uint16
		name   string
	}
	ends := map[port]*End{}
	var order []port
	for i := range backends {
		b := &backends[i]
		at := port{b.Port, b.PortName}
		e := ends[at]
		if e == nil {
			e = &End{}
			ends[at], order = e, append(order, at)
		}
		e.add(q.world, b)
	}
	for _, at := range order {
		if q.ports = asked; at.number != 0 {
			q.ports.First, q.ports.Last = at.number, at.number
		}
		q.ports.Name = at.name
		for _, is4 := range []bool{true, false} {
			via := flow.Service{}
			if i := slices.IndexFunc(s.ClusterIPs, func(a netip.Addr) bool { return a.Is4() == is4 }); i >= 0 && sp != nil {
				via = flow.Service{Addr: flow.AddrFrom(s.ClusterIPs[i]), Port: sp.Port}
			} else if len(s.ClusterIPs) > 0 {
				continue // the Service has no address of this family to connect to
			}
			q.is4 = is4
			first := len(q.out)
			q.pairs(q.world.sources(from, is4), q.world.sources(*ends[at], is4))
			q.through(first, via)
		}
	}
}

// add adds a backend to an end, with the addresses that the Service leads to.
func (e *End) add(w *World, b *inventory.Backend) {
	if b.Pod != nil {
		for _, p := range w.workloads[w.ofPod[podKey{b.Pod.Namespace, b.Pod.Name}]] {
			if p.Name == b.Pod.Name {
				one := *p
				one.Addrs = b.Addrs
				e.Pods = append(e.Pods, &one)
				return
			}
		}
	}
	for _, a := range b.Addrs {
		e.Outside = append(e.Outside, netip.PrefixFrom(a, a.BitLen()))
	}
}

// clients of a Service that are on one node.
type clients struct {
	node string // "" where it makes no difference
	from End
}

// perNode divides the clients of a Service by their nodes, where only backends of
// the same node count.
func perNode(s *inventory.Service, from End) []clients {
	if !s.InternalLocal || s.Headless {
		return []clients{{from: from}}
	}
	var out []clients
	for _, p := range from.Pods {
		i := slices.IndexFunc(out, func(c clients) bool { return c.node == p.Node })
		if i < 0 {
			i = len(out)
			out = append(out, clients{p.Node, End{Text: from.Text}})
		}
		out[i].from.Pods = append(out[i].from.Pods, p)
	}
	if len(from.Outside) > 0 {
		out = append(out, clients{from: End{Text: from.Text, Outside: from.Outside}})
	}
	return out
}

// through judges the cases from first on as opened to a Service, if rules name it.
func (q *asker) through(first int, via flow.Service) {
	if via.IsZero() || q.world.Table.ServiceOf(via) == "" {
		return
	}
	for i := first; i < len(q.out); i++ {
		c := &q.out[i]
		c.Via = via
		d := q.world.Table.LookupVia(c.Packet, via)
		s := q.programs.sides
		c.Decision = s.decision(q.programs.side(0, flow.Egress, d.Egress), q.programs.side(0, flow.Ingress, d.Ingress))
	}
}

func wantsServicePort(p Ports, sp *inventory.ServicePort) bool {
	switch {
	case p.Proto == flow.AnyProto:
		return true
	case p.Proto.String() != sp.Proto:
		return false
	case p.Name != "":
		return p.Name == sp.Name
	}
	return p.First <= sp.Port && sp.Port <= p.Last
}
