package main

import (
	"bytes"
	"context"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tierwall/tierwall/cmd/internal/cli"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// asProgram makes the test binary behave as the tierwall program: the demo
// starts its own executable again as the daemon.
const asProgram = "TIERWALL_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) == "1" {
		main()
	}
	e2eKubeconfig = os.Getenv("KUBECONFIG")
	// No test may find the cluster of whoever runs it.
	noCluster, err := os.MkdirTemp("", "tierwall-home")
	if err != nil {
		panic(err)
	}
	for name, value := range map[string]string{"HOME": noCluster, "KUBECONFIG": "", "KUBERNETES_SERVICE_HOST": ""} {
		os.Setenv(name, value)
	}
	os.Exit(m.Run())
}

// e2eKubeconfig is the cluster that end-to-end tests were given; other tests do
// not see it.
var e2eKubeconfig string

// result is what a command printed and returned.
type result struct {
	code     int
	out, err string
}

func tierwall(t *testing.T, stdin string, args ...string) result {
	t.Helper()
	var out, errOut bytes.Buffer
	code := run(context.Background(), args, strings.NewReader(stdin), &out, &errOut)
	return result{code, out.String(), errOut.String()}
}

// golden compares text with testdata/name; -update writes it.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v (run with -update to write it)", err)
	}
	if got != string(want) {
		t.Errorf("%s differs (run with -update and read the change)\n--- got\n%s\n--- want\n%s", path, got, want)
	}
}

const (
	quickstart = "../../deploy/examples/quickstart"
	broken     = "../../deploy/examples/broken"
)

func TestExitCodes(t *testing.T) {
	for _, tt := range []struct {
		name string
		args string
		code int
		out  string // in standard output
		err  string // in error output
	}{
		{"no command teaches", "", cli.ExitOK, "tierwall matrix --manifests", ""},
		{"help teaches", "explain --help", cli.ExitOK, "svc/shop/backend", ""},
		{"unknown command", "matrx", cli.ExitUsage, "", `unknown command "matrx"`},
		{"unknown flag names the help", "matrix --manifest x", cli.ExitUsage, "", `Run "tierwall matrix --help"`},
		{"argument too many", "matrix -m " + quickstart + " extra", cli.ExitUsage, "", "extra"},
		{"no manifests and no cluster", "matrix", cli.ExitUsage, "", "nothing to read: --manifests is not given, and no cluster is known"},
		{"two sources", "matrix -m " + quickstart + " --context x", cli.ExitUsage, "", "two different sources"},
		{"no such directory", "matrix -m /nonexistent", cli.ExitUsage, "", "/nonexistent"},
		{"no such node", "matrix -m " + quickstart + " --node node-9", cli.ExitUsage, "", "node-9"},
		{"bad format", "matrix -m " + quickstart + " -o xml", cli.ExitUsage, "", "want text, json"},
		{"bad family", "matrix -m " + quickstart + " --family 5", cli.ExitUsage, "", "want 4 or 6"},
		{"bad port", "matrix -m " + quickstart + " -p 70000/TCP", cli.ExitUsage, "", "1 to 65535"},
		{"bad protocol", "matrix -m " + quickstart + " -p 80/TPC", cli.ExitUsage, "", `"TPC"`},
		{"port of ICMP", "matrix -m " + quickstart + " -p 8/ICMP", cli.ExitUsage, "", "0/ICMP"},
		{"a verdict of Drop is an answer", "explain -m " + quickstart + " --from frontend --to db -p 5432/TCP", cli.ExitOK, "Drop", ""},
		{"explain needs both ends", "explain -m " + quickstart + " --from frontend -p 1/TCP", cli.ExitUsage, "", "--to is missing"},
		{"unknown pod names others", "explain -m " + quickstart + " --from frontent --to db -p 1/TCP", cli.ExitUsage, "", "shop/frontend"},
		{"Service as source", "explain -m " + quickstart + " --from svc/shop/db --to db -p 1/TCP", cli.ExitUsage, "", "is a Service"},
		{"unknown Service", "explain -m " + quickstart + " --from frontend --to svc/shop/bakend -p 80/TCP", cli.ExitUsage, "", "shop/backend"},
		{"Service without the port", "explain -m " + quickstart + " --from frontend --to svc/shop/backend -p 81/TCP", cli.ExitUsage, "", "it has 80/TCP (http)"},
		{"ICMP to a Service", "explain -m " + quickstart + " --from frontend --to svc/shop/backend -p 0/ICMP", cli.ExitUsage, "", "forwards ports"},
		{"--icmp without ICMP", "explain -m " + quickstart + " --from frontend --to db -p 1/TCP --icmp 8", cli.ExitUsage, "", "--icmp needs"},
		{"missing family", "explain -m " + quickstart + " --from backend-1 --to db -p 1/TCP --family 6", cli.ExitUsage, "", "shop/backend-1 has no IPv6 address"},
		{"findings", "check -m " + broken, cli.ExitFinding, "matchlabels", ""},
		{"clean", "check -m " + quickstart, cli.ExitOK, "0 errors", ""},
		{"questions about broken manifests", "matrix -m " + broken, cli.ExitFinding, "", "matchlabels"},
		{"the same as JSON", "explain -m " + broken + " --from a --to b -p 1/TCP -o json", cli.ExitFinding, `"errors": [`, ""},
		{"no audit file", "audit tail /nonexistent/log", cli.ExitUsage, "", "/nonexistent/log"},
		{"following standard input", "audit tail -f -", cli.ExitUsage, "", "-f needs a file"},
		{"bad dataplane", "demo --dataplane xdp", cli.ExitUsage, "", "want auto, afxdp, nfqueue"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := tierwall(t, "", strings.Fields(tt.args)...)
			if r.code != tt.code {
				t.Errorf("exit code %d, want %d\nstdout: %s\nstderr: %s", r.code, tt.code, r.out, r.err)
			}
			if !strings.Contains(r.out, tt.out) || (tt.out == "" && r.out != "") {
				t.Errorf("standard output %q, want %q in it", r.out, tt.out)
			}
			if !strings.Contains(r.err, tt.err) || (tt.err == "" && r.err != "") {
				t.Errorf("error output %q, want %q in it", r.err, tt.err)
			}
		})
	}
}

// Every command but the hidden one has a description and an example that names it.
func TestHelpTeaches(t *testing.T) {
	for _, cmd := range newRoot().Commands() {
		if cmd.Hidden || cmd.Name() == "help" || cmd.Name() == "completion" {
			continue
		}
		if len(cmd.Commands()) > 0 {
			cmd = cmd.Commands()[0]
		}
		if len(cmd.Long) < 100 || !strings.Contains(cmd.Example, cmd.CommandPath()) {
			t.Errorf("%s: help without a description or an example", cmd.CommandPath())
		}
	}
}
