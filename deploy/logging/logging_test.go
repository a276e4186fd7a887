// Package logging tests the log shippers' configurations in this folder: against
// the programs themselves where they are installed, and in any case for what can
// be told without them.
package logging

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/tierwall/tierwall/dataplane/audit"
)

const sample = "../../cmd/internal/auditlog/testdata/sample.log"

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// logFile is where the daemon writes its log: the manual's default, which a test
// of the daemon keeps equal to the code's.
func logFile(t *testing.T) string {
	t.Helper()
	var manual struct {
		Audit struct {
			File string `yaml:"file"`
		} `yaml:"audit"`
	}
	if err := yaml.Unmarshal([]byte(read(t, "../config.yaml")), &manual); err != nil || manual.Audit.File == "" {
		t.Fatalf("the manual names no log file: %v", err)
	}
	return manual.Audit.File
}

// section is one part of a Fluent Bit configuration; keys are lower case.
type section struct {
	name string
	keys map[string]string
}

func sections(t *testing.T, text string) (out []section) {
	t.Helper()
	for n, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		switch {
		case line == "" || line[0] == '#':
		case line[0] == '[':
			out = append(out, section{strings.Trim(line, "[]"), map[string]string{}})
		default:
			key, value, ok := strings.Cut(line, " ")
			if !ok || len(out) == 0 {
				t.Fatalf("line %d: %q is neither a section nor a key with a value", n+1, line)
			}
			out[len(out)-1].keys[strings.ToLower(key)] = strings.TrimSpace(value)
		}
	}
	return out
}

func find(t *testing.T, all []section, name string) section {
	t.Helper()
	for _, s := range all {
		if s.name == name {
			return s
		}
	}
	t.Fatalf("no [%s]", name)
	return section{}
}

// TestFluentBitFile: it reads the daemon's file, with a parser that exists,
// whose time format fits every record the daemon can write.
func TestFluentBitFile(t *testing.T) {
	conf := sections(t, read(t, "fluent-bit.conf"))
	in := find(t, conf, "INPUT").keys
	if in["path"] != logFile(t) {
		t.Errorf("it reads %s, the daemon writes %s", in["path"], logFile(t))
	}
	parsers := sections(t, read(t, find(t, conf, "SERVICE").keys["parsers_file"]))
	p := find(t, parsers, "PARSER").keys
	if in["parser"] != p["name"] || p["format"] != "json" {
		t.Errorf("input uses %s, there is %s of format %s", in["parser"], p["name"], p["format"])
	}
	if !bytes.Contains([]byte(read(t, sample)), []byte(`"`+p["time_key"]+`":"2`)) {
		t.Errorf("records have no field %s", p["time_key"])
	}
	rule := strings.Fields(find(t, conf, "FILTER").keys["rule"])
	if rule[0] != "$kind" || !regexp.MustCompile(rule[1]).MatchString(audit.KindLost) || regexp.MustCompile(rule[1]).MatchString(audit.KindFlow) {
		t.Errorf("the alert's rule %v does not single out gaps", rule)
	}
}

// TestVectorFile: strict YAML that reads the daemon's file, and every input is
// there.
func TestVectorFile(t *testing.T) {
	type node struct {
		Type      string   `yaml:"type"`
		Inputs    []string `yaml:"inputs"`
		Include   []string `yaml:"include"`
		Source    string   `yaml:"source"`
		Condition string   `yaml:"condition"`
	}
	var conf struct {
		Sources    map[string]node `yaml:"sources"`
		Transforms map[string]node `yaml:"transforms"`
		Sinks      map[string]node `yaml:"sinks"`
		Tests      []struct {
			Name   string `yaml:"name"`
			Inputs []struct {
				InsertAt  string            `yaml:"insert_at"`
				LogFields map[string]string `yaml:"log_fields"`
			} `yaml:"inputs"`
			Outputs []struct {
				ExtractFrom string `yaml:"extract_from"`
			} `yaml:"outputs"`
		} `yaml:"tests"`
	}
	if err := yaml.Unmarshal([]byte(read(t, "vector.yaml")), &conf); err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for name, s := range conf.Sources {
		known[name] = true
		if len(s.Include) != 1 || s.Include[0] != logFile(t) {
			t.Errorf("%s reads %v, the daemon writes %s", name, s.Include, logFile(t))
		}
	}
	for name := range conf.Transforms {
		known[name] = true
	}
	for _, nodes := range []map[string]node{conf.Transforms, conf.Sinks} {
		for name, n := range nodes {
			for _, in := range n.Inputs {
				if !known[in] {
					t.Errorf("%s takes its input from %s, which there is not", name, in)
				}
			}
			if len(n.Inputs) == 0 {
				t.Errorf("%s has no input", name)
			}
		}
	}
	if len(conf.Tests) < 3 {
		t.Errorf("%d tests", len(conf.Tests))
	}
	records := 0
	for _, tt := range conf.Tests {
		for _, in := range tt.Inputs {
			if _, err := audit.Parse([]byte(in.LogFields["message"])); err == nil {
				records++
			}
			if !known[in.InsertAt] {
				t.Errorf("test %q inserts at %s", tt.Name, in.InsertAt)
			}
		}
		for _, out := range tt.Outputs {
			if !known[out.ExtractFrom] {
				t.Errorf("test %q extracts from %s", tt.Name, out.ExtractFrom)
			}
		}
	}
	if records != 2 {
		t.Errorf("%d of the tests' messages are records of this schema, want 2", records)
	}
}

// need finds a program, or skips: Debian 12 packages neither.
func need(t *testing.T, program string) string {
	t.Helper()
	for _, name := range []string{program, "/opt/" + program + "/bin/" + program} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Skipf("%s is not installed (and not in Debian 12)", program)
	return ""
}

func runProgram(t *testing.T, program string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, program, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", program, args, err, out)
	}
	return string(out)
}

func TestVectorProgram(t *testing.T) {
	vector := need(t, "vector")
	runProgram(t, vector, "validate", "--no-environment", "vector.yaml")
	runProgram(t, vector, "test", "vector.yaml")
}

// TestFluentBitProgram ships the sample and gets every record back, complete.
func TestFluentBitProgram(t *testing.T) {
	program := need(t, "fluent-bit")
	dir := t.TempDir()
	conf := strings.NewReplacer(
		logFile(t), filepath.Join(dir, "audit.log"), "/var/lib/fluent-bit/", dir+"/",
	).Replace(read(t, "fluent-bit.conf"))
	for name, text := range map[string]string{"fluent-bit.conf": conf, "parsers.conf": read(t, "parsers.conf"), "audit.log": read(t, sample)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "-q", "-c", filepath.Join(dir, "fluent-bit.conf"))
	cmd.Dir = dir
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cancel()
	want := map[string]bool{}
	for line := range strings.Lines(read(t, sample)) {
		var r audit.Record
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		want[fmt.Sprint(r.Seq)] = true
	}
	for s := bufio.NewScanner(out); len(want) > 0 && s.Scan(); {
		if r, err := audit.Parse(s.Bytes()); err == nil {
			delete(want, fmt.Sprint(r.Seq))
		}
	}
	if len(want) > 0 {
		t.Errorf("records %v did not come out complete", want)
	}
}
