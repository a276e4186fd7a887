package lint

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/diag"
	"github.com/tierwall/tierwall/policy/inventory"
)

// dns: pods that may open some connections, but none to a DNS server (X-42,
// Where it is not known who serves DNS, and for rules about addresses, a
// rule that allows port 53 is enough. Where nodes have a DNS cache, pods that reach
// servers have to reach it, too: it answers in their place.
func (c *checker) dns() {
	d := resolver{checker: c, cut: map[cutAt]string{}}
	d.prepare()
	uncached := map[cutAt]string{}
	for i := range c.pods {
		pod := &c.pods[i]
		if pod.HostNetwork || isDNS(pod) {
			continue
		}
		var end ending
		targets := d.servers
		if len(targets) == 0 {
			targets = []server{{}}
		}
		if slices.ContainsFunc(targets, func(s server) bool {
			end = d.ask(i, s)
			return end.reached
		}) {
			if d.cache == nil {
				continue
			}
			if end = d.ask(i, server{cache: d.cache}); !end.reached {
				d.blame(i, end, uncached)
			}
			continue
		}
		d.blame(i, end, d.cut)
	}
	c.run(diag.NoDNSCache, func() {
		for _, at := range slices.SortedFunc(maps.Keys(uncached), func(a, b cutAt) int { return compareRef(a, b) }) {
			c.warn(at.policy.object, at.path, "the egress rules let pod "+uncached[at]+" reach DNS pods, but not the DNS cache of its node, which answers in their place",
				"allow port 53, UDP and TCP, to the cache's address with an ipBlock ("+cacheAddr.String()+"/32 unless it was configured otherwise)")
		}
	})
	// Sorted at the end of Check; the order of a map would show in equal findings.
	for _, at := range slices.SortedFunc(maps.Keys(d.cut), func(a, b cutAt) int { return compareRef(a, b) }) {
		c.warn(at.policy.object, at.path, "no egress rule lets pod "+d.cut[at]+" reach a DNS server",
			"allow port 53, UDP and TCP, to the DNS pods if the pod resolves names")
	}
}

// cutAt is where a finding points.
type cutAt struct {
	policy *policy
	path   string
}

func compareRef(a, b cutAt) int {
	return cmp.Or(a.policy.object.Ref().Compare(b.policy.object.Ref()), strings.Compare(a.path, b.path))
}

// server is one address of somebody who serves DNS; the zero value is one nobody
// knows. One address that can be reached is enough.
type server struct {
	pod   *rule.Endpoint
	addr  netip.Addr
	cache []netip.Addr // of a node's DNS cache: no pod, at one of these addresses
}

// cacheAddr is where NodeLocal DNSCache listens unless configured otherwise.
var cacheAddr = netip.AddrFrom4([4]byte{169, 254, 20, 10})

// caches returns the addresses a node's DNS cache may answer at, nil where nodes have
// none: its own, that of the Service it stands in for, and those of nodes.
func (c *checker) caches() []netip.Addr {
	if !slices.ContainsFunc(c.pods, func(e rule.Endpoint) bool { return e.HostNetwork && isDNS(&e) }) {
		return nil
	}
	out := []netip.Addr{cacheAddr}
	for i := range c.inv.Services {
		if s := &c.inv.Services[i]; len(s.Selector) > 0 && isDNS(&rule.Endpoint{Labels: s.Selector}) {
			out = append(out, s.ClusterIPs...)
		}
	}
	for i := range c.inv.Nodes {
		out = append(out, c.inv.Nodes[i].Addrs...)
	}
	return out
}

// resolver asks of pods whether they reach DNS.
type resolver struct {
	*checker
	servers    []server
	cache      []netip.Addr         // see caches
	names      map[string]bool      // named ports that are 53 somewhere
	rules      [rule.NumBands][]int // enforced egress rules about port 53, by band
	opens      []int                // enforced egress rules that allow or skip something
	isolations [rule.NumBands][]int // enforced egress isolations, by band
	cut        map[cutAt]string     // → a pod that is cut off
}

func (d *resolver) prepare() {
	d.names, d.cache = map[string]bool{}, d.caches()
	for i := range d.pods {
		if isDNS(&d.pods[i]) && !d.pods[i].HostNetwork {
			for _, a := range d.pods[i].Addrs {
				d.servers = append(d.servers, server{pod: &d.pods[i], addr: a})
			}
			if len(d.pods[i].Addrs) == 0 { // not running yet: no block has it
				d.servers = append(d.servers, server{pod: &d.pods[i]})
			}
		}
		for _, p := range d.pods[i].Ports {
			if p.Port == 53 && (p.Proto == flow.UDP || p.Proto == flow.TCP) {
				d.names[p.Name] = true
			}
		}
	}
	for i := range d.set.Rules {
		r := &d.set.Rules[i]
		if r.Direction != flow.Egress || r.Stage != rule.Enforce || len(r.Peers) == 0 {
			continue
		}
		if slices.ContainsFunc(r.L4, func(l rule.L4) bool { return d.has53(&l) }) {
			d.rules[r.Order.Band] = append(d.rules[r.Order.Band], i)
		}
		if r.Action == rule.Allow || r.Action == rule.Skip {
			d.opens = append(d.opens, i)
		}
	}
	for i := range d.set.Isolations {
		if iso := &d.set.Isolations[i]; iso.Direction == flow.Egress && iso.Stage == rule.Enforce {
			d.isolations[iso.Band] = append(d.isolations[iso.Band], i)
		}
	}
}

// ending is how the question ended: reached, or cut by a rule, or by the
// isolation of a band.
type ending struct {
	reached bool
	rule    int // -1: not a rule
	band    rule.Band
}

