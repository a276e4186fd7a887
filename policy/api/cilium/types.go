// Package cilium has the Go form of cilium.io/v2 CiliumNetworkPolicy and
// CiliumClusterwideNetworkPolicy: what their users write, with the order field of
// the ordered-policy proposal CFP-23380 (S3-01, S3-02).
//
// Three states of a list matter here and survive decoding: nil (absent or null),
// empty and filled. An absent peer list leaves the peer open, an empty one
// selects nobody.
//
// Fields of type Opaque belong to parts that are refused (layer 7, TLS, cloud
// groups). They are read so that the refusal can name them, and are never looked
// into.
package cilium

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Opaque is a value that is read but not understood; nil when absent.
type Opaque = any

// Policy is a CiliumNetworkPolicy or a CiliumClusterwideNetworkPolicy: the shapes
// are the same. At least one of Spec and Specs is set; all their rules count.
type Policy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec  *Rule  `json:"spec,omitempty"`
	Specs []Rule `json:"specs,omitempty"`
}

// Rule is one spec: a subject and what it may or may not do.
type Rule struct {
	// Order: lower is stronger, 0 when absent (S3-01, S3-13). Priority is
	// another name for the same field; at most one of them is set.
	Order    *int32 `json:"order,omitempty"`
	Priority *int32 `json:"priority,omitempty"`

	// Exactly one of the selectors is set; NodeSelector only in a clusterwide
	// policy.
	EndpointSelector *metav1.LabelSelector `json:"endpointSelector,omitempty"`
	NodeSelector     *metav1.LabelSelector `json:"nodeSelector,omitempty"`

	Ingress     []IngressRule     `json:"ingress,omitempty"`
	IngressDeny []IngressDenyRule `json:"ingressDeny,omitempty"`
	Egress      []EgressRule      `json:"egress,omitempty"`
	EgressDeny  []EgressDenyRule  `json:"egressDeny,omitempty"`

	EnableDefaultDeny *DefaultDeny `json:"enableDefaultDeny,omitempty"`

	Description string  `json:"description,omitempty"`
	Labels      []Label `json:"labels,omitempty"`
	Log         *Log    `json:"log,omitempty"`
}

// DefaultDeny says whether the subject is isolated, per direction. A direction
// left out is isolated when the rule has anything to say about it.
type DefaultDeny struct {
	Ingress *bool `json:"ingress,omitempty"`
	Egress  *bool `json:"egress,omitempty"`
}

// Label marks a rule for its author; it selects nothing.
type Label struct {
	Key    string `json:"key,omitempty"`
	Value  string `json:"value,omitempty"`
	Source string `json:"source,omitempty"`
}

// Log adds a text to records of connections the rule decides.
type Log struct {
	Value string `json:"value,omitempty"`
}

// IngressPeers is the other side of ingress rules. At most one list has items.
type IngressPeers struct {
	FromEndpoints []metav1.LabelSelector `json:"fromEndpoints,omitempty"`
	FromRequires  []metav1.LabelSelector `json:"fromRequires,omitempty"` // refused
	FromCIDR      []string               `json:"fromCIDR,omitempty"`     // prefixes or addresses
	FromCIDRSet   []CIDRRule             `json:"fromCIDRSet,omitempty"`
	FromEntities  []string               `json:"fromEntities,omitempty"`
	FromNodes     []metav1.LabelSelector `json:"fromNodes,omitempty"`
	FromGroups    []Opaque               `json:"fromGroups,omitempty"` // refused
}

// EgressPeers is the other side of egress rules. At most one list has items.
type EgressPeers struct {
	ToEndpoints []metav1.LabelSelector `json:"toEndpoints,omitempty"`
	ToRequires  []metav1.LabelSelector `json:"toRequires,omitempty"` // refused
	ToCIDR      []string               `json:"toCIDR,omitempty"`     // prefixes or addresses
	ToCIDRSet   []CIDRRule             `json:"toCIDRSet,omitempty"`
	ToEntities  []string               `json:"toEntities,omitempty"`
	ToServices  []Service              `json:"toServices,omitempty"`
	ToNodes     []metav1.LabelSelector `json:"toNodes,omitempty"`
	ToGroups    []Opaque               `json:"toGroups,omitempty"` // refused
}

