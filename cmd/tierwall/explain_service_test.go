package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// serviceWorld is two nodes and a Service whose backends are one on each.
const serviceWorld = `
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Node, metadata: {name: n1}, spec: {podCIDRs: [10.0.1.0/24, "fd00:1::/64"]}, status: {addresses: [{type: InternalIP, address: 192.0.2.1}, {type: InternalIP, address: "2001:db8::1"}]}}
- {apiVersion: v1, kind: Node, metadata: {name: n2}, spec: {podCIDRs: [10.0.2.0/24, "fd00:2::/64"]}, status: {addresses: [{type: InternalIP, address: 192.0.2.2}, {type: InternalIP, address: "2001:db8::2"}]}}
- {apiVersion: v1, kind: Namespace, metadata: {name: shop}}
- {apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop, labels: {app: web}}, spec: {nodeName: n1, containers: []}, status: {podIPs: [{ip: 10.0.1.10}, {ip: "fd00:1::a"}]}}
- {apiVersion: v1, kind: Pod, metadata: {name: scan, namespace: shop, labels: {app: scan}}, spec: {nodeName: n1, containers: []}, status: {podIPs: [{ip: 10.0.1.12}, {ip: "fd00:1::c"}]}}
- {apiVersion: v1, kind: Pod, metadata: {name: db-0, namespace: shop, labels: {app: db}}, spec: {nodeName: n1, containers: [{name: c, ports: [{name: pg, containerPort: 5432}]}]}, status: {podIPs: [{ip: 10.0.1.11}, {ip: "fd00:1::b"}]}}
- {apiVersion: v1, kind: Pod, metadata: {name: db-1, namespace: shop, labels: {app: db}}, spec: {nodeName: n2, containers: [{name: c, ports: [{name: pg, containerPort: 5433}]}]}, status: {podIPs: [{ip: 10.0.2.11}, {ip: "fd00:2::b"}]}}
- apiVersion: v1
  kind: Service
  metadata: {name: db, namespace: shop}
  spec:
    type: LoadBalancer
    selector: {app: db}
    clusterIP: 10.96.0.10
    clusterIPs: [10.96.0.10, "fd96::a"]
    externalIPs: [198.51.100.7, "2001:db8:e::7"]
    ports:
    - {name: pg, port: 80, targetPort: pg, nodePort: 30080}
    - {name: dns, port: 53, targetPort: 5353, protocol: UDP, nodePort: 30053}
    - {name: sig, port: 99, protocol: SCTP, nodePort: 30099}
    - {name: none, port: 81, targetPort: missing, nodePort: 30081}
  status: {loadBalancer: {ingress: [{ip: 203.0.113.50}, {ip: 203.0.113.60, ipMode: Proxy}]}}
- apiVersion: networking.k8s.io/v1
  kind: NetworkPolicy
  metadata: {name: db, namespace: shop}
  spec: {podSelector: {matchLabels: {app: db}}, ingress: [{from: [{podSelector: {matchLabels: {app: web}}}]}]}
`

// serviceAnswer is what explain says of a Service.
type serviceAnswer struct {
	explanation
	Agree           *bool
	Notes           []string
	Egress, Ingress *struct{ Verdict, Reason, Policy string }
	Backends        []struct {
		explanation
		Via             string
		Notes           []string
		Egress, Ingress struct{ Verdict, Reason, Policy string }
	}
}

// names joins the backends as "to:port verdict".
func (a *serviceAnswer) names() string {
	var out []string
	for _, b := range a.Backends {
		out = append(out, strings.TrimPrefix(b.To, "shop/")+" "+b.Packet[strings.LastIndexByte(b.Packet, ':')+1:]+" "+b.Verdict)
	}
	return strings.Join(out, ", ")
}

func askService(t *testing.T, manifests, args string) (serviceAnswer, result) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "world.yaml")
	if err := os.WriteFile(path, []byte(manifests), 0o600); err != nil {
		t.Fatal(err)
	}
	r := tierwall(t, "", append([]string{"explain", "-m", path, "-o", "json"}, strings.Fields(args)...)...)
	var a serviceAnswer
	if r.code == 0 {
		if err := json.Unmarshal([]byte(r.out), &a); err != nil {
			t.Fatalf("%v: %s", err, r.out)
		}
	}
	return a, r
}