// ask walks the rules for pod number i and a server.
func (d *resolver) ask(i int, s server) ending {
	pod := &d.pods[i]
	var skip rule.BandSet
	for band := range d.rules {
		if skip.Has(rule.Band(band)) {
			continue
		}
		passed := false
		for _, n := range d.rules[band] {
			r := &d.set.Rules[n]
			if !d.podsOf(n).has(i) || !d.about53(r, s.pod) || !d.concerns(r, pod, s) ||
				s.cache != nil && !slices.ContainsFunc(r.L4, func(l rule.L4) bool { return l.Name == "" && d.has53(&l) }) {
				continue
			}
			if r.Action == rule.Skip {
				skip |= r.Skip
				if passed = skip.Has(rule.Band(band)); passed {
					break
				}
				continue
			}
			return ending{reached: r.Action == rule.Allow, rule: n, band: rule.Band(band)}
		}
		if !passed && slices.ContainsFunc(d.isolations[band], func(n int) bool { return d.subjects[d.isolationSubject[n]].pods.has(i) }) {
			return ending{rule: -1, band: rule.Band(band)}
		}
	}
	return ending{reached: true, rule: -1}
}

// about53 reports whether a rule is about port 53 of the server. An Allow may be
// about either protocol, and is in doubt about a name; others have to be about UDP,
// and a Deny about every source port.
func (d *resolver) about53(r *rule.Rule, server *rule.Endpoint) bool {
	return r.Action == rule.Allow || slices.ContainsFunc(r.L4, func(l rule.L4) bool {
		if l.Proto != flow.AnyProto && l.Proto != flow.UDP || r.Action != rule.Skip && l.SrcPorts != rule.AllPorts {
			return false
		}
		if l.Name == "" {
			return l.Ports.Contains(53)
		}
		return server != nil && slices.Contains(server.Ports, rule.NamedPort{Name: l.Name, Proto: flow.UDP, Port: 53})
	})
}

// concerns reports whether a rule about port 53 has the server among its peers.
// In doubt an Allow has it and a Deny does not; a Skip may have it, except in the
// pod's own namespace, where nobody is known to serve DNS.
func (d *resolver) concerns(r *rule.Rule, pod *rule.Endpoint, s server) bool {
	allow := r.Action == rule.Allow
	return slices.ContainsFunc(r.Peers, func(p rule.Peer) bool {
		switch p.Kind {
		case rule.PeerAny:
			return true
		case rule.PeerPods:
			if s.cache != nil {
				return false
			}
			if s.pod == nil {
				return allow || r.Action == rule.Skip && p.Relation.Namespace != rule.SameNamespace ||
					p.Relation.IsZero() && p.Pods.String() == "{}"
			}
			return p.Pods.Matches(s.pod) && p.Relation.Holds(pod, s.pod)
		case rule.PeerBlock:
			if s.cache != nil && !allow { // it has one family's address at least
				return !slices.ContainsFunc(s.cache, func(a netip.Addr) bool { return a.Is4() && !p.Block.Contains(a) })
			}
			if s.cache != nil {
				return slices.ContainsFunc(s.cache, p.Block.Contains)
			}
			if s.pod == nil || allow {
				return allow || p.Block.Prefix.Bits() == 0 && !p.Block.NoPods
			}
			return !p.Block.NoPods && p.Block.Contains(s.addr)
		case rule.PeerSet, rule.PeerService:
			return (allow || r.Action == rule.Skip) && !inventory.LearntSet(p.Set)
		}
		return false
	})
}

// blame notes in cut the policies to warn about, when the pod may still open other
// connections: without any, being cut off is meant.
func (d *resolver) blame(i int, end ending, cut map[cutAt]string) {
	pod := d.pods[i].Namespace + "/" + d.pods[i].Name
	report := func(r *rule.Rule, path string) {
		if p := d.of(&r.Origin); p != nil {
			at := cutAt{p, path}
			if _, ok := cut[at]; !ok {
				cut[at] = pod
			}
		}
	}
	if end.rule < 0 { // the policies that list what the pod may do
		for _, n := range d.opens {
			if r := &d.set.Rules[n]; r.Order.Band == end.band && r.Action == rule.Allow && d.podsOf(n).has(i) {
				report(r, "spec.egress")
			}
		}
		return
	}
	r := &d.set.Rules[end.rule]
	if !slices.ContainsFunc(r.L4, func(l rule.L4) bool {
		return d.has53(&l) && (l.Name != "" || l.Ports != rule.PortRange{First: 53, Last: 53})
	}) {
		return // it names the port: it is meant
	}
	open := !everything(r) && !slices.ContainsFunc(r.Peers, func(p rule.Peer) bool { return p.Kind == rule.PeerBlock && p.Block.Prefix.Bits() == 0 })
	for _, n := range d.opens {
		if n >= end.rule || open {
			break
		}
		open = d.podsOf(n).has(i)
	}
	if open {
		report(r, rulePath(r))
	}
}

// isDNS guesses which pods serve DNS by the labels every distribution uses.
func isDNS(e *rule.Endpoint) bool {
	for _, key := range []string{"k8s-app", "app", "app.kubernetes.io/name"} {
		if v := e.Labels[key]; v == "kube-dns" || v == "coredns" || v == "node-local-dns" {
			return true
		}
	}
	return false
}

func (d *resolver) has53(l *rule.L4) bool {
	if l.Proto != flow.AnyProto && l.Proto != flow.UDP && l.Proto != flow.TCP {
		return false
	}
	if l.Name == "" {
		return l.Ports.Contains(53)
	}
	return d.names[l.Name]
}
