package antrea

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// APIGroup is the API group of all kinds here.
const APIGroup = "crd.antrea.io"

// Tier is an ordered place for policies. Cluster-scoped; v1alpha1, v1beta1.
// Six exist without anybody writing them (S2-09).
type Tier struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec TierSpec `json:"spec"`
}

// TierSpec is the tier's place. The lower Priority is evaluated first (S2-02).
type TierSpec struct {
	Priority    *int32 `json:"priority,omitempty"` // required; 0 to 255
	Description string `json:"description,omitempty"`
}

// ClusterNetworkPolicy is the policy of administrators. Cluster-scoped; v1alpha1,
// v1beta1. Two other groups have a kind of the same name.
type ClusterNetworkPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   PolicySpec `json:"spec"`
	Status Status     `json:"status,omitempty"`
}

// NetworkPolicy is the namespaced form; v1alpha1, v1beta1 (S2-55).
type NetworkPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   PolicySpec `json:"spec"`
	Status Status     `json:"status,omitempty"`
}

// ClusterGroup names pods or addresses for ClusterNetworkPolicies. Cluster-scoped;
// v1alpha2, v1alpha3, v1beta1 (S2-69).
type ClusterGroup struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   GroupSpec   `json:"spec"`
	Status GroupStatus `json:"status,omitempty"`
}

// Group is the namespaced form of ClusterGroup, for NetworkPolicies of its
// namespace; v1alpha3, v1beta1.
type Group struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   GroupSpec   `json:"spec"`
	Status GroupStatus `json:"status,omitempty"`
}

// Status is what an implementation reports on a policy.
type Status struct {
	Phase                string             `json:"phase,omitempty"`
	ObservedGeneration   int64              `json:"observedGeneration,omitempty"`
	CurrentNodesRealized int32              `json:"currentNodesRealized,omitempty"`
	DesiredNodesRealized int32              `json:"desiredNodesRealized,omitempty"`
	Conditions           []metav1.Condition `json:"conditions,omitempty"`
}

