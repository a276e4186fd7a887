package assure

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"go4.org/netipx"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
)

// party is a kind of end: a pod with what its direction looks at, or an address.
type party struct {
	kind    *kind // nil for an address
	addr    *addrKind
	outside netip.Addr     // if kind is nil
	host    *rule.Endpoint // a pod in its node's network, without a name if it may come
	world   int            // of grid.worlds: where DNS knows the address as addr says
	ports   []rule.NamedPort
	named   []string // what ports are called, of a pod that may come
	node    string

	subject, peer int // numbers of its representatives
}

// rep stands for what one direction looks at of a party: as the subject of policies,
// or as the other end.
type rep struct {
	party *party
	addr  netip.Addr
	world int // -1: it is in all
}

// grid is all pairs of parties of one family.
type grid struct {
	*prover
	from, to []party
	subjects []rep // [0] stands for ends without policies of their own
	peers    []rep
	kinds    map[string]*addrKind
	worlds   int

	tables   []*classifier.Table // by policies, then world
	programs *reader
	reps     [][2][]classifier.End // by table: of subjects, of peers
	answers  [2][][][]int32        // egress, ingress: by policies, subject and peer
	verdicts [][]*breach           // by the answers of both directions; see nothing
	ranges   int
}

// portVariants lists what a pod that may come can call its ports: any subset of the
// names policies use, at a port of every range that policies tell apart.
func (g *grid) portVariants() ([][]string, error) {
	n := len(g.facts.names)
	if n > 10 {
		return nil, &errBound{fmt.Sprintf("policies use %d names of ports, and more than 10 are not told apart", n)}
	}
	out := make([][]string, 1<<n)
	for bits := range out {
		for i, name := range g.facts.names {
			if bits&(1<<i) != 0 {
				out[bits] = append(out[bits], name)
			}
		}
	}
	return out, nil
}

func (g *grid) portsOf(names []string) []rule.NamedPort {
	var out []rule.NamedPort
	for _, name := range names {
		for _, proto := range [...]flow.Proto{flow.TCP, flow.UDP, flow.SCTP} {
			for _, port := range g.facts.starts(proto) {
				out = append(out, rule.NamedPort{Name: name, Proto: proto, Port: port})
			}
		}
	}
	return out
}

// ends makes the parties of both sides, for pods with addresses in nets.
func (g *grid) ends(nets *netipx.IPSet) error {
	divided, err := g.addresses.divide(nets)
	if err != nil {
		return err
	}
	divided = g.addresses.learn(divided, true)
	g.kinds = map[string]*addrKind{}
	for i := range divided {
		g.kinds[divided[i].key] = &divided[i]
	}
	variants, err := g.portVariants()
	if err != nil {
		return err
	}
	var nodes []string // that open connections
	for _, dst := range []bool{false, true} {
		h, list := &g.facts.from, &g.from
		if dst {
			h, list = &g.facts.to, &g.to
		}
		g.hostEnds = len(nodes) > 0
		kinds, err := g.kindsOf(h)
		if err != nil {
			return err
		}
		if err := g.addressParties(h.end, list); err != nil {
			return err
		}
		for i := range *list { // one is enough: pods that come may be on it
			if n := (*list)[i].node; n != "" && len(nodes) == 0 && !dst {
				nodes = append(nodes, n)
			}
		}
		for i := range kinds {
			k := &kinds[i]
			x := party{kind: k}
			addrs := divided
			if k.pod != nil {
				if addrs = g.addressOf(k.pod); addrs == nil {
					continue // not of this family
				}
			}
			portsOf := variants
			if k.pod != nil || !dst {
				portsOf = variants[:1]
			}
			on := []string{""}
			if dst {
				on = append(on, nodes...)
				if k.pod != nil {
					on = []string{k.pod.Node}
				}
			}
			for j := range addrs {
				x.addr = g.kinds[addrs[j].key]
				for _, names := range portsOf {
					x.named, x.ports = names, nil
					switch {
					case k.pod != nil:
						x.ports = g.relevant(k.pod.Ports)
					case dst:
						x.ports = g.portsOf(names)
					}
					for _, x.node = range on {
						*list = append(*list, x)
					}
				}
			}
		}
	}
	g.represent()
	return nil
}

// relevant leaves out the ports whose names no policy uses.
func (p *prover) relevant(ports []rule.NamedPort) []rule.NamedPort {
	var out []rule.NamedPort
	for _, n := range ports {
		if slices.Contains(p.facts.names, n.Name) {
			out = append(out, n)
		}
	}
	return out
}

// addressOf returns the kinds the address of a pod may be of, nil if it has none of
// the family.
func (g *grid) addressOf(pod *rule.Endpoint) []addrKind {
	a, ok := pod.Addr(g.addresses.is4)
	if !ok {
		return nil
	}
	return g.single(a, true)
}

func (g *grid) single(a netip.Addr, pods bool) []addrKind {
	key := g.addresses.key(a)
	list := g.addresses.learn([]addrKind{{key: key, base: key, prefixes: []netip.Prefix{netip.PrefixFrom(a, a.BitLen())}}}, pods)
	for i := range list {
		if k := g.kinds[list[i].key]; k == nil {
			g.kinds[list[i].key] = &list[i]
		}
	}
	return list
}