// IngressRule allows connections to the subject. ToPorts and ICMPs exclude each
// other; without both every protocol matches. A rule without peer lists, ToPorts
// and ICMPs, written {}, matches nothing; so it is with the other three kinds.
type IngressRule struct {
	IngressPeers   `json:",inline"`
	ToPorts        []PortRule      `json:"toPorts,omitempty"`
	ICMPs          []ICMPRule      `json:"icmps,omitempty"`
	Authentication *Authentication `json:"authentication,omitempty"`
}

// IngressDenyRule denies connections to the subject.
type IngressDenyRule struct {
	IngressPeers `json:",inline"`
	ToPorts      []PortDenyRule `json:"toPorts,omitempty"`
	ICMPs        []ICMPRule     `json:"icmps,omitempty"`
}

// EgressRule allows connections from the subject. ToFQDNs is one more peer list.
type EgressRule struct {
	EgressPeers    `json:",inline"`
	ToFQDNs        []FQDN          `json:"toFQDNs,omitempty"`
	ToPorts        []PortRule      `json:"toPorts,omitempty"`
	ICMPs          []ICMPRule      `json:"icmps,omitempty"`
	Authentication *Authentication `json:"authentication,omitempty"`
}

// EgressDenyRule denies connections from the subject.
type EgressDenyRule struct {
	EgressPeers `json:",inline"`
	ToPorts     []PortDenyRule `json:"toPorts,omitempty"`
	ICMPs       []ICMPRule     `json:"icmps,omitempty"`
}

// CIDRRule is a prefix with holes.
type CIDRRule struct {
	CIDR   string   `json:"cidr,omitempty"`
	Except []string `json:"except,omitempty"`
	// CIDRGroupRef and CIDRGroupSelector name CiliumCIDRGroups; refused.
	CIDRGroupRef      string                `json:"cidrGroupRef,omitempty"`
	CIDRGroupSelector *metav1.LabelSelector `json:"cidrGroupSelector,omitempty"`
}

// Service names Services by name or by label; exactly one is set.
type Service struct {
	K8sService         *ServiceName     `json:"k8sService,omitempty"`
	K8sServiceSelector *ServiceSelector `json:"k8sServiceSelector,omitempty"`
}

// ServiceName is one Service.
type ServiceName struct {
	ServiceName string `json:"serviceName,omitempty"`
	Namespace   string `json:"namespace,omitempty"`
}

// ServiceSelector selects Services by their labels.
type ServiceSelector struct {
	Selector  *metav1.LabelSelector `json:"selector,omitempty"`
	Namespace string                `json:"namespace,omitempty"`
}

// FQDN selects DNS names; exactly one field is set. In a pattern * stands for
// characters of one label, and a leading **. for one or more labels.
type FQDN struct {
	MatchName    string `json:"matchName,omitempty"`
	MatchPattern string `json:"matchPattern,omitempty"`
}

// PortRule is the ports part of an allow rule. All but Ports is refused.
type PortRule struct {
	Ports          []Port   `json:"ports,omitempty"`
	TerminatingTLS Opaque   `json:"terminatingTLS,omitempty"`
	OriginatingTLS Opaque   `json:"originatingTLS,omitempty"`
	ServerNames    []string `json:"serverNames,omitempty"`
	Listener       Opaque   `json:"listener,omitempty"`
	Rules          Opaque   `json:"rules,omitempty"`
}

// PortDenyRule is the ports part of a deny rule.
type PortDenyRule struct {
	Ports []Port `json:"ports,omitempty"`
}

// Port selects destination ports. Port is a number in quotes ("0": every port)
// or the name of a container port; EndPort is the inclusive end of a range, 0
// when there is none; Protocol is TCP, UDP, SCTP or ANY, which "" means too and
// which stands for the three of them.
type Port struct {
	Port     string `json:"port,omitempty"`
	EndPort  int32  `json:"endPort,omitempty"`
	Protocol string `json:"protocol,omitempty"`
}

// ICMPRule is a list of ICMP types, OR-ed.
type ICMPRule struct {
	Fields []ICMPField `json:"fields,omitempty"`
}

// ICMPField is one ICMP type, by number (0 to 255) or name. Family is IPv4 (the
// default) or IPv6.
type ICMPField struct {
	Family string              `json:"family,omitempty"`
	Type   *intstr.IntOrString `json:"type,omitempty"`
}

// Authentication asks for mutual authentication of a connection (S3-32).
type Authentication struct {
	// Mode is "required", "disabled" or "test-always-fail".
	Mode string `json:"mode,omitempty"`
}
