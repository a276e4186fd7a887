package scale

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/tierwall/tierwall/classifier/rule"
)

// heartbeat is a status that the kubelet of a node writes: of no interest.
func (b *bed) heartbeat(i int) {
	nodes := b.cluster.workload.World.Nodes
	n := nodes[(i*37)%len(nodes)].Name
	o := b.cluster.get("nodes", n).(*corev1.Node)
	for c := range o.Status.Conditions {
		o.Status.Conditions[c].LastHeartbeatTime = metav1.Now()
	}
	b.cluster.put("nodes", o)
}

// change makes change i of a busy cluster. Of twenty, nine are statuses of pods
// that mean nothing, four are of pods that come or go, four of nodes, two relabel
// a pod and one edits a policy.
func (b *bed) change(i int) {
	eps := b.cluster.workload.World.Endpoints
	e := &eps[(i*7919+1)%len(eps)]
	key := e.Namespace + "/" + e.Name
	switch k := i % 20; {
	case k < 9:
		if o, ok := b.cluster.get("pods", key).(*corev1.Pod); ok && o != nil {
			o.Status.ContainerStatuses[0].RestartCount++
			b.cluster.put("pods", o)
		}
	case k < 11:
		b.cluster.remove("pods", key)
	case k < 13: // back again
		e = &eps[((i-2)*7919+1)%len(eps)]
		b.cluster.put("pods", podObject(e, i))
	case k < 17:
		b.heartbeat(i)
	case k < 19:
		if o, ok := b.cluster.get("pods", key).(*corev1.Pod); ok && o != nil {
			o.Labels["version"] = fmt.Sprintf("v%d", i%7)
			b.cluster.put("pods", o)
		}
	default:
		b.editPolicy(i)
	}
}

// editPolicy adds an address to what a NetworkPolicy lets in.
func (b *bed) editPolicy(i int) {
	key := fmt.Sprintf("%s/policy-2", b.cluster.namespaces[i%len(b.cluster.namespaces)])
	u, ok := b.cluster.get("networkpolicies.networking.k8s.io", key).(*unstructured.Unstructured)
	if !ok || u == nil {
		return
	}
	ingress, _, err := unstructured.NestedSlice(u.Object, "spec", "ingress")
	if err != nil || len(ingress) == 0 {
		return
	}
	block := map[string]any{"ipBlock": map[string]any{"cidr": fmt.Sprintf("198.51.100.%d/32", i%256)}}
	first := ingress[0].(map[string]any)
	first["from"] = []any{first["from"].([]any)[0], block}
	if unstructured.SetNestedSlice(u.Object, ingress, "spec", "ingress") == nil {
		b.cluster.put("networkpolicies.networking.k8s.io", u)
	}
}

// probes measure lag with pods that are there: a client and a server on the node
// that the daemon polices, and a stranger that comes and goes. Changes take turns
// and go back and forth:
//
//	policy edit   the server's policy lets the client in on one more port
//	relabel       the client gets the label that another port is open to
//	pod           the stranger's Pod is created, deleted
type probes struct {
	bed                      *bed
	client, stranger, server rule.Endpoint
	kinds                    []kind
	byKind                   map[string][]time.Duration
	turn                     int
}

// kind is a sort of change.
type kind struct {
	name    string
	from    prober
	port    uint16
	on, off func()
	open    bool
}

const (
	probeNamespace = "scale-probe"
	portEdit       = 20001
	portRelabel    = 20002
	portPod        = 20003
)

const probePolicy = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {namespace: %s, name: server}
spec:
  podSelector: {matchLabels: {role: server}}
  policyTypes: [Ingress]
  ingress:
  - {from: [{podSelector: {matchLabels: {role: client}}}], ports: [{protocol: UDP, port: %d}]}
  - {from: [{podSelector: {matchLabels: {friend: "yes"}}}], ports: [{protocol: UDP, port: %d}]}
  - {from: [{podSelector: {matchLabels: {role: stranger}}}], ports: [{protocol: UDP, port: %d}]}
