package simulate

import (
	"fmt"
	"testing"

	"github.com/tierwall/tierwall/policy/inventory"
)

// ciliumDoc is a CiliumNetworkPolicy, or the clusterwide kind when ns is "".
func ciliumDoc(ns, name, spec string) string {
	kind, meta := "CiliumClusterwideNetworkPolicy", "{name: "+name+"}"
	if ns != "" {
		kind, meta = "CiliumNetworkPolicy", "{name: "+name+", namespace: "+ns+"}"
	}
	return "apiVersion: cilium.io/v2\nkind: " + kind + "\nmetadata: " + meta + "\nspec:\n" + spec
}

// ordered is a clusterwide policy for every pod.
func ordered(name string, order int, rules string) string {
	return ciliumDoc("", name, fmt.Sprintf("  order: %d\n  endpointSelector: {}\n%s", order, rules))
}

const everyPod = "  endpointSelector: {}\n"

// id and tcp write rules over the CFP's terms: identity N is the pods labelled
// id=N.
func id(n int) string { return fmt.Sprintf("fromEndpoints: [{matchLabels: {id: '%d'}}]", n) }

func tcp(first, last int) string {
	return fmt.Sprintf("toPorts: [{ports: [{port: '%d', endPort: %d, protocol: TCP}]}]", first, last)
}

// TestOrdered are the examples of the ordered policy proposal as verdicts.
func TestOrdered(t *testing.T) {
	inv := world(t, "x", "x/s", "x/5 id=5", "x/6 id=6", "x/7 id=7")
	allowLow := ordered("one", 1, "  ingress: [{"+tcp(1, 1023)+"}]\n")
	t.Run("1", func(t *testing.T) { // S3-23…S3-28
		run(t, inv, []string{allowLow, ordered("a", 2, "  ingressDeny: [{"+id(5)+", "+tcp(1, 1023)+"}]\n")},
			"x/5 > x/s 80/TCP: default; Allow /one ingress[0]")
		run(t, inv, []string{allowLow, ordered("b", 2, "  ingressDeny: [{"+tcp(80, 80)+"}]\n")},
			"x/5 > x/s 80/TCP: default; Allow /one ingress[0]")
		run(t, inv, []string{allowLow, ordered("c", 2, "  ingressDeny: [{"+id(5)+", toPorts: [{ports: [{port: '0', protocol: TCP}]}]}]\n")},
			"x/5 > x/s 80/TCP: default; Allow /one ingress[0]", "x/5 > x/s 8080/TCP: default; Drop /c ingressDeny[0]", "x/6 > x/s 8080/TCP: default; Drop [/c /one]")
		run(t, inv, []string{allowLow, ordered("d", 2, "  ingress: [{"+id(5)+", toPorts: [{ports: [{port: '53', protocol: UDP}]}]}]\n")},
			"x/5 > x/s 53/UDP: default; Allow /d ingress[0]", "x/6 > x/s 53/UDP: default; Drop [/d /one]")
	})
	t.Run("2a", func(t *testing.T) { // S3-29
		run(t, inv, []string{
			ordered("one", 1, "  ingress: [{"+tcp(1, 65535)+"}]\n"), ordered("two", 2, "  ingressDeny: [{"+tcp(80, 80)+"}]\n"),
			ordered("three", 3, "  ingressDeny: [{"+id(5)+", "+tcp(80, 80)+"}]\n"),
		}, "x/5 > x/s 80/TCP: default; Allow /one ingress[0]", "x/6 > x/s 80/TCP: default; Allow /one ingress[0]")
	})
	t.Run("2b", func(t *testing.T) { // S3-30, S3-31
		run(t, inv, []string{
			ordered("one", 1, "  ingress: [{fromEndpoints: [{matchLabels: {id: '5'}}, {matchLabels: {id: '6'}}], "+tcp(1, 65535)+"}]\n"),
			ordered("two", 2, "  ingressDeny: [{"+tcp(80, 80)+"}]\n"),
		}, "x/5 > x/s 80/TCP: default; Allow /one ingress[0]", "x/6 > x/s 80/TCP: default; Allow /one ingress[0]",
			"x/7 > x/s 80/TCP: default; Drop /two ingressDeny[0]", "x/5 > x/s 443/TCP: default; Allow /one ingress[0]")
	})
	t.Run("motivation", func(t *testing.T) { // S3-05
		inv := world(t, "qa env=qa", "prod env=prod", "qa/grafana role=grafana", "qa/other", "prod/artifacts role=artifacts", "prod/db")
		const ns = "k8s:io.cilium.k8s.namespace.labels.env"
		run(t, inv, []string{
			ciliumDoc("", "one", "  order: 1\n  endpointSelector: {matchLabels: {"+ns+": qa, role: grafana}}\n  egress: [{toEndpoints: [{matchLabels: {"+ns+": prod, role: artifacts}}]}]\n"),
			ciliumDoc("", "two", "  order: 2\n  endpointSelector: {matchLabels: {"+ns+": qa}}\n  egressDeny: [{toEndpoints: [{matchLabels: {"+ns+": prod}}]}]\n"),
		}, "qa/grafana > prod/artifacts 80/TCP: Allow /one egress[0]; default", "qa/grafana > prod/db 80/TCP: Drop /two egressDeny[0]; default",
			"qa/other > prod/artifacts 80/TCP: Drop /two egressDeny[0]; default", "qa/other > qa/grafana 80/TCP: Drop [/two]; default")
	})
}

