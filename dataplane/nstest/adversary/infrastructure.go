package adversary

import (
	"encoding/binary"
	"net"
	"net/netip"

	"github.com/google/gopacket/layers"
)

// VXLAN is the node's tunnel: VNI, the ports of its two devices, the device's link-layer
// address, and the networks behind it.
var (
	VXLANPorts = [2]uint16{4789, 8472}
	VXLANMAC   = net.HardwareAddr{0x02, 0, 0, 0, 0, 0x77}
	VXLANNets  = [2]netip.Prefix{netip.MustParsePrefix("198.51.100.1/24"), netip.MustParsePrefix("2001:db8:77::1/64")}
)

// VXLANID is the VNI of the node's tunnels.
const VXLANID = 7

// RouterClaims are messages by which a pod says that it is the way: it is believed by
// whoever accepts them, the node first.
func RouterClaims() (all []Attack) {
	router := netip.MustParseAddr("fe80::bad")
	everybody := netip.MustParseAddr("ff02::1")
	multicast := net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1}
	// An option that nobody knows carries the mark (RFC 4861 §4.6).
	option := func(mark string) []byte {
		o := append([]byte{253, 0}, mark...)
		o = append(o, make([]byte, (8-len(o)%8)%8)...)
		o[1] = byte(len(o) / 8)
		return o
	}
	advertisement := func(e Ends, mark string) []byte {
		return e.ICMP(134, 0, 64<<24|1800, append(make([]byte, 8), option(mark)...))
	}
	hop255 := func(_ *layers.IPv4, l *layers.IPv6) { l.HopLimit = 255 }
	frame := func(f *Field, packet []byte) [][]byte {
		b := f.Attacker.Wire.Ether(0x86dd, packet)
		copy(b, multicast)
		return [][]byte{b}
	}
	e := Ends{router, everybody}
	padding := []byte{1, 4, 0, 0, 0, 0}
	return []Attack{
		{
			Name: "router advertisement", Like: "CVE-2020-10749, CVE-2020-13597", Families: []int{6},
			Frames: func(f *Field, _ int, mark string) [][]byte {
				return frame(f, e.Packet(58, advertisement(e, mark), hop255))
			},
		}, {
			Name: "router advertisement behind destination options", Like: "CVE-2020-10749, RFC 7113", Families: []int{6},
			Frames: func(f *Field, _ int, mark string) [][]byte {
				return frame(f, e.Packet(60, append(append([]byte{58, 0}, padding...), advertisement(e, mark)...), hop255))
			},
		}, {
			Name: "router advertisement behind hop-by-hop options", Like: "CVE-2020-10749, RFC 7113", Families: []int{6},
			Frames: func(f *Field, _ int, mark string) [][]byte {
				return frame(f, e.Packet(0, append(append([]byte{58, 0}, padding...), advertisement(e, mark)...), hop255))
			},
		}, {
			Name: "router advertisement from the pod's own address to the node", Like: "CVE-2020-10749", Families: []int{6},
			Packets: func(f *Field, _ int, mark string) [][]byte {
				e := Ends{f.Attacker.Addr6, f.Node.Addr6}
				return [][]byte{e.Packet(58, advertisement(e, mark), hop255)}
			},
		}, {
			Name: "router advertisement in fragments", Like: "RFC 6980", Families: []int{6},
			Frames: func(f *Field, _ int, mark string) (frames [][]byte) {
				a := advertisement(e, mark)
				for _, p := range e.Pieces(58, 99, a, 8) {
					p[7] = 255
					frames = append(frames, frame(f, p)...)
				}
				return frames
			},
		}, {
			Name: "redirect, IPv6", Families: []int{6},
			Frames: func(f *Field, _ int, mark string) [][]byte {
				e := Ends{router, everybody}
				body := append(append(router.AsSlice(), foreign[6].AsSlice()...), option(mark)...)
				return frame(f, e.Packet(58, e.ICMP(137, 0, 0, body), hop255))
			},
		}, {
			Name: "redirect, IPv4, to the node", Families: []int{4},
			Packets: func(f *Field, _ int, mark string) [][]byte {
				e, q := Ends{f.Attacker.Addr4, f.Node.Addr4}, Ends{f.Node.Addr4, f.Outside.Addr4}
				return [][]byte{e.Packet(1, e.ICMP(5, 1, binary.BigEndian.Uint32(f.Attacker.Addr4.AsSlice()), q.Packet(17, q.UDP(4000, 80, mark))))}
			},
		},
	}
}

