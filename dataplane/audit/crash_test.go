package audit

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/dataplane"
)

// The process that is killed in these tests is this test binary, started again.
const crashEnv = "TIERWALL_TEST_AUDIT_CRASH"

func TestMain(m *testing.M) {
	if dir := os.Getenv(crashEnv); dir != "" {
		if err := crashMain(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func crashConfig(dir string, src *world) Config {
	return Config{
		Source: src, Path: filepath.Join(dir, "audit.log"), Node: "n1", State: true, Chain: true,
		MaxSize: 256 << 10, Compress: true, Window: 20 * time.Millisecond, Poll: 200 * time.Microsecond, MaxAggregates: 64,
	}
}

// crashMain logs as fast as it can until it is killed. A witness in shared
// memory of the test's own counts what was put into the ring.
func crashMain(dir string) error {
	f, err := os.OpenFile(filepath.Join(dir, "witness"), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, 8, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	src := newWorld()
	src.ring = dataplane.NewRing(1024) // small: some events find it full
	w, err := New(crashConfig(dir, src))
	if err != nil {
		return err
	}
	fmt.Println("logging")
	go func() {
		put := binary.NativeEndian.Uint64(mem)
		for i := uint64(0); ; i++ {
			e := dataplane.Event{Time: dataplane.MonotonicClock(), Generation: 3, Count: 1, Key: toWeb, Length: 60}
			switch i % 3 {
			case 0:
				e.Verdict, e.Egress, e.Ingress, e.Conn = classifier.Allow, oQuiet, oPassThenNP, i+1
			case 1:
				e.Verdict, e.Egress, e.Ingress = classifier.Drop, oQuiet, oIsolated
				e.Key.DstPort = uint16(i)
			case 2:
				e.Verdict, e.Egress, e.Ingress = classifier.Drop, oQuiet, oPassDenied
			}
			put++
			binary.NativeEndian.PutUint64(mem, put)
			src.ring.Put(&e)
			if i%64 == 0 {
				time.Sleep(50 * time.Microsecond)
			}
		}
	}()
	return w.Run(neverDone{})
}

// TestKill kills a writer in the middle of heavy logging, rotation and
// compression, fifty times. After each restart there is no torn line, the chain
// of hashes is whole, and records and reported losses add up to what was put
// into the ring, exactly.
func TestKill(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "witness"), make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	kills := 50
	if testing.Short() {
		kills = 10
	}
	rng := rand.New(rand.NewPCG(1, 2))
	torn, gaps := 0, uint64(0)
	for i := range kills {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), crashEnv+"="+dir)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
			t.Fatalf("run %d did not start: %q %v", i, line, err)
		}
		time.Sleep(time.Duration(rng.IntN(60_000)) * time.Microsecond)
		if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err == nil {
			t.Fatal("the child ended by itself")
		}
		if b, err := os.ReadFile(filepath.Join(dir, "audit.log")); err == nil && len(b) > 0 && b[len(b)-1] != '\n' {
			torn++
		}
	}
	// One more writer, which ends in order.
	src := newWorld()
	w, err := New(crashConfig(dir, src))
	if err != nil {
		t.Fatal(err)
	}
	if err := w.finish(); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(dir, "witness"))
	if err != nil {
		t.Fatal(err)
	}
	put := binary.NativeEndian.Uint64(b)

	files, err := logFiles(w.cfg.Path)
	if err != nil {
		t.Fatal(err)
	}
	var total, denied, lines uint64
	var last Record
	crashes := 0
	for _, name := range files {
		for _, r := range readAll(t, name) {
			if r.Seq != last.Seq+1 || r.Events < last.Events {
				t.Fatalf("%s: line %d with %d events follows line %d with %d", name, r.Seq, r.Events, last.Seq, last.Events)
			}
			last = r
			lines++
			switch {
			case r.Kind == KindLost:
				total += r.Count
				if r.Reason == LostCrash {
					crashes++
					gaps += r.Count
					if r.Until.Before(r.Time) {
						t.Errorf("lost from %v to %v", r.Time, r.Until)
					}
				}
			case r.Verdict == Allow:
				total++
			case r.Verdict == Drop:
				total += r.Count
				denied += r.Count
			}
		}
	}
	if total != last.Events {
		t.Errorf("the lines tell of %d events, the last one says %d", total, last.Events)
	}
	// The witness counts before the ring does: a kill in between is one event
	// that only the witness knows.
	if total > put || put-total > uint64(kills) {
		t.Errorf("%d events in the log, %d were put into the ring", total, put)
	}
	if crashes < kills/2 || denied == 0 {
		t.Errorf("only %d gaps, %d denied", crashes, denied)
	}
	c, err := verifyFiles(files...)
	if err != nil || !c.OK() || c.Unchained != 0 {
		t.Errorf("chain: %v, %v", err, c.Breaks)
	}
	t.Logf("%d kills: %d events in %d lines of %d files, %d ends torn, %d events lost and told; %d fewer than put",
		kills, total, lines, len(files), torn, gaps, put-total)
}

