package recommend

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
)

// portSpan is a range of ports of a protocol; of ICMP of type<<8|code.
type portSpan struct {
	proto       flow.Proto
	first, last uint16
}

func (p portSpan) String() string { return spanText(p.proto.String(), p.proto, p.first, p.last) }

func spanText(name string, p flow.Proto, first, last uint16) string {
	switch {
	case p == flow.ICMP || p == flow.ICMPv6:
		if first == last {
			return fmt.Sprintf("%s type %d code %d", name, first>>8, first&0xff)
		}
		return name
	case !p.HasPorts():
		return name
	case first == last:
		return fmt.Sprintf("%d/%s", first, name)
	}
	return fmt.Sprintf("%d-%d/%s", first, last, name)
}

// peer is the other side of a rule: pods of a namespace, addresses, or a DNS name.
type peer struct {
	namespace string // "" for the kinds below
	selector  metav1.LabelSelector
	prefix    netip.Prefix
	node      bool // prefix is an address of a node
	name      string
}

func (p *peer) String() string {
	switch {
	case p.name != "":
		return p.name
	case p.namespace == "":
		return p.prefix.String()
	}
	return p.namespace + "/" + selectorText(&p.selector)
}

// allowance is a rule: these peers on these ports.
type allowance struct {
	peers []peer
	ports []portSpan
}

// draft is a policy before it is written in a language: what the pods of a group
// may do, by direction.
type draft struct {
	unit  *group
	rules [2][]allowance // by flow.Direction
	notes []string
}

func (d *draft) note(format string, args ...any) {
	d.notes = append(d.notes, fmt.Sprintf(format, args...))
}

// contact is who a group talks to, before selectors are merged.
type contact struct {
	group  *group
	prefix netip.Prefix
	node   string
	name   string
}

func (c *contact) title() string {
	switch {
	case c.group != nil:
		return c.group.title
	case c.name != "":
		return c.name
	}
	return c.prefix.String()
}

// drafter makes drafts of what was seen.
type drafter struct {
	seen    *Seen
	opt     Options
	dialect *Dialect
	learnt  map[string][]netip.Addr // names that rules use, with the addresses seen

	connections uint64
}

// drafts makes a draft for every chosen group that was seen.
func (b *drafter) drafts() (out []*draft, unseen []*group) {
	s := b.seen
	contacts := map[*group]*[2]map[contact]map[portSpan]bool{}
	unitsOf := map[*rule.Endpoint][]*group{}
	for _, u := range s.units {
		contacts[u] = &[2]map[contact]map[portSpan]bool{{}, {}}
		for _, e := range u.matched {
			if !e.HostNetwork {
				unitsOf[e] = append(unitsOf[e], u)
			}
		}
	}
	for k, t := range s.conns {
		from, to := &s.ends[k.from], &s.ends[k.to]
		text := portText(k.proto, k.port)
		if !t.passed() {
			if !b.opt.IncludeDenied {
				s.leaveOut(s.title(from), s.title(to), text, WhyDenied, max(t.refused(), t.count()))
				continue
			}
		}
		if t.passed() {
			b.connections += t.count()
		}
		if why := b.dialect.cannot(k.proto); why != "" {
			s.leaveOut(s.title(from), s.title(to), text, why, max(t.count(), t.refused()))
			continue
		}
		span := portSpan{k.proto, k.port, k.port}
		for _, u := range unitsOf[from.pod] {
			for _, c := range b.contactsOf(to, t.names) {
				add(contacts[u][flow.Egress], c, span)
			}
		}
		for _, u := range unitsOf[to.pod] {
			if from.pod == nil && !b.dialect.outsideSources {
				s.leaveOut(s.title(from), s.title(to), text, b.dialect.Name+" policies cannot name sources outside: such connections are left as they are", t.count())
				continue
			}
			for _, c := range b.contactsOf(from, nil) {
				add(contacts[u][flow.Ingress], c, span)
			}
		}
	}
	for _, u := range s.units {
		in, eg := contacts[u][flow.Ingress], contacts[u][flow.Egress]
		if len(in)+len(eg) == 0 {
			unseen = append(unseen, u)
			continue
		}
		d := &draft{unit: u}
		if n := u.note(); n != "" {
			d.note("%s", n)
		}
		b.dns(d, eg)
		for _, dir := range flow.Directions {
			list := in
			word := "incoming"
			if dir == flow.Egress {
				list, word = eg, "outgoing"
			}
			if len(list) == 0 {
				d.note("no %s connection was seen: the policy denies all of them", word)
			}
			d.rules[dir] = b.rules(d, dir, list)
		}
		out = append(out, d)
	}
	return out, unseen
}

