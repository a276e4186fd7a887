package afxdp

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/dataplane/afxdp/attach"
	"github.com/tierwall/tierwall/dataplane/afxdp/kern"
	"github.com/tierwall/tierwall/dataplane/afxdp/upcall"
)

// Bounds of Drain: how long it waits in all, and how long nothing must have moved.
// Frames between the two ends of the pair are nowhere to be seen.
const (
	drainPatience = time.Second
	drainStill    = 20 * time.Millisecond
)

// Drain implements dataplane.Backend: the programs believe at once that there is no
// daemon, and what they had sent up is judged.
func (b *Backend) Drain() error {
	if len(b.drivers) == 0 {
		return nil
	}
	if err := b.liveness.stop(); err != nil {
		return fmt.Errorf("afxdp: %w", err)
	}
	var before, now [2]uint64
	began := time.Now()
	for busy := began; time.Since(busy) < drainStill; time.Sleep(time.Millisecond) {
		err := b.thread.do(func() error {
			now = [2]uint64{b.count(kern.CountUpcall), b.count(kern.CountReceived)}
			return nil
		})
		if err != nil {
			return fmt.Errorf("afxdp: %w", err)
		}
		if now != before || !b.idle() {
			before, busy = now, time.Now()
		}
		if time.Since(began) > drainPatience {
			return fmt.Errorf("afxdp: packets still wait for a verdict after %v", drainPatience)
		}
	}
	return nil
}

// idle reports whether no packet waits for a verdict in any queue.
func (b *Backend) idle() bool {
	for _, d := range b.drivers {
		if !d.idle() {
			return false
		}
	}
	return true
}

// releaseWait bounds the wait for a worker that holds a batch while the backend
// closes.
const releaseWait = 2 * time.Second

// Close implements dataplane.Backend. What is pinned stays at work, without a
// daemon: accepted flows go on. What is not is taken off the devices, after which
// the stack passes everything (a later hook permitting).
func (b *Backend) Close() error {
	err := b.thread.do(b.shut)
	if errors.Is(err, errThreadGone) {
		return nil
	}
	b.watching.Wait()
	err = errors.Join(err, b.devices.CloseWatch())
	b.thread.stop()
	return err
}

// shut undoes whatever part of open was done.
func (b *Backend) shut() error {
	if b.closed {
		return nil
	}
	b.closed = true
	var errs []error
	// What was taken over stays even if we came no further.
	pinned := b.pins.Dir != "" && (len(b.drivers) > 0 || b.pair != nil && b.pair.Adopted)
	if pinned {
		errs = append(errs, b.liveness.stop())
	}
	if b.devices != nil {
		errs = append(errs, b.devices.Close(pinned))
	}
	if b.objects.Counters != nil {
		b.final = b.stats()
	}
	for _, d := range b.drivers {
		errs = append(errs, d.Close())
	}
	late, enough := context.WithTimeout(context.Background(), releaseWait)
	defer enough()
	for _, d := range b.drivers {
		select {
		case <-d.released:
		case <-late.Done():
			errs = append(errs, errors.New("a worker still holds packets; its socket is released when it lets go"))
		}
	}
	if b.pair != nil {
		errs = append(errs, b.pair.Close(pinned))
	}
	errs = append(errs, b.objects.Close())
	if b.nl != nil {
		b.nl.Close()
	}
	if b.lock >= 0 {
		errs = append(errs, unix.Close(b.lock))
	}
	return errors.Join(errs...)
}

// Cleanup removes what earlier runs left in the network namespace of the calling
// thread: programs and maps pinned below pinPath ("" if nothing was), and the
// upcall pair; and what is pinned there for namespaces that have ended. It fails if
// another process is at work here.
func Cleanup(pinPath string) error {
	lock, err := kern.LockNamespace()
	if err != nil {
		return err
	}
	defer unix.Close(lock)
	nl, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	defer nl.Close()
	var errs []error
	if pinPath != "" {
		errs = append(errs, kern.Unpin(pinPath))
	}
	return errors.Join(append(errs, upcall.RemovePair(nl), attach.RemoveAllFilters(nl))...)
}
