package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/controller"
	"github.com/tierwall/tierwall/policy/enforcement"
)

// How often a node may write its Lease. All nodes have the same news at the same
// moment: with perNode for each of them the API server gets at most 500 writes a
// second from all together.
const (
	reportSoonest = time.Second
	reportPerNode = 2 * time.Millisecond
	reportRetry   = 5 * time.Second
	requestLimit  = 10 * time.Second
)

// report keeps the node's Lease until ctx ends.
func (c *cluster) report(ctx context.Context, control *controller.Controller) {
	var last enforcement.Report
	var written time.Time
	said := ""
	due := time.After(reportSoonest)
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.attempted:
			if wait := c.reportInterval() - time.Since(written); due == nil || wait < enforcement.Heartbeat/2 {
				due = time.After(max(0, wait))
			}
			continue
		case <-due:
		}
		next := c.enforced(control.Status())
		if sameReport(&next, &last) && time.Since(written) < enforcement.Heartbeat*8/10 {
			due = time.After(jitter(enforcement.Heartbeat*8/10) - time.Since(written))
			continue
		}
		next.Time = time.Now().Truncate(time.Microsecond)
		err := c.write(ctx, &next)
		switch {
		case err == nil:
			last, written, said = next, next.Time, ""
			due = time.After(jitter(enforcement.Heartbeat * 9 / 10))
		case ctx.Err() == nil:
			if said == "" {
				said = err.Error()
				c.log.Warn("what this node enforces cannot be reported", "error", err)
			}
			due = time.After(jitter(reportRetry))
		}
	}
}

// jitter spreads a duration by a tenth in both directions.
func jitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.9 + 0.2*rand.Float64()))
}

// reportInterval is the least time between two writes of this node.
func (c *cluster) reportInterval() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return jitter(max(reportSoonest, time.Duration(c.count)*reportPerNode))
}

// enforced makes the report.
func (c *cluster) enforced(st controller.Status) enforcement.Report {
	r := enforcement.Report{
		Node: c.cfg.Node, Generation: st.Generation, PolicyHash: st.PolicyHash,
		Snapshot: !c.source.Status().Snapshot.IsZero(), Observed: c.source.Observed(), RefusedTotal: len(st.Refused),
	}
	if len(st.Findings.Errors) > 0 {
		r.Stalled = st.Findings.Errors[0].String()
	}
	for _, f := range st.Refused {
		o := enforcement.Refused{
			Object: enforcement.Object{Resource: c.source.ResourceOf(f.Object.Kind), Namespace: f.Object.Namespace, Name: f.Object.Name},
		}
		o.ResourceVersion = r.Observed[o.Resource]
		if f.InForce != nil {
			o.InForce = f.InForce.Generation
		}
		if len(f.Errors) > 0 {
			d := f.Errors[0]
			d.Object = api.Ref{} // the report names it
			o.Message = d.String()
		}
		r.Refused = append(r.Refused, o)
	}
	r.Normalize()
	return r
}

// sameReport compares all but times and versions that only bookmarks moved: those
// travel with the next heartbeat.
func sameReport(a, b *enforcement.Report) bool {
	return a.Generation == b.Generation && a.PolicyHash == b.PolicyHash && a.Snapshot == b.Snapshot && a.Stalled == b.Stalled &&
		a.RefusedTotal == b.RefusedTotal && slices.Equal(a.Refused, b.Refused) && maps.Equal(a.Observed, b.Observed)
}

// write sends a report: one request, two the first time.
func (c *cluster) write(ctx context.Context, r *enforcement.Report) error {
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	lease := &coordinationv1.Lease{}
	if err := enforcement.Encode(r, lease); err != nil {
		return err
	}
	c.mu.Lock()
	uid := c.own.uid
	c.mu.Unlock()
	if uid != "" { // the Lease goes with the Node
		lease.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: r.Node, UID: types.UID(uid)}}
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"labels": lease.Labels, "annotations": lease.Annotations, "ownerReferences": lease.OwnerReferences},
		"spec":     lease.Spec,
	})
	if err != nil {
		return err
	}
	_, err = c.leases.Patch(ctx, lease.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if apierrors.IsNotFound(err) {
		_, err = c.leases.Create(ctx, lease, metav1.CreateOptions{})
	}
	if err != nil {
		return fmt.Errorf("lease %s/%s: %w", c.namespace, lease.Name, err)
	}
	return nil
}

func hasTaint(n *corev1.Node, key string) bool {
	return key != "" && slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == key })
}

// untaint takes the configured taint off this node as often as it is there and
// the node is protected.
func (c *cluster) untaint(ctx context.Context, control *controller.Controller) {
	select {
	case <-ctx.Done():
		return
	case <-control.Ready():
	}
	var again <-chan time.Time
	said := ""
	for {
		c.mu.Lock()
		tainted := c.own.tainted
		c.mu.Unlock()
		again = nil
		if tainted {
			err := c.source.Ready()
			if err == nil {
				err = c.removeTaint(ctx)
			}
			if err != nil {
				again = time.After(jitter(reportSoonest))
				if ctx.Err() == nil && err.Error() != said {
					said = err.Error()
					c.log.Warn("taint stays for now", "taint", c.cfg.Kubernetes.RemoveTaint, "error", err)
				}
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-c.nodeNews:
		case <-again:
		}
	}
}

func (c *cluster) removeTaint(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	key := c.cfg.Kubernetes.RemoveTaint
	n, err := c.nodes.Get(ctx, c.cfg.Node, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("node %s: %w", c.cfg.Node, err)
	}
	if !hasTaint(n, key) {
		c.sawNode(n)
		return nil
	}
	// The list is replaced as a whole: the version keeps us from undoing what
	// somebody else has done to it.
	rest := slices.DeleteFunc(slices.Clone(n.Spec.Taints), func(t corev1.Taint) bool { return t.Key == key })
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": n.ResourceVersion}, "spec": map[string]any{"taints": rest},
	})
	if err != nil {
		return err
	}
	n, err = c.nodes.Patch(ctx, c.cfg.Node, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("node %s: %w", c.cfg.Node, err)
	}
	c.sawNode(n)
	c.log.Info("taint removed, the node is protected", "taint", key, "node", c.cfg.Node)
	return nil
}
