package nstest

import (
	"testing"

	"golang.org/x/sys/unix"
)

// BPFFS mounts a BPF file system that ends with the test, and with it whatever
// is pinned there and used nowhere else. It returns its directory.
func BPFFS(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("bpf", dir, "bpf", 0, "mode=0700"); err != nil {
		t.Fatalf("mount a BPF file system: %v", err)
	}
	t.Cleanup(func() { check(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	return dir
}
