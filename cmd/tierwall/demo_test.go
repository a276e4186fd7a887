package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/tierwall/tierwall/cmd/internal/doctor"
	"github.com/tierwall/tierwall/dataplane/nstest"
)

// patience bounds the wait for what must happen: only a test that fails spends it.
const patience = 3 * time.Minute

// process is a tierwall program started by a test. Its temporary directory is
// its own, so that what it leaves there can be seen, and its environment carries
// a tag that all its descendants inherit.
type process struct {
	*exec.Cmd
	tag, tmp string
	out      bytes.Buffer
	err      *watchedBuffer
	done     chan struct{} // closed when the process has ended
}

// startProgram starts tierwall; out is its standard output, nil to collect it.
func startProgram(t *testing.T, out *os.File, args ...string) *process {
	t.Helper()
	p := &process{tmp: t.TempDir(), err: &watchedBuffer{}, done: make(chan struct{})}
	p.tag = "TIERWALL_TEST_TAG=" + p.tmp
	p.Cmd = exec.Command("/proc/self/exe", args...)
	p.Env = append(os.Environ(), asProgram+"=1", "TMPDIR="+p.tmp, p.tag)
	p.Stdout, p.Stderr = &p.out, p.err
	if out != nil {
		p.Stdout = out
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = p.Wait() // how it ended is in ProcessState
		close(p.done)
	}()
	t.Cleanup(func() {
		_ = p.Process.Kill() // most have ended by now
		<-p.done
	})
	return p
}

// end waits for the process and returns its exit code, -1 if a signal ended it.
func (p *process) end(t *testing.T, limit time.Duration) int {
	t.Helper()
	select {
	case <-p.done:
		return p.ProcessState.ExitCode()
	case <-time.After(limit):
		t.Fatalf("still running after %s\n%s", limit, p.err)
	}
	return 0
}

// waitFor blocks until the process has printed text as progress.
func (p *process) waitFor(t *testing.T, text string) {
	t.Helper()
	limit := time.After(patience)
	for !strings.Contains(p.err.String(), text) {
		select {
		case <-p.done:
			t.Fatalf("ended before it printed %q:\n%s", text, p.err)
		case <-limit:
			t.Fatalf("no %q after %v:\n%s", text, patience, p.err)
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// family returns the living processes that carry the tag.
func (p *process) family() (pids []string) {
	dirs, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, path := range dirs {
		env, err := os.ReadFile(path) // empty for the dead, an error for the gone
		if err == nil && bytes.Contains(env, []byte(p.tag)) {
			pids = append(pids, strings.Split(path, "/")[2])
		}
	}
	return pids
}

// watchedBuffer may be read while a process writes it.
type watchedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (w *watchedBuffer) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.Write(p)
}

func (w *watchedBuffer) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.String()
}

// machine is what a demo must not change, a fact a line: devices, routes and
// sysctls of the namespace the test runs in, and pinned BPF objects. Names of
// namespaces are not among them: demos that others keep running have some, too.
func machine(t *testing.T) []string {
	t.Helper()
	var facts []string
	add := func(format string, args ...any) { facts = append(facts, fmt.Sprintf(format, args...)) }
	links, err := netlink.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		add("link %s", l.Attrs().Name)
	}
	routes, err := netlink.RouteList(nil, netlink.FAMILY_ALL)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range routes {
		add("route %s", r)
	}
	for _, glob := range []string{"/sys/fs/bpf/*", "/sys/fs/bpf/*/*"} {
		names, _ := filepath.Glob(glob)
		for _, n := range names {
			if !strings.HasSuffix(n, ".debug") { // the kernel's, in every BPF file system somebody mounts
				add("pinned %s", n)
			}
		}
	}
	for _, key := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding", "net/ipv4/conf/all/rp_filter"} {
		v, _ := os.ReadFile("/proc/sys/" + key)
		add("%s = %s", key, bytes.TrimSpace(v))
	}
	return facts
}

// leavesNothing checks that the process and everything it made are gone.
func (p *process) leavesNothing(t *testing.T, before []string) {
	t.Helper()
	nstest.Eventually(t, "the end of all processes", func() bool { return len(p.family()) == 0 })
	left, err := os.ReadDir(p.tmp)
	if err != nil || len(left) > 0 {
		t.Errorf("left in the temporary directory: %v %v", left, err)
	}
	after := machine(t)
	for _, fact := range before {
		if !slices.Contains(after, fact) {
			t.Errorf("gone from the machine: %s", fact)
		}
	}
	for _, fact := range after {
		if !slices.Contains(before, fact) {
			t.Errorf("new on the machine: %s", fact)
		}
	}
}

// runs says why a backend cannot run here.
func runs(backend string) nstest.Piece {
	return func() error {
		for _, f := range doctor.Features() {
			if f.Name == backend+" backend" {
				return f.Err
			}
		}
		return errors.New("no such backend: " + backend)
	}
}

