package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tierwall/tierwall/cmd/internal/world"
	"github.com/tierwall/tierwall/dataplane/afxdp/kern"
	"github.com/tierwall/tierwall/dataplane/nstest"
	"github.com/tierwall/tierwall/dataplane/nstest/netlab"
)

// The daemon of these tests is this test binary started again with daemonEnv
// set, in the network namespace of a node.
const daemonEnv = "TIERWALL_TEST_DAEMON"

func TestMain(m *testing.M) {
	if text := os.Getenv(daemonEnv); text != "" {
		os.Exit(daemonMain(text))
	}
	os.Exit(m.Run())
}

func daemonMain(text string) int {
	c := Default()
	var files [2]string
	if err := json.Unmarshal([]byte(text), &struct {
		*Config
		Files *[2]string
	}{&c, &files}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	c.ReadyFile, c.StatsFile = files[0], files[1]
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := Run(ctx, c); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// rig is a world with a daemon on its node.
type rig struct {
	t     *testing.T
	world *world.World
	dir   string // manifests
	state string // the daemon's files
	conf  Config
	proc  *exec.Cmd
	log   string
}

func newRig(t *testing.T, dataplane string) *rig {
	t.Helper()
	nstest.Need(t)
	w, err := world.New(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return rigOf(t, w, dataplane)
}

// rigOf is newRig in a world that exists.
func rigOf(t *testing.T, w *world.World, dataplane string) *rig {
	t.Helper()
	r := &rig{t: t, world: w, dir: t.TempDir(), state: t.TempDir()}
	r.conf = Default()
	r.conf.Manifests, r.conf.Node, r.conf.Dataplane = Paths{r.dir}, world.NodeName, dataplane
	r.conf.AFXDP.PinPath = nstest.BPFFS(t)
	r.conf.Audit.File = filepath.Join(r.state, "audit.log")
	r.conf.Audit.All = true
	inventory, err := world.Manifests()
	if err != nil {
		t.Fatal(err)
	}
	r.write("world.yaml", string(inventory))
	return r
}

// write replaces a manifest in one step, as editors and kubelets do.
func (r *rig) write(name, text string) {
	r.t.Helper()
	tmp := filepath.Join(r.state, name)
	if err := os.WriteFile(tmp, []byte(text), 0o600); err != nil {
		r.t.Fatal(err)
	}
	if err := os.Rename(tmp, filepath.Join(r.dir, name)); err != nil {
		r.t.Fatal(err)
	}
}

// start starts the daemon and waits until it is ready.
func (r *rig) start() {
	r.t.Helper()
	ready := filepath.Join(r.state, "ready.json")
	r.launch()
	r.until("the daemon is ready", func() bool { _, err := os.Stat(ready); return err == nil })
}

// launch starts the daemon.
func (r *rig) launch() {
	r.t.Helper()
	ready := filepath.Join(r.state, "ready.json")
	os.Remove(ready)
	text, err := json.Marshal(struct {
		Config
		Files [2]string
	}{r.conf, [2]string{ready, filepath.Join(r.state, "stats.json")}})
	if err != nil {
		r.t.Fatal(err)
	}
	r.log = filepath.Join(r.state, "daemon.log")
	log, err := os.OpenFile(r.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		r.t.Fatal(err)
	}
	defer log.Close()
	r.proc = exec.Command(os.Args[0])
	r.proc.Env = append(os.Environ(), daemonEnv+"="+string(text))
	r.proc.Stdout, r.proc.Stderr = log, log
	if err := r.world.Node.NS.Do(r.proc.Start); err != nil {
		r.t.Fatal(err)
	}
	p := r.proc.Process
	r.t.Cleanup(func() { p.Kill() }) // ends what a failed test left running
}

// stop sends a signal and waits for the end.
func (r *rig) stop(s syscall.Signal) {
	r.t.Helper()
	if err := r.proc.Process.Signal(s); err != nil {
		r.t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- r.proc.Wait() }()
	select {
	case err := <-done:
		if err != nil && s == syscall.SIGTERM {
			r.t.Errorf("the daemon ended with %v:\n%s", err, r.logText())
		}
	case <-time.After(patience):
		r.t.Fatalf("the daemon does not stop:\n%s", r.logText())
	}
}

// readStats reads what a stopped daemon has written.
func (r *rig) readStats() (s Stats) {
	r.t.Helper()
	b, err := os.ReadFile(filepath.Join(r.state, "stats.json"))
	if err == nil {
		err = json.Unmarshal(b, &s)
	}
	if err != nil {
		r.t.Fatal(err)
	}
	return s
}

func (r *rig) logText() string {
	b, _ := os.ReadFile(r.log)
	return string(b)
}

// until waits for a condition that must come true.
func (r *rig) until(what string, cond func() bool) time.Duration {
	r.t.Helper()
	began := time.Now()
	for !cond() {
		if time.Since(began) > patience {
			r.t.Fatalf("waited %v and still not: %s\n%s", patience, what, r.logText())
		}
		time.Sleep(time.Millisecond)
	}
	return time.Since(began)
}

func (r *rig) to(name string, family int, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(r.world.Host(name).Addr(family), port)
}

// dial opens a connection that must pass.
func (r *rig) dial(network, from, to string, family int) net.Conn {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), nstest.Timeout)
	defer cancel()
	c, err := r.world.Host(from).NS.Dial(ctx, network, netip.AddrPort{}, r.to(to, family, 80))
	if err != nil {
		r.t.Fatalf("%s > %s %s IPv%d: %v", from, to, network, family, err)
	}
	r.t.Cleanup(func() { c.Close() })
	if !alive(c) {
		r.t.Fatalf("%s > %s %s IPv%d: no echo\n%s", from, to, network, family, r.logText())
	}
	return c
}

func alive(c net.Conn) bool {
	return netlab.Exchange(c, []byte("are you there?"), nstest.Timeout) == nil
}

// cut reports whether nothing comes back any more.
func cut(c net.Conn) bool {
	return netlab.Exchange(c, []byte("and now?"), nstest.Blocked) != nil
}

// patience bounds the wait for what must happen: only a test that fails spends it.
const patience = time.Minute

// reaches reports whether a new connection passes that must.
func (r *rig) reaches(network, from, to string, family int) bool {
	for range 2 { // a lost packet on a busy machine is no verdict
		if r.world.Host(from).NS.Probe(network, r.to(to, family, 80), nstest.Timeout) == nil {
			return true
		}
	}
	return false
}

// opens reports whether a new connection passes that must not.
func (r *rig) opens(network, from, to string, family int) bool {
	for range 2 { // a lost packet on a busy machine is no verdict
		if r.world.Host(from).NS.Probe(network, r.to(to, family, 80), nstest.Blocked) == nil {
			return true
		}
	}
	return false
}

const (
	denyYB = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: deny, namespace: y}
spec:
  podSelector: {matchLabels: {pod: b}}
  policyTypes: [Ingress]
  ingress: []
`
	allowFromX = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: from-x, namespace: y}
spec:
  podSelector: {matchLabels: {pod: b}}
  ingress:
  - from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: x}}}]
`
)

