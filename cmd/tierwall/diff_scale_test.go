package main

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// diffScale writes a cluster twice, the second time with one policy edited.
func diffScale(tb testing.TB, s scale, edit func(string) string) (old, now string) {
	tb.Helper()
	old, now = tb.TempDir(), tb.TempDir()
	s.manifests(tb, old)
	s.manifests(tb, now)
	name := filepath.Join(now, "policies.yaml")
	text, err := os.ReadFile(name)
	if err != nil {
		tb.Fatal(err)
	}
	edited := edit(string(text))
	if edited == string(text) {
		tb.Fatal("nothing was edited")
	}
	if err := os.WriteFile(name, []byte(edited), 0o600); err != nil {
		tb.Fatal(err)
	}
	return old, now
}

// BenchmarkDiff is "tierwall diff" of 10,000 pods and 2,000 policies of every API,
// of which one is changed: a NetworkPolicy, or an AdminNetworkPolicy that selects a
// twentieth of the cluster. heap-MiB is an upper bound of the peak.
func BenchmarkDiff(b *testing.B) {
	for name, edit := range map[string]func(string) string{
		"NetworkPolicy": func(s string) string { return strings.Replace(s, "port: 53,", "port: 54,", 1) },
		"AdminNetworkPolicy": func(s string) string {
			return strings.Replace(s, "ingress: [{action: Deny", "ingress: [{action: Allow", 1)
		},
	} {
		b.Run(name, func(b *testing.B) {
			s := scale{namespaces: 500, podsEach: 20, policies: 2000}
			if testing.Short() {
				s = scale{namespaces: 50, podsEach: 20, policies: 200}
			}
			old, now := diffScale(b, s, edit)
			for b.Loop() {
				var out, errOut strings.Builder
				if code := run(b.Context(), []string{"diff", old, now}, strings.NewReader(""), &out, &errOut); code != 1 {
					b.Fatalf("exit code %d: %.2000s", code, errOut.String())
				}
			}
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			b.ReportMetric(float64(m.HeapSys)/(1<<20), "heap-MiB")
		})
	}
}
