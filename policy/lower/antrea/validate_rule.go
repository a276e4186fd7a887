package antrea

import (
	"fmt"
	"net/netip"
	"regexp"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tierwall/tierwall/classifier/flow"
	antreaapi "github.com/tierwall/tierwall/policy/api/antrea"
	"github.com/tierwall/tierwall/policy/internal/kube"
)

type labelSelector = metav1.LabelSelector

// IGMP message types (RFC 2236, RFC 3376).
const (
	igmpQuery    = 0x11
	igmpReportV1 = 0x12
	igmpReportV2 = 0x16
	igmpReportV3 = 0x22
)

// allSystems is where general queries go, the only ones that can be named
// (S4-05).
var allSystems = netip.AddrFrom4([4]byte{224, 0, 0, 1})

func (v *checker) peers(d flow.Direction, path string, r *antreaapi.Rule) {
	if d == flow.Ingress {
		if len(r.To) > 0 {
			v.Error(path+".to", "to in an ingress rule", "an ingress rule uses `from`")
		}
		if len(r.ToServices) > 0 {
			v.Error(path+".toServices", "toServices in an ingress rule", "toServices belongs in egress rules")
		}
		v.peerList(d, path+".from", r, r.From)
		return
	}
	if len(r.From) > 0 {
		v.Error(path+".from", "from in an egress rule", "an egress rule uses `to`")
	}
	v.peerList(d, path+".to", r, r.To)
	v.services(path, r)
}

func (v *checker) services(path string, r *antreaapi.Rule) {
	if len(r.ToServices) == 0 {
		return
	}
	for _, other := range []struct {
		name string
		set  bool
	}{{"to", len(r.To) > 0}, {"ports", len(r.Ports) > 0}, {"protocols", len(r.Protocols) > 0}} {
		if other.set { // S2-100, X-55
			v.Error(path+".toServices", "toServices together with "+other.name, "a Service is an address, a protocol and a port: write a second rule")
		}
	}
	for i := range r.ToServices {
		s, at := &r.ToServices[i], kube.At(path+".toServices", i)
		v.scope(at+".scope", s.Scope)
		if s.Name == "" {
			v.Error(at+".name", "name is missing", "write the Service's name")
		}
		if s.Namespace == "" && !v.namespaced {
			v.Error(at+".namespace", "namespace is missing", "write the Service's namespace")
		}
	}
}

func (v *checker) scope(path, scope string) {
	switch scope {
	case "", "Cluster":
	case "ClusterSet":
		v.Error(path, "other clusters of a ClusterSet are not known to this version", "remove scope")
	default:
		v.Error(path, fmt.Sprintf("unknown scope %q", scope), "remove scope")
	}
}

func (v *checker) peerList(d flow.Direction, path string, r *antreaapi.Rule, peers []antreaapi.Peer) {
	multi, other := "", "" // paths of the first multicast peer and of the first one that is none
	for i := range peers {
		p, at := &peers[i], kube.At(path, i)
		v.peer(d, at, r, p)
		is := &other
		if p.IPBlock != nil {
			if prefix, ok := checkBlock(v.Findings, at+".ipBlock", p.IPBlock, v.version); !ok {
				continue
			} else if multicast(prefix) {
				is = &multi
			}
		}
		if *is == "" {
			*is = at
		}
	}
	switch {
	case multi == "":
	case d == flow.Ingress: // S4-06
		v.Error(multi+".ipBlock", "a multicast range as source", "nothing is sent from a multicast address; multicast data cannot be matched in ingress rules")
	case other != "": // S4-14
		v.Error(multi+".ipBlock", "multicast and other destinations in one rule", "write two rules")
	case is(r, actionPass) || is(r, actionReject): // S4-02
		v.Error(multi+".ipBlock", *r.Action+" for multicast traffic", "write Allow or Drop")
	}
}

func is(r *antreaapi.Rule, action string) bool { return r.Action != nil && *r.Action == action }

// fqdnChars is what names and patterns are made of.
var fqdnChars = regexp.MustCompile(`^[-0-9a-zA-Z.*]+$`)

