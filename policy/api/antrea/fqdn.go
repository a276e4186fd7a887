package antrea

import "strings"

// MatchFQDN reports whether a pattern of a peer's fqdn field selects a domain
// name. In a pattern * stands for any characters, none and dots included: so
// "*foobar.com" selects foobar.com, www.foobar.com and test.uswest.foobar.com,
// and notfoobar.com too (S4-21, X-45). Case and one trailing dot do not count.
//
// Other APIs have other wildcards; use theirs for theirs.
func MatchFQDN(pattern, name string) bool {
	p := strings.ToLower(strings.TrimSuffix(pattern, "."))
	n := strings.ToLower(strings.TrimSuffix(name, "."))
	if n == "" {
		return false
	}
	parts := strings.Split(p, "*")
	if len(parts) == 1 {
		return p == n
	}
	rest, ok := strings.CutPrefix(n, parts[0])
	if !ok {
		return false
	}
	last := parts[len(parts)-1]
	// Taking each part at its first place leaves the most for the next ones.
	for _, part := range parts[1 : len(parts)-1] {
		i := strings.Index(rest, part)
		if i < 0 {
			return false
		}
		rest = rest[i+len(part):]
	}
	return strings.HasSuffix(rest, last)
}
