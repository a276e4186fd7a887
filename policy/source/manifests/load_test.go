package manifests

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/inventory"
)

var kinds = []api.Kind{
	{Group: "networking.k8s.io", Version: "v1", Kind: "NetworkPolicy", Namespaced: true, New: func() any { return new(networkingv1.NetworkPolicy) }},
}

func policy(name string) string {
	return "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: " + name + ", namespace: x}\nspec: {podSelector: {}}\n"
}

func pod(name string) string {
	return "apiVersion: v1\nkind: Pod\nmetadata: {name: " + name + ", namespace: x}\n"
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
}

func symlink(t *testing.T, target, path string) {
	t.Helper()
	if err := os.Symlink(target, path); err != nil {
		t.Fatal(err)
	}
}

// names loads a path without findings and returns the policies' names.
func names(t *testing.T, path string) string {
	t.Helper()
	objs, _, found := Load(path, kinds)
	if len(found.Errors)+len(found.Warnings) > 0 {
		t.Fatalf("findings: %v", found)
	}
	var l []string
	for _, o := range objs {
		l = append(l, o.Name)
	}
	return strings.Join(l, " ")
}

// TestWhatIsRead lays out a directory with everything that is read and
// everything that is not.
func TestWhatIsRead(t *testing.T) {
	dir := t.TempDir()
	other := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	write(t, at("a.yaml"), policy("a"))
	write(t, at("b.yml"), policy("b")+"---\n"+pod("p"))
	write(t, at("c.JSON"), `{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"name":"c"},"spec":{"podSelector":{}}}`)
	write(t, at("sub/deep/d.yaml"), policy("d"))
	write(t, filepath.Join(other, "e.yaml"), policy("e"))
	symlink(t, other, at("linked"))
	symlink(t, filepath.Join(other, "e.yaml"), at("sub/README")) // a link, but not to be read
	symlink(t, dir, at("sub/around"))                            // a cycle
	for _, skipped := range []string{".hidden.yaml", ".git/g.yaml", "a.yaml~", "a.yaml.bak", ".a.yaml.swp", "#a.yaml#", "README.md", "4913"} {
		write(t, at(skipped), "not: [read")
	}
	if got, want := names(t, dir), "a b c e d"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	_, snap, _ := Load(dir, kinds)
	if len(snap.Pods) != 1 || snap.Pods[0].File != at("b.yml")+":6" {
		t.Errorf("pods: %+v", snap.Pods)
	}
	if got := names(t, at("a.yaml")); got != "a" {
		t.Errorf("a single file: %s", got)
	}
	in := Loader{Kinds: kinds, Stdin: strings.NewReader(pod("p") + "---\n" + policy("in")), Inventory: inventory.Options{AssignAddresses: true}}
	objs, snap, found := in.Load("-")
	if found.Err() != nil || len(objs) != 1 || objs[0].File != "stdin:5" || len(snap.World("").Endpoints) != 1 || len(found.Warnings) != 1 {
		t.Errorf("stdin: %v, %v", objs, found)
	}
}

// TestConfigMap reads a directory as kubelet mounts a ConfigMap.
func TestConfigMap(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "..2025_03_04_10_11_12.1/p.yaml"), policy("one"))
	symlink(t, "..2025_03_04_10_11_12.1", filepath.Join(dir, "..data"))
	symlink(t, "..data/p.yaml", filepath.Join(dir, "p.yaml"))
	if got := names(t, dir); got != "one" {
		t.Errorf("got %s", got)
	}
}

