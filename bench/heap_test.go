package bench

import (
	"flag"
	"os"
	"runtime"
	"runtime/pprof"
	"testing"

	"github.com/tierwall/tierwall/bench/workload"
	"github.com/tierwall/tierwall/classifier"
)

var heapFile = flag.String("heapfile", "", "write a heap profile of the large cluster, compiled and warm, to this file")

// TestMemoryOfLargeCluster holds the classifier to its memory targets: index and
// addresses at most 256 bytes a pod without policies, tables at most 16 MB after
// 64k random connections. Set and world belong to the caller and do not count.
func TestMemoryOfLargeCluster(t *testing.T) {
	if testing.Short() {
		t.Skip("a hundred thousand pods take seconds: -short is set")
	}
	rate := runtime.MemProfileRate
	if *heapFile != "" {
		runtime.MemProfileRate = 512
	}
	defer func() { runtime.MemProfileRate = rate }()
	s := workload.Large
	c := workload.New(s)
	before := heap()
	l, _, err := classifier.NewLive(c.Set, c.World, classifier.Options{})
	if err != nil {
		t.Fatal(err)
	}
	cold := heap() - before
	for _, k := range c.Keys(1<<16, 7) {
		l.Table().Lookup(k)
	}
	warm := heap() - before
	m := l.Table().Memory()
	t.Logf("%s: %.1f MB cold (%d B/pod), %.1f MB after 64k connections; cells %d, programs %d bytes",
		s, float64(cold)/1e6, cold/uint64(s.Pods), float64(warm)/1e6, m.Cells, m.Programs)
	if *heapFile != "" {
		f, err := os.Create(*heapFile)
		if err != nil {
			t.Fatal(err)
		}
		if err := pprof.Lookup("heap").WriteTo(f, 0); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if m.Cells+m.Programs > 16<<20 {
		t.Errorf("tables are %d bytes, want at most 16 MB", m.Cells+m.Programs)
	}
	runtime.KeepAlive(l)

	s.Policies, s.Admin, s.Baseline = 0, 0, 0
	c = workload.New(s)
	before = heap()
	if l, _, err = classifier.NewLive(c.Set, c.World, classifier.Options{}); err != nil {
		t.Fatal(err)
	}
	perPod := (heap() - before) / uint64(s.Pods)
	t.Logf("without policies: %d B/pod", perPod)
	if perPod > 256 {
		t.Errorf("%d bytes a pod, want at most 256", perPod)
	}
	runtime.KeepAlive(l)
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