// looks is equal for pods there are that only their labels tell apart.
func (p *prover) looks(pod *rule.Endpoint) string {
	s := fmt.Sprint(p.relevant(pod.Ports), " ")
	if p.hostEnds {
		s += pod.Node
	}
	for _, is4 := range []bool{true, false} {
		if a, ok := pod.Addr(is4); !ok {
			s += "/-"
		} else if is4 == p.addresses.is4 {
			s += fmt.Sprintf("/%x", p.addresses.key(a))
		} else {
			s += "/+"
		}
	}
	return s
}

// addressParties adds the addresses an end is about: outside ones, nodes, and pods
// in their nodes' networks.
func (g *grid) addressParties(e *claimEnd, list *[]party) error {
	seen := map[string]bool{}
	add := func(a netip.Addr, kinds []addrKind, x party) {
		for i := range kinds {
			k := kinds[i]
			k.key = fmt.Sprintf("address %s %s", a, k.key) // its own: pods do not get it
			if seen[k.key] {
				continue
			}
			seen[k.key] = true
			x.addr, x.outside = &k, a
			*list = append(*list, x)
			x.world++
		}
	}
	node := func(a netip.Addr, host *rule.Endpoint) {
		x := party{host: host}
		if n := g.nodeOf[a]; len(n) > 0 {
			x.node = n[0]
		}
		add(a, g.addresses.learn([]addrKind{{key: g.addresses.key(a), prefixes: []netip.Prefix{netip.PrefixFrom(a, a.BitLen())}}}, true), x)
	}
	for _, n := range e.outside {
		switch {
		case n.Addr().Is4() != g.addresses.is4:
		case n.IsSingleIP():
			a := n.Addr()
			if g.nodeOf[a] != nil {
				node(a, nil)
				continue
			}
			add(a, g.addresses.learn([]addrKind{{key: g.addresses.key(a), prefixes: []netip.Prefix{n}}}, false), party{})
		default:
			kinds, err := g.outside(n)
			if err != nil {
				return err
			}
			kinds = g.addresses.learn(kinds, false)
			// An address for each: DNS may know some of those that are alike.
			used := allocator{taken: map[netip.Addr]bool{}, next: map[string]*cursor{}}
			for i := range kinds {
				if a, world, ok := used.take(&kinds[i]); ok {
					add(a, kinds[i:i+1], party{world: world})
				}
			}
		}
	}
	if e.outside != nil {
		return nil
	}
	is4 := g.addresses.is4
	for _, ns := range g.namespaces {
		if e.pods == nil && (e.selector.Namespace != "" && e.selector.Namespace != ns.name || !e.selector.NamespaceLabels.Matches(ns.labels)) {
			continue
		}
		for _, pod := range g.podsIn[ns.name] {
			if a, ok := pod.Addr(is4); ok && pod.HostNetwork && g.mayBe(pod, &ns, e) {
				node(a, pod)
			}
		}
		if !g.claim.Rights.HostNetwork || !ns.free || e.pods != nil {
			continue
		}
		any := false
		for _, n := range g.world.Table.World().Nodes {
			for _, a := range n.Addrs {
				if a.Is4() == is4 {
					any = true
					node(a, &rule.Endpoint{Namespace: ns.name, Node: n.Name, NamespaceLabels: ns.labels, HostNetwork: true})
				}
			}
		}
		if !any {
			return &errBound{"pods may use their node's network (rights.hostNetwork), and nothing says which addresses nodes have"}
		}
	}
	return nil
}

// mayBe reports whether a pod in its node's network is meant by an end, or can be
// made so by labels where rights are about such pods.
func (g *grid) mayBe(pod *rule.Endpoint, ns *namespaceKind, e *claimEnd) bool {
	if e.pods != nil {
		return slices.Contains(e.pods, pod)
	}
	for _, r := range e.selector.PodLabels {
		if (!ns.free || !g.claim.Rights.HostNetwork || slices.Contains(g.claim.Rights.KeepLabels, r.Key)) && !r.Matches(pod.Labels) {
			return false
		}
	}
	return true
}

// outside returns the kinds of addresses in a prefix that are no pod's and no node's.
func (g *grid) outside(n netip.Prefix) ([]addrKind, error) {
	var b netipx.IPSetBuilder
	b.AddPrefix(n)
	g.removeNodes(&b)
	world := g.world.Table.World()
	for i := range world.Nodes {
		for _, c := range world.Nodes[i].PodCIDRs {
			b.RemovePrefix(c)
		}
	}
	for i := range world.Endpoints {
		for _, a := range world.Endpoints[i].Addrs {
			b.Remove(a)
		}
	}
	set, err := b.IPSet()
	if err != nil {
		return nil, err
	}
	return g.addresses.divide(set)
}

