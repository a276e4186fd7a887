package cilium_test

import (
	"math"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/oracle"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/api"
	api2 "github.com/tierwall/tierwall/policy/api/cilium"
	"github.com/tierwall/tierwall/policy/internal/fixture"
	"github.com/tierwall/tierwall/policy/inventory"
	"github.com/tierwall/tierwall/policy/lower"
	"github.com/tierwall/tierwall/policy/lower/cilium"
)

func TestFixtures(t *testing.T) { fixture.Run(t) }

// The fixtures ask the oracle; the table agrees on every flow between all parties
// of theirs (holes for nodes, node sets, services, families), from the whole
// cluster's view and from each node's.
func TestTableAgreesOnFixtures(t *testing.T) {
	files, _ := filepath.Glob("testdata/*.txtar")
	flows := 0
	for _, file := range files {
		ar, err := txtar.ParseFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var world, yaml, expect string
		for _, f := range ar.Files {
			switch {
			case f.Name == "world":
				world = string(f.Data)
			case f.Name == "expect":
				expect = string(f.Data)
			case strings.HasSuffix(f.Name, ".yaml"):
				yaml += "---\n" + string(f.Data)
			}
		}
		if expect == "" {
			continue
		}
		w := fixture.MustWorld(t, world)
		set, _ := fixture.MustBuild(t, w, yaml)
		nodes := []string{""}
		for _, n := range w.Inventory.Nodes {
			nodes = append(nodes, n.Name)
		}
		for _, node := range nodes {
			inv := w.Inventory.World(node)
			w.Inventory.FillSets(inv, &set)
			table, _, err := classifier.Compile(set, inv, classifier.Options{})
			if err != nil {
				t.Fatal(err)
			}
			for _, from := range w.Parties {
				for _, to := range w.Parties {
					for _, port := range []string{"0/ICMP", "2048/ICMP", "1/TCP", "2/TCP", "3/TCP", "4/TCP", "5/UDP", "7/TCP", "10/TCP", "12/TCP", "80/TCP", "443/TCP", "8080/TCP"} {
						p := fixture.Probe{From: from, To: to}
						p.Proto, p.Port, _ = fixture.ParsePort(port)
						for _, k := range p.Keys() {
							flows++
							want, got := oracle.Evaluate(&set, inv, k), table.Lookup(k)
							if got.Verdict != want.Verdict {
								t.Errorf("%s on %q: %s: table %s, oracle %s", file, node, k, got.Verdict, want.Verdict)
							}
						}
					}
				}
			}
		}
	}
	if flows < 5000 {
		t.Errorf("only %d flows", flows)
	}
}

var kinds = cilium.Dialect{}.Kinds()

func object(spec *api2.Rule) *api.Object {
	return &api.Object{Kind: kinds[0], Namespace: "x", Name: "p", Value: &api2.Policy{Spec: spec}}
}

func clusterwide(name string, spec *api2.Rule) *api.Object {
	return &api.Object{Kind: kinds[1], Name: name, Value: &api2.Policy{Spec: spec}}
}

