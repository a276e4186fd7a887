package simulate

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/api/kepanp"
	"github.com/tierwall/tierwall/policy/inventory"
	"github.com/tierwall/tierwall/policy/lower"
)

var (
	npKind = api.Kind{
		Group: "networking.k8s.io", Version: "v1", Kind: "NetworkPolicy", Namespaced: true,
		New: func() any { return new(networkingv1.NetworkPolicy) },
	}
	anpKind = api.Kind{
		Group: "policy.networking.k8s.io", Version: "v1alpha1", Kind: "AdminNetworkPolicy",
		New: func() any { return new(kepanp.AdminNetworkPolicy) },
	}
)

// objects decodes documents strictly: a test with a misspelt field must fail.
// Several documents in one string are separated as usual.
func objects(t testing.TB, docs ...string) []*api.Object {
	t.Helper()
	var objs []*api.Object
	for _, doc := range strings.Split(strings.Join(docs, "\n---\n"), "\n---\n") {
		var raw map[string]any
		if err := yaml.Unmarshal([]byte(doc), &raw); err != nil {
			t.Fatalf("%v\n%s", err, doc)
		}
		o := &api.Object{Kind: kindOf(t, raw["apiVersion"].(string), raw["kind"].(string), raw), Raw: raw}
		o.Value = o.Kind.New()
		if err := yaml.UnmarshalStrict([]byte(doc), o.Value); err != nil {
			t.Fatalf("%v\n%s", err, doc)
		}
		meta := o.Value.(metav1.Object)
		o.Namespace, o.Name, o.Annotations = meta.GetNamespace(), meta.GetName(), meta.GetAnnotations()
		objs = append(objs, o)
	}
	return objs
}

var allKinds = sync.OnceValue(lower.Kinds)

// kindOf asks the registered dialects, as the decoder does.
func kindOf(t testing.TB, apiVersion, kind string, raw map[string]any) api.Kind {
	t.Helper()
	for _, k := range allKinds() {
		if k.Group+"/"+k.Version != apiVersion || k.Kind != kind {
			continue
		}
		if k.Select != nil {
			selected, problem := k.Select(raw)
			if problem != nil {
				t.Fatalf("%s %s: %+v in %v", apiVersion, kind, *problem, raw)
			}
			return selected
		}
		return k
	}
	t.Fatalf("no dialect has %s %s", apiVersion, kind)
	return api.Kind{}
}

// np and anp wrap a spec, given with two spaces of indentation.
func np(ns, name, spec string) string {
	return "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: " + name + ", namespace: " + ns + "}\nspec:\n" + spec
}

func anp(name string, priority int, spec string) string {
	return fmt.Sprintf("apiVersion: policy.networking.k8s.io/v1alpha1\nkind: AdminNetworkPolicy\nmetadata: {name: %s}\nspec:\n  priority: %d\n%s", name, priority, spec)
}

