// Package kepanp has the AdminNetworkPolicy of KEP-2091 (2022) as its design
// document defines it (S0-01…S0-61). The released API of the same group,
// version and kind is a different shape.
package kepanp

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// AdminNetworkPolicy is cluster-scoped. Group policy.networking.k8s.io,
// version v1alpha1.
type AdminNetworkPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   Spec   `json:"spec,omitempty"`
	Status Status `json:"status,omitempty"`
}

// Status is free-form per implementation (S0-62).
type Status struct {
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Spec is the policy. Larger Priority is stronger; 0 is evaluated after
// NetworkPolicy (S0-12…S0-18).
type Spec struct {
	Priority *int32        `json:"priority,omitempty"`
	Subject  Subject       `json:"subject,omitempty"`
	Ingress  []IngressRule `json:"ingress,omitempty"`
	Egress   []EgressRule  `json:"egress,omitempty"`
}

// Subject sets exactly one field (S0-24).
type Subject struct {
	NamespaceSelector       *metav1.LabelSelector    `json:"namespaceSelector,omitempty"`
	NamespaceAndPodSelector *NamespaceAndPodSelector `json:"namespaceAndPodSelector,omitempty"`
}

// NamespaceAndPodSelector needs both selectors; an empty one means all (S0-26).
type NamespaceAndPodSelector struct {
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`
	PodSelector       *metav1.LabelSelector `json:"podSelector,omitempty"`
}

// IngressRule matches traffic to the subject.
type IngressRule struct {
	Name       string     `json:"name,omitempty"`
	Action     string     `json:"action,omitempty"`
	L4Selector L4Selector `json:"l4Selector,omitempty"`
	From       []Peer     `json:"from,omitempty"`
}

// EgressRule matches traffic from the subject.
type EgressRule struct {
	Name       string     `json:"name,omitempty"`
	Action     string     `json:"action,omitempty"`
	L4Selector L4Selector `json:"l4Selector,omitempty"`
	To         []Peer     `json:"to,omitempty"`
}

// L4Selector sets exactly one field (S0-53).
type L4Selector struct {
	AllPorts *bool  `json:"allPorts,omitempty"`
	Ports    []Port `json:"ports,omitempty"`
}

// Port selects one port or range (S0-57…S0-60).
type Port struct {
	Protocol *corev1.Protocol    `json:"protocol,omitempty"`
	Port     *intstr.IntOrString `json:"port,omitempty"`
	EndPort  *int32              `json:"endPort,omitempty"`
}

// Peer sets exactly one field (S0-32).
type Peer struct {
	Namespaces     *NamespaceSet       `json:"namespaces,omitempty"`
	NamespacedPods *NamespaceAndPodSet `json:"namespacedPods,omitempty"`
}

// NamespaceSet sets exactly one field (S0-34).
type NamespaceSet struct {
	Self              *bool                 `json:"self,omitempty"`
	NotSelf           *bool                 `json:"notSelf,omitempty"`
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`
	SameLabels        []string              `json:"sameLabels,omitempty"`
	NotSameLabels     []string              `json:"notSameLabels,omitempty"`
}

// PodSet sets exactly one field (S0-46).
type PodSet struct {
	PodSelector   *metav1.LabelSelector `json:"podSelector,omitempty"`
	SameLabels    []string              `json:"sameLabels,omitempty"`
	NotSameLabels []string              `json:"notSameLabels,omitempty"`
}

// NamespaceAndPodSet needs both fields (S0-45).
type NamespaceAndPodSet struct {
	Namespaces *NamespaceSet `json:"namespaces,omitempty"`
	Pods       *PodSet       `json:"pods,omitempty"`
}
