package kern

import "golang.org/x/sys/unix"

// Now reads the clock the kernel side reads, in ns. Once per batch.
func Now() uint64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC_COARSE, &ts); err != nil {
		return 0 // the entry expires at once: the next packet is judged again
	}
	return uint64(ts.Nano())
}