// What admission refuses may arrive through another API server. An allow rule
// must then allow nothing, above all not anything.
func TestRefusedAllowsNothing(t *testing.T) {
	all := &metav1.LabelSelector{}
	sel := func(key string, op metav1.LabelSelectorOperator, values ...string) metav1.LabelSelector {
		return metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: key, Operator: op, Values: values}}}
	}
	from := func(p api2.IngressPeers) *api2.Rule {
		return &api2.Rule{EndpointSelector: all, Ingress: []api2.IngressRule{{IngressPeers: p}}}
	}
	endpoint := func(s metav1.LabelSelector) *api2.Rule {
		return from(api2.IngressPeers{FromEndpoints: []metav1.LabelSelector{s}})
	}
	ports := func(p api2.PortRule) *api2.Rule {
		return &api2.Rule{EndpointSelector: all, Ingress: []api2.IngressRule{{ToPorts: []api2.PortRule{p}}}}
	}
	port := func(p api2.Port) *api2.Rule { return ports(api2.PortRule{Ports: []api2.Port{p}}) }
	icmp := func(f api2.ICMPField) *api2.Rule {
		return &api2.Rule{EndpointSelector: all, Ingress: []api2.IngressRule{{ICMPs: []api2.ICMPRule{{Fields: []api2.ICMPField{f}}}}}}
	}
	to := func(r api2.EgressRule) *api2.Rule {
		return &api2.Rule{EndpointSelector: all, Egress: []api2.EgressRule{r}}
	}
	cidr := func(c api2.CIDRRule) *api2.Rule {
		return from(api2.IngressPeers{FromCIDRSet: []api2.CIDRRule{c}})
	}
	big := intstr.FromInt32(256)
	name := intstr.FromString("Ping")
	web := []api2.Port{{Port: "80"}}
	w := &inventory.Snapshot{Services: []inventory.Service{{Namespace: "x", Name: "s", Selector: map[string]string{"a": "b"}}}}
	e := rule.Endpoint{
		Namespace: "x", Name: "p", ServiceAccount: "sa", Labels: map[string]string{"a": "b"},
		NamespaceLabels: map[string]string{"kubernetes.io/metadata.name": "x"}, Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1")},
	}
	for what, spec := range map[string]*api2.Rule{
		"unknown source":      endpoint(sel("container:a", metav1.LabelSelectorOpExists)),
		"reserved":            endpoint(sel("reserved:host", metav1.LabelSelectorOpDoesNotExist)),
		"pod name":            endpoint(sel("io.kubernetes.pod.name", metav1.LabelSelectorOpDoesNotExist)),
		"cluster":             endpoint(sel("io.cilium.k8s.policy.cluster", metav1.LabelSelectorOpDoesNotExist)),
		"not an account":      endpoint(sel("io.cilium.k8s.policy.serviceaccount", metav1.LabelSelectorOpNotIn, "other")),
		"unknown operator":    endpoint(sel("a", "in", "b")),
		"requirements":        from(api2.IngressPeers{FromRequires: []metav1.LabelSelector{*all}}),
		"cloud group":         from(api2.IngressPeers{FromGroups: []api2.Opaque{map[string]any{}}}),
		"bad cidr":            from(api2.IngressPeers{FromCIDR: []string{"10.0.0.0/99"}}),
		"mapped address":      from(api2.IngressPeers{FromCIDR: []string{"::ffff:10.0.0.1"}}),
		"bad hole":            cidr(api2.CIDRRule{CIDR: "10.0.0.0/8", Except: []string{"?"}}),
		"hole outside":        cidr(api2.CIDRRule{CIDR: "10.0.0.0/8", Except: []string{"11.0.0.0/8"}}),
		"cidr group":          cidr(api2.CIDRRule{CIDR: "10.0.0.0/8", CIDRGroupRef: "g"}),
		"cidr group selector": cidr(api2.CIDRRule{CIDR: "10.0.0.0/8", CIDRGroupSelector: all}),
		"entity in capitals":  from(api2.IngressPeers{FromEntities: []string{"ALL"}}),
		"kube-apiserver":      from(api2.IngressPeers{FromEntities: []string{"kube-apiserver"}}),
		"own node":            to(api2.EgressRule{EgressPeers: api2.EgressPeers{ToEntities: []string{"host"}}}),
		"other nodes":         to(api2.EgressRule{EgressPeers: api2.EgressPeers{ToEntities: []string{"remote-node"}}}),
		// peers that say nothing this version knows.
		"no service":              to(api2.EgressRule{EgressPeers: api2.EgressPeers{ToServices: []api2.Service{{}}}}),
		"service without labels":  to(api2.EgressRule{EgressPeers: api2.EgressPeers{ToServices: []api2.Service{{K8sServiceSelector: &api2.ServiceSelector{}}}}}),
		"two names":               to(api2.EgressRule{ToFQDNs: []api2.FQDN{{MatchName: "a.example", MatchPattern: "*"}}}),
		"bad name":                to(api2.EgressRule{ToFQDNs: []api2.FQDN{{MatchName: "a..example"}}}),
		"layer 7":                 ports(api2.PortRule{Ports: web, Rules: map[string]any{}}),
		"terminating TLS":         ports(api2.PortRule{Ports: web, TerminatingTLS: map[string]any{}}),
		"originating TLS":         ports(api2.PortRule{Ports: web, OriginatingTLS: map[string]any{}}),
		"server names":            ports(api2.PortRule{Ports: web, ServerNames: []string{"a.example"}}),
		"listener":                ports(api2.PortRule{Ports: web, Listener: map[string]any{}}),
		"no port":                 port(api2.Port{}),
		"leading zero":            port(api2.Port{Port: "080"}),
		"negative end":            port(api2.Port{Port: "80", EndPort: -1}),
		"turned round":            port(api2.Port{Port: "80", EndPort: 79}),
		"end too large":           port(api2.Port{Port: "80", EndPort: 65536}),
		"end of every port":       port(api2.Port{Port: "0", EndPort: 80}),
		"end of a name":           port(api2.Port{Port: "http", EndPort: 80}),
		"unknown protocol":        port(api2.Port{Port: "80", Protocol: "tcp"}),
		"ICMP as protocol":        port(api2.Port{Port: "8", Protocol: "ICMP"}),
		"type too large":          icmp(api2.ICMPField{Type: &big}),
		"unknown type":            icmp(api2.ICMPField{Type: &name}),
		"no type":                 icmp(api2.ICMPField{}),
		"unknown family":          icmp(api2.ICMPField{Family: "IPv5", Type: &big}),
		"no subject":              {Ingress: []api2.IngressRule{{ToPorts: []api2.PortRule{{Ports: web}}}}},
		"hosts":                   {EndpointSelector: all, NodeSelector: all, Ingress: []api2.IngressRule{{ToPorts: []api2.PortRule{{Ports: web}}}}},
		"subject of another":      {EndpointSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"io.kubernetes.pod.namespace": "y"}}, Ingress: []api2.IngressRule{{ToPorts: []api2.PortRule{{Ports: web}}}}},
		"unknown authentication":  {EndpointSelector: all, Ingress: []api2.IngressRule{{ToPorts: []api2.PortRule{{Ports: web}}, Authentication: &api2.Authentication{Mode: "maybe"}}}},
		"nameless authentication": {EndpointSelector: all, Ingress: []api2.IngressRule{{ToPorts: []api2.PortRule{{Ports: web}}, Authentication: &api2.Authentication{}}}},
	} {
		o := object(spec)
		if found := (cilium.Dialect{}).Validate(o); len(found.Errors) == 0 {
			t.Errorf("%s: accepted", what)
		}
		set, _ := cilium.Dialect{}.Lower([]*api.Object{o}, w)
		if err := set.Validate(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if len(set.Rules) != 1 {
			t.Errorf("%s: %d rules", what, len(set.Rules))
		}
		for i := range set.Rules {
			r := &set.Rules[i]
			matches := slices.ContainsFunc(r.Peers, func(p rule.Peer) bool {
				return p.Kind != rule.PeerPods || p.Pods.Matches(&e)
			})
			if r.Action == rule.Allow && !r.Auth && len(r.L4) > 0 && matches && r.Subject.Matches(&e) { // S0-66
				t.Errorf("%s: lowered to\n%s", what, set.Text())
			}
		}
	}
}

