package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/tierwall/tierwall/dataplane/nstest"
)

// probedPolicies: y/b takes 5432/TCP and 53/UDP from namespace x only; z/c rejects what
// comes from y; what x/c sends over UDP is dropped.
const probedPolicies = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: db, namespace: y}
spec:
  podSelector: {matchLabels: {pod: b}}
  policyTypes: [Ingress]
  ingress:
  - from: [{namespaceSelector: {matchLabels: {ns: x}}}]
    ports: [{port: 5432, protocol: TCP}, {port: 53, protocol: UDP}]
---
apiVersion: crd.antrea.io/v1beta1
kind: NetworkPolicy
metadata: {name: refuse, namespace: z}
spec:
  priority: 5
  appliedTo: [{podSelector: {matchLabels: {pod: c}}}]
  ingress:
  - {name: no-y, action: Reject, from: [{namespaceSelector: {matchLabels: {ns: y}}}]}
---
apiVersion: crd.antrea.io/v1beta1
kind: NetworkPolicy
metadata: {name: quiet, namespace: x}
spec:
  priority: 5
  appliedTo: [{podSelector: {matchLabels: {pod: c}}}]
  egress:
  - {name: no-udp, action: Drop, ports: [{protocol: UDP}]}
`

// The packets tell: what comes through is what intents are compared with, on ports
// nothing of the world serves, too.
func TestTestProbe(t *testing.T) {
	nstest.Need(t, runs("nfqueue"))
	file := intentFile(t, `apiVersion: tierwall.io/v1
