package auditlog

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tierwall/tierwall/dataplane/audit"
)

// maxGroups bounds what Top, Staged and Simulation keep apart. What comes later
// is counted together.
const maxGroups = 1 << 18

// keys are what records can be counted by.
var keys = map[string]func(r *audit.Record) string{
	"verdict":               func(r *audit.Record) string { return r.Verdict },
	"kind":                  func(r *audit.Record) string { return r.Kind },
	"stage":                 func(r *audit.Record) string { return r.Stage },
	"direction":             func(r *audit.Record) string { return r.Direction },
	"band":                  func(r *audit.Record) string { return r.Band },
	"reason":                func(r *audit.Record) string { return r.Reason },
	"label":                 func(r *audit.Record) string { return r.Label },
	"node":                  func(r *audit.Record) string { return r.Node },
	"interface":             func(r *audit.Record) string { return r.Interface },
	"protocol":              func(r *audit.Record) string { return r.Protocol },
	"port":                  Port,
	"policy":                func(r *audit.Record) string { return policyNames(r.Deciders()) },
	"rule":                  ruleName,
	"source":                func(r *audit.Record) string { return r.Source.Name() },
	"destination":           func(r *audit.Record) string { return r.Destination.Name() },
	"source-namespace":      func(r *audit.Record) string { return namespace(r.Source) },
	"destination-namespace": func(r *audit.Record) string { return namespace(r.Destination) },
	"source-ip":             func(r *audit.Record) string { return ip(r.Source) },
	"destination-ip":        func(r *audit.Record) string { return ip(r.Destination) },
	"hour":                  func(r *audit.Record) string { return r.Time.UTC().Format("2006-01-02T15Z") },
}

func namespace(e *audit.Endpoint) string {
	if e == nil || e.Pod == "" {
		return ""
	}
	return e.Namespace
}

func ip(e *audit.Endpoint) string {
	if e == nil {
		return ""
	}
	return e.IP.String()
}

// Keys returns the names records can be counted by, sorted.
func Keys() []string {
	names := make([]string, 0, len(keys))
	for k := range keys {
		names = append(names, k)
	}
	slices.Sort(names)
	return names
}

// Top counts records by one or more keys. Create it with NewTop.
type Top struct {
	by     []string
	get    []func(*audit.Record) string
	groups map[string]*Group
	sum    Totals
	max    int
	other  *Group
}

// Totals are what was read.
type Totals struct {
	Records uint64 `json:"records"` // counted
	Packets uint64 `json:"packets"` // they stand for
	Lost    uint64 `json:"lost"`    // decisions or records the log itself says are missing
	Bad     uint64 `json:"bad"`     // lines that are no records
}

// Group is what has the same values.
type Group struct {
	Values  []string  // in the order of the keys
	Records uint64    // log records
	Packets uint64    // packets they stand for
	First   time.Time // time of the first and the last packet
	Last    time.Time
}

// NewTop counts by keys such as "policy" and "source"; see Keys.
func NewTop(by ...string) (*Top, error) {
	t := &Top{by: by, groups: map[string]*Group{}, max: maxGroups}
	for _, k := range by {
		get, ok := keys[k]
		if !ok {
			return nil, fmt.Errorf("cannot count by %q: want some of %s", k, strings.Join(Keys(), ", "))
		}
		t.get = append(t.get, get)
	}
	if len(by) == 0 {
		return nil, fmt.Errorf("count by what? Want some of %s", strings.Join(Keys(), ", "))
	}
	return t, nil
}

// Add counts a record. Those of kind "lost" and "file" are not counted as
// groups: they are about the log, not about traffic.
func (t *Top) Add(r *audit.Record) {
	switch r.Kind {
	case audit.KindLost:
		t.sum.Lost += r.Count
		return
	case audit.KindFile:
		return
	}
	values := make([]string, len(t.get))
	var key strings.Builder
	for i, get := range t.get {
		values[i] = get(r)
		key.WriteString(strconv.Itoa(len(values[i])) + ":" + values[i])
	}
	g := t.groups[key.String()]
	switch {
	case g != nil:
	case len(t.groups) >= t.max:
		if t.other == nil {
			t.other = &Group{Values: slices.Repeat([]string{"(others)"}, len(t.by)), First: r.Time}
		}
		g = t.other
	default:
		g = &Group{Values: values, First: r.Time, Last: r.Time}
		t.groups[key.String()] = g
	}
	t.sum.Records++
	t.sum.Packets += r.Count
	g.Records++
	g.Packets += r.Count
	last := r.Time
	if r.Until != nil {
		last = *r.Until
	}
	if r.Time.Before(g.First) {
		g.First = r.Time
	}
	if last.After(g.Last) {
		g.Last = last
	}
}

// Bad counts a line that is no record.
func (t *Top) Bad() { t.sum.Bad++ }

// By returns the keys.
func (t *Top) By() []string { return t.by }

// Totals returns the sums.
func (t *Top) Totals() Totals { return t.sum }

// Groups returns the n groups with the most packets, or all of them if n is
// negative, and how many there are. Ties are broken by values.
func (t *Top) Groups(n int) (top []Group, total int) {
	all := make([]Group, 0, len(t.groups)+1)
	for _, g := range t.groups {
		all = append(all, *g)
	}
	slices.SortFunc(all, func(a, b Group) int {
		return cmp.Or(cmp.Compare(b.Packets, a.Packets), cmp.Compare(b.Records, a.Records), slices.Compare(a.Values, b.Values))
	})
	if t.other != nil {
		all = append(all, *t.other)
	}
	if n >= 0 && n < len(all) {
		return all[:n], len(all)
	}
	return all, len(all)
}