// An empty value is the value "", which no name has; it must not turn into "any".
func TestEmptyValues(t *testing.T) {
	for _, key := range []string{"io.kubernetes.pod.namespace", "io.cilium.k8s.policy.serviceaccount"} {
		o := clusterwide("p", &api2.Rule{EndpointSelector: &metav1.LabelSelector{MatchLabels: map[string]string{key: ""}}, EnableDefaultDeny: &api2.DefaultDeny{Ingress: new(bool)}})
		*o.Value.(*api2.Policy).Spec.EnableDefaultDeny.Ingress = true
		set, _ := cilium.Dialect{}.Lower([]*api.Object{o}, &inventory.Snapshot{})
		e := rule.Endpoint{Namespace: "x", ServiceAccount: "sa", NamespaceLabels: map[string]string{"kubernetes.io/metadata.name": "x"}}
		if len(set.Isolations) != 1 || set.Isolations[0].Subject.Matches(&e) {
			t.Errorf("%s: \"\" selects a pod: %s", key, set.Text())
		}
	}
}

// Any int32 is an order of a clusterwide policy, and authentication comes before all
// of them.
func TestExtremeOrders(t *testing.T) {
	orders := []int32{math.MinInt32, -1_000_000, -1, 0, 1, 25, math.MaxInt32}
	var objs []*api.Object
	spec := func(order int32) *api2.Rule {
		return &api2.Rule{
			Order: &order, EndpointSelector: &metav1.LabelSelector{},
			Ingress:     []api2.IngressRule{{IngressPeers: api2.IngressPeers{FromEntities: []string{"all"}}}},
			IngressDeny: []api2.IngressDenyRule{{IngressPeers: api2.IngressPeers{FromEntities: []string{"all"}}}},
		}
	}
	for i, n := range orders {
		objs = append(objs, clusterwide(string(rune('z'-i)), spec(n)))
	}
	auth := spec(math.MaxInt32)
	auth.IngressDeny, auth.Ingress[0].Authentication = nil, &api2.Authentication{Mode: "required"}
	objs = append(objs, clusterwide("zz", auth))
	set, found := lower.Build(objs, &inventory.Snapshot{})
	if err := found.Err(); err != nil {
		t.Fatal(err)
	}
	last := &set.Rules[len(set.Rules)-1]
	if last.Origin.Name != "zz" || last.Origin.Word != cilium.WordAuth || !last.Auth { // S3-32
		t.Errorf("last is %s of %s", last.Origin.Word, last.Origin.Name)
	}
	for i := range orders {
		deny, allow := &set.Rules[2*i], &set.Rules[2*i+1]
		want := string(rune('z' - i))
		if deny.Origin.Name != want || allow.Origin.Name != want || deny.Action != rule.Deny || allow.Action != rule.Allow { // S3-01, S3-15
			t.Errorf("place %d: %s of %s, then %s of %s; want deny then allow of %s", i,
				deny.Action, deny.Origin.Name, allow.Action, allow.Origin.Name, want)
		}
	}
}