// world is "namespace label=value…" lines and "ns/pod label=value…" lines; pods
// get the next address of 10.0.0.0/24 and fd00::/120. "web=80/TCP" declares a
// named port, "@n2" a node (n1 otherwise), "hostnet" host networking.
func world(t testing.TB, lines ...string) *inventory.Snapshot {
	t.Helper()
	inv := &inventory.Snapshot{Nodes: []inventory.Node{
		{Name: "n1", Addrs: addrs("172.16.0.1", "fd01::1"), PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24"), netip.MustParsePrefix("fd00::/120")}},
		{Name: "n2", Addrs: addrs("172.16.0.2", "fd01::2")},
	}}
	for _, line := range lines {
		words := strings.Fields(line)
		ns, name, isPod := strings.Cut(words[0], "/")
		labels := map[string]string{}
		pod := inventory.Pod{Namespace: ns, Name: name, Labels: labels, Node: "n1"}
		for _, w := range words[1:] {
			k, v, _ := strings.Cut(w, "=")
			switch number, proto, isPort := strings.Cut(v, "/"); {
			case w[0] == '@':
				pod.Node = w[1:]
			case w == "hostnet":
				pod.HostNetwork = true
			case isPort:
				p, err := flow.ParseProto(proto)
				n, err2 := strconv.ParseUint(number, 10, 16)
				if err != nil || err2 != nil {
					t.Fatal(line)
				}
				pod.Ports = append(pod.Ports, rule.NamedPort{Name: k, Proto: p, Port: uint16(n)})
			default:
				labels[k] = v
			}
		}
		if !isPod {
			labels["kubernetes.io/metadata.name"] = ns
			inv.Namespaces = append(inv.Namespaces, inventory.Namespace{Name: ns, Labels: labels})
			continue
		}
		i := len(inv.Pods) + 1
		pod.IPs = addrs(fmt.Sprintf("10.0.0.%d", i), fmt.Sprintf("fd00::%x", i))
		if pod.HostNetwork {
			pod.IPs = addrs("172.16.0."+pod.Node[1:], "fd01::"+pod.Node[1:])
		}
		inv.Pods = append(inv.Pods, pod)
	}
	return inv
}

func addrs(ss ...string) []netip.Addr {
	var as []netip.Addr
	for _, s := range ss {
		as = append(as, netip.MustParseAddr(s))
	}
	return as
}

// side is one end as a test writes it: a pod "ns/name", or an IPv4 address.
func side(t testing.TB, inv *inventory.Snapshot, s string, family int) netip.Addr {
	t.Helper()
	for i := range inv.Pods {
		if p := &inv.Pods[i]; p.Namespace+"/"+p.Name == s {
			return p.IPs[family]
		}
	}
	a := netip.MustParseAddr(s)
	if v4 := a.As4(); family == 1 { // the IPv6 twin of the test's addresses
		switch v4[0] {
		case 172:
			return netip.MustParseAddr(fmt.Sprintf("fd01::%x", v4[3]))
		case 10:
			return netip.MustParseAddr(fmt.Sprintf("fd00::%x", v4[3]))
		}
		return netip.MustParseAddr(fmt.Sprintf("2001:db8::%x", v4[3]))
	}
	return a
}

// check is one line: "from > to port/PROTO: egress; ingress", a side being
// "why" for Allow without a rule, "Drop [policies]" for isolation, or
// "Verdict policy rule".
func check(t *testing.T, s *Simulator, inv *inventory.Snapshot, line string) {
	t.Helper()
	conn, want, _ := strings.Cut(line, ": ")
	f := strings.Fields(conn)
	port, proto, _ := strings.Cut(f[3], "/")
	n, err := strconv.ParseUint(port, 10, 16)
	p, err2 := flow.ParseProto(proto)
	if err != nil || err2 != nil {
		t.Fatal(line)
	}
	for family := range 2 {
		if family == 1 && strings.Contains(line, "v4only") {
			continue
		}
		k := flow.Key{Src: flow.AddrFrom(side(t, inv, f[0], family)), Dst: flow.AddrFrom(side(t, inv, f[2], family)), Proto: p, DstPort: uint16(n)}
		res := s.Evaluate(k)
		if got := text(&res.Egress) + "; " + text(&res.Ingress); got != strings.TrimSuffix(want, " v4only") {
			t.Errorf("%s (%s)\n got  %s\n want %s", conn, k, got, want)
		}
		if wantV := firstRefusal(res.Egress.Verdict, res.Ingress.Verdict); res.Verdict != wantV {
			t.Errorf("%s: verdict %s, sides say %s", conn, res.Verdict, wantV)
		}
	}
}

func firstRefusal(vs ...classifier.Verdict) classifier.Verdict {
	for _, v := range vs {
		if v != classifier.Allow {
			return v
		}
	}
	return classifier.Allow
}

func text(o *Outcome) string {
	short := func(ref string) string { return ref[strings.IndexByte(ref, '/')+1:] }
	switch o.Reason {
	case classifier.ReasonRule:
		return o.Verdict.String() + " " + short(o.Policy) + " " + o.Rule
	case classifier.ReasonAuthRequired:
		return o.Verdict.String() + " " + short(o.Policy) + " " + o.Rule + " auth-required"
	case classifier.ReasonIsolation:
		var is []string
		for _, i := range o.Isolating {
			is = append(is, short(i))
		}
		return o.Verdict.String() + " " + fmt.Sprint(is)
	}
	return o.Reason.String()
}

func run(t *testing.T, inv *inventory.Snapshot, docs []string, lines ...string) {
	t.Helper()
	s, err := New(objects(t, docs...), inv, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range lines {
		check(t, s, inv, l)
	}
}

func TestFreeOfPolicy(t *testing.T) {
	inv := world(t, "x", "x/a", "x/b", "x/far @n2", "x/h hostnet")
	// The node's own foot in the pod network is a node address, not an unknown one.
	inv.Nodes[0].Addrs = append(inv.Nodes[0].Addrs, addrs("10.0.0.200", "fd00::c8")...)
	docs := []string{np("x", "deny", "  podSelector: {}\n  policyTypes: [Ingress, Egress]\n")}
	run(t, inv, docs,
		"x/a > x/b 80/TCP: Drop [x/deny]; Drop [x/deny]",
		"x/a > x/a 80/TCP: self; self",
		"172.16.0.1 > x/a 80/TCP: not-local; node-local",
		"10.0.0.200 > x/a 80/TCP: not-local; node-local",
		"x/a > 172.16.0.1 80/TCP: Drop [x/deny]; not-local",
		"x/a > 10.0.0.200 53/UDP: Drop [x/deny]; not-local",
		"172.16.0.2 > x/a 80/TCP: not-local; Drop [x/deny]",
		"172.16.0.2 > x/far 80/TCP: not-local; node-local",
		"x/h > x/a 80/TCP: not-local; node-local", // host network: the node, and nobody's subject
		"x/a > x/h 80/TCP: Drop [x/deny]; not-local",
		"192.0.2.1 > x/a 80/TCP: not-local; Drop [x/deny]",
		"192.0.2.1 > 192.0.2.1 80/TCP: not-local; not-local",
	)
	s, err := New(objects(t, docs...), inv, "n2")
	if err != nil {
		t.Fatal(err)
	}
	check(t, s, inv, "x/a > x/far 80/TCP: not-local; Drop [x/deny]")
}

// TestAddressNoPodHas is X-61, in every language.
func TestAddressNoPodHas(t *testing.T) {
	inv := world(t, "x", "x/a app=a")
	for _, tt := range []struct{ name, doc, line string }{
		{"NetworkPolicy: block", np("x", "p", "  podSelector: {}\n  ingress: [{from: [{ipBlock: {cidr: 0.0.0.0/0}}]}]\n"), "Allow x/p ingress[0]"},
		{"NetworkPolicy: other block", np("x", "p", "  podSelector: {}\n  ingress: [{from: [{ipBlock: {cidr: 203.0.113.0/24}}]}]\n"), "Drop [x/p]"},
		{"NetworkPolicy: selector", np("x", "p", "  podSelector: {}\n  ingress: [{from: [{namespaceSelector: {}}]}]\n"), "unknown-peer"},
		{"NetworkPolicy: everybody, the pod's own port by name", np("x", "p", "  podSelector: {}\n  ingress: [{ports: [{port: http}]}]\n"), "Drop [x/p]"},
		{"NetworkPolicy: selector and block", np("x", "p", "  podSelector: {}\n  ingress: [{from: [{namespaceSelector: {}}]}, {from: [{ipBlock: {cidr: 10.0.0.0/24}}]}]\n"), "Allow x/p ingress[1]"},
		{"KEP", anp("p", 5, "  subject: {namespaceSelector: {}}\n  ingress: [{action: Deny, from: [{namespaces: {self: true}}], l4Selector: {allPorts: true}}]\n"), "unknown-peer"},
		{"release: namespaces", release("p", 1, "  subject: {namespaces: {}}\n  ingress: [{action: Deny, from: [{namespaces: {}}]}]\n"), "unknown-peer"},
		{"Antrea: block elsewhere", acnp("p", "platform", 1, all+"  ingress: [{name: r, action: Drop, from: [{ipBlock: {cidr: 203.0.113.0/24}}]}]\n"), "default"},
		{"Antrea: block", acnp("p", "platform", 1, all+"  ingress: [{name: r, action: Drop, from: [{ipBlock: {cidr: 10.0.0.0/8}}]}]\n"), "Drop /p r"},
		{"Antrea: nodes", acnp("p", "platform", 1, all+"  egress: [{name: r, action: Drop, to: [{nodeSelector: {}}]}]\n"), "default"},
		{"Antrea: pods", acnp("p", "platform", 1, all+"  ingress: [{name: r, action: Drop, from: [{podSelector: {}}]}]\n"), "unknown-peer"},
		// addresses outside and in the pod network are matched as the API says.
		{"Cilium: CIDR leaves pods out", ciliumDoc("x", "p", everyPod+"  ingress: [{fromCIDR: [10.0.0.0/8]}]\n"), "unknown-peer"},
		{"Cilium: CIDR elsewhere", ciliumDoc("x", "p", everyPod+"  ingress: [{fromCIDR: [203.0.113.0/24]}]\n"), "Drop [x/p]"},
		{"Cilium: all", ciliumDoc("x", "p", everyPod+"  ingress: [{fromEntities: [all]}]\n"), "Allow x/p ingress[0]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			run(t, inv, []string{tt.doc}, "10.0.0.99 > x/a 80/TCP: not-local; "+tt.line+" v4only")
		})
	}
	// A device of a node: selectors of nodes mean it (S2-95).
	inv.Nodes[1].DeviceAddrs = addrs("10.0.0.98")
	run(t, inv, []string{acnp("p", "platform", 1, all+"  egress: [{name: r, action: Drop, to: [{nodeSelector: {}}]}]\n")},
		"x/a > 10.0.0.98 6443/TCP: Drop /p r; not-local v4only") // S2-95
	egress := "  podSelector: {}\n  policyTypes: [Egress]\n  egress:\n  - "
	run(t, inv, []string{np("x", "p", egress+"{to: [{ipBlock: {cidr: 10.0.0.0/24}}], ports: [{port: http}]}\n")},
		"x/a > 10.0.0.99 80/TCP: unknown-peer; not-local v4only") // a name of nobody's port
	run(t, inv, []string{release("p", 1, "  subject: {namespaces: {}}\n  egress: [{action: Deny, to: [{networks: [203.0.113.0/24]}]}]\n")},
		"x/a > 10.0.0.99 80/TCP: default; not-local v4only")
}

// TestUnscheduled: hand-written pods need not name a node. Their addresses are
// no particular node's, so nothing is node-local between them.
func TestUnscheduled(t *testing.T) {
	inv := world(t, "x", "x/a", "x/h hostnet")
	inv.Pods[0].Node, inv.Pods[1].Node, inv.Pods[1].IPs = "", "", addrs("172.16.0.3", "fd01::3")
	run(t, inv, []string{np("x", "deny", "  podSelector: {}\n")}, "x/h > x/a 80/TCP: not-local; Drop [x/deny]")
}

func TestNewRefuses(t *testing.T) {
	inv := world(t, "x")
	if _, err := New([]*api.Object{{Kind: npKind, Name: "q", Value: 1}}, inv, ""); err == nil {
		t.Error("an object of an unknown type was accepted")
	}
	if _, err := New([]*api.Object{{Kind: anpKind, Name: "q", Value: new(kepanp.AdminNetworkPolicy)}}, inv, ""); err == nil { // S0-12
		t.Error("a policy without priority was accepted")
	}
}

// TestNetworkPolicy follows the Kubernetes documentation's sections.
func TestNetworkPolicy(t *testing.T) {
	inv := world(t, "x team=a", "y team=b", "x/a app=a", "x/b app=b http=80/TCP dns=53/UDP", "x/c app=c http=8080/TCP", "y/a app=a")
	tests := []struct {
		name, spec string // of policy x/p
		lines      []string
	}{
		{"policyTypes default to Ingress", "  podSelector: {matchLabels: {app: b}}\n", []string{
			"x/a > x/b 80/TCP: default; Drop [x/p]", "x/b > x/a 80/TCP: default; default", "y/a > x/b 80/TCP: default; Drop [x/p]",
		}},
		{"egress rules imply Egress", "  podSelector: {matchLabels: {app: b}}\n  egress: [{}]\n", []string{
			"x/b > x/a 80/TCP: Allow x/p egress[0]; default", "x/a > x/b 80/TCP: default; Drop [x/p]",
		}},
		{"an empty egress list does not", "  podSelector: {matchLabels: {app: b}}\n  egress: []\n", []string{
			"x/b > x/a 80/TCP: default; default", "x/a > x/b 80/TCP: default; Drop [x/p]",
		}},
		{"only Egress", "  podSelector: {matchLabels: {app: b}}\n  policyTypes: [Egress]\n  ingress: [{}]\n", []string{
			"x/b > x/a 80/TCP: Drop [x/p]; default", "x/a > x/b 80/TCP: default; default",
		}},
		{"own namespace only", "  podSelector: {}\n", []string{
			"x/a > y/a 80/TCP: default; default", "y/a > x/a 80/TCP: default; Drop [x/p]",
		}},
		{"empty from is everyone, ICMP included", "  podSelector: {}\n  ingress: [{from: []}]\n", []string{
			"y/a > x/a 80/TCP: default; Allow x/p ingress[0]", "192.0.2.1 > x/a 8/ICMP: not-local; Allow x/p ingress[0]",
			"172.16.0.2 > x/a 1/UDP: not-local; Allow x/p ingress[0]",
		}},
		{"peers", "  podSelector: {}\n  ingress:\n" +
			"  - from: [{podSelector: {matchLabels: {app: a}}}]\n" +
			"  - from: [{namespaceSelector: {matchLabels: {team: b}}, podSelector: {matchLabels: {app: q}}}]\n" +
			"  - from: [{namespaceSelector: {matchLabels: {team: b}}}]\n", []string{
			"x/a > x/b 80/TCP: default; Allow x/p ingress[0]", "y/a > x/b 80/TCP: default; Allow x/p ingress[2]",
			"x/c > x/b 80/TCP: default; Drop [x/p]", "192.0.2.1 > x/b 80/TCP: not-local; Drop [x/p]",
		}},
		{"empty namespaceSelector is every pod, never outside", "  podSelector: {}\n  ingress: [{from: [{namespaceSelector: {}}]}]\n", []string{
			"y/a > x/b 80/TCP: default; Allow x/p ingress[0]", "192.0.2.1 > x/b 80/TCP: not-local; Drop [x/p]",
			"172.16.0.2 > x/b 80/TCP: not-local; Drop [x/p]",
		}},
		{"ipBlock with except", "  podSelector: {matchLabels: {app: a}}\n  egress:\n" +
			"  - to: [{ipBlock: {cidr: 192.0.2.0/24, except: [192.0.2.8/29]}}, {ipBlock: {cidr: '2001:db8::/64', except: ['2001:db8::8/125']}}]\n" +
			"  - to: [{ipBlock: {cidr: 192.0.2.9/32}}, {ipBlock: {cidr: '2001:db8::9/128'}}]\n", []string{
			"x/a > 192.0.2.1 80/TCP: Allow x/p egress[0]; not-local", "x/a > 192.0.2.8 80/TCP: Drop [x/p]; not-local",
			"x/a > 192.0.2.9 80/TCP: Allow x/p egress[1]; not-local", // a hole only withholds its own block
		}},
		{"ipBlock covers pods and nodes", "  podSelector: {matchLabels: {app: a}}\n  egress: [{to: [{ipBlock: {cidr: 0.0.0.0/0}}, {ipBlock: {cidr: '::/0'}}]}]\n", []string{
			"x/a > x/b 80/TCP: Allow x/p egress[0]; default", "x/a > 172.16.0.2 80/TCP: Allow x/p egress[0]; not-local",
		}},
		{"ipBlock of one family", "  podSelector: {matchLabels: {app: a}}\n  egress: [{to: [{ipBlock: {cidr: '::/0'}}]}]\n", []string{
			"x/a > 192.0.2.1 80/TCP: Drop [x/p]; not-local v4only",
		}},
		{"ports", "  podSelector: {}\n  ingress:\n" +
			"  - ports: [{port: 80}]\n  - ports: [{port: 90, endPort: 95, protocol: UDP}]\n  - ports: [{protocol: SCTP}]\n", []string{
			"x/a > x/b 80/TCP: default; Allow x/p ingress[0]", "x/a > x/b 80/UDP: default; Drop [x/p]", "x/a > x/b 81/TCP: default; Drop [x/p]",
			"x/a > x/b 90/UDP: default; Allow x/p ingress[1]", "x/a > x/b 95/UDP: default; Allow x/p ingress[1]", "x/a > x/b 96/UDP: default; Drop [x/p]",
			"x/a > x/b 89/UDP: default; Drop [x/p]", "x/a > x/b 1/SCTP: default; Allow x/p ingress[2]", "x/a > x/b 8/ICMP: default; Drop [x/p]",
		}},
		{"a range with one end", "  podSelector: {}\n  ingress: [{ports: [{port: 80, endPort: 80}]}]\n", []string{
			"x/a > x/b 80/TCP: default; Allow x/p ingress[0]", "x/a > x/b 81/TCP: default; Drop [x/p]",
		}},
		{"named port of the subject", "  podSelector: {}\n  ingress: [{ports: [{port: http}]}]\n", []string{
			"x/a > x/b 80/TCP: default; Allow x/p ingress[0]", "x/a > x/c 80/TCP: default; Drop [x/p]", "x/a > x/c 8080/TCP: default; Allow x/p ingress[0]",
			"x/b > x/a 80/TCP: default; Drop [x/p]",
		}},
		{"named port needs its protocol", "  podSelector: {}\n  ingress: [{ports: [{port: dns}]}, {ports: [{port: dns, protocol: UDP}]}]\n", []string{
			"x/a > x/b 53/TCP: default; Drop [x/p]", "x/a > x/b 53/UDP: default; Allow x/p ingress[1]",
		}},
		{"named port of the peer", "  podSelector: {matchLabels: {app: a}}\n  egress: [{ports: [{port: http}]}]\n  policyTypes: [Egress]\n", []string{
			"x/a > x/b 80/TCP: Allow x/p egress[0]; default", "x/a > x/c 80/TCP: Drop [x/p]; default", "x/a > 192.0.2.1 80/TCP: Drop [x/p]; not-local",
		}},
		{"peers and ports both", "  podSelector: {}\n  ingress: [{from: [{podSelector: {matchLabels: {app: a}}}], ports: [{port: 80}]}]\n", []string{
			"x/a > x/b 80/TCP: default; Allow x/p ingress[0]", "x/a > x/b 81/TCP: default; Drop [x/p]", "x/c > x/b 80/TCP: default; Drop [x/p]",
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			run(t, inv, []string{np("x", "p", tt.spec)}, tt.lines...)
		})
	}
}

// TestAdditive: several policies never take anything away from each other.
func TestAdditive(t *testing.T) {
	inv := world(t, "x", "x/a app=a", "x/b app=b")
	allow := func(name, app string) string {
		return np("x", name, "  podSelector: {}\n  ingress: [{from: [{podSelector: {matchLabels: {app: "+app+"}}}]}]\n")
	}
	deny := np("x", "deny", "  podSelector: {}\n")
	staged := strings.Replace(np("x", "staged", "  podSelector: {}\n"), "namespace: x}", "namespace: x, annotations: {tierwall.io/stage: audit}}", 1)
	run(t, inv, []string{deny, allow("z", "a"), allow("m", "a"), staged},
		"x/a > x/b 80/TCP: default; Allow x/m ingress[0]", // first by name
		"x/b > x/a 80/TCP: default; Drop [x/deny x/m x/z]")
	run(t, inv, []string{staged}, "x/a > x/b 80/TCP: default; default")
}

// connectionBetween is TCP to port 80 between two pods, IPv4.
func connectionBetween(inv *inventory.Snapshot, from, to string) flow.Key {
	ip := map[string]netip.Addr{}
	for i := range inv.Pods {
		ip[inv.Pods[i].Namespace+"/"+inv.Pods[i].Name] = inv.Pods[i].IPs[0]
	}
	return flow.MakeKey(flow.TCP, netip.AddrPortFrom(ip[from], 40000), netip.AddrPortFrom(ip[to], 80))
}
