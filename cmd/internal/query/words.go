package query

import (
	"regexp"
	"strings"

	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/lower"
)

// kinds has the names of policy kinds by how answers write them.
var kinds = func() map[string]string {
	out := map[string]string{}
	for _, k := range lower.Kinds() {
		out[strings.ToLower(k.Kind)+"."+k.Group] = k.Kind
	}
	return out
}()

// nameShort turns "networkpolicy.networking.k8s.io/shop/db", as JSON has it, into
// "NetworkPolicy shop/db".
func nameShort(policy string) string {
	parts := strings.Split(policy, "/")
	if len(parts) != 3 || kinds[parts[0]] == "" {
		return policy
	}
	_, group, _ := strings.Cut(parts[0], ".")
	return api.Ref{Group: group, Kind: kinds[parts[0]], Namespace: parts[1], Name: parts[2]}.String()
}

// nameAll is nameShort of several.
func nameAll(policies []string) string {
	out := make([]string, len(policies))
	for i, p := range policies {
		out[i] = nameShort(p)
	}
	return strings.Join(out, ", ")
}

var unnamed = regexp.MustCompile(`^(ingress|egress)\[\d+\]$`)

// nameRule is a rule's place, or its name in quotes.
func nameRule(rule string) string {
	if unnamed.MatchString(rule) {
		return "rule " + rule
	}
	return `rule "` + rule + `"`
}
