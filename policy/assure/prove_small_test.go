package assure

import (
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/oracle/universe"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/inventory"
)

// small is a random world with what may be asked of pods kept so small that all of
// them can be enumerated.
type small struct {
	r     *rand.Rand
	set   rule.Set
	world *rule.World
	snap  *inventory.Snapshot

	keys, values []string // of labels, of pods and namespaces
	accounts     []string
	names        []string
	addrs        [2][]netip.Addr // that pods may have, IPv6 and IPv4
	learnt       []string
	narrow       bool // rules look at addresses
}

const smallService = "service:x/s"

// drawSmall keeps some of what policies of a random universe ask about.
func drawSmall(r *rand.Rand) *small {
	s := &small{r: r, keys: []string{"app"}, values: []string{"", "a", "b", "o1", "o2"}, accounts: []string{"o"}}
	s.set, s.world = universe.Random(r)
	s.world.Node = ""
	two, accounts, names, addresses, services := r.IntN(3) == 0, r.IntN(4) == 0, r.IntN(4) == 0, r.IntN(4) == 0, r.IntN(3) == 0
	if addresses { // which are dear: every pair of pods is a world
		two, accounts, names = false, false, r.IntN(8) == 0
	}
	s.narrow = addresses
	if two {
		s.keys = append(s.keys, "tier")
		s.values = s.values[:4]
	}
	if accounts {
		s.accounts = append(s.accounts, "sa")
	}
	if names {
		s.names = []string{"http"}
	}
	labels := func(l rule.Labels) rule.Labels {
		return slices.DeleteFunc(l, func(q rule.Requirement) bool { return !slices.Contains(s.keys, q.Key) })
	}
	var selector func(x *rule.Selector)
	selector = func(x *rule.Selector) {
		x.PodLabels, x.NamespaceLabels = labels(x.PodLabels), labels(x.NamespaceLabels)
		if !accounts {
			x.ServiceAccount = ""
		}
		for i := range x.AnyOf {
			selector(&x.AnyOf[i])
		}
	}
	keep := s.set.Rules[:0]
	for _, x := range s.set.Rules {
		selector(&x.Subject)
		peers := x.Peers[:0]
		for _, p := range x.Peers {
			switch p.Kind {
			case rule.PeerPods:
				selector(&p.Pods)
				for _, rel := range []*rule.LabelRelation{&p.Relation.NamespaceLabels, &p.Relation.PodLabels} {
					rel.Keys = slices.DeleteFunc(rel.Keys, func(k string) bool { return !slices.Contains(s.keys, k) })
				}
			case rule.PeerBlock:
				if !addresses {
					p = rule.Peer{Kind: rule.PeerAny}
				}
			case rule.PeerSet:
				if !addresses {
					continue
				}
				switch p.Set {
				case "mixed":
					p.Set = "fqdn:mixed"
				case "outside":
					p.Set = "cilium-fqdn:outside"
				default:
					if r.IntN(4) > 0 {
						p.Set = "nodes"
					}
				}
			case rule.PeerService:
				if !services {
					continue
				}
				p.Set = smallService
			}
			peers = append(peers, p)
		}
		x.Peers = peers
		for i := range x.L4 {
			if l := &x.L4[i]; l.Name != "" && !slices.Contains(s.names, l.Name) {
				l.Name, l.Ports = "", rule.PortRange{First: 80, Last: 80}
				if l.Proto == flow.AnyProto {
					l.Proto = flow.TCP
				}
			}
		}
		if len(x.Peers) > 0 && x.Peers[0].Kind == rule.PeerService {
			x.Peers = slices.DeleteFunc(x.Peers, func(p rule.Peer) bool { return p.Kind != rule.PeerService })
		}
		keep = append(keep, x)
	}
	s.set.Rules = keep
	for i := range s.set.Isolations {
		selector(&s.set.Isolations[i].Subject)
	}
	s.set.Sort()
	s.world.Sets = map[string][]netip.Prefix{
		"nodes": s.world.Sets["nodes"], "devices": s.world.Sets["devices"], "missing": nil, "fqdn:mixed": nil, "cilium-fqdn:outside": nil,
		smallService: {netip.MustParsePrefix("10.96.0.1/32"), netip.MustParsePrefix("fd96::1/128")},
	}
	for i := range s.set.Rules {
		for _, p := range s.set.Rules[i].Peers {
			if p.Kind == rule.PeerSet && inventory.LearntSet(p.Set) && !inventory.LearntOutside(p.Set) && !slices.Contains(s.learnt, p.Set) {
				s.learnt = append(s.learnt, p.Set)
			}
		}
	}
	s.snap = &inventory.Snapshot{Services: []inventory.Service{{
		Namespace: "x", Name: "s", ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("fd96::1")},
		Selector: map[string]string{"app": "a"},
		Ports:    []inventory.ServicePort{{Proto: "TCP", Port: 80, TargetPort: 8080}, {Proto: "UDP", Port: 81, TargetName: "http"}},
	}}}
	namespaces := map[string]map[string]string{}
	for i := range s.world.Endpoints {
		e := &s.world.Endpoints[i]
		maps.DeleteFunc(e.NamespaceLabels, func(k, _ string) bool { return k != metadataName && !slices.Contains(s.keys, k) })
		maps.DeleteFunc(e.Labels, func(k, _ string) bool { return !slices.Contains(s.keys, k) })
		if !accounts {
			e.ServiceAccount = "o"
		}
		e.Ports = slices.DeleteFunc(e.Ports, func(n rule.NamedPort) bool { return !slices.Contains(s.names, n.Name) })
		namespaces[e.Namespace] = e.NamespaceLabels
	}
	for _, name := range slices.Sorted(maps.Keys(namespaces)) {
		s.snap.Namespaces = append(s.snap.Namespaces, inventory.Namespace{Name: name, Labels: namespaces[name]})
	}
	// Every address of the pod networks that rules may tell apart, or two alike.
	v4, v6 := []string{"10.77.0.1", "10.77.0.2"}, []string{"fd00:77::1", "fd00:77::2"}
	if addresses {
		v4 = append(v4, "10.0.1.3", "10.0.1.5", "10.0.2.3", "10.0.2.5", "10.1.0.1")
		v6 = append(v6, "fd00:1::3", "fd00:1::5", "fd00:2::3", "fd00:2::5", "fd00:99::1")
		for i := range v4 {
			j := r.IntN(i + 1)
			v4[i], v4[j], v6[i], v6[j] = v4[j], v4[i], v6[j], v6[i]
		}
		v4, v6 = v4[:3], v6[:3]
	}
	taken := map[netip.Addr]bool{}
	for _, n := range s.world.Nodes {
		for _, a := range n.Addrs {
			taken[a] = true
		}
	}
	for _, text := range slices.Concat(v4, v6) {
		a := netip.MustParseAddr(text)
		i := 0
		if a.Is4() {
			i = 1
		}
		if !taken[a] {
			s.addrs[i] = append(s.addrs[i], a)
		}
	}
	return s
}

