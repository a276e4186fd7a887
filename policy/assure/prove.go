package assure

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"go4.org/netipx"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/inventory"
)

// Answers to a claim.
const (
	Proved    = "proved"
	Refuted   = "refuted"
	Undecided = "undecided"
)

// Answer is what a claim came to.
type Answer struct {
	Answer string
	// Why says why a claim is undecided.
	Why string
	// Covers counts what was looked at.
	Covers Cover
	// Witness is a connection that refutes the claim.
	Witness *Witness
	// Assumes says what the answer takes as given, a sentence each.
	Assumes []string
}

// Cover counts kinds: of pods and addresses that policies cannot tell apart, of
// pairs of them, and of ranges of ports with one answer.
type Cover struct {
	From   int `json:"from"`
	To     int `json:"to"`
	Pairs  int `json:"pairs"`
	Ranges int `json:"ranges"`
}

// DefaultLimit is the default of Prove's limit.
const DefaultLimit = 2_000_000

// pairsPerState is how many pairs may be looked at for each combination of labels
// that may be: a pair takes less time.
const pairsPerState = 100

// Prove decides a claim: for all that the rights allow, by a connection that
// refutes it, or not, where more than limit combinations of labels would have to be
// looked at. An error says that the claim means nothing.
//
// Every answer is the classifier's, about pods made for the purpose: one for each
// combination of what policies can ask of a pod. What a witness says was asked
// again, in the world there is with its two pods added.
func (w *World) Prove(c *Claim, limit int) (*Answer, error) {
	p := &prover{world: w, claim: c, limit: limit}
	if err := p.prepare(); err != nil {
		return nil, err
	}
	ans := &Answer{Answer: Proved, Assumes: p.assumes()}
	p.gather()
	err := p.decide(ans)
	var bound *errBound
	if errors.As(err, &bound) {
		*ans = Answer{Answer: Undecided, Why: bound.what, Covers: ans.Covers, Assumes: ans.Assumes}
		return ans, nil
	}
	return ans, err
}

type prover struct {
	world *World
	claim *Claim
	limit int

	from, to claimEnd
	free     []rule.Selector // namespaces in which pods may be created
	allFree  bool
	policies []rule.Selector
	sets     []*rule.Set // the policies, and those with NetworkPolicies that may come
	base     rule.Set

	podsIn      map[string][]*rule.Endpoint
	hostEnds    bool // an end may be a node
	hasHostPods map[string]bool
	nodeOf      map[netip.Addr][]string // nodes by their addresses

	facts      facts
	namespaces []namespaceKind
	states     int
	addresses  *addresses // of the family that is looked at
}

func (p *prover) prepare() error {
	c, w := p.claim, p.world
	err := c.Rights.check(w)
	if err != nil {
		return err
	}
	if p.from, err = w.claimEnd(c.From, c); err != nil {
		return fmt.Errorf("from: %w", err)
	}
	if p.to, err = w.claimEnd(c.To, c); err != nil {
		return fmt.Errorf("to: %w", err)
	}
	if p.from.outside != nil && p.to.outside != nil {
		return errors.New("both ends are addresses outside: no policy decides about them")
	}
	pods := c.Rights.Pods
	if len(pods) == 0 {
		pods = []string{"any"}
	}
	if p.free, err = w.namespacesOf("pods", pods, c); err != nil {
		return err
	}
	p.allFree = slices.ContainsFunc(p.free, func(s rule.Selector) bool { return s.Namespace == "" && len(s.NamespaceLabels) == 0 })
	if p.policies, err = w.namespacesOf("policies", c.Rights.Policies, c); err != nil {
		return err
	}
	p.base = w.Table.Policy()
	p.sets = []*rule.Set{&p.base}
	if len(p.policies) > 0 {
		for _, allow := range []bool{true, false} {
			p.sets = append(p.sets, withNetworkPolicies(&p.base, p.policies, allow))
		}
	}
	p.podsIn, p.hasHostPods, p.nodeOf = map[string][]*rule.Endpoint{}, map[string]bool{}, map[netip.Addr][]string{}
	world := w.Table.World()
	claim := func(a netip.Addr, node string) {
		if !slices.Contains(p.nodeOf[a], node) {
			p.nodeOf[a] = append(p.nodeOf[a], node)
		}
	}
	for i := range world.Nodes {
		for _, a := range world.Nodes[i].Addrs {
			claim(a, world.Nodes[i].Name)
		}
	}
	for i := range world.Endpoints {
		e := &world.Endpoints[i]
		p.podsIn[e.Namespace] = append(p.podsIn[e.Namespace], e)
		if e.HostNetwork {
			p.hasHostPods[e.Namespace] = true
			for _, a := range e.Addrs {
				claim(a, e.Node)
			}
		}
	}
	return nil
}

