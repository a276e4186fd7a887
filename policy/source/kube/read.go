package kube

import (
	"cmp"
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/pager"

	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/diag"
	"github.com/tierwall/tierwall/policy/inventory"
	"github.com/tierwall/tierwall/policy/lower"
)

// ReadOptions say what [Read] reads. The zero value reads the whole cluster.
type ReadOptions struct {
	// Kinds are the policy kinds, in the dialects' order. nil means lower.Kinds.
	Kinds []api.Kind
	// Namespace limits namespaced resources to one namespace. "" reads all of
	// them, and where that is forbidden falls back to Fallback.
	Namespace string
	// Fallback is the namespace to read where reading all of them is forbidden,
	// usually the one of the kubeconfig's context. "" means no second try.
	Fallback string
	// EndpointSlices reads these, too: where Services lead to, which no policy asks.
	EndpointSlices bool
}

// Missing is a part of the cluster that could not be read.
type Missing struct {
	// Resource is the plural name with its group, "pods" or
	// "networkpolicies.networking.k8s.io".
	Resource string
	// Read is the only namespace of which the resource was read, "" when nothing
	// of it was.
	Read string
	// Err is what the API server answered; nil where the caller wanted no more
	// than one namespace.
	Err error
}

// String says what is missing, for people.
func (m Missing) String() string {
	what := m.Resource + ": not read"
	if m.Read != "" {
		what = m.Resource + ": read in namespace " + m.Read + " only"
	}
	if m.Err != nil {
		what += ": " + m.Err.Error()
	}
	return what
}

// Read lists policies and inventory once, with the rights of whoever config
// belongs to. What those rights do not cover is in missing, and the rest is
// returned; so is what was refused object by object, as error findings, with the
// objects left out. err is about everything: the API server cannot be reached.
// The snapshot is never nil when err is nil.
func Read(ctx context.Context, config *rest.Config, opts ReadOptions) (
	objs []*api.Object, snap *inventory.Snapshot, findings diag.List, missing []Missing, err error,
) {
	if len(opts.Kinds) == 0 {
		opts.Kinds = lower.Kinds()
	}
	config = rest.CopyConfig(config)
	config.QPS, config.Burst = 50, 100 // a dozen lists in pages, not a loop
	c, err := newClients(config)
	if err != nil {
		return nil, nil, diag.List{}, nil, err
	}
	r := reader{clients: c, opts: opts}
	now, err := lookUp(c.discover, opts.Kinds, func(string) bool { return true }, func(group string) bool { return mayDecide(group, true) })
	if err != nil {
		return nil, nil, diag.List{}, nil, err
	}
	findings.Warnings = append(findings.Warnings, now.unserved...)
	c.count(ctx, now.foreign)
	notUnderstood(now.foreign, &findings)

	pods, namespaces, nodes, services := newPods(), newNamespaces(), newNodes(func(*corev1.Node) {}), newServices()
	for _, w := range []struct {
		resource   string
		namespaced bool
		sink       sink
	}{{"pods", true, pods}, {"namespaces", false, namespaces}, {"nodes", false, nodes}, {"services", true, services}} {
		err := r.read(ctx, w.resource, w.namespaced, w.sink, func(ctx context.Context, ns string, lo metav1.ListOptions) (runtime.Object, error) {
			if w.resource == "pods" {
				lo.FieldSelector = livePods
			}
			return c.v1.RESTClient().Get().Namespace(ns).Resource(w.resource).VersionedParams(&lo, metav1.ParameterCodec).Do(ctx).Get()
		})
		if err != nil {
			return nil, nil, diag.List{}, nil, err
		}
	}
	for _, k := range now.kinds {
		sink := newPolicies(k.kind)
		err := r.read(ctx, k.resource.GroupResource().String(), k.kind.Namespaced, sink, r.lister(k.resource))
		if err != nil {
			return nil, nil, diag.List{}, nil, err
		}
		var all []*api.Object
		all, findings.Warnings = sink.load(findings.Warnings)
		for _, o := range all {
			findings.Errors = append(findings.Errors, o.Problems...)
			if o.Value != nil {
				objs = append(objs, o)
			}
		}
	}
	findings.Add(pods.findings())
	var endpoints []inventory.EndpointSlice
	if opts.EndpointSlices {
		sink := newEndpointSlices()
		if err := r.read(ctx, endpointSlices.GroupResource().String(), true, sink, r.lister(endpointSlices)); err != nil {
			return nil, nil, diag.List{}, nil, err
		}
		endpoints = sink.flush()
	}
	snap = &inventory.Snapshot{
		Pods: pods.flush().List(), Nodes: nodes.flush(), Services: services.flush(),
		Namespaces: withImplied(namespaces.flush(), pods.namespaces), EndpointSlices: endpoints,
	}
	findings.Sort()
	return objs, snap, findings, r.missing, nil
}

