package controller

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/diag"
	"github.com/tierwall/tierwall/policy/internal/fixture"
	"github.com/tierwall/tierwall/policy/inventory"
)

// town is a cluster in which anything happens. It is a Follower; whole is the same
// source for a controller that looks at everything each time.
type town struct {
	t *testing.T
	r *rand.Rand

	pods       inventory.PodEditor
	owner      map[netip.Addr][2]string // of addresses of pods that are not on the host network
	namespaces []inventory.Namespace
	nodes      []inventory.Node
	services   []inventory.Service
	policies   map[string]*api.Object // by place in the list
	texts      map[string]*api.Object // an object read once stays the same pointer
	view       *inventory.View
	objs       []*api.Object
	learnt     []netip.Prefix
	mark       uint64
}

type whole struct{ *town }

func (w whole) Load(context.Context) ([]*api.Object, *inventory.Snapshot, diag.List) {
	return w.objs, w.view.Snapshot(), diag.List{}
}
func (w whole) Follow(int) {} // hides that of the town: whole is no Follower

func (w *town) Changes() <-chan struct{} { return nil }

func (w *town) Load(context.Context) ([]*api.Object, *inventory.Snapshot, diag.List) {
	panic("a Follower is not asked to Load")
}

func (w *town) Follow(context.Context) ([]*api.Object, *inventory.View, diag.List) {
	return w.objs, w.view, diag.List{}
}

func newTown(t *testing.T, r *rand.Rand) *town {
	w := &town{t: t, r: r, owner: map[netip.Addr][2]string{}, policies: map[string]*api.Object{}, texts: map[string]*api.Object{}}
	inv := fixture.MustWorld(t, "namespace x team=a\nnamespace y team=b\nnode n1 192.0.2.1\nnode n2 192.0.2.2").Inventory
	w.namespaces, w.nodes = inv.Namespaces, inv.Nodes
	for range 12 {
		w.pod()
	}
	for range 6 {
		w.policy()
	}
	w.settle()
	return w
}

// settle makes what happened be seen.
func (w *town) settle() {
	if v := inventory.NewView(w.namespaces, w.nodes, w.services, w.pods.Pods()); w.view == nil || w.r.IntN(2) == 0 {
		w.view = v
	} else if pods, ok := v.Since(w.view); !ok || len(pods) > 0 {
		w.view = v
	}
	var objs []*api.Object
	for _, k := range slices.Sorted(maps.Keys(w.policies)) {
		objs = append(objs, w.policies[k])
	}
	w.objs = objs
}

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

// pod makes a pod come, change or go.
func (w *town) pod() {
	r := w.r
	ns, name := pick(r, "x", "y"), fmt.Sprint("p", r.IntN(12))
	if old := w.pods.Get(ns, name); old != nil {
		for _, a := range old.IPs {
			if w.owner[a] == [2]string{ns, name} {
				delete(w.owner, a)
			}
		}
		if r.IntN(3) == 0 {
			w.pods.Delete(ns, name)
			return
		}
	}
	p := inventory.Pod{
		Namespace: ns, Name: name, Node: pick(r, "n1", "n1", "n2"), ServiceAccount: pick(r, "default", "sa"),
		Labels: map[string]string{"app": pick(r, "a", "b", "c"), "tier": pick(r, "front", "back")},
	}
	if r.IntN(2) == 0 {
		p.Ports = []rule.NamedPort{{Name: "web", Proto: flow.TCP, Port: pick[uint16](r, 80, 8080)}}
	}
	switch r.IntN(8) {
	case 0: // no address yet
	case 1:
		p.HostNetwork = true
		p.IPs = []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(1 + r.IntN(4))})}
	default:
		a := netip.AddrFrom4([4]byte{10, 0, 0, byte(r.IntN(16))})
		if _, taken := w.owner[a]; !taken {
			w.owner[a] = [2]string{ns, name}
			p.IPs = []netip.Addr{a}
		}
	}
	w.pods.Put(p)
}

