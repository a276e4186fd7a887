package decode

import (
	"bytes"
	"os"
	"testing"
)

// BenchmarkDecode reads a list of full pods, the bulk of any cluster.
func BenchmarkDecode(b *testing.B) {
	pods, err := os.ReadFile("testdata/kubectl/pods.yaml")
	if err != nil {
		b.Fatal(err)
	}
	data := bytes.Repeat(append([]byte("---\n"), pods...), 100)
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		if objs, found := testDecoder.Decode("pods.yaml", data); len(objs) != 400 || len(found.Errors) > 0 {
			b.Fatalf("%d objects, %v", len(objs), found.Errors)
		}
	}
}