// The whole thing, for every dataplane: not one connection differs.
func TestDemo(t *testing.T) {
	for _, dataplane := range []string{"nfqueue", "afxdp", "auto"} {
		t.Run(dataplane, func(t *testing.T) {
			switch dataplane {
			case "nfqueue":
				nstest.Need(t, runs("nfqueue"))
			default:
				nstest.Need(t, runs("nfqueue"), runs("afxdp"))
			}
			before := machine(t)
			p := startProgram(t, nil, "demo", "--dataplane", dataplane, "-o", "json")
			if code := p.end(t, patience); code != 0 {
				t.Fatalf("exit code %d\n%s%s", code, p.out.String(), p.err)
			}
			var r struct {
				Mismatches, Probes, Passed, Refused, Broken *int
				Dataplane, Why                              string
				Stats                                       struct{ Upcalls, Bypassed, Dropped, LatencyP50Ns, LatencyP99Ns uint64 }
				Audit                                       struct {
					Records int
					Tail    []struct {
						Verdict             string
						Policy              struct{ Kind, Name string }
						Source, Destination struct{ Pod string }
					}
				}
			}
			if err := json.Unmarshal(p.out.Bytes(), &r); err != nil {
				t.Fatalf("%v in %s", err, p.out.String())
			}
			// 442 is what testdata/report.txt of the demo package shows.
			if *r.Mismatches != 0 || *r.Probes != 792 || *r.Passed != 442 || *r.Refused != 350 || *r.Broken != 0 {
				t.Errorf("report %s", p.out.String())
			}
			if want := map[string]string{"auto": "afxdp+nfqueue"}[dataplane]; r.Dataplane != want && want != "" || want == "" && r.Dataplane != dataplane {
				t.Errorf("dataplane %q", r.Dataplane)
			}
			if r.Why == "" || r.Stats.Upcalls == 0 || r.Stats.Bypassed == 0 || r.Stats.Dropped < 350 || r.Stats.LatencyP50Ns == 0 || r.Stats.LatencyP99Ns < r.Stats.LatencyP50Ns {
				t.Errorf("why %q, statistics %+v", r.Why, r.Stats)
			}
			verdicts := map[string]bool{}
			for _, rec := range r.Audit.Tail {
				verdicts[rec.Policy.Kind+" "+rec.Verdict] = true
				if rec.Policy.Name == "" || rec.Source.Pod == "" && rec.Destination.Pod == "" {
					t.Errorf("a record names no policy or no pod: %+v", rec)
				}
			}
			for _, want := range []string{"NetworkPolicy Allow", "NetworkPolicy Drop", "AdminNetworkPolicy Allow", "AdminNetworkPolicy Drop", "AdminNetworkPolicy Pass"} {
				if !verdicts[want] {
					t.Errorf("no audit record of %s among %v", want, verdicts)
				}
			}
			p.leavesNothing(t, before)
		})
	}
}

// Signals at every stage: whatever is under way, nothing stays behind.
func TestDemoInterrupted(t *testing.T) {
	nstest.Need(t, runs("nfqueue"))
	for _, tt := range []struct {
		at     string
		signal syscall.Signal
	}{
		{"building a node", syscall.SIGINT},
		{"starting the daemon", syscall.SIGTERM},
		{"trying 792", syscall.SIGINT},
		{"trying 792", syscall.SIGHUP},
	} {
		t.Run(fmt.Sprintf("%s %s", tt.signal, strings.Fields(tt.at)[0]), func(t *testing.T) {
			before := machine(t)
			p := startProgram(t, nil, "demo", "--dataplane", "nfqueue")
			p.waitFor(t, tt.at)
			if err := p.Process.Signal(tt.signal); err != nil {
				t.Fatal(err)
			}
			if code := p.end(t, patience); code != 2 || !strings.Contains(p.err.String(), "interrupted") {
				t.Errorf("exit code %d, error output %s", code, p.err)
			}
			p.leavesNothing(t, before)
		})
	}
}

// A killed demo cannot clean up. The kernel does it: the daemon dies with it,
// and with both the last descriptors of the namespaces.
func TestDemoKilled(t *testing.T) {
	nstest.Need(t, runs("nfqueue"))
	before := machine(t)
	p := startProgram(t, nil, "demo", "--dataplane", "nfqueue")
	p.waitFor(t, "trying 792")
	if n := len(p.family()); n != 2 {
		t.Errorf("%d processes, want the demo and its daemon", n)
	}
	if err := p.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	p.end(t, patience)
	if err := os.RemoveAll(p.tmp); err != nil { // the one thing SIGKILL leaves
		t.Fatal(err)
	}
	if err := os.Mkdir(p.tmp, 0o755); err != nil {
		t.Fatal(err)
	}
	p.leavesNothing(t, before)
}