// The policies that come and go; %s is a label, %d a port. The last ones are
// refused, alone or by what others are there.
var templates = []string{
	`apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
spec: {podSelector: {matchLabels: {app: %s}}, ingress: [{from: [{podSelector: {matchLabels: {tier: front}}}], ports: [{port: %d}]}]}`,
	`apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
spec: {podSelector: {matchLabels: {app: %s}}, policyTypes: [Ingress, Egress], egress: [{ports: [{port: web}]}, {to: [{ipBlock: {cidr: 10.0.0.0/29, except: [10.0.0.%d/32]}}]}]}`,
	`apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
spec: {podSelector: {matchLabels: {app: %s}}, ingress: [{from: [{namespaceSelector: {matchLabels: {team: a}}}], ports: [{port: %d, protocol: UDP}]}]}`,
	`apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
spec: {endpointSelector: {matchLabels: {app: %s}}, egress: [{toFQDNs: [{matchName: a.example}], toPorts: [{ports: [{port: "%d", protocol: TCP}]}]}]}`,
	`apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
spec: {endpointSelector: {matchLabels: {app: %s}}, egress: [{toCIDR: [192.0.2.0/24], toPorts: [{ports: [{port: "%d", protocol: TCP}]}]}]}`,
	`apiVersion: crd.antrea.io/v1beta1
kind: NetworkPolicy
spec: {priority: 5, tier: t1, appliedTo: [{podSelector: {matchLabels: {app: %s}}}], ingress: [{action: Drop, from: [{podSelector: {}}], ports: [{port: %d, protocol: TCP}]}]}`,
	`apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
spec: {tier: Admin, priority: 7, subject: {namespaces: {matchLabels: {team: %s}}}, ingress: [{action: Accept, from: [{namespaces: {}}], protocols: [{tcp: {destinationPort: {number: %d}}}]}]}`,
	`apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
spec: {podSelector: {matchLabels: {app: %s}}, ingress: [{from: [{}], ports: [{port: %d}]}]}`,
}

// policy makes an object come, change or go.
func (w *town) policy() {
	r := w.r
	if r.IntN(40) == 0 { // what Antrea's policies need, or two that are wrong together
		text := "apiVersion: crd.antrea.io/v1beta1\nkind: Tier\nmetadata: {name: %s}\nspec: {priority: 10}"
		w.toggle("tier-"+pick(r, "t1", "t1", "t2"), func(key string) string { return fmt.Sprintf(text, key[5:]) })
		return
	}
	n := r.IntN(len(templates))
	if r.IntN(6) > 0 {
		n = r.IntN(5)
	}
	key := fmt.Sprintf("%02d-%d", n, r.IntN(5))
	w.toggle(key, func(string) string {
		head, spec, _ := strings.Cut(templates[n], "spec:")
		metadata := fmt.Sprintf("metadata: {name: o%s, namespace: %s", key, pick(r, "x", "x", "x", "y"))
		if strings.Contains(head, "Cluster") {
			metadata = "metadata: {name: o" + key
		}
		if r.IntN(3) == 0 {
			metadata += `, annotations: {tierwall.io/` + pick(r, "audit: 'true'", "stage: audit") + `}`
		}
		return head + metadata + "}\nspec:" + fmt.Sprintf(spec, pick(r, "a", "b", "c"), pick(r, 1, 4, 80))
	})
}

func (w *town) toggle(key string, text func(string) string) {
	if w.policies[key] != nil && w.r.IntN(3) == 0 {
		delete(w.policies, key)
		return
	}
	y := text(key)
	if w.texts[y] == nil {
		w.texts[y] = fixture.MustObjects(w.t, y)[0]
	}
	w.policies[key] = w.texts[y]
}

// rest changes something that is neither pod nor policy.
func (w *town) rest() {
	r := w.r
	switch r.IntN(5) {
	case 0:
		w.namespaces = slices.Clone(w.namespaces)
		n := &w.namespaces[r.IntN(2)]
		n.Labels = maps.Clone(n.Labels)
		n.Labels["team"] = pick(r, "a", "b")
	case 1:
		w.namespaces = slices.Clone(w.namespaces)
		w.namespaces[r.IntN(2)].Annotations = map[string]string{"networkpolicy.antrea.io/enable-logging": pick(r, "true", "false", "maybe")}
	case 2:
		w.nodes = slices.Clone(w.nodes)
		w.nodes[1].Addrs = []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(2 + r.IntN(3))})}
	case 3: // the node policed may not be there
		w.nodes = slices.Clone(w.nodes)
		w.nodes[0].Name = pick(r, "n1", "n0")
	case 4:
		w.services = []inventory.Service{{Namespace: "x", Name: "s", ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, byte(r.IntN(3))})}}}
	}
}

