package recommend

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/policy/api/antrea"
	"github.com/tierwall/tierwall/policy/api/cilium"
	"github.com/tierwall/tierwall/policy/api/cnpv1alpha2"
	"github.com/tierwall/tierwall/policy/inventory"
	"github.com/tierwall/tierwall/policy/lower/clusternetworkpolicy"
)

// Dialect is a language that recommendations are written in.
type Dialect struct {
	Name string
	// Namespaced policies have their workload's namespace.
	namespaced     bool
	icmp           bool
	icmpv6         bool
	outsideSources bool                     // ingress rules can name addresses
	nameSet        func(name string) string // the address set of a DNS name; nil: egress rules cannot name one
	// write returns the objects of a draft, i-th of all.
	write func(d *draft, meta metav1.ObjectMeta, i int) ([]any, error)
}

// Dialects are the languages, the default first.
var Dialects = []*Dialect{
	{Name: "networkpolicy", namespaced: true, outsideSources: true, write: networkPolicy},
	{Name: "clusternetworkpolicy", nameSet: inventory.DomainSet, write: clusterNetworkPolicy},
	{Name: "antrea", namespaced: true, icmp: true, outsideSources: true, nameSet: inventory.FQDNSet, write: antreaPolicy},
	{Name: "cilium", namespaced: true, icmp: true, icmpv6: true, outsideSources: true, nameSet: inventory.CiliumFQDNSet, write: ciliumPolicy},
}

// DialectOf finds a dialect by its name.
func DialectOf(name string) (*Dialect, error) {
	var names []string
	for _, d := range Dialects {
		if d.Name == name {
			return d, nil
		}
		names = append(names, d.Name)
	}
	return nil, fmt.Errorf("no dialect %q: there is %s", name, strings.Join(names, ", "))
}

// cannot says why policies of the dialect cannot allow a protocol, "" if they can.
func (d *Dialect) cannot(p flow.Proto) string {
	switch {
	case p.HasPorts(), p == flow.ICMP && d.icmp, p == flow.ICMPv6 && d.icmpv6:
		return ""
	case p == flow.ICMP || p == flow.ICMPv6:
		return d.Name + " policies cannot allow " + p.String()
	}
	return d.Name + " policies cannot allow protocol " + p.String()
}

func ref[T any](v T) *T { return &v }

func chunks[T any](list []T, most int) [][]T {
	if len(list) == 0 {
		return nil
	}
	return slices.Collect(slices.Chunk(list, most))
}

func namespaceSelector(name string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: name}}
}

func networkPolicy(d *draft, meta metav1.ObjectMeta, _ int) ([]any, error) {
	o := &networkingv1.NetworkPolicy{
		TypeMeta: metav1.TypeMeta{APIVersion: networkingv1.SchemeGroupVersion.String(), Kind: "NetworkPolicy"}, ObjectMeta: meta,
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: d.unit.selector, PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress},
		},
	}
	ports := func(a *allowance) (out []networkingv1.NetworkPolicyPort) {
		for _, p := range a.ports {
			port := networkingv1.NetworkPolicyPort{Protocol: ref(corev1.Protocol(p.proto.String())), Port: ref(intstr.FromInt32(int32(p.first)))}
			if p.last != p.first {
				port.EndPort = ref(int32(p.last))
			}
			out = append(out, port)
		}
		return out
	}
	peers := func(a *allowance) (out []networkingv1.NetworkPolicyPeer) {
		for i := range a.peers {
			p := &a.peers[i]
			switch p.namespace {
			case "":
				out = append(out, networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: p.prefix.String()}})
			case d.unit.namespace:
				out = append(out, networkingv1.NetworkPolicyPeer{PodSelector: &p.selector})
			default:
				out = append(out, networkingv1.NetworkPolicyPeer{NamespaceSelector: namespaceSelector(p.namespace), PodSelector: &p.selector})
			}
		}
		return out
	}
	for i := range d.rules[flow.Ingress] {
		a := &d.rules[flow.Ingress][i]
		o.Spec.Ingress = append(o.Spec.Ingress, networkingv1.NetworkPolicyIngressRule{Ports: ports(a), From: peers(a)})
	}
	for i := range d.rules[flow.Egress] {
		a := &d.rules[flow.Egress][i]
		o.Spec.Egress = append(o.Spec.Egress, networkingv1.NetworkPolicyEgressRule{Ports: ports(a), To: peers(a)})
	}
	return []any{o}, nil
}

