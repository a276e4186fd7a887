package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestAssuranceTutorial runs the commands of docs/assurance.md as written, in order
// and in one directory, and wants what the page prints below each: "…" stands for
// any text. A block of YAML after "the file `NAME`:" becomes that file.
func TestAssuranceTutorial(t *testing.T) {
	text, err := os.ReadFile("../../docs/assurance.md")
	if err != nil {
		t.Fatal(err)
	}
	deploy, err := filepath.Abs("../../deploy")
	if err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	if err := os.Symlink(deploy, filepath.Join(home, "deploy")); err != nil {
		t.Fatal(err)
	}
	sh := newShell(t, home)
	ran := 0
	blocks := regexp.MustCompile("(?s)(?:the file `([^`]+)`:\n\n)?```(console|yaml)\n(.*?)```").FindAllStringSubmatch(string(text), -1)
	for _, b := range blocks {
		file, language, body := b[1], b[2], b[3]
		if language == "yaml" {
			if file == "" {
				continue
			}
			if err := os.WriteFile(filepath.Join(home, file), []byte(body), 0o600); err != nil {
				t.Fatal(err)
			}
			continue
		}
		for _, part := range strings.Split("\n"+body, "\n$ ")[1:] {
			command, want, _ := strings.Cut(part, "\n")
			out := sh.run(command)
			ran++
			rest := out
			for line := range strings.Lines(want) {
				for piece := range strings.SplitSeq(strings.TrimSpace(line), "…") {
					i := strings.Index(rest, piece)
					if i < 0 {
						t.Fatalf("$ %s\nno %q in what is left of\n%s", command, piece, out)
					}
					rest = rest[i+len(piece):]
				}
			}
		}
	}
	if ran < 10 {
		t.Errorf("only %d commands found", ran)
	}
}

// shell runs commands as a reader of a page would, with this test as "tierwall".
type shell struct {
	t   *testing.T
	dir string
	env []string
}

func newShell(t *testing.T, dir string) *shell {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	program := "#!/bin/sh\n" + asProgram + "=1 exec '" + self + "' \"$@\"\n"
	if err := os.WriteFile(filepath.Join(bin, "tierwall"), []byte(program), 0o755); err != nil {
		t.Fatal(err)
	}
	return &shell{t, dir, append(os.Environ(),
		"PATH="+bin+":"+os.Getenv("PATH"), "HOME="+dir, "TMPDIR="+t.TempDir(), "GIT_CONFIG_SYSTEM=/dev/null", "GIT_CONFIG_GLOBAL=/dev/null",
		"GIT_CONFIG_COUNT=2", "GIT_CONFIG_KEY_0=maintenance.auto", "GIT_CONFIG_VALUE_0=false", "GIT_CONFIG_KEY_1=gc.auto", "GIT_CONFIG_VALUE_1=0")}
}

// run runs a command for at most 20 seconds, and returns what it printed. It prints
// to a file: a process that outlives the command and holds its output, as git's
// maintenance may, is not waited for, but ended.
func (s *shell) run(command string) string {
	s.t.Helper()
	file, err := os.Create(filepath.Join(s.t.TempDir(), "out"))
	if err != nil {
		s.t.Fatal(err)
	}
	defer file.Close()
	ctx, cancel := context.WithTimeout(s.t.Context(), 20*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", command)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = s.dir, s.env, file, file
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	endAll := func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.Cancel = endAll
	err = cmd.Run()
	if cmd.Process != nil {
		_ = endAll() // mostly nobody is left
	}
	out, readErr := os.ReadFile(file.Name())
	if err != nil || readErr != nil {
		s.t.Fatalf("$ %s\n%v %v\n%s", command, err, readErr, out)
	}
	return string(out)
}