func (v *checker) peer(d flow.Direction, path string, r *antreaapi.Rule, p *antreaapi.Peer) {
	v.oneForm(path, "peer", []form{
		selectorForm(p.PodSelector, p.NamespaceSelector, p.Namespaces),
		{name: "ipBlock", set: p.IPBlock != nil},
		{name: "group", set: p.Group != ""},
		{name: "fqdn", set: p.FQDN != ""},
		{name: "serviceAccount", set: p.ServiceAccount != nil},
		{name: "nodeSelector", set: p.NodeSelector != nil},
		{name: "externalEntitySelector", set: p.ExternalEntitySelector != nil, refused: true},
	})
	kube.CheckSelector(v.Findings, path+".podSelector", p.PodSelector)
	kube.CheckSelector(v.Findings, path+".namespaceSelector", p.NamespaceSelector)
	kube.CheckSelector(v.Findings, path+".nodeSelector", p.NodeSelector)
	v.reserved(path+".podSelector", p.PodSelector)
	v.scope(path+".scope", p.Scope)
	if p.PodSelector != nil || p.NamespaceSelector != nil || p.Namespaces != nil {
		v.selector(path)
	}
	if p.Namespaces != nil {
		v.namespaces(path, p)
	}
	if p.ExternalEntitySelector != nil {
		v.Error(path+".externalEntitySelector", noExternalEntities, "list the addresses in an ipBlock")
	}
	if p.Group != "" {
		v.group(path + ".group")
	}
	if p.ServiceAccount != nil {
		v.selector(path)
		v.serviceAccount(path+".serviceAccount", p.ServiceAccount)
	}
	if p.FQDN != "" {
		v.fqdn(d, path+".fqdn", r, p.FQDN)
	}
}

func (v *checker) namespaces(path string, p *antreaapi.Peer) {
	n, at := p.Namespaces, path+".namespaces"
	if v.namespaced { // S2-59
		v.Error(at, "a NetworkPolicy's peers cannot use namespaces", "podSelector alone means the policy's own namespace")
	}
	if p.NamespaceSelector != nil { // S2-47, S2-50
		v.Error(at, "namespaces and namespaceSelector in one peer", "write one entry for each: entries are alternatives")
	}
	switch {
	case n.Match != "" && len(n.SameLabels) > 0:
		v.Error(at, "match and sameLabels together", "set one of match, sameLabels")
	case n.Match == "" && len(n.SameLabels) == 0:
		v.Error(at, "namespaces selects nothing", "write `match: Self`, or list label keys in sameLabels")
	case n.Match != "" && n.Match != "Self": // S2-50
		hint := "write Self"
		if strings.EqualFold(n.Match, "Self") {
			hint = "write Self: values are case-sensitive"
		}
		v.Error(at+".match", fmt.Sprintf("unknown match %q", n.Match), hint)
	}
	if len(n.SameLabels) > 0 && v.version != current {
		v.Error(at+".sameLabels", v.version+" has no sameLabels", "write apiVersion: "+antreaapi.APIGroup+"/"+current)
	}
	for i, k := range n.SameLabels {
		kube.CheckLabelKey(v.Findings, kube.At(at+".sameLabels", i), k)
	}
}

func (v *checker) fqdn(d flow.Direction, path string, r *antreaapi.Rule, pattern string) {
	switch {
	case d == flow.Ingress: // S2-53
		v.Error(path, "fqdn in an ingress rule", "fqdn belongs in `to` of egress rules; a source is known by its address only")
		return
	case !fqdnChars.MatchString(pattern):
		v.Error(path, fmt.Sprintf("%q is neither a domain name nor a pattern", pattern), "use letters, digits, `-`, `.` and the wildcard `*`")
		return
	case is(r, actionPass): // S2-90
		v.Error(path, "Pass with fqdn", "write Allow, Drop or Reject")
		return
	}
	if rest, ok := strings.CutPrefix(pattern, "*"); ok && rest != "" && rest[0] != '.' && rest[0] != '*' {
		v.Warn(path, fmt.Sprintf("%q also selects not%s", pattern, rest), fmt.Sprintf("write %q for subdomains only", "*."+rest))
	}
	if is(r, actionDrop) || is(r, actionReject) {
		v.Warn(path, "a pod that knows another address of this name still reaches it: the rule matches the addresses that DNS answers to pods of the node gave",
			"to be sure, allow the names that pods need and drop everything else")
	}
}

func (v *checker) ports(path string, r *antreaapi.Rule) {
	for i := range r.Ports {
		p, at := &r.Ports[i], kube.At(path+".ports", i)
		portOf(p).Check(v.Findings, at)
		if v.version != current && (p.SourcePort != nil || p.SourceEndPort != nil) {
			v.Error(at+".sourcePort", v.version+" has no source ports", "write apiVersion: "+antreaapi.APIGroup+"/"+current)
			continue
		}
		number := func(name string, n *int32) bool {
			if n != nil && (*n < 1 || *n > 65535) {
				v.Error(at+"."+name, fmt.Sprintf("%d is not a port number", *n), "ports go from 1 to 65535")
				return false
			}
			return n != nil
		}
		first, last := number("sourcePort", p.SourcePort), number("sourceEndPort", p.SourceEndPort)
		switch {
		case p.SourcePort == nil && p.SourceEndPort != nil:
			v.Error(at+".sourceEndPort", "sourceEndPort without sourcePort", "set `sourcePort` to the first port of the range")
		case first && last && *p.SourceEndPort < *p.SourcePort:
			v.Error(at+".sourceEndPort", fmt.Sprintf("sourceEndPort %d is smaller than sourcePort %d", *p.SourceEndPort, *p.SourcePort),
				"`sourcePort` is the first and `sourceEndPort` the last port of the range")
		}
	}
}

