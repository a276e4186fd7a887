package nstest

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/nstest/netlab"
)

// RequireEnv is the environment variable that turns skips of privileged tests
// into failures when it is "1".
const RequireEnv = "TIERWALL_REQUIRE_PRIV"

// Timeout bounds what a test waits for and expects to happen. It is generous:
// it is spent only by failing tests.
const Timeout = 45 * time.Second

// Blocked bounds what a test waits for and expects not to happen. It is spent
// by passing tests.
const Blocked = 300 * time.Millisecond

// A Piece is something of the machine a test needs. It returns nil or says what
// is missing.
type Piece func() error

var namespaces = sync.OnceValue(netlab.Missing)

// Need skips the test, or fails it under RequireEnv, unless root, namespaces,
// veth devices and every given piece are there.
func Need(t testing.TB, pieces ...Piece) {
	t.Helper()
	for _, p := range append([]Piece{namespaces}, pieces...) {
		if err := p(); err != nil {
			if os.Getenv(RequireEnv) == "1" {
				t.Fatalf("privileged test cannot run, and %s=1 forbids to skip it: %v", RequireEnv, err)
			}
			t.Skipf("privileged test cannot run: %v", err)
		}
	}
}

// Since skips a test about a feature that Linux has had since a version, such as
// "6.6", on an older kernel that lacks it. RequireEnv does not forbid that: it is about
// the machine, and the kernel is what it is. On that version or a later one the feature
// has to be there: see Need.
func Since(t testing.TB, version, feature string, has bool) {
	t.Helper()
	if has {
		return
	}
	release := dataplane.KernelRelease()
	if olderThan(release, version) {
		t.Skipf("Linux %s has no %s, which came with %s", release, feature, version)
	}
	Need(t, func() error {
		return fmt.Errorf("no %s here, which Linux %s should have (since %s)", feature, release, version)
	})
}

// olderThan compares the first two numbers of kernel releases.
func olderThan(release, version string) bool {
	var major, minor, wantMajor, wantMinor int
	if n, _ := fmt.Sscanf(release, "%d.%d", &major, &minor); n != 2 {
		return false
	}
	if n, _ := fmt.Sscanf(version, "%d.%d", &wantMajor, &wantMinor); n != 2 {
		return false
	}
	return major < wantMajor || major == wantMajor && minor < wantMinor
}

// TwoProcessors skips the test on a machine that has one, and fails it under RequireEnv
// if the process may not use the first two of several.
func TwoProcessors(t testing.TB) {
	t.Helper()
	online, err := os.ReadFile("/sys/devices/system/cpu/online")
	if err == nil && strings.TrimSpace(string(online)) == "0" {
		t.Skip("the machine has one processor, and the test is about two")
	}
	Need(t, func() error {
		var all unix.CPUSet
		if err := unix.SchedGetaffinity(0, &all); err != nil {
			return err
		}
		if !all.IsSet(0) || !all.IsSet(1) {
			return errors.New("the process may not use CPUs 0 and 1")
		}
		return nil
	})
}

// NS is a namespace that ends with its test.
type NS struct{ *netlab.NS }

// New makes an empty namespace.
func New(t testing.TB) *NS {
	t.Helper()
	ns, err := netlab.New(t.Name())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { check(t, ns.Close()) })
	return &NS{ns}
}

// Pair connects two namespaces with a veth pair, both ends up.
func Pair(t testing.TB, a *NS, nameA string, b *NS, nameB string) {
	t.Helper()
	check(t, netlab.Pair(a.NS, nameA, b.NS, nameB))
}

// Node is a node with pods and a host outside that ends with its test.
type Node struct {
	*netlab.Node
	Next int // number the next pod of AddPod gets
}

// NewNode builds a node without pods.
func NewNode(t testing.TB) *Node {
	t.Helper()
	n, err := netlab.NewNode(netlab.NodeConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { check(t, n.Close()) })
	return &Node{Node: n, Next: 2}
}

// AddPod adds a dual-stack pod with the next free addresses of 10.244.0.0/24 and
// fd00:10:244::/64.
func (n *Node) AddPod(t testing.TB, name string) *netlab.Pod {
	t.Helper()
	v4 := netip.AddrFrom4([4]byte{10, 244, 0, byte(n.Next)})
	v6 := netip.AddrFrom16([16]byte{0: 0xfd, 3: 0x10, 4: 0x02, 5: 0x44, 15: byte(n.Next)})
	n.Next++
	p, err := n.Node.AddPod(name, v4, v6)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Echo starts an echo server that ends with the test.
func Echo(t testing.TB, ns *netlab.NS, network string, addr netip.Addr, port uint16) *netlab.Server {
	t.Helper()
	s, err := ns.Echo(network, netip.AddrPortFrom(addr, port))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { check(t, s.Close()) })
	return s
}

// Reach fails the test unless a probe of the server succeeds.
func Reach(t testing.TB, from *netlab.NS, network string, to netip.AddrPort) {
	t.Helper()
	if err := from.Probe(network, to, Timeout); err != nil {
		t.Errorf("%s from %s to %s: %v, want an echo", network, from.Name(), to, err)
	}
}

// Unreachable fails the test if a probe of the server succeeds.
func Unreachable(t testing.TB, from *netlab.NS, network string, to netip.AddrPort) {
	t.Helper()
	if err := from.Probe(network, to, Blocked); err == nil {
		t.Errorf("%s from %s to %s: got an echo, want none", network, from.Name(), to)
	}
}

// Eventually polls until cond holds and fails the test after Timeout.
func Eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(Timeout)
	for !cond() {
		if time.Now().After(deadline) {
			t.Fatalf("still not so after %v: %s", Timeout, what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}
