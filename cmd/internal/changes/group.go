package changes

import (
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/tierwall/tierwall/cmd/internal/cli"
	"github.com/tierwall/tierwall/policy/assure"
)

// Group is a set of changes that read as one: from each of From to each of To.
type Group struct {
	Kind          assure.Kind
	From, To      []string // in order
	Ports         string   // "TCP 80,443; UDP 53", "everything except TCP 80"
	Before, After assure.Decision
	Some          bool   // of some pods only
	Seen          uint64 // connections of the log
}

// lineKey names what a line says, but for its ends.
type lineKey struct {
	kind          assure.Kind
	before, after assure.Decision
	ports         string
	some          bool
}

type endsKey struct {
	from, to      string
	kind          assure.Kind
	before, after int32 // numbers of decisions: millions of keys are to be hashed
	some          bool
}

// decisions numbers decisions.
type decisions struct {
	list []assure.Decision
	ids  map[assure.Decision]int32
	last [4]int32 // those that came last: rows that follow each other share them
	at   int
}

func (d *decisions) id(x *assure.Decision) int32 {
	for _, i := range d.last {
		if int(i) < len(d.list) && d.list[i] == *x {
			return i
		}
	}
	i, ok := d.ids[*x]
	if !ok {
		i = int32(len(d.list))
		d.list = append(d.list, *x)
		d.ids[*x] = i
	}
	d.last[d.at%len(d.last)] = i
	d.at++
	return i
}

// families are the ports of one pair, by protocol, for IPv4 and IPv6.
type families [2]map[string][]portRange

type portRange struct {
	ports [2]uint16
	src   string
}

// Groups groups all changes of a diff and counts them.
func Groups(d *assure.Diff) ([]Group, assure.Summary) {
	var sum assure.Summary
	dec := decisions{ids: map[assure.Decision]int32{}}
	byEnds := map[endsKey]*families{}
	seen := map[endsKey]uint64{}
	for c := range d.Changes() {
		sum.Count(c.Kind)
		k := endsKey{c.From, c.To, c.Kind, dec.id(&c.Before), dec.id(&c.After), c.Some}
		f := byEnds[k]
		if f == nil {
			f = &families{}
			byEnds[k] = f
		}
		f.add(PortSet{c.Family, c.Protocol, c.Ports, c.SourcePorts})
		if c.Seen > 0 {
			seen[k] += c.Seen
		}
	}
	// Ends with the same line, then sources with the same destinations.
	lines := map[lineKey]map[string][]string{}
	weight := map[lineKey]map[string]uint64{}
	texts, protocols := map[string]string{}, [2][]string{d.Protocols(4), d.Protocols(6)}
	for k, f := range byEnds {
		l := lineKey{k.kind, dec.list[k.before], dec.list[k.after], f.text(&protocols, texts), k.some}
		if lines[l] == nil {
			lines[l], weight[l] = map[string][]string{}, map[string]uint64{}
		}
		lines[l][k.from] = append(lines[l][k.from], k.to)
		weight[l][k.from] += seen[k]
	}
	var out []Group
	for l, froms := range lines {
		byTo := map[string]*Group{}
		for from, to := range froms {
			slices.Sort(to)
			key := strings.Join(to, "\n")
			g := byTo[key]
			if g == nil {
				g = &Group{Kind: l.kind, To: to, Ports: l.ports, Before: l.before, After: l.after, Some: l.some}
				byTo[key] = g
			}
			g.From = append(g.From, from)
			g.Seen += weight[l][from]
		}
		for _, g := range byTo {
			slices.Sort(g.From)
			out = append(out, *g)
		}
	}
	order := map[assure.Kind]int{}
	for i, k := range assure.Kinds {
		order[k] = i
	}
	slices.SortFunc(out, func(a, b Group) int {
		if a.Kind != b.Kind {
			return order[a.Kind] - order[b.Kind]
		}
		if a.Seen != b.Seen { // what is used comes first
			if a.Seen > b.Seen {
				return -1
			}
			return 1
		}
		return strings.Compare(a.sortKey(), b.sortKey())
	})
	return out, sum
}

func (g *Group) sortKey() string {
	return fmt.Sprint(g.From[0], "\n", g.To[0], "\n", g.Ports, "\n", g.Before, g.After, g.Some, len(g.From), len(g.To))
}

// PortSet is a range of ports of one family and protocol.
type PortSet struct {
	Family      int
	Protocol    string
	Ports       [2]uint16
	SourcePorts *[2]uint16
}

