// Package cnpv1alpha2 names the published types of
// policy.networking.k8s.io/v1alpha2 ClusterNetworkPolicy, so that importers here
// do not depend on the module's layout.
//
// Two of them lose what strict reading needs: NamespacedPod.PodSelector is
// required but not a pointer, so a missing one looks like {}, which is every pod;
// and Port.Number 0 looks like none. Whoever validates consults api.Object.Raw.
package cnpv1alpha2

import "sigs.k8s.io/network-policy-api/apis/v1alpha2"

// The published types.
type (
	ClusterNetworkPolicy = v1alpha2.ClusterNetworkPolicy
	Spec                 = v1alpha2.ClusterNetworkPolicySpec
	Tier                 = v1alpha2.Tier
	Subject              = v1alpha2.ClusterNetworkPolicySubject
	NamespacedPod        = v1alpha2.NamespacedPod
	IngressRule          = v1alpha2.ClusterNetworkPolicyIngressRule
	EgressRule           = v1alpha2.ClusterNetworkPolicyEgressRule
	Action               = v1alpha2.ClusterNetworkPolicyRuleAction
	IngressPeer          = v1alpha2.ClusterNetworkPolicyIngressPeer
	EgressPeer           = v1alpha2.ClusterNetworkPolicyEgressPeer
	Protocol             = v1alpha2.ClusterNetworkPolicyProtocol
	TCP                  = v1alpha2.ClusterNetworkPolicyProtocolTCP
	UDP                  = v1alpha2.ClusterNetworkPolicyProtocolUDP
	SCTP                 = v1alpha2.ClusterNetworkPolicyProtocolSCTP
	Port                 = v1alpha2.Port
	PortRange            = v1alpha2.PortRange
	CIDR                 = v1alpha2.CIDR
	DomainName           = v1alpha2.DomainName
)

// Tiers and actions.
const (
	Admin    = v1alpha2.AdminTier
	Baseline = v1alpha2.BaselineTier

	Accept = v1alpha2.ClusterNetworkPolicyRuleActionAccept
	Deny   = v1alpha2.ClusterNetworkPolicyRuleActionDeny
	Pass   = v1alpha2.ClusterNetworkPolicyRuleActionPass
)