// --keep says how to get in, and Ctrl-C is then the ordinary end.
func TestDemoKeep(t *testing.T) {
	// The names are the machine's, so two runs of this test take turns.
	lock, err := os.Create(filepath.Join(os.TempDir(), "tierwall-test-keep.lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	named := func() []string {
		names, _ := filepath.Glob("/run/netns/tierwall-*")
		return names
	}
	nstest.Need(t, runs("nfqueue"), func() error {
		if names := named(); len(names) > 0 {
			return fmt.Errorf("the names of a kept demo must be free, and there is %s", names[0])
		}
		return nil
	})
	_, err = os.Stat("/run/netns")
	hadDir := err == nil
	before := machine(t)
	p := startProgram(t, nil, "demo", "--dataplane", "nfqueue", "--keep")
	p.waitFor(t, "keeps running until Ctrl-C")
	for _, name := range []string{"tierwall-node", "tierwall-outside", "tierwall-x-a", "tierwall-z-c"} {
		if _, err := os.Stat("/run/netns/" + name); err != nil {
			t.Error(err)
		}
	}
	if err := p.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if code := p.end(t, patience); code != 0 || !strings.Contains(p.out.String(), "0 mismatches") {
		t.Errorf("exit code %d\n%s%s", code, p.out.String(), p.err)
	}
	p.leavesNothing(t, before)
	if names := named(); len(names) > 0 {
		t.Errorf("names are left: %v", names)
	}
	if _, err := os.Stat("/run/netns"); err == nil && !hadDir {
		t.Error("the directory of names was not there before")
	}
}

// A reader that goes away ends the demo in order, too.
func TestDemoClosedPipe(t *testing.T) {
	nstest.Need(t, runs("nfqueue"))
	before := machine(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	defer w.Close()
	p := startProgram(t, w, "demo", "--dataplane", "nfqueue")
	if code := p.end(t, patience); code != 2 {
		t.Errorf("exit code %d\n%s", code, p.err)
	}
	p.leavesNothing(t, before)
}

// Policies with errors stop the demo before it has built anything.
func TestDemoBrokenPolicies(t *testing.T) {
	nstest.Need(t)
	p := startProgram(t, nil, "demo", "--manifests", broken, "-o", "json")
	if code := p.end(t, patience); code != 1 {
		t.Errorf("exit code %d", code)
	}
	var f struct{ Errors []struct{ Message string } }
	if err := json.Unmarshal(p.out.Bytes(), &f); err != nil || len(f.Errors) < 3 {
		t.Errorf("%v: %s", err, p.out.String())
	}
	if strings.Contains(p.err.String(), "building") {
		t.Error("a world was built for nothing")
	}
	if left, _ := os.ReadDir(p.tmp); len(left) > 0 {
		t.Errorf("left in the temporary directory: %v", left)
	}
}

// A user's own policies: one that changes what connects, seen on the wire.
func TestDemoOwnPolicies(t *testing.T) {
	nstest.Need(t, runs("nfqueue"))
	dir := t.TempDir()
	err := os.WriteFile(filepath.Join(dir, "p.yaml"), []byte(`
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: shut, namespace: x}
spec: {podSelector: {matchLabels: {pod: b}}, policyTypes: [Ingress, Egress]}
`), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	p := startProgram(t, nil, "demo", "--dataplane", "nfqueue", "--manifests", dir, "-o", "json")
	if code := p.end(t, patience); code != 0 {
		t.Fatalf("exit code %d\n%s", code, p.err)
	}
	var r struct{ Mismatches, Probes, Refused int }
	if err := json.Unmarshal(p.out.Bytes(), &r); err != nil {
		t.Fatal(err)
	}
	// x/b with nine others, both ways, on 2 ports, 2 protocols and 2 families.
	if r.Mismatches != 0 || r.Refused != 9*2*8 {
		t.Errorf("report %+v, want %d refused", r, 9*2*8)
	}
}

// Without root the demo says what is missing and what works.
func TestDemoWithoutRoot(t *testing.T) {
	nstest.Need(t) // to become somebody else
	p := exec.Command("/proc/self/exe", "demo")
	var errOut bytes.Buffer
	p.Stderr = &errOut
	p.Env = append(os.Environ(), asProgram+"=1", "TMPDIR="+t.TempDir())
	p.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	err := p.Run()
	if p.ProcessState == nil || p.ProcessState.ExitCode() != 2 {
		t.Fatalf("%v: %s", err, errOut.String())
	}
	if msg := errOut.String(); !strings.Contains(msg, "root") || !strings.Contains(msg, "matrix") || strings.Count(strings.TrimSpace(msg), "\n") > 0 {
		t.Errorf("want one sentence on what is missing and what still works, got %q", msg)
	}
}
