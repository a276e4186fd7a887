package connectivity

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tierwall/tierwall/cmd/internal/agent"
	"github.com/tierwall/tierwall/dataplane/nstest/netlab"
)

var (
	full       = flag.Bool("full", false, "every sample, every connection")
	onlySample = flag.String("sample", "", "only samples whose name contains this")
)

// The daemon is this test binary started again with daemonEnv set, in the
// network namespace of a node.
const daemonEnv = "TIERWALL_CONNECTIVITY_DAEMON"

func TestMain(m *testing.M) {
	if text := os.Getenv(daemonEnv); text != "" {
		os.Exit(daemonMain(text))
	}
	flag.Parse()
	os.Exit(m.Run())
}

// daemonArgs are the configuration and what of it has no key.
type daemonArgs struct {
	Config           agent.Config
	Ready, StatsFile string
}

func daemonMain(text string) int {
	var a daemonArgs
	if err := json.Unmarshal([]byte(text), &a); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	a.Config.ReadyFile, a.Config.StatsFile, a.Config.LogLevel = a.Ready, a.StatsFile, "info"
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := agent.Run(ctx, a.Config); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// Both bound the wait for a broken daemon only.
const (
	startTimeout = 40 * time.Second
	stopTimeout  = 20 * time.Second
)

// daemon is a running child.
type daemon struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	err  error         // how; valid after done
	dir  string        // of its files
}

func (d *daemon) path(name string) string { return filepath.Join(d.dir, name) }

// startDaemon starts the daemon on a node and waits until its policy is in force.
func startDaemon(t *testing.T, node *netlab.NS, c agent.Config, dir string) *daemon {
	t.Helper()
	d := &daemon{done: make(chan struct{}), dir: dir}
	text, err := json.Marshal(daemonArgs{c, d.path("ready.json"), d.path("stats.json")})
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(d.path("daemon.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	d.cmd = exec.Command(os.Args[0])
	d.cmd.Env = append(os.Environ(), daemonEnv+"="+string(text))
	d.cmd.Stdout, d.cmd.Stderr = log, log
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error, 1)
	go func() {
		// The child inherits the thread's namespace, and Pdeathsig fires when the
		// thread ends: it waits for the child.
		err := node.Do(func() error {
			err := d.cmd.Start()
			started <- err
			if err == nil {
				d.err = d.cmd.Wait()
			}
			return nil
		})
		if err != nil {
			select {
			case started <- err:
			default:
			}
		}
		close(d.done)
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.stop(t) })
	var ready agent.Ready
	d.poll(t, "ready.json", &ready, func() bool { return ready.Ready })
	want := map[string]string{"auto": "afxdp+nfqueue"}[c.Dataplane]
	if want == "" {
		want = c.Dataplane
	}
	if ready.Dataplane != want {
		t.Fatalf("the daemon runs %s, want %s: %s", ready.Dataplane, want, ready.Why)
	}
	return d
}

// poll waits until a file of the daemon holds JSON that satisfies ok.
func (d *daemon) poll(t *testing.T, name string, v any, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(startTimeout); ; time.Sleep(5 * time.Millisecond) {
		if b, err := os.ReadFile(d.path(name)); err == nil && json.Unmarshal(b, v) == nil && ok() {
			return
		}
		select {
		case <-d.done:
			t.Fatalf("the daemon ended: %v\n%s", d.err, d.log())
		default:
		}
		if time.Now().After(deadline) {
			t.Fatalf("no good %s after %v\n%s", name, startTimeout, d.log())
		}
	}
}

// stats asks for totals.
func (d *daemon) stats(t *testing.T) (s agent.Stats) {
	t.Helper()
	if err := os.Remove(d.path("stats.json")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	if err := d.cmd.Process.Signal(syscall.SIGUSR1); err != nil {
		t.Fatalf("the daemon does not take signals: %v\n%s", err, d.log())
	}
	d.poll(t, "stats.json", &s, func() bool { return true })
	return s
}

func (d *daemon) stop(t *testing.T) {
	t.Helper()
	select {
	case <-d.done:
		t.Errorf("the daemon ended on its own: %v\n%s", d.err, d.log())
		return
	default:
	}
	_ = d.cmd.Process.Signal(syscall.SIGTERM) // an error: it has ended this moment
	select {
	case <-d.done:
		if d.err != nil {
			t.Errorf("the daemon failed: %v\n%s", d.err, d.log())
		}
	case <-time.After(stopTimeout):
		_ = d.cmd.Process.Kill()
		<-d.done
		t.Errorf("the daemon did not stop within %v", stopTimeout)
	}
}

// log returns the last lines of the daemon's output.
func (d *daemon) log() string {
	b, err := os.ReadFile(d.path("daemon.log"))
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(string(bytes.TrimSpace(b)), "\n")
	return strings.Join(lines[max(0, len(lines)-15):], "\n")
}
