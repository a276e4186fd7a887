package afxdp

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// nsThread runs functions on one OS thread inside the network namespace of the
// thread that made it. Devices are named by numbers that mean nothing in another
// namespace, so everything that names one runs here: the daemon's goroutines
// wander over threads, and in tests those are in different namespaces.
type nsThread struct {
	calls chan func()
	quit  chan struct{}
	done  chan struct{}
}

// newNSThread starts the thread.
func newNSThread() (*nsThread, error) {
	ns, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, fmt.Errorf("open network namespace: %w", err)
	}
	t := &nsThread{calls: make(chan func()), quit: make(chan struct{}), done: make(chan struct{})}
	ready := make(chan error)
	go func() {
		defer close(t.done)
		defer ns.Close()
		// Never unlocked: the thread ends with the goroutine, so that nobody
		// else finds itself in this namespace.
		runtime.LockOSThread()
		// Where it is already, the call changes nothing but needs the privilege.
		if !sameNamespace(ns) {
			if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
				ready <- fmt.Errorf("enter network namespace: %w", err)
				return
			}
		}
		ready <- nil
		for {
			select {
			case f := <-t.calls:
				f()
			case <-t.quit:
				return
			}
		}
	}()
	if err := <-ready; err != nil {
		return nil, err
	}
	return t, nil
}

func sameNamespace(ns *os.File) bool {
	want, err := ns.Stat()
	if err != nil {
		return false
	}
	here, err := os.Stat("/proc/thread-self/ns/net")
	return err == nil && os.SameFile(want, here)
}

var errThreadGone = errors.New("afxdp: backend closed")

// do runs f on the thread and waits for it.
func (t *nsThread) do(f func() error) error {
	errs := make(chan error, 1)
	select {
	case t.calls <- func() { errs <- f() }:
		return <-errs
	case <-t.done:
		return errThreadGone
	}
}

// stop ends the thread; it may be called once. A later do fails.
func (t *nsThread) stop() {
	close(t.quit)
	<-t.done
}