// PortsText names ports in the fewest words: what is there, or what is missing of
// all that a family has by protocols.
func PortsText(sets []PortSet, protocols func(family int) []string) string {
	var f families
	for _, s := range sets {
		f.add(s)
	}
	return f.text(&[2][]string{protocols(4), protocols(6)}, map[string]string{})
}

func (f *families) add(s PortSet) {
	i := 0
	if s.Family == 6 {
		i = 1
	}
	if f[i] == nil {
		f[i] = map[string][]portRange{}
	}
	r := portRange{ports: s.Ports}
	if s.SourcePorts != nil {
		r.src = rangeText(*s.SourcePorts)
	}
	f[i][s.Protocol] = append(f[i][s.Protocol], r)
}

// text names the ports of both families; one that has none is only named where
// ends have addresses of both.
func (f *families) text(protocols *[2][]string, memo map[string]string) string {
	var parts [2]string
	for i := range f {
		if f[i] == nil {
			continue
		}
		key := []byte{byte(i)}
		for p, name := range protocols[i] {
			for _, r := range f[i][name] {
				key = binary.BigEndian.AppendUint64(key, uint64(p)<<32|uint64(r.ports[0])<<16|uint64(r.ports[1]))
				key = append(append(key, r.src...), 0)
			}
		}
		text, ok := memo[string(key)]
		if !ok {
			text = portsText(f[i], protocols[i])
			memo[string(key)] = text
		}
		parts[i] = text
	}
	switch {
	case parts[0] == parts[1] || parts[1] == "":
		return parts[0]
	case parts[0] == "":
		return parts[1]
	}
	return parts[0] + " (IPv4); " + parts[1] + " (IPv6)"
}

// portsText names ranges of protocols in the fewest words: what is there, or what
// is missing.
func portsText(have map[string][]portRange, protocols []string) string {
	missing := map[string][]portRange{}
	for _, p := range protocols {
		missing[p] = complement(have[p], assure.AllPorts(p))
	}
	sourced := false
	for _, ranges := range have {
		sourced = sourced || slices.ContainsFunc(ranges, func(r portRange) bool { return r.src != "" })
	}
	n := 0
	for _, r := range missing {
		n += len(r)
	}
	switch {
	case !sourced && n == 0:
		return "everything"
	case !sourced && n <= 3 && n < count(have):
		return "everything except " + list(missing, protocols)
	}
	return list(have, protocols)
}

func count(m map[string][]portRange) int {
	n := 0
	for _, r := range m {
		n += len(r)
	}
	return n
}

func complement(have []portRange, all [2]uint16) []portRange {
	have = slices.Clone(have)
	slices.SortFunc(have, func(a, b portRange) int { return int(a.ports[0]) - int(b.ports[0]) })
	var out []portRange
	next := int(all[0])
	for _, r := range have {
		if int(r.ports[0]) > next {
			out = append(out, portRange{ports: [2]uint16{uint16(next), r.ports[0] - 1}})
		}
		next = int(r.ports[1]) + 1
	}
	if next <= int(all[1]) {
		out = append(out, portRange{ports: [2]uint16{uint16(next), all[1]}})
	}
	return out
}

func list(have map[string][]portRange, protocols []string) string {
	var parts, whole []string
	for _, p := range protocols {
		ranges := have[p]
		if len(ranges) == 0 {
			continue
		}
		name := p
		if p == "ICMPv6" {
			name = "ICMP" // the family says which
		}
		if p == assure.Other {
			name = "other protocols"
		}
		var texts []string
		for _, r := range ranges {
			text := rangeText(r.ports)
			if name == "ICMP" {
				text = icmpText(r.ports)
			}
			if r.ports == assure.AllPorts(p) {
				text = ""
			}
			if r.src != "" {
				text = strings.TrimSpace(text + " from port " + r.src)
			}
			texts = append(texts, text)
		}
		if len(texts) == 1 && texts[0] == "" {
			whole = append(whole, name)
			continue
		}
		parts = append(parts, name+" "+strings.Join(texts, ","))
	}
	if len(whole) > 0 {
		parts = append(parts, strings.Join(whole, ", "))
	}
	return strings.Join(parts, "; ")
}

func rangeText(r [2]uint16) string {
	if r[0] == r[1] {
		return strconv.Itoa(int(r[0]))
	}
	return fmt.Sprintf("%d-%d", r[0], r[1])
}

