package connectivity

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/tierwall/tierwall/policy/inventory"
)

// object is a Kubernetes object on its way to YAML.
type object = map[string]any

// manifest describes a sample's cluster and policies as one file: replaced in one
// step, it is in force in one step. Local pods get the addresses of the lab's,
// one after the other; index makes every sample's rules different from the one
// before, so that the daemon tells when they are in force.
func (s *sample) manifest(t *testing.T, l *lab, index int) (text string, parties []*party) {
	t.Helper()
	var docs []object
	add := func(kind, ns, name string, labels map[string]string, more object) {
		meta := object{"name": name, "labels": labels}
		if ns != "" {
			meta["namespace"] = ns
		}
		if a, ok := more["annotations"]; ok {
			meta["annotations"] = a
			delete(more, "annotations")
		}
		doc := object{"apiVersion": "v1", "kind": kind, "metadata": meta}
		for k, v := range more {
			doc[k] = v
		}
		docs = append(docs, doc)
	}
	add("Node", "", nodeName, nil, object{
		"spec":   object{"podCIDRs": []string{podNet4.String(), podNet6.String()}},
		"status": object{"addresses": nodeAddresses([]netip.Addr{l.node.Addr4, l.node.Addr6})},
	})
	for _, n := range s.world.Nodes {
		if n.Name == s.node {
			continue // ours takes its place
		}
		spec := object{}
		if len(n.PodCIDRs) > 0 {
			spec["podCIDRs"] = texts(n.PodCIDRs)
		}
		add("Node", "", n.Name, n.Labels, object{"spec": spec, "status": object{"addresses": nodeAddresses(n.Addrs)}})
		parties = append(parties, l.far(t, "node "+n.Name, n.Addrs))
	}
	for _, n := range s.world.Namespaces {
		add("Namespace", "", n.Name, n.Labels, object{"annotations": n.Annotations})
	}
	slot, far := 0, 0
	for i := range s.world.Pods {
		p := &s.world.Pods[i]
		addrs, node := p.IPs, p.Node
		labels := map[string]string{}
		for k, v := range p.Labels {
			labels[k] = v
		}
		switch local := s.node == "" || p.Node == s.node; {
		case p.HostNetwork && local && s.node != "":
			addrs, node = []netip.Addr{l.node.Addr4, l.node.Addr6}, nodeName
		case p.HostNetwork:
			addrs = addressesOf(s.world.Nodes, p.Node)
		case local:
			if slot == len(l.pods)-1 {
				t.Fatalf("sample %s: more than %d pods", s.name, slot)
			}
			own := l.pods[slot]
			slot++
			own.name = p.Namespace + "/" + p.Name
			addrs, node = []netip.Addr{own.v4, own.v6}, nodeName
			parties = append(parties, own)
			labels[serviceLabel] = fmt.Sprint(own.serviceID)
			add("Service", p.Namespace, fmt.Sprintf("service-%d", own.serviceID), nil, serviceSpec(own, s.ports))
		default:
			other := l.far(t, p.Namespace+"/"+p.Name, addrs)
			other.serviceID = firstFarService + far
			far++
			parties = append(parties, other)
			labels[serviceLabel] = fmt.Sprint(other.serviceID)
			add("Service", p.Namespace, fmt.Sprintf("service-%d", other.serviceID), nil, serviceSpec(other, s.ports))
		}
		add("Pod", p.Namespace, p.Name, labels, podSpec(p, node, addrs))
	}
	for _, v := range s.world.Services {
		spec := object{"clusterIP": "None", "selector": v.Selector}
		if len(v.ClusterIPs) > 0 {
			spec["clusterIP"], spec["clusterIPs"] = v.ClusterIPs[0].String(), texts(v.ClusterIPs)
		}
		var ports []object
		for i, p := range v.Ports {
			var target any = p.TargetPort
			if p.TargetName != "" {
				target = p.TargetName
			}
			ports = append(ports, object{"name": fmt.Sprint("p", i), "port": p.Port, "protocol": p.Proto, "targetPort": target})
		}
		spec["ports"] = ports
		add("Service", v.Namespace, v.Name, v.Labels, object{"spec": spec})
	}
	// The marker changes the table and nothing else: its pod is nobody's peer here.
	marker := l.pods[len(l.pods)-1]
	add("Namespace", "", "connectivity-marker", nil, object{})
	add("Pod", "connectivity-marker", "marker", nil, podSpec(&inventory.Pod{Name: "marker"}, nodeName, []netip.Addr{marker.v4, marker.v6}))
	docs = append(docs, object{
		"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
		"metadata": object{"namespace": "connectivity-marker", "name": fmt.Sprintf("marker-%d", index)},
		"spec": object{
			"podSelector": object{}, "policyTypes": []string{"Ingress"},
			"ingress": []object{{"ports": []object{{"protocol": "TCP", "port": 20000 + index}}}},
		},
	})
	parties = append(parties, l.far(t, "outside", []netip.Addr{l.node.Outside4, l.node.Outside6}))
	for _, h := range s.hosts {
		parties = append(parties, l.far(t, h.String(), []netip.Addr{h}))
	}
	var b strings.Builder
	for _, d := range docs {
		y, err := yaml.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		b.WriteString("---\n")
		b.Write(y)
	}
	return b.String() + s.policies, parties
}

