package assure

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
)

// Witness is a connection that refutes a claim, asked about in the world there is
// with the witness's pods added.
type Witness struct {
	From, To WitnessEnd
	Packet   flow.Key
	Via      flow.Service // where it is opened to, if to a Service
	Service  string       // its name
	Protocol string
	Decision Decision
	// Names are patterns of DNS names that have to lead to an address of the two.
	Names []string
	// NetworkPolicies says which have to come for it, by direction; Policies in words.
	NetworkPolicies [2]NetworkPolicyKind
	Policies        []string
	// Table has decided it: the world there is, with the two ends.
	Table *classifier.Table
}

// NetworkPolicyKind is what a NetworkPolicy that somebody creates does to a
// connection.
type NetworkPolicyKind int

// What NetworkPolicies do: they are the indexes of prover.sets.
const (
	NoNetworkPolicy NetworkPolicyKind = iota
	AllowingNetworkPolicy
	IsolatingNetworkPolicy
)

// MadeUpPolicy is the name of NetworkPolicies that a witness needs.
const MadeUpPolicy = "any-that-may-be-created"

// WitnessEnd is an end of a witness.
type WitnessEnd struct {
	Name            string // "namespace/pod", or an address
	Pod             *rule.Endpoint
	Addr            netip.Addr
	Exists          bool // the pod is there, as it is or relabelled
	Relabelled      bool
	NewNamespace    bool
	LabelsNamespace bool // the namespace is there and would have other labels
	HostNetwork     bool
	Host            *rule.Endpoint // with HostNetwork, the pod; Pod is nil. It has no name if it may come
	Node            string
}

// witness asks again, in the world there is with the two ends, and takes away what
// it does not need.
func (g *grid) witness(f *found) (*Witness, error) {
	from, to := g.settle(f)
	for i, e := range []*rule.Endpoint{from, to} {
		x := f.from
		if i > 0 {
			x = f.to
		}
		if e == nil || x.kind.pod != nil && !x.kind.relabelled {
			continue
		}
		for _, key := range slices.Sorted(maps.Keys(e.Labels)) {
			if err := g.without(f, from, to, e, key); err != nil {
				return nil, err
			}
		}
	}
	w, ok, err := g.confirm(f, from, to, true)
	if err == nil && !ok {
		err = &errBound{"internal: a connection seemed to refute it, and does not where it was asked again; please report this"}
	}
	return w, err
}

// without takes a label away that the witness does not need.
func (g *grid) without(f *found, from, to, e *rule.Endpoint, key string) error {
	h := g.facts.from.end
	if e == to {
		h = g.facts.to.end
	}
	if f.service != nil && e == to {
		if _, ok := f.service.Selector[key]; ok {
			return nil // it is a backend by this label
		}
	}
	kept := e.Labels
	e.Labels = maps.Clone(e.Labels)
	delete(e.Labels, key)
	if slices.Contains(g.claim.Rights.KeepLabels, key) || !h.selector.PodLabels.Matches(e.Labels) {
		e.Labels = kept
		return nil
	}
	_, ok, err := g.confirm(f, from, to, false)
	if !ok {
		e.Labels = kept
	}
	return err
}

// settle makes the two pods of a breach. nil stands for an address.
func (g *grid) settle(f *found) (from, to *rule.Endpoint) {
	s, d := f.from, f.to
	make := func(x *party, at int, taken *rule.Endpoint, name string) *rule.Endpoint {
		if x.kind == nil {
			return nil
		}
		k := x.kind
		if k.pod != nil && !k.relabelled {
			if k.pod == taken {
				return k.other
			}
			return k.pod
		}
		ns := &g.namespaces[at]
		e := &rule.Endpoint{
			Namespace: ns.name, Name: name, Labels: maps.Clone(k.labels), NamespaceLabels: ns.labels,
			ServiceAccount: k.account, Node: x.node,
		}
		if k.pod != nil {
			e.Name, e.Node, e.Ports, e.Addrs = k.pod.Name, k.pod.Node, k.pod.Ports, k.pod.Addrs
			if pod := k.other; pod != nil && taken != nil && taken.Name == e.Name && taken.Namespace == e.Namespace {
				e.Name, e.Node, e.Ports, e.Addrs = pod.Name, pod.Node, pod.Ports, pod.Addrs
			}
			return e
		}
		for _, n := range x.named { // only at the port of the connection
			if proto := g.programs.protos[f.proto]; slices.Contains(x.ports, rule.NamedPort{Name: n, Proto: proto, Port: f.port}) {
				e.Ports = append(e.Ports, rule.NamedPort{Name: n, Proto: proto, Port: f.port})
			}
		}
		return e
	}
	i, j := 0, 0
	if s.kind != nil {
		i = s.kind.members[0]
	}
	if d.kind != nil {
		j = d.kind.members[0]
	}
	if s.kind != nil && d.kind != nil {
		i, j, _ = g.together(s.kind, d.kind)
	}
	from = make(s, i, nil, "from-witness")
	return from, make(d, j, from, "to-witness")
}

