package assure

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
)

// asClaimed compares a verdict with a claim.
func asClaimed(c *Claim, v classifier.Verdict) bool {
	switch c.Expect {
	case "allow":
		return v == classifier.Allow
	case "reject":
		return v == classifier.Reject
	}
	return v != classifier.Allow
}

// packets are those of a claim that policies may tell apart.
func (s *small) packets(c *Claim, is4 bool, d *rule.Endpoint) []flow.Key {
	var out []flow.Key
	for _, proto := range []flow.Proto{flow.TCP, flow.UDP, flow.SCTP, flow.ICMP, flow.ICMPv6, flow.IGMP, 47, 200} {
		if skips(proto, is4) {
			continue
		}
		want := c.Ports.Proto
		first, last := c.Ports.First, c.Ports.Last
		if want == flow.ICMP && !is4 {
			want = flow.ICMPv6
			if first == last {
				first, last = flow.ICMPPort(flow.ICMPv6EchoRequest, 0), flow.ICMPPort(flow.ICMPv6EchoRequest, 0)
			}
		}
		if want != flow.AnyProto && want != proto {
			continue
		}
		for _, port := range []uint16{0, 1, 80, 81, 82, 8080, 9999, flow.ICMPPort(8, 0), flow.ICMPPort(8, 1), flow.ICMPPort(128, 0), flow.ICMPPort(129, 0)} {
			if !ports(proto).Contains(port) || proto.HasPorts() && port > 9999 || want != flow.AnyProto && (port < first || port > last) {
				continue
			}
			if c.Ports.Name != "" && (d == nil || namedPort(d, c.Ports.Name, proto) != port) {
				continue
			}
			for _, src := range []uint16{1000, 40000} {
				if !proto.HasPorts() {
					src = 0
				}
				out = append(out, flow.Key{Proto: proto, SrcPort: src, DstPort: port})
			}
		}
	}
	return out
}

// wrong looks for a connection that a proved claim is wrong about, among all.
func (s *small) wrong(c *Claim, from, to rule.Selector) string {
	sources, targets := s.bodies(from, c, false), s.bodies(to, c, true)
	sets := []*rule.Set{&s.set}
	for range 3 * len(c.Rights.Policies) {
		sets = append(sets, s.moreNetworkPolicies())
	}
	for i, is4 := range []bool{false, true} {
		for _, set := range sets {
			if !s.narrow {
				if w := s.atOnce(c, set, sources, targets, is4); w != "" {
					return w
				}
				continue
			}
			for _, src := range s.addrs[i] {
				for _, dst := range s.addrs[i] {
					for learnt := range 1 << (2 * len(s.learnt)) {
						if w := s.oneByOne(c, set, sources, targets, is4, src, dst, learnt); w != "" {
							return w
						}
					}
				}
			}
		}
	}
	return ""
}

// atOnce makes one world of all pods: addresses do not matter.
func (s *small) atOnce(c *Claim, set *rule.Set, sources, targets []body, is4 bool) string {
	w := s.empty()
	next := netip.MustParseAddr("fd00:77::1")
	if is4 {
		next = netip.MustParseAddr("10.77.0.1")
	}
	addrs := [2][]netip.Addr{}
	for i, list := range [][]body{sources, targets} {
		for _, b := range list {
			a := b.addr
			if b.e != nil {
				if _, ok := b.e.Addr(is4); ok || b.fresh {
					e := *b.e
					a, e.Name, e.Addrs = next, fmt.Sprint("p", len(w.Endpoints)), []netip.Addr{next}
					next = next.Next()
					w.Endpoints = append(w.Endpoints, e)
				}
			}
			addrs[i] = append(addrs[i], a)
		}
	}
	t, err := compileWorld(set, &w)
	if err != nil {
		return err.Error()
	}
	for i := range sources {
		for j := range targets {
			if text := s.ask(c, t, &sources[i], &targets[j], addrs[0][i], addrs[1][j], is4); text != "" {
				return text
			}
		}
	}
	return ""
}

// empty is the world with nodes, and pods in their networks.
func (s *small) empty() rule.World {
	w := rule.World{Nodes: s.world.Nodes, Sets: s.world.Sets}
	for i := range s.world.Endpoints {
		if s.world.Endpoints[i].HostNetwork {
			w.Endpoints = append(w.Endpoints, s.world.Endpoints[i])
		}
	}
	return w
}

func compileWorld(set *rule.Set, w *rule.World) (*classifier.Table, error) {
	own := rule.Set{Rules: slices.Clone(set.Rules), Isolations: slices.Clone(set.Isolations)}
	t, _, err := classifier.Compile(own, w, classifier.Options{})
	return t, err
}

