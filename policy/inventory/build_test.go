package inventory_test

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/decode"
	"github.com/tierwall/tierwall/policy/inventory"
)

// objects decodes YAML that has to be right.
func objects(t *testing.T, text string) []*api.Object {
	t.Helper()
	objs, found := new(decode.Decoder).Decode("in", []byte(text))
	if err := found.Err(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return objs
}

var addrs = cmp.Comparer(func(a, b netip.Addr) bool { return a == b })

// TestKubectl builds the world of objects as kubectl prints them.
func TestKubectl(t *testing.T) {
	var objs []*api.Object
	files, err := filepath.Glob("../decode/testdata/kubectl/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if filepath.Base(f) == "policies.yaml" {
			continue
		}
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		objs = append(objs, objects(t, string(data))...)
	}
	slices.Reverse(objs) // the order must not matter
	s, found := inventory.Build(objs, inventory.Options{})
	if len(found.Errors)+len(found.Warnings) > 0 {
		t.Fatalf("findings: %v", found)
	}
	ip := netip.MustParseAddr
	want := &inventory.Snapshot{
		Namespaces: []inventory.Namespace{
			{Name: "kube-system", Labels: map[string]string{"kubernetes.io/metadata.name": "kube-system"}},
			{
				Name: "shop", Labels: map[string]string{"kubernetes.io/metadata.name": "shop", "team": "sales"},
				Annotations: map[string]string{"networkpolicy.antrea.io/enable-logging": "true"},
			},
		},
		Pods: []inventory.Pod{
			{
				Namespace: "kube-system", Name: "kube-proxy-9w7xm", Labels: map[string]string{"k8s-app": "kube-proxy"},
				ServiceAccount: "kube-proxy", Node: "node-1", HostNetwork: true, IPs: []netip.Addr{ip("192.0.2.11")},
				Ports:    []rule.NamedPort{{Name: "metrics", Proto: flow.TCP, Port: 10249}},
				Workload: inventory.Workload{Kind: "Pod", Name: "kube-proxy-9w7xm"},
			},
			{Namespace: "shop", Name: "new", ServiceAccount: "default", Node: "node-1", Workload: inventory.Workload{Kind: "Pod", Name: "new"}},
			{
				Namespace: "shop", Name: "web-6d4cf56db6-x2x7k", ServiceAccount: "shop", Node: "node-1", Workload: inventory.Workload{Kind: "Deployment", Name: "web"},
				Labels: map[string]string{"app": "web", "pod-template-hash": "6d4cf56db6", "tier": "1"},
				IPs:    []netip.Addr{ip("10.244.1.7"), ip("fd00:10:244:1::7")},
				Ports: []rule.NamedPort{
					{Name: "proxy", Proto: flow.TCP, Port: 15001}, {Name: "http", Proto: flow.TCP, Port: 8080}, {Name: "metrics", Proto: flow.TCP, Port: 9102},
				},
			},
		},
		Nodes: []inventory.Node{{
			Name:     "node-1",
			Addrs:    []netip.Addr{ip("192.0.2.11"), ip("2001:db8::11"), ip("198.51.100.7")},
			PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24"), netip.MustParsePrefix("fd00:10:244:1::/64")},
		}},
		Services: []inventory.Service{
			{Namespace: "shop", Name: "away"},
			{Namespace: "shop", Name: "db", Selector: map[string]string{"app": "db"}, Headless: true, Ports: []inventory.ServicePort{{Proto: "TCP", Port: 5432, TargetPort: 5432}}},
			{
				Namespace: "shop", Name: "web", Selector: map[string]string{"app": "web"},
				ClusterIPs:  []netip.Addr{ip("10.96.12.34"), ip("fd00:10:96::1234")},
				ExternalIPs: []netip.Addr{ip("203.0.113.9"), ip("192.0.2.11"), ip("203.0.113.80")},
				Ports: []inventory.ServicePort{
					{Name: "http", Proto: "TCP", Port: 80, TargetName: "http", NodePort: 31080},
					{Name: "dns", Proto: "UDP", Port: 53, TargetPort: 5353, NodePort: 31053},
					{Name: "plain", Proto: "TCP", Port: 9000, TargetPort: 9000},
				},
			},
		},
	}
	opts := []cmp.Option{
		addrs, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }), cmpopts.EquateEmpty(),
		cmpopts.IgnoreFields(inventory.Namespace{}, "File"), cmpopts.IgnoreFields(inventory.Pod{}, "File"),
		cmpopts.IgnoreFields(inventory.Node{}, "File", "Labels"), cmpopts.IgnoreFields(inventory.Service{}, "File"),
	}
	if d := cmp.Diff(want, s, opts...); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}

	w, err := s.WorldOf("node-1")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for i := range w.Endpoints {
		e := &w.Endpoints[i]
		names = append(names, fmt.Sprintf("%s/%s host=%v local=%v %v", e.Namespace, e.Name, e.HostNetwork, w.Local(e), e.NamespaceLabels))
	}
	wantNames := []string{
		"kube-system/kube-proxy-9w7xm host=true local=false map[kubernetes.io/metadata.name:kube-system]",
		"shop/web-6d4cf56db6-x2x7k host=false local=true map[kubernetes.io/metadata.name:shop team:sales]",
	}
	if d := cmp.Diff(wantNames, names); d != "" {
		t.Errorf("endpoints: (-want +got)\n%s", d)
	}
	// The node's own address is no VIP, although a Service has it as externalIP.
	vips := []netip.Addr{ip("10.96.12.34"), ip("203.0.113.9"), ip("203.0.113.80"), ip("fd00:10:96::1234")}
	if d := cmp.Diff(vips, w.VIPs, addrs); d != "" {
		t.Errorf("VIPs: (-want +got)\n%s", d)
	}
	if len(w.Nodes) != 1 || len(w.Nodes[0].Addrs) != 3 || len(w.Nodes[0].PodCIDRs) != 2 || w.Node != "node-1" {
		t.Errorf("nodes: %+v", w.Nodes)
	}
	if _, err := s.WorldOf("node-2"); err == nil || !strings.Contains(err.Error(), `"node-2"`) {
		t.Errorf("unknown node: %v", err)
	}
	if w, err := s.WorldOf(""); err != nil || !w.Local(&w.Endpoints[1]) {
		t.Errorf("the world of no node: %v", err)
	}
}