var dataplanes = []string{"nfqueue", "afxdp", "auto"}

// TestEdit changes the policy under live connections: the change is in force for
// new ones, cuts the live ones it denies and leaves the others alone.
func TestEdit(t *testing.T) {
	// Accelerated flows are no different. Connection tracking lets TCP be one.
	for _, dp := range append(dataplanes, "afxdp accelerated", "auto accelerated") {
		t.Run(dp, func(t *testing.T) {
			dp, accelerate := strings.CutSuffix(dp, " accelerated")
			r := newRig(t, dp)
			if r.conf.Accelerate = accelerate; accelerate {
				if err := r.world.Node.NS.Sysctl("net/netfilter/nf_conntrack_tcp_be_liberal", "1"); err != nil {
					t.Fatal(err)
				}
			}
			r.start()
			type conn struct {
				what string
				net.Conn
			}
			var denied, others []conn
			for _, network := range world.Networks {
				for _, family := range []int{4, 6} {
					what := fmt.Sprintf("%s IPv%d", network, family)
					denied = append(denied, conn{"x/a > y/b " + what, r.dial(network, "x/a", "y/b", family)},
						conn{"outside > y/b " + what, r.dial(network, "outside", "y/b", family)})
					others = append(others, conn{"x/a > y/c " + what, r.dial(network, "x/a", "y/c", family)},
						conn{"y/b > outside " + what, r.dial(network, "y/b", "outside", family)})
				}
			}
			for range 5 {
				for _, c := range append(denied, others...) {
					if !alive(c) {
						t.Fatalf("%s does not last\n%s", c.what, r.logText())
					}
				}
			}
			began := time.Now()
			r.write("policy.yaml", denyYB)
			// A fresh datagram every try: the first one that is refused marks the
			// moment the new policy decides.
			r.until("new connections are refused", func() bool {
				return r.world.Host("x/a").NS.Probe("udp", r.to("y/b", 4, 80), 30*time.Millisecond) != nil
			})
			t.Logf("edit in force for new connections after %s (30 ms of it waiting for an answer that must not come)", time.Since(began).Round(time.Millisecond))
			// New connections are judged by the new table from the moment it is
			// published; what the kernel remembers follows within milliseconds.
			for _, c := range denied {
				r.until(c.what+" is cut", func() bool { return cut(c) })
			}
			for _, c := range others {
				if !alive(c) {
					t.Errorf("%s was cut, too", c.what)
				}
			}
			r.write("policy.yaml", allowFromX)
			r.until("the edit is taken back for x", func() bool {
				return r.world.Host("x/a").NS.Probe("tcp", r.to("y/b", 6, 80), nstest.Blocked) == nil
			})
			if r.opens("tcp", "outside", "y/b", 4) {
				t.Error("outside > y/b opens, policy names only x")
			}
			r.stop(syscall.SIGTERM)
			if n := strings.Count(r.logText(), "level=ERROR"); n > 0 {
				t.Errorf("%d errors in the log:\n%s", n, r.logText())
			}
			if n := r.readStats().Accelerated; (n > 0) != accelerate {
				t.Errorf("%d packets went past the stack", n)
			}
		})
	}
}

