package simulate

import (
	"net/netip"
	"regexp"
	"strings"
)

// Resolve tells the simulator the addresses behind DNS names, as somebody has
// learnt them from answers: lower case, without a trailing dot. Without it no
// name has an address. It may be called once, before Evaluate.
func (s *Simulator) Resolve(names map[string][]netip.Addr) { s.names = names }

// resolved reports whether one of the names a pattern selects has the address.
func (s *Simulator) resolved(selects func(name string) bool, a netip.Addr) bool {
	for name, addrs := range s.names {
		if !selects(name) {
			continue
		}
		for _, b := range addrs {
			if a == b {
				return true
			}
		}
	}
	return false
}

// Three APIs, three meanings of a star.

// antreaName: * is any characters, none and dots included (S4-21).
func antreaName(pattern string) func(string) bool {
	return nameMatcher(strings.ReplaceAll(regexp.QuoteMeta(normal(pattern)), `\*`, `.*`))
}

// upstreamName: "*." in front is one or more whole labels, nothing else is
// special.
func upstreamName(pattern string) func(string) bool {
	rest, wild := strings.CutPrefix(normal(pattern), "*.")
	expr := regexp.QuoteMeta(rest)
	if wild {
		expr = `([^.]+\.)+` + expr
	}
	return nameMatcher(expr)
}

// ciliumName: "**." in front is one or more labels, * any characters of one
// label; a pattern that is only a star is every name.
func ciliumName(pattern string) func(string) bool {
	p := normal(pattern)
	if p == "*" {
		return func(string) bool { return true }
	}
	rest, deep := strings.CutPrefix(p, "**.")
	expr := strings.ReplaceAll(regexp.QuoteMeta(rest), `\*`, `[^.]*`)
	if deep {
		expr = `([^.]+\.)+` + expr
	}
	return nameMatcher(expr)
}

func normal(name string) string { return strings.ToLower(strings.TrimSuffix(name, ".")) }

func nameMatcher(expr string) func(string) bool {
	re := regexp.MustCompile("^" + expr + "$")
	return re.MatchString
}