func add(list map[contact]map[portSpan]bool, c contact, p portSpan) {
	if list[c] == nil {
		list[c] = map[portSpan]bool{}
	}
	list[c][p] = true
}

// title names an end as answers do: a workload, a node or addresses.
func (s *Seen) title(e *seenEnd) string {
	if e.pod != nil {
		return s.groups.of[e.pod].title
	}
	return e.prefix.String()
}

func (b *drafter) contactsOf(e *seenEnd, names []string) []contact {
	if e.pod != nil {
		u := b.seen.groups.of[e.pod]
		b.seen.groups.reduce(u)
		return []contact{{group: u}}
	}
	if len(names) == 0 || b.dialect.nameSet == nil {
		return []contact{{prefix: e.prefix, node: e.node}}
	}
	var out []contact
	for _, n := range names {
		set := b.dialect.nameSet(n)
		if a := e.prefix.Addr(); !slices.Contains(b.learnt[set], a) {
			b.learnt[set] = append(b.learnt[set], a)
		}
		out = append(out, contact{name: n})
	}
	return out
}

// dns keeps names working: who asks a DNS server by UDP may ask again by TCP, which
// is what resolvers do after a truncated answer (RFC 7766, section 5).
func (b *drafter) dns(d *draft, egress map[contact]map[portSpan]bool) {
	udp, tcp := portSpan{flow.UDP, 53, 53}, portSpan{flow.TCP, 53, 53}
	asked := false
	for _, c := range slices.SortedFunc(maps.Keys(egress), compareContacts) {
		if ports := egress[c]; ports[udp] || ports[tcp] {
			asked = true
			if !ports[udp] || !ports[tcp] {
				missing := tcp
				if ports[tcp] {
					missing = udp
				}
				ports[missing] = true
				d.note("DNS: %s of %s is allowed too, as resolvers use both protocols", missing, c.title())
			}
		}
	}
	if asked || len(egress) == 0 || b.opt.NoDNS || servesDNS(d.unit.pods[0]) {
		return
	}
	known := false
	for _, u := range b.seen.groups.list {
		if servesDNS(u.pods[0]) && !u.pods[0].HostNetwork {
			known = true
			b.seen.groups.reduce(u)
			add(egress, contact{group: u}, udp)
			add(egress, contact{group: u}, tcp)
			d.note("DNS: no query of these pods was seen; 53/UDP and 53/TCP of %s are allowed all the same, since pods that open connections resolve names (--no-dns leaves them out)", u.title)
		}
	}
	if !known {
		d.note("DNS: no query of these pods was seen, and the manifests have no DNS pods: if they resolve names, allow port 53 to the servers")
	}
}

// servesDNS guesses which pods serve DNS by the labels every distribution uses.
func servesDNS(e *rule.Endpoint) bool {
	for _, key := range []string{"k8s-app", "app", "app.kubernetes.io/name"} {
		if v := e.Labels[key]; v == "kube-dns" || v == "coredns" {
			return true
		}
	}
	return false
}

func compareContacts(a, b contact) int {
	return cmp.Or(strings.Compare(a.title(), b.title()), strings.Compare(a.node, b.node))
}

// rules merges contacts with the same ports into one rule each.
func (b *drafter) rules(d *draft, dir flow.Direction, list map[contact]map[portSpan]bool) []allowance {
	byPorts := map[string][]contact{}
	ports := map[string][]portSpan{}
	for _, c := range slices.SortedFunc(maps.Keys(list), compareContacts) {
		spans := b.ports(d, c, list[c])
		key := fmt.Sprint(spans)
		byPorts[key] = append(byPorts[key], c)
		ports[key] = spans
	}
	var out []allowance
	for key, contacts := range byPorts {
		out = append(out, allowance{b.peers(d, contacts), ports[key]})
	}
	slices.SortFunc(out, func(a, b allowance) int {
		return cmp.Or(comparePorts(a.ports[0], b.ports[0]), strings.Compare(a.peers[0].String(), b.peers[0].String()), len(a.ports)-len(b.ports))
	})
	if n := len(list); n > 0 && dir == flow.Ingress {
		prefixes := 0
		for c := range list {
			if c.group == nil && c.node == "" {
				prefixes++
			}
		}
		if prefixes > manyAddresses && b.opt.MergeCIDRs[0] == 0 {
			d.note("%d outside addresses are listed one by one: if everybody may connect, write ipBlock 0.0.0.0/0 in their place, or take them together with --merge-cidrs", prefixes)
		}
	}
	return out
}