// TestExplainProxiedAddresses is X-66: explain answered Allow, not-local, for the
// addresses besides the ClusterIP that the Service proxy answers for.
func TestExplainProxiedAddresses(t *testing.T) {
	for _, tt := range []struct{ args, want string }{
		{"--from scan --to svc/shop/db -p 80", "db-0 5432 Drop, db-1 5433 Drop"},
		{"--from scan --to 10.96.0.10 -p 80", "db-0 5432 Drop, db-1 5433 Drop"},
		{"--from scan --to 198.51.100.7 -p 80", "db-0 5432 Drop, db-1 5433 Drop"},
		{"--from scan --to 203.0.113.50 -p 80", "db-0 5432 Drop, db-1 5433 Drop"},
		{"--from scan --to 192.0.2.1 -p 30080", "db-0 5432 Drop, db-1 5433 Drop"},
		{"--from 198.18.0.1 --to 203.0.113.50 -p 80", "db-0 5432 Drop, db-1 5433 Drop"},
		{"--from 198.18.0.1 --to 192.0.2.2 -p 30080/TCP", "db-0 5432 Drop, db-1 5433 Drop"},
		{"--from web --to 10.96.0.10 -p 80", "db-0 5432 Allow, db-1 5433 Allow"},
		// Other protocols and the other family.
		{"--from scan --to 198.51.100.7 -p 53/UDP", "db-0 5353 Drop, db-1 5353 Drop"},
		{"--from scan --to 192.0.2.1 -p 30099/SCTP", "db-0 99 Drop, db-1 99 Drop"},
		{"--from scan --to 2001:db8:e::7 -p 80", "db-0 5432 Drop, db-1 5433 Drop"},
		{"--from scan --to 2001:db8::1 -p 30080", "db-0 5432 Drop, db-1 5433 Drop"},
		{"--from scan --to svc/shop/db -p 80 --family 6", "db-0 5432 Drop, db-1 5433 Drop"},
	} {
		a, r := askService(t, serviceWorld, tt.args)
		if got := a.names(); r.code != 0 || a.To != "svc/shop/db" || got != tt.want {
			t.Errorf("X-66: %s: to %q: %s, want %s %s", tt.args, a.To, got, tt.want, r.err)
		}
	}
}

// TestExplainNotProxied: the proxy translates the Service's ports only, and not what
// it leaves to the load balancer.
func TestExplainNotProxied(t *testing.T) {
	for _, tt := range []struct{ args, to, note string }{
		{"--from scan --to 198.51.100.7 -p 8080", "198.51.100.7", "svc/shop/db has no port 8080/TCP"},
		{"--from scan --to 198.51.100.7 -p 80/UDP", "198.51.100.7", "svc/shop/db has no port 80/UDP"},
		{"--from scan --to 198.51.100.7 -p 0/ICMP", "198.51.100.7", ""},
		{"--from scan --to 192.0.2.1 -p 30001", "192.0.2.1", ""},
		{"--from scan --to 192.0.2.1 -p 80", "192.0.2.1", ""},
		{"--from scan --to 203.0.113.60 -p 80", "203.0.113.60", ""},
	} {
		a, r := askService(t, serviceWorld, tt.args)
		if r.code != 0 || a.To != tt.to || len(a.Backends) != 0 || !strings.Contains(strings.Join(a.Notes, "\n"), tt.note) || (tt.note == "") != (len(a.Notes) == 0) {
			t.Errorf("%s: %+v %s", tt.args, a, r.err)
		}
	}
}