func (w *town) Fill(sets map[string][]netip.Prefix) uint64 {
	for name := range sets {
		if inventory.LearntSet(name) {
			sets[name] = slices.Clone(w.learnt)
		}
	}
	return w.mark
}
func (w *town) InForce(uint64)        {}
func (w *town) News() <-chan struct{} { return nil }

// learn is an answer from DNS, with addresses of pods among them.
func (w *town) learn() {
	w.learnt = nil
	for _, net := range [][3]byte{{10, 0, 0}, {192, 0, 2}} {
		for i := range 16 {
			if w.r.IntN(3) == 0 {
				w.learnt = append(w.learnt, netip.PrefixFrom(netip.AddrFrom4([4]byte{net[0], net[1], net[2], byte(i)}), 32))
			}
		}
	}
	w.mark++
}

// last keeps the last table, and fails at times.
type last struct {
	table *classifier.Table
	fail  bool
}

func (l *last) Publish(t *classifier.Table, _ *classifier.Report) error {
	if l.fail {
		return fmt.Errorf("busy")
	}
	l.table = t
	return nil
}

// answer is what a table says of a connection, in words that compare across tables.
func answer(t *classifier.Table, k flow.Key) string {
	d := t.Lookup(k)
	out := fmt.Sprint(d.Verdict, d.Audit)
	for _, id := range []classifier.OutcomeID{d.Egress, d.Ingress} {
		o := t.Outcome(id)
		if o == nil {
			continue
		}
		out += fmt.Sprint(" ", o.Verdict, o.Reason, o.Band, o.HasStaged, o.Staged, o.AuditIsolation)
		for _, r := range append([]classifier.RuleID{o.Rule, o.StagedRule}, o.Audit...) {
			if r != classifier.NoRule {
				out += fmt.Sprintf(" %+v", t.Rule(r).Origin)
			}
		}
		for _, i := range o.Isolations {
			out += fmt.Sprintf(" %+v", t.Isolation(i).Origin)
		}
	}
	src, dst := t.UnknownLocal(k)
	return out + fmt.Sprint(src, dst)
}

func status(c *Controller) string {
	s := c.Status()
	if s.Generation == 0 {
		s.PolicyHash = ""
	}
	var refused []string
	for _, r := range s.Refused {
		refused = append(refused, fmt.Sprint(r.Object.Ref(), r.InForce, r.Errors))
	}
	return fmt.Sprint(s.PolicyHash, s.Objects, s.Rules, s.Isolations, s.Pods, s.Findings.Errors, refused)
}