// withNetworkPolicies adds what NetworkPolicies that somebody may create can do to a
// connection: allow it, or isolate the pod and not allow it.
func withNetworkPolicies(set *rule.Set, where []rule.Selector, allow bool) *rule.Set {
	out := &rule.Set{Rules: slices.Clone(set.Rules), Isolations: slices.Clone(set.Isolations)}
	origin := rule.Origin{Group: "networking.k8s.io", Kind: "NetworkPolicy", Name: MadeUpPolicy, Index: -1}
	for i, s := range where {
		origin.Namespace = s.Namespace
		for _, d := range flow.Directions {
			o := origin
			o.Rule = fmt.Sprintf("%s-%d", d, i)
			if allow {
				o.Index = 0
				out.Rules = append(out.Rules, rule.Rule{
					Direction: d, Order: rule.Order{Band: rule.BandNetworkPolicy}, Subject: s, Peers: []rule.Peer{{Kind: rule.PeerAny}},
					L4: []rule.L4{rule.AnyL4}, Action: rule.Allow, Origin: o,
				})
				continue
			}
			o.Rule, o.Name = "", fmt.Sprintf("%s-%d", o.Name, i)
			out.Isolations = append(out.Isolations, rule.Isolation{Direction: d, Band: rule.BandNetworkPolicy, Subject: s, Origin: o})
		}
	}
	out.Sort()
	return out
}

// assumes says what is taken as given.
func (p *prover) assumes() []string {
	r := &p.claim.Rights
	out := []string{"policies, nodes and Services stay as they are"}
	if len(p.policies) > 0 {
		out[0] = "policies that are there, nodes and Services stay as they are; NetworkPolicies may come in " + strings.Join(r.Policies, ", ")
	}
	switch {
	case p.from.outside != nil && p.to.pods != nil || p.to.outside != nil && p.from.pods != nil || p.from.pods != nil && p.to.pods != nil:
	case r.Namespaces == AnyNamespaces:
		s := "namespaces may come and get any labels"
		if len(r.KeepNamespaceLabels) > 0 {
			s += " but " + strings.Join(r.KeepNamespaceLabels, ", ")
		}
		out = append(out, s)
	default:
		out = append(out, fmt.Sprintf("namespaces are the %d there are, with the labels they have", len(p.world.namespaces)))
	}
	if p.from.bySelector() || p.to.bySelector() {
		s := "pods may come and get any labels, accounts and named ports"
		switch {
		case len(p.free) == 0:
			s = "pods are those there are"
		case !p.allFree:
			s += " in " + strings.Join(r.Pods, ", ")
		}
		if len(r.KeepLabels) > 0 && len(p.free) > 0 {
			s += "; nobody sets the labels " + strings.Join(r.KeepLabels, ", ")
		}
		out = append(out, s)
		if !r.HostNetwork && len(p.free) > 0 {
			out = append(out, "pods in their node's network are those there are")
		}
	}
	return out
}

// decide looks at both families.
func (p *prover) decide(ans *Answer) error {
	if err := p.services(); err != nil {
		return err
	}
	if err := p.namespaceKinds(); err != nil {
		return err
	}
	families, pods := 0, 0
	for _, is4 := range []bool{true, false} {
		if !p.hasFamily(is4) {
			continue
		}
		families++
		n, err := p.family(is4, ans)
		if err != nil || ans.Answer != Proved {
			return err
		}
		pods += n
	}
	switch {
	case families == 0:
		return errors.New("nothing says which addresses pods have: no pod, no node, and no rights.podNetworks")
	case ans.Covers.From == 0:
		return fmt.Errorf("from: %s: there is no such pod, and the rights let none come", p.from.text)
	case ans.Covers.To == 0:
		return fmt.Errorf("to: %s: there is no such pod, and the rights let none come", p.to.text)
	case pods > 0 && ans.Covers.Ranges == 0:
		return fmt.Errorf("no pod of %s has a port named %s for %s", p.to.text, p.claim.Ports.Name, p.claim.Ports.Proto)
	case pods == 0:
		return fmt.Errorf("there are no connections from %s to %s: they are one pod, cannot be there at once, or have no address family in common", p.from.text, p.to.text)
	}
	return nil
}

// hasFamily reports whether pods may have addresses of a family.
func (p *prover) hasFamily(is4 bool) bool {
	of := func(a netip.Addr) bool { return a.Is4() == is4 }
	world := p.world.Table.World()
	for _, n := range p.claim.Rights.PodNetworks {
		if of(n.Addr()) {
			return true
		}
	}
	for i := range world.Endpoints {
		if slices.ContainsFunc(world.Endpoints[i].Addrs, of) {
			return true
		}
	}
	for i := range world.Nodes {
		if slices.ContainsFunc(world.Nodes[i].Addrs, of) || slices.ContainsFunc(world.Nodes[i].PodCIDRs, func(n netip.Prefix) bool { return of(n.Addr()) }) {
			return true
		}
	}
	// Nothing tells: both.
	return len(world.Endpoints) == 0 && len(world.Nodes) == 0 && len(p.claim.Rights.PodNetworks) == 0
}

