package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// scale is a cluster and the policies of every API over it, without anything
// random: the same numbers give the same files.
type scale struct{ namespaces, podsEach, policies int }

// manifests writes the cluster into dir.
func (s scale) manifests(tb testing.TB, dir string) {
	tb.Helper()
	write := func(name string, text *strings.Builder) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text.String()), 0o600); err != nil {
			tb.Fatal(err)
		}
	}
	var nodes, policies strings.Builder
	for i := range 1 + s.namespaces*s.podsEach/100 {
		fmt.Fprintf(&nodes, "---\napiVersion: v1\nkind: Node\nmetadata: {name: n%d, labels: {zone: z%d}}\nspec: {podCIDR: 10.%d.%d.0/24}\nstatus: {addresses: [{type: InternalIP, address: 192.168.%d.%d}]}\n",
			i, i%3, i/250, i%250, i/250, 1+i%250)
	}
	write("nodes.yaml", &nodes)
	for ns := range s.namespaces {
		var b strings.Builder
		fmt.Fprintf(&b, "apiVersion: v1\nkind: Namespace\nmetadata: {name: ns%d, labels: {team: t%d, env: e%d}}\n", ns, ns%20, ns%3)
		for p := range s.podsEach {
			i := ns*s.podsEach + p
			fmt.Fprintf(&b, "---\napiVersion: v1\nkind: Pod\nmetadata: {name: p%d, namespace: ns%d, labels: {app: a%d, tier: r%d}}\n"+
				"spec: {nodeName: n%d, serviceAccountName: sa%d, containers: [{name: c, image: i, ports: [{name: http, containerPort: %d}]}]}\n"+
				"status: {phase: Running, podIP: 10.%d.%d.%d}\n",
				p, ns, p%10, p%3, i/100, p%5, 8000+p%10, i/100/250, i/100%250, 1+i%100)
		}
		write(fmt.Sprintf("ns%d.yaml", ns), &b)
	}
	for i := range s.policies {
		policies.WriteString("---\n" + s.policy(i))
	}
	write("policies.yaml", &policies)
}

