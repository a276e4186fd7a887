package nfqueue

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/nstest"
	"github.com/tierwall/tierwall/dataplane/nstest/netlab"
)

// probing is a firewall in a namespace of its own that has only been connected.
func probing(t *testing.T) (*firewall, *netlab.NS) {
	t.Helper()
	nstest.Need(t, queueing)
	ns, err := netlab.New("probing")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	c, err := Config{Queues: 1}.complete()
	if err != nil {
		t.Fatal(err)
	}
	f, err := connectFirewall(c, ns.FD())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.close() })
	return f, ns
}

// A hook that does not allow an expression is found out, which it is not by a
// transaction that removes what it adds: before Linux 5.19 "fib saddr . iif" went
// through as usable in the forward hook, and then no table could be installed. No kernel
// allows it in the output hook, where packets have come in by no device.
func TestProbeAsksForTheHook(t *testing.T) {
	f, _ := probing(t)
	output := []*nftables.ChainHook{nftables.ChainHookOutput}
	if err := f.try(nftables.TableFamilyINet, output, verdict(expr.VerdictAccept)); err != nil {
		t.Fatalf("a rule that accepts: %v", err)
	}
	err := f.try(nftables.TableFamilyINet, output, noWayBack())
	if !errors.Is(err, unix.EOPNOTSUPP) {
		t.Fatalf("fib saddr . iif in the output hook: %v, want %v", err, unix.EOPNOTSUPP)
	}
	if strings.Count(err.Error(), "not supported") != 1 {
		t.Errorf("the kernel's answer is said more than once: %v", err)
	}
}

// Probing leaves nothing, whether the kernel has what was tried or not, and takes away
// what a process has left that was killed meanwhile.
func TestProbeLeavesNothing(t *testing.T) {
	f, _ := probing(t)
	left := f.conn.AddTable(&nftables.Table{Name: probeTable, Family: nftables.TableFamilyINet})
	f.conn.AddChain(&nftables.Chain{Name: "old", Table: left})
	if err := f.conn.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := f.probe(); err != nil {
		t.Fatal(err)
	}
	for _, family := range []nftables.TableFamily{nftables.TableFamilyINet, nftables.TableFamilyIPv4} {
		if tables, err := f.conn.ListTablesOfFamily(family); err != nil || len(tables) != 0 {
			t.Errorf("tables of family %v: %v, %v, want none", family, tables, err)
		}
	}
}

// Whether queues tell a packet's priority is asked of the kernel, not of its version.
// The kernels these tests run on are known: 5.18 has it.
func TestProbeOfPriority(t *testing.T) {
	_, ns := probing(t)
	got, err := startQueueing(ns.FD())
	if err != nil {
		t.Fatal(err)
	}
	release := dataplane.KernelRelease()
	old := strings.HasPrefix(release, "5.10.") || strings.HasPrefix(release, "5.15.")
	if got == old {
		t.Errorf("Linux %s: queues tell a packet's priority: %v, want %v", release, got, !old)
	}
}

// A kernel that has no nfnetlink_queue and none to load is told from one that has not
// loaded it, in words an operator can act on.
func TestNoQueueingSaysWhatIsMissing(t *testing.T) {
	missing := errNoQueueing
	missing.Cause = unix.EINVAL
	for _, want := range []string{"nfnetlink_queue", `run "modprobe nfnetlink_queue"`, "CONFIG_NETFILTER_NETLINK_QUEUE", "(invalid argument)"} {
		if !strings.Contains(missing.Error(), want) {
			t.Errorf("%q lacks %q", missing.Error(), want)
		}
	}
}

// In a matrix of kernels: where the module is and has not been used, the backend makes
// the kernel load it. TIERWALL_FRESH_BOOT says that this is so.
func TestModuleIsLoadedByUse(t *testing.T) {
	if os.Getenv("TIERWALL_FRESH_BOOT") == "" {
		t.Skip("needs a machine that has just booted: see .ci/kernels")
	}
	const file = "/proc/net/netfilter/nfnetlink_queue"
	if _, err := os.Stat(file); err == nil {
		t.Fatalf("%s is there before anybody used it: the test tests nothing", file)
	}
	if err := queueing(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(file); err != nil {
		t.Error(err)
	}
}

// What bears a pod's address and came from elsewhere is dropped and judged by nobody,
// where the kernel finds out in the hooks that judge and where only before routing.
func TestForgedSourceByEitherHook(t *testing.T) {
	for name, pretend := range map[string]func(*features){
		"judging":        nil,
		"before routing": func(f *features) { f.back, f.backEarly = false, f.back || f.backEarly },
	} {
		t.Run(name, func(t *testing.T) {
			w := newCluster(t, Config{Queues: 1, pretend: pretend})
			if f := w.backend.fw.features; !f.back && !f.backEarly || pretend == nil && !f.back {
				t.Skip("the kernel has no fib expression there")
			}
			w.judge.policy(everything)
			victim := w.AddPod(t, "victim") // a policed pod, too: w.a is who is called
			w.judge.selected = append(w.judge.selected, victim.Addr4, victim.Addr6)
			w.judge.locals = append(w.judge.locals, victim.Addr4, victim.Addr6)
			w.update(t)
			nstest.Echo(t, w.a.NS, "udp", w.a.Addr6, portGood)
			nstest.Reach(t, w.b.NS, "udp", at(w.a.Addr6, portGood))
			nstest.Reach(t, victim.NS, "udp", at(w.a.Addr6, portGood))
			w.asked(t, 2)
			// The pod takes the other's address, and sends with it.
			err := w.b.NS.Do(func() error {
				l, err := netlink.LinkByName(netlab.PodDevice)
				if err != nil {
					return err
				}
				return netlink.AddrAdd(l, &netlink.Addr{IPNet: netlink.NewIPNet(victim.Addr6.AsSlice()), Flags: unix.IFA_F_NODAD})
			})
			if err != nil {
				t.Fatal(err)
			}
			c, err := w.b.NS.Dial(t.Context(), "udp", at(victim.Addr6, 4711), at(w.a.Addr6, portGood))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if _, err := c.Write([]byte("forged")); err != nil {
				t.Fatal(err)
			}
			nstest.Eventually(t, "the packet is counted as forged", func() bool {
				return w.backend.Stats().Fates[dataplane.DropForged] == 1
			})
			time.Sleep(50 * time.Millisecond)
			w.want(t, "the forged packet")
			nstest.Reach(t, victim.NS, "udp", at(w.a.Addr6, portGood))
			w.asked(t, 1)
		})
	}
}