kind: Intent
tests:
- {from: x/a, to: y/b, port: 5432/TCP, expect: allow, by: y/db}
- {from: "x/pod!=c", to: y/b, port: 53/UDP, expect: allow}
- {from: "ns:z", to: y/b, port: 5432, expect: deny}
- {from: "external:192.0.2.10", to: y/b, port: 5432, expect: deny}
- {from: "external:2001:db8:1::10", to: y/a, port: web/TCP, expect: allow}
- {from: "ns:y", to: z/c, port: 7000-7001/TCP, expect: reject}
- {from: "ns:y", to: z/c, port: 7000/UDP, expect: reject}
- {from: x/c, to: any, port: any/UDP, expect: deny}
- {from: x/a, to: y/b, port: any, expect: allow}
- {from: z/a, to: y/b, port: 5432, expect: allow}
- {from: x/a, to: y/b, port: 5432, expect: deny}
- {from: x/c, to: y/a, port: 9/UDP, expect: reject}
- {from: x/a, to: y/b, port: 5432, expect: allow, by: refuse}
`)
	policies := filepath.Join(dir(t, map[string]string{"p.yaml": probedPolicies}), "p.yaml")
	before := machine(t)
	p := startProgram(t, nil, "test", file, "--probe", "--dataplane", "nfqueue", "--manifests", policies, "-o", "json")
	if code := p.end(t, patience); code != 1 {
		t.Fatalf("exit code %d\n%s%s", code, p.out.String(), p.err)
	}
	p.leavesNothing(t, before)
	var got struct {
		testAnswer
		Dataplane string
	}
	var more struct {
		Tests []struct {
			Probed                      int
			NotSent                     []string
			Why, PolicyFile, Connection string
		}
	}
	if err := json.Unmarshal(p.out.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(p.out.Bytes(), &more); err != nil {
		t.Fatal(err)
	}
	for i, want := range []struct {
		got    string
		ok     bool
		probed int
	}{
		{"allow", true, 2},
		{"allow", true, 4},
		{"deny", true, 6},
		{"deny", true, 1},
		{"allow", true, 1},
		{"reject", true, 12},
		{"reject", true, 6},
		{"deny", true, 0},
		{"mixed", false, 0},
		{"deny", false, 2},
		{"allow", false, 2},
		{"deny", false, 2},
		{"allow", false, 2},
	} {
		g, m := got.Tests[i], more.Tests[i]
		if g.Got != want.got || g.OK != want.ok || m.Probed == 0 || want.probed != 0 && m.Probed != want.probed || (m.Why == "") != g.OK {
			t.Errorf("test %d: want %+v, got %+v %+v", i, want, g, m)
		}
		if sampled := strings.HasPrefix(g.Port, "any"); sampled != (len(m.NotSent) > 0) {
			t.Errorf("test %d: not sent %q", i, m.NotSent)
		}
	}
	if got.Passed != 8 || got.Failed != 5 || got.Dataplane != "nfqueue" {
		t.Errorf("%d passed, %d failed over %s", got.Passed, got.Failed, got.Dataplane)
	}
	if m := more.Tests[9]; !strings.Contains(m.Why, "want allow, the wire shows deny") || m.PolicyFile != policies || !strings.Contains(m.Connection, "z/a → y/b TCP 5432") {
		t.Errorf("%+v", m)
	}
}

// Mistakes are found before anything is built, so without any privilege.
func TestTestProbeBadInput(t *testing.T) {
	policies := filepath.Join(dir(t, map[string]string{
		"p.yaml": probedPolicies,
		"shop.yaml": `
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, labels: {app: web}}
spec: {nodeName: demo-node, containers: [{name: c, image: c}]}
status: {phase: Running, podIP: 10.9.9.9, podIPs: [{ip: 10.9.9.9}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIP: 10.96.0.1, selector: {app: web}, ports: [{port: 80}]}
`,
	}), "")
	good := intentFile(t, "apiVersion: tierwall.io/v1\nkind: Intent\ntests: [{from: x/a, to: y/b, port: 80, expect: allow}]\n")
	for _, tt := range []struct {
		test string // "" is a good one
		args []string
		want string
	}{
		{"", []string{"--probe"}, "--probe needs --manifests"},
		{"", []string{"--probe", "-m", "-"}, "not from standard input"},
		{"", []string{"--probe", "--live", "-m", policies}, "give one"},
		{"", []string{"--probe", "--kubeconfig", "/nowhere"}, "not between pods of a cluster"},
		{"", []string{"--dataplane", "afxdp", "-m", policies}, "--dataplane goes with --probe"},
		{"from: x/a, to: y/b, port: ICMP", nil, "no connection of ICMP"},
		{"from: x/a, to: y/b, port: 0/47", nil, "no connection of 0/47"},
		{"from: x/a, to: shop/web, port: 80", nil, "to: shop/web is not in the demo's world: --probe connects the pods x/a to z/c and the host outside (192.0.2.10, 2001:db8:1::10)"},
		{"from: any, to: y/b, port: 80", nil, "from: shop/web is not in the demo's world"},
		{"from: x/a, to: svc/shop/web, port: 80", nil, "is a Service, and the demo's world has none"},
		{"from: 'external:203.0.113.0/24', to: y/b, port: 80", nil, "no host of the demo's world has an address of external:203.0.113.0/24"},
		{"from: 'external:any', to: '192.0.2.10', port: 80", nil, "no connection of 80/TCP"},
		{"from: x/q, to: y/b, port: 80", nil, "intents.yaml:3: from: "},
	} {
		file, args := good, tt.args
		if tt.test != "" {
			file = intentFile(t, "apiVersion: tierwall.io/v1\nkind: Intent\ntests: [{"+tt.test+", expect: deny}]\n")
			args = []string{"--probe", "-m", policies}
		}
		r := tierwall(t, "", append([]string{"test", file}, args...)...)
		if r.code != 2 || !strings.Contains(r.err, tt.want) || strings.Contains(r.out, "passed") {
			t.Errorf("%s %q: want an error with %q, got exit code %d, %q %q", tt.test, args, tt.want, r.code, r.out, r.err)
		}
	}
}

func TestTestProbeWithoutRoot(t *testing.T) {
	nstest.Need(t) // to become somebody else
	policies, err := os.Open(filepath.Join(dir(t, map[string]string{"p.yaml": probedPolicies}), "p.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	defer policies.Close()
	p := exec.Command("/proc/self/exe", "test", "-", "--probe", "-m", "/proc/self/fd/3")
	p.ExtraFiles = []*os.File{policies} // its directory is for root alone
	p.Stdin = strings.NewReader("apiVersion: tierwall.io/v1\nkind: Intent\ntests: [{from: x/a, to: y/b, port: 80, expect: deny}]\n")
	var errOut bytes.Buffer
	p.Stderr = &errOut
	p.Env = append(os.Environ(), asProgram+"=1", "TMPDIR="+t.TempDir())
	p.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	err = p.Run()
	if p.ProcessState == nil || p.ProcessState.ExitCode() != 2 || !strings.Contains(errOut.String(), "root") || !strings.Contains(errOut.String(), "without --probe") {
		t.Errorf("%v: %s", err, errOut.String())
	}
}