// GroupStatus is what an implementation reports on a group (S2-82).
type GroupStatus struct {
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// PolicySpec is shared by the two policy kinds.
type PolicySpec struct {
	Tier string `json:"tier,omitempty"` // "" is "application" (S2-11)
	// Priority is required, 1.0 to 10000.0; lower is evaluated first (S2-19).
	Priority  *float64    `json:"priority,omitempty"`
	AppliedTo []AppliedTo `json:"appliedTo,omitempty"` // OR-ed; either here or in every rule
	Ingress   []Rule      `json:"ingress,omitempty"`
	Egress    []Rule      `json:"egress,omitempty"`
}

// Rule is one rule of either direction.
type Rule struct {
	Action        *string       `json:"action"` // Allow, Drop, Reject, Pass
	Ports         []Port        `json:"ports,omitempty"`
	Protocols     []Protocol    `json:"protocols,omitempty"`
	L7Protocols   []L7Protocol  `json:"l7Protocols,omitempty"` // since v1beta1
	From          []Peer        `json:"from,omitempty"`        // ingress; empty is everybody (S2-34)
	To            []Peer        `json:"to,omitempty"`          // egress; empty is everybody (S2-35)
	ToServices    []PeerService `json:"toServices,omitempty"`  // egress, instead of To and Ports
	Name          string        `json:"name,omitempty"`
	EnableLogging bool          `json:"enableLogging"`
	LogLabel      string        `json:"logLabel,omitempty"`
	AppliedTo     []AppliedTo   `json:"appliedTo,omitempty"`
}

// Peer is one alternative of from or to. Which fields go together: S2-46…S2-54.
type Peer struct {
	IPBlock                *IPBlock              `json:"ipBlock,omitempty"`
	PodSelector            *metav1.LabelSelector `json:"podSelector,omitempty"`
	NamespaceSelector      *metav1.LabelSelector `json:"namespaceSelector,omitempty"`
	Namespaces             *PeerNamespaces       `json:"namespaces,omitempty"`
	ExternalEntitySelector *metav1.LabelSelector `json:"externalEntitySelector,omitempty"`
	Group                  string                `json:"group,omitempty"`
	FQDN                   string                `json:"fqdn,omitempty"`
	ServiceAccount         *NamespacedName       `json:"serviceAccount,omitempty"`
	NodeSelector           *metav1.LabelSelector `json:"nodeSelector,omitempty"`
	Scope                  string                `json:"scope,omitempty"` // "", Cluster, ClusterSet
}

// AppliedTo is one alternative of what a policy or rule is about.
type AppliedTo struct {
	PodSelector            *metav1.LabelSelector `json:"podSelector,omitempty"`
	NamespaceSelector      *metav1.LabelSelector `json:"namespaceSelector,omitempty"`
	ExternalEntitySelector *metav1.LabelSelector `json:"externalEntitySelector,omitempty"`
	Group                  string                `json:"group,omitempty"`
	ServiceAccount         *NamespacedName       `json:"serviceAccount,omitempty"`
	Service                *NamespacedName       `json:"service,omitempty"`
	NodeSelector           *metav1.LabelSelector `json:"nodeSelector,omitempty"`
}

// PeerNamespaces relates a peer's namespace to the subject's. Exactly one field
// is set.
type PeerNamespaces struct {
	Match      string   `json:"match,omitempty"`      // Self
	SameLabels []string `json:"sameLabels,omitempty"` // both sides have every key, with equal values; since v1beta1
}

// IPBlock is an address range with holes.
type IPBlock struct {
	CIDR   string   `json:"cidr"`
	Except []string `json:"except,omitempty"` // since v1beta1
}

// Port matches TCP, UDP or SCTP. The source fields exist since v1beta1.
type Port struct {
	Protocol      *corev1.Protocol    `json:"protocol,omitempty"`
	Port          *intstr.IntOrString `json:"port,omitempty"`
	EndPort       *int32              `json:"endPort,omitempty"`
	SourcePort    *int32              `json:"sourcePort,omitempty"`
	SourceEndPort *int32              `json:"sourceEndPort,omitempty"`
}

// Protocol sets exactly one field.
type Protocol struct {
	ICMP *ICMP `json:"icmp,omitempty"`
	IGMP *IGMP `json:"igmp,omitempty"`
}

// ICMP matches a type and code; without a type every message, without a code
// every code of the type (S2-38).
type ICMP struct {
	Type *int32 `json:"icmpType,omitempty"`
	Code *int32 `json:"icmpCode,omitempty"`
}

// IGMP matches a message type and a multicast group (S4-03…S4-08).
type IGMP struct {
	Type         *Number `json:"igmpType,omitempty"`
	GroupAddress string  `json:"groupAddress,omitempty"`
}

// L7Protocol is here so that it can be refused by name.
type L7Protocol struct {
	HTTP *HTTP `json:"http,omitempty"`
	TLS  *TLS  `json:"tls,omitempty"`
}

// HTTP matches a request.
type HTTP struct {
	Host   string `json:"host,omitempty"`
	Method string `json:"method,omitempty"`
	Path   string `json:"path,omitempty"`
}

// TLS matches a handshake.
type TLS struct {
	SNI string `json:"sni,omitempty"`
}

// NamespacedName names a ServiceAccount or Service.
type NamespacedName struct {
	Name      string `json:"name,omitempty"`
	Namespace string `json:"namespace,omitempty"`
}

// PeerService names a Service; an empty namespace in a NetworkPolicy is its own.
type PeerService struct {
	Name      string `json:"name,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Scope     string `json:"scope,omitempty"`
}

// GroupSpec sets at most one of: the selectors, one of the block fields, a
// Service, or children (S2-70).
type GroupSpec struct {
	PodSelector            *metav1.LabelSelector `json:"podSelector,omitempty"`
	NamespaceSelector      *metav1.LabelSelector `json:"namespaceSelector,omitempty"`
	IPBlock                *IPBlock              `json:"ipBlock,omitempty"` // until v1alpha3 (S2-72)
	IPBlocks               []IPBlock             `json:"ipBlocks,omitempty"`
	ServiceReference       *NamespacedName       `json:"serviceReference,omitempty"`
	ExternalEntitySelector *metav1.LabelSelector `json:"externalEntitySelector,omitempty"`
	ChildGroups            []string              `json:"childGroups,omitempty"`
}