// represent numbers what the two directions look at of each party.
func (g *grid) represent() {
	g.subjects = []rep{{world: -1}}
	ids := map[string]int{}
	number := func(list *[]rep, id string, r rep) int {
		i, ok := ids[id]
		if !ok {
			i = len(*list)
			ids[id] = i
			*list = append(*list, r)
		}
		return i
	}
	for _, dst := range []bool{false, true} {
		list, leaves := g.from, g.facts.from.leaves
		if dst {
			list, leaves = g.to, g.facts.to.leaves
		}
		for i := range list {
			x := &list[i]
			if x.kind == nil {
				x.peer = number(&g.peers, fmt.Sprint(dst, x.addr.key), rep{party: x, addr: x.outside, world: x.world})
				continue
			}
			bits := func(of func(*leaf) bool) string {
				b := make([]bool, len(leaves))
				for j := range b {
					b[j] = x.kind.matched[j] && of(&leaves[j])
				}
				return bitKey(b)
			}
			ports := fmt.Sprintf("%q %v", x.named, x.ports)
			x.subject = number(&g.subjects, fmt.Sprintf("s%t %x %s %s %q", dst, bits(func(l *leaf) bool { return l.subject }), x.kind.related, ports, x.node), rep{party: x, world: -1})
			x.peer = number(&g.peers, fmt.Sprintf("p%t %x %s %s %x", dst, bits(func(l *leaf) bool { return l.peer }), x.kind.related, ports, x.addr.key), rep{party: x})
		}
	}
}

// subjectNets are where representatives of subjects get addresses: nobody looks at
// them (RFC 1112, section 4, and a unique local prefix).
var subjectNets = [2]netip.Addr{netip.MustParseAddr("240.0.0.1"), netip.MustParseAddr("fd7f:7477:7072::1")}

// compile makes the tables in which representatives are asked about.
func (g *grid) compile() error {
	world := g.world.Table.World()
	alloc := allocator{taken: map[netip.Addr]bool{}, next: map[string]*cursor{}}
	for a := range g.nodeOf {
		alloc.taken[a] = true
	}
	for i := range g.peers {
		if g.peers[i].party.kind == nil {
			alloc.taken[g.peers[i].addr] = true
		}
	}
	g.worlds = 1
	for i := range g.peers {
		r := &g.peers[i]
		if r.party.kind != nil {
			var ok bool
			if r.addr, r.world, ok = alloc.take(r.party.addr); !ok {
				return &errBound{fmt.Sprintf("no address is left in %v for pods", r.party.addr.prefixes[0])}
			}
		}
		g.worlds = max(g.worlds, r.world+1)
	}
	const most = 64
	if g.worlds > most {
		return &errBound{"too many kinds of pods may have one address that policies name"}
	}
	next := subjectNets[0]
	if !g.addresses.is4 {
		next = subjectNets[1]
	}
	for i := range g.subjects {
		g.subjects[i].addr = next
		next = next.Next()
	}
	for _, set := range g.sets {
		for at := range g.worlds {
			w := &rule.World{Nodes: world.Nodes, VIPs: world.VIPs, Sets: maps.Clone(world.Sets)}
			if w.Sets == nil {
				w.Sets = map[string][]netip.Prefix{}
			}
			for i := range world.Endpoints {
				if world.Endpoints[i].HostNetwork {
					w.Endpoints = append(w.Endpoints, world.Endpoints[i])
				}
			}
			for i := range g.subjects[1:] {
				r := &g.subjects[i+1]
				w.Endpoints = append(w.Endpoints, r.party.endpoint(fmt.Sprint("subject-", i), r.addr))
			}
			for i := range g.peers {
				r := &g.peers[i]
				if r.world != at {
					continue
				}
				if r.party.kind != nil {
					w.Endpoints = append(w.Endpoints, r.party.endpoint(fmt.Sprint("peer-", i), r.addr))
				}
				for _, name := range r.party.addr.learnt {
					w.Sets[name] = append(slices.Clip(w.Sets[name]), netip.PrefixFrom(r.addr, r.addr.BitLen()))
				}
			}
			own := rule.Set{Rules: slices.Clone(set.Rules), Isolations: slices.Clone(set.Isolations)}
			t, _, err := classifier.Compile(own, w, classifier.Options{})
			if err != nil {
				return fmt.Errorf("compile a world of pods that could be: %w", err)
			}
			g.tables = append(g.tables, t)
			var ends [2][]classifier.End
			for i := range g.subjects {
				ends[0] = append(ends[0], t.EndOf(g.subjects[i].addr))
			}
			for i := range g.peers {
				ends[1] = append(ends[1], t.EndOf(g.peers[i].addr))
			}
			g.reps = append(g.reps, ends)
		}
	}
	g.programs = newPrograms(g.tables...).reader()
	for d := range g.answers {
		for range g.sets {
			g.answers[d] = append(g.answers[d], make([][]int32, len(g.subjects)))
		}
	}
	return nil
}

// endpoint makes a pod of a party.
func (x *party) endpoint(name string, a netip.Addr) rule.Endpoint {
	return rule.Endpoint{
		Namespace: x.kind.namespace, Name: name, Labels: x.kind.labels, NamespaceLabels: x.kind.nsLabels,
		ServiceAccount: x.kind.account, Node: x.node, Addrs: []netip.Addr{a}, Ports: x.ports,
	}
}
