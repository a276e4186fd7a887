package nfqueue

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables"
	rtnl "github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/dataplane/nstest"
	"github.com/tierwall/tierwall/dataplane/nstest/netlab"
)

// bridged is a node with two pods on a bridge whose frames meet no hook.
func bridged(t *testing.T, c Config) (*world, int) {
	t.Helper()
	nstest.Need(t, queueing)
	node, err := netlab.NewNode(netlab.NodeConfig{
		Bridge: "cni0", Gateway4: netip.MustParsePrefix("10.244.0.1/24"), Gateway6: netip.MustParsePrefix("fd00:10:244::1/64"),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { node.Close() })
	for _, family := range []string{"iptables", "ip6tables"} {
		_ = node.NS.Sysctl("net/bridge/bridge-nf-call-"+family, "0") // nor is it there where the module is not loaded
	}
	w := &world{Node: &nstest.Node{Node: node}, judge: newJudge(toPort(portGood))}
	for i, p := range []**netlab.Pod{&w.a, &w.b} {
		last := byte(10 + i)
		*p, err = node.AddPod(string('a'+rune(i)), netip.AddrFrom4([4]byte{10, 244, 0, last}), netip.AddrFrom16([16]byte{0: 0xfd, 3: 0x10, 4: 0x02, 5: 0x44, 15: last}))
		if err != nil {
			t.Fatal(err)
		}
	}
	w.judge.selected = []netip.Addr{w.a.Addr4, w.b.Addr4, w.a.Addr6, w.b.Addr6}
	w.judge.locals = w.judge.selected
	w.start(t, c)
	t.Cleanup(func() { w.stop(t) })
	l, err := node.NS.Link("cni0")
	if err != nil {
		t.Fatal(err)
	}
	return w, l.Attrs().Index
}

func (w *world) routes(t *testing.T) *rtnl.Conn {
	t.Helper()
	conn, err := rtnl.Dial(unix.NETLINK_ROUTE, &rtnl.Config{NetNS: w.NS.FD()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func (w *world) hooked(t *testing.T, index int) bool {
	t.Helper()
	on, err := bridgeOn(w.routes(t), uint32(index))
	if err != nil {
		t.Fatal(err)
	}
	return on
}

// Two pods on one bridge are judged by the backend if it has to: on a kernel that has
// br_netfilter as a module this makes it load it. The bridge's option, and no other, is
// set; a later process knows that it was us, and a cleanup takes it back.
func TestBridgeIsSwitchedOn(t *testing.T) {
	w, cni := bridged(t, Config{Queues: 1})
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "docker0"
	if err := w.NS.Handle().LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
		t.Fatal(err)
	}
	docker, err := w.NS.Link("docker0")
	if err != nil {
		t.Fatal(err)
	}
	w.update(t)
	if w.hooked(t, cni) {
		t.Error("switched on for a backend that need not judge bridges")
	}

	w.backend.JudgeBridges()
	w.judge.locals = append(w.judge.locals, netip.MustParseAddr("10.244.0.99"))
	w.update(t)
	if open, why := w.backend.Unjudged(); len(open) > 0 || why != nil {
		t.Fatalf("not judged: %v, %v", open, why)
	}
	if !w.hooked(t, cni) || w.hooked(t, docker.Attrs().Index) {
		t.Errorf("the pods' bridge is %v, another one %v; want the first alone", w.hooked(t, cni), w.hooked(t, docker.Attrs().Index))
	}
	for _, family := range families {
		for _, network := range networks {
			nstest.Echo(t, w.b.NS, network, w.b.Addr(family), portGood)
			bad := nstest.Echo(t, w.b.NS, network, w.b.Addr(family), portBad)
			nstest.Reach(t, w.a.NS, network, at(w.b.Addr(family), portGood))
			nstest.Unreachable(t, w.a.NS, network, at(w.b.Addr(family), portBad))
			if n := bad.Seen(); n != 0 {
				t.Errorf("%s IPv%d: %d denied connections arrived", network, family, n)
			}
		}
	}

	// Somebody switches it off.
	if err := switchBridgeHooks(w.routes(t), uint32(cni), false); err != nil {
		t.Fatal(err)
	}
	nstest.Eventually(t, "the bridge is switched on again", func() bool { return w.hooked(t, cni) })

	w.stop(t)
	w.start(t, Config{Queues: 1})
	w.update(t)
	if !w.hooked(t, cni) {
		t.Error("a restart has switched it off")
	}
	w.stop(t)
	if err := w.NS.Do(func() error { return Cleanup(Marks{}) }); err != nil {
		t.Fatal(err)
	}
	if w.hooked(t, cni) {
		t.Error("still on after a cleanup")
	}
}

// What was on before us stays on after us.
func TestBridgeOfSomebodyElseStaysOn(t *testing.T) {
	w, cni := bridged(t, Config{Queues: 1})
	if err := switchBridgeHooks(w.routes(t), uint32(cni), true); err != nil {
		t.Fatal(err)
	}
	w.backend.JudgeBridges()
	w.update(t)
	w.stop(t)
	if err := w.NS.Do(func() error { return Cleanup(Marks{}) }); err != nil {
		t.Fatal(err)
	}
	if !w.hooked(t, cni) {
		t.Error("off after a cleanup")
	}
}

// A kernel without br_netfilter: the backend says which bridges it does not judge, and
// what would help.
func TestBridgeThatCannotBeJudgedIsSaid(t *testing.T) {
	w, _ := bridged(t, Config{Queues: 1, noBridgeHooks: true})
	w.backend.JudgeBridges()
	w.update(t)
	open, why := w.backend.Unjudged()
	if !slices.Equal(open, []string{"cni0"}) || why == nil || !strings.Contains(why.Error(), `run "modprobe br_netfilter"`) || !strings.Contains(why.Error(), "(cni0)") {
		t.Errorf("unjudged %v: %v", open, why)
	}
	if err := w.NS.RemoveLink("cni0"); err != nil {
		t.Fatal(err)
	}
	nstest.Eventually(t, "the bridge is forgotten", func() bool { open, why := w.backend.Unjudged(); return len(open) == 0 && why == nil })
}

// The table of a version that had other sets is replaced, and removed: a set that was
// not there kept the daemon from starting, and a cleanup from removing the table.
func TestBridgeSetOfAnOlderTableIsMissing(t *testing.T) {
	nstest.Need(t, queueing)
	for _, do := range []string{"start", "cleanup"} {
		t.Run(do, func(t *testing.T) {
			ns := nstest.New(t)
			conn, err := nftables.New(nftables.WithNetNSFd(ns.FD()))
			if err != nil {
				t.Fatal(err)
			}
			conn.AddTable(tableRef())
			if err := conn.Flush(); err != nil {
				t.Fatal(err)
			}
			err = ns.Do(func() error {
				if do == "cleanup" {
					return Cleanup(Marks{})
				}
				b, err := New(Config{Queues: 1})
				if err != nil {
					return err
				}
				return b.Close()
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
}