// firstPriority leaves stronger places to administrators.
const firstPriority = 100

func antreaPolicy(d *draft, meta metav1.ObjectMeta, i int) ([]any, error) {
	o := &antrea.NetworkPolicy{
		TypeMeta: metav1.TypeMeta{APIVersion: antrea.APIGroup + "/v1beta1", Kind: "NetworkPolicy"}, ObjectMeta: meta,
		Spec: antrea.PolicySpec{
			Tier: "application", Priority: ref(float64(firstPriority + i)), AppliedTo: []antrea.AppliedTo{{PodSelector: &d.unit.selector}},
		},
	}
	rules := func(dir flow.Direction) (out []antrea.Rule) {
		put := func(r antrea.Rule, peers []antrea.Peer) {
			r.Name = fmt.Sprintf("%s-%d", dir, len(out)+1)
			r.Action = ref("Allow")
			if dir == flow.Ingress {
				r.From = peers
			} else {
				r.To = peers
			}
			out = append(out, r)
		}
		for i := range d.rules[dir] {
			a := &d.rules[dir][i]
			var peers []antrea.Peer
			for j := range a.peers {
				switch p := &a.peers[j]; {
				case p.name != "":
					peers = append(peers, antrea.Peer{FQDN: p.name})
				case p.namespace == "":
					peers = append(peers, antrea.Peer{IPBlock: &antrea.IPBlock{CIDR: p.prefix.String()}})
				case p.namespace == d.unit.namespace:
					peers = append(peers, antrea.Peer{PodSelector: &p.selector})
				default:
					peers = append(peers, antrea.Peer{PodSelector: &p.selector, NamespaceSelector: namespaceSelector(p.namespace)})
				}
			}
			var ports []antrea.Port
			var icmp []antrea.Protocol
			for _, p := range a.ports {
				if !p.proto.HasPorts() {
					icmp = append(icmp, antrea.Protocol{ICMP: &antrea.ICMP{Type: ref(int32(p.first >> 8)), Code: ref(int32(p.first & 0xff))}})
					continue
				}
				port := antrea.Port{Protocol: ref(corev1.Protocol(p.proto.String())), Port: ref(intstr.FromInt32(int32(p.first)))}
				if p.last != p.first {
					port.EndPort = ref(int32(p.last))
				}
				ports = append(ports, port)
			}
			if len(ports) > 0 {
				put(antrea.Rule{Ports: ports}, peers)
			}
			if len(icmp) > 0 {
				put(antrea.Rule{Protocols: icmp}, peers)
			}
		}
		return append(out, antrea.Rule{Name: "no-other-" + dir.String(), Action: ref("Drop")})
	}
	o.Spec.Ingress, o.Spec.Egress = rules(flow.Ingress), rules(flow.Egress)
	return []any{o}, nil
}

// ciliumNamespace is the label by which Cilium's selectors name a namespace.
const ciliumNamespace = "k8s:io.kubernetes.pod.namespace"