`

func (b *bed) setProbes() error {
	p := &b.probes
	p.bed = b
	cidr := b.cluster.workload.World.Nodes[0].PodCIDRs[0].Addr().As4()
	endpoint := func(name string, last byte) (rule.Endpoint, prober, error) {
		cidr[3] = last
		pod, err := b.node.AddPod(name, netip.AddrFrom4(cidr), netip.Addr{})
		if err != nil {
			return rule.Endpoint{}, prober{}, err
		}
		if name == "server" {
			for _, port := range []uint16{portEdit, portRelabel, portPod} {
				echo, err := pod.NS.Echo("udp", netip.AddrPortFrom(pod.Addr4, port))
				if err != nil {
					return rule.Endpoint{}, prober{}, err
				}
				b.closers = append(b.closers, echo.Close)
			}
		}
		return rule.Endpoint{
			Namespace: probeNamespace, Name: name, Labels: map[string]string{"role": name},
			ServiceAccount: "default", Node: b.cluster.workload.World.Node, Addrs: []netip.Addr{pod.Addr4},
		}, inside(pod.NS), nil
	}
	var client, stranger prober
	var err, err2, err3 error
	p.server, _, err = endpoint("server", 250)
	p.client, client, err2 = endpoint("client", 251)
	p.stranger, stranger, err3 = endpoint("stranger", 252)
	if err := errors.Join(err, err2, err3); err != nil {
		return err
	}
	b.cluster.put("namespaces", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: probeNamespace, Labels: map[string]string{"kubernetes.io/metadata.name": probeNamespace},
	}})
	put := func(e *rule.Endpoint, i int) { b.cluster.put("pods", podObject(e, i)) }
	edit := func(port int) {
		if err := b.cluster.apply(fmt.Sprintf(probePolicy, probeNamespace, port, portRelabel, portPod)); err != nil {
			panic(err) // the text is ours
		}
	}
	friend := p.client
	friend.Labels = maps.Clone(friend.Labels)
	friend.Labels["friend"] = "yes"
	p.kinds = []kind{
		{name: "policy edit", from: client, port: portEdit, on: func() { edit(portEdit) }, off: func() { edit(portEdit + 100) }},
		{name: "relabel", from: client, port: portRelabel, on: func() { put(&friend, 2) }, off: func() { put(&p.client, 2) }},
		{name: "pod", from: stranger, port: portPod, on: func() { put(&p.stranger, 3) }, off: func() { b.cluster.remove("pods", probeNamespace+"/stranger") }},
	}
	put(&p.server, 1)
	put(&p.client, 2)
	edit(portEdit + 100)
	return nil
}

// lags makes n changes, one after the other, and returns the lag of each.
func (p *probes) lags(ctx context.Context, n int) ([]time.Duration, error) {
	var all []time.Duration
	p.byKind = map[string][]time.Duration{}
	for range n {
		k := &p.kinds[p.turn%len(p.kinds)]
		p.turn++
		measure, change, word := k.from.allowed, k.on, " allows"
		if k.open {
			measure, change, word = k.from.denied, k.off, " denies"
		}
		lag, err := measure(ctx, netip.AddrPortFrom(p.server.Addrs[0], k.port), func() error {
			change()
			return nil
		})
		k.open = !k.open
		if err != nil {
			return all, fmt.Errorf("change %s%s (number %s): %w", k.name, word, strconv.Itoa(len(all)), err)
		}
		all = append(all, lag)
		p.byKind[k.name+word] = append(p.byKind[k.name+word], lag)
	}
	return all, nil
}

// reset goes back to where nothing is allowed, after changes that were cut short.
func (p *probes) reset(ctx context.Context) error {
	for i := range p.kinds {
		p.kinds[i].off()
		p.kinds[i].open = false
	}
	return sleep(ctx, time.Second)
}

// kindNames returns the names of what byKind has, sorted.
func (p *probes) kindNames() []string { return slices.Sorted(maps.Keys(p.byKind)) }
