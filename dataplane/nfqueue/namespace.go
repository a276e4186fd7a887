package nfqueue

import (
	"fmt"

	"github.com/vishvananda/netns"
)

// homeNamespace returns a handle on the calling thread's network namespace, or
// netns.None() where that is the process's own. Threads nobody locked are in the
// process's namespace anyway, and entering a namespace, even one's own, takes
// CAP_SYS_ADMIN (netns_install, net/core/net_namespace.c): the daemon shall do
// without. The caller has locked the thread, and closes the handle if it is open.
func homeNamespace() (netns.NsHandle, error) {
	here, err := netns.Get()
	if err != nil {
		return netns.None(), fmt.Errorf("open network namespace: %w", err)
	}
	process, err := netns.GetFromPath("/proc/self/ns/net")
	if err != nil {
		return here, nil
	}
	defer process.Close()
	if !here.Equal(process) {
		return here, nil
	}
	if err := here.Close(); err != nil {
		return netns.None(), fmt.Errorf("close network namespace: %w", err)
	}
	return netns.None(), nil
}

// nsFD is the namespace as the netlink libraries take it: 0 is where the calling
// thread is.
func nsFD(ns netns.NsHandle) int {
	if !ns.IsOpen() {
		return 0
	}
	return int(ns)
}
