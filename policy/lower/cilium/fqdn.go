package cilium

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/tierwall/tierwall/policy/api/cilium"
	"github.com/tierwall/tierwall/policy/internal/kube"
)

var (
	nameSyntax = regexp.MustCompile(`^([-a-zA-Z0-9_]+\.)*[-a-zA-Z0-9_]+\.?$`)
	// "*" alone, or labels that may contain *; "**" only as a whole first label.
	patternSyntax = regexp.MustCompile(`^(\*\*\.)?([-a-zA-Z0-9_]|\*)+(\.([-a-zA-Z0-9_]|\*)+)*\.?$`)
)

// fqdnPattern returns the pattern of an item in lower case and without the dot
// of the root, "" for one that Validate refuses.
func fqdnPattern(n *cilium.FQDN) string {
	s, syntax := n.MatchName, nameSyntax
	if n.MatchPattern != "" {
		s, syntax = n.MatchPattern, patternSyntax
	}
	if n.MatchName != "" && n.MatchPattern != "" || !syntax.MatchString(s) || len(s) > 255 || doubleStar(s) {
		return ""
	}
	return strings.ToLower(strings.TrimSuffix(s, "."))
}

// doubleStar reports a ** that is not the whole first label.
func doubleStar(s string) bool { return strings.Contains(strings.TrimPrefix(s, "**."), "**") }

func checkFQDN(f *kube.Findings, path string, n *cilium.FQDN) {
	switch {
	case n.MatchName == "" && n.MatchPattern == "":
		f.Error(path, "names no DNS name", "set exactly one of matchName, matchPattern")
		return
	case n.MatchName != "" && n.MatchPattern != "":
		f.Error(path, "sets matchName and matchPattern", "set exactly one of matchName, matchPattern")
		return
	case n.MatchName != "" && fqdnPattern(n) == "":
		hint := "write a name in full, such as api.example.com"
		if strings.Contains(n.MatchName, "*") {
			hint = "write a pattern as matchPattern"
		}
		f.Error(path+".matchName", fmt.Sprintf("%q is not a DNS name", n.MatchName), hint)
		return
	case n.MatchPattern != "" && fqdnPattern(n) == "":
		f.Error(path+".matchPattern", fmt.Sprintf("%q is not a pattern of DNS names", n.MatchPattern),
			"* stands for characters of one label; **. in front for one or more labels")
		return
	}
	if p := n.MatchPattern; strings.HasPrefix(p, "*") && len(p) > 1 && p[1] != '.' && p[1] != '*' {
		f.Warn(path+".matchPattern", fmt.Sprintf("%q also matches names that only end alike, such as %q", p, "not"+strings.TrimLeft(p, "*")),
			fmt.Sprintf("for names below a domain write %q", "*."+strings.TrimLeft(p, "*")))
	}
}