// Every rule has an origin and a number of its own, called as users would look
// for it.
func TestOrigins(t *testing.T) {
	in := []api2.IngressRule{{IngressPeers: api2.IngressPeers{FromEntities: []string{"all"}}}}
	deny := []api2.IngressDenyRule{{IngressPeers: api2.IngressPeers{FromEntities: []string{"world"}}}}
	out := []api2.EgressRule{{EgressPeers: api2.EgressPeers{ToEntities: []string{"all"}}}}
	s := api2.Rule{EndpointSelector: &metav1.LabelSelector{}, Ingress: append(in, in...), IngressDeny: deny, Egress: out}
	o := object(&s)
	o.Value.(*api2.Policy).Specs = []api2.Rule{s}
	o.Generation = 4
	set, _ := cilium.Dialect{}.Lower([]*api.Object{o}, &inventory.Snapshot{})
	var names []string
	numbers := map[[2]int]bool{}
	for i := range set.Rules {
		r := &set.Rules[i]
		names = append(names, r.RuleName()+" "+r.Origin.Word)
		at := [2]int{int(r.Direction), r.Origin.Index}
		if numbers[at] || int32(r.Origin.Index) != r.Order.Index || r.Origin.Generation != 4 {
			t.Errorf("%s: %+v", r.RuleName(), r.Origin)
		}
		numbers[at] = true
	}
	want := []string{
		"ingress[0] Allow", "ingress[1] Allow", "ingressDeny[0] Deny", "egress[0] Allow",
		"specs[0].ingress[0] Allow", "specs[0].ingress[1] Allow", "specs[0].ingressDeny[0] Deny", "specs[0].egress[0] Allow",
	}
	if !slices.Equal(names, want) {
		t.Errorf("got %q, want %q", names, want)
	}
	for i := range set.Isolations {
		if got := set.Isolations[i].Origin; got.Index != -1 || got.Rule != "" || got.Word != "" {
			t.Errorf("isolation: %+v", got)
		}
	}
	other := &api.Object{Kind: o.Kind, Namespace: "x", Name: "p", Value: "not a policy"}
	if found := (cilium.Dialect{}).Validate(other); len(found.Errors) != 1 {
		t.Error("took a string for a policy")
	}
	o.Namespace = ""
	if found := (cilium.Dialect{}).Validate(o); len(found.Errors) != 1 || found.Errors[0].Path != "metadata.namespace" {
		t.Errorf("no namespace: %v", found)
	}
	wide := clusterwide("p", &s)
	wide.Namespace = "x"
	if found := (cilium.Dialect{}).Validate(wide); len(found.Errors) != 1 || found.Errors[0].Path != "metadata.namespace" {
		t.Errorf("clusterwide with a namespace: %v", found)
	}
}

