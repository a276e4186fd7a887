package archtest

import (
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// inlined lists functions of the packet path that callers must be able to inline, by
// package: a call costs more than what they do. Several are called across packages.
var inlined = map[string][]string{
	"dataplane/afxdp/kern":   {"(*Origin).Opened", "CellOf", "fromB"},
	"dataplane/afxdp/flows":  {"(*Epoch).Add", "(*Epoch).Crowded", "(*Epoch).Current", "(*Entries).Reset", "(*cell).has", "(*atomicAddr).is"},
	"dataplane/afxdp/upcall": {"SetMarks", "TrueLength"},
	"dataplane/afxdp/attach": {"(*HostSet).IsHost"},
	"dataplane/afxdp/xsk":    {"(*Socket).Received", "(*Socket).Frame", "(*Socket).Fill"},
}

// TestInlined fails when a change makes one of the functions too large to be inlined.
func TestInlined(t *testing.T) {
	args := []string{"build", "-gcflags=-m"}
	for pkg := range inlined {
		args = append(args, "./"+pkg)
	}
	cmd := exec.Command("go", args...)
	cmd.Dir = "../../.."
	out, err := cmd.CombinedOutput() // what is cached is reported all the same
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	can := regexp.MustCompile(`(?m)^(\S+)/[^/]+\.go:\d+:\d+: can inline (\S+)`)
	found := map[string][]string{}
	for _, m := range can.FindAllStringSubmatch(string(out), -1) {
		found[m[1]] = append(found[m[1]], m[2])
	}
	for pkg, names := range inlined {
		for _, name := range names {
			if !slices.Contains(found[strings.TrimPrefix(pkg, "./")], name) {
				t.Errorf("%s: %s is not inlined any more", pkg, name)
			}
		}
	}
}