// TestCiliumOrder: numbers, deny over allow, NetworkPolicy beside it.
func TestCiliumOrder(t *testing.T) {
	inv := world(t, "x", "x/a", "x/b")
	const allow, deny = "  ingress: [{fromEndpoints: [{}]}]\n", "  ingressDeny: [{fromEndpoints: [{}]}]\n"
	const authenticated = "  ingress: [{fromEndpoints: [{}], authentication: {mode: required}}]\n"
	npAllow, npDeny := np("x", "np", "  podSelector: {}\n  ingress: [{}]\n"), np("x", "np", "  podSelector: {}\n")
	for _, tt := range []struct {
		name string
		docs []string
		want string
	}{
		{"S3-01 lower is stronger", []string{ordered("a", -1, allow), ordered("b", 0, deny)}, "Allow /a ingress[0]"},
		{"S3-13 no order is 0", []string{ciliumDoc("", "a", everyPod+deny), ordered("b", -1, allow)}, "Allow /b ingress[0]"},
		{"S3-13 no order is 0, from the other side", []string{ciliumDoc("", "a", everyPod+deny), ordered("b", 1, allow)}, "Drop /a ingressDeny[0]"},
		{"S3-14 same order: deny", []string{ciliumDoc("", "a", everyPod+allow), ciliumDoc("x", "b", everyPod+deny)}, "Drop x/b ingressDeny[0]"},
		{"X-46 priority is order", []string{ciliumDoc("", "a", "  priority: -1\n"+everyPod+allow), ciliumDoc("", "b", everyPod+deny)}, "Allow /a ingress[0]"},
		{"NetworkPolicy is order 0", []string{npAllow, ciliumDoc("", "a", everyPod+deny)}, "Drop /a ingressDeny[0]"},
		{"NetworkPolicy is order 0, above", []string{npAllow, ordered("a", 1, deny)}, "Allow x/np ingress[0]"},
		{"NetworkPolicy isolates, Cilium allows", []string{npDeny, ordered("a", 5, allow)}, "Allow /a ingress[0]"},
		{"both isolate", []string{npDeny, ciliumDoc("", "a", everyPod+"  ingress: [{}]\n")}, "Drop [/a x/np]"},
		{"S3-32 authentication fails closed", []string{ciliumDoc("", "a", everyPod+authenticated)}, "Drop /a ingress[0] auth-required"},
		{"a deny stays a deny", []string{ciliumDoc("", "a", everyPod+authenticated), ciliumDoc("", "b", everyPod+deny)}, "Drop /b ingressDeny[0]"},
		{"S3-34 also for a more specific allow", []string{ciliumDoc("", "a", everyPod+authenticated), ordered("b", -1, "  ingress: [{"+tcp(80, 80)+"}]\n")}, "Drop /a ingress[0] auth-required"},
	} {
		t.Run(tt.name, func(t *testing.T) { run(t, inv, tt.docs, "x/a > x/b 80/TCP: default; "+tt.want) })
	}
}

