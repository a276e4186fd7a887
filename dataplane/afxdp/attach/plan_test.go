package attach

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/dataplane/afxdp/kern"
	"github.com/tierwall/tierwall/dataplane/nstest"
	"github.com/tierwall/tierwall/dataplane/nstest/netlab"
)

func TestWants(t *testing.T) {
	some := Options{Patterns: []string{"veth*", "lxc?"}}
	for name, want := range map[string]bool{"veth12": true, "lxc1": true, "lxc12": false, "eth0": false} {
		if some.wants(name) != want {
			t.Errorf("wants(%s) = %v", name, !want)
		}
	}
	if !new(Options).wants("eth0") {
		t.Error("no pattern must mean every device")
	}
}

// A namespace number tells which pod is at the other end.
func TestPeerAddresses(t *testing.T) {
	nstest.Need(t)
	node := nstest.NewNode(t)
	a, b := node.AddPod(t, "a"), node.AddPod(t, "b")
	if err := node.NS.Do(func() error {
		p, err := newPeers()
		if err != nil {
			return err
		}
		defer p.close()
		for _, pod := range []*netlab.Pod{a, b} {
			l, err := node.NS.Link(pod.HostDevice)
			if err != nil {
				return err
			}
			got, err := p.addresses(l.Attrs().NetNsID, l.Attrs().ParentIndex)
			if err != nil {
				return err
			}
			if len(got) != 2 || got[0] != pod.Addr4 || got[1] != pod.Addr6 {
				return fmt.Errorf("behind %s: %v, want %v and %v", pod.HostDevice, got, pod.Addr4, pod.Addr6)
			}
		}
		if got, err := p.addresses(12345, 2); err == nil {
			return fmt.Errorf("of a namespace that is not there: %v", got)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// makePlan, row by row.
func TestPlan(t *testing.T) {
	addr, pfx := netip.MustParseAddr, netip.MustParsePrefix
	const bridge, other = 50, 51
	veth := func(index int, name string, nsid, master int) netlink.Link {
		return &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Index: index, Name: name, NetNsID: nsid, MasterIndex: master}}
	}
	k := known{locals: map[netip.Addr]bool{addr("10.244.0.2"): true, addr("fd00::2"): true, addr("10.244.0.9"): true}, cidrs: []netip.Prefix{pfx("10.244.0.0/24")}}
	none := known{locals: k.locals}
	for _, c := range []struct {
		name   string
		link   netlink.Link
		hosts  string // host route
		net    string // other route
		behind string
		known  known
		config Options
		want   string // "", candidate, pod, bridged; + bound
	}{
		{name: "routed pod", link: veth(3, "cali1", 0, 0), hosts: "10.244.0.2", known: k, want: "pod bound"},
		{name: "routed pod, IPv6", link: veth(3, "cali1", 0, 0), hosts: "fd00::2", known: k, want: "pod bound"},
		{name: "routed pod, no pod CIDRs", link: veth(3, "cali1", 0, 0), hosts: "10.244.0.2", known: none, want: "pod bound"},
		{name: "routed pod with both ends here", link: veth(3, "cali1", -1, 0), hosts: "10.244.0.2", known: k, want: "pod bound"},
		{name: "spoofing allowed", link: veth(3, "cali1", 0, 0), hosts: "10.244.0.2", known: k, config: Options{Config: Config{AllowSpoofing: true}}, want: "pod"},
		{name: "route to an unknown pod", link: veth(3, "cali1", 0, 0), hosts: "10.244.0.3", known: k, want: "pod"},
		{name: "was a pod's", link: veth(3, "cali1", 0, 0), known: known{locals: k.locals, pods: map[int]bool{3: true}}, want: "pod"},
		{name: "nothing known", link: veth(3, "cali1", 0, 0), known: k, want: "candidate"},
		{name: "nothing known, no pod CIDRs", link: veth(3, "cali1", 0, 0), known: none},
		{name: "both ends here", link: veth(3, "v", -1, 0), known: k},
		{name: "an uplink", link: veth(3, "eth0", 0, 0), net: "192.0.2.0/24", known: k},
		{name: "an uplink with the default route", link: veth(3, "eth0", 0, 0), net: "::/0", known: k},
		{name: "a subnet of the pods", link: veth(3, "v", 0, 0), net: "10.244.0.128/25", known: k, want: "candidate"},
		{name: "no veth", link: &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: 3, Name: "d", NetNsID: -1}}, hosts: "10.244.0.2", known: k},
		{name: "excluded", link: veth(3, "cali1", 0, 0), hosts: "10.244.0.2", known: k, config: Options{Config: Config{Exclude: []string{"cali*"}}}},
		{name: "not wanted", link: veth(3, "cali1", 0, 0), hosts: "10.244.0.2", known: k, config: Options{Patterns: []string{"veth*"}}},
		{name: "ours", link: veth(3, kern.UpcallStack, 0, 0), known: k},
		{name: "bridge of pods", link: veth(3, "veth1", 0, bridge), behind: "10.244.0.2", known: k, want: "bridged bound"},
		{name: "bridge of pods, pod unknown", link: veth(3, "veth1", 0, bridge), behind: "10.244.0.3", known: k, want: "bridged"},
		{name: "bridge of pods, namespace out of reach", link: veth(3, "veth1", 0, bridge), known: k, want: "bridged"},
		{name: "bridge of others", link: veth(3, "veth1", 0, other), known: k, want: "candidate"},
	} {
		s := &scene{
			links: map[int]netlink.Link{
				3:      c.link,
				bridge: &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Index: bridge, Name: "cni0", NetNsID: -1}},
				other:  &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Index: other, Name: "docker0", NetNsID: -1}},
			},
			hosts: map[int][]netip.Addr{},
			nets:  map[int][]netip.Prefix{bridge: {pfx("10.244.0.0/24")}, other: {pfx("172.17.0.0/16")}},
		}
		if c.hosts != "" {
			s.hosts[3] = []netip.Addr{addr(c.hosts)}
		}
		if c.net != "" {
			s.nets[3] = []netip.Prefix{pfx(c.net)}
		}
		p := c.config.makePlan(s, c.known, func(netlink.Link) (a []netip.Addr) {
			if c.behind != "" {
				a = append(a, addr(c.behind))
			}
			return a
		}, func(flow.Addr) uint32 { return 0 })
		got := ""
		if pl, ok := p.places[3]; ok {
			switch {
			case pl.guard.Bridge != 0:
				got = "bridged"
			case pl.guard.Flags&kern.GuardPod != 0:
				got = "pod"
			default:
				got = "candidate"
			}
			if pl.guard.Flags&kern.GuardBound != 0 {
				got += " bound"
			}
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// Of two devices that claim a pod's address the one that had it keeps it, and the
// other one is not bound to it.
func TestContestedAddress(t *testing.T) {
	a, b := netip.MustParseAddr("10.244.0.2"), netip.MustParseAddr("10.244.0.3")
	s := &scene{links: map[int]netlink.Link{}, hosts: map[int][]netip.Addr{3: {a}, 4: {b, a}}}
	for i := 3; i < 5; i++ {
		s.links[i] = &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Index: i, Name: fmt.Sprint("v", i)}}
	}
	for before, owner := range map[uint32]uint32{0: 3, 3: 3, 4: 4, 9: 3} {
		var c Options
		p := c.makePlan(s, known{locals: map[netip.Addr]bool{a: true, b: true}}, nil, func(flow.Addr) uint32 { return before })
		if got := p.pods[flow.AddrFrom(a)].Ifindex; got != owner || len(p.twice) != 1 || p.twice[0] != a {
			t.Errorf("before on %d: now on %d, contested %v, want %d", before, got, p.twice, owner)
		}
		for i, pl := range p.places {
			want := i == int(owner)
			got := false
			for _, x := range pl.guard.Addrs {
				got = got || x == flow.AddrFrom(a)
			}
			if got != want {
				t.Errorf("before on %d: device %d is bound to the address: %v", before, i, got)
			}
		}
	}
}

// The kernel may keep a default route for IPv6 as nil and writes IPv4 networks in
// 16 bytes at times.
func TestPrefixOf(t *testing.T) {
	if _, ok := prefixOf(nil); ok {
		t.Error("nil is a prefix")
	}
	for _, s := range []string{"10.244.0.2/32", "10.0.0.0/8", "fd00::/64", "fd00::1/128", "0.0.0.0/0"} {
		n, err := netlink.ParseIPNet(s)
		if err != nil {
			t.Fatal(err)
		}
		n.IP = n.IP.Mask(n.Mask)
		if p, ok := prefixOf(n); !ok || p != netip.MustParsePrefix(s) {
			t.Errorf("%s: %v, %v", s, p, ok)
		}
	}
}