// TestExplainMasqueraded: the proxy puts a node's address in the place of a client's
// that comes by another way than the ClusterIP, and node ports of other nodes are
// translated there.
func TestExplainMasqueraded(t *testing.T) {
	// web may reach the backends; as n1 nobody does.
	a, _ := askService(t, serviceWorld, "--from web --to 198.51.100.7 -p 80")
	if got := a.names(); got != "db-0 5432 Allow, db-1 5433 Drop" || a.Agree == nil || *a.Agree || a.Verdict != "" {
		t.Errorf("X-66: external address: %s, %+v", got, a)
	}
	if len(a.Backends) != 2 || !strings.Contains(strings.Join(a.Backends[1].Notes, ""), "192.0.2.1") {
		t.Errorf("no word of the node's address: %+v", a.Backends)
	}
	local := strings.Replace(serviceWorld, "type: LoadBalancer", "type: LoadBalancer\n    externalTrafficPolicy: Local", 1)
	if a, _ := askService(t, local, "--from web --to 198.51.100.7 -p 80"); a.names() != "db-0 5432 Allow, db-1 5433 Allow" {
		t.Errorf("externalTrafficPolicy Local, a pod: %s", a.names())
	}
	if a, _ := askService(t, local, "--from 198.18.0.1 --to 192.0.2.2 -p 30080"); a.names() != "db-1 5433 Drop" {
		t.Errorf("externalTrafficPolicy Local, from outside: %s", a.names())
	}
	inside := strings.Replace(serviceWorld, "type: LoadBalancer", "type: LoadBalancer\n    internalTrafficPolicy: Local", 1)
	if a, _ := askService(t, inside, "--from web --to svc/shop/db -p 80"); a.names() != "db-0 5432 Allow" {
		t.Errorf("internalTrafficPolicy Local: %s", a.names())
	}
	// The egress policy of a client judges another node's port by the node.
	egress := serviceWorld + `
- apiVersion: networking.k8s.io/v1
  kind: NetworkPolicy
  metadata: {name: web, namespace: shop}
  spec: {podSelector: {matchLabels: {app: web}}, policyTypes: [Egress], egress: [{to: [{podSelector: {matchLabels: {app: db}}}]}]}
`
	if a, _ := askService(t, egress, "--from web --to 192.0.2.1 -p 30080"); len(a.Backends) != 2 || a.Backends[0].Egress.Verdict != "Allow" || a.Backends[0].Verdict != "Allow" {
		t.Errorf("own node: %+v", a)
	}
	a, _ = askService(t, egress, "--from web --to 192.0.2.2 -p 30080")
	if len(a.Backends) != 2 || a.Verdict != "Drop" || a.Backends[0].Egress.Reason != "isolation" || len(a.Backends[0].Notes) == 0 {
		t.Errorf("another node: %+v", a)
	}
}

// TestExplainBackendsAgree is X-64.
func TestExplainBackendsAgree(t *testing.T) {
	a, r := askService(t, serviceWorld, "--from scan --to svc/shop/db -p 80")
	if a.Agree == nil || !*a.Agree || a.Verdict != "Drop" || a.Ingress == nil || a.Ingress.Reason != "isolation" || a.Egress == nil || a.Egress.Verdict != "Allow" {
		t.Errorf("X-64: all deny: %s", r.out)
	}
	one := strings.Replace(serviceWorld, "matchLabels: {app: db}}, ingress", "matchExpressions: [{key: app, operator: In, values: [db]}, {key: x, operator: Exists}]}, ingress", 1)
	one = strings.Replace(one, "name: db-1, namespace: shop, labels: {app: db}", "name: db-1, namespace: shop, labels: {app: db, x: y}", 1)
	a, r = askService(t, one, "--from scan --to svc/shop/db -p 80")
	if a.Agree == nil || *a.Agree || strings.Contains(strings.Split(r.out, `"backends"`)[0], `"verdict"`) || a.names() != "db-0 5432 Allow, db-1 5433 Drop" {
		t.Errorf("X-64: they differ: %s", r.out)
	}
	text := tierwall(t, one, "explain", "-m", "-", "--from", "scan", "--to", "svc/shop/db", "-p", "80")
	if !strings.HasPrefix(text.out, "mixed  shop/scan -> svc/shop/db  port 80/TCP, 2 backends: 1 Allow, 1 Drop\n") {
		t.Errorf("text: %s%s", text.out, text.err)
	}
}