func pod(name, spec, status string) string {
	return fmt.Sprintf("---\napiVersion: v1\nkind: Pod\nmetadata: {name: %s, namespace: x}\nspec: {%s}\nstatus: {%s}\n", name, spec, status)
}

// TestFindings has one row for each thing Build refuses or remarks.
func TestFindings(t *testing.T) {
	node := "---\napiVersion: v1\nkind: Node\nmetadata: {name: n}\n"
	svc := "---\napiVersion: v1\nkind: Service\nmetadata: {name: s, namespace: x}\n"
	for _, tc := range []struct{ in, want string }{
		{pod("a", "", "podIP: 10.0.0.256"), `in:2: Pod x/a: status.podIP: "10.0.0.256" is not an IP address`},
		{pod("a", "", "podIP: 10.0.0.01"), `status.podIP: "10.0.0.01" is not an IP address`},
		{pod("a", "", `podIPs: [{ip: "fe80::1%eth0"}]`), `status.podIPs[0].ip: "fe80::1%eth0" is not an IP address`},
		{pod("a", "", "podIP: 127.0.0.1"), "status.podIP: 127.0.0.1 cannot be the address of a host"},
		{pod("a", "", `podIP: "ff02::1"`), "status.podIP: ff02::1 cannot be the address of a host"},
		{pod("a", "", "podIP: 10.0.0.1, podIPs: [{ip: 10.0.0.2}]"), "status.podIP: podIP 10.0.0.1 is not the first of podIPs, 10.0.0.2"},
		{pod("a", "", "podIPs: [{ip: 10.0.0.1}, {ip: 10.0.0.2}]"), "status.podIPs[1].ip: 10.0.0.2 is a second address beside 10.0.0.1"},
		{pod("a", "", "phase: Walking"), `status.phase: unknown phase "Walking"`},
		{pod("a", "", "podIP: 10.0.0.1") + pod("b", "", `podIP: "::ffff:10.0.0.1"`), "Pod x/b: status.podIPs: address 10.0.0.1 is also that of pod x/a"},
		{pod("a", "containers: [{name: c, ports: [{containerPort: 0}]}]", ""), "spec.containers[0].ports[0].containerPort: 0 is not a port"},
		{pod("a", "containers: [{name: c, ports: [{containerPort: 65536, name: x}]}]", ""), "65536 is not a port"},
		{pod("a", "containers: [{name: c, ports: [{containerPort: 1, protocol: tcp}]}]", ""), `spec.containers[0].ports[0].protocol: unknown protocol "tcp" (write TCP)`},
		{node + "status: {addresses: [{type: InternalIP, address: x}]}", `status.addresses[0].address: "x" is not an IP address`},
		{node + "spec: {podCIDRs: [10.0.0.0/33]}", `spec.podCIDRs[0]: "10.0.0.0/33" is not a prefix`},
		{node + "spec: {podCIDR: 10.0.0.0}", `spec.podCIDR: "10.0.0.0" is not a prefix`},
		{node + "spec: {podCIDR: 10.0.0.0/24, podCIDRs: [10.0.1.0/24]}", "podCIDR 10.0.0.0/24 is not the first of podCIDRs"},
		{svc + "spec: {clusterIP: 10.96.0.1, clusterIPs: [10.96.0.2]}", "clusterIP 10.96.0.1 is not the first of clusterIPs"},
		{svc + "spec: {clusterIP: x}", `spec.clusterIP: "x" is not an IP address`},
		{svc + "spec: {ports: [{port: 0}]}", "spec.ports[0].port: 0 is not a port"},
		{svc + "spec: {ports: [{port: 1, targetPort: 70000}]}", "spec.ports[0].targetPort: 70000 is not a port"},
		{svc + "spec: {ports: [{port: 1, protocol: ICMP}]}", "spec.ports[0].protocol: unknown protocol"},
		{"apiVersion: v1\nkind: Namespace\nmetadata: {name: x, labels: {kubernetes.io/metadata.name: z}}\n", `warning: in:1: Namespace x: metadata.labels["kubernetes.io/metadata.name"]: the value "z" is replaced`},
		{"apiVersion: v1\nkind: Namespace\nmetadata: {name: other}\n" + pod("a", "", ""), `warning: in:5: Pod x/a: metadata.namespace: namespace "x" is not declared`},
	} {
		_, found := inventory.Build(objects(t, tc.in), inventory.Options{})
		var got []string
		for _, d := range found.Errors {
			got = append(got, d.String())
		}
		for _, d := range found.Warnings {
			got = append(got, "warning: "+d.String())
		}
		if len(got) != 1 || !strings.Contains(got[0], tc.want) {
			t.Errorf("%s\ngot  %q\nwant %q", tc.in, got, tc.want)
		}
	}
}