func portOf(p *antreaapi.Port) kube.Port {
	return kube.Port{Protocol: p.Protocol, Port: p.Port, EndPort: p.EndPort}
}

func (v *checker) protocols(d flow.Direction, path string, r *antreaapi.Rule) {
	icmp, igmp := "", ""
	for i := range r.Protocols {
		p, at := &r.Protocols[i], kube.At(path+".protocols", i)
		v.oneProtocol(at, p)
		if p.ICMP != nil {
			icmp = at
			v.icmp(at+".icmp", p.ICMP)
		}
		if p.IGMP != nil {
			igmp = at
			v.igmp(d, at+".igmp", p.IGMP)
		}
	}
	if igmp == "" {
		return
	}
	igmp += ".igmp"
	if is(r, actionPass) || is(r, actionReject) { // S4-02
		v.Error(igmp, *r.Action+" for IGMP", "write Allow or Drop")
	}
	for _, other := range []struct {
		name string
		set  bool
	}{
		{"icmp", icmp != ""}, // S4-09
		{"from", len(r.From) > 0},
		{"to", len(r.To) > 0},
		{"ports", len(r.Ports) > 0},
		{"toServices", len(r.ToServices) > 0}, // S4-10
	} {
		if other.set {
			v.Error(igmp, "igmp together with "+other.name, "write a rule for IGMP alone")
		}
	}
}

func (v *checker) oneProtocol(path string, p *antreaapi.Protocol) {
	switch {
	case p.ICMP != nil && p.IGMP != nil:
		v.Error(path, "icmp and igmp in one entry", "write a rule for each")
	case p.ICMP == nil && p.IGMP == nil:
		v.Error(path, "empty protocols entry", "set icmp or igmp; `icmp: {}` means all ICMP messages")
	}
}

func (v *checker) icmp(path string, p *antreaapi.ICMP) {
	for _, n := range []struct {
		name  string
		value *int32
	}{{"icmpType", p.Type}, {"icmpCode", p.Code}} {
		if n.value != nil && (*n.value < 0 || *n.value > 255) {
			v.Error(path+"."+n.name, fmt.Sprintf("%d is out of range", *n.value), "write a number from 0 to 255")
		}
	}
	if p.Type == nil && p.Code != nil {
		v.Error(path+".icmpCode", "icmpCode without icmpType", "a code means something only together with its type")
	}
}

func (v *checker) igmp(d flow.Direction, path string, p *antreaapi.IGMP) {
	if p.Type != nil {
		const types = "IGMP reports are 0x12 (18, version 1), 0x16 (22, version 2) and 0x22 (34, version 3)"
		switch typ := *p.Type; {
		case d == flow.Ingress && typ != igmpQuery: // S4-04
			v.Error(path+".igmpType", fmt.Sprintf("IGMP type %#x (%d) in an ingress rule", int32(typ), typ), "only the membership query, 0x11 (17), can be matched in ingress rules")
		case d == flow.Egress && typ != igmpReportV1 && typ != igmpReportV2 && typ != igmpReportV3: // S4-07
			v.Error(path+".igmpType", fmt.Sprintf("IGMP type %#x (%d) in an egress rule", int32(typ), typ), types)
		}
	}
	group := allSystems
	if p.GroupAddress != "" {
		a, err := netip.ParseAddr(p.GroupAddress)
		switch {
		case err != nil || !a.Is4() || !a.IsMulticast(): // S4-11
			v.Error(path+".groupAddress", fmt.Sprintf("%q is not an IPv4 multicast address", p.GroupAddress), "multicast addresses are in 224.0.0.0/4")
			return
		case d == flow.Ingress && a != allSystems: // S4-05
			v.Error(path+".groupAddress", "a query about one group cannot be matched", "general queries go to 224.0.0.1; leave groupAddress out or write that")
			return
		}
		group = a
	}
	switch {
	case d == flow.Ingress:
		v.Warn(path, "queries go to 224.0.0.1, which is not a pod's address and always passes: the rule has no effect in this version", "remove the rule")
	case p.Type != nil && *p.Type == igmpReportV3 && p.GroupAddress != "":
		v.Warn(path, fmt.Sprintf("version 3 reports go to 224.0.0.22, which always passes, and name %s inside: the rule has no effect in this version", group), "remove the rule, or drop what is sent to the group")
	}
}
