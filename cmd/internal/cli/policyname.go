package cli

import (
	"strings"

	"github.com/tierwall/tierwall/policy/api"
)

// PolicyPath brings the ways in which outputs write a policy's name to one: parts
// separated by slashes, in lower case.
//
//	networkpolicy.networking.k8s.io/shop/db    matrix, explain, metrics
//	NetworkPolicy shop/db (crd.antrea.io)      audit lines, findings
//	AntreaNetworkPolicy:shop/db                get policies, Antrea's lines
//	adminnetworkpolicy.…//monitoring           cluster-wide, as matrix has it
func PolicyPath(name string) string {
	name = strings.ToLower(strings.TrimSpace(name))
	if head, group, ok := strings.Cut(name, " ("); ok && strings.HasSuffix(group, ")") {
		kind, rest, _ := strings.Cut(head, " ")
		name = kind + "." + strings.TrimSuffix(group, ")") + "/" + rest
	}
	if i := strings.IndexAny(name, " :"); i >= 0 {
		name = name[:i] + "/" + strings.TrimLeft(name[i+1:], " ")
	}
	return strings.ReplaceAll(name, "//", "/")
}

// PolicyPaths are the paths a policy is known by: its name, the namespace before
// it, and before these its kind, in any of the ways kinds are written.
func PolicyPaths(r api.Ref) []string {
	name := strings.ToLower(r.Name)
	out := []string{name}
	if r.Namespace != "" {
		name = strings.ToLower(r.Namespace) + "/" + name
		out = append(out, name)
	}
	kind, group := strings.ToLower(r.Kind), strings.ToLower(r.Group)
	plural := strings.TrimSuffix(kind, "y") + "ies"
	for _, k := range []string{kind, kind + "." + group, plural, plural + "." + group, apiPrefix(r) + kind} {
		out = append(out, k+"/"+name)
	}
	return out
}

// apiPrefix is what "get policies" and Antrea's lines put before a kind.
func apiPrefix(r api.Ref) string {
	switch r.Group {
	case "crd.antrea.io":
		return "antrea"
	case "networking.k8s.io", "policy.networking.k8s.io":
		return "k8s"
	case "netpol.networking.k8s.io":
		return "kep"
	}
	return ""
}
