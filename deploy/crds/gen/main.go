// Command gen writes the CustomResourceDefinitions in deploy/crds from the Go
// types the daemon decodes, by reflection:
//
//	go generate ./deploy/crds
//
// controller-gen is the usual tool for this. It cannot do these: the released
// AdminNetworkPolicy is a generic type, one kind has three shapes whose union is
// the schema, one type serves several versions, and every object has to
// keep the fields it does not know. The types' Go documentation becomes the
// descriptions that kubectl explain prints.
//
// Why unknown fields are kept: an API server drops what a schema does not have,
// without a word to a client that did not ask for strict validation. A selector
// with a typo would arrive here as an empty one, which selects everything.
// Kept, it arrives as written and is refused, by the admission webhook where there
// is one and by every daemon in any case. The price is that kubectl's own check
// for unknown fields does not see them.
//
// The schemas check what can be checked without a doubt and leave the rest to the
// webhook and the daemon, which read with the same code as `tierwall check` and
// say what to write instead. A schema must never refuse what they accept.
package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"

	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

func main() {
	if err := run("."); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

// run writes all files below dir, deploy/crds.
func run(dir string) error {
	files, err := files(filepath.Join(dir, "../.."))
	if err != nil {
		return err
	}
	for name, data := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// chartFolder is where Helm looks for definitions. It warns about each symbolic
// link, so these are copies.
const chartFolder = "../charts/tierwall/crds"

// files returns the content of every file by its path below deploy/crds. root is
// the module's folder, whose sources have the descriptions.
func files(root string) (map[string][]byte, error) {
	docs, err := readDocs(root, apiPackages...)
	if err != nil {
		return nil, err
	}
	out := map[string][]byte{}
	for _, k := range kinds {
		crd, err := k.definition(docs)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", k.name(), err)
		}
		data, err := print(crd)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", k.name(), err)
		}
		out[filepath.Join(k.folder, k.name()+".yaml")] = data
		out[filepath.Join(chartFolder, k.name()+".yaml")] = data
	}
	return out, nil
}

// print is YAML without the fields an API server fills in.
func print(crd *v1.CustomResourceDefinition) ([]byte, error) {
	raw, err := runtime.DefaultUnstructuredConverter.ToUnstructured(crd)
	if err != nil {
		return nil, err
	}
	delete(raw, "status")
	delete(raw["metadata"].(map[string]any), "creationTimestamp")
	data, err := yaml.Marshal(raw)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	b.WriteString("# Generated from the Go types by deploy/crds/gen; do not edit.\n")
	b.Write(data)
	return b.Bytes(), nil
}