// TestBroken has one row for each input that is refused.
func TestBroken(t *testing.T) {
	dir := t.TempDir()
	for _, tc := range []struct{ name, data, want string }{
		{"empty.yaml", "", "the file has no objects (the file is empty; was it written completely?)"},
		{"blank.yaml", " \n\n", "the file has no objects"},
		{"comments.yaml", "# nothing\n", "warning: the file has no objects (remove the file if that is meant)"},
		{"tabs.yaml", "apiVersion: v1\nkind: Namespace\nmetadata:\n\tname: a\n", ":4: a tab in the indentation (YAML does not allow tabs for indentation: use spaces)"},
		{"matchlabels.yaml", strings.Replace(policy("a"), "podSelector: {}", "podSelector: {matchlabels: {a: b}}", 1), "write matchLabels"},
		{"utf16.yaml", "\xff\xfea\x00", "the file is UTF-16"},
		{"binary.yaml", "a: \x00", "binary"},
		{"10mb.yaml", "# " + strings.Repeat("x", 10_000_000-2), "the file has 10000000 bytes, the limit is 8388608 (8 MiB) (split it into several files)"},
		{"10mib.json", `{"a":"` + strings.Repeat("x", 10<<20-8) + `"}`, "the file has 10485760 bytes"},
		{"twice.yaml", policy("a") + "---\n" + policy("a"), "duplicate object, first defined at " + filepath.Join(dir, "twice.yaml:1")},
		{"address.yaml", pod("a") + "status: {podIP: x}", `"x" is not an IP address`},
	} {
		path := filepath.Join(dir, tc.name)
		write(t, path, tc.data)
		_, snap, found := Load(path, kinds)
		list, want := found.Errors, tc.want
		if w, ok := strings.CutPrefix(want, "warning: "); ok {
			list, want = found.Warnings, w
			if err := found.Err(); err != nil {
				t.Errorf("%s: %v", tc.name, err)
			}
		}
		if len(list) != 1 || !strings.Contains(list[0].String(), want) || !strings.HasPrefix(list[0].File, path) {
			t.Errorf("%s: got %v, want %s", tc.name, list, want)
		}
		if snap == nil {
			t.Errorf("%s: no snapshot", tc.name)
		}
	}
	// In a directory one bad file does not hide the others.
	objs, _, found := Load(dir, kinds)
	if len(found.Errors) < 9 || len(objs) != 2 {
		t.Errorf("all together: %d objects, %d errors", len(objs), len(found.Errors))
	}
}

// TestBrokenDirectory has what is wrong with the path and not with a file.
func TestBrokenDirectory(t *testing.T) {
	one := func(path, want string) {
		t.Helper()
		_, _, found := Load(path, kinds)
		if len(found.Errors) != 1 || !strings.Contains(found.Errors[0].String(), want) {
			t.Errorf("got %v, want %s", found.Errors, want)
		}
	}
	dir := t.TempDir()
	one(dir, dir+": the directory has no manifest (put *.yaml, *.yml or *.json files there)")
	one(filepath.Join(dir, "none"), "none: cannot be read: no such file or directory")

	pipe := filepath.Join(dir, "pipe.yaml")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	one(dir, "pipe.yaml: not a regular file")
	if err := os.Remove(pipe); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "a.yaml"), policy("a"))
	symlink(t, "nowhere", filepath.Join(dir, "b.yaml"))
	one(dir, "b.yaml: cannot be read: no such file or directory")

	in := Loader{Stdin: bytes.NewReader(make([]byte, MaxFile+1))}
	if _, _, found := in.Load("-"); len(found.Errors) != 1 || !strings.Contains(found.Errors[0].Message, "larger than allowed") {
		t.Errorf("stdin: %v", found.Errors)
	}
}

// TestTotal has more files than fit together; each alone is fine.
func TestTotal(t *testing.T) {
	dir := t.TempDir()
	text := policy("a") + "# " + strings.Repeat("x", MaxFile-1-2-len(policy("a"))) + "\n"
	write(t, filepath.Join(dir, "0.yaml"), text)
	for _, n := range []string{"1", "2", "3", "4", "5", "6", "7", "8", "9"} {
		// The same file again: an object twice is not the finding looked for.
		if err := os.Link(filepath.Join(dir, "0.yaml"), filepath.Join(dir, n+".yaml")); err != nil {
			t.Fatal(err)
		}
	}
	_, _, found := Load(dir, kinds)
	var about []string
	for _, d := range found.Errors {
		if strings.Contains(d.Message, "64 MiB") {
			about = append(about, filepath.Base(d.File))
		}
	}
	if len(about) != 1 || about[0] != "8.yaml" {
		t.Errorf("limit reported for %v, findings %v", about, found.Errors)
	}
}
