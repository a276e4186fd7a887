package decode

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
)

// FuzzDecode feeds anything at all. Nothing may panic, and an object that is
// accepted must survive being written as JSON and read again: what was not
// understood would be missing then.
func FuzzDecode(f *testing.F) {
	archives, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(archives) == 0 {
		f.Fatalf("no seeds: %v", err)
	}
	for _, path := range archives {
		ar, err := txtar.ParseFile(path)
		if err != nil {
			f.Fatal(err)
		}
		for _, file := range ar.Files {
			if !strings.HasSuffix(file.Name, ".want") {
				f.Add(unescape(file.Data))
			}
		}
	}
	printed, err := filepath.Glob("testdata/kubectl/*")
	if err != nil || len(printed) == 0 {
		f.Fatalf("no seeds: %v", err)
	}
	for _, path := range printed {
		data, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		objs, found := testDecoder.Decode("f.yaml", data)
		for _, d := range append(found.Errors, found.Warnings...) {
			if d.Message == "" || !strings.HasPrefix(d.File, "f.yaml") {
				t.Errorf("a finding without message or place: %+v", d)
			}
		}
		for _, o := range objs {
			first, err := json.Marshal(o.Value)
			if err != nil {
				t.Fatalf("%s: %v", o.Ref(), err)
			}
			again, found := testDecoder.Decode("again", first)
			if err := found.Err(); err != nil || len(again) != 1 {
				t.Fatalf("%s is not accepted again: %v\n%s", o.Ref(), err, first)
			}
			a := again[0]
			if a.Kind.GVK() != o.Kind.GVK() || a.Ref() != o.Ref() || a.Generation != o.Generation {
				t.Fatalf("%s %+v became %s %+v", o.Ref(), o, a.Ref(), a)
			}
			second, err := json.Marshal(a.Value)
			if err != nil {
				t.Fatalf("%s: %v", o.Ref(), err)
			}
			if !bytes.Equal(first, second) {
				t.Fatalf("%s changed:\n%s\n%s", o.Ref(), first, second)
			}
		}
	})
}
