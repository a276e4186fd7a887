package auditlog

import (
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/cmd/internal/cli"
	"github.com/tierwall/tierwall/dataplane/audit"
)

// Filter selects records. The zero value selects all. Different fields must all
// match; of a list one entry is enough.
//
// Patterns are those of path.Match: "shop/frontend-*". Words are compared
// without regard to case.
//
// Records of kind "lost" pass whatever a filter asks for, except for time and
// node: an answer must not look complete where the log is not.
type Filter struct {
	Verdicts   []string // Allow, Drop, Reject, Pass, would-allow, …
	Kinds      []string // flow, packet, lost, file
	Directions []string // ingress, egress
	Stages     []string // enforce, audit
	Bands      []string
	Reasons    []string
	Nodes      []string
	Protocols  []string
	Labels     []string // log labels; patterns

	Namespaces []string  // of either end; patterns
	Pods       []string  // "POD" or "NAMESPACE/POD" of either end; patterns
	Policies   []string  // see MatchPolicy; patterns
	Rules      []string  // a rule's name (a pattern), "ingress[0]" or its index
	Nets       []Net     // either end's address
	Sources    []Party   // the source
	Dests      []Party   // the destination
	Ports      []PortSet // of the destination

	Since, Until time.Time // zero = open
}

// Net is a set of addresses.
type Net = netip.Prefix

// PortSet is a range of ports, of a protocol if Proto is not 0.
type PortSet struct {
	rule.PortRange
	Proto flow.Proto
}

// Party is one end of a connection: a prefix, or a pattern for a pod.
type Party struct {
	Net netip.Prefix // valid, or Pod is set
	Pod string       // "POD", "NAMESPACE/POD"; patterns
}

// ParseNet reads a prefix or an address.
func ParseNet(s string) (Net, error) {
	if p, err := netip.ParsePrefix(s); err == nil {
		return p.Masked(), nil
	}
	a, err := netip.ParseAddr(s)
	if err != nil {
		return Net{}, fmt.Errorf("%q is neither an address nor a prefix such as 10.0.0.0/8", s)
	}
	a = a.Unmap().WithZone("")
	return netip.PrefixFrom(a, a.BitLen()), nil
}

// ParseParty reads an address, a prefix, "POD", "NAMESPACE/POD" or "NAMESPACE/".
func ParseParty(s string) (Party, error) {
	if n, err := ParseNet(s); err == nil {
		return Party{Net: n}, nil
	}
	if strings.HasSuffix(s, "/") {
		s += "*"
	}
	if err := CheckPattern(s); err != nil {
		return Party{}, err
	}
	return Party{Pod: s}, nil
}

// ParsePort reads "80", "8000-8080", "53/UDP".
func ParsePort(s string) (PortSet, error) {
	text, proto, hasProto := strings.Cut(s, "/")
	var p PortSet
	if hasProto {
		var err error
		if p.Proto, err = flow.ParseProto(proto); err != nil {
			return PortSet{}, err
		}
	}
	first, last, isRange := strings.Cut(text, "-")
	if !isRange {
		last = first
	}
	a, err1 := strconv.ParseUint(first, 10, 16)
	b, err2 := strconv.ParseUint(last, 10, 16)
	if err1 != nil || err2 != nil || a > b {
		return PortSet{}, fmt.Errorf("%q: want a port such as 80, 8000-8080 or 53/UDP", s)
	}
	p.PortRange = rule.PortRange{First: uint16(a), Last: uint16(b)}
	return p, nil
}

// CheckPattern says what is wrong with a pattern.
func CheckPattern(s string) error {
	if _, err := path.Match(s, ""); err != nil || s == "" {
		return fmt.Errorf("%q is not a pattern: * stands for any text, ? for a character, [a-z] for one of a range", s)
	}
	return nil
}

// ParseTime reads a moment: a duration before now ("90s", "15m", "36h", "7d"),
// RFC 3339, or a local date or time ("2026-01-02", "2026-01-02 15:04",
// "2026-01-02 15:04:05").
func ParseTime(s string, now time.Time) (time.Time, error) {
	for unit, days := range map[string]float64{"d": 1, "w": 7} {
		if count, ok := strings.CutSuffix(s, unit); ok {
			if n, err := strconv.ParseFloat(count, 64); err == nil && n >= 0 && n*days < 36500 {
				return now.Add(-time.Duration(n * days * 24 * float64(time.Hour))), nil
			}
		}
	}
	midnight := func(daysAgo int) time.Time { // by the calendar: a day may have 23 hours
		y, m, d := now.Date()
		return time.Date(y, m, d-daysAgo, 0, 0, 0, 0, now.Location())
	}
	switch strings.ToLower(s) {
	case "now":
		return now, nil
	case "today":
		return midnight(0), nil
	case "yesterday":
		return midnight(1), nil
	}
	for _, layout := range []string{"15:04", time.TimeOnly} {
		if t, err := time.Parse(layout, s); err == nil {
			y, m, d := now.Date()
			at := func(d int) time.Time {
				return time.Date(y, m, d, t.Hour(), t.Minute(), t.Second(), 0, now.Location())
			}
			if at(d).After(now) {
				return at(d - 1), nil
			}
			return at(d), nil
		}
	}
	if d, err := time.ParseDuration(s); err == nil && d >= 0 {
		return now.Add(-d), nil
	}
	if t, err := time.Parse(time.RFC3339Nano, s); err == nil {
		return t, nil
	}
	for _, layout := range []string{time.DateTime, "2006-01-02 15:04", time.DateOnly} {
		if t, err := time.ParseInLocation(layout, s, now.Location()); err == nil {
			return t, nil
		}
	}
	return time.Time{}, fmt.Errorf("%q: want how long ago (15m, 36h, 7d, 2w), today, yesterday, a time of day that was last (08:00), or a time such as 2026-01-02T15:04:05Z or \"2026-01-02 15:04\"", s)
}

