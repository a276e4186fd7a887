package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// BenchmarkProve decides that one tenant never reaches another one, in a cluster of
// 10,000 pods, 500 namespaces and 2,000 policies of every API: isolated by one
// policy of an administrator, by one of each namespace, or not at all. heap-MiB is an
// upper bound of the peak.
func BenchmarkProve(b *testing.B) {
	whole, small := scale{namespaces: 500, podsEach: 20, policies: 2000}, scale{namespaces: 50, podsEach: 20, policies: 200}
	if testing.Short() {
		whole = small
	}
	const admin = `apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: tenants}
spec:
  tier: Admin
  priority: 0
  subject: {namespaces: {matchLabels: {team: t2}}}
  ingress: [{action: Deny, from: [{namespaces: {matchLabels: {team: t1}}}]}]
`
	var own strings.Builder
	for ns := range whole.namespaces {
		fmt.Fprintf(&own, "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: closed, namespace: ns%d}\nspec: {podSelector: {}}\n", ns)
	}
	const claim = `{from: "ns:team=t1", to: "ns:team=t2", port: any, expect: deny, forever: true, rights: {RIGHTS}}`
	for _, bb := range []struct {
		name, policies, rights string
		code                   int
		s                      scale
	}{
		{"administrator", admin, "", 0, whole},
		// New namespaces of any labels are many more kinds of pods.
		{"administrator, any namespaces, 1,000 pods", admin, "namespaces: any", 0, small},
		{"administrator, any NetworkPolicies", admin, "policies: any", 0, whole},
		{"namespaces", own.String(), "", 0, whole},
		{"namespaces, pods there are", own.String(), "pods: none", 0, whole},
		{"nobody", "", "", 1, whole},
	} {
		b.Run(bb.name, func(b *testing.B) {
			dir := b.TempDir()
			bb.s.manifests(b, dir)
			if bb.policies != "" {
				if err := os.WriteFile(filepath.Join(dir, "tenants.yaml"), []byte(bb.policies), 0o600); err != nil {
					b.Fatal(err)
				}
			}
			file := intentFile(b, "apiVersion: tierwall.io/v1\nkind: Intent\ntests:\n- "+strings.Replace(claim, "RIGHTS", bb.rights, 1)+"\n")
			for b.Loop() {
				var out, errOut strings.Builder
				if code := run(b.Context(), []string{"prove", file, "-m", dir}, strings.NewReader(""), &out, &errOut); code != bb.code {
					b.Fatalf("exit code %d: %.2000s%.2000s", code, out.String(), errOut.String())
				}
			}
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			b.ReportMetric(float64(m.HeapSys)/(1<<20), "heap-MiB")
		})
	}
}