// family decides for one family. It returns the number of pairs of ends.
func (p *prover) family(is4 bool, ans *Answer) (int, error) {
	var err error
	if p.addresses, err = newAddresses(is4, &p.facts, p.world.Table.World().Sets); err != nil {
		return 0, err
	}
	nets, sure, err := p.networks(is4)
	if err != nil {
		return 0, err
	}
	all, err := p.everywhere(is4)
	if err != nil {
		return 0, err
	}
	if len(nets.Prefixes()) == 0 {
		nets = all
	}
	n, err := p.in(nets, ans)
	if err != nil || ans.Answer != Proved || sure || n == 0 {
		return n, err
	}
	// Does it hold for pods with any address?
	some, err := p.addresses.divide(nets)
	if err != nil {
		return 0, err
	}
	any, err := p.addresses.divide(all)
	if err != nil {
		return 0, err
	}
	if len(any) == len(some) {
		return n, nil
	}
	wide := *ans
	if _, err := p.in(all, &wide); err != nil {
		return 0, err
	}
	if wide.Answer == Refuted {
		a := wide.Witness.Packet.Dst.Netip()
		if !wide.Witness.To.Exists {
			a = wide.Witness.To.Addr
		}
		return 0, &errBound{fmt.Sprintf("it depends on the addresses pods get (%s, say), and no node says which these are: write rights: {podNetworks: [10.0.0.0/8]} with yours", a)}
	}
	ans.Covers = wide.Covers
	return n, nil
}

// in decides for pods with addresses in a set.
func (p *prover) in(nets *netipx.IPSet, ans *Answer) (int, error) {
	g := grid{prover: p}
	if err := g.ends(nets); err != nil {
		return 0, err
	}
	ans.Covers.From, ans.Covers.To = max(ans.Covers.From, len(g.from)), max(ans.Covers.To, len(g.to))
	if len(g.from) == 0 || len(g.to) == 0 {
		return 0, nil
	}
	if n := len(g.from) * len(g.to); n > p.limit*pairsPerState {
		return 0, &errBound{fmt.Sprintf("%d kinds of pods that may connect with %d others are more pairs than %d", len(g.from), len(g.to), p.limit*pairsPerState)}
	}
	if err := g.compile(); err != nil {
		return 0, err
	}
	pairs, found, err := g.look(&ans.Covers)
	if err != nil {
		return 0, err
	}
	if found == nil {
		return pairs, nil
	}
	wit, err := g.witness(found)
	if err != nil {
		return 0, err
	}
	ans.Answer, ans.Witness = Refuted, wit
	return pairs, nil
}

// service is a Service that a rule names, with the leaf of its backends among those
// of the destination.
type service struct {
	*inventory.Service
	set  string
	leaf int // -1: it has no selector, and where it leads to nobody knows
}

// services makes leaves of what selects the backends of Services that rules name: a
// pod that may come can become one.
func (p *prover) services() error {
	f := &p.facts
	f.backends = nil
	for _, set := range f.services {
		for i := range p.world.Snapshot.Services {
			s := &p.world.Snapshot.Services[i]
			if inventory.ServiceSet(s.Namespace, s.Name) != set {
				continue
			}
			b := service{Service: s, set: set, leaf: -1}
			if len(s.Selector) > 0 {
				sel := rule.Selector{Namespace: s.Namespace}
				for _, k := range keys2(s.Selector) {
					sel.PodLabels = append(sel.PodLabels, rule.Requirement{Key: k, Op: rule.In, Values: []string{s.Selector[k]}})
				}
				b.leaf = f.to.add(&sel, false)
			}
			for j := range s.Ports {
				sp := &s.Ports[j]
				if sp.TargetName != "" && !slices.Contains(f.names, sp.TargetName) {
					f.names = append(f.names, sp.TargetName)
				}
				if proto, err := flow.ParseProto(sp.Proto); err == nil && sp.TargetName == "" {
					f.cut(proto, rule.PortRange{First: sp.TargetPort, Last: sp.TargetPort})
				}
			}
			f.backends = append(f.backends, b)
		}
	}
	if q := &p.claim.Ports; q.Name != "" && !slices.Contains(f.names, q.Name) {
		f.names = append(f.names, q.Name)
	} else if q.Name == "" && q.Proto.HasPorts() {
		f.cut(q.Proto, rule.PortRange{First: q.First, Last: q.Last})
	}
	slices.Sort(f.names)
	return nil
}

func keys2(m map[string]string) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}
