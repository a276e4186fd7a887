package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"path"
	"slices"
	"strings"
)

// outcomes is what go test said about tests: by "folder:TestName/subtest".
type outcomes map[string]string

// runProofs runs the tests behind the proofs, those of a package together.
func runProofs(root string, rows []Row) (outcomes, error) {
	tests := map[string][]string{} // folder → tests; nil: all of them
	for _, r := range rows {
		for _, p := range r.Proofs {
			if p.Fixture != "" {
				// Whichever test of the package above testdata reads it.
				tests[path.Dir(path.Dir(p.Fixture))] = nil
				continue
			}
			if have, ok := tests[p.Package]; !ok || have != nil && !slices.Contains(have, p.Test) {
				tests[p.Package] = append(have, p.Test)
			}
		}
	}
	all := outcomes{}
	for dir, names := range tests {
		args := []string{"test", "-json", "-count=1"}
		if names != nil {
			args = append(args, "-run", "^("+strings.Join(names, "|")+")$")
		}
		cmd := exec.Command("go", append(args, "./"+dir)...)
		cmd.Dir = root
		out, err := cmd.Output()
		if len(out) == 0 && err != nil {
			return nil, fmt.Errorf("go test ./%s: %w", dir, err)
		}
		if err := all.read(dir, bytes.NewReader(out)); err != nil {
			return nil, fmt.Errorf("go test ./%s: %w", dir, err)
		}
	}
	return all, nil
}

// read adds the output of go test -json of one package.
func (o outcomes) read(dir string, r io.Reader) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		var e struct{ Action, Test string }
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			continue // a build failure in plain text: no outcome, so nothing passed
		}
		switch e.Action {
		case "pass", "fail", "skip":
			o[dir+":"+e.Test] = e.Action
		}
	}
	return lines.Err()
}

// passed reports whether a proof ran and passed. A fixture is the subtest that
// has its name.
func (o outcomes) passed(p Proof) bool {
	if p.Fixture == "" {
		return o[p.String()] == "pass"
	}
	dir := path.Dir(path.Dir(p.Fixture))
	name := "/" + strings.TrimSuffix(path.Base(p.Fixture), ".txtar")
	ran, ok := false, true
	for test, outcome := range o {
		if strings.HasPrefix(test, dir+":") && strings.HasSuffix(test, name) {
			ran = true
			ok = ok && outcome == "pass"
		}
	}
	return ran && ok
}
