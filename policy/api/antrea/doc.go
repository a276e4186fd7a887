// Package antrea has the objects of crd.antrea.io that decide about packets:
// Tier, ClusterNetworkPolicy, NetworkPolicy, ClusterGroup and Group.
//
// Each kind is one Go type for all versions it was ever served in (v1alpha1,
// v1alpha2, v1alpha3, v1beta1): the versions only added fields. What a version
// does not have yet is refused by the lowering's Validate, which knows the
// version from the object's envelope.
//
// The order of the fields of [Rule] and what it contains is part of the API: the
// name of a rule without one is a hash of its JSON (S2-40, X-38), so do not sort,
// and keep the omitempty that is there.
package antrea