// TestBrokenManifests feeds the running daemon every kind of broken file: each
// gives an error that says what and where, and the last good table stays.
func TestBrokenManifests(t *testing.T) {
	r := newRig(t, "nfqueue")
	r.write("good.yaml", allowFromX)
	r.start()
	anp := "apiVersion: policy.networking.k8s.io/v1alpha1\nkind: AdminNetworkPolicy\nmetadata: {name: p}\nspec:\n  priority: 5\n"
	rule := "  - action: Allow\n    from: [{namespaces: {self: true}}]\n    l4Selector: {allPorts: true}\n"
	for _, tc := range []struct{ name, text, want string }{
		{"matchlabels", "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: p, namespace: y}\nspec: {podSelector: {matchlabels: {a: b}}}\n", "matchLabels"},
		{"from under egress", anp + "  subject: {namespaceSelector: {}}\n  egress:\n  - action: Allow\n    from: [{namespaces: {self: true}}]\n    l4Selector: {allPorts: true}\n", "spec.egress[0].from"},
		{"two selectors in a subject", anp + "  subject: {namespaceSelector: {}, namespaceAndPodSelector: {namespaceSelector: {}, podSelector: {}}}\n", "spec.subject"},
		{"101 rules", anp + "  subject: {namespaceSelector: {}}\n  ingress:\n" + strings.Repeat(rule, 101), "100"},
		{"tabs", "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata:\n\tname: p\n", "tab"},
		{"empty file", "", "no objects"},
		{"a 10 MB file", strings.Repeat("# nothing to see here, only very much of it\n", 10<<20/44+1), "8 MiB"},
	} {
		before := strings.Count(r.logText(), "policy rejected")
		r.write("broken.yaml", tc.text)
		r.until(tc.name+" is refused", func() bool { return strings.Count(r.logText(), "policy rejected") > before })
		said := r.logText()
		said = said[strings.LastIndex(said, "policy rejected"):]
		if !strings.Contains(said, tc.want) || !strings.Contains(said, "broken.yaml") {
			t.Errorf("%s: the log does not name %q and the file:\n%s", tc.name, tc.want, said)
		}
		if !r.reaches("tcp", "x/a", "y/b", 4) || r.opens("udp", "z/a", "y/b", 6) {
			t.Errorf("%s: the last good table is not in force", tc.name)
		}
	}
	if err := os.Remove(filepath.Join(r.dir, "broken.yaml")); err != nil {
		t.Fatal(err)
	}
	r.write("good.yaml", denyYB)
	r.until("the corrected policy is in force", func() bool { return !r.opens("tcp", "x/a", "y/b", 4) })
	r.stop(syscall.SIGTERM)
}