// TestCiliumIsolation: default deny by direction and by switch.
func TestCiliumIsolation(t *testing.T) {
	inv := world(t, "x", "y", "x/a app=a", "x/b", "y/a app=a")
	for _, tt := range []struct {
		ns, spec, want string // of x/b > x/a 80/TCP
	}{
		{"x", everyPod + "  ingress: [{}]\n", "default; Drop [x/p]"}, // an empty rule allows nothing
		{"x", everyPod + "  egress: [{}]\n", "Drop [x/p]; default"},
		{"x", everyPod + "  ingress: []\n  egress: [{}]\n", "Drop [x/p]; default"},
		{"x", everyPod + "  ingress: [{}]\n  enableDefaultDeny: {ingress: false}\n", "default; default"},
		{"x", everyPod + "  ingress: [{}]\n  enableDefaultDeny: {egress: true}\n", "Drop [x/p]; Drop [x/p]"},
		{"x", everyPod + "  ingressDeny: [{toPorts: [{ports: [{port: '81'}]}]}]\n", "default; Drop [x/p]"},
		{"x", everyPod + "  ingressDeny: [{toPorts: [{ports: [{port: '80'}]}]}]\n  enableDefaultDeny: {ingress: false}\n", "default; Drop x/p ingressDeny[0]"},
		{"y", everyPod + "  ingress: [{}]\n", "default; default"}, // another namespace's
		{"", everyPod + "  ingress: [{}]\n", "default; Drop [/p]"},
		{"", "  endpointSelector: {matchLabels: {'any:app': a}}\n  ingress: [{}]\n", "default; Drop [/p]"},
		{"", "  endpointSelector: {matchLabels: {'k8s:io.kubernetes.pod.namespace': 'y'}}\n  ingress: [{}]\n", "default; default"},
	} {
		t.Run(tt.spec, func(t *testing.T) {
			run(t, inv, []string{ciliumDoc(tt.ns, "p", tt.spec)}, "x/b > x/a 80/TCP: "+tt.want)
		})
	}
	// Several specs are one policy.
	run(t, inv, []string{"apiVersion: cilium.io/v2\nkind: CiliumNetworkPolicy\nmetadata: {name: p, namespace: x}\nspecs:\n" +
		"- {endpointSelector: {}, ingress: [{}]}\n- {endpointSelector: {}, ingress: [{}, {fromEndpoints: [{matchLabels: {app: a}}]}]}\n"},
		"x/a > x/b 80/TCP: default; Allow x/p specs[1].ingress[1]", "y/a > x/b 80/TCP: default; Drop [x/p]")
	// Nobody isolated: the bands below are heard.
	run(t, inv, []string{ciliumDoc("x", "p", everyPod+"  ingress: [{}]\n  enableDefaultDeny: {ingress: false}\n"), acnp("base", "baseline", 1, in("Drop"))},
		"x/b > x/a 80/TCP: default; Drop /base Drop")
}

// TestCiliumPeers has one egress rule in namespace x and asks who it reaches.
func TestCiliumPeers(t *testing.T) {
	inv := world(t, "x team=1", "y team=2", "x/a app=a", "x/b app=b", "y/b app=b", "y/h hostnet @n2")
	inv.Nodes[1].Labels = map[string]string{"zone": "b"}
	inv.Pods[2].ServiceAccount = "sa"
	inv.Services = []inventory.Service{{Namespace: "y", Name: "svc", Labels: map[string]string{"tier": "web"}, Selector: map[string]string{"app": "b"}}}
	to := []string{"x/b", "y/b", "172.16.0.1", "y/h", "192.0.2.1", "192.0.2.9"}
	for _, tt := range []struct{ ns, peer, want string }{
		{"x", "toEndpoints: [{}]", "+....."},
		{"", "toEndpoints: [{}]", "++...."},
		{"x", "toEndpoints: []", "......"},
		{"x", "toEndpoints: [{matchLabels: {'k8s:io.kubernetes.pod.namespace': 'y'}}]", ".+...."},
		{"x", "toEndpoints: [{matchLabels: {'k8s:io.cilium.k8s.namespace.labels.team': '2'}}]", ".+...."},
		{"", "toEndpoints: [{matchLabels: {io.cilium.k8s.policy.serviceaccount: sa}}]", ".+...."},
		{"", "toEndpoints: [{matchLabels: {app: b}, matchExpressions: [{key: 'any:app', operator: NotIn, values: [b]}]}]", "......"},
		{"x", "toEntities: [all]", "++++++"},
		{"x", "toEntities: [world]", "....++"},
		{"x", "toEntities: [cluster]", "++++.."},
		{"x", "toEntities: [none]", "......"},
		{"x", "toEntities: [host, remote-node]", "..++.."},
		{"x", "toCIDR: [192.0.2.0/24, '2001:db8::/64']", "....++"},
		{"x", "toCIDR: [192.0.2.1, '2001:db8::1']", "....+."},
		{"x", "toCIDR: [0.0.0.0/0, '::/0']", "....++"}, // pods and nodes are no CIDR's
		{"x", "toCIDRSet: [{cidr: 192.0.2.0/24, except: [192.0.2.8/29]}, {cidr: '2001:db8::/64', except: ['2001:db8::8/125']}]", "....+."},
		{"x", "toNodes: [{}]", "..++.."},
		{"x", "toNodes: [{matchLabels: {zone: b}}]", "...+.."},
		{"x", "toServices: [{k8sService: {serviceName: svc, namespace: 'y'}}]", ".+...."},
		{"x", "toServices: [{k8sServiceSelector: {selector: {matchLabels: {tier: web}}}}]", ".+...."},
		{"x", "toFQDNs: [{matchPattern: '*'}]", "......"},
		{"x", "toPorts: [{ports: [{port: '80'}]}]", "++++++"}, // absent peers are everybody
		{"x", "", "......"},
	} {
		for i, dst := range to {
			want, in := "Drop ["+tt.ns+"/p]", "default"
			if tt.want[i] == '+' {
				want = "Allow " + tt.ns + "/p egress[0]"
			}
			if i >= 2 {
				in = "not-local"
			}
			t.Run(tt.ns+" "+tt.peer+" "+dst, func(t *testing.T) {
				run(t, inv, []string{ciliumDoc(tt.ns, "p", "  endpointSelector: {matchLabels: {app: a}}\n  egress: [{"+tt.peer+"}]\n")},
					fmt.Sprintf("x/a > %s 80/TCP: %s; %s", dst, want, in))
			})
		}
	}
	// Who comes in: the pod's own node always may, the others are remote.
	run(t, inv, []string{ciliumDoc("x", "p", everyPod+"  ingress: [{fromEntities: [remote-node]}]\n")},
		"172.16.0.1 > x/a 80/TCP: not-local; node-local", "172.16.0.2 > x/a 80/TCP: not-local; Allow x/p ingress[0]", "x/b > x/a 80/TCP: default; Drop [x/p]")
	run(t, inv, []string{ciliumDoc("x", "p", everyPod+"  ingress: [{fromEntities: [host]}]\n")}, "172.16.0.2 > x/a 80/TCP: not-local; Drop [x/p]")
}

