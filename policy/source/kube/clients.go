package kube

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

// ForDaemon returns how a daemon reaches the API server: by a kubeconfig file, or
// with "" as the pod it runs in. Its requests are few (a list and a watch for each
// of some ten resources), so the limits only keep a fault from becoming a flood.
func ForDaemon(kubeconfig, userAgent string) (*rest.Config, error) {
	c, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("API server: %w", err)
	}
	c.UserAgent = userAgent
	c.QPS, c.Burst = 20, 40
	return c, nil
}

// unanswered bounds requests that are no watches.
const unanswered = time.Minute

// clients reach one API server in the ways the resources need. All share one
// connection.
type clients struct {
	v1       corev1client.CoreV1Interface // protobuf
	raw      dynamic.Interface            // JSON: strict decoding needs the fields we do not know
	meta     metadata.Interface
	discover discovery.DiscoveryInterface
}

func newClients(config *rest.Config) (*clients, error) {
	http, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("API server: %w", err)
	}
	binary := rest.CopyConfig(config)
	binary.ContentType = runtime.ContentTypeProtobuf
	binary.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	c := &clients{}
	if c.v1, err = corev1client.NewForConfigAndClient(binary, http); err != nil {
		return nil, fmt.Errorf("API server: %w", err)
	}
	if c.raw, err = dynamic.NewForConfigAndClient(config, http); err != nil {
		return nil, fmt.Errorf("API server: %w", err)
	}
	if c.meta, err = metadata.NewForConfigAndClient(metadata.ConfigFor(config), http); err != nil {
		return nil, fmt.Errorf("API server: %w", err)
	}
	if c.discover, err = discovery.NewDiscoveryClientForConfigAndClient(config, http); err != nil {
		return nil, fmt.Errorf("API server: %w", err)
	}
	return c, nil
}

// exampleOf returns a value of the type a resource's objects are decoded into.
func exampleOf(resource string) any {
	switch resource {
	case "pods":
		return &corev1.Pod{}
	case "namespaces":
		return &corev1.Namespace{}
	case "nodes":
		return &corev1.Node{}
	case "services":
		return &corev1.Service{}
	case definitions:
		return &metav1.PartialObjectMetadata{}
	}
	return &unstructured.Unstructured{}
}

// livePods leaves out Pods that have finished: they are no part of the world, and
// what Jobs leave behind can outnumber the rest.
const livePods = "status.phase!=Succeeded,status.phase!=Failed"

func (c *clients) core(resource string) cache.ListWatch {
	request := func(opts metav1.ListOptions) *rest.Request {
		if resource == "pods" {
			opts.FieldSelector = livePods
		}
		return c.v1.RESTClient().Get().Resource(resource).VersionedParams(&opts, metav1.ParameterCodec)
	}
	return cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			return request(opts).Timeout(unanswered).Do(ctx).Get()
		},
		WatchFuncWithContext: func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
			opts.Watch = true
			return request(opts).Timeout(watchTimeout(opts)).Watch(ctx)
		},
	}
}

// watchTimeout is how long the API server keeps a watch open.
func watchTimeout(opts metav1.ListOptions) time.Duration {
	if opts.TimeoutSeconds == nil {
		return 0
	}
	return time.Duration(*opts.TimeoutSeconds) * time.Second
}

func (c *clients) policies(r schema.GroupVersionResource) cache.ListWatch {
	return cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			return c.raw.Resource(r).List(ctx, opts)
		},
		WatchFuncWithContext: func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
			return c.raw.Resource(r).Watch(ctx, opts)
		},
	}
}

func (c *clients) definitions() cache.ListWatch {
	r := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	return cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			return c.meta.Resource(r).List(ctx, opts)
		},
		WatchFuncWithContext: func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
			return c.meta.Resource(r).Watch(ctx, opts)
		},
	}
}