// TestAlive has one row for each way a pod can be there or not.
func TestAlive(t *testing.T) {
	for _, tc := range []struct {
		name, spec, status string
		known, addressed   bool
	}{
		{"running", "", "phase: Running, podIP: 10.0.0.1", true, true},
		{"no phase", "", "podIP: 10.0.0.1", true, true},
		{"init containers run", "", "phase: Pending, podIP: 10.0.0.1", true, true},
		{"pending", "", "phase: Pending", true, false},
		{"node lost", "", "phase: Unknown, podIP: 10.0.0.1", true, true},
		{"succeeded", "", "phase: Succeeded, podIP: 10.0.0.1", false, false},
		{"failed", "", "phase: Failed, podIP: 10.0.0.1", false, false},
	} {
		s, found := inventory.Build(objects(t, pod("a", tc.spec, tc.status)), inventory.Options{})
		if err := found.Err(); err != nil {
			t.Fatal(err)
		}
		if known, addressed := len(s.Pods) == 1, len(s.World("").Endpoints) == 1; known != tc.known || addressed != tc.addressed {
			t.Errorf("%s: known %v, addressed %v", tc.name, known, addressed)
		}
	}
	// A finished pod's address is another's now; host-network pods share theirs.
	in := pod("a", "", "phase: Succeeded, podIP: 10.0.0.1") + pod("b", "", "podIP: 10.0.0.1") +
		pod("c", "hostNetwork: true", "podIP: 10.0.0.2") + pod("d", "hostNetwork: true", "podIP: 10.0.0.2")
	s, found := inventory.Build(objects(t, in), inventory.Options{})
	if err := found.Err(); err != nil || len(s.Pods) != 3 {
		t.Errorf("got %d pods, %v", len(s.Pods), err)
	}
	// The namespace is implied, with its name as label. S2-106
	if len(s.Namespaces) != 1 || s.Namespaces[0].Labels["kubernetes.io/metadata.name"] != "x" || s.Namespaces[0].File != "" {
		t.Errorf("namespaces: %+v", s.Namespaces)
	}
}