func TestServicesByLabel(t *testing.T) {
	inv := &inventory.Snapshot{Services: []inventory.Service{
		{Namespace: "x", Name: "a", Labels: map[string]string{"team": "a"}, Selector: map[string]string{"app": "a"}},
		{Namespace: "x", Name: "b", Labels: map[string]string{"team": "b"}, Selector: map[string]string{"app": "b"}},
		{Namespace: "y", Name: "a", Labels: map[string]string{"team": "a"}, Selector: map[string]string{"app": "ya"}},
	}}
	for _, c := range []struct {
		namespace string
		want      string
	}{
		{"", `pods {namespace="x" pods("app"=["a"])}; pods {namespace="y" pods("app"=["ya"])}`},
		{"y", `pods {namespace="y" pods("app"=["ya"])}`},
		{"z", `pods {none}`},
	} {
		s := api2.Service{K8sServiceSelector: &api2.ServiceSelector{
			Namespace: c.namespace, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"k8s:team": "a"}},
		}}
		o := object(&api2.Rule{EndpointSelector: &metav1.LabelSelector{}, Egress: []api2.EgressRule{{EgressPeers: api2.EgressPeers{ToServices: []api2.Service{s}}}}})
		if found := (cilium.Dialect{}).Validate(o); len(found.Errors) > 0 {
			t.Error(found)
		}
		set, found := cilium.Dialect{}.Lower([]*api.Object{o}, inv)
		var got []string
		for _, p := range set.Rules[0].Peers {
			got = append(got, p.String())
		}
		if strings.Join(got, "; ") != c.want {
			t.Errorf("namespace %q: got %q, want %s", c.namespace, got, c.want)
		}
		if (c.namespace == "z") != (len(found.Warnings) == 1) {
			t.Errorf("namespace %q: %v", c.namespace, found)
		}
	}
}

