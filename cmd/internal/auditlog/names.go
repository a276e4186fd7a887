package auditlog

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/dataplane/audit"
	"github.com/tierwall/tierwall/policy/api"
)

// PolicyName names a policy for people: "NetworkPolicy shop/db". Two policies never
// have one name.
func PolicyName(p *audit.Policy) string {
	return refOf(p).String()
}

func refOf(p *audit.Policy) api.Ref {
	return api.Ref{Group: p.Group, Kind: p.Kind, Namespace: p.Namespace, Name: p.Name}
}

// policyNames names several.
func policyNames(policies []audit.Policy) string {
	names := make([]string, len(policies))
	for i := range policies {
		names[i] = PolicyName(&policies[i])
	}
	return strings.Join(names, ", ")
}

// ruleName is a rule's name, or its place: "ingress[0]".
func ruleName(r *audit.Record) string {
	switch {
	case r.Rule == nil:
		return ""
	case r.Rule.Name != "":
		return r.Rule.Name
	}
	return fmt.Sprintf("%s[%d]", r.Direction, r.Rule.Index)
}

// By says what decided a direction, for people: "NetworkPolicy shop/db:
// ingress[0]", "isolation by NetworkPolicy shop/db, NetworkPolicy shop/all", or
// the reason where it was no policy.
func By(r *audit.Record) string {
	switch {
	case len(r.Isolations) > 0:
		return "isolation by " + policyNames(r.Isolations)
	case r.Policy == nil:
		return r.Reason
	case r.Rule == nil:
		return PolicyName(r.Policy)
	}
	return PolicyName(r.Policy) + ": " + ruleName(r)
}

// Port names what was talked: "TCP 80", "UDP 1-1024", "ICMP 8/0" (type and
// code), "SCTP".
func Port(r *audit.Record) string {
	switch {
	case r.Ports != nil && r.Ports.First != r.Ports.Last:
		return fmt.Sprintf("%s %d-%d", r.Protocol, r.Ports.First, r.Ports.Last)
	case r.Ports != nil:
		return r.Protocol + " " + strconv.Itoa(int(r.Ports.First))
	case r.ICMPType != nil && r.ICMPCode != nil:
		return fmt.Sprintf("%s %d/%d", r.Protocol, *r.ICMPType, *r.ICMPCode)
	case r.Destination != nil && r.Destination.Port != 0:
		return r.Protocol + " " + strconv.Itoa(int(r.Destination.Port))
	}
	return r.Protocol
}

// isWould reports whether a verdict word is an audit-only policy's, and returns
// the enforced word for it.
func isWould(verdict string) (word string, ok bool) {
	switch verdict {
	case audit.WouldAllow:
		return audit.Allow, true
	case audit.WouldDrop:
		return audit.Drop, true
	case audit.WouldReject:
		return audit.Reject, true
	case audit.WouldPass:
		return audit.Pass, true
	}
	return verdict, false
}

// PolicyRef names a policy as rule.Origin.Ref does, in answers about tables.
func PolicyRef(p *audit.Policy) string {
	o := rule.Origin{Group: p.Group, Kind: p.Kind, Namespace: p.Namespace, Name: p.Name}
	return o.Ref()
}
