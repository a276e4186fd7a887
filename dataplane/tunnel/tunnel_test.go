package tunnel

import (
	"net"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/tierwall/tierwall/classifier/flow"
)

func TestFind(t *testing.T) {
	up := netlink.LinkAttrs{Flags: net.FlagUp}
	got := Find([]netlink.Link{
		&netlink.Vxlan{LinkAttrs: up, Port: 8472},
		&netlink.Vxlan{LinkAttrs: up, Port: 8472, VxlanId: 2},
		&netlink.Vxlan{Port: 4789}, // down
		&netlink.Geneve{LinkAttrs: up, Dport: 6081},
		&netlink.Gretap{LinkAttrs: up},
		&netlink.Iptun{LinkAttrs: up},
		&netlink.Wireguard{LinkAttrs: up},
		&netlink.Veth{LinkAttrs: up},
	}, []End{{flow.UDP, 5555}})
	want := []End{{Proto: 4}, {flow.UDP, 5555}, {flow.UDP, 6081}, {flow.UDP, 8472}, {Proto: 41}, {Proto: 47}}
	if !slices.Equal(got, want) {
		t.Errorf("found %v, want %v", got, want)
	}
	var s Set
	if s.IsTunnel(flow.UDP, 8472) {
		t.Error("an empty set has a tunnel")
	}
	s.Store(got)
	for _, c := range []struct {
		proto flow.Proto
		port  uint16
		want  bool
	}{{flow.UDP, 8472, true}, {flow.TCP, 8472, false}, {flow.UDP, 4789, false}, {47, 0, true}, {50, 0, false}} {
		if s.IsTunnel(c.proto, c.port) != c.want {
			t.Errorf("%v %d: %v", c.proto, c.port, !c.want)
		}
	}
}
