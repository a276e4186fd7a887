package workload

import (
	"fmt"
	"math/rand/v2"
	"net/netip"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
)

// Spec says how large a cluster is. Only Pods is required.
type Spec struct {
	Pods       int
	Namespaces int // 0: one for 20 pods up to 10,000 pods, one for 50 above
	Policies   int // NetworkPolicies
	Admin      int // cluster-wide policies of the Admin tier
	Baseline   int // and of the Baseline tier
	PerNode    int // pods on a node; 0: 100
	Domains    int // domain names that Admin policies mention, six addresses each
	DualStack  bool
	OwnLabels  bool // every NetworkPolicy names a label of one namespace's own
	Seed       uint64
}

// The sizes of the benchmarks.
var (
	Small  = Spec{Pods: 1_000, Policies: 200, Admin: 50, Baseline: 4, Domains: 20, Seed: 1}
	Medium = Spec{Pods: 10_000, Policies: 2_000, Admin: 50, Baseline: 4, Domains: 50, Seed: 1}
	Large  = Spec{Pods: 100_000, Policies: 10_000, Admin: 50, Baseline: 4, Domains: 200, Seed: 1}
	// Many is the shape of a published controller scale test.
	Many = Spec{Pods: 100_000, Namespaces: 25_000, Policies: 75_000, OwnLabels: true, Seed: 1}
)

// String is "pods=P/policies=K".
func (s Spec) String() string { return fmt.Sprintf("pods=%d/policies=%d", s.Pods, s.Policies) }

// Cluster is a policy and its world as node 0 sees them.
type Cluster struct {
	Spec  Spec
	Set   rule.Set
	World *rule.World

	namespaces []namespace
	rand       *rand.Rand
}

type namespace struct {
	name   string
	labels map[string]string
}

// The vocabulary.
var (
	apps  = []string{"web", "api", "cache", "queue", "db"}
	tiers = []string{"front", "middle", "middle", "back", "back"}
	envs  = []string{"prod", "prod", "staging", "dev"}
)

const teams = 20

// New makes the cluster of a spec.
func New(s Spec) *Cluster {
	if s.Namespaces == 0 {
		if s.Namespaces = s.Pods / 20; s.Pods > 10_000 {
			s.Namespaces = s.Pods / 50
		}
		s.Namespaces = max(s.Namespaces, 1)
	}
	if s.PerNode == 0 {
		s.PerNode = 100
	}
	c := &Cluster{Spec: s, rand: rand.New(rand.NewPCG(s.Seed, 42)), World: &rule.World{Node: nodeName(0), Sets: map[string][]netip.Prefix{}}}
	for i := range s.Namespaces {
		name := fmt.Sprintf("ns-%05d", i)
		labels := map[string]string{
			"kubernetes.io/metadata.name": name,
			"team":                        team(i),
			"env":                         envs[i%len(envs)],
		}
		c.namespaces = append(c.namespaces, namespace{name, labels})
	}
	nodes := (s.Pods + s.PerNode - 1) / s.PerNode
	for i := range nodes {
		n := rule.Node{
			Name:     nodeName(i),
			Addrs:    []netip.Addr{netip.AddrFrom4([4]byte{172, 16 + byte(i>>16), byte(i >> 8), byte(i)})},
			PodCIDRs: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24)},
		}
		if s.DualStack {
			n.PodCIDRs = append(n.PodCIDRs, netip.PrefixFrom(podAddr6(i, 0), 64))
		}
		c.World.Nodes = append(c.World.Nodes, n)
	}
	perNamespace := (s.Pods + s.Namespaces - 1) / s.Namespaces
	for i := range s.Pods {
		c.World.Endpoints = append(c.World.Endpoints, c.pod(i, i/perNamespace, i%perNamespace, i%nodes, i/nodes))
	}
	c.policies()
	c.Set.Sort()
	return c
}

func nodeName(i int) string { return fmt.Sprintf("node-%05d", i) }
func team(i int) string     { return fmt.Sprintf("team-%02d", i%teams) }

func podAddr6(node, host int) netip.Addr {
	return netip.AddrFrom16([16]byte{0: 0xfd, 3: 0x10, 6: byte(node >> 8), 7: byte(node), 14: byte(host >> 8), 15: byte(host)})
}

// pod makes pod i of the cluster: number n of its namespace, number host of its
// node.
func (c *Cluster) pod(i, ns, n, node, host int) rule.Endpoint {
	app, version := n%len(apps), n/len(apps)%2
	name := apps[app]
	e := rule.Endpoint{
		Namespace: c.namespaces[ns].name, Name: fmt.Sprintf("%s-v%d-%d", name, version, n),
		Labels: map[string]string{
			"app": name, "tier": tiers[app], "version": fmt.Sprint("v", version),
			"part-of": "shop", "pod-template-hash": fmt.Sprintf("%08x", (ns*31+app)*2+version),
		},
		NamespaceLabels: c.namespaces[ns].labels, ServiceAccount: "default", Node: nodeName(node),
		Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, byte(node >> 8), byte(node), byte(host + 2)})},
		Ports: []rule.NamedPort{{Name: "http", Proto: flow.TCP, Port: 8080}, {Name: "metrics", Proto: flow.TCP, Port: uint16(9090 + app)}},
	}
	if i%10 == 0 {
		e.Labels["statefulset.kubernetes.io/pod-name"] = e.Name
	}
	if c.Spec.OwnLabels {
		e.Labels["group"] = fmt.Sprintf("g-%d-%d", ns, n%3)
	}
	if c.Spec.DualStack {
		e.Addrs = append(e.Addrs, podAddr6(node, host+2))
	}
	return e
}

// Pod makes a pod the cluster does not have, number i of them, on a node.
func (c *Cluster) Pod(i, node int) rule.Endpoint {
	ns := i % len(c.namespaces)
	e := c.pod(i+1, ns, i%10, node%len(c.World.Nodes), 0)
	e.Name = fmt.Sprintf("extra-%d", i)
	e.Addrs = []netip.Addr{netip.AddrFrom4([4]byte{10, 250, byte(i >> 8), byte(i)})}
	return e
}
