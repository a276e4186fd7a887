package cilium

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/policy/api/cilium"
	"github.com/tierwall/tierwall/policy/internal/kube"
)

// spec is one of a policy's specs and where it is written.
type spec struct {
	*cilium.Rule
	path string // "spec", "specs[1]"
}

func specsOf(p *cilium.Policy) []spec {
	var out []spec
	if p.Spec != nil {
		out = append(out, spec{p.Spec, "spec"})
	}
	for i := range p.Specs {
		out = append(out, spec{&p.Specs[i], kube.At("specs", i)})
	}
	return out
}

// line is one item of any of the four lists, in one form. Lists keep the
// difference between nil and empty.
type line struct {
	path      string // "spec.ingressDeny[0]"
	name      string // for rule.Origin.Rule
	direction flow.Direction
	deny      bool

	endpoints, requires, nodes []metav1.LabelSelector
	cidr                       []string
	cidrSet                    []cilium.CIDRRule
	entities                   []string
	services                   []cilium.Service
	fqdns                      []cilium.FQDN
	groups                     []cilium.Opaque

	toPorts []cilium.PortRule
	icmps   []cilium.ICMPRule
	auth    *cilium.Authentication
}

// linesOf lists the rules of a spec: per direction allow rules, then deny rules,
// so that the allow rules of spec keep the numbers users count.
func linesOf(s spec) []line {
	var out []line
	add := func(list string, i int, d flow.Direction, deny bool) *line {
		at := fmt.Sprintf("%s[%d]", list, i)
		ln := line{path: s.path + "." + at, direction: d, deny: deny}
		switch {
		case s.path != "spec":
			ln.name = s.path + "." + at
		case deny:
			ln.name = at
		}
		out = append(out, ln)
		return &out[len(out)-1]
	}
	for i := range s.Ingress {
		r := &s.Ingress[i]
		ln := add("ingress", i, flow.Ingress, false)
		ln.from(&r.IngressPeers)
		ln.toPorts, ln.icmps, ln.auth = r.ToPorts, r.ICMPs, r.Authentication
	}
	for i := range s.IngressDeny {
		r := &s.IngressDeny[i]
		ln := add("ingressDeny", i, flow.Ingress, true)
		ln.from(&r.IngressPeers)
		ln.toPorts, ln.icmps = portRules(r.ToPorts), r.ICMPs
	}
	for i := range s.Egress {
		r := &s.Egress[i]
		ln := add("egress", i, flow.Egress, false)
		ln.to(&r.EgressPeers)
		ln.fqdns, ln.toPorts, ln.icmps, ln.auth = r.ToFQDNs, r.ToPorts, r.ICMPs, r.Authentication
	}
	for i := range s.EgressDeny {
		r := &s.EgressDeny[i]
		ln := add("egressDeny", i, flow.Egress, true)
		ln.to(&r.EgressPeers)
		ln.toPorts, ln.icmps = portRules(r.ToPorts), r.ICMPs
	}
	return out
}

func (ln *line) from(p *cilium.IngressPeers) {
	ln.endpoints, ln.requires, ln.nodes = p.FromEndpoints, p.FromRequires, p.FromNodes
	ln.cidr, ln.cidrSet, ln.entities, ln.groups = p.FromCIDR, p.FromCIDRSet, p.FromEntities, p.FromGroups
}

func (ln *line) to(p *cilium.EgressPeers) {
	ln.endpoints, ln.requires, ln.nodes = p.ToEndpoints, p.ToRequires, p.ToNodes
	ln.cidr, ln.cidrSet, ln.entities, ln.groups = p.ToCIDR, p.ToCIDRSet, p.ToEntities, p.ToGroups
	ln.services = p.ToServices
}

func portRules(deny []cilium.PortDenyRule) []cilium.PortRule {
	if deny == nil {
		return nil
	}
	out := make([]cilium.PortRule, len(deny))
	for i := range deny {
		out[i].Ports = deny[i].Ports
	}
	return out
}

// field returns the path of a peer list: "spec.egress[0].toCIDR" for "CIDR".
func (ln *line) field(list string) string {
	if ln.direction == flow.Egress {
		return ln.path + ".to" + list
	}
	return ln.path + ".from" + list
}

// peerList is one of the lists that name the other side.
type peerList struct {
	name    string // "CIDR" for fromCIDR and toCIDR
	len     int
	present bool
}

func (ln *line) peerLists() []peerList {
	return []peerList{
		{"Endpoints", len(ln.endpoints), ln.endpoints != nil},
		{"CIDR", len(ln.cidr), ln.cidr != nil},
		{"CIDRSet", len(ln.cidrSet), ln.cidrSet != nil},
		{"Entities", len(ln.entities), ln.entities != nil},
		{"Services", len(ln.services), ln.services != nil},
		{"FQDNs", len(ln.fqdns), ln.fqdns != nil},
		{"Nodes", len(ln.nodes), ln.nodes != nil},
		{"Groups", len(ln.groups), ln.groups != nil},
		{"Requires", len(ln.requires), ln.requires != nil},
	}
}

// open reports whether the rule leaves the other side open: no peer list is
// there, not even an empty one.
func (ln *line) open() bool {
	for _, l := range ln.peerLists() {
		if l.present {
			return false
		}
	}
	return true
}

// silent reports whether the rule has neither peers nor ports: it matches
// nothing.
func (ln *line) silent() bool { return ln.open() && len(ln.toPorts) == 0 && len(ln.icmps) == 0 }
