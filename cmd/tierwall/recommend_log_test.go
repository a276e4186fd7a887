package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/cmd/internal/cli"
	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/audit"
	"github.com/tierwall/tierwall/dataplane/packet"
)

// nodeLog writes the audit log of one node through the daemon's writer: what its
// table decides about packets, all of it (audit.all).
type nodeLog struct {
	t     testing.TB
	node  string
	table *classifier.Table
	ring  *dataplane.Ring
	path  string
	now   int64
	conn  uint64
	stop  func()
}

// Rings, BackendNames and Resolver make it the writer's source.
func (l *nodeLog) Rings() []*dataplane.Ring       { return []*dataplane.Ring{l.ring} }
func (l *nodeLog) BackendNames() []string         { return []string{"nfqueue"} }
func (l *nodeLog) Resolver(uint64) audit.Resolver { return l.table }

// began is when logs of tests begin.
var began = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func newNodeLog(t testing.TB, in *cli.Input, node, path string) *nodeLog {
	t.Helper()
	world := in.Snapshot.World(node)
	in.Snapshot.FillSets(world, &in.Set)
	table, _, err := classifier.Compile(in.Set, world, classifier.Options{Generation: 1})
	if err != nil {
		t.Fatal(err)
	}
	l := &nodeLog{t: t, node: node, table: table, ring: dataplane.NewRing(1 << 16), path: path, now: 1}
	w, err := audit.New(audit.Config{
		Source: l, Path: path, Node: node, Clock: func() int64 { return 1 }, Wall: func() time.Time { return began }, Poll: time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- w.Run(ctx) }()
	l.stop = func() {
		l.ring.Flush()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	return l
}

// put records a connection if an end of it is a pod of the node. It reports whether
// it was admitted there.
func (l *nodeLog) put(key flow.Key, tcpFlags uint8) bool {
	d := l.table.Lookup(key)
	local := func(a flow.Addr) bool { e := l.table.Endpoint(a); return e != nil && e.Node == l.node }
	if !local(key.Src) && !local(key.Dst) {
		return true
	}
	l.now += int64(time.Millisecond)
	e := dataplane.Event{
		Time: l.now, Generation: 1, Count: 1, Egress: d.Egress, Ingress: d.Ingress, Key: key, Verdict: d.Verdict, Length: 60, TCPFlags: tcpFlags, Forced: true,
	}
	if d.Verdict == classifier.Allow {
		l.conn++
		e.Conn = l.conn
	}
	for !l.ring.Put(&e) {
		l.t.Fatal("the ring is full")
	}
	if l.ring.Len() > l.ring.Cap()/2 {
		l.ring.Flush()
		for l.ring.Len() > 0 {
			time.Sleep(time.Millisecond)
		}
	}
	return d.Verdict == classifier.Allow
}

// shopLog is a log of all nodes of a world.
type shopLog struct {
	t     testing.TB
	in    *cli.Input
	nodes []*nodeLog
	pods  map[string][]*rule.Endpoint // by workload
	rand  *rand.Rand
	port  uint16
	paths []string
}

// newShopLog reads a world and opens a log for each of its nodes.
func newShopLog(t testing.TB, manifests string) *shopLog {
	t.Helper()
	in, err := cli.Load(manifests, "", nil)
	if err != nil || in.Table == nil {
		t.Fatalf("%v %v", err, in)
	}
	l := &shopLog{t: t, in: in, pods: map[string][]*rule.Endpoint{}, rand: rand.New(rand.NewPCG(1, 2)), port: 32768}
	made := map[string]string{}
	for i := range in.Snapshot.Pods {
		p := &in.Snapshot.Pods[i]
		made[p.Namespace+"/"+p.Name] = p.Namespace + "/" + p.Workload.Name
	}
	ends := in.Table.World().Endpoints
	for i := range ends {
		name := made[ends[i].Namespace+"/"+ends[i].Name]
		l.pods[name] = append(l.pods[name], &ends[i])
	}
	dir := t.TempDir()
	for i := range in.Snapshot.Nodes {
		name := in.Snapshot.Nodes[i].Name
		path := filepath.Join(dir, name+".log")
		l.paths = append(l.paths, path)
		l.nodes = append(l.nodes, newNodeLog(t, in, name, path))
	}
	return l
}

// addr finds the address of a pod, of a pod of a workload, or of an address.
func (l *shopLog) addr(end string) netip.Addr {
	if a, err := netip.ParseAddr(end); err == nil {
		return a
	}
	pods := l.pods[end]
	if len(pods) == 0 {
		l.t.Fatalf("no workload %s", end)
	}
	a, ok := pods[l.rand.IntN(len(pods))].Addr(true)
	if !ok {
		l.t.Fatalf("%s has no IPv4 address", end)
	}
	return a
}

// connect makes connections between two ends: source's node first, then, if it
// admits them, the destination's.
func (l *shopLog) connect(times int, from, to, port string) {
	l.t.Helper()
	var n uint16
	var name string
	if _, err := fmt.Sscanf(strings.Replace(port, "/", " ", 1), "%d %s", &n, &name); err != nil {
		l.t.Fatal(err)
	}
	proto, err := flow.ParseProto(name)
	if err != nil {
		l.t.Fatal(err)
	}
	for range times {
		k := flow.Key{Src: flow.AddrFrom(l.addr(from)), Dst: flow.AddrFrom(l.addr(to)), Proto: proto, DstPort: n}
		flags := uint8(0)
		if proto == flow.ICMP {
			k.DstPort = flow.ICMPPort(uint8(n), 0)
		} else {
			k.SrcPort = l.port
			if l.port++; l.port == 0 {
				l.port = 32768
			}
		}
		if proto == flow.TCP {
			flags = packet.SYN
		}
		l.send(k, flags)
	}
}

// send shows a packet to the nodes it passes.
func (l *shopLog) send(k flow.Key, flags uint8) {
	at := func(a flow.Addr) string {
		if e := l.in.Table.Endpoint(a); e != nil {
			return e.Node
		}
		return ""
	}
	source := at(k.Src)
	for _, node := range []string{source, at(k.Dst)} {
		for _, n := range l.nodes {
			if n.node == node && !n.put(k, flags) {
				return
			}
		}
		if source == at(k.Dst) {
			return
		}
	}
}

// done ends the logs and returns them in one file.
func (l *shopLog) done() string {
	l.t.Helper()
	var all []byte
	for i, n := range l.nodes {
		n.stop()
		b, err := os.ReadFile(l.paths[i])
		if err != nil {
			l.t.Fatal(err)
		}
		all = append(all, b...)
	}
	path := filepath.Join(l.t.TempDir(), "audit.log")
	if err := os.WriteFile(path, all, 0o644); err != nil {
		l.t.Fatal(err)
	}
	return path
}

// bigShop is a shop of twelve workloads on two nodes, with monitoring and DNS. A
// policy keeps the frontend from the database.
func bigShop(t testing.TB) string {
	t.Helper()
	var b strings.Builder
	for i, name := range []string{"n1", "n2"} {
		fmt.Fprintf(&b, "---\napiVersion: v1\nkind: Node\nmetadata: {name: %s}\nspec: {podCIDRs: [10.244.%d.0/24]}\nstatus: {addresses: [{type: InternalIP, address: 192.168.0.%d}]}\n", name, i+1, i+1)
	}
	for _, ns := range []string{"shop", "monitoring", "kube-system"} {
		fmt.Fprintf(&b, "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: %s}\n", ns)
	}
	for _, w := range shopWorkloads {
		var pods strings.Builder
		for i := range w.replicas {
			node := i%2 + 1
			w.addr++
			fmt.Fprintf(&pods, `---
apiVersion: v1
kind: Pod
metadata:
  name: %[1]s
  namespace: %[2]s
  labels: {%[3]s, pod-template-hash: 6d4b75cb6d}
  ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: %[4]s-6d4b75cb6d, uid: u, controller: true}]
spec: {nodeName: n%[5]d, containers: [{name: c, image: i}]}
status: {podIPs: [{ip: 10.244.%[5]d.%[6]d}], podIP: 10.244.%[5]d.%[6]d, phase: Running}
`, fmt.Sprintf("%s-6d4b75cb6d-%s", w.name, []string{"bcdfg", "hjklm", "npqrs"}[i]), w.namespace, w.labels, w.name, node, w.first+i)
		}
		b.WriteString(pods.String())
	}
	b.WriteString(`---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: db, namespace: shop}
spec:
  podSelector: {matchLabels: {app: db}}
  ingress:
  - from: [{podSelector: {matchExpressions: [{key: app, operator: In, values: [cart, catalog, orders]}]}}, {namespaceSelector: {}, podSelector: {matchLabels: {app: prometheus}}}]
`)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "world.yaml"), []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

var shopWorkloads = []struct {
	namespace, name, labels string
	replicas, first, addr   int
}{
	{"shop", "web", "app: web, tier: front", 3, 10, 0},
	{"shop", "cart", "app: cart, tier: back", 2, 20, 0},
	{"shop", "catalog", "app: catalog, tier: back", 2, 30, 0},
	{"shop", "search", "app: search, tier: back", 1, 40, 0},
	{"shop", "orders", "app: orders, tier: back", 2, 50, 0},
	{"shop", "payments", "app: payments, tier: back", 1, 60, 0},
	{"shop", "mailer", "app: mailer, tier: back", 1, 70, 0},
	{"shop", "queue", "app: queue, tier: data", 1, 80, 0},
	{"shop", "cache", "app: cache, tier: data", 2, 90, 0},
	{"shop", "db", "app: db, tier: data", 2, 100, 0},
	{"shop", "idle", "app: idle", 1, 110, 0},
	{"monitoring", "prometheus", "app: prometheus", 1, 120, 0},
	{"kube-system", "coredns", "k8s-app: kube-dns", 2, 130, 0},
}

// shopTraffic is what happens in the shop: each kind of connection many times.
func shopTraffic(l *shopLog, times int) {
	for _, c := range []struct{ from, to, port string }{
		{"shop/web", "shop/cart", "8080/TCP"},
		{"shop/web", "shop/catalog", "8080/TCP"},
		{"shop/web", "shop/search", "9200/TCP"},
		{"shop/cart", "shop/db", "5432/TCP"},
		{"shop/catalog", "shop/db", "5432/TCP"},
		{"shop/catalog", "shop/cache", "6379/TCP"},
		{"shop/cart", "shop/orders", "8080/TCP"},
		{"shop/orders", "shop/db", "5432/TCP"},
		{"shop/orders", "shop/payments", "8443/TCP"},
		{"shop/orders", "shop/queue", "5672/TCP"},
		{"shop/mailer", "shop/queue", "5672/TCP"},
		{"shop/payments", "198.51.100.7", "443/TCP"},
		{"shop/mailer", "198.51.100.25", "587/TCP"},
		{"shop/web", "kube-system/coredns", "53/UDP"},
		{"shop/cart", "kube-system/coredns", "53/UDP"},
		{"shop/orders", "kube-system/coredns", "53/UDP"},
		{"shop/web", "shop/db", "5432/TCP"}, // denied
		{"192.168.0.1", "shop/web", "8080/TCP"},
	} {
		l.connect(times, c.from, c.to, c.port)
	}
	for i := range 5 {
		l.connect(times, fmt.Sprintf("203.0.113.%d", i+1), "shop/web", "8080/TCP")
	}
	for _, w := range []string{"web", "cart", "catalog", "search", "orders", "db", "queue"} {
		l.connect(times, "monitoring/prometheus", "shop/"+w, "9100/TCP")
	}
}