// reader is one call of Read.
type reader struct {
	*clients
	opts    ReadOptions
	missing []Missing
}

type lister func(ctx context.Context, namespace string, opts metav1.ListOptions) (runtime.Object, error)

func (r *reader) lister(gvr schema.GroupVersionResource) lister {
	return func(ctx context.Context, namespace string, opts metav1.ListOptions) (runtime.Object, error) {
		return r.raw.Resource(gvr).Namespace(namespace).List(ctx, opts)
	}
}

// read lists one resource into a sink, where the user may.
func (r *reader) read(ctx context.Context, resource string, namespaced bool, to sink, list lister) error {
	namespace := ""
	if namespaced {
		namespace = r.opts.Namespace
	}
	items, err := listAll(ctx, to, namespace, list)
	switch {
	case err == nil && namespace == "":
	case err == nil:
		r.missing = append(r.missing, Missing{Resource: resource, Read: namespace})
	case refused(err) && namespaced && namespace == "" && r.opts.Fallback != "":
		m := Missing{Resource: resource, Err: err}
		var again error
		if items, again = listAll(ctx, to, r.opts.Fallback, list); again == nil {
			m.Read = r.opts.Fallback
		} else if !refused(again) {
			return fmt.Errorf("list %s: %w", resource, again)
		}
		r.missing = append(r.missing, m)
	case refused(err):
		m := Missing{Resource: resource, Err: err}
		if own := cmp.Or(r.opts.Namespace, r.opts.Fallback); resource == "namespaces" && own != "" {
			// Who may not list Namespaces can usually get their own.
			if ns, err := r.v1.Namespaces().Get(ctx, own, metav1.GetOptions{}); err == nil {
				item, err := to.read(ns)
				if err != nil {
					return err
				}
				items, m.Read = []any{item}, own
			}
		}
		r.missing = append(r.missing, m)
	default:
		return fmt.Errorf("list %s: %w", resource, err)
	}
	to.replace(items)
	return nil
}

// refused reports whether the API server has answered and does not give the
// resource to this user.
func refused(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err)
}

// listAll lists in pages, each converted before the next is asked for.
func listAll(ctx context.Context, to sink, namespace string, list lister) ([]any, error) {
	var items []any
	p := pager.New(func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
		return list(ctx, namespace, opts)
	})
	err := p.EachListItem(ctx, metav1.ListOptions{}, func(o runtime.Object) error {
		item, err := to.read(o)
		items = append(items, item)
		return err
	})
	if err != nil {
		return nil, err
	}
	return items, nil
}

var endpointSlices = discoveryv1.SchemeGroupVersion.WithResource("endpointslices")

// newEndpointSlices makes the sink of EndpointSlices, for Read: nothing watches them.
func newEndpointSlices() *simple[inventory.EndpointSlice] {
	return &simple[inventory.EndpointSlice]{
		listed: listed[inventory.EndpointSlice]{name: func(s *inventory.EndpointSlice) objectName { return objectName{s.Namespace, s.Name} }},
		convert: func(obj any) (s inventory.EndpointSlice, found diag.List, err error) {
			u, ok := obj.(*unstructured.Unstructured)
			if !ok {
				return s, found, fmt.Errorf("want an EndpointSlice, got %T", obj)
			}
			var v discoveryv1.EndpointSlice
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &v); err != nil {
				return s, found, fmt.Errorf("EndpointSlice %s/%s: %w", u.GetNamespace(), u.GetName(), err)
			}
			s, found = inventory.ReadEndpointSlice(&v)
			return s, found, nil
		},
		same: func(*inventory.EndpointSlice, *inventory.EndpointSlice) bool { return false },
	}
}