// policy returns the i-th policy; ten in a row are of every API.
func (s scale) policy(i int) string {
	ns, app, peer := i%s.namespaces, i/7%10, i/3%10
	namespaced := fmt.Sprintf("metadata: {name: p%d, namespace: ns%d}\n", i, ns)
	clusterwide := fmt.Sprintf("metadata: {name: p%d}\n", i)
	team, other := fmt.Sprintf("{matchLabels: {team: t%d}}", i%20), fmt.Sprintf("{matchLabels: {team: t%d}}", (i+1)%20)
	switch i % 10 {
	case 0:
		return "apiVersion: policy.networking.k8s.io/v1alpha1\nkind: AdminNetworkPolicy\n" + clusterwide + fmt.Sprintf(
			"spec: {priority: %d, subject: {namespaces: %s}, ingress: [{action: Deny, from: [{namespaces: %s}], ports: [{portNumber: {protocol: TCP, port: %d}}]}, {action: Pass, from: [{namespaces: %s}]}]}\n",
			i/10%1000, team, other, 1000+i, team)
	case 1:
		return "apiVersion: policy.networking.k8s.io/v1alpha2\nkind: ClusterNetworkPolicy\n" + clusterwide + fmt.Sprintf(
			"spec: {tier: %s, priority: %d, subject: {namespaces: %s}, egress: [{action: Accept, to: [{namespaces: %s}]}, {action: Deny, to: [{networks: [198.51.%d.0/24]}]}]}\n",
			[]string{"Admin", "Baseline"}[i/10%2], 200+i/10%800, team, team, i%250)
	case 2:
		return "apiVersion: netpol.networking.k8s.io/v1alpha1\nkind: ClusterNetworkPolicy\n" + clusterwide + fmt.Sprintf(
			"spec: {appliedTo: {namespaceSelector: %s}, ingress: [{action: Deny, ports: [{port: %d}], from: [{namespaceSelector: %s}]}, {action: Empower, from: [{namespaces: {scope: Self}}]}]}\n",
			team, 2000+i, other)
	case 3:
		return "apiVersion: crd.antrea.io/v1beta1\nkind: ClusterNetworkPolicy\n" + clusterwide + fmt.Sprintf(
			"spec: {tier: %s, priority: %d, appliedTo: [{namespaceSelector: %s, podSelector: {matchLabels: {app: a%d}}}], ingress: [{action: Drop, from: [{namespaceSelector: %s}], ports: [{port: %d, protocol: TCP}]}], egress: [{action: Drop, to: [{ipBlock: {cidr: 203.0.%d.0/24}}]}]}\n",
			[]string{"securityops", "application", "baseline"}[i/10%3], 1+i, team, app, other, 3000+i, i%250)
	case 4:
		return "apiVersion: crd.antrea.io/v1beta1\nkind: NetworkPolicy\n" + namespaced + fmt.Sprintf(
			"spec: {priority: %d, appliedTo: [{podSelector: {matchLabels: {app: a%d}}}], ingress: [{action: Allow, from: [{podSelector: {matchLabels: {app: a%d}}}], ports: [{port: %d, protocol: TCP}]}]}\n",
			1+i, app, peer, 4000+i)
	case 5:
		return "apiVersion: cilium.io/v2\nkind: CiliumNetworkPolicy\n" + namespaced + fmt.Sprintf(
			"spec: {endpointSelector: {matchLabels: {app: a%d}}, ingress: [{fromEndpoints: [{matchLabels: {app: a%d}}], toPorts: [{ports: [{port: \"%d\", protocol: TCP}]}]}], ingressDeny: [{fromEndpoints: [{matchLabels: {tier: r1}}], toPorts: [{ports: [{port: \"%d\", protocol: TCP}]}]}]}\n",
			app, peer, 5000+i, 7000+i)
	default:
		return "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\n" + namespaced + fmt.Sprintf(
			"spec: {podSelector: {matchLabels: {app: a%d}}, policyTypes: [Ingress, Egress], ingress: [{from: [{podSelector: {matchLabels: {app: a%d}}}], ports: [{port: http}]}, {from: [{namespaceSelector: %s}], ports: [{port: %d}]}], egress: [{to: [{namespaceSelector: {}}], ports: [{port: 53, protocol: UDP}]}, {to: [{ipBlock: {cidr: 192.0.%d.0/24}}]}]}\n",
			app, peer, team, 6000+i, i%250)
	}
}

// Choosing pods of the whole cluster, every pod known to every node, is
// bounded in memory. A fifth of the benchmark's cluster, in less than a fifth of
// the gibibyte the whole one may take; BenchmarkCheck measures that one.
func TestCheckScale(t *testing.T) {
	dir := t.TempDir()
	scale{namespaces: 40, podsEach: 50, policies: 400}.manifests(t, dir)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	r := tierwall(t, "", "check", "-m", dir)
	runtime.ReadMemStats(&after)
	if r.code != 0 || !strings.Contains(r.out, "400 policies: 0 errors") {
		t.Errorf("exit code %d: %.2000s", r.code, r.out)
	}
	if grown := int64(after.HeapSys) - int64(before.HeapSys); grown > 200<<20 { // S0-90
		t.Errorf("the heap grew by %d MiB", grown>>20)
	}
}

// BenchmarkCheck is "tierwall check" of 2,000 policies of every API over 10,000
// pods: files read, decoded, lowered, compiled and judged. heap-MiB is what the
// process got from the system for its heap, an upper bound of the peak.
//
// TIERWALL_SCALE_DIR keeps the files, to run the program itself on them.
func BenchmarkCheck(b *testing.B) {
	dir := os.Getenv("TIERWALL_SCALE_DIR")
	if dir == "" {
		dir = b.TempDir()
	}
	scale{namespaces: 200, podsEach: 50, policies: 2000}.manifests(b, dir)
	var out strings.Builder
	for b.Loop() {
		out.Reset()
		if code := run(b.Context(), []string{"check", "-m", dir}, strings.NewReader(""), &out, &out); code != 0 {
			b.Fatalf("exit code %d: %.2000s", code, out.String())
		}
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	b.ReportMetric(float64(m.HeapSys)/(1<<20), "heap-MiB")
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	b.Log(lines[len(lines)-1])
}
