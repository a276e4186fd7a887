package dataplane

import (
	"os"
	"runtime"
	"runtime/debug"

	"golang.org/x/sys/unix"
)

// steady keeps this program's own runtime out of a measurement until the function
// it returns is called.
//
// A thread that blocks in a system call holds on to its place among GOMAXPROCS
// until the runtime's monitor notices, up to 10 ms later, and waits for one when
// it comes back. Subjects whose packets wait for a daemon would pay for that and
// forwarding would not: there must be a place for every thread that may block. The
// garbage collector has an idea of its own of how many CPUs that means, and waits
// until the measurement is over.
func steady() (end func()) {
	runtime.GC()
	procs := runtime.GOMAXPROCS(2*mostCallers + runtime.NumCPU())
	percent := debug.SetGCPercent(-1)
	return func() {
		debug.SetGCPercent(percent)
		runtime.GOMAXPROCS(procs)
	}
}

// cpus returns the CPUs this process may use.
func cpus() (all []int, err error) {
	var may unix.CPUSet
	if err := unix.SchedGetaffinity(0, &may); err != nil {
		return nil, os.NewSyscallError("sched_getaffinity", err)
	}
	for cpu := range 8 * len(may) * 8 {
		if may.IsSet(cpu) {
			all = append(all, cpu)
		}
	}
	return all, nil
}

// pinned runs f on an OS thread of its own on the first CPU this process may use,
// where the kernel also forwards what f sends. The other CPUs are left to the
// daemon.
func pinned(f func() error) error {
	all, err := cpus()
	if err != nil {
		return err
	}
	return pinnedTo(all[0], f)
}

// pinnedTo runs f on an OS thread of its own on a CPU.
func pinnedTo(cpu int, f func() error) error {
	done := make(chan error, 1)
	go func() {
		// Never unlocked: the thread, with its affinity, ends with the goroutine.
		runtime.LockOSThread()
		done <- func() error {
			var one unix.CPUSet
			one.Set(cpu)
			if err := unix.SchedSetaffinity(0, &one); err != nil {
				return os.NewSyscallError("sched_setaffinity", err)
			}
			return f()
		}()
	}()
	return <-done
}