// ask asks about every packet between two ends.
func (s *small) ask(c *Claim, t *classifier.Table, x, y *body, src, dst netip.Addr, is4 bool) string {
	if !src.IsValid() || !dst.IsValid() || src.Is4() != is4 || dst.Is4() != is4 || src == dst {
		return ""
	}
	if x.e != nil && y.e != nil && x.e.Namespace == y.e.Namespace && (!maps.Equal(x.e.NamespaceLabels, y.e.NamespaceLabels) || x.e.Name == y.e.Name && x.e.Name != "new") {
		return "" // never there at once
	}
	for _, k := range s.packets(c, is4, y.e) {
		k.Src, k.Dst = flow.AddrFrom(src), flow.AddrFrom(dst)
		if d := t.Lookup(k); !asClaimed(c, d.Verdict) {
			return fmt.Sprintf("%s: %v to %v", k, x.e, y.e)
		}
		for _, via := range s.via(k, y.e, is4) {
			if d := t.LookupVia(k, via); !asClaimed(c, d.Verdict) {
				return fmt.Sprintf("%s through %v: %v to %v", k, via, x.e, y.e)
			}
		}
	}
	return ""
}

// moreNetworkPolicies adds NetworkPolicies of namespace x.
func (s *small) moreNetworkPolicies() *rule.Set {
	out := &rule.Set{Rules: slices.Clone(s.set.Rules), Isolations: slices.Clone(s.set.Isolations)}
	for n := range 1 + s.r.IntN(2) {
		for _, d := range flow.Directions {
			subject := rule.Selector{Namespace: "x"}
			if s.r.IntN(2) == 0 {
				subject.PodLabels = rule.Labels{{Key: "app", Op: rule.In, Values: []string{"a"}}}
			}
			o := rule.Origin{Group: "networking.k8s.io", Kind: "NetworkPolicy", Namespace: "x", Name: fmt.Sprint("more", n), Index: -1}
			if s.r.IntN(3) > 0 {
				out.Isolations = append(out.Isolations, rule.Isolation{Direction: d, Band: rule.BandNetworkPolicy, Subject: subject, Origin: o})
			}
			if s.r.IntN(3) > 0 {
				o.Index = 0
				l4 := rule.AnyL4
				if s.r.IntN(2) == 0 {
					l4 = rule.L4{Proto: flow.TCP, Ports: rule.PortRange{First: 80, Last: 80}, SrcPorts: rule.AllPorts}
				}
				out.Rules = append(out.Rules, rule.Rule{
					Direction: d, Order: rule.Order{Band: rule.BandNetworkPolicy}, Subject: subject,
					Peers: []rule.Peer{{Kind: rule.PeerAny}}, L4: []rule.L4{l4}, Action: rule.Allow, Origin: o,
				})
			}
		}
	}
	out.Sort()
	return out
}

// oneByOne makes a world for every pair of ends.
func (s *small) oneByOne(c *Claim, set *rule.Set, sources, targets []body, is4 bool, srcAddr, dstAddr netip.Addr, learnt int) string {
	for i := range sources {
		for j := range targets {
			w := s.empty()
			place := func(b *body, free netip.Addr) netip.Addr {
				if b.e == nil {
					return b.addr
				}
				e := *b.e
				if b.fresh {
					e.Name, e.Addrs = e.Name+free.String(), []netip.Addr{free}
				}
				w.Endpoints = append(w.Endpoints, e)
				a, _ := e.Addr(is4)
				return a
			}
			src := place(&sources[i], srcAddr)
			dst := place(&targets[j], dstAddr)
			if src == dst {
				continue
			}
			if len(s.learnt) > 0 {
				w.Sets = maps.Clone(w.Sets)
				for i, name := range s.learnt {
					for j, a := range []netip.Addr{src, dst} {
						if learnt&(1<<(2*i+j)) != 0 && a.IsValid() {
							w.Sets[name] = append(slices.Clip(w.Sets[name]), netip.PrefixFrom(a, a.BitLen()))
						}
					}
				}
			}
			t, err := compileWorld(set, &w)
			if err != nil {
				return err.Error()
			}
			if text := s.ask(c, t, &sources[i], &targets[j], src, dst, is4); text != "" {
				return text
			}
		}
	}
	return ""
}

// via lists how a connection may come through the Service.
func (s *small) via(k flow.Key, d *rule.Endpoint, is4 bool) []flow.Service {
	if d == nil || d.Namespace != "x" || d.Labels["app"] != "a" {
		return nil
	}
	a := netip.MustParseAddr("fd96::1")
	if is4 {
		a = netip.MustParseAddr("10.96.0.1")
	}
	switch {
	case k.Proto == flow.TCP && k.DstPort == 8080:
		return []flow.Service{{Addr: flow.AddrFrom(a), Port: 80}}
	case k.Proto == flow.UDP && namedPort(d, "http", flow.UDP) == k.DstPort && k.DstPort > 0:
		return []flow.Service{{Addr: flow.AddrFrom(a), Port: 81}}
	}
	return nil
}