// serviceLabel is what a Service of the suite selects its pod by.
const serviceLabel = "connectivity.test/service"

func nodeAddresses(addrs []netip.Addr) []object {
	out := []object{}
	for _, a := range addrs {
		out = append(out, object{"type": "InternalIP", "address": a.String()})
	}
	return out
}

func addressesOf(nodes []inventory.Node, name string) []netip.Addr {
	for i := range nodes {
		if nodes[i].Name == name {
			return nodes[i].Addrs
		}
	}
	return nil
}

func podSpec(p *inventory.Pod, node string, addrs []netip.Addr) object {
	ports := []object{}
	for _, n := range p.Ports {
		ports = append(ports, object{"name": n.Name, "containerPort": n.Port, "protocol": n.Proto.String()})
	}
	ips := []object{}
	for _, a := range addrs {
		ips = append(ips, object{"ip": a.String()})
	}
	status := object{"phase": "Running", "podIPs": ips}
	if len(addrs) > 0 {
		status["podIP"] = addrs[0].String()
	}
	spec := object{"nodeName": node, "containers": []object{{"name": "main", "image": "main", "ports": ports}}}
	if p.HostNetwork {
		spec["hostNetwork"] = true
	}
	if p.ServiceAccount != "" {
		spec["serviceAccountName"] = p.ServiceAccount
	}
	return object{"spec": spec, "status": status}
}

// serviceSpec describes the Service that the proxy's rules make for a pod.
func serviceSpec(p *party, numbers []uint16) object {
	var ports []object
	for i, n := range numbers {
		for _, proto := range []string{"TCP", "UDP", "SCTP"} {
			port := object{"name": fmt.Sprintf("%s-%d", strings.ToLower(proto), n), "protocol": proto, "port": n, "targetPort": n}
			if p.slot >= 0 {
				port["nodePort"] = nodePort(p.slot, i)
			}
			ports = append(ports, port)
		}
	}
	spec := object{"type": "NodePort", "ports": ports, "selector": object{serviceLabel: fmt.Sprint(p.serviceID)}}
	if p.slot < 0 {
		spec["type"] = "ClusterIP"
	}
	var ips []string
	for _, family := range []int{4, 6} {
		if a := p.service(family); a.IsValid() {
			ips = append(ips, a.String())
		}
	}
	spec["clusterIP"], spec["clusterIPs"] = ips[0], ips
	return object{"spec": spec}
}

func texts[T fmt.Stringer](in []T) (out []string) {
	for _, v := range in {
		out = append(out, v.String())
	}
	return out
}
