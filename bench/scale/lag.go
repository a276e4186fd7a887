package scale

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	networkingv1client "k8s.io/client-go/kubernetes/typed/networking/v1"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/tierwall/tierwall/bench/dataplane"
)

// LagConfig says what Lag measures.
type LagConfig struct {
	Kubeconfig string
	// Namespace is made, and removed at the end. It must not exist.
	Namespace string
	// Image is one of agnhost, whose netexec answers datagrams.
	Image    string
	Node     string // for the pod; "" = any
	Changes  int
	Command  string
	Progress io.Writer
}

// lagPort is the port of the pod that the measurement talks to.
const lagPort = 20001

// Lag measures, in a real cluster, how long after a request to the API server the
// packet is decided that it is about. A pod is denied everything by a policy;
// changes let it be reached and deny it again, in turns by an edit of the policy
// and by a label of the pod. The time includes the request to the API server.
//
// The caller has to be where pods are reachable and policies apply to it: not on
// the pod's own node, which may always reach its pods.
func Lag(ctx context.Context, c LagConfig) (rep *Report, err error) {
	began := time.Now()
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("API server: %w", err)
	}
	config.QPS, config.Burst = 200, 400
	core, err := corev1client.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("API server: %w", err)
	}
	networking, err := networkingv1client.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("API server: %w", err)
	}
	rep = &Report{Machine: dataplane.ThisMachine(), Command: c.Command}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: c.Namespace}}
	if _, err := core.Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
		return nil, fmt.Errorf("namespace for the measurement: %w", err)
	}
	defer func() {
		// Also when interrupted.
		err = errors.Join(err, core.Namespaces().Delete(context.WithoutCancel(ctx), c.Namespace, metav1.DeleteOptions{}))
	}()
	l := &lagRun{cfg: c, pods: core.Pods(c.Namespace), policies: networking.NetworkPolicies(c.Namespace)}
	if err := l.setUp(ctx); err != nil {
		return nil, err
	}
	var all []time.Duration
	byName := map[string][]time.Duration{}
	names := make([]string, len(l.changes()))
	for i := range c.Changes {
		k := l.changes()[i%len(names)]
		names[i%len(names)] = k.name
		measure := l.prober.denied
		if k.allows {
			measure = l.prober.allowed
		}
		lag, err := measure(ctx, l.at, func() error {
			began := time.Now()
			err := k.do(ctx)
			l.requests = append(l.requests, time.Since(began))
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("change %d, %s: %w", i+1, k.name, err)
		}
		all = append(all, lag)
		byName[k.name] = append(byName[k.name], lag)
		if (i+1)%100 == 0 && c.Progress != nil {
			fmt.Fprintf(c.Progress, "%d changes\n", i+1)
		}
	}
	rep.lags("lag", all, wantLag)
	for _, n := range names {
		rep.lags(n, byName[n], 0)
	}
	rep.lags("request", l.requests, 0)
	rep.Machine.End()
	rep.Seconds = time.Since(began).Seconds()
	return rep, nil
}

type lagRun struct {
	cfg      LagConfig
	pods     corev1client.PodInterface
	policies networkingv1client.NetworkPolicyInterface
	at       netip.AddrPort // of the pod
	prober   prober
	requests []time.Duration
}

type lagChange struct {
	name   string
	allows bool
	do     func(context.Context) error
}

func (l *lagRun) changes() []lagChange {
	return []lagChange{
		{"policy_edit_allows", true, func(ctx context.Context) error { return l.policy(ctx, true) }},
		{"policy_edit_denies", false, func(ctx context.Context) error { return l.policy(ctx, false) }},
		{"relabel_allows", true, func(ctx context.Context) error { return l.label(ctx, "no") }},
		{"relabel_denies", false, func(ctx context.Context) error { return l.label(ctx, "yes") }},
	}
}

// lock isolates pods labelled locked, and lets the measurement in or not.
func lock(open bool) *networkingv1.NetworkPolicy {
	p := &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "lock"},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"locked": "yes"}},
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
		},
	}
	if open {
		p.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{Ports: []networkingv1.NetworkPolicyPort{{
			Protocol: ptr(corev1.ProtocolUDP), Port: ptr(intstr.FromInt32(lagPort)),
		}}}}
	}
	return p
}

func (l *lagRun) policy(ctx context.Context, open bool) error {
	_, err := l.policies.Update(ctx, lock(open), metav1.UpdateOptions{})
	return err
}

func (l *lagRun) label(ctx context.Context, locked string) error {
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{"locked":%q}}}`, locked)
	_, err := l.pods.Patch(ctx, "server", types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// setUp starts the pod and locks it.
func (l *lagRun) setUp(ctx context.Context) error {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "server", Labels: map[string]string{"locked": "yes"}},
		Spec: corev1.PodSpec{
			NodeName: l.cfg.Node, TerminationGracePeriodSeconds: ptr(int64(0)), AutomountServiceAccountToken: ptr(false),
			Containers: []corev1.Container{{
				Name: "server", Image: l.cfg.Image, ImagePullPolicy: corev1.PullIfNotPresent,
				Args: []string{"netexec", "--http-port=20000", "--udp-port=" + strconv.Itoa(lagPort)},
			}},
		},
	}
	if _, err := l.policies.Create(ctx, lock(false), metav1.CreateOptions{}); err != nil {
		return err
	}
	// The account of a new namespace comes a moment after it.
	deadline := time.Now().Add(time.Minute)
	for {
		_, err := l.pods.Create(ctx, pod, metav1.CreateOptions{})
		if err == nil {
			break
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			return fmt.Errorf("create the pod: %w", err)
		}
		time.Sleep(200 * time.Millisecond)
	}
	for {
		p, err := l.pods.Get(ctx, "server", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if p.Status.Phase == corev1.PodRunning && p.Status.PodIP != "" {
			a, err := netip.ParseAddr(p.Status.PodIP)
			if err != nil {
				return err
			}
			l.at = netip.AddrPortFrom(a, lagPort)
			break
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the pod does not run: it is %s", p.Status.Phase)
		}
		time.Sleep(200 * time.Millisecond)
	}
	time.Sleep(2 * time.Second) // until it listens and is known everywhere
	l.prober = prober{
		dial: func(dst netip.AddrPort) (net.Conn, error) { return net.Dial("udp", dst.String()) },
		// What agnhost's netexec takes: "echo TEXT", answered with TEXT.
		encode: func(n uint64) []byte { return fmt.Appendf(nil, "echo %d", n) },
		decode: func(b []byte) (uint64, bool) {
			n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
			return n, err == nil
		},
	}
	return nil
}
