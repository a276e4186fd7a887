package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/klog/v2"

	"github.com/tierwall/tierwall/cmd/internal/admit"
	"github.com/tierwall/tierwall/policy/controller"
	"github.com/tierwall/tierwall/policy/lower"
	"github.com/tierwall/tierwall/policy/source/kube"
)

// KubernetesConfig says how policies and inventory are read from an API server.
type KubernetesConfig struct {
	Enabled        bool            `json:"enabled"`
	Kubeconfig     string          `json:"kubeconfig"`     // "" = in the cluster
	Namespace      string          `json:"namespace"`      // of the Lease; "" = the pod's
	Snapshot       string          `json:"snapshot"`       // file; "" = none
	SnapshotMaxAge metav1.Duration `json:"snapshotMaxAge"` // older ones are not used
	SnapshotWait   metav1.Duration `json:"snapshotWait"`   // for the API server, at the start
	RemoveTaint    string          `json:"removeTaint"`    // key; "" = none
	Report         bool            `json:"report"`         // keep a Lease
}

func (c *KubernetesConfig) validate() (errs []error) {
	if c.SnapshotMaxAge.Duration <= 0 {
		errs = append(errs, errors.New("kubernetes.snapshotMaxAge: want a positive duration, such as 24h"))
	}
	if c.SnapshotWait.Duration <= 0 {
		errs = append(errs, errors.New("kubernetes.snapshotWait: want a positive duration, such as 10s"))
	}
	if c.RemoveTaint != "" {
		if why := validation.IsQualifiedName(c.RemoveTaint); len(why) > 0 {
			errs = append(errs, fmt.Errorf("kubernetes.removeTaint: %q is not the key of a taint: %s", c.RemoveTaint, why[0]))
		}
	}
	return errs
}