// labelings are all labels of the world.
func (s *small) labelings() []map[string]string {
	out := []map[string]string{{}}
	for _, k := range s.keys {
		var next []map[string]string
		for _, l := range out {
			for _, v := range s.values {
				m := maps.Clone(l)
				if v != "" {
					m[k] = v
				}
				next = append(next, m)
			}
		}
		out = next
	}
	return out
}

// namespaces are all that may be.
func (s *small) namespaces(any bool, keep []string) []inventory.Namespace {
	if !any {
		return s.snap.Namespaces
	}
	var out []inventory.Namespace
	for _, name := range []string{"x", "y", "z", "n1", "n2"} {
		var was map[string]string
		for _, n := range s.snap.Namespaces {
			if n.Name == name {
				was = n.Labels
			}
		}
		for _, l := range s.labelings() {
			if slices.ContainsFunc(keep, func(k string) bool {
				a, ok := was[k]
				b, ok2 := l[k]
				return a != b || ok != ok2
			}) {
				continue
			}
			l[metadataName] = name
			out = append(out, inventory.Namespace{Name: name, Labels: l})
		}
	}
	return out
}

// body is an end of the enumeration.
type body struct {
	e     *rule.Endpoint // without address, if it may have any
	addr  netip.Addr     // of an end that is no pod
	fresh bool           // it may have any address
}