// TestCiliumUnscheduled: the address of a host-network pod is some node's, even
// when nobody says whose; it is not the world's.
func TestCiliumUnscheduled(t *testing.T) {
	inv := world(t, "x", "x/a", "x/h hostnet")
	inv.Pods[1].Node, inv.Pods[1].IPs = "", addrs("172.16.0.3", "fd01::3")
	for entity, want := range map[string]string{"world": "Drop [x/p]", "cluster": "Allow x/p ingress[0]"} {
		run(t, inv, []string{ciliumDoc("x", "p", everyPod+"  ingress: [{fromEntities: ["+entity+"]}]\n")}, "x/h > x/a 80/TCP: not-local; "+want)
	}
}

// TestCiliumL4: ports and ICMP types.
func TestCiliumL4(t *testing.T) {
	inv := world(t, "x", "x/a", "x/b http=80/TCP")
	for _, tt := range []struct {
		l4, conn string
		match    bool
	}{
		{"toPorts: [{ports: [{port: '80'}]}]", "80/UDP", true}, // ANY
		{"toPorts: [{ports: [{port: '80', protocol: ANY}]}]", "80/SCTP", true},
		{"toPorts: [{ports: [{port: '80', protocol: ANY}]}]", "80/ICMP", false},
		{"toPorts: [{ports: [{port: '80', protocol: TCP}]}]", "80/UDP", false},
		{"toPorts: [{ports: [{port: '80', endPort: 90}]}]", "90/TCP", true},
		{"toPorts: [{ports: [{port: '80', endPort: 90}]}]", "91/TCP", false},
		{"toPorts: [{ports: [{port: '0', protocol: UDP}]}]", "9/UDP", true},
		{"toPorts: [{ports: [{port: http}]}]", "80/TCP", true},
		{"toPorts: [{ports: [{port: http, protocol: UDP}]}]", "80/UDP", false},
		{"toPorts: [{ports: [{port: '1'}]}, {ports: [{port: '80'}]}]", "80/TCP", true},
		{"icmps: [{fields: [{type: 8}]}]", "2049/ICMP", true},
		{"icmps: [{fields: [{type: EchoRequest}]}]", "2048/ICMP", true},
		{"icmps: [{fields: [{type: EchoReply}, {type: 3}]}]", "768/ICMP", true},
		{"icmps: [{fields: [{type: 8, family: IPv6}]}]", "2048/ICMP", false},
		{"icmps: [{fields: [{type: EchoRequest, family: IPv6}]}]", "32768/ICMPv6", true},
		{"icmps: [{fields: [{type: 8}]}]", "80/TCP", false},
	} {
		want := "Drop [x/p]"
		if tt.match {
			want = "Allow x/p ingress[0]"
		}
		t.Run(tt.l4+" "+tt.conn, func(t *testing.T) {
			run(t, inv, []string{ciliumDoc("x", "p", everyPod+"  ingress: [{fromEndpoints: [{}], "+tt.l4+"}]\n")}, "x/a > x/b "+tt.conn+": default; "+want)
		})
	}
}
