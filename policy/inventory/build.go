package inventory

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/diag"
)

// Options changes how a snapshot is built. The zero value is for live clusters.
type Options struct {
	// AssignAddresses gives every pod without an address that should have one (it
	// is not Pending) a made-up one per family, so that policies can be tried on
	// pods written by hand. The addresses come from [SyntheticIPv4] and [SyntheticIPv6] and depend
	// on the set of pods only. Never for a dataplane.
	AssignAddresses bool
	// Workloads makes the pods of Deployments and the other kinds that make pods
	// where the objects have none of theirs. Never for a dataplane.
	Workloads bool
}

// Build makes a snapshot of decoded v1 Pod, Namespace, Node and Service objects and
// EndpointSlices of discovery.k8s.io/v1;
// objects of other kinds are ignored. The objects may come in any order and are
// not kept.
//
// With error findings the snapshot lacks what the errors are about and must not
// be put in force. It is never nil.
func Build(objs []*api.Object, opts Options) (*Snapshot, diag.List) {
	b := builder{snap: &Snapshot{}}
	for _, o := range objs {
		switch v := o.Value.(type) {
		case *corev1.Pod:
			b.pod(o, v)
		case *corev1.Namespace:
			b.namespace(o, v)
		case *corev1.Node:
			b.node(o, v)
		case *corev1.Service:
			b.service(o, v)
		case *discoveryv1.EndpointSlice:
			b.endpointSlice(o, v)
		default:
			if opts.Workloads {
				b.workload(o)
			}
		}
	}
	b.makePods()
	b.implied()
	s := b.snap
	slices.SortFunc(s.Namespaces, func(a, b Namespace) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(s.Nodes, func(a, b Node) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(s.Services, func(a, b Service) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	slices.SortFunc(s.Pods, func(a, b Pod) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	if opts.AssignAddresses {
		b.assign()
	}
	b.sharedAddresses()
	return s, b.found
}

type builder struct {
	snap  *Snapshot
	bare  map[podName]bool // no address and not pending: written by hand
	found diag.List

	workloads []workload
	owners    map[ownerKey]metav1.OwnerReference // of workloads, by their own kind and name
	orphans   map[podName]bool                   // pods without a controller
}

type podName struct{ namespace, name string }

func (b *builder) errorf(o *api.Object, path, hint, format string, args ...any) {
	b.found.Errors = append(b.found.Errors, o.Finding(path, fmt.Sprintf(format, args...), hint))
}

// metadataName is the label that carries a namespace's own name. S2-106
const metadataName = corev1.LabelMetadataName

func (b *builder) namespace(o *api.Object, v *corev1.Namespace) {
	labels := map[string]string{}
	maps.Copy(labels, v.Labels)
	if got, ok := labels[metadataName]; ok && got != v.Name {
		b.found.Warnings = append(b.found.Warnings, o.Finding(fmt.Sprintf("metadata.labels[%q]", metadataName),
			fmt.Sprintf("the value %q is replaced by the namespace's name", got), "remove the label"))
	}
	labels[metadataName] = v.Name
	b.snap.Namespaces = append(b.snap.Namespaces, Namespace{Name: v.Name, Labels: labels, Annotations: maps.Clone(v.Annotations), File: o.File})
}

// implied adds the namespaces only pods mention.
func (b *builder) implied() {
	known := map[string]bool{}
	for i := range b.snap.Namespaces {
		known[b.snap.Namespaces[i].Name] = true
	}
	declared := len(known) > 0
	for i := range b.snap.Pods {
		p := &b.snap.Pods[i]
		if known[p.Namespace] {
			continue
		}
		known[p.Namespace] = true
		b.snap.Namespaces = append(b.snap.Namespaces, Namespace{Name: p.Namespace, Labels: map[string]string{metadataName: p.Namespace}})
		if declared { // some are declared, so this one looks forgotten
			b.found.Warnings = append(b.found.Warnings, diag.Diagnostic{
				File: p.File, Object: api.Ref{Kind: "Pod", Namespace: p.Namespace, Name: p.Name}, Path: "metadata.namespace",
				Message: fmt.Sprintf("namespace %q is not declared and taken to have no labels", p.Namespace),
				Hint:    "add its Namespace object, or correct the name",
			})
		}
	}
}

func (b *builder) pod(o *api.Object, v *corev1.Pod) {
	switch v.Status.Phase {
	case corev1.PodSucceeded, corev1.PodFailed:
		return
	case "", corev1.PodPending, corev1.PodRunning, corev1.PodUnknown:
	default:
		b.errorf(o, "status.phase", "write Pending, Running, Succeeded, Failed or Unknown", "unknown phase %q", v.Status.Phase)
	}
	p := b.podOf(o, &v.ObjectMeta, &v.Spec, "spec")
	p.IPs = b.podIPs(o, &v.Status)
	p.Workload = b.workloadOf(&v.ObjectMeta)
	p.Terminating = v.DeletionTimestamp != nil
	for _, c := range v.Status.Conditions {
		if c.Type == corev1.PodReady {
			p.Unready = c.Status != corev1.ConditionTrue
		}
	}
	if len(p.IPs) == 0 && v.Status.PodIP == "" && len(v.Status.PodIPs) == 0 && v.Status.Phase != corev1.PodPending {
		if b.bare == nil {
			b.bare = map[podName]bool{}
		}
		b.bare[podName{p.Namespace, p.Name}] = true
	}
	b.snap.Pods = append(b.snap.Pods, p)
}

// podOf reads what a pod and a template of pods have in common. path is where the
// pod's spec is in the object.
func (b *builder) podOf(o *api.Object, meta *metav1.ObjectMeta, spec *corev1.PodSpec, path string) Pod {
	p := Pod{
		Namespace: o.Namespace, Name: meta.Name,
		Labels:         maps.Clone(meta.Labels),
		ServiceAccount: cmp.Or(spec.ServiceAccountName, spec.DeprecatedServiceAccount, "default"),
		Node:           spec.NodeName,
		HostNetwork:    spec.HostNetwork,
		File:           o.File,
	}
	for i, c := range spec.InitContainers {
		// An init container that keeps running is a sidecar; the others are gone
		// before the pod serves anything.
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			b.ports(o, &p, c.Ports, fmt.Sprintf("%s.initContainers[%d]", path, i))
		}
	}
	for i, c := range spec.Containers {
		b.ports(o, &p, c.Ports, fmt.Sprintf("%s.containers[%d]", path, i))
	}
	return p
}

// podIPs reads status.podIPs, or status.podIP where only that is given.
func (b *builder) podIPs(o *api.Object, st *corev1.PodStatus) []netip.Addr {
	var ips []netip.Addr
	add := func(path, text string) {
		a, ok := b.addr(o, path, text)
		if !ok {
			return
		}
		for _, other := range ips {
			if other.Is4() == a.Is4() {
				b.errorf(o, path, "a pod has at most one address per family", "%s is a second address beside %s", a, other)
				return
			}
		}
		ips = append(ips, a)
	}
	for i, ip := range st.PodIPs {
		add(fmt.Sprintf("status.podIPs[%d].ip", i), ip.IP)
	}
	switch {
	case st.PodIP == "":
	case len(st.PodIPs) == 0:
		add("status.podIP", st.PodIP)
	case st.PodIP != st.PodIPs[0].IP:
		b.errorf(o, "status.podIP", "write the same address in both, or leave podIP out", "podIP %s is not the first of podIPs, %s", st.PodIP, st.PodIPs[0].IP)
	}
	return ips
}

// addr parses the address of one endpoint.
func (b *builder) addr(o *api.Object, path, text string) (netip.Addr, bool) {
	a, err := netip.ParseAddr(text)
	if err != nil || a.Zone() != "" {
		b.errorf(o, path, "", "%q is not an IP address", text)
		return a, false
	}
	a = a.Unmap()
	if !usable(a) {
		b.errorf(o, path, "write the address the host has", "%s cannot be the address of a host", a)
		return a, false
	}
	return a, true
}

func (b *builder) ports(o *api.Object, p *Pod, ports []corev1.ContainerPort, path string) {
	for i, cp := range ports {
		at := fmt.Sprintf("%s.ports[%d].", path, i)
		if cp.ContainerPort < 1 || cp.ContainerPort > 65535 {
			b.errorf(o, at+"containerPort", "write a number from 1 to 65535", "%d is not a port", cp.ContainerPort)
			continue
		}
		proto, ok := b.proto(o, at+"protocol", cp.Protocol)
		if !ok || cp.Name == "" {
			continue
		}
		np := rule.NamedPort{Name: cp.Name, Proto: proto, Port: uint16(cp.ContainerPort)}
		if !slices.Contains(p.Ports, np) {
			p.Ports = append(p.Ports, np)
		}
	}
}

// proto reads a protocol; empty is TCP, as the API server defaults it.
func (b *builder) proto(o *api.Object, path string, p corev1.Protocol) (flow.Proto, bool) {
	switch p {
	case "", corev1.ProtocolTCP:
		return flow.TCP, true
	case corev1.ProtocolUDP:
		return flow.UDP, true
	case corev1.ProtocolSCTP:
		return flow.SCTP, true
	}
	hint := "write TCP, UDP or SCTP"
	if up := corev1.Protocol(strings.ToUpper(string(p))); up != p {
		hint = "write " + string(up)
	}
	b.errorf(o, path, hint, "unknown protocol %q", p)
	return 0, false
}

func (b *builder) node(o *api.Object, v *corev1.Node) {
	n := Node{Name: v.Name, Labels: maps.Clone(v.Labels), File: o.File}
	for i, a := range v.Status.Addresses {
		if a.Type != corev1.NodeInternalIP && a.Type != corev1.NodeExternalIP {
			continue // names, not addresses
		}
		if ip, ok := b.addr(o, fmt.Sprintf("status.addresses[%d].address", i), a.Address); ok && !slices.Contains(n.Addrs, ip) {
			n.Addrs = append(n.Addrs, ip)
		}
	}
	cidr := func(path, text string) {
		p, err := netip.ParsePrefix(text)
		if err != nil || p.Addr().Is4In6() {
			b.errorf(o, path, "write a prefix such as 10.244.1.0/24", "%q is not a prefix", text)
			return
		}
		n.PodCIDRs = append(n.PodCIDRs, p.Masked())
	}
	for i, c := range v.Spec.PodCIDRs {
		cidr(fmt.Sprintf("spec.podCIDRs[%d]", i), c)
	}
	switch {
	case v.Spec.PodCIDR == "":
	case len(v.Spec.PodCIDRs) == 0:
		cidr("spec.podCIDR", v.Spec.PodCIDR)
	case v.Spec.PodCIDR != v.Spec.PodCIDRs[0]:
		b.errorf(o, "spec.podCIDR", "write the same prefix in both, or leave podCIDR out", "podCIDR %s is not the first of podCIDRs, %s", v.Spec.PodCIDR, v.Spec.PodCIDRs[0])
	}
	n.DeviceAddrs = deviceAddrs(v.Annotations, n.PodCIDRs, n.Addrs)
	b.snap.Nodes = append(b.snap.Nodes, n)
}

func (b *builder) service(o *api.Object, v *corev1.Service) {
	s := Service{
		Namespace: v.Namespace, Name: v.Name, Selector: maps.Clone(v.Spec.Selector), Labels: maps.Clone(v.Labels), File: o.File,
		ExternalLocal:   v.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal,
		InternalLocal:   v.Spec.InternalTrafficPolicy != nil && *v.Spec.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal,
		PublishNotReady: v.Spec.PublishNotReadyAddresses,
		Headless:        v.Spec.ClusterIP == corev1.ClusterIPNone || slices.Contains(v.Spec.ClusterIPs, corev1.ClusterIPNone),
	}
	add := func(to *[]netip.Addr, path, text string) {
		if text == "" || text == corev1.ClusterIPNone {
			return
		}
		if a, ok := b.addr(o, path, text); ok && !slices.Contains(*to, a) {
			*to = append(*to, a)
		}
	}
	for i, ip := range v.Spec.ClusterIPs {
		add(&s.ClusterIPs, fmt.Sprintf("spec.clusterIPs[%d]", i), ip)
	}
	switch {
	case v.Spec.ClusterIP == "":
	case len(v.Spec.ClusterIPs) == 0:
		add(&s.ClusterIPs, "spec.clusterIP", v.Spec.ClusterIP)
	case v.Spec.ClusterIP != v.Spec.ClusterIPs[0]:
		b.errorf(o, "spec.clusterIP", "write the same address in both, or leave clusterIP out", "clusterIP %s is not the first of clusterIPs, %s", v.Spec.ClusterIP, v.Spec.ClusterIPs[0])
	}
	for i, ip := range v.Spec.ExternalIPs {
		add(&s.ExternalIPs, fmt.Sprintf("spec.externalIPs[%d]", i), ip)
	}
	for i, in := range v.Status.LoadBalancer.Ingress {
		if in.IPMode == nil || *in.IPMode == corev1.LoadBalancerIPModeVIP {
			add(&s.ExternalIPs, fmt.Sprintf("status.loadBalancer.ingress[%d].ip", i), in.IP)
		}
	}
	for i, sp := range v.Spec.Ports {
		at := fmt.Sprintf("spec.ports[%d].", i)
		proto, ok := b.proto(o, at+"protocol", sp.Protocol)
		if sp.Port < 1 || sp.Port > 65535 {
			b.errorf(o, at+"port", "write a number from 1 to 65535", "%d is not a port", sp.Port)
			ok = false
		}
		p := ServicePort{Name: sp.Name, Proto: proto.String(), Port: uint16(sp.Port), TargetPort: uint16(sp.Port)}
		switch t := sp.TargetPort; {
		case t.Type == intstr.String && t.StrVal != "":
			p.TargetPort, p.TargetName = 0, t.StrVal
		case t.Type == intstr.Int && t.IntVal != 0:
			if t.IntVal < 1 || t.IntVal > 65535 {
				b.errorf(o, at+"targetPort", "write a number from 1 to 65535", "%d is not a port", t.IntVal)
				ok = false
			}
			p.TargetPort = uint16(t.IntVal)
		}
		if sp.NodePort < 0 || sp.NodePort > 65535 {
			b.errorf(o, at+"nodePort", "", "%d is not a port: want 1 to 65535", sp.NodePort)
			ok = false
		}
		p.NodePort = uint16(sp.NodePort)
		if ok {
			s.Ports = append(s.Ports, p)
		}
	}
	b.snap.Services = append(b.snap.Services, s)
}

// sharedAddresses reports live pods with the same address: which of them a packet
// belongs to cannot be known.
func (b *builder) sharedAddresses() {
	owner := map[netip.Addr]*Pod{}
	for i := range b.snap.Pods {
		p := &b.snap.Pods[i]
		if p.HostNetwork {
			continue
		}
		for _, a := range p.IPs {
			if o := owner[a]; o != nil {
				b.found.Errors = append(b.found.Errors, diag.Diagnostic{
					File: p.File, Object: api.Ref{Kind: "Pod", Namespace: p.Namespace, Name: p.Name}, Path: "status.podIPs",
					Message: fmt.Sprintf("address %s is also that of pod %s/%s", a, o.Namespace, o.Name),
					Hint:    "only pods on the host network share addresses; set hostNetwork, or the phase of the one that has finished",
				})
				continue
			}
			owner[a] = p
		}
	}
}