// TestExplainReadiness: backends are what the proxy sends connections to.
func TestExplainReadiness(t *testing.T) {
	status := func(pod, status string) string {
		return strings.Replace(serviceWorld, "status: {podIPs: [{ip: "+pod+"}", "status: {conditions: ["+status+"], podIPs: [{ip: "+pod+"}", 1)
	}
	unready := `{type: Ready, status: "False"}`
	if a, _ := askService(t, status("10.0.2.11", unready), "--from scan --to svc/shop/db -p 80"); a.names() != "db-0 5432 Drop" {
		t.Errorf("one is not ready: %s", a.names())
	}
	none := strings.Replace(status("10.0.2.11", unready), "status: {podIPs: [{ip: 10.0.1.11}", "status: {conditions: ["+unready+"], podIPs: [{ip: 10.0.1.11}", 1)
	if _, r := askService(t, none, "--from scan --to svc/shop/db -p 80"); r.code == 0 ||
		!strings.Contains(r.err, "svc/shop/db has no ready backend (not ready: shop/db-0, shop/db-1): the Service proxy refuses connections to it") {
		t.Errorf("none is ready: %+v", r)
	}
	published := strings.Replace(none, "type: LoadBalancer", "type: LoadBalancer\n    publishNotReadyAddresses: true", 1)
	if a, _ := askService(t, published, "--from scan --to svc/shop/db -p 80"); a.names() != "db-0 5432 Drop, db-1 5433 Drop" {
		t.Errorf("not ready, but published: %s", a.names())
	}
	// A pod that ends serves where nobody else does.
	ending := strings.NewReplacer("name: db-0,", `name: db-0, deletionTimestamp: "2026-01-01T00:00:00Z",`, "name: db-1,", `name: db-1, deletionTimestamp: "2026-01-01T00:00:00Z",`)
	if a, _ := askService(t, ending.Replace(status("10.0.2.11", unready)), "--from scan --to svc/shop/db -p 80"); a.names() != "db-0 5432 Drop" {
		t.Errorf("all are ending: %s", a.names())
	}
	if a, _ := askService(t, strings.Replace(serviceWorld, "name: db-0,", `name: db-0, deletionTimestamp: "2026-01-01T00:00:00Z",`, 1), "--from scan --to svc/shop/db -p 80"); a.names() != "db-1 5433 Drop" {
		t.Errorf("one is ending: %s", a.names())
	}
	for args, want := range map[string]string{
		"--from scan --to svc/shop/db -p 8080":         "svc/shop/db has no port 8080/TCP; it has 80/TCP (pg), 53/UDP (dns), 99/SCTP (sig), 81/TCP (none)",
		"--from scan --to 10.96.0.10 -p 80/UDP":        "svc/shop/db has no port 80/UDP; it has",
		"--from scan --to svc/shop/db -p 81":           `svc/shop/db: no pod behind it has a port named "missing" of TCP`,
		"--from scan --to svc/shop/db -p 0/ICMP":       "a Service forwards ports; ICMP has none",
		"--from svc/shop/db --to scan -p 80":           "is a Service",
		"--from scan --to 10.96.0.10 -p 80 --family 6": "10.96.0.10 is no IPv6 address",
	} {
		if _, r := askService(t, serviceWorld, args); r.code == 0 || !strings.Contains(r.err, want) {
			t.Errorf("%s: %d %s, want %s", args, r.code, r.err, want)
		}
	}
}