// manyAddresses is more than somebody reads.
const manyAddresses = 20

func comparePorts(a, b portSpan) int {
	return cmp.Or(cmp.Compare(a.proto, b.proto), cmp.Compare(a.first, b.first), cmp.Compare(a.last, b.last))
}

// ports sorts ports and takes near ones together where that was asked for.
func (b *drafter) ports(d *draft, c contact, set map[portSpan]bool) []portSpan {
	list := slices.SortedFunc(maps.Keys(set), comparePorts)
	if b.opt.PortRanges == 0 {
		return list
	}
	var out []portSpan
	for _, p := range list {
		if n := len(out); n > 0 && p.proto.HasPorts() && out[n-1].proto == p.proto && int(p.first)-int(out[n-1].last) <= b.opt.PortRanges {
			out[n-1].last = p.last
			continue
		}
		out = append(out, p)
	}
	for _, p := range out {
		n := 0
		for _, q := range list {
			if q.proto == p.proto && q.first >= p.first && q.last <= p.last {
				n++
			}
		}
		if wide := int(p.last) - int(p.first) + 1; n < wide && p.proto.HasPorts() {
			d.note("ports: %s of %s stands for %d ports that were seen (--port-ranges)", p, c.title(), n)
		}
	}
	return out
}

// peers turns contacts into selectors: workloads of a namespace that one label key
// tells apart become one selector with a list of values.
func (b *drafter) peers(d *draft, contacts []contact) []peer {
	type keyed struct{ namespace, key string }
	values := map[keyed][]string{}
	var out []peer
	var prefixes []netip.Prefix
	for _, c := range contacts {
		switch {
		case c.group != nil:
			u := c.group
			if n := u.note(); n != "" && u != d.unit && !slices.Contains(d.notes, n) {
				d.notes = append(d.notes, n)
			}
			if len(u.selector.MatchLabels) == 1 && len(u.selector.MatchExpressions) == 0 {
				for k, v := range u.selector.MatchLabels {
					at := keyed{u.namespace, k}
					values[at] = append(values[at], v)
				}
				continue
			}
			out = append(out, peer{namespace: u.namespace, selector: u.selector})
		case c.name != "":
			out = append(out, peer{name: c.name})
		case c.node != "":
			d.note("%s is an address of node %s: it changes with the node", c.prefix.Addr(), clean(c.node))
			out = append(out, peer{prefix: c.prefix, node: true})
		default:
			prefixes = append(prefixes, c.prefix)
		}
	}
	for at, list := range values {
		slices.Sort(list)
		list = slices.Compact(list)
		p := peer{namespace: at.namespace, selector: metav1.LabelSelector{MatchLabels: map[string]string{at.key: list[0]}}}
		if len(list) > 1 {
			p.selector = metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: at.key, Operator: metav1.LabelSelectorOpIn, Values: list}}}
		}
		out = append(out, p)
	}
	for _, p := range b.merge(d, prefixes) {
		out = append(out, peer{prefix: p})
	}
	slices.SortFunc(out, func(a, b peer) int {
		rank := func(p *peer) int {
			switch {
			case p.namespace == d.unit.namespace:
				return 0
			case p.namespace != "":
				return 1
			case p.name != "":
				return 2
			}
			return 3
		}
		return cmp.Or(rank(&a)-rank(&b), strings.Compare(a.namespace, b.namespace), a.prefix.Addr().Compare(b.prefix.Addr()), strings.Compare(a.String(), b.String()))
	})
	return slices.CompactFunc(out, func(a, b peer) bool { return a.String() == b.String() })
}

// merge takes addresses together that have a prefix in common, where that was asked
// for. An address without neighbours stays as it is.
func (b *drafter) merge(d *draft, list []netip.Prefix) []netip.Prefix {
	within := map[netip.Prefix][]netip.Prefix{}
	for _, p := range list {
		bits := b.opt.MergeCIDRs[1]
		if p.Addr().Is4() {
			bits = b.opt.MergeCIDRs[0]
		}
		wide := p
		if bits > 0 && p.Bits() > bits {
			wide = netip.PrefixFrom(p.Addr(), bits).Masked()
		}
		within[wide] = append(within[wide], p)
	}
	var out []netip.Prefix
	for wide, parts := range within {
		if len(parts) == 1 {
			out = append(out, parts[0])
			continue
		}
		out = append(out, wide)
		d.note("addresses: %s stands for %d addresses that were seen (--merge-cidrs)", wide, len(parts))
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	return out
}
