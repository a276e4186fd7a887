package world

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"
)

// Manifests describes the world as a stream of Kubernetes YAML documents, the
// way "kubectl get -o yaml" would if it were a cluster: a Node, Namespaces and
// Pods with their addresses. It needs no running world.
func Manifests() ([]byte, error) {
	objs := []any{&corev1.Node{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: NodeName},
		Spec:       corev1.NodeSpec{PodCIDRs: []string{podPrefix4.String(), podPrefix6.String()}},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: node4.String()},
			{Type: corev1.NodeInternalIP, Address: node6.String()},
		}},
	}}
	for _, ns := range Namespaces {
		objs = append(objs, &corev1.Namespace{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
			ObjectMeta: metav1.ObjectMeta{Name: ns, Labels: map[string]string{"ns": ns}},
		})
	}
	for _, h := range Plan() {
		if ns, name, ok := strings.Cut(h.Name, "/"); ok {
			objs = append(objs, pod(ns, name, h.Addr4, h.Addr6))
		}
	}
	var b bytes.Buffer
	b.WriteString("# The demo's world: one node, three namespaces, nine pods.\n")
	for _, o := range objs {
		doc, err := document(o)
		if err != nil {
			return nil, fmt.Errorf("describe the world: %w", err)
		}
		b.WriteString("---\n")
		b.Write(doc)
	}
	return b.Bytes(), nil
}

func pod(ns, name string, a4, a6 netip.Addr) *corev1.Pod {
	p := &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: ns, Name: name, Labels: map[string]string{"pod": name}, UID: types.UID("demo-" + ns + "-" + name),
		},
		Spec: corev1.PodSpec{NodeName: NodeName, Containers: []corev1.Container{{Name: "echo", Image: "echo"}}},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: a4.String(),
			PodIPs: []corev1.PodIP{{IP: a4.String()}, {IP: a6.String()}},
		},
	}
	for _, np := range Ports {
		// Port names are unique inside a container, whatever the protocol.
		ports := &p.Spec.Containers[0].Ports
		*ports = append(*ports,
			corev1.ContainerPort{Name: np.Name, ContainerPort: int32(np.Number), Protocol: corev1.ProtocolTCP},
			corev1.ContainerPort{Name: np.Name + "-udp", ContainerPort: int32(np.Number), Protocol: corev1.ProtocolUDP},
		)
	}
	return p
}

// document renders one object without the empty fields Go types of the API
// carry ("status: {}", "creationTimestamp: null"), which only distract.
func document(o any) ([]byte, error) {
	raw, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	var m map[string]any
	if err := json.Unmarshal(raw, &m); err != nil {
		return nil, err
	}
	prune(m)
	return yaml.Marshal(m)
}

// prune removes empty maps, empty lists and nulls, innermost first.
func prune(m map[string]any) {
	for k, v := range m {
		switch v := v.(type) {
		case nil:
			delete(m, k)
		case map[string]any:
			prune(v)
			if len(v) == 0 {
				delete(m, k)
			}
		case []any:
			for _, e := range v {
				if em, ok := e.(map[string]any); ok {
					prune(em)
				}
			}
			if len(v) == 0 {
				delete(m, k)
			}
		}
	}
}