// confirm decides the connection in the world there is with the two ends; of the
// other pods only if all is set, and those in the nodes' networks. ok is false if it
// is as claimed.
func (g *grid) confirm(f *found, from, to *rule.Endpoint, all bool) (*Witness, bool, error) {
	known := g.world.Table.World()
	w := &rule.World{Nodes: known.Nodes, VIPs: known.VIPs, Sets: maps.Clone(known.Sets)}
	if w.Sets == nil {
		w.Sets = map[string][]netip.Prefix{}
	}
	taken := map[netip.Addr]bool{}
	for a := range g.nodeOf {
		taken[a] = true
	}
	for i := range known.Endpoints {
		for _, a := range known.Endpoints[i].Addrs {
			taken[a] = true
		}
	}
	out := &Witness{Protocol: g.programs.protoName(f.proto), Via: f.via}
	if f.service != nil {
		out.Service = f.service.Namespace + "/" + f.service.Name
	}
	place := func(x *party, e *rule.Endpoint) (WitnessEnd, *rule.Endpoint) {
		end := WitnessEnd{Pod: e, Node: x.node}
		if e == nil {
			end.Addr, end.Name, end.HostNetwork = x.outside, x.outside.String(), x.host != nil
			if h := x.host; h != nil {
				end.Host, end.Exists, end.Name = h, h.Name != "", PodName(h)
				if !end.Exists {
					end.Name = "a pod of namespace " + h.Namespace
				}
			}
		} else {
			pod := *e
			end.Name = PodName(e)
			if pod.Addrs == nil {
				a := g.freeAddr(x.addr, taken)
				taken[a] = true
				pod.Addrs = []netip.Addr{a}
			}
			end.Addr, _ = pod.Addr(g.addresses.is4)
			end.Pod = &pod
			end.Exists = x.kind.pod != nil
			end.Relabelled = x.kind.relabelled
			labels, ok := g.world.namespaces[pod.Namespace]
			end.NewNamespace = !ok
			end.LabelsNamespace = ok && !maps.Equal(labels, pod.NamespaceLabels)
		}
		for _, name := range x.addr.learnt {
			w.Sets[name] = append(slices.Clip(w.Sets[name]), netip.PrefixFrom(end.Addr, end.Addr.BitLen()))
			_, pattern, _ := strings.Cut(name, ":")
			out.Names = append(out.Names, fmt.Sprintf("%s leads to %s", pattern, end.Addr))
		}
		return end, end.Pod
	}
	var a, b *rule.Endpoint
	out.From, a = place(f.from, from)
	out.To, b = place(f.to, to)
	for i := range known.Endpoints {
		e := known.Endpoints[i]
		gone := false
		for _, x := range []*rule.Endpoint{a, b} {
			if x == nil {
				continue
			}
			// Relabelled, or somebody had the only address there is.
			gone = gone || x.Namespace == e.Namespace && x.Name == e.Name || !e.HostNetwork && slices.ContainsFunc(x.Addrs, func(a netip.Addr) bool { return slices.Contains(e.Addrs, a) })
			if x.Namespace == e.Namespace {
				e.NamespaceLabels = x.NamespaceLabels
			}
		}
		if !gone && (all || e.HostNetwork) {
			w.Endpoints = append(w.Endpoints, e)
		}
	}
	for _, x := range []*rule.Endpoint{a, b} {
		if x != nil {
			w.Endpoints = append(w.Endpoints, *x)
		}
	}
	out.Packet = flow.Key{
		Src: flow.AddrFrom(out.From.Addr), Dst: flow.AddrFrom(out.To.Addr), Proto: g.programs.protos[f.proto], DstPort: f.port,
	}
	if c := f.cell.src; c != rule.AllPorts && c != (rule.PortRange{}) && !c.Contains(SourcePort) {
		out.Packet.SrcPort = c.First
	} else if out.Packet.Proto.HasPorts() {
		out.Packet.SrcPort = SourcePort
	}
	set := g.mixed(f.policies, out)
	t, _, err := classifier.Compile(*set, w, classifier.Options{})
	if err != nil {
		return nil, false, fmt.Errorf("compile the world of a witness: %w", err)
	}
	out.Table = t
	p := newPrograms(t).reader()
	d := t.LookupVia(out.Packet, out.Via)
	eg, in := p.side(0, flow.Egress, d.Egress), p.side(0, flow.Ingress, d.Ingress)
	out.Decision = p.sides.decision(eg, in)
	asked := *g
	asked.programs = p
	return out, !asked.asClaimed(eg, in), nil
}

// mixed returns the policies of both directions, which may be others if
// NetworkPolicies may come.
func (g *grid) mixed(policies [2]int, out *Witness) *rule.Set {
	set := &rule.Set{}
	says := [...]string{"", "any NetworkPolicy that allows it may come", "any NetworkPolicy that isolates the pod may come"}
	for _, d := range flow.Directions {
		from := g.sets[policies[d]]
		for i := range from.Rules {
			if from.Rules[i].Direction == d {
				set.Rules = append(set.Rules, from.Rules[i])
			}
		}
		for i := range from.Isolations {
			if from.Isolations[i].Direction == d {
				set.Isolations = append(set.Isolations, from.Isolations[i])
			}
		}
		out.NetworkPolicies[d] = NetworkPolicyKind(policies[d])
		if s := says[policies[d]]; s != "" {
			out.Policies = append(out.Policies, d.String()+": "+s)
		}
	}
	return set
}

// freeAddr returns an address of a kind that nobody has; if there is none, one that
// somebody has.
func (g *grid) freeAddr(k *addrKind, taken map[netip.Addr]bool) netip.Addr {
	for _, p := range k.prefixes {
		n := 0
		for a := p.Addr(); p.Contains(a) && n < 1<<16; a = a.Next() {
			if n++; a == p.Addr() && !p.IsSingleIP() {
				continue // looks like a network's own
			}
			if !taken[a] {
				return a
			}
		}
	}
	return k.prefixes[0].Addr()
}