// bodies are all pods that an end may be.
func (s *small) bodies(sel rule.Selector, c *Claim, dst bool) []body {
	var out []body
	matches := func(e *rule.Endpoint) bool {
		x := *e
		x.HostNetwork = false
		return sel.Matches(&x)
	}
	free := func(ns *inventory.Namespace) bool {
		switch {
		case len(c.Rights.Pods) == 0:
			return true
		case c.Rights.Pods[0] == "ns:x":
			return ns.Name == "x"
		case c.Rights.Pods[0] == "ns:app=a":
			return ns.Labels["app"] == "a"
		}
		return false
	}
	for _, ns := range s.namespaces(c.Rights.Namespaces == AnyNamespaces, c.Rights.KeepNamespaceLabels) {
		for i := range s.world.Endpoints {
			e := s.world.Endpoints[i]
			if e.Namespace != ns.Name {
				continue
			}
			e.NamespaceLabels = ns.Labels
			var labelings []map[string]string
			if labelings = []map[string]string{e.Labels}; free(&ns) && (!e.HostNetwork || c.Rights.HostNetwork) {
				labelings = s.labelings()
			}
			for _, l := range labelings {
				if !s.kept(l, e.Labels, c) {
					continue
				}
				x := e
				x.Labels = l
				if !matches(&x) {
					continue
				}
				if !x.HostNetwork {
					out = append(out, body{e: &x})
					continue
				}
				for _, is4 := range []bool{true, false} {
					if a, ok := x.Addr(is4); ok {
						out = append(out, body{addr: a})
					}
				}
			}
		}
		if !free(&ns) {
			continue
		}
		for _, l := range s.labelings() {
			if !s.kept(l, nil, c) {
				continue
			}
			for _, account := range s.accounts {
				e := rule.Endpoint{Namespace: ns.Name, Name: "new", Labels: l, NamespaceLabels: ns.Labels, ServiceAccount: account}
				if !matches(&e) {
					continue
				}
				ports := [][]rule.NamedPort{nil}
				if dst {
					for _, n := range s.names {
						for _, port := range []uint16{80, 81, 8080} {
							ports = append(ports, []rule.NamedPort{{Name: n, Proto: flow.TCP, Port: port}, {Name: n, Proto: flow.UDP, Port: port}})
						}
					}
				}
				for _, p := range ports {
					x := e
					x.Ports = p
					out = append(out, body{e: &x, fresh: true})
				}
			}
			if c.Rights.HostNetwork && matches(&rule.Endpoint{Namespace: ns.Name, Labels: l, NamespaceLabels: ns.Labels}) {
				for _, n := range s.world.Nodes {
					for _, a := range n.Addrs {
						out = append(out, body{addr: a})
					}
				}
			}
		}
	}
	return out
}

// kept reports whether labels have the guarded keys as they were.
func (s *small) kept(l, was map[string]string, c *Claim) bool {
	for _, k := range c.Rights.KeepLabels {
		a, ok := was[k]
		b, ok2 := l[k]
		if a != b || ok != ok2 {
			return false
		}
	}
	return true
}

// draws a claim and what its ends select.
func (s *small) claim() (c *Claim, from, to rule.Selector) {
	r := s.r
	end := func() (string, rule.Selector) {
		v := s.values[1+r.IntN(2)]
		ns := s.snap.Namespaces[r.IntN(len(s.snap.Namespaces))]
		in := func(v string) rule.Labels { return rule.Labels{{Key: "app", Op: rule.In, Values: []string{v}}} }
		has := slices.ContainsFunc(s.snap.Namespaces, func(n inventory.Namespace) bool { return n.Labels["app"] == v })
		switch r.IntN(7) {
		case 0:
			return "any", rule.Selector{}
		case 1, 2:
			return "ns:" + ns.Name, rule.Selector{Namespace: ns.Name}
		case 3, 4:
			if has {
				return "ns:app=" + v, rule.Selector{NamespaceLabels: in(v)}
			}
		case 5:
			return ns.Name + "/app=" + v, rule.Selector{Namespace: ns.Name, PodLabels: in(v)}
		}
		return "app=" + v, rule.Selector{PodLabels: in(v)}
	}
	c = &Claim{Expect: "deny"}
	c.From, from = end()
	c.To, to = end()
	switch r.IntN(8) {
	case 0:
		c.Expect = "allow"
	case 1:
		c.Expect = "reject"
	}
	texts := []string{"any", "any", "80/TCP", "81/TCP", "80-81/TCP", "UDP", "ICMP", "any/ICMP", "0/47"}
	if len(s.names) > 0 {
		texts = append(texts, "http/TCP", "http/TCP")
	}
	c.Ports, _ = ParsePorts(texts[r.IntN(len(texts))])
	c.Rights.PodNetworks = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/15"), netip.MustParsePrefix("10.77.0.0/16"), netip.MustParsePrefix("fd00::/16")}
	switch {
	case r.IntN(4) == 0 && len(s.keys) == 1 && len(s.learnt) == 0:
		c.Rights.Namespaces = AnyNamespaces
		if r.IntN(3) == 0 {
			c.Rights.KeepNamespaceLabels = []string{"app"}
		}
	case r.IntN(5) == 0:
		c.Rights.Pods = []string{"none"}
	case r.IntN(5) == 0 && s.snap.Namespaces[0].Name == "x":
		c.Rights.Pods = []string{"ns:x"}
	case r.IntN(5) == 0 && slices.ContainsFunc(s.snap.Namespaces, func(n inventory.Namespace) bool { return n.Labels["app"] == "a" }):
		c.Rights.Pods = []string{"ns:app=a"}
	}
	if r.IntN(6) == 0 {
		c.Rights.KeepLabels = []string{"app"}
	}
	if r.IntN(8) == 0 && s.snap.Namespaces[0].Name == "x" {
		c.Rights.Policies = []string{"ns:x"}
	}
	c.Rights.HostNetwork = r.IntN(10) == 0
	return c, from, to
}