// TestStepsEqualLoads runs two controllers over the same events: one that follows,
// one that looks at everything each time. Their tables must decide alike, by the
// same rule, and their status must be the same.
func TestStepsEqualLoads(t *testing.T) {
	seeds := uint64(16)
	if testing.Short() {
		seeds = 8
	}
	steps, all, tables := 0, 0, 0
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 91))
		w := newTown(t, r)
		var got, want last
		node := pick(r, "", "n1", "n1")
		make := func(src Source, p *last) *Controller {
			c, err := New(Config{Source: src, Publisher: p, Node: node, Isolate: true, Learner: w, Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		follower, reference := make(w, &got), make(whole{w}, &want)
		wholes := 0
		follower.cfg.Compile = func(s rule.Set, w *rule.World, o classifier.Options) (*classifier.Table, *classifier.Report, error) {
			wholes++
			return follower.compiler.Compile(s, w, o)
		}
		for event := range 120 {
			for range 1 + r.IntN(3) {
				switch n := r.IntN(20); {
				case n < 10:
					w.pod()
				case n < 18:
					w.policy()
				case n < 19:
					w.rest()
				default:
					w.learn()
					follower.refill()
					reference.refill()
				}
			}
			w.settle()
			before, wholeBefore := got.table, wholes
			if got.fail = r.IntN(30) == 0; got.fail {
				_ = follower.update(t.Context()) // the next one makes up for it
				got.fail = false
			}
			if err := follower.update(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := reference.update(t.Context()); err != nil {
				t.Fatal(err)
			}
			at := fmt.Sprintf("seed %d, event %d", seed, event)
			all++
			if got.table != before {
				tables++
				if wholes == wholeBefore {
					steps++
				}
			}
			if a, b := status(follower), status(reference); a != b {
				t.Fatalf("%s:\nsteps %s\nloads %s", at, a, b)
			}
			if want.table == nil {
				continue
			}
			for range 60 {
				addr := func() netip.AddrPort {
					a := netip.AddrFrom4([4]byte{10, 0, 0, byte(r.IntN(17))})
					if r.IntN(6) == 0 {
						a = netip.AddrFrom4([4]byte{192, 0, 2, byte(r.IntN(6))})
					}
					return netip.AddrPortFrom(a, pick[uint16](r, 1, 4, 80, 8080))
				}
				k := flow.MakeKey(pick(r, flow.TCP, flow.TCP, flow.UDP), addr(), addr())
				if a, b := answer(got.table, k), answer(want.table, k); a != b {
					t.Fatalf("%s, %s:\nsteps %s\nloads %s", at, k, a, b)
				}
			}
			if a, b := got.table.Policy(), want.table.Policy(); sumOf(&a) != sumOf(&b) {
				t.Fatalf("%s: other rules", at)
			}
			if a, b := names(got.table), names(want.table); a != b {
				t.Fatalf("%s: world\nsteps %s\nloads %s", at, a, b)
			}
			if a, b := fmt.Sprint(follower.world.Sets), fmt.Sprint(reference.world.Sets); a != b {
				t.Fatalf("%s: sets\nsteps %s\nloads %s", at, a, b)
			}
			if !slices.Equal(follower.input, reference.input) || len(follower.isolation.good) != len(reference.isolation.good) {
				t.Fatalf("%s: other objects in force", at)
			}
		}
	}
	t.Logf("%d updates, %d tables, %d of them by steps", all, tables, steps)
	if steps < tables/3 {
		t.Errorf("only %d of %d tables are made by steps", steps, tables)
	}
}

// TestFirstCiliumPolicy: from the step that brings the first object that depends on
// host-network pods on, these are looked at.
func TestFirstCiliumPolicy(t *testing.T) {
	w := newTown(t, rand.New(rand.NewPCG(3, 4)))
	w.pods, w.policies = inventory.PodEditor{}, map[string]*api.Object{}
	w.pods.Put(inventory.Pod{Namespace: "x", Name: "client", Node: "n1", Labels: map[string]string{"app": "a"}, IPs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}})
	var p last
	c, err := New(Config{Source: w, Publisher: &p, Node: "n1", Isolate: true, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	k := flow.MakeKey(flow.TCP, netip.MustParseAddrPort("10.0.0.1:1024"), netip.MustParseAddrPort("192.0.2.9:80"))
	for _, s := range []struct {
		what   string
		change func()
		want   classifier.Verdict
	}{
		{"no policy", func() {}, classifier.Allow},
		{"to a block outside", func() {
			w.policies["a"] = fixture.MustObjects(t, `apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: a, namespace: x}
spec: {endpointSelector: {}, egress: [{toCIDR: [192.0.2.0/24]}]}`)[0]
		}, classifier.Allow},
		{"the address is that of a pod on the host network", func() {
			w.pods.Put(inventory.Pod{Namespace: "x", Name: "host", Node: "n2", HostNetwork: true, IPs: []netip.Addr{netip.MustParseAddr("192.0.2.9")}})
		}, classifier.Drop},
		{"not any longer", func() { w.pods.Delete("x", "host") }, classifier.Allow},
	} {
		s.change()
		w.view = inventory.NewView(w.namespaces, w.nodes, w.services, w.pods.Pods())
		w.objs = slices.Collect(maps.Values(w.policies))
		if err := c.update(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := p.table.Lookup(k).Verdict; got != s.want {
			t.Errorf("%s: %s, want %s", s.what, got, s.want)
		}
	}
}

// names lists the pods of a table with their addresses, and its sets.
func names(t *classifier.Table) string {
	var b strings.Builder
	w := t.World()
	for i := range w.Endpoints {
		e := &w.Endpoints[i]
		fmt.Fprintln(&b, e.Namespace, e.Name, e.Addrs, e.Labels, e.NamespaceLabels, e.Ports, e.Node, e.HostNetwork, e.ServiceAccount)
	}
	fmt.Fprintln(&b, w.Sets)
	return b.String()
}
