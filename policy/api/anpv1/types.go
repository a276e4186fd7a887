// Package anpv1 has the released AdminNetworkPolicy and BaselineAdminNetworkPolicy
// of policy.networking.k8s.io/v1alpha1, in the shapes of release v0.1.7 and of
// release v0.1.1.
//
// The two releases share group, version and kinds and differ in how a peer names
// namespaces:
//
//	v0.1.1  namespaces: {namespaceSelector | sameLabels | notSameLabels}
//	        pods:       {namespaces: {…}, podSelector}
//	v0.1.7  namespaces: a label selector
//	        pods:       {namespaceSelector, podSelector}
//	        egress adds nodes, networks, domainNames
//
// One set of types serves both: a policy is generic in its two peer types, a rule
// has its peers under `from` or `to`. The KEP's AdminNetworkPolicy, again of the
// same kind, is package kepanp.
//
// Required fields are pointers where the zero value would mean something, so that
// a missing selector is not taken for an empty one, which selects everything.
package anpv1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// AdminNetworkPolicy is cluster-scoped, shape v0.1.7.
type AdminNetworkPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   Spec[IngressPeer, EgressPeer] `json:"spec,omitempty"`
	Status Status                        `json:"status,omitempty"`
}

// BaselineAdminNetworkPolicy is cluster-scoped and named "default"; shape v0.1.7.
type BaselineAdminNetworkPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   BaselineSpec[IngressPeer, BaselineEgressPeer] `json:"spec,omitempty"`
	Status Status                                        `json:"status,omitempty"`
}

// AdminNetworkPolicy011 is [AdminNetworkPolicy] in the shape of v0.1.1.
type AdminNetworkPolicy011 struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   Spec[Peer011, Peer011] `json:"spec,omitempty"`
	Status Status                 `json:"status,omitempty"`
}

// BaselineAdminNetworkPolicy011 is [BaselineAdminNetworkPolicy] in the shape of
// v0.1.1.
type BaselineAdminNetworkPolicy011 struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   BaselineSpec[Peer011, Peer011] `json:"spec,omitempty"`
	Status Status                         `json:"status,omitempty"`
}

// Status is the implementation's own.
type Status struct {
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Spec is an AdminNetworkPolicy. Lower Priority is stronger; 0 is the strongest
//
type Spec[In, Out any] struct {
	Priority *int32            `json:"priority,omitempty"`
	Subject  Subject           `json:"subject,omitempty"`
	Ingress  []IngressRule[In] `json:"ingress,omitempty"`
	Egress   []EgressRule[Out] `json:"egress,omitempty"`
}

// BaselineSpec is a BaselineAdminNetworkPolicy: it has no priority.
type BaselineSpec[In, Out any] struct {
	Subject Subject           `json:"subject,omitempty"`
	Ingress []IngressRule[In] `json:"ingress,omitempty"`
	Egress  []EgressRule[Out] `json:"egress,omitempty"`
}

// Subject sets exactly one field.
type Subject struct {
	Namespaces *metav1.LabelSelector `json:"namespaces,omitempty"`
	Pods       *NamespacedPod        `json:"pods,omitempty"`
}

// NamespacedPod needs both selectors; an empty one means all.
type NamespacedPod struct {
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`
	PodSelector       *metav1.LabelSelector `json:"podSelector,omitempty"`
}

// IngressRule matches traffic to the subject.
type IngressRule[In any] struct {
	Name   string `json:"name,omitempty"`
	Action string `json:"action,omitempty"`
	From   []In   `json:"from,omitempty"`
	Ports  []Port `json:"ports,omitempty"`
}

// EgressRule matches traffic from the subject.
type EgressRule[Out any] struct {
	Name   string `json:"name,omitempty"`
	Action string `json:"action,omitempty"`
	To     []Out  `json:"to,omitempty"`
	Ports  []Port `json:"ports,omitempty"`
}

// Port sets exactly one field. A list of ports that is absent means any port;
// one that is empty is invalid.
type Port struct {
	PortNumber *PortNumber `json:"portNumber,omitempty"`
	NamedPort  *string     `json:"namedPort,omitempty"`
	PortRange  *PortRange  `json:"portRange,omitempty"`
}

// PortNumber is one port; Protocol defaults to TCP.
type PortNumber struct {
	Protocol corev1.Protocol `json:"protocol,omitempty"`
	Port     int32           `json:"port,omitempty"`
}

// PortRange is inclusive, Start < End; Protocol defaults to TCP.
type PortRange struct {
	Protocol corev1.Protocol `json:"protocol,omitempty"`
	Start    int32           `json:"start,omitempty"`
	End      int32           `json:"end,omitempty"`
}

// IngressPeer sets exactly one field; shape v0.1.7.
type IngressPeer struct {
	Namespaces *metav1.LabelSelector `json:"namespaces,omitempty"`
	Pods       *NamespacedPod        `json:"pods,omitempty"`
}

// EgressPeer sets exactly one field; shape v0.1.7.
type EgressPeer struct {
	Namespaces  *metav1.LabelSelector `json:"namespaces,omitempty"`
	Pods        *NamespacedPod        `json:"pods,omitempty"`
	Nodes       *metav1.LabelSelector `json:"nodes,omitempty"`
	Networks    []string              `json:"networks,omitempty"`
	DomainNames []string              `json:"domainNames,omitempty"`
}

// BaselineEgressPeer sets exactly one field; shape v0.1.7. A baseline has no
// domainNames.
type BaselineEgressPeer struct {
	Namespaces *metav1.LabelSelector `json:"namespaces,omitempty"`
	Pods       *NamespacedPod        `json:"pods,omitempty"`
	Nodes      *metav1.LabelSelector `json:"nodes,omitempty"`
	Networks   []string              `json:"networks,omitempty"`
}

// Peer011 sets exactly one field; shape v0.1.1, both directions.
type Peer011 struct {
	Namespaces *NamespaceSet `json:"namespaces,omitempty"`
	Pods       *PodSet       `json:"pods,omitempty"`
}

// NamespaceSet sets exactly one field. The selected namespaces have every listed
// label; with SameLabels all values equal the subject's, with NotSameLabels at
// least one differs. An empty list selects nothing.
type NamespaceSet struct {
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`
	SameLabels        []string              `json:"sameLabels,omitempty"`
	NotSameLabels     []string              `json:"notSameLabels,omitempty"`
}

// PodSet needs both fields.
type PodSet struct {
	Namespaces  *NamespaceSet         `json:"namespaces,omitempty"`
	PodSelector *metav1.LabelSelector `json:"podSelector,omitempty"`
}