func icmpText(r [2]uint16) string {
	first, last := r[0]>>8, r[1]>>8
	switch {
	case r[0] == r[1]:
		return fmt.Sprintf("type %d code %d", first, r[0]&0xff)
	case r[0]&0xff == 0 && r[1]&0xff == 0xff && first == last:
		return fmt.Sprintf("type %d", first)
	case r[0]&0xff == 0 && r[1]&0xff == 0xff:
		return fmt.Sprintf("types %d-%d", first, last)
	}
	return fmt.Sprintf("type/code %d/%d-%d/%d", first, r[0]&0xff, last, r[1]&0xff)
}

// Namer names sets of ends, by the namespaces they fill.
type Namer struct {
	members map[string]int // workloads by namespace
	total   int
}

// NewNamer counts what a diff compared.
func NewNamer(d *assure.Diff) *Namer {
	n := &Namer{members: map[string]int{}}
	for _, u := range d.Units() {
		if ns, ok := namespaceOf(u); ok {
			n.members[ns]++
			n.total++
		}
	}
	return n
}

// namespaceOf returns the namespace of "namespace/name" or "kind/namespace/name".
func namespaceOf(unit string) (string, bool) {
	if isPrefix(unit) {
		return "", false
	}
	parts := strings.Split(unit, "/")
	return parts[max(0, len(parts)-2)], true
}

func isPrefix(s string) bool {
	_, err := netip.ParsePrefix(s)
	return err == nil
}

// Name names a set of ends. The ends of the other side count as members: nobody is
// a partner of itself.
func (n *Namer) Name(ends, others []string) string {
	byNS := map[string][]string{}
	var outside []string
	for _, e := range ends {
		if ns, ok := namespaceOf(e); ok {
			byNS[ns] = append(byNS[ns], e)
		} else {
			outside = append(outside, e)
		}
	}
	var parts []string
	full, all := 0, 0
	for _, ns := range slices.Sorted(maps.Keys(byNS)) {
		list, members := byNS[ns], n.members[ns]
		if len(others) == 1 && !slices.Contains(list, others[0]) {
			if other, ok := namespaceOf(others[0]); ok && other == ns {
				members--
			}
		}
		if len(list) >= members && len(list) > 1 {
			parts = append(parts, fmt.Sprintf("%s/* (all %d)", ns, len(list)))
			full++
			all += len(list)
			continue
		}
		all += len(list)
		parts = append(parts, list...)
	}
	if full > 0 && full == len(parts) && all >= n.total-1 && len(n.members) > 1 {
		parts = []string{fmt.Sprintf("all pods (%d workloads)", all)}
	}
	parts = append(parts, outsideText(outside)...)
	const most = 5
	if len(parts) > most+1 {
		parts = append(parts[:most:most], fmt.Sprintf("%d more", len(parts)-most))
	}
	return cli.Escape(strings.Join(parts, ", "))
}

func outsideText(prefixes []string) []string {
	if slices.Contains(prefixes, "0.0.0.0/0") && (slices.Contains(prefixes, "::/0") || len(prefixes) == 1) {
		rest := slices.DeleteFunc(slices.Clone(prefixes), func(p string) bool { return p == "0.0.0.0/0" || p == "::/0" })
		return append([]string{"everything outside"}, rest...)
	}
	return prefixes
}

// By says in words what decided.
func By(d *assure.Decision) string {
	policy := cli.Escape(PolicyName(d.Policy))
	verb := map[string]string{"Allow": "allowed", "Drop": "dropped", "Reject": "rejected"}[d.Verdict]
	switch {
	case policy == "":
		return verb + ": no policy applies"
	case d.Rule == "":
		return verb + ": isolated by " + Isolating(d.Isolations.List()) + ", " + d.Direction
	}
	return verb + " by " + policy + ", rule " + cli.Escape(d.Rule)
}

// Isolating names the policies that isolate: no one of them alone refuses.
func Isolating(refs []string) string {
	names := make([]string, len(refs))
	for i, ref := range refs {
		names[i] = PolicyName(ref)
	}
	return cli.Escape(some(names, 8))
}

// PolicyName shortens a policy's reference where its kind alone tells the API.
func PolicyName(ref string) string {
	kind, name, ok := strings.Cut(ref, "/")
	if !ok {
		return ref
	}
	kind = strings.TrimSuffix(kind, ".networking.k8s.io")
	if strings.HasPrefix(ref, "clusternetworkpolicy.") {
		kind, _, _ = strings.Cut(ref, "/")
	}
	return kind + " " + strings.TrimPrefix(name, "/")
}
