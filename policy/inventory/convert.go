package inventory

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/diag"
)

// The functions below convert one object each, for callers that hear of objects
// one by one and put snapshots together themselves. They copy what they keep.
// Errors are about parts that could not be read, and which the result lacks.

// ReadPod converts a Pod. alive is false for one that has finished, which is not
// part of any snapshot.
func ReadPod(v *corev1.Pod) (p Pod, alive bool, found diag.List) {
	b := builder{snap: &Snapshot{}}
	b.pod(envelope("Pod", v.Namespace, v.Name, true), v)
	if len(b.snap.Pods) == 0 {
		return Pod{}, false, b.found
	}
	return b.snap.Pods[0], true, b.found
}

// ReadNamespace converts a Namespace.
func ReadNamespace(v *corev1.Namespace) (Namespace, diag.List) {
	b := builder{snap: &Snapshot{}}
	b.namespace(envelope("Namespace", "", v.Name, false), v)
	return b.snap.Namespaces[0], b.found
}

// ReadNode converts a Node.
func ReadNode(v *corev1.Node) (Node, diag.List) {
	b := builder{snap: &Snapshot{}}
	b.node(envelope("Node", "", v.Name, false), v)
	return b.snap.Nodes[0], b.found
}

// ReadService converts a Service.
func ReadService(v *corev1.Service) (Service, diag.List) {
	b := builder{snap: &Snapshot{}}
	b.service(envelope("Service", v.Namespace, v.Name, true), v)
	return b.snap.Services[0], b.found
}

// ImpliedNamespace is what is known of a namespace that only its pods mention: it
// carries its own name as a label (S2-106).
func ImpliedNamespace(name string) Namespace {
	return Namespace{Name: name, Labels: map[string]string{metadataName: name}}
}

func envelope(kind, namespace, name string, namespaced bool) *api.Object {
	return &api.Object{Kind: api.Kind{Version: "v1", Kind: kind, Namespaced: namespaced}, Namespace: namespace, Name: name}
}