// A rule of a world prefix costs one hole per node, shared by all rules.
func TestHolesAreShared(t *testing.T) {
	inv := &inventory.Snapshot{}
	for i := range 100 {
		a := netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})
		inv.Nodes = append(inv.Nodes, inventory.Node{Name: a.String(), Addrs: []netip.Addr{a, a}})
	}
	rules := make([]api2.IngressRule, 50)
	for i := range rules {
		rules[i].FromCIDR = []string{"0.0.0.0/0", "192.0.2.7", "198.51.100.0/24"}
	}
	set, _ := cilium.Dialect{}.Lower([]*api.Object{object(&api2.Rule{EndpointSelector: &metav1.LabelSelector{}, Ingress: rules})}, inv)
	first := set.Rules[0].Peers
	if len(first[0].Block.Except) != 100 || len(first[1].Block.Except) != 1 || len(first[2].Block.Except) != 0 {
		t.Fatalf("holes: %v", first)
	}
	for i := range set.Rules {
		if &set.Rules[i].Peers[0].Block.Except[0] != &first[0].Block.Except[0] {
			t.Fatalf("rule %d has holes of its own", i)
		}
	}
}

// Names of ICMP types are those of the family, with the numbers IANA gave them.
func TestICMPNames(t *testing.T) {
	for _, c := range []struct {
		family, name string
		proto        flow.Proto
		number       uint8
	}{
		{"IPv4", "EchoRequest", flow.ICMP, 8},
		{"", "EchoReply", flow.ICMP, 0},
		{"IPv4", "TimeExceeded", flow.ICMP, 11},
		{"IPv6", "EchoRequest", flow.ICMPv6, 128},
		{"IPv6", "TimeExceeded", flow.ICMPv6, 3},
		{"IPv6", "NeighborSolicitation", flow.ICMPv6, 135},
		{"IPv6", "PacketTooBig", flow.ICMPv6, 2},
	} {
		n := intstr.FromString(c.name)
		o := object(&api2.Rule{EndpointSelector: &metav1.LabelSelector{}, Ingress: []api2.IngressRule{{
			ICMPs: []api2.ICMPRule{{Fields: []api2.ICMPField{{Family: c.family, Type: &n}}}},
		}}})
		set, _ := cilium.Dialect{}.Lower([]*api.Object{o}, &inventory.Snapshot{})
		want := rule.L4{Proto: c.proto, Ports: rule.PortRange{First: flow.ICMPPort(c.number, 0), Last: flow.ICMPPort(c.number, 255)}, SrcPorts: rule.AllPorts}
		if got := set.Rules[0].L4; len(got) != 1 || got[0] != want {
			t.Errorf("%s %s: %v", c.family, c.name, got)
		}
	}
}

func TestLimits(t *testing.T) {
	for _, n := range []int{cilium.MaxPorts, cilium.MaxPorts + 1} {
		ports := slices.Repeat([]api2.Port{{Port: "80"}}, n)
		o := object(&api2.Rule{EndpointSelector: &metav1.LabelSelector{}, Ingress: []api2.IngressRule{{ToPorts: []api2.PortRule{{Ports: ports}}}}})
		if found := (cilium.Dialect{}).Validate(o); (len(found.Errors) > 0) != (n > cilium.MaxPorts) {
			t.Errorf("%d ports: %v", n, found)
		}
	}
}

// DNS sets of Cilium have a kind of their own, learnt from DNS like the others,
// because * means something else.
func TestNamesAreLearnt(t *testing.T) {
	o := object(&api2.Rule{EndpointSelector: &metav1.LabelSelector{}, Egress: []api2.EgressRule{{ToFQDNs: []api2.FQDN{{MatchPattern: "**.Example.org."}}}}})
	set, _ := cilium.Dialect{}.Lower([]*api.Object{o}, &inventory.Snapshot{})
	names := inventory.SetNames(&set)
	if !slices.Equal(names, []string{"cilium-fqdn:**.example.org"}) || !inventory.LearntSet(names[0]) || names[0] == inventory.FQDNSet("**.example.org") {
		t.Errorf("got %q", names)
	}
	if sets := (&inventory.Snapshot{}).Sets(names); len(sets) != 1 || len(sets[names[0]]) != 0 {
		t.Errorf("objects do not tell what DNS says: %v", sets)
	}
}
