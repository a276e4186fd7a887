// Package kepcnp has the ClusterNetworkPolicy and ClusterDefaultNetworkPolicy of
// KEP-2091 as it stood in 2021, netpol.networking.k8s.io/v1alpha1, as the design
// document defines them (S1-01…S1-49). The kind ClusterNetworkPolicy exists in two
// more groups with other meanings.
package kepcnp

import (
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ClusterNetworkPolicy is cluster-scoped; it does not isolate (S1-02).
type ClusterNetworkPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec Spec `json:"spec,omitempty"`
}

// Spec has no priority: rules of all policies are ordered by action, Empower,
// Deny, Allow (S1-05).
type Spec struct {
	AppliedTo *AppliedTo    `json:"appliedTo,omitempty"`
	Ingress   []IngressRule `json:"ingress,omitempty"`
	Egress    []EgressRule  `json:"egress,omitempty"`
}

// IngressRule matches traffic to the subject. No From: every source; no Ports:
// every port (S1-25, S1-26).
type IngressRule struct {
	Action string                           `json:"action,omitempty"`
	Ports  []networkingv1.NetworkPolicyPort `json:"ports,omitempty"`
	From   []Peer                           `json:"from,omitempty"`
}

// EgressRule matches traffic from the subject.
type EgressRule struct {
	Action string                           `json:"action,omitempty"`
	Ports  []networkingv1.NetworkPolicyPort `json:"ports,omitempty"`
	To     []Peer                           `json:"to,omitempty"`
}

// ClusterDefaultNetworkPolicy is cluster-scoped. It isolates its subjects in the
// directions whose field is present, null included: the typed form has
// lost that, api.Object.Raw has it.
type ClusterDefaultNetworkPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec DefaultSpec `json:"spec,omitempty"`
}

// DefaultSpec has rules without an action: every rule allows (S1-04).
type DefaultSpec struct {
	AppliedTo *AppliedTo           `json:"appliedTo,omitempty"`
	Ingress   []DefaultIngressRule `json:"ingress,omitempty"`
	Egress    []DefaultEgressRule  `json:"egress,omitempty"`
}

// DefaultIngressRule allows traffic to the subject.
type DefaultIngressRule struct {
	Ports []networkingv1.NetworkPolicyPort `json:"ports,omitempty"`
	From  []Peer                           `json:"from,omitempty"`
}

// DefaultEgressRule allows traffic from the subject.
type DefaultEgressRule struct {
	Ports []networkingv1.NetworkPolicyPort `json:"ports,omitempty"`
	To    []Peer                           `json:"to,omitempty"`
}

// AppliedTo needs NamespaceSelector; without PodSelector all pods of those
// namespaces are subjects (S1-23, S1-24).
type AppliedTo struct {
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`
	PodSelector       *metav1.LabelSelector `json:"podSelector,omitempty"`
}

// Peer sets exactly one of NamespaceSelector and Namespaces; PodSelector narrows
// it (S1-28, S1-29).
type Peer struct {
	PodSelector       *metav1.LabelSelector `json:"podSelector,omitempty"`
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`
	Namespaces        *Namespaces           `json:"namespaces,omitempty"`
}

// Namespaces selects namespaces by Scope: "Self", "SameLabels" with Labels, or
// "Selector" with Selector (S1-30…S1-35).
type Namespaces struct {
	Scope    string                `json:"scope,omitempty"`
	Labels   []string              `json:"labels,omitempty"`
	Selector *metav1.LabelSelector `json:"selector,omitempty"`
}
