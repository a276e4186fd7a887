package agent

import (
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tierwall/tierwall/dataplane/nstest"
	"github.com/tierwall/tierwall/dataplane/nstest/netlab"
)

// TestChangedConfiguration restarts the daemon with other backends and other ways
// of attaching, in order and after SIGKILL. Whatever the run before left in the
// kernel: the policy is in force, live connections go on, and a change of policy
// cuts those it denies.
func TestChangedConfiguration(t *testing.T) {
	r := newRig(t, "auto")
	r.write("policy.yaml", allowFromX)
	r.start()
	r.secondDaemon("afxdp")
	for i, c := range []struct{ dataplane, attach string }{
		{"nfqueue", "auto"}, {"afxdp", "auto"}, {"nfqueue", "auto"}, {"auto", "tcx"}, {"auto", "clsact"}, {"auto", "tcx"}, {"auto", "xdp-generic"},
	} {
		step := r.conf.Dataplane + "/" + r.conf.AFXDP.Attach + " > " + c.dataplane + "/" + c.attach
		in, out, asked := r.dial("tcp", "x/a", "y/b", 4), r.dial("tcp", "y/b", "z/a", 6), r.dial("udp", "outside", "z/c", 4)
		r.stop([]syscall.Signal{syscall.SIGTERM, syscall.SIGKILL}[i%2])
		r.conf.Dataplane, r.conf.AFXDP.Attach = c.dataplane, c.attach
		r.start()
		if !alive(in) || !alive(out) || !alive(asked) {
			t.Errorf("%s: live connections died: to y/b %t, from y/b %t, to z/c %t", step, cut(in), cut(out), cut(asked))
		}
		if !r.reaches("tcp", "x/c", "y/b", 6) || r.world.Host("outside").NS.Probe("udp", r.to("y/b", 4, 80), nstest.Blocked) == nil || !r.reaches("tcp", "outside", "z/c", 4) || !r.reaches("udp", "z/c", "outside", 6) {
			t.Errorf("%s: the policy is not in force, or more than that is", step)
		}
		r.write("policy.yaml", denyYB)
		r.until(step+": what the change denies is cut", func() bool { return cut(in) })
		if !alive(out) || !alive(asked) {
			t.Errorf("%s: a change about y/b cut others: from y/b %t, to z/c %t", step, cut(out), cut(asked))
		}
		r.write("policy.yaml", allowFromX)
		r.until(step+": the change is taken back", func() bool { return r.opens("tcp", "x/a", "y/b", 4) })
	}
	r.stop(syscall.SIGKILL)
	r.cleanup()
	if !r.reaches("tcp", "outside", "y/b", 4) {
		t.Error("after the cleanup something is still in force")
	}
}

// TestBackendsChangeUnderLoad restarts the daemon with other backends while packets
// flow. Every backend alone judges what the other one does not know of; so nothing
// denied passes while the one hands over to the other, and of an accepted flow
// nothing is lost that does not wait for a verdict.
func TestBackendsChangeUnderLoad(t *testing.T) {
	r := newRig(t, "afxdp")
	r.write("policy.yaml", allowFromX+`---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: no-egress, namespace: z}
spec:
  podSelector: {matchLabels: {pod: c}}
  policyTypes: [Egress]
`)
	r.start()
	for i, next := range []string{"auto", "afxdp", "nfqueue", "afxdp", "auto", "nfqueue"} {
		step := r.conf.Dataplane + " > " + next
		live := r.dial("udp", "x/a", "y/b", 4)
		back := r.dial("udp", "y/b", "outside", 6)
		over, done := make(chan struct{}), make(chan struct{})
		var passed, lost, sent int
		go func() {
			defer close(done)
			var strangers []net.Conn
			// Each is a flow of its own, and asked for an answer once it is over.
			for {
				for _, to := range []struct{ from, to string }{{"z/c", "outside"}, {"z/a", "y/b"}, {"outside", "y/b"}} {
					strangers = append(strangers, r.speak(to.from, to.to))
				}
				for _, c := range []net.Conn{live, back} {
					sent++
					if netlab.Exchange(c, fmt.Appendf(nil, "%d", sent), 100*time.Millisecond) != nil {
						lost++
					}
				}
				select {
				case <-over:
					for _, c := range strangers {
						if answered(t, c, time.Millisecond) {
							passed++
						}
						c.Close()
					}
					return
				case <-time.After(2 * time.Millisecond):
				}
			}
		}()
		time.Sleep(100 * time.Millisecond)
		r.stop([]syscall.Signal{syscall.SIGTERM, syscall.SIGKILL}[i%2])
		r.conf.Dataplane = next
		r.start()
		time.Sleep(100 * time.Millisecond)
		close(over)
		<-done
		// A packet in the hands of a daemon that is killed goes with it.
		if passed > 0 || lost > 2 {
			t.Errorf("%s: %d denied packets passed; %d of %d accepted ones were lost", step, passed, lost, sent)
		}
	}
}

