package rule

import (
	"fmt"
	"strings"

	"github.com/tierwall/tierwall/classifier/flow"
)

// RuleName returns the rule's own name or, if it has none, its place:
// "ingress[0]". It is empty for isolations.
func (o *Origin) RuleName(d flow.Direction) string {
	switch {
	case o.Rule != "":
		return o.Rule
	case o.Index < 0:
		return ""
	}
	return fmt.Sprintf("%s[%d]", d, o.Index)
}

// String describes the peer in one line.
func (p *Peer) String() string {
	switch p.Kind {
	case PeerAny:
		return "anywhere"
	case PeerPods:
		s := "pods " + p.Pods.String()
		if rel := p.Relation.String(); rel != "" {
			s += " " + rel
		}
		return s
	case PeerBlock:
		return p.Block.String()
	case PeerService:
		return p.Set
	case PeerSet:
		return "set " + p.Set
	}
	return "invalid"
}

// String describes the relation; "" when there is none.
func (r *Relation) String() string {
	var parts []string
	switch r.Namespace {
	case SameNamespace:
		parts = append(parts, "in the same namespace")
	case OtherNamespace:
		parts = append(parts, "in another namespace")
	}
	if s := r.NamespaceLabels.String(); s != "" {
		parts = append(parts, "whose namespace has "+s)
	}
	if s := r.PodLabels.String(); s != "" {
		parts = append(parts, "with "+s)
	}
	return strings.Join(parts, " ")
}

// String describes the comparison; "" when there is none.
func (r *LabelRelation) String() string {
	keys := strings.Join(r.Keys, ", ")
	switch r.Op {
	case SameLabels:
		return "the same value of [" + keys + "]"
	case NotSameLabelsKEP:
		return "another value, or none, of one of [" + keys + "]"
	case NotSameLabelsRelease:
		return "another value of one of [" + keys + "]"
	}
	return ""
}

// String describes the alternative: "TCP 80", "TCP 8000-8080", "UDP dns",
// "any protocol", "ICMP type 8 code 0".
func (l *L4) String() string {
	if *l == AnyL4 {
		return "any protocol"
	}
	s := l.Proto.String()
	if l.Proto == flow.AnyProto {
		s = "any protocol,"
	}
	switch {
	case l.Name != "":
		s += " port " + l.Name
	case l.Ports == AllPorts:
	case l.Proto.HasPorts():
		s += " " + l.Ports.String()
	case l.Ports.First>>8 == l.Ports.Last>>8 && l.Ports.First&0xff == 0 && l.Ports.Last&0xff == 0xff:
		s += fmt.Sprintf(" type %d", l.Ports.First>>8)
	case l.Ports.First == l.Ports.Last:
		s += fmt.Sprintf(" type %d code %d", l.Ports.First>>8, l.Ports.First&0xff)
	default:
		s += fmt.Sprintf(" type<<8|code %s", l.Ports)
	}
	if l.SrcPorts != AllPorts {
		s += " from port " + l.SrcPorts.String()
	}
	return s
}

// String is "80" or "8000-8080".
func (r PortRange) String() string {
	if r.First == r.Last {
		return fmt.Sprint(r.First)
	}
	return fmt.Sprintf("%d-%d", r.First, r.Last)
}