// inClusterNamespace is where a pod finds the name of its namespace.
const inClusterNamespace = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// namespace returns the namespace of the daemon's Lease.
func (c *KubernetesConfig) namespace() (string, error) {
	if c.Namespace != "" {
		return c.Namespace, nil
	}
	if n := os.Getenv("POD_NAMESPACE"); n != "" {
		return n, nil
	}
	b, err := os.ReadFile(inClusterNamespace)
	if err != nil {
		return "", fmt.Errorf("kubernetes.namespace: not given, POD_NAMESPACE is not set, and %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

// cluster is the daemon's side of an API server.
type cluster struct {
	cfg       *Config
	log       *slog.Logger
	source    *kube.Source
	leases    coordinationv1client.LeaseInterface
	nodes     corev1client.NodeInterface
	namespace string

	attempted chan struct{} // capacity 1: the controller has tried something
	nodeNews  chan struct{} // capacity 1: own is new
	read      chan struct{} // capacity 1: much has been read at once

	mu    sync.Mutex
	own   ownNode
	count int // nodes in the cluster
}

// ownNode is what the daemon wants to know of its Node object.
type ownNode struct {
	uid     string
	tainted bool
}

// userAgent is the daemon's name in the API server's logs and flow schemas.
func userAgent() string { return "tierwalld/" + version() }

func newCluster(cfg *Config, log *slog.Logger) (*cluster, error) {
	k := &cfg.Kubernetes
	config, err := kube.ForDaemon(k.Kubeconfig, userAgent())
	if err != nil {
		return nil, err
	}
	// What client-go tells about requests that end is in the source's own words, too.
	klog.SetSlogLogger(slog.New(warnings{log.With("component", "client-go").Handler()}))
	if os.Getenv("GOGC") == "" {
		// A cluster's inventory stays, and little garbage comes: collecting earlier
		// costs next to no time and a quarter less memory. Packets allocate nothing.
		debug.SetGCPercent(50)
	}
	c := &cluster{cfg: cfg, log: log, attempted: make(chan struct{}, 1), nodeNews: make(chan struct{}, 1), read: make(chan struct{}, 1)}
	if k.Report {
		if c.namespace, err = k.namespace(); err != nil {
			return nil, err
		}
	}
	leases, err := coordinationv1client.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("API server: %w", err)
	}
	core, err := corev1client.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("API server: %w", err)
	}
	c.leases, c.nodes = leases.Leases(c.namespace), core.Nodes()
	c.source, err = kube.New(kube.Config{
		REST: config, Kinds: lower.Kinds(), OnNode: c.sawNode, OnList: c.sawList, Logger: log,
		Snapshot: k.Snapshot, SnapshotMaxAge: k.SnapshotMaxAge.Duration, SnapshotWait: k.SnapshotWait.Duration,
	})
	return c, err
}

// sawNode keeps what is of interest of this node's own Node.
func (c *cluster) sawNode(n *corev1.Node) {
	if n.Name != c.cfg.Node {
		return
	}
	own := ownNode{uid: string(n.UID), tainted: hasTaint(n, c.cfg.Kubernetes.RemoveTaint)}
	c.mu.Lock()
	news := c.own != own
	c.own = own
	c.mu.Unlock()
	if news {
		notify(c.nodeNews)
	}
}

// sawList notes that reading has left garbage worth giving back.
func (c *cluster) sawList(_ string, objects int) {
	if objects > releaseFrom {
		notify(c.read)
	}
}

// notify leaves a value in a channel of capacity 1 unless one is waiting.
func notify(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// after is the controller's hook.
func (c *cluster) after(a controller.Attempt) {
	if a.InForce {
		c.source.InForce(a.Objects, a.World)
		c.mu.Lock()
		c.count = len(a.World.Nodes)
		c.mu.Unlock()
	}
	notify(c.attempted)
}

// admit gives a pod of this node its addresses, on the word of tierwall-cni, and returns
// when policy is in force for them.
func (c *cluster) admit(ctx context.Context, r admit.Request) error {
	if len(r.Addresses) == 0 {
		c.source.Withdraw(r.Namespace, r.Name, r.Sandbox)
		return nil
	}
	inForce, err := c.source.Announce(r.Namespace, r.Name, r.Sandbox, r.Addresses)
	if err != nil {
		return err
	}
	select {
	case <-inForce:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("policy is not in force for it yet: %w", ctx.Err())
	}
}

// run reads the cluster and answers to it until ctx ends.
func (c *cluster) run(ctx context.Context, control *controller.Controller) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	if c.cfg.Kubernetes.Report {
		wg.Go(func() { c.report(ctx, control) })
	}
	if c.cfg.Kubernetes.RemoveTaint != "" {
		wg.Go(func() { c.untaint(ctx, control) })
	}
	wg.Go(func() { c.release(ctx, control) })
	return c.source.Run(ctx)
}

// release gives memory back to the system after much was read, until ctx ends.
// Reading everything leaves as much garbage as there is to keep, and at rest
// nothing makes the collector look for minutes.
func (c *cluster) release(ctx context.Context, control *controller.Controller) {
	select {
	case <-ctx.Done():
		return
	case <-control.Ready():
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(releaseAfter):
		}
		select {
		case <-c.read: // before now
		default:
		}
		debug.FreeOSMemory()
		select {
		case <-ctx.Done():
			return
		case <-c.read:
		}
	}
}

const (
	// releaseAfter is when the first table, and the snapshot of it, have been made.
	releaseAfter = 8 * time.Second
	// releaseFrom is how many objects read at once are much: a few megabytes.
	releaseFrom = 1000
)

// warnings is a handler without what is less than a warning.
type warnings struct{ slog.Handler }

func (h warnings) Enabled(ctx context.Context, l slog.Level) bool {
	return l >= slog.LevelWarn && h.Handler.Enabled(ctx, l)
}

func (h warnings) WithAttrs(attrs []slog.Attr) slog.Handler {
	return warnings{h.Handler.WithAttrs(attrs)}
}

func (h warnings) WithGroup(name string) slog.Handler { return warnings{h.Handler.WithGroup(name)} }
