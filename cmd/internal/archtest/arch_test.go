package archtest

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/tierwall/tierwall/"

// forbid says that packages under from must not import packages under any of
// to. A trailing "!" on a to-entry matches that package alone. Paths of this
// module are written without the module's prefix.
type forbid struct {
	from   string
	to     []string
	except []string // folders under from that may
	tests  bool     // test files are bound by the rule, too
	why    string
}

var rules = []forbid{
	{
		from: "classifier", to: []string{"policy", "dataplane", "conntrack", "cmd", "k8s.io", "sigs.k8s.io", "net/http", "github.com/prometheus"},
		tests: true, why: "the classifier defines the language the others speak; it builds without a cluster",
	},
	{
		from: "conntrack", to: []string{"policy", "dataplane", "cmd", "k8s.io", "sigs.k8s.io", "net/http", "github.com/prometheus"},
		tests: true, why: "connection tracking knows flows, not policies or packets",
	},
	{
		from: "dataplane", to: []string{"policy", "cmd", "k8s.io", "sigs.k8s.io", "net/http", "github.com/prometheus"},
		tests: true, why: "the hot half must build and be tested without a cluster",
	},
	{
		from: "policy", to: []string{"dataplane", "conntrack", "cmd"},
		tests: true, why: "policy is testable as pure functions",
	},
	{
		from: "classifier/flow", to: []string{"classifier!", "classifier/rule", "github.com", "golang.org"}, why: "leaves stay leaves",
	},
	{
		from: "classifier/rule", to: []string{"classifier!", "golang.org", "github.com/gaissmai"}, why: "leaves stay leaves",
	},
	{
		from: "policy/lower", to: []string{"os", "net/http", "net!", "time", "sync", "context", "k8s.io/client-go"},
		why: "lowering does no I/O, takes no clock and starts no goroutine: same objects, same rules, on every machine",
	},
	{
		from: "", to: []string{"classifier/oracle", "policy/simulate", "policy/internal/fixture", "dataplane/fake", "dataplane/nstest!"},
		except: []string{"classifier/oracle", "policy/simulate", "policy/internal/fixture", "dataplane/fake", "dataplane/nstest"},
		why:    "test support stays out of the binaries",
	},
	{
		from: "dataplane/afxdp/xsk", to: []string{"classifier", "conntrack", "dataplane!", "dataplane/packet", "dataplane/afxdp!", "dataplane/afxdp/kern", "dataplane/afxdp/flows", "dataplane/afxdp/upcall", "dataplane/afxdp/attach"},
		why: "rings know nothing of packets, policy or the programs",
	},
	{
		from: "dataplane/afxdp/kern", to: []string{"dataplane/afxdp!", "dataplane/afxdp/attach", "dataplane/afxdp/flows", "dataplane/afxdp/upcall", "dataplane/afxdp/xsk", "classifier!", "conntrack"},
		why: "what is loaded is below everything that uses it",
	},
	{
		from: "dataplane/afxdp/flows", to: []string{"dataplane/afxdp!", "dataplane/afxdp/attach", "dataplane/afxdp/upcall", "dataplane/afxdp/xsk", "github.com/vishvananda"},
		why: "which flows count depends neither on devices nor on sockets",
	},
	{
		from: "dataplane/afxdp/attach", to: []string{"dataplane/afxdp!", "dataplane/afxdp/flows", "dataplane/afxdp/upcall", "dataplane/afxdp/xsk"},
		why: "devices are attached without a socket or a flow in sight",
	},
	{
		from: "dataplane/afxdp/upcall", to: []string{"dataplane/afxdp!", "dataplane/afxdp/flows"},
		why: "frames are carried without knowing what is remembered of them",
	},
	{
		from: "", to: []string{"os/exec"}, except: []string{"cmd", "bench"},
		why: "the daemon starts no programs: static binary, small attack surface",
	},
	{
		from: "cmd/tierwalld", to: []string{"os/exec", "cmd/internal/demo", "cmd/internal/world"}, why: "the daemon's binary has no demo in it",
	},
	{
		from: "cmd/internal/agent", to: []string{"os/exec", "cmd/internal/demo", "cmd/internal/world"}, why: "the daemon starts no programs",
	},
	{
		from: "", to: []string{"C"}, tests: true, why: "no cgo: one static binary",
	},
}

func TestImports(t *testing.T) {
	checked := 0
	eachFile(t, func(dir, name string, imports []string) {
		checked++
		for _, imp := range imports {
			for _, r := range rules {
				if r.broken(dir, strings.HasSuffix(name, "_test.go"), imp) {
					t.Errorf("%s imports %s: %s", path.Join(dir, name), imp, r.why)
				}
			}
			if imp == "unsafe" && !strings.HasSuffix(name, "_unsafe.go") && !strings.HasSuffix(name, "_test.go") && !generated(name) {
				t.Errorf("%s imports unsafe: keep it in a *_unsafe.go file, where reviewers look", path.Join(dir, name))
			}
		}
	})
	if checked < 50 {
		t.Fatalf("only %d files seen: the walk is broken", checked)
	}
}

// TestRulesBite feeds each rule one import it must refuse.
func TestRulesBite(t *testing.T) {
	for _, r := range rules {
		imp := strings.TrimSuffix(r.to[0], "!")
		if isOurs(imp) {
			imp = module + imp
		}
		from := r.from
		if from == "" {
			from = "policy/decode"
		}
		if !r.broken(from, false, imp) {
			t.Errorf("rule %q does not refuse %s in %s", r.why, imp, from)
		}
	}
}

func isOurs(p string) bool {
	switch first, _, _ := strings.Cut(p, "/"); first {
	case "classifier", "conntrack", "dataplane", "policy", "cmd", "bench":
		return true
	}
	return false
}

func generated(name string) bool { return strings.HasSuffix(name, "_bpfel.go") }

func (r *forbid) broken(dir string, test bool, imp string) bool {
	if test && !r.tests || !under(dir, r.from) {
		return false
	}
	for _, e := range r.except {
		if under(dir, e) {
			return false
		}
	}
	imp = strings.TrimPrefix(imp, module)
	for _, to := range r.to {
		if exact, ok := strings.CutSuffix(to, "!"); ok {
			if imp == exact {
				return true
			}
		} else if under(imp, to) && !under(imp, "github.com/tierwall") {
			return true
		}
	}
	return false
}

// under reports whether p is root or below it; "" is the root of everything.
func under(p, root string) bool {
	return root == "" || p == root || strings.HasPrefix(p, root+"/")
}

func eachFile(t *testing.T, fn func(dir, name string, imports []string)) {
	t.Helper()
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	err = filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if n := d.Name(); n == "testdata" || strings.HasPrefix(n, ".") && p != root {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(p, ".go") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), p, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		var imports []string
		for _, i := range f.Imports {
			s, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				return err
			}
			imports = append(imports, s)
		}
		dir, err := filepath.Rel(root, filepath.Dir(p))
		fn(filepath.ToSlash(dir), filepath.Base(p), imports)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
