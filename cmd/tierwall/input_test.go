package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// bigDump is a cluster as kubectl get -A -o yaml prints it, larger than 8 MiB.
func bigDump(pods int) string {
	var b strings.Builder
	b.WriteString("apiVersion: v1\nitems:\n")
	filler := ""
	for i := range 60 {
		filler += fmt.Sprintf("        f:a-field-of-the-server-side-%d:\n          f:sub: {}\n", i)
	}
	for i := range pods {
		fmt.Fprintf(&b, "- apiVersion: v1\n  kind: Pod\n  metadata:\n    labels:\n      app: a%d\n    managedFields:\n    - apiVersion: v1\n      fieldsV1:\n%s      manager: kubelet\n"+
			"    name: p%d\n    namespace: n\n  spec:\n    containers:\n    - image: i\n      name: c\n  status:\n    phase: Running\n    podIP: 10.0.%d.%d\n", i%10, filler, i, i/200, 1+i%200)
	}
	b.WriteString("- apiVersion: v1\n  data: {}\n  kind: ConfigMap\n  metadata: {name: c, namespace: n}\n- apiVersion: v1\n  data: {}\n  kind: Secret\n  metadata: {name: c, namespace: n}\n")
	b.WriteString("- apiVersion: networking.k8s.io/v1\n  kind: NetworkPolicy\n  metadata: {name: np, namespace: n}\n  spec:\n    podSelector: {}\n")
	b.WriteString("kind: List\nmetadata:\n  resourceVersion: \"\"\n")
	return b.String()
}

// A dump larger than a daemon would read is read from a file, standard input and a pipe
// with a path.
func TestInputHasNoSizeLimit(t *testing.T) {
	text := bigDump(2600)
	if len(text) < 8<<20 {
		t.Fatalf("only %d bytes", len(text))
	}
	file := filepath.Join(t.TempDir(), "dump.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe() // what the shell makes of <(…)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	go func() {
		defer w.Close()
		_, _ = w.WriteString(text) // a reader that gives up is seen below
	}()
	for name, got := range map[string]result{
		"file":  tierwall(t, "", "check", "-m", file),
		"stdin": tierwall(t, text, "check", "-m", "-"),
		"pipe":  tierwall(t, "", "check", "-m", fmt.Sprintf("/dev/fd/%d", r.Fd())),
	} {
		if got.code != 0 || !strings.Contains(got.out, "1 policy: 0 errors, ") || !strings.Contains(got.out, "2 objects ignored, not used for policy: 1 ConfigMap, 1 Secret") {
			t.Errorf("%s: exit code %d: %.600s%.300s", name, got.code, got.out, got.err)
		}
	}
}

// Repeated -m adds up; files, directories and lists mix.
func TestManifestsAddUp(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	policy := func(name string) string {
		return "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: " + name + ", namespace: shop}\nspec: {podSelector: {}}\n"
	}
	one := write("one.yaml", policy("one"))
	write("more/two.yaml", policy("two"))
	list := write("list", "apiVersion: v1\nkind: List\nitems:\n- "+strings.ReplaceAll(strings.TrimSpace(policy("three")), "\n", "\n  ")+"\n")
	r := tierwall(t, workloads, "get", "policies", "-m", one, "-m", filepath.Join(dir, "more"), "-m", list, "-m", "-", "-o", "json")
	for _, name := range []string{"one", "two", "three", "db"} {
		if r.code != 0 || !strings.Contains(r.out, `"name": "`+name+`"`) {
			t.Errorf("%s is missing: %s%s", name, r.out, r.err)
		}
	}
}

// The path /dev/stdin is what it says.
func TestDevStdin(t *testing.T) {
	if os.Getenv("TIERWALL_CHILD") != "" {
		os.Exit(run(t.Context(), []string{"check", "-m", "/dev/stdin"}, os.Stdin, os.Stdout, os.Stderr))
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestDevStdin$")
	cmd.Env = append(os.Environ(), "TIERWALL_CHILD=1")
	cmd.Stdin = strings.NewReader(workloads)
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "1 policy: 0 errors") {
		t.Errorf("%v: %s", err, out)
	}
}
