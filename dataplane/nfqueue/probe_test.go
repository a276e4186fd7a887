package nfqueue

import (
	"errors"
	"fmt"
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
			f := w.backend.fw.features
			if pretend == nil {
				nstest.Since(t, "5.19", "fib expression with the device in the forward hook", f.back)
			} else {
				nstest.Since(t, "4.10", "fib expression with the device before routing", f.backEarly)
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

// A rule that could not be tried is not one that the kernel does not know: the backend
// used to start without what it had not been able to try, and dropped no forged sources
// then.
func TestFailedProbeIsAnError(t *testing.T) {
	c, err := Config{}.complete()
	if err != nil {
		t.Fatal(err)
	}
	calls := 0
	find := func(fail int, with error) (features, error) {
		calls = 0
		return findFeatures(c, func(nftables.TableFamily, []*nftables.ChainHook, []expr.Any) error {
			if calls++; calls == fail {
				return with
			}
			return nil
		})
	}
	all, err := find(0, nil)
	if want := (features{queueExpr: true, fib: true, back: true, reject: true, zones: true}); err != nil || all != want {
		t.Fatalf("of a kernel that takes everything: %+v, %v, want %+v", all, err, want)
	}
	n := calls
	for i := 2; i <= n; i++ { // the first is needed in any case
		for _, unknown := range []error{
			unix.ENOENT, unix.EOPNOTSUPP, unix.EINVAL,
			fmt.Errorf("netlink receive: %w", errors.Join(unix.EOPNOTSUPP, unix.EOPNOTSUPP)),
		} {
			if got, err := find(i, unknown); err != nil || got == all {
				t.Errorf("try %d fails with %v: %+v, %v, want one feature less", i, unknown, got, err)
			}
		}
		if i == 2 { // nftables' own queue expression: there is another way
			continue
		}
		for _, failed := range []error{unix.ENOMEM, unix.ENOBUFS, unix.EBUSY, unix.EPERM, unix.EINTR, errors.Join(unix.EOPNOTSUPP, unix.ENOMEM), errors.New("netlink: closed")} {
			if got, err := find(i, failed); err == nil || !errors.Is(err, failed) {
				t.Errorf("try %d fails with %v: %+v, %v, want that error", i, failed, got, err)
			}
		}
	}
}

// What was configured and the kernel cannot do is an error that names the piece.
func TestLacks(t *testing.T) {
	for name, c := range map[string]struct {
		features features
		allow    bool
		lacks    bool
	}{
		"all":                  {features{fib: true, back: true}, false, false},
		"before routing":       {features{fib: true, backEarly: true}, false, false},
		"the node's own only":  {features{fib: true}, false, true},
		"nothing":              {features{}, false, true},
		"nothing, as accepted": {features{}, true, false},
	} {
		b := &Backend{config: Config{AllowSpoofing: c.allow}, fw: &firewall{features: c.features}}
		err := b.Lacks()
		if (err != nil) != c.lacks {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil && !strings.Contains(err.Error(), `run "modprobe -a nft_fib_inet`) {
			t.Errorf("%s: %q does not say what to do", name, err)
		}
	}
}
