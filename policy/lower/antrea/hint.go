package antrea

import (
	"regexp"
	"strings"
)

var (
	appliedToEntry = regexp.MustCompile(`\.appliedTo\[[0-9]+\]\.`)
	peerEntry      = regexp.MustCompile(`\.(from|to)\[[0-9]+\]\.`)
)

// fieldHint answers fields that other policy APIs have, where these do not.
func fieldHint(path string) string {
	name := path[strings.LastIndexByte(path, '.')+1:]
	switch {
	case appliedToEntry.MatchString(path) && (name == "ipBlock" || name == "fqdn"): // S2-27
		return "a policy is about pods: " + name + " belongs in from or to"
	case appliedToEntry.MatchString(path) && name == "namespaces":
		return "write namespaceSelector; namespaces relates peers to the pods of appliedTo"
	case strings.HasSuffix(path, ".namespaces.namespaceSelector"):
		return "write namespaceSelector in the peer, in the place of namespaces, which takes `match: Self` or `sameLabels: [KEY]`"
	case name == "childGroup":
		return "write a list in childGroups"
	case peerEntry.MatchString(path) && (name == "cidr" || name == "except"):
		return name + " belongs under ipBlock"
	case path == "spec.podSelector", path == "spec.namespaceSelector", path == "spec.subject":
		return "write it as an entry of spec.appliedTo"
	case path == "spec.policyTypes":
		return "the policy is about the directions it has rules for; write a Drop rule to isolate"
	case path == "spec.order":
		return "write priority"
	}
	return ""
}
