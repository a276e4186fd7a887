package rule

import (
	"cmp"
	"strings"
)

// Words describes the selected pods as people write selectors: "pods app=web in
// namespace shop".
func (s *Selector) Words() string {
	if s.None {
		return "no pods"
	}
	out := "pods"
	if l := s.PodLabels.Words(); l != "" {
		out += " " + l
	}
	if s.ServiceAccount != "" {
		out += " of service account " + s.ServiceAccount
	}
	switch l := s.NamespaceLabels.Words(); {
	case s.Namespace != "":
		out += " in namespace " + s.Namespace
	case l != "":
		out += " in namespaces " + l
	}
	if len(s.AnyOf) > 0 {
		parts := make([]string, len(s.AnyOf))
		for i := range s.AnyOf {
			parts[i] = s.AnyOf[i].Words()
		}
		out += " that are " + strings.Join(parts, " or ")
	}
	return out
}

// Words writes requirements as kubectl's -l takes them: "app=web,tier in (a,b)".
func (l Labels) Words() string {
	parts := make([]string, len(l))
	for i, r := range l {
		one := len(r.Values) == 1
		values := strings.Join(r.Values, ",")
		switch {
		case r.Op == In && one:
			parts[i] = r.Key + "=" + values
		case r.Op == NotIn && one:
			parts[i] = r.Key + "!=" + values
		case r.Op == In:
			parts[i] = r.Key + " in (" + values + ")"
		case r.Op == NotIn:
			parts[i] = r.Key + " notin (" + values + ")"
		case r.Op == Exists:
			parts[i] = r.Key
		default:
			parts[i] = "!" + r.Key
		}
	}
	return strings.Join(parts, ",")
}

// Words describes the peer for people who do not know how rules are written here.
func (p *Peer) Words() string {
	switch p.Kind {
	case PeerPods:
		out := p.Pods.Words()
		if rel := p.Relation.String(); rel != "" {
			out += " " + rel
		}
		return out
	case PeerSet, PeerService:
		kind, name, _ := strings.Cut(p.Set, ":")
		switch {
		case kind == "node-selector" && name == "":
			return "any node"
		case kind == "node-selector":
			return "nodes " + name
		case strings.HasSuffix(kind, "fqdn"), kind == "domain":
			return "addresses that " + name + " resolves to"
		case p.Kind == PeerService:
			return "Service " + cmp.Or(name, p.Set)
		}
		return "addresses of " + p.Set
	}
	return p.String()
}
