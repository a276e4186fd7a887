package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func run(args []string, out io.Writer) error {
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(out)
	return root.Execute()
}

func TestGen(t *testing.T) {
	var first [4][]byte
	for round := range 2 {
		dir := filepath.Join(t.TempDir(), "new")
		var out bytes.Buffer
		if err := run([]string{"gen", "--pods", "120", "--policies", "30", "--per-node", "40", dir}, &out); err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(out.String(), "3 nodes, 120 pods, ") {
			t.Errorf("says %q", out.String())
		}
		for i, name := range []string{"nodes.yaml", "namespaces.yaml", "pods.yaml", "policies.yaml"} {
			text, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			if round == 0 {
				first[i] = text
			} else if !bytes.Equal(first[i], text) {
				t.Errorf("%s differs from run to run", name)
			}
		}
	}
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{{"other"}, {"gen"}, {"gen", "a", "b"}, {"gen", "--pods", "0", "a"}, {"gen", "--no-such", "a"}} {
		if err := run(args, &bytes.Buffer{}); err == nil {
			t.Errorf("%q is accepted", args)
		}
	}
}

// What is wrong on the command line shows before anything is measured: the report
// would be lost with it.
func TestMistakesShowAtOnce(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for want, flags := range map[string][]string{
		"-o xml":              {"-o", "xml"},
		"--subjects nobody":   {"--subjects", "kernel,nobody"},
		"--rounds":            {"--rounds", "-1"},
		file:                  {"--plots", filepath.Join(file, "plots")},
		filepath.Base(file):   {"--record", filepath.Join(file, "results")},
		`"0.5" for "--window`: {"--window", "0.5"},
	} {
		for _, command := range []string{"dataplane", "flood", "churn", "restart"} {
			var out bytes.Buffer
			err := run(append([]string{command, "--quick", "--subjects", "kernel", "--daemon", file}, flags...), &out)
			if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "exec") || out.Len() > 0 {
				t.Errorf("%s %q: %v, printed %q", command, flags, err, out.String())
			}
		}
	}
}