// Empty reports whether the filter selects everything.
func (f *Filter) Empty() bool {
	return len(f.Verdicts)+len(f.Kinds)+len(f.Directions)+len(f.Stages)+len(f.Bands)+len(f.Reasons)+len(f.Nodes)+
		len(f.Protocols)+len(f.Labels)+len(f.Namespaces)+len(f.Pods)+len(f.Policies)+len(f.Rules)+len(f.Nets)+
		len(f.Sources)+len(f.Dests)+len(f.Ports) == 0 && f.Since.IsZero() && f.Until.IsZero()
}

// Match reports whether the filter selects the record.
func (f *Filter) Match(r *audit.Record) bool {
	if !f.inTime(r) || !word(f.Nodes, r.Node) {
		return false
	}
	if r.Kind == audit.KindLost {
		return true
	}
	return word(f.Kinds, r.Kind) && word(f.Verdicts, r.Verdict) && word(f.Directions, r.Direction) &&
		word(f.Stages, r.Stage) && word(f.Bands, r.Band) && word(f.Reasons, r.Reason) && word(f.Protocols, r.Protocol) &&
		any1(f.Labels, func(p string) bool { return glob(p, r.Label) }) &&
		any1(f.Namespaces, func(p string) bool {
			return ends(r, func(e *audit.Endpoint) bool { return e.Pod != "" && glob(p, e.Namespace) })
		}) &&
		any1(f.Pods, func(p string) bool {
			return ends(r, func(e *audit.Endpoint) bool { return matchPod(p, e) })
		}) &&
		any1(f.Policies, func(p string) bool { return matchPolicies(p, r) }) &&
		any1(f.Rules, func(p string) bool { return matchRule(p, r) }) &&
		any1(f.Nets, func(n Net) bool {
			return ends(r, func(e *audit.Endpoint) bool { return n.Contains(e.IP.Unmap()) })
		}) &&
		any1(f.Sources, func(p Party) bool { return p.is(r.Source) }) &&
		any1(f.Dests, func(p Party) bool { return p.is(r.Destination) }) &&
		any1(f.Ports, func(p PortSet) bool { return p.has(r) })
}

// inTime reports whether any of the time a record is about lies in the filter's.
func (f *Filter) inTime(r *audit.Record) bool {
	last := r.Time
	if r.Until != nil {
		last = *r.Until
	}
	return (f.Since.IsZero() || !last.Before(f.Since)) && (f.Until.IsZero() || !r.Time.After(f.Until))
}

func any1[T any](list []T, is func(T) bool) bool {
	return len(list) == 0 || slices.ContainsFunc(list, is)
}

func word(list []string, s string) bool {
	return any1(list, func(w string) bool { return strings.EqualFold(w, s) })
}

func ends(r *audit.Record, is func(*audit.Endpoint) bool) bool {
	return r.Source != nil && is(r.Source) || r.Destination != nil && is(r.Destination)
}

func glob(pattern, s string) bool {
	ok, err := path.Match(pattern, s)
	return ok && err == nil
}

func matchPod(pattern string, e *audit.Endpoint) bool {
	return e.Pod != "" && (glob(pattern, e.Pod) || glob(pattern, e.Name()))
}

func (p Party) is(e *audit.Endpoint) bool {
	if e == nil {
		return false
	}
	if p.Net.IsValid() {
		return p.Net.Contains(e.IP.Unmap())
	}
	return matchPod(p.Pod, e)
}

func (p PortSet) has(r *audit.Record) bool {
	if p.Proto != 0 && !strings.EqualFold(p.Proto.String(), r.Protocol) {
		return false
	}
	if r.Ports != nil {
		return r.Ports.First <= p.Last && p.First <= r.Ports.Last
	}
	return r.Destination != nil && r.Destination.Port != 0 && p.Contains(r.Destination.Port)
}

// matchPolicies tries the deciding policy and all that isolate.
func matchPolicies(pattern string, r *audit.Record) bool {
	return slices.ContainsFunc(r.Deciders(), func(p audit.Policy) bool { return MatchPolicy(pattern, &p) })
}

// MatchPolicy reports whether a pattern names a policy: "NAME", "NAMESPACE/NAME",
// "KIND/NAMESPACE/NAME", "KIND.GROUP/NAMESPACE/NAME" (without NAMESPACE for
// cluster-wide ones), or as any output writes it, see [cli.PolicyPath].
func MatchPolicy(pattern string, p *audit.Policy) bool {
	pattern = cli.PolicyPath(pattern)
	return slices.ContainsFunc(cli.PolicyPaths(refOf(p)), func(path string) bool { return glob(pattern, path) })
}

func matchRule(pattern string, r *audit.Record) bool {
	if r.Rule == nil {
		return false
	}
	index := strconv.Itoa(r.Rule.Index)
	return r.Rule.Name != "" && glob(pattern, r.Rule.Name) || pattern == index ||
		pattern == r.Direction+"["+index+"]"
}