// TestExplainEndpointSlices: a Service without a selector leads where its
// EndpointSlices say (S4-24), and those of one with a selector know best who is ready.
func TestExplainEndpointSlices(t *testing.T) {
	world := serviceWorld + `
- apiVersion: v1
  kind: Service
  metadata: {name: legacy, namespace: shop}
  spec: {clusterIP: 10.96.0.20, clusterIPs: [10.96.0.20], ports: [{name: sql, port: 3306}]}
- apiVersion: discovery.k8s.io/v1
  kind: EndpointSlice
  metadata: {name: legacy-1, namespace: shop, labels: {kubernetes.io/service-name: legacy}}
  addressType: IPv4
  ports: [{name: sql, port: 3307}]
  endpoints:
  - {addresses: [203.0.113.200]}
  - {addresses: [10.0.2.11], nodeName: n2, conditions: {ready: true}}
  - {addresses: [203.0.113.201], conditions: {ready: false, serving: true, terminating: true}}
- apiVersion: discovery.k8s.io/v1
  kind: EndpointSlice
  metadata: {name: db-1, namespace: shop, labels: {kubernetes.io/service-name: db}}
  addressType: IPv4
  ports: [{name: pg, port: 5432}]
  endpoints:
  - {addresses: [10.0.1.11], nodeName: n1, conditions: {ready: false, serving: true, terminating: true}}
  - {addresses: [10.0.2.11], nodeName: n2, conditions: {ready: false, serving: false}}
`
	for args, want := range map[string]string{
		"--from scan --to svc/shop/legacy -p 3306": "203.0.113.200 3307 Allow, db-1 3307 Drop",
		"--from scan --to 10.96.0.20 -p sql/TCP":   "203.0.113.200 3307 Allow, db-1 3307 Drop",
		"--from scan --to svc/shop/db -p 80":       "db-0 5432 Drop", // nobody is ready, one still serves
	} {
		if a, r := askService(t, world, args); a.names() != want {
			t.Errorf("S4-24: %s: %s, want %s %s", args, a.names(), want, r.err)
		}
	}
	for args, want := range map[string]string{
		"--from scan --to svc/shop/db -p 53/UDP": "svc/shop/db: its EndpointSlices have no endpoint for port 53/UDP",
	} {
		if _, r := askService(t, world, args); r.code == 0 || !strings.Contains(r.err, want) {
			t.Errorf("%s: %+v", args, r)
		}
	}
	without := world[:strings.Index(world, "- apiVersion: discovery")]
	if _, r := askService(t, without, "--from scan --to svc/shop/legacy -p 3306"); r.code == 0 || !strings.Contains(r.err, "has no selector, and there are no EndpointSlices") {
		t.Errorf("nothing says where it leads: %+v", r)
	}
	// What is wrong with a slice concerns no policy.
	bad := strings.Replace(world, "203.0.113.200", "example.org", 1)
	if a, r := askService(t, bad, "--from scan --to svc/shop/legacy -p 3306"); a.names() != "db-1 3307 Drop" || !strings.Contains(r.err, `"example.org" is not an IP address`) {
		t.Errorf("a wrong address: %+v", r)
	}
	old := strings.Replace(world, "discovery.k8s.io/v1", "discovery.k8s.io/v1beta1", 1)
	if _, r := askService(t, old, "--from scan --to web -p 80"); r.code != 0 {
		t.Errorf("another version of the API: %+v", r)
	}
}

// TestExplainLiveEndpointSlices: explain reads them of a cluster where a Service is
// asked about, with the user's rights; nothing else does.
func TestExplainLiveEndpointSlices(t *testing.T) {
	const slices = "/apis/discovery.k8s.io/v1/endpointslices"
	server := &apiServer{more: map[string]string{
		"/api/v1/services": `{"kind":"ServiceList","apiVersion":"v1","items":[{"metadata":{"name":"db","namespace":"shop"},
			"spec":{"clusterIP":"10.96.0.1","clusterIPs":["10.96.0.1"],"ports":[{"port":80,"targetPort":5432,"protocol":"TCP"}]}}]}`,
		slices: `{"kind":"EndpointSliceList","apiVersion":"discovery.k8s.io/v1","items":[{"metadata":{"name":"db-x","namespace":"shop",
			"labels":{"kubernetes.io/service-name":"db"}},"addressType":"IPv4","ports":[{"name":"","port":5432,"protocol":"TCP"}],
			"endpoints":[{"addresses":["10.0.0.2"],"conditions":{"ready":true},"nodeName":"n1"}]}]}`,
	}}
	config := kubeconfigOf(t, server)
	ask := []string{"explain", "--kubeconfig", config, "--from", "other/scan", "-p", "80/TCP", "--to"}
	if r := tierwall(t, "", append(ask, "svc/shop/db")...); r.code != 0 || !strings.Contains(r.out, "Drop  other/scan (10.0.0.3) -> shop/db (10.0.0.2)  port 5432/TCP") {
		t.Errorf("by name: %+v", r)
	}
	if r := tierwall(t, "", append(ask, "10.96.0.1")...); r.code != 0 || !strings.HasPrefix(r.out, "Drop  other/scan -> svc/shop/db") {
		t.Errorf("by address: %+v", r)
	}
	server.asked = nil
	tierwall(t, "", append(ask, "shop/db")...)
	tierwall(t, "", "matrix", "--kubeconfig", config)
	if slicesIn := strings.Join(server.asked, " "); strings.Contains(slicesIn, slices) {
		t.Errorf("read without need: %s", slicesIn)
	}
	server.forbidden = []string{slices, "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices"}
	r := tierwall(t, "", append(ask, "svc/shop/db")...)
	if r.code == 0 || !strings.Contains(r.err, "endpointslices.discovery.k8s.io: not read (forbidden): backends of Services are the pods they select that are ready") {
		t.Errorf("forbidden: %+v", r)
	}
}
