//go:build amd64

package xsk

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/asavie/xdp"
	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/dataplane/nstest"
)

// The rings are compared with those of asavie/xdp (docs/adr/0010-own-af-xdp-rings.md), on
// amd64 only: elsewhere its plain loads and stores are a race.

const compareFrames = 128

// canRun says whether the kernel has AF_XDP.
func canRun() error {
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open an AF_XDP socket: %w", err)
	}
	return unix.Close(fd)
}

// end is a socket on one end of a veth pair.
type end interface {
	// bounce waits for n frames, calls see for each in the order of their arrival,
	// sends them back and gives their buffers to the kernel again.
	bounce(n int, see func(frame []byte)) error
	FD() int
	Close() error
}

type openEnd func(ifindex int) (end, error)

var kinds = []struct {
	name string
	open openEnd
}{{"own", openOwn}, {"asavie", openAsavie}}

type own struct{ *Socket }

func openOwn(ifindex int) (end, error) {
	s, err := New(ifindex, 0, Config{Frames: compareFrames, FrameSize: 2048})
	return own{s}, err
}

func (s own) bounce(n int, see func([]byte)) error {
	if err := await(n, s.Received); err != nil {
		return err
	}
	descs := s.Receive(n)
	if see != nil {
		for _, d := range descs {
			see(s.Frame(d))
		}
	}
	if sent, err := s.Transmit(descs); sent != n || err != nil {
		return fmt.Errorf("sent %d of %d: %w", sent, n, err)
	}
	for tries := 0; s.Complete() > 0; tries++ { // the kernel sends 32 per call
		if _, err := s.Transmit(nil); err != nil || tries > 1000 {
			return fmt.Errorf("after %d calls frames are not sent: %w", tries, err)
		}
	}
	s.Fill(descs)
	return nil
}

type asavie struct{ *xdp.Socket }

func openAsavie(ifindex int) (end, error) {
	xdp.DefaultSocketFlags = unix.XDP_COPY
	s, err := xdp.NewSocket(ifindex, 0, &xdp.SocketOptions{
		NumFrames: compareFrames, FrameSize: 2048,
		FillRingNumDescs: compareFrames, CompletionRingNumDescs: compareFrames,
		RxRingNumDescs: compareFrames, TxRingNumDescs: compareFrames,
	})
	if err != nil {
		return nil, err
	}
	s.Fill(s.GetDescs(compareFrames))
	return asavie{s}, nil
}

func (s asavie) bounce(n int, see func([]byte)) error {
	if err := await(n, s.NumReceived); err != nil {
		return err
	}
	descs := s.Receive(n)
	if see != nil {
		for _, d := range descs {
			see(s.GetFrame(d))
		}
	}
	if sent := s.Transmit(descs); sent != n {
		return fmt.Errorf("sent %d of %d", sent, n)
	}
	for tries := 0; ; tries++ {
		s.Complete(s.NumCompleted())
		if s.NumTransmitted() == 0 {
			break
		}
		if s.Transmit(nil); tries > 1000 {
			return fmt.Errorf("after %d calls frames are not sent", tries)
		}
	}
	if filled := s.Fill(descs); filled != n {
		return fmt.Errorf("gave back %d of %d buffers", filled, n)
	}
	return nil
}

// await looks until n frames are there. Mostly they are: a veth device delivers before
// the call that sends returns.
func await(n int, received func() int) error {
	if received() >= n {
		return nil
	}
	for deadline := time.Now().Add(nstest.Timeout); time.Now().Before(deadline); runtime.Gosched() {
		if received() >= n {
			return nil
		}
	}
	return fmt.Errorf("after %v %d frames arrived, want %d", nstest.Timeout, received(), n)
}

// link is a veth pair whose ends send all they receive to sockets.
type link struct {
	near, far *nstest.NS
	program   [2]*xdp.Program
	index     [2]int
	packet    int // a packet socket: what it sends arrives at the far end
}

const device = "x0"

func newLink(t testing.TB) *link {
	t.Helper()
	l := &link{near: nstest.New(t), far: nstest.New(t)}
	for _, ns := range []*nstest.NS{l.near, l.far} {
		for _, key := range []string{"net/ipv6/conf/all/disable_ipv6", "net/ipv6/conf/default/disable_ipv6"} {
			if err := ns.Sysctl(key, "1"); err != nil { // the stack sends nothing of its own
				t.Fatal(err)
			}
		}
	}
	nstest.Pair(t, l.near, device, l.far, device)
	// A socket of asavie/xdp lives until the process ends, and a namespace with it.
	t.Cleanup(func() { l.near.RemoveLink(device) })
	for i, ns := range []*nstest.NS{l.near, l.far} {
		dev, err := ns.Link(device)
		if err != nil {
			t.Fatal(err)
		}
		l.index[i] = dev.Attrs().Index
		if l.program[i], err = xdp.NewProgram(1); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.program[i].Close() })
		if err := ns.Do(func() error { return l.program[i].Attach(l.index[i]) }); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.near.Do(func() (err error) {
		l.packet, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(l.packet) })
	return l
}

// ends opens a socket on each end.
func (l *link) ends(t testing.TB, near, far openEnd) (e [2]end) {
	t.Helper()
	for i, open := range []openEnd{near, far} {
		err := []*nstest.NS{l.near, l.far}[i].Do(func() (err error) {
			if e[i], err = open(l.index[i]); err != nil {
				return err
			}
			return l.program[i].Register(0, e[i].FD())
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := e[i].Close(); err != nil {
				t.Error(err)
			}
		})
	}
	return e
}

