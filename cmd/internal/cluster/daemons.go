package cluster

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tierwall/tierwall/cmd/internal/api"
)

// Where deploy/ puts the daemons, and how it labels them.
const (
	DefaultNamespace = "tierwall"
	Selector         = "app.kubernetes.io/name=tierwall,app.kubernetes.io/component=daemon"
	DefaultPort      = 7380
)

// Daemons are the node daemons of a cluster.
type Daemons struct {
	Cluster   *Cluster
	Namespace string // of the DaemonSet; "" = DefaultNamespace
	Port      int    // of metrics.address; 0 = DefaultPort
	// Dial is for tests; nil is port-forward.
	Dial func(ctx context.Context, namespace, pod string, port int) (Conn, error)
}

// Daemon is one of them.
type Daemon struct {
	Node string
	Pod  string // "" when the node has none
	// Why is why the daemon cannot be asked, "" when it can.
	Why string
}

func (d *Daemons) namespace() string {
	if d.Namespace == "" {
		return DefaultNamespace
	}
	return d.Namespace
}

func (d *Daemons) port() int {
	if d.Port == 0 {
		return DefaultPort
	}
	return d.Port
}

// List returns the daemons by node, the nodes without one included if the user
// may list nodes. Of a node's several pods (one that ends, one that begins) it is
// the one that runs.
func (d *Daemons) List(ctx context.Context) ([]Daemon, error) {
	pods, err := d.Cluster.Client.CoreV1().Pods(d.namespace()).List(ctx, metav1.ListOptions{LabelSelector: Selector})
	if err != nil {
		return nil, fmt.Errorf("find the daemons in namespace %s: %w", d.namespace(), err)
	}
	if len(pods.Items) == 0 {
		return nil, fmt.Errorf("there is no daemon in namespace %s (--daemon-namespace names another)", d.namespace())
	}
	byNode := map[string]Daemon{}
	for i := range pods.Items {
		p := &pods.Items[i]
		if p.Spec.NodeName == "" {
			continue // not scheduled yet
		}
		this := Daemon{Node: p.Spec.NodeName, Pod: p.Name, Why: notRunning(p)}
		if old, ok := byNode[this.Node]; !ok || old.Why != "" {
			byNode[this.Node] = this
		}
	}
	nodes, err := d.Cluster.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	switch {
	case apierrors.IsForbidden(err): // then only the nodes that have one are known
	case err != nil:
		return nil, fmt.Errorf("list the nodes: %w", err)
	default:
		for i := range nodes.Items {
			name := nodes.Items[i].Name
			if _, ok := byNode[name]; !ok {
				byNode[name] = Daemon{Node: name, Why: "no daemon on this node"}
			}
		}
	}
	out := make([]Daemon, 0, len(byNode))
	for _, one := range byNode {
		out = append(out, one)
	}
	slices.SortFunc(out, func(a, b Daemon) int { return strings.Compare(a.Node, b.Node) })
	return out, nil
}

func notRunning(p *corev1.Pod) string {
	switch {
	case p.DeletionTimestamp != nil:
		return "the pod is being deleted"
	case p.Status.Phase == corev1.PodRunning:
		for _, c := range p.Status.ContainerStatuses {
			if c.State.Running == nil && c.State.Waiting != nil {
				return "the pod is not running: " + c.State.Waiting.Reason
			}
		}
		return ""
	}
	for _, c := range p.Status.ContainerStatuses {
		if c.State.Waiting != nil && c.State.Waiting.Reason != "" {
			return "the pod is not running: " + c.State.Waiting.Reason
		}
	}
	return "the pod is not running: " + string(p.Status.Phase)
}

// Client returns a client of one daemon. close ends its connections.
func (d *Daemons) Client(one Daemon) (client *api.Client, closeAll func()) {
	dial := d.Dial
	if dial == nil {
		dial = d.Cluster.dial
	}
	r := &reach{dial: func(ctx context.Context) (Conn, error) { return dial(ctx, d.namespace(), one.Pod, d.port()) }}
	t := &http.Transport{DialContext: r.context, DisableCompression: true, MaxIdleConnsPerHost: 1}
	// The Host header names what the daemon listens on, and so it must.
	return &api.Client{HTTP: &http.Client{Transport: t}, Base: fmt.Sprintf("http://127.0.0.1:%d", d.port())}, t.CloseIdleConnections
}

// Each asks several daemons at a time, and returns when all have answered: their
// number may be large, and one that hangs must not keep the others. ask is called
// from several goroutines.
func Each(ctx context.Context, daemons []Daemon, atOnce int, ask func(ctx context.Context, i int, d Daemon)) {
	var wg sync.WaitGroup
	tokens := make(chan struct{}, atOnce)
	for i, one := range daemons {
		tokens <- struct{}{}
		wg.Go(func() {
			defer func() { <-tokens }()
			ask(ctx, i, one)
		})
	}
	wg.Wait()
}
