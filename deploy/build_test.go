package deploy_test

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The image is FROM scratch: its programs must not need a loader or a library. The
// commands are those of the Dockerfile.
func TestProgramsAreStatic(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: links two programs")
	}
	file, err := os.ReadFile("Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`CGO_ENABLED=0 .*go build (.*) -o /out/ (.*) &&`).FindStringSubmatch(string(file))
	if m == nil {
		t.Fatal("no go build in the Dockerfile")
	}
	// One recipe for every machine: the builder's platform compiles for the target's.
	for _, want := range []string{"FROM --platform=$BUILDPLATFORM ", "ARG TARGETARCH\n", "GOOS=$TARGETOS GOARCH=$TARGETARCH go build"} {
		if !strings.Contains(string(file), want) {
			t.Errorf("the Dockerfile has no %q", want)
		}
	}
	for arch, machine := range map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64} {
		t.Run(arch, func(t *testing.T) {
			checkPrograms(t, string(file), arch, machine, strings.Fields(m[1]), strings.Fields(m[2]))
		})
	}
}

// checkPrograms builds the image's programs for a machine and looks at them.
func checkPrograms(t *testing.T, file, arch string, machine elf.Machine, flags, packages []string) {
	t.Helper()
	out := t.TempDir()
	build := exec.Command("go", slices.Concat([]string{"build"}, flags, []string{"-o", out + "/"}, packages)...)
	build.Dir = ".."
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch)
	if text, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", build.Args, err, text)
	}
	entry := regexp.MustCompile(`ENTRYPOINT \["/(\w+)"\]`).FindStringSubmatch(file)
	if entry == nil {
		t.Fatal("no ENTRYPOINT")
	}
	if _, err := os.Stat(filepath.Join(out, entry[1])); err != nil {
		t.Errorf("the entry point is not built: %v", err)
	}
	programs, err := os.ReadDir(out)
	if err != nil || len(programs) != 2 {
		t.Fatalf("%d programs, %v", len(programs), err)
	}
	for _, p := range programs {
		f, err := elf.Open(filepath.Join(out, p.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if f.Machine != machine {
			t.Errorf("%s is for %v, want %v", p.Name(), f.Machine, machine)
		}
		for _, prog := range f.Progs {
			if prog.Type == elf.PT_INTERP {
				t.Errorf("%s needs a loader", p.Name())
			}
		}
		if libs, err := f.ImportedLibraries(); err != nil || len(libs) > 0 {
			t.Errorf("%s needs %v (%v)", p.Name(), libs, err)
		}
		f.Close()
	}
}

// The image is built with the Go that go.mod asks for.
func TestDockerfileGoVersion(t *testing.T) {
	mod, err := os.ReadFile("../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.ReadFile("Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	want := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindSubmatch(mod)
	got := regexp.MustCompile(`(?m)^ARG GO_VERSION=(\S+)`).FindSubmatch(file)
	if want == nil || got == nil || string(want[1]) != string(got[1]) {
		t.Errorf("go.mod %s, Dockerfile %s", want, got)
	}
}