// secondDaemon starts another daemon beside the one that runs: it must give up,
// and leave the first one and its connections alone.
func (r *rig) secondDaemon(dataplane string) {
	r.t.Helper()
	live := r.dial("tcp", "x/a", "y/b", 4)
	second := *r
	second.state = r.t.TempDir()
	second.conf.Dataplane, second.conf.Audit.File = dataplane, filepath.Join(second.state, "audit.log")
	second.launch()
	done := make(chan error, 1)
	go func() { done <- second.proc.Wait() }()
	select {
	case err := <-done:
		if err == nil || !strings.Contains(second.logText(), errRunning.Error()) {
			r.t.Errorf("a second daemon ended with %v:\n%s", err, second.logText())
		}
	case <-time.After(2 * lockPatience):
		second.proc.Process.Kill()
		r.t.Errorf("a second daemon runs:\n%s", second.logText())
	}
	if !alive(live) || !r.reaches("tcp", "x/a", "y/b", 6) || r.opens("udp", "outside", "y/b", 4) {
		r.t.Error("a second daemon disturbs the first")
	}
}

// TestOrderlyStop stops a daemon that had no time for the packets that wait for its
// verdict: it judges them before it ends.
func TestOrderlyStop(t *testing.T) {
	for _, dp := range dataplanes {
		t.Run(dp, func(t *testing.T) {
			r := newRig(t, dp)
			r.write("policy.yaml", allowFromX)
			r.start()
			if err := r.proc.Process.Signal(syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			const waiting = 200 // connections of their own
			var allowed, denied [waiting]net.Conn
			for i := range waiting {
				allowed[i], denied[i] = r.speak("x/a", "y/b"), r.speak("z/a", "y/b")
			}
			for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGCONT} {
				if err := r.proc.Process.Signal(s); err != nil {
					t.Fatal(err)
				}
			}
			r.stop(syscall.SIGTERM)
			lost, passed := 0, 0
			for i := range waiting {
				if !answered(t, allowed[i], nstest.Timeout) {
					lost++
				}
				if answered(t, denied[i], time.Millisecond) {
					passed++
				}
			}
			if lost > 0 || passed > 0 {
				t.Errorf("of %d connections each, %d allowed were lost and %d denied passed", waiting, lost, passed)
			}
			if s := r.stats(); s.Overflow != 0 || s.Paths["drop/policy"] < waiting {
				t.Errorf("%+v", s)
			}
		})
	}
}

// answered reports whether an answer waits, or comes within a time.
func answered(t *testing.T, c net.Conn, wait time.Duration) bool {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(wait)); err != nil {
		t.Error(err)
	}
	_, err := c.Read(make([]byte, 16))
	return err == nil
}

// speak opens a connection and sends a datagram.
func (r *rig) speak(from, to string) net.Conn {
	r.t.Helper()
	c, err := r.world.Host(from).NS.Dial(r.t.Context(), "udp", netip.AddrPort{}, r.to(to, 4, 80))
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { c.Close() })
	if _, err := c.Write([]byte("hello")); err != nil {
		r.t.Fatal(err)
	}
	return c
}