// DHCPServer are answers that a DHCP server gives.
func DHCPServer() (all []Attack) {
	broadcast := net.HardwareAddr{255, 255, 255, 255, 255, 255}
	return []Attack{
		{
			Name: "DHCP offer to everybody", Families: []int{4},
			Frames: func(f *Field, _ int, mark string) [][]byte {
				e := Ends{f.Attacker.Addr4, netip.AddrFrom4([4]byte{255, 255, 255, 255})}
				b := f.Attacker.Wire.Ether(0x0800, e.Packet(17, e.UDP(67, 68, mark)))
				copy(b, broadcast)
				return [][]byte{b}
			},
		}, {
			Name: "DHCP offer to a pod",
			Packets: func(f *Field, family int, mark string) [][]byte {
				e := Ends{f.Attacker.Addr(family), f.Bystander.Addr(family)}
				if family == 4 {
					return [][]byte{e.Packet(17, e.UDP(67, 68, mark))}
				}
				return [][]byte{e.Packet(17, e.UDP(547, 546, mark))}
			},
		}, {
			Name: "DHCP offer to the node",
			Packets: func(f *Field, family int, mark string) [][]byte {
				e := Ends{f.Attacker.Addr(family), f.Node.Addr(family)}
				if family == 4 {
					return [][]byte{e.Packet(17, e.UDP(67, 68, mark))}
				}
				return [][]byte{e.Packet(17, e.UDP(547, 546, mark))}
			},
		},
	}
}

// Tunnels are packets to the node's end of a tunnel, with a packet inside that claims to
// come from another node.
func Tunnels() (all []Attack) {
	inside := func(f *Field, family int, mark string) []byte {
		e := Ends{VXLANNets[family/2-2].Addr().Next().Next(), f.Bystander.Addr(family)}
		typ := []byte{0x08, 0}
		if family == 6 {
			typ = []byte{0x86, 0xdd}
		}
		b := append([]byte{8, 0, 0, 0, 0, 0, VXLANID, 0}, VXLANMAC...)
		b = append(append(b, 0x02, 0, 0, 0, 0, 0x78), typ...)
		return append(b, e.Packet(17, e.UDP(4002, 80, mark))...)
	}
	outer := func(from *Party, f *Field, family int, port uint16, mark string) []byte {
		// The tunnels' ends are IPv4, whatever is inside.
		e := Ends{from.Addr4, f.Node.Addr4}
		return e.Packet(17, e.UDP(5000, port, string(inside(f, family, mark))))
	}
	for i, port := range VXLANPorts {
		name := []string{"VXLAN", "VXLAN to a port of another device, made later"}[i]
		all = append(all, Attack{
			Name: name, Like: "CVE-2021-25740, GHSA-gj49-89wh-h4gj", Reason: "tunnel",
			Packets: func(f *Field, family int, mark string) [][]byte {
				return [][]byte{outer(f.Attacker, f, family, port, mark)}
			},
		}, Attack{
			Name: name + " from a node", Arrives: true,
			From: func(f *Field) *Party { return f.Outside },
			Packets: func(f *Field, family int, mark string) [][]byte {
				return [][]byte{outer(f.Outside, f, family, port, mark)}
			},
		}, Attack{
			Name: name + " in fragments", Like: "CVE-2021-25740",
			Packets: func(f *Field, family int, mark string) [][]byte {
				e := Ends{f.Attacker.Addr4, f.Node.Addr4}
				return e.Pieces(17, uint32(100+i), e.UDP(5000, port, string(inside(f, family, mark))), 16)
			},
		})
	}
	return all
}
