package inventory

import (
	"regexp"
	"strings"
)

// NameMatcher returns what tells whether a DNS name belongs to a set learnt from
// DNS; ok is false for any other set. Names are in any case, with or without the
// dot of the root. The three kinds of sets differ in what * stands for:
//
//	fqdn         any characters, none and dots included (S4-21)
//	domain       "*." in front: one or more labels
//	cilium-fqdn  characters of one label; "**." in front: one or more labels;
//	             "*" alone: every name
//
// The matcher may be used by any number of goroutines, and takes time linear in
// the name's length.
func NameMatcher(set string) (match func(name string) bool, ok bool) {
	var expr string
	any := false
	if p, is := strings.CutPrefix(set, fqdnPrefix); is {
		expr = strings.ReplaceAll(regexp.QuoteMeta(normalName(p)), `\*`, `.*`)
	} else if p, is := strings.CutPrefix(set, domainPrefix); is {
		expr = labelsInFront(normalName(p), "*.", regexp.QuoteMeta)
	} else if p, is := strings.CutPrefix(set, ciliumFQDNPrefix); is {
		p = normalName(p)
		any = p == "*"
		expr = labelsInFront(p, "**.", func(s string) string {
			return strings.ReplaceAll(regexp.QuoteMeta(s), `\*`, `[^.]*`)
		})
	} else {
		return nil, false
	}
	re, err := regexp.Compile(`(?s)^` + expr + `$`)
	if err != nil { // no pattern the dialects accept
		return func(string) bool { return false }, true
	}
	return func(name string) bool {
		name = normalName(name)
		return name != "" && (any || re.MatchString(name))
	}, true
}

// labelsInFront translates a pattern whose prefix stands for one or more labels.
func labelsInFront(pattern, prefix string, rest func(string) string) string {
	if tail, wild := strings.CutPrefix(pattern, prefix); wild {
		return `([^.]+\.)+` + rest(tail)
	}
	return rest(pattern)
}

func normalName(s string) string { return strings.ToLower(strings.TrimSuffix(s, ".")) }

// WithoutCluster reports whether a set never holds addresses of pods and nodes,
// whatever DNS says.
func WithoutCluster(set string) bool { return strings.HasPrefix(set, ciliumFQDNPrefix) }
