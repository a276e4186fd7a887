package dataplane

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// MissingError says which piece of the kernel a backend lacks and what to do about
// it.
type MissingError struct {
	Piece  string // what is missing: "the kernel has no …"
	Module string // the modules that have it, for modprobe; "" if it is in none
	Option string // what the kernel has to be built with
	Since  string // the first Linux version that has it; "" for any that is maintained
	Cause  error  // in the kernel's own words
}

// Error says it in one sentence, with the kernel's words at the end.
func (e *MissingError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "the kernel has no %s", e.Piece)
	if e.Since != "" {
		fmt.Fprintf(&b, ": it takes Linux %s or later, this is %s", e.Since, KernelRelease())
	}
	var remedies []string
	if e.Module != "" {
		remedies = append(remedies, fmt.Sprintf("run \"modprobe %s\"", e.Module))
	}
	if e.Option != "" {
		remedies = append(remedies, "use a kernel built with "+e.Option)
	}
	if len(remedies) > 0 {
		b.WriteString("; " + strings.Join(remedies, ", or "))
	}
	if e.Cause != nil {
		fmt.Fprintf(&b, " (%v)", e.Cause)
	}
	return b.String()
}

func (e *MissingError) Unwrap() error { return e.Cause }

// KernelRelease is what the running kernel calls itself, for messages: what a kernel
// can do is found out by trying.
func KernelRelease() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:])
}
