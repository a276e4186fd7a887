package auditlog

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/dataplane/audit"
)

// Words is a Filter as text: what each flag of the commands, or each parameter
// of the daemon's interface, was given. Both use the names of WordNames, so that
// a filter means the same wherever it is evaluated. It converts to and from
// url.Values.
type Words map[string][]string

// WordNames are the names a filter is written with, in the order help texts
// show them.
var WordNames = []string{
	"verdict", "kind", "direction", "stage", "band", "reason", "node", "protocol", "label", "namespace", "pod", "policy",
	"rule", "cidr", "from", "to", "port", "since", "until",
}

// Filter parses the words. prefix is put before their names in errors: "--" for
// flags. now, and its zone, is what times in words are relative to.
func (w Words) Filter(prefix string, now time.Time) (Filter, error) {
	p := wordParser{words: w, prefix: prefix}
	for _, name := range slices.Sorted(maps.Keys(w)) {
		if !slices.Contains(WordNames, name) {
			p.fail(name, errors.New("is no filter"))
		}
	}
	var bands []string
	for b := rule.Band(0); b <= rule.BandDefault; b++ {
		bands = append(bands, b.String())
	}
	f := Filter{
		Verdicts: p.oneOf("verdict", audit.Allow, audit.Drop, audit.Reject, audit.Pass,
			audit.WouldAllow, audit.WouldDrop, audit.WouldReject, audit.WouldPass),
		Kinds:      p.oneOf("kind", audit.KindFlow, audit.KindPacket, audit.KindLost, audit.KindFile),
		Directions: p.oneOf("direction", "ingress", "egress"),
		Stages:     p.oneOf("stage", audit.StageEnforce, audit.StageAudit),
		Bands:      p.oneOf("band", bands...),
		Reasons:    w["reason"], Nodes: w["node"], Protocols: w["protocol"], Rules: w["rule"],
		Labels: p.patterns("label"), Namespaces: p.patterns("namespace"), Pods: p.patterns("pod"), Policies: p.patterns("policy"),
		Nets:    parseWords(&p, "cidr", ParseNet),
		Sources: parseWords(&p, "from", ParseParty),
		Dests:   parseWords(&p, "to", ParseParty),
		Ports:   parseWords(&p, "port", ParsePort),
		Since:   p.time("since", now), Until: p.time("until", now),
	}
	return f, errors.Join(p.errs...)
}

// wordParser collects what is wrong with all words.
type wordParser struct {
	words  Words
	prefix string
	errs   []error
}

func (p *wordParser) fail(name string, err error) {
	p.errs = append(p.errs, fmt.Errorf("%s%s: %w", p.prefix, name, err))
}

func (p *wordParser) oneOf(name string, known ...string) []string {
	for _, w := range p.words[name] {
		if !slices.ContainsFunc(known, func(k string) bool { return strings.EqualFold(k, w) }) {
			p.errs = append(p.errs, fmt.Errorf("%s%s %q: want one of %s", p.prefix, name, w, strings.Join(known, ", ")))
		}
	}
	return p.words[name]
}

func (p *wordParser) patterns(name string) []string {
	for _, s := range p.words[name] {
		if err := CheckPattern(s); err != nil {
			p.fail(name, err)
		}
	}
	return p.words[name]
}

func (p *wordParser) time(name string, now time.Time) time.Time {
	given := p.words[name]
	if len(given) == 0 || given[len(given)-1] == "" {
		return time.Time{}
	}
	t, err := ParseTime(given[len(given)-1], now)
	if err != nil {
		p.fail(name, err)
	}
	return t
}

func parseWords[T any](p *wordParser, name string, parse func(string) (T, error)) []T {
	var out []T
	for _, s := range p.words[name] {
		v, err := parse(s)
		if err != nil {
			p.fail(name, err)
		}
		out = append(out, v)
	}
	return out
}