// TestAssign gives addresses to pods written by hand, and to no others.
func TestAssign(t *testing.T) {
	in := "apiVersion: v1\nkind: Node\nmetadata: {name: n}\nstatus: {addresses: [{type: InternalIP, address: 192.0.2.1}]}\n" +
		pod("a", "", "") + pod("b", "", "phase: Running") + pod("given", "", "podIP: 10.0.0.1") + pod("pending", "", "phase: Pending") +
		pod("host", "hostNetwork: true, nodeName: n", "")
	build := func(in string) map[string][]netip.Addr {
		s, found := inventory.Build(objects(t, in), inventory.Options{AssignAddresses: true})
		if err := found.Err(); err != nil {
			t.Fatal(err)
		}
		if len(found.Warnings) != 1 || !strings.HasPrefix(found.Warnings[0].Message, "2 pods without an address were given made-up ones, x/a first") {
			t.Errorf("warnings: %v", found.Warnings)
		}
		ips := map[string][]netip.Addr{}
		for _, p := range s.Pods {
			ips[p.Name] = p.IPs
		}
		return ips
	}
	ips := build(in)
	for _, name := range []string{"a", "b"} {
		if l := ips[name]; len(l) != 2 || !inventory.SyntheticIPv4.Contains(l[0]) || !inventory.SyntheticIPv6.Contains(l[1]) {
			t.Errorf("%s has %v", name, l)
		}
	}
	if ips["a"][0] == ips["b"][0] || ips["a"][1] == ips["b"][1] {
		t.Errorf("a and b share an address: %v", ips)
	}
	if fmt.Sprint(ips["given"], ips["pending"], ips["host"]) != "[10.0.0.1] [] [192.0.2.1]" {
		t.Errorf("other pods: %v", ips)
	}
	// The same objects give the same addresses; a taken one is stepped over.
	if again := build(in); cmp.Diff(ips, again, addrs) != "" {
		t.Errorf("second time: %v, first %v", again, ips)
	}
	taken := build(in + pod("taken", "", fmt.Sprintf("podIP: %s, podIPs: [{ip: %s}, {ip: %q}]", ips["a"][0], ips["a"][0], ips["a"][1])))
	if taken["a"][0] == ips["a"][0] || taken["a"][1] == ips["a"][1] || taken["b"][0] != ips["b"][0] {
		t.Errorf("with a's addresses taken: %v, before %v", taken, ips)
	}
	// Many pods: no two alike, whatever the hashes.
	var many strings.Builder
	for i := range 3000 {
		fmt.Fprintf(&many, "---\n{apiVersion: v1, kind: Pod, metadata: {name: p%d}}\n", i)
	}
	s, found := inventory.Build(objects(t, many.String()), inventory.Options{AssignAddresses: true})
	if err := found.Err(); err != nil || len(s.World("").Endpoints) != 3000 {
		t.Errorf("many: %v", err)
	}
	// Without the option nothing is made up.
	if s, _ := inventory.Build(objects(t, in), inventory.Options{}); len(s.World("").Endpoints) != 1 {
		t.Errorf("without the option: %+v", s.World("").Endpoints)
	}
}
