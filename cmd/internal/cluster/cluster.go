package cluster

import (
	"errors"
	"fmt"
	"os"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Options say which cluster, as kubectl's flags of the same names do.
type Options struct {
	Kubeconfig string // file; "" = $KUBECONFIG, else ~/.kube/config, else the pod's own account
	Context    string // of the kubeconfig; "" = its current one
	Namespace  string // "" = the context's
}

// Given reports whether a cluster was asked for, rather than found.
func (o *Options) Given() bool { return o.Kubeconfig != "" || o.Context != "" }

// ErrNone is returned when no kubeconfig says which cluster is meant.
var ErrNone = errors.New("no cluster is known: there is no kubeconfig (--kubeconfig, $KUBECONFIG, ~/.kube/config)")

// Cluster is a cluster as its user may see it. It does no I/O until asked.
type Cluster struct {
	Config *rest.Config
	Client kubernetes.Interface
	// Namespace is the one asked for, else the context's.
	Namespace string
	// Context is the kubeconfig context's name, "" inside a pod.
	Context string
}

// Open finds the cluster. It asks no server yet.
func (o *Options) Open() (*Cluster, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = o.Kubeconfig
	rules.WarnIfAllMissing = false
	overrides := &clientcmd.ConfigOverrides{CurrentContext: o.Context}
	overrides.Context.Namespace = o.Namespace
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides)
	config, err := loader.ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		if v := os.Getenv(clientcmd.RecommendedConfigPathEnvVar); v != "" && o.Kubeconfig == "" {
			return nil, fmt.Errorf("no cluster is known: $%s names no kubeconfig (%s)", clientcmd.RecommendedConfigPathEnvVar, v)
		}
		return nil, ErrNone
	}
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	namespace, _, err := loader.Namespace()
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	// One person asks one question: no need to be slow for the server's sake.
	config.QPS, config.Burst = 50, 100
	config.UserAgent = "tierwall"
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	c := &Cluster{Config: config, Client: client, Namespace: namespace, Context: o.Context}
	if raw, err := loader.RawConfig(); err == nil && c.Context == "" {
		c.Context = raw.CurrentContext
	}
	return c, nil
}

// Name says which cluster it is, for people.
func (c *Cluster) Name() string {
	if c.Context != "" {
		return fmt.Sprintf("%s (context %s)", c.Config.Host, c.Context)
	}
	return c.Config.Host
}