func ciliumPolicy(d *draft, meta metav1.ObjectMeta, _ int) ([]any, error) {
	spec := &cilium.Rule{
		EndpointSelector: &d.unit.selector, EnableDefaultDeny: &cilium.DefaultDeny{Ingress: ref(true), Egress: ref(true)},
	}
	type part struct {
		pods  []metav1.LabelSelector
		cidrs []string
		nodes bool
		names []cilium.FQDN
		ports []cilium.PortRule
		icmps []cilium.ICMPRule
	}
	parts := func(dir flow.Direction) (out []part) {
		for i := range d.rules[dir] {
			a := &d.rules[dir][i]
			var kinds [4]part
			for j := range a.peers {
				switch p := &a.peers[j]; {
				case p.name != "":
					field := cilium.FQDN{MatchName: p.name}
					if strings.Contains(p.name, "*") {
						field = cilium.FQDN{MatchPattern: p.name}
					}
					kinds[3].names = append(kinds[3].names, field)
				case p.node:
					kinds[2].nodes = true
				case p.namespace == "":
					kinds[1].cidrs = append(kinds[1].cidrs, p.prefix.String())
				default:
					sel := p.selector.DeepCopy()
					if p.namespace != d.unit.namespace {
						if sel.MatchLabels == nil {
							sel.MatchLabels = map[string]string{}
						}
						sel.MatchLabels[ciliumNamespace] = p.namespace
					}
					kinds[0].pods = append(kinds[0].pods, *sel)
				}
			}
			var ports []cilium.Port
			var icmp []cilium.ICMPField
			for _, p := range a.ports {
				if !p.proto.HasPorts() {
					f := cilium.ICMPField{Family: "IPv4", Type: ref(intstr.FromInt32(int32(p.first >> 8)))}
					if p.proto == flow.ICMPv6 {
						f.Family = "IPv6"
					}
					if !slices.ContainsFunc(icmp, func(o cilium.ICMPField) bool { return o.Family == f.Family && *o.Type == *f.Type }) {
						icmp = append(icmp, f)
					}
					continue
				}
				port := cilium.Port{Port: strconv.Itoa(int(p.first)), Protocol: p.proto.String()}
				if p.last != p.first {
					port.EndPort = int32(p.last)
				}
				ports = append(ports, port)
			}
			for _, k := range kinds {
				if len(k.pods)+len(k.cidrs)+len(k.names) == 0 && !k.nodes {
					continue
				}
				if len(ports) > 0 {
					k.ports, k.icmps = []cilium.PortRule{{Ports: ports}}, nil
					out = append(out, k)
				}
				if len(icmp) > 0 {
					k.ports, k.icmps = nil, []cilium.ICMPRule{{Fields: icmp}}
					out = append(out, k)
				}
			}
		}
		return out
	}
	nodes := []string{"host", "remote-node"}
	for _, p := range parts(flow.Ingress) {
		r := cilium.IngressRule{IngressPeers: cilium.IngressPeers{FromEndpoints: p.pods, FromCIDR: p.cidrs}, ToPorts: p.ports, ICMPs: p.icmps}
		if p.nodes {
			r.FromEntities = nodes
		}
		spec.Ingress = append(spec.Ingress, r)
	}
	for _, p := range parts(flow.Egress) {
		r := cilium.EgressRule{EgressPeers: cilium.EgressPeers{ToEndpoints: p.pods, ToCIDR: p.cidrs}, ToFQDNs: p.names, ToPorts: p.ports, ICMPs: p.icmps}
		if p.nodes {
			r.ToEntities = nodes
		}
		spec.Egress = append(spec.Egress, r)
	}
	return []any{&cilium.Policy{TypeMeta: metav1.TypeMeta{APIVersion: "cilium.io/v2", Kind: "CiliumNetworkPolicy"}, ObjectMeta: meta, Spec: spec}}, nil
}

// cnpSteps is how many priorities a ClusterNetworkPolicy may have behind
// cnpFirst.
const (
	cnpFirst = 100
	cnpLast  = 1000
)

