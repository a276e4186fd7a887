package afxdp

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Bounds of Drain: how long it waits in all, and how long nothing must have moved.
// Frames between the two ends of the pair are nowhere to be seen.
const (
	drainPatience = time.Second
	drainStill    = 20 * time.Millisecond
)

// Drain implements dataplane.Drainer: the programs believe at once that there is no
// daemon, and what they had sent up is judged.
func (b *Backend) Drain() error {
	if b.driver == nil {
		return nil
	}
	b.driver.drained.Store(true)
	var before, now [2]uint64
	began := time.Now()
	for busy := began; time.Since(busy) < drainStill; time.Sleep(time.Millisecond) {
		err := b.thread.do(func() error {
			now = [2]uint64{b.count(countUpcall), b.count(countReceived)}
			// Again and again: a worker may have been about to give a sign of life.
			return b.epoch.shared.alive.Set(uint64(0))
		})
		if err != nil {
			return fmt.Errorf("afxdp: %w", err)
		}
		if now != before || !b.driver.idle() {
			before, busy = now, time.Now()
		}
		if time.Since(began) > drainPatience {
			return fmt.Errorf("afxdp: packets still wait for a verdict after %v", drainPatience)
		}
	}
	return nil
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
	if b.watch != nil {
		err = errors.Join(err, b.watch.close())
	}
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
	pinned := b.pins.dir != "" && (b.driver != nil || b.pair != nil && b.pair.adopted)
	if pinned {
		if b.driver != nil {
			errs = append(errs, b.epoch.shared.alive.Set(uint64(0)))
		}
		for _, d := range b.devices {
			errs = append(errs, d.close())
		}
		for _, d := range b.exits {
			errs = append(errs, d.close())
		}
	} else {
		for index := range b.devices {
			errs = append(errs, b.detach(index))
		}
		for index := range b.exits {
			errs = append(errs, b.detachExit(index))
		}
	}
	errs = append(errs, b.closeGate(pinned))
	if b.watch != nil {
		errs = append(errs, b.watch.stop())
	}
	errs = append(errs, b.stopGuard())
	if b.objects.Counters != nil {
		b.final = b.stats()
	}
	if b.driver != nil {
		errs = append(errs, b.driver.Close())
		select {
		case <-b.driver.released:
		case <-time.After(releaseWait):
			errs = append(errs, errors.New("the worker still holds packets; the socket is released when it lets go"))
		}
	}
	if b.pair != nil {
		errs = append(errs, b.pair.close(pinned))
	}
	errs = append(errs, b.objects.Close(), b.objects.Shared.Close())
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
	lock, err := lockNamespace()
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
		dir, err := namespaceDir(pinPath)
		if !errors.Is(err, unix.ENOPROTOOPT) { // before Linux 5.14 nothing can be pinned
			errs = append(errs, err)
		}
		if err == nil {
			// Those of namespaces that have ended are nobody's.
			errs = append(errs, pins{dir}.removeAll(), sweep(pinPath, dir))
			_ = os.Remove(pinPath) // not empty: another namespace's daemon has pins
		}
	}
	return errors.Join(append(errs, removeUpcallPair(nl), removeAllFilters(nl))...)
}