type neverDone struct{}

func (neverDone) Deadline() (time.Time, bool) { return time.Time{}, false }
func (neverDone) Done() <-chan struct{}       { return nil }
func (neverDone) Err() error                  { return nil }
func (neverDone) Value(any) any               { return nil }

// readAll parses every line of a file; one that is torn or no record is fatal.
func readAll(t testing.TB, name string) (all []Record) {
	t.Helper()
	f, err := Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if len(b) > 0 && b[len(b)-1] != '\n' {
		t.Fatalf("%s ends inside a line", name)
	}
	for line := range strings.Lines(string(b)) {
		r, err := Parse([]byte(line))
		if err != nil {
			t.Fatalf("%s: %v: %s", name, err, line)
		}
		all = append(all, r)
	}
	return all
}

// TestStartAgain starts a writer on what crashes, people and other programs
// leave behind.
func TestStartAgain(t *testing.T) {
	const one = `{"v":1,"kind":"flow","time":"2026-01-01T00:00:00Z","verdict":"Allow","count":1,"seq":7,"events":9}` + "\n"
	stamp := ".20260101T000000.000000000Z"
	for _, c := range []struct {
		name  string
		files map[string]string
		state bool
		want  []string // kind:reason:seq:count of the log's lines afterwards
	}{
		{"nothing", nil, true, nil},
		{"whole", map[string]string{"": one}, true, []string{"flow::7:1"}},
		{"torn, numbers unknown", map[string]string{"": one + `{"v":1,"kin`}, false, []string{"flow::7:1", "lost:torn-line:0:1"}},
		{"torn, no state yet", map[string]string{"": one + `{"v":1,"kin`}, true, []string{"flow::7:1", "lost:torn-line:8:1"}},
		{"only a torn line", map[string]string{"": `{"v":1,"kin`}, true, []string{"lost:torn-line:1:1"}},
		{"between renames", map[string]string{stamp: one, nextSuffix: ""}, true, nil},
		{"after compressing", map[string]string{stamp: one, stamp + gzSuffix: "x", stamp + tmpSuffix: "y"}, true, nil},
		{"foreign lines", map[string]string{"": one + "hello\n"}, true, []string{"flow::7:1", "?"}},
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, "audit.log")
		for suffix, text := range c.files {
			if err := os.WriteFile(path+suffix, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		w, err := New(Config{Source: newWorld(), Path: path, State: c.state, Compress: true})
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		w.archive.clean()
		if err := w.finish(); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for line := range strings.Lines(string(b)) {
			r, err := Parse([]byte(line))
			if err != nil {
				got = append(got, "?")
				continue
			}
			got = append(got, fmt.Sprintf("%s:%s:%d:%d", r.Kind, r.Reason, r.Seq, r.Count))
		}
		if strings.Join(got, " ") != strings.Join(c.want, " ") {
			t.Errorf("%s: log is %q, want %q", c.name, got, c.want)
		}
		for _, suffix := range []string{stamp + tmpSuffix} {
			if _, err := os.Stat(path + suffix); err == nil {
				t.Errorf("%s: %s is still there", c.name, suffix)
			}
		}
		if _, plain := c.files[stamp+gzSuffix]; plain {
			if _, err := os.Stat(path + stamp); err == nil {
				t.Errorf("%s: the plain file is still there", c.name)
			}
		}
	}
}

// TestOneWriter: a second writer is refused while the first one lives.
func TestOneWriter(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	w, err := New(Config{Source: newWorld(), Path: path, State: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := New(Config{Source: newWorld(), Path: path, State: true}); !errors.Is(err, errLocked) {
		t.Errorf("second writer: %v", err)
	}
	if err := w.finish(); err != nil {
		t.Fatal(err)
	}
	w, err = New(Config{Source: newWorld(), Path: path, State: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.finish(); err != nil {
		t.Fatal(err)
	}
	if s := w.Stats(); s.CrashLost != 0 {
		t.Errorf("an orderly end lost %d", s.CrashLost)
	}
}
