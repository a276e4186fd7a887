package bench

import (
	"fmt"
	"testing"

	"github.com/tierwall/tierwall/bench/workload"
	"github.com/tierwall/tierwall/classifier"
)

// BenchmarkPrefixes looks up connections under raw prefix rules in the manner of
// ClassBench: the boundary of the table's method, since nothing about the
// addresses is known in advance.
func BenchmarkPrefixes(b *testing.B) {
	for _, n := range []int{1_000, 10_000} {
		p := workload.Prefixes(workload.PrefixSpec{Rules: n, Seed: 1})
		b.Run(fmt.Sprintf("compile/rules=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, _, err := classifier.Compile(p.Set, p.World, classifier.Options{}); err != nil {
					b.Fatal(err)
				}
			}
		})
		table, _, err := classifier.Compile(p.Set, p.World, classifier.Options{})
		if err != nil {
			b.Fatal(err)
		}
		b.Run(fmt.Sprintf("lookup/rules=%d", n), func(b *testing.B) {
			keys := p.Keys(1<<14, 2)
			for _, k := range keys {
				table.Lookup(k)
			}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				table.Lookup(keys[i&(len(keys)-1)])
				i++
			}
			m := table.Memory()
			b.ReportMetric(float64(m.Cells+m.Programs), "table-B")
		})
	}
}

// BenchmarkDualStack is the lookup of half IPv6 connections in the medium
// cluster.
func BenchmarkDualStack(b *testing.B) {
	s := workload.Medium
	s.DualStack = true
	c := workload.New(s)
	table, _, err := classifier.Compile(c.Set, c.World, classifier.Options{})
	if err != nil {
		b.Fatal(err)
	}
	for name, n := range map[string]int{"hot": 1 << 10, "random": 1 << 16} {
		b.Run(s.String()+"/access="+name, func(b *testing.B) {
			keys := c.Keys(n, 7)
			for _, k := range keys {
				table.Lookup(k)
			}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				table.Lookup(keys[i&(len(keys)-1)])
				i++
			}
			b.ReportMetric(float64(table.Memory().Addresses)/float64(s.Pods), "B/pod")
		})
	}
}
