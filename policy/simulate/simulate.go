package simulate

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/api/antrea"
	"github.com/tierwall/tierwall/policy/api/cilium"
	"github.com/tierwall/tierwall/policy/api/cnpv1alpha2"
	"github.com/tierwall/tierwall/policy/api/kepanp"
	"github.com/tierwall/tierwall/policy/api/kepcnp"
	"github.com/tierwall/tierwall/policy/inventory"
)

// Result is the answer for one connection.
type Result struct {
	Verdict classifier.Verdict
	Egress  Outcome
	Ingress Outcome
}

// Outcome is the answer for one direction.
type Outcome struct {
	Verdict classifier.Verdict
	Reason  classifier.Reason
	// Policy and Rule name what decided, when Reason is rule or auth-required: the policy as
	// "<kind>.<group>/<namespace>/<name>", the rule by its own name or as
	// "ingress[0]".
	Policy, Rule string
	// Index is the deciding rule's place among the policy's rules of the
	// direction; -1 where there is none.
	Index int
	// Isolating lists every policy whose isolation dropped the connection, when
	// Reason is isolation, sorted by name.
	Isolating []string
}

// Simulator holds the objects and the pods they talk about. Evaluate fills a
// cache of parsed selectors, so a Simulator is for one goroutine.
type Simulator struct {
	inv      *inventory.Snapshot
	node     string
	nsLabels map[string]labels.Set

	np             []netpol        // sorted by namespace and name
	cluster        []clusterPolicy // sorted by name
	clusterDefault []clusterPolicy // sorted by name
	cilium         []ciliumRule
	upstreamRules  [levels][2][]numberedRule // in the order they are asked, by direction
	antreaPolicies *antreaPolicies
	names          map[string][]netip.Addr // see Resolve

	selectors map[*metav1.LabelSelector]labels.Selector
}

// Annotation that keeps a policy from being enforced: "audit" evaluates and logs
// only. This package decides what is enforced, so such policies are left out.
const stageAnnotation = "tierwall.io/stage"

func staged(o *api.Object) bool { return o.Annotations[stageAnnotation] == "audit" }

// New prepares objects for evaluation. They must be valid, as admission would
// have it; what is invalid gives an unspecified answer. node names the node
// whose pods are policed; "" means all pods are. It fails on an object of a kind
// it does not know. Objects and snapshot are kept and must not change.
func New(objs []*api.Object, inv *inventory.Snapshot, node string) (*Simulator, error) {
	s := &Simulator{
		inv: inv, node: node,
		nsLabels:  map[string]labels.Set{},
		selectors: map[*metav1.LabelSelector]labels.Selector{},
	}
	for _, ns := range inv.Namespaces {
		s.nsLabels[ns.Name] = ns.Labels
	}
	var upstream []upstreamPolicy
	for _, o := range objs {
		if staged(o) {
			continue
		}
		switch v := o.Value.(type) {
		case *networkingv1.NetworkPolicy:
			s.np = append(s.np, netpol{o, &v.Spec})
		case *kepanp.AdminNetworkPolicy:
			if v.Spec.Priority == nil {
				return nil, fmt.Errorf("%s: no priority", o.Ref()) // S0-12
			}
			upstream = append(upstream, s.newKEP(o, &v.Spec))
		case *cnpv1alpha2.ClusterNetworkPolicy:
			upstream = append(upstream, s.newCNP(o, &v.Spec))
		case *kepcnp.ClusterNetworkPolicy:
			s.cluster = append(s.cluster, newCluster(o, &v.Spec))
		case *kepcnp.ClusterDefaultNetworkPolicy:
			s.clusterDefault = append(s.clusterDefault, newClusterDefault(o, &v.Spec))
		case *cilium.Policy:
			s.cilium = append(s.cilium, s.newCilium(o, v)...)
		case *antrea.ClusterNetworkPolicy, *antrea.NetworkPolicy, *antrea.Tier, *antrea.ClusterGroup, *antrea.Group:
			// All together below: policies name the others.
		default:
			p, ok := s.newReleased(o)
			if !ok {
				return nil, fmt.Errorf("%s: %T cannot be simulated", o.Ref(), o.Value)
			}
			upstream = append(upstream, p)
		}
	}
	var err error
	if s.antreaPolicies, err = newAntrea(objs); err != nil {
		return nil, err
	}
	for l := range levels {
		for _, d := range flow.Directions {
			s.upstreamRules[l][d] = upstreamOrder(upstream, l, d)
		}
	}
	slices.SortFunc(s.np, func(a, b netpol) int {
		return cmp.Or(strings.Compare(a.obj.Namespace, b.obj.Namespace), strings.Compare(a.obj.Name, b.obj.Name))
	})
	sortClusterPolicies(s.cluster)
	sortClusterPolicies(s.clusterDefault)
	return s, nil
}

// Evaluate decides a connection, given in the direction it is opened. Addresses
// are those after the Service proxy has chosen a backend.
func (s *Simulator) Evaluate(k flow.Key) Result { return s.EvaluateVia(k, flow.Service{}) }