// clusterNetworkPolicy writes as many objects as the API's bound of rules asks for.
// The last one denies the rest.
func clusterNetworkPolicy(d *draft, meta metav1.ObjectMeta, i int) ([]any, error) {
	const most = clusternetworkpolicy.MaxItems
	pods := func(p *peer) *cnpv1alpha2.NamespacedPod {
		return &cnpv1alpha2.NamespacedPod{NamespaceSelector: *namespaceSelector(p.namespace), PodSelector: p.selector}
	}
	protocols := func(ports []portSpan) (out []cnpv1alpha2.Protocol) {
		for _, p := range ports {
			port := &cnpv1alpha2.Port{Number: int32(p.first)}
			if p.last != p.first {
				port = &cnpv1alpha2.Port{Range: &cnpv1alpha2.PortRange{Start: int32(p.first), End: int32(p.last)}}
			}
			switch p.proto {
			case flow.UDP:
				out = append(out, cnpv1alpha2.Protocol{UDP: &cnpv1alpha2.UDP{DestinationPort: port}})
			case flow.SCTP:
				out = append(out, cnpv1alpha2.Protocol{SCTP: &cnpv1alpha2.SCTP{DestinationPort: port}})
			default:
				out = append(out, cnpv1alpha2.Protocol{TCP: &cnpv1alpha2.TCP{DestinationPort: port}})
			}
		}
		return out
	}
	var in []cnpv1alpha2.IngressRule
	for j := range d.rules[flow.Ingress] {
		a := &d.rules[flow.Ingress][j]
		var from []cnpv1alpha2.IngressPeer
		for k := range a.peers {
			from = append(from, cnpv1alpha2.IngressPeer{Pods: pods(&a.peers[k])})
		}
		for _, peers := range chunks(from, most) {
			for _, ports := range chunks(a.ports, most) {
				in = append(in, cnpv1alpha2.IngressRule{Action: cnpv1alpha2.Accept, From: peers, Protocols: protocols(ports)})
			}
		}
	}
	var out []cnpv1alpha2.EgressRule
	for j := range d.rules[flow.Egress] {
		a := &d.rules[flow.Egress][j]
		var to []cnpv1alpha2.EgressPeer
		var networks []cnpv1alpha2.CIDR
		var names []cnpv1alpha2.DomainName
		for k := range a.peers {
			switch p := &a.peers[k]; {
			case p.name != "":
				names = append(names, cnpv1alpha2.DomainName(p.name))
			case p.namespace == "":
				networks = append(networks, cnpv1alpha2.CIDR(p.prefix.String()))
			default:
				to = append(to, cnpv1alpha2.EgressPeer{Pods: pods(p)})
			}
		}
		for _, n := range chunks(networks, most) {
			to = append(to, cnpv1alpha2.EgressPeer{Networks: n})
		}
		for _, n := range chunks(names, most) {
			to = append(to, cnpv1alpha2.EgressPeer{DomainNames: n})
		}
		for _, peers := range chunks(to, most) {
			for _, ports := range chunks(a.ports, most) {
				out = append(out, cnpv1alpha2.EgressRule{Action: cnpv1alpha2.Accept, To: peers, Protocols: protocols(ports)})
			}
		}
	}
	everyPod := &metav1.LabelSelector{}
	in = append(in, cnpv1alpha2.IngressRule{Name: "no-other-source", Action: cnpv1alpha2.Deny, From: []cnpv1alpha2.IngressPeer{{Namespaces: everyPod}}})
	out = append(
		out,
		cnpv1alpha2.EgressRule{Name: "no-other-pod", Action: cnpv1alpha2.Deny, To: []cnpv1alpha2.EgressPeer{{Namespaces: everyPod}}},
		cnpv1alpha2.EgressRule{Name: "no-other-address", Action: cnpv1alpha2.Deny, To: []cnpv1alpha2.EgressPeer{{Networks: []cnpv1alpha2.CIDR{"0.0.0.0/0", "::/0"}}}},
	)
	var objects []any
	for len(in)+len(out) > 0 {
		m := *meta.DeepCopy()
		if n := len(objects); n > 0 {
			m.Name = fmt.Sprintf("%s-%d", meta.Name, n+1)
		}
		priority := cnpFirst + i + len(objects)
		if priority > cnpLast {
			return nil, fmt.Errorf("clusternetworkpolicy: priorities go up to %d, and there are more policies than that: choose fewer workloads", cnpLast)
		}
		nIn, nOut := min(len(in), most), min(len(out), most)
		objects = append(objects, &cnpv1alpha2.ClusterNetworkPolicy{
			TypeMeta: metav1.TypeMeta{APIVersion: "policy.networking.k8s.io/v1alpha2", Kind: "ClusterNetworkPolicy"}, ObjectMeta: m,
			Spec: cnpv1alpha2.Spec{
				Tier: cnpv1alpha2.Admin, Priority: int32(priority), Ingress: in[:nIn], Egress: out[:nOut],
				Subject: cnpv1alpha2.Subject{Pods: &cnpv1alpha2.NamespacedPod{NamespaceSelector: *namespaceSelector(d.unit.namespace), PodSelector: d.unit.selector}},
			},
		})
		in, out = in[nIn:], out[nOut:]
	}
	return objects, nil
}
