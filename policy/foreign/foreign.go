// Package foreign knows the policy kinds of other projects: objects that decide
// which connections are allowed, and that Tierwall does not enforce. It says what to
// write instead.
//
// A kind is one of them
//
//   - if its group is in the list of groups here, and its name is among those that
//     this group has for policy; or
//   - if its name contains "NetworkPolicy", whatever the group.
//
// Service meshes' policies (Istio's AuthorizationPolicy, for one) are left out: the
// mesh's proxies enforce them, whatever the network does. So are kinds that steer
// packets and refuse none, such as egress gateways, and those that controllers write
// about policies, such as statistics.
package foreign

import (
	"slices"
	"strings"
)

// project is the kinds of one API group, subgroups included.
type project struct {
	group string
	name  string   // of the project, for people
	words []string // parts of the names of its policy kinds; empty: all its kinds
	not   []string // kinds that contain such a part and refuse no connection
	hint  func(kind string) string
}

// NoEquivalent is the hint about kinds whose meaning no API here has.
const NoEquivalent = "Tierwall has no equivalent; remove it"

const (
	removeIt = "or remove it"
	asNP     = "rewrite it as a networking.k8s.io/v1 NetworkPolicy, "
	asAdmin  = "rewrite it as a policy.networking.k8s.io/v1alpha2 ClusterNetworkPolicy, "
	orAntrea = "or as a crd.antrea.io/v1beta1 "
)

var projects = []project{
	{group: "extensions", name: "Kubernetes before 1.16", words: []string{"NetworkPolicy"}, hint: func(string) string {
		return "write apiVersion: networking.k8s.io/v1; the fields are the same"
	}},
	{group: "projectcalico.org", name: "Calico", words: []string{"Policy", "Tier", "NetworkSet", "HostEndpoint", "Profile"}, hint: calico},
	{group: "cilium.io", name: "Cilium", words: []string{"Policy", "CIDRGroup"}, hint: cilium, not: []string{
		"CiliumEgressGatewayPolicy", "CiliumLocalRedirectPolicy", "CiliumBGP", "CiliumL2AnnouncementPolicy",
	}},
	{group: "antrea.tanzu.vmware.com", name: "Antrea before 1.0", words: []string{"Policy", "Tier", "Group"}, hint: func(kind string) string {
		return "write apiVersion: crd.antrea.io/v1beta1, the group's name since Antrea 1.0"
	}},
	{group: "crd.antrea.io", name: "Antrea", words: []string{"Policy", "Tier", "Group"}, hint: always(NoEquivalent)},
	{group: "policy.networking.k8s.io", name: "Kubernetes network-policy-api", hint: always(NoEquivalent)},
	{group: "netpol.networking.k8s.io", name: "KEP-2091", hint: always(NoEquivalent)},
	{group: "network.openshift.io", name: "OpenShift SDN", words: []string{"EgressNetworkPolicy"}, hint: always(asNP + "with egress rules, " + removeIt)},
	{group: "k8s.ovn.org", name: "OVN-Kubernetes", words: []string{"EgressFirewall"}, hint: always(asNP + "with egress rules, " + removeIt)},
	{group: "networking.gke.io", name: "GKE", words: []string{"FQDNNetworkPolicy"}, hint: always(asAdmin + "with `domainNames`, " + removeIt)},
	{group: "networking.k8s.aws", name: "Amazon VPC CNI", words: []string{"NetworkPolicy"}, hint: always(asNP + removeIt)},
	{group: "vpcresources.k8s.aws", name: "Amazon VPC", words: []string{"SecurityGroupPolicy"}, hint: always(NoEquivalent)},
	{group: "crd.nsx.vmware.com", name: "NSX", words: []string{"SecurityPolicy"}, hint: always(asNP + removeIt)},
	{group: "kubeovn.io", name: "Kube-OVN", words: []string{"SecurityGroup"}, hint: always(asNP + removeIt)},
	{group: "k8s.cni.cncf.io", name: "multi-networkpolicy", words: []string{"MultiNetworkPolicy"}, hint: always(
		"Tierwall polices a pod's default network only; remove it")},
}

func always(s string) func(string) string { return func(string) string { return s } }

func calico(kind string) string {
	switch {
	case strings.HasPrefix(kind, "StagedKubernetes"):
		return "write a networking.k8s.io/v1 NetworkPolicy with the annotation tierwall.io/stage: audit, " + removeIt
	case strings.HasPrefix(kind, "Staged"):
		return "rewrite the policy in an API Tierwall enforces, with the annotation tierwall.io/stage: audit, " + removeIt
	case kind == "NetworkPolicy":
		return "Calico's NetworkPolicy is another API than Kubernetes': " + asNP +
			orAntrea + "NetworkPolicy where order or Deny count, " + removeIt
	case kind == "GlobalNetworkPolicy":
		return asAdmin + orAntrea + "ClusterNetworkPolicy, " + removeIt
	case kind == "Tier":
		return "Calico's tiers order Calico's policies only: give policies a `tier` of policy.networking.k8s.io/v1alpha2 " +
			"ClusterNetworkPolicy or a Tier of crd.antrea.io/v1beta1, " + removeIt
	case strings.Contains(kind, "NetworkSet"):
		return "write its addresses in the policies, as ipBlock or networks, " + orAntrea + "ClusterGroup with ipBlocks, " + removeIt
	}
	return NoEquivalent
}

func cilium(kind string) string {
	if strings.Contains(kind, "CIDRGroup") {
		return "write its prefixes in fromCIDRSet and toCIDRSet of the policies, and remove it"
	}
	return NoEquivalent
}

// Match is a policy kind of another project.
type Match struct {
	Project string // "" for a kind that is known by its name alone
	Hint    string // what to write instead
	// Decides is set if its objects allow or deny by themselves, unlike tiers and
	// sets of addresses, which policies use, and staged policies.
	Decides bool
}

// written ends the names of kinds that controllers write about policies.
var written = []string{"Stats", "Status", "Evaluation", "Report"}

// Find reports whether a kind is a policy kind of another project, among those that
// Tierwall does not read.
func Find(group, kind string) (Match, bool) {
	part := func(words []string) bool {
		return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(kind, w) })
	}
	if slices.ContainsFunc(written, func(w string) bool { return strings.HasSuffix(kind, w) }) {
		return Match{}, false
	}
	decides := part([]string{"Policy", "Firewall", "SecurityGroup"}) && !strings.HasPrefix(kind, "Staged")
	for _, p := range projects {
		if within(group, p.group) && (len(p.words) == 0 || part(p.words)) && !part(p.not) {
			return Match{p.name, p.hint(kind), decides}, true
		}
	}
	return Match{Hint: NoEquivalent, Decides: decides}, strings.Contains(kind, "NetworkPolicy")
}

// MayHave reports whether a group can have policy kinds that are found by their group.
func MayHave(group string) bool {
	return slices.ContainsFunc(projects, func(p project) bool { return within(group, p.group) })
}

func within(group, of string) bool { return group == of || strings.HasSuffix(group, "."+of) }