// inject sends frames that arrive at the far end.
func (l *link) inject(t testing.TB, frames [][]byte) {
	t.Helper()
	for _, f := range frames {
		if err := unix.Sendto(l.packet, f, 0, &unix.SockaddrLinklayer{Ifindex: l.index[0]}); err != nil {
			t.Fatal(err)
		}
	}
}

// makeFrames makes n frames to nobody, of random contents and of min to max bytes.
func makeFrames(r *rand.Rand, n, min, max int) [][]byte {
	frames := make([][]byte, n)
	for i := range frames {
		f := make([]byte, min+r.IntN(max-min+1))
		for j := range f {
			f[j] = byte(r.Uint32())
		}
		copy(f, []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5}) // local and experimental
		frames[i] = f
	}
	return frames
}

// Frames go back and forth, changed by whoever has them, between the own socket and the
// library's: what one sends is what the other receives, byte for byte and in order. The
// rings go around several times.
func TestSameFramesAsTheLibrary(t *testing.T) {
	nstest.Need(t, canRun)
	for _, near := range kinds {
		for _, far := range kinds {
			for _, n := range []int{1, 8, 64} {
				t.Run(fmt.Sprintf("%s-%s/%d", near.name, far.name, n), func(t *testing.T) {
					l := newLink(t)
					e := l.ends(t, near.open, far.open)
					frames := makeFrames(rand.New(rand.NewPCG(1, 2)), n, 60, 1514)
					l.inject(t, frames)
					for hop := range 6 * compareFrames / n * 2 {
						i := 0
						if err := e[(hop+1)%2].bounce(n, func(got []byte) {
							if !bytes.Equal(got, frames[i]) {
								t.Fatalf("hop %d, frame %d:\n got %x\nwant %x", hop, i, got, frames[i])
							}
							for j := 14; j < len(got); j++ {
								got[j] += byte(j)
								frames[i][j] += byte(j)
							}
							i++
						}); err != nil {
							t.Fatalf("hop %d: %v", hop, err)
						}
						if i != n {
							t.Fatalf("hop %d: %d frames, want %d", hop, i, n)
						}
					}
				})
			}
		}
	}
}

// Bursts allocate nothing.
func TestBurstsAllocateNothing(t *testing.T) {
	nstest.Need(t, canRun)
	for _, n := range []int{1, 8, 64} {
		l := newLink(t)
		e := l.ends(t, openOwn, openOwn)
		l.inject(t, makeFrames(rand.New(rand.NewPCG(1, 2)), n, 60, 60))
		if allocs := testing.AllocsPerRun(100, func() { roundTrip(t, e, n) }); allocs != 0 {
			t.Errorf("%v allocations for a burst of %d, want none", allocs, n)
		}
	}
}

// roundTrip has a burst that is on its way to the far end go on to the near one and back.
func roundTrip(t testing.TB, e [2]end, n int) {
	for i := range e {
		if err := e[1-i].bounce(n, nil); err != nil {
			t.Fatal(err)
		}
	}
}

// The library's defects for which it is not underneath. Where this fails, look at ADR 10
// once more.
func TestWhyNotTheLibrary(t *testing.T) {
	nstest.Need(t, canRun)
	for _, kind := range kinds {
		library := kind.name == "asavie"
		t.Run(kind.name, func(t *testing.T) {
			l := newLink(t)
			again := func() error {
				return l.near.Do(func() error {
					s, err := New(l.index[0], 0, Config{Frames: compareFrames, FrameSize: 2048})
					if err == nil {
						err = s.Close()
					}
					return err
				})
			}
			var s end
			if err := l.near.Do(func() (err error) { s, err = kind.open(l.index[0]); return err }); err != nil {
				t.Fatal(err)
			}
			if err := again(); !errors.Is(err, unix.EBUSY) {
				t.Errorf("a second socket on the queue: %v, want EBUSY", err)
			}
			if err := l.near.Do(func() error { _, err := kind.open(l.index[0]); return err }); err == nil || errors.Is(err, unix.EBUSY) == library {
				t.Errorf("the error is %v; is it EBUSY: %t", err, !library)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			if library {
				time.Sleep(nstest.Blocked)
				if err := again(); !errors.Is(err, unix.EBUSY) {
					t.Errorf("a queue after Close: %v, want EBUSY", err)
				}
			} else {
				nstest.Eventually(t, "the queue is free after Close", func() bool { return again() == nil })
			}

			gone := newLink(t)
			e := gone.ends(t, kind.open, kind.open)
			gone.inject(t, makeFrames(rand.New(rand.NewPCG(1, 2)), 1, 60, 60))
			panicked := false
			err := func() (err error) {
				defer func() { panicked = recover() != nil }()
				return e[1].bounce(1, func([]byte) { gone.near.RemoveLink(device) })
			}()
			if panicked != library || !library && err == nil {
				t.Errorf("sending on a device that is gone: panic %t, error %v", panicked, err)
			}
		})
	}
}

// BenchmarkRings is a burst that goes back and forth once between two sockets on the ends
// of a veth pair: each receives it and sends it. Most of it is the kernel's work.
func BenchmarkRings(b *testing.B) {
	nstest.Need(b, canRun)
	for _, n := range []int{1, 8, 64} {
		for _, kind := range kinds {
			b.Run(fmt.Sprintf("%s/%d", kind.name, n), func(b *testing.B) {
				l := newLink(b)
				e := l.ends(b, kind.open, kind.open)
				l.inject(b, makeFrames(rand.New(rand.NewPCG(1, 2)), n, 60, 60))
				b.ReportAllocs()
				for b.Loop() {
					roundTrip(b, e, n)
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(2*n*b.N), "ns/frame")
			})
		}
	}
}
