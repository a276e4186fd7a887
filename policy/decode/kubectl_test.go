package decode

import (
	"os"
	"path/filepath"
	"testing"
)

// TestKubectl decodes objects as "kubectl get -o yaml" and "-o json" print them:
// without a single finding.
func TestKubectl(t *testing.T) {
	for file, want := range map[string]int{"pods.yaml": 4, "nodes.yaml": 1, "services.yaml": 3, "namespaces.json": 2, "policies.yaml": 1} {
		data, err := os.ReadFile(filepath.Join("testdata/kubectl", file))
		if err != nil {
			t.Fatal(err)
		}
		objs, found := testDecoder.Decode(file, data)
		if len(found.Errors)+len(found.Warnings) > 0 {
			t.Errorf("%s: %v", file, found)
		}
		if len(objs) != want {
			t.Errorf("%s: got %d objects, want %d", file, len(objs), want)
		}
	}
}
