package cilium

import "strings"

// fieldHint answers fields that people bring along from other APIs or put into
// the wrong list.
func fieldHint(path string) string {
	parent, name, _ := cutLast(path)
	inRule := strings.HasSuffix(parent, "]") && (strings.Contains(parent, "gress[") || strings.Contains(parent, "gressDeny["))
	deny := strings.Contains(parent, "Deny[")
	egress := strings.Contains(parent, ".egress")
	switch name {
	case "podSelector":
		if !strings.Contains(parent, "gress") {
			return "the pods a Cilium policy is about are chosen by endpointSelector"
		}
		return "pods are chosen by fromEndpoints and toEndpoints"
	case "namespaceSelector":
		return "namespaces are chosen in endpoint selectors, by " + keyNamespace + " and " + keyNamespaceLabel + "KEY"
	case "ipBlock":
		return "addresses are chosen by fromCIDR, fromCIDRSet, toCIDR and toCIDRSet"
	case "from", "to":
		if inRule {
			return "the other side is given by " + name + "Endpoints, " + name + "CIDR, " + name + "Entities and their like"
		}
	case "policyTypes":
		return "a direction with rules is isolated; enableDefaultDeny says otherwise"
	case "action":
		return "allow rules go under ingress and egress, deny rules under ingressDeny and egressDeny"
	case "prio", "precedence", "weight":
		return "write order"
	case "tier":
		return "Cilium policies have no tiers; the order among them is given by order"
	case "rules", "terminatingTLS", "originatingTLS", "listener", "serverNames":
		if deny {
			return "a deny rule has no part above ports"
		}
	case "authentication":
		if deny {
			return "only allow rules ask for authentication"
		}
	case "toFQDNs":
		if deny {
			return "a deny rule cannot name DNS names"
		}
	case "order", "priority":
		if inRule {
			return name + " belongs to the spec and counts for all of its rules"
		}
	}
	// The field exists, in rules of the other direction.
	if inRule && egress && strings.HasPrefix(name, "from") && name != "from" {
		return "an egress rule uses `to" + strings.TrimPrefix(name, "from") + "`"
	}
	if inRule && !egress && strings.HasPrefix(name, "to") && name != "toPorts" {
		return "an ingress rule uses `from" + strings.TrimPrefix(name, "to") + "`"
	}
	return ""
}

func cutLast(path string) (parent, name string, ok bool) {
	i := strings.LastIndexByte(path, '.')
	if i < 0 {
		return "", path, false
	}
	return path[:i], path[i+1:], true
}