// EvaluateVia decides a connection that was opened to via, of which the Service
// proxy made k. Zero: it was opened to k.
func (s *Simulator) EvaluateVia(k flow.Key, via flow.Service) Result {
	src, dst := s.lookup(k.Src.Netip()), s.lookup(k.Dst.Netip())
	c := connection{key: k, src: src, dst: dst, openedTo: dst.addr, openedPort: k.DstPort}
	if !via.IsZero() {
		c.openedTo, c.openedPort = via.Addr.Netip(), via.Port
	}
	r := Result{Egress: s.side(&c, flow.Egress), Ingress: s.side(&c, flow.Ingress)}
	// A connection needs both sides' consent (S0-11).
	r.Verdict = r.Egress.Verdict
	if r.Verdict == classifier.Allow {
		r.Verdict = r.Ingress.Verdict
	}
	return r
}

// party is one end of a connection: a pod on the pod network, a node, or (both
// nil) something else, inside a pod network if unknown.
type party struct {
	addr    netip.Addr
	pod     *inventory.Pod
	node    []string
	device  bool // of a node besides its own addresses
	unknown bool // inside a node's pod CIDR, no pod's and no node's
	guess   bool // how doubts about an unknown address are resolved, see connection.ask
}

func (s *Simulator) lookup(a netip.Addr) party {
	p := party{addr: a}
	for i := range s.inv.Pods {
		if pod := &s.inv.Pods[i]; slices.Contains(pod.IPs, a) {
			if !pod.HostNetwork {
				return party{addr: a, pod: pod}
			}
			p.node = append(p.node, pod.Node)
		}
	}
	inPodCIDR := false
	for _, n := range s.inv.Nodes {
		if slices.Contains(n.Addrs, a) {
			p.node = append(p.node, n.Name)
		}
		p.device = p.device || slices.Contains(n.DeviceAddrs, a)
		for _, c := range n.PodCIDRs {
			inPodCIDR = inPodCIDR || c.Contains(a)
		}
	}
	p.unknown = p.node == nil && inPodCIDR
	return p
}

// connection is a key with both ends looked up.
type connection struct {
	key      flow.Key
	src, dst party
	// Where the source sent it, before the Service proxy chose a backend.
	openedTo   netip.Addr
	openedPort uint16
}

// peer returns the other side as a subject of direction d sees it.
func (c *connection) peer(d flow.Direction) *party {
	if d == flow.Egress {
		return &c.dst
	}
	return &c.src
}

func (s *Simulator) side(c *connection, d flow.Direction) Outcome {
	subject := c.dst.pod
	if d == flow.Egress {
		subject = c.src.pod
	}
	switch {
	case subject == nil || s.node != "" && subject.Node != s.node:
		return allowed(classifier.ReasonNotLocal)
	case c.key.Src == c.key.Dst:
		return allowed(classifier.ReasonSelf)
	case d == flow.Ingress && subject.Node != "" && slices.Contains(c.src.node, subject.Node):
		return allowed(classifier.ReasonNodeLocal)
	}
	o, done, passed := s.antrea(c, d, subject, antreaUpper)
	if done {
		return o
	}
	if o, done = s.upstream(c, d, subject, adminLevel); done {
		return o
	}
	if o, done = s.clusterPolicies(c, d, subject); done {
		return o
	}
	if !passed {
		if o, done, _ = s.antrea(c, d, subject, antreaLower); done {
			return o
		}
	}
	if o, done = s.normalPolicies(c, d, subject); done {
		return o
	}
	if o, done, _ = s.antrea(c, d, subject, antreaBaseline); done {
		return o
	}
	if o, done = s.upstream(c, d, subject, baselineLevel); done {
		return o
	}
	if o, done = s.clusterDefaults(c, d, subject); done {
		return o
	}
	return allowed(classifier.ReasonDefault)
}

func allowed(why classifier.Reason) Outcome {
	return Outcome{Verdict: classifier.Allow, Reason: why, Index: -1}
}

// decided is the outcome a rule gives.
func decided(v classifier.Verdict, o *api.Object, d flow.Direction, name string, index int) Outcome {
	if name == "" {
		name = d.String() + "[" + strconv.Itoa(index) + "]"
	}
	return Outcome{Verdict: v, Reason: classifier.ReasonRule, Policy: ref(o), Rule: name, Index: index}
}

// ref names a policy as the CLI does.
func ref(o *api.Object) string {
	return strings.ToLower(o.Kind.Kind) + "." + o.Kind.Group + "/" + o.Namespace + "/" + o.Name
}

// selects applies a Kubernetes label selector. An absent selector selects
// nothing, an empty one everything (LabelSelectorAsSelector).
func (s *Simulator) selects(sel *metav1.LabelSelector, set labels.Set) bool {
	parsed, ok := s.selectors[sel]
	if !ok {
		var err error
		if parsed, err = metav1.LabelSelectorAsSelector(sel); err != nil {
			parsed = labels.Nothing()
		}
		s.selectors[sel] = parsed
	}
	return parsed.Matches(set)
}