// TestStartRefusesBrokenManifests: without a last good table there is nothing to
// enforce, and a daemon that runs anyway would look as if it did.
func TestStartRefusesBrokenManifests(t *testing.T) {
	c := Default()
	dir := t.TempDir()
	c.Manifests, c.Node = Paths{dir}, "n"
	if err := os.WriteFile(filepath.Join(dir, "p.yaml"), []byte("kind: [\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	err := Run(t.Context(), c)
	if err == nil || !strings.Contains(err.Error(), "p.yaml") {
		t.Errorf("error %v, want one that names the file", err)
	}
}

// TestDaemonDown stops the daemon in order and by SIGKILL: accepted connections
// flow on, nothing new opens, and the next daemon takes over.
func TestDaemonDown(t *testing.T) {
	for _, dp := range []string{"nfqueue", "auto"} {
		for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
			t.Run(dp+"/"+s.String(), func(t *testing.T) {
				r := newRig(t, dp)
				r.write("policy.yaml", allowFromX)
				r.start()
				tcp, udp := r.dial("tcp", "x/a", "y/b", 4), r.dial("udp", "x/a", "y/b", 6)
				r.stop(s)
				if !alive(tcp) || !alive(udp) {
					t.Errorf("accepted connections died with the daemon: tcp %t, udp %t", !cut(tcp), !cut(udp))
				}
				if r.opens("tcp", "x/a", "y/b", 4) || r.opens("udp", "outside", "y/b", 6) {
					t.Error("a new connection of a selected pod opens while nobody can judge it")
				}
				if !r.reaches("tcp", "x/a", "z/a", 4) {
					t.Error("a pod no policy selects is closed")
				}
				r.start()
				if !alive(tcp) || !alive(udp) {
					t.Error("accepted connections died with the new daemon")
				}
				if !r.reaches("tcp", "x/a", "y/b", 6) || r.opens("tcp", "outside", "y/b", 4) {
					t.Error("the new daemon does not enforce the policy")
				}
				r.stop(syscall.SIGTERM)
				r.cleanup()
				if !r.reaches("tcp", "outside", "y/b", 4) {
					t.Error("after the cleanup something is still in force")
				}
			})
		}
	}
}

// cleanup runs the daemon's --cleanup and checks that nothing of ours is left.
func (r *rig) cleanup() {
	r.t.Helper()
	if err := r.world.Node.NS.Do(func() error { return cleanup(r.conf.AFXDP.PinPath) }); err != nil {
		r.t.Fatal(err)
	}
	links, err := r.world.Node.NS.Handle().LinkList()
	if err != nil {
		r.t.Fatal(err)
	}
	for _, l := range links {
		if n := l.Attrs().Name; n == kern.UpcallStack || n == kern.UpcallSocket {
			r.t.Errorf("device %s is left", n)
		}
	}
}

// TestAuditAndStats: the log has a record for a refused connection naming the
// policy and the pods, and the stats file adds up.
func TestAuditAndStats(t *testing.T) {
	for _, dp := range dataplanes {
		t.Run(dp, func(t *testing.T) {
			r := newRig(t, dp)
			r.write("policy.yaml", allowFromX)
			r.start()
			if r.opens("tcp", "outside", "y/b", 4) || !r.reaches("tcp", "x/c", "y/b", 6) {
				t.Fatal("policy not enforced")
			}
			r.stop(syscall.SIGTERM)
			log, err := os.ReadFile(r.conf.Audit.File)
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range [][]string{
				{`"verdict":"Drop"`, `"reason":"isolation"`, `"name":"from-x"`, `"pod":"b"`, `"192.0.2.10"`},
				{`"verdict":"Allow"`, `"reason":"rule"`, `"name":"from-x"`, `"pod":"c"`, `"namespace":"x"`},
			} {
				if !hasLine(log, want) {
					t.Errorf("no audit record with %q in\n%s", want, log)
				}
			}
			s := r.readStats()
			var sum uint64
			for _, n := range s.Paths {
				sum += n
			}
			if s.Upcalls == 0 || sum != s.Upcalls || s.Passed+s.Dropped+s.Deferred != s.Upcalls || s.AuditLost != 0 || s.Overflow != 0 {
				t.Errorf("stats do not add up: %+v", s)
			}
		})
	}
}

func hasLine(log []byte, want []string) bool {
	for line := range bytes.Lines(log) {
		n := 0
		for _, w := range want {
			if bytes.Contains(line, []byte(w)) {
				n++
			}
		}
		if n == len(want) {
			return true
		}
	}
	return false
}
