package adversary

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"

	"github.com/google/gopacket/layers"
)

// Evil is in every packet of the corpus that has room for it.
const Evil = "evil"

// Sample is frames that are sent one after the other.
type Sample struct {
	Name   string
	Frames [][]byte
}

// Corpus is what a pod may try to reach a port it must not reach.
func Corpus(w *Wire, e Ends, open, closed uint16) (all []Sample) {
	is4 := e.Src.Is4()
	typ := uint16(0x86dd)
	if is4 {
		typ = 0x0800
	}
	add := func(name string, pkts ...[]byte) {
		var f [][]byte
		for _, p := range pkts {
			f = append(f, w.Ether(typ, p))
		}
		all = append(all, Sample{name, f})
	}
	raw := func(name string, frames ...[]byte) { all = append(all, Sample{name, frames}) }
	sp := uint16(20000)
	next := func() uint16 { sp++; return sp }
	for _, flags := range []string{"S", "A", "SA", "F", "FA", "R", "RA", "PA", "SF", "SR", "", "FPU", "SFPUAR", "SAU"} {
		for _, dp := range []uint16{closed} {
			add("tcp "+flags, e.Packet(6, e.TCP(next(), dp, flags, Evil)))
		}
	}
	add("tcp from closed to anything", e.Packet(6, e.TCP(closed, next(), "SA", Evil)))
	add("tcp port 0", e.Packet(6, e.TCP(0, closed, "S", "")))
	add("tcp to port 0", e.Packet(6, e.TCP(next(), 0, "S", "")))
	add("tfo", e.Packet(6, e.TCP(next(), closed, "S", Evil, func(l *layers.TCP) {
		l.Options = []layers.TCPOption{{OptionType: 34, OptionLength: 10, OptionData: []byte("cookie!!")}}
	})))
	add("udp", e.Packet(17, e.UDP(next(), closed, Evil)))
	add("udp 0 source", e.Packet(17, e.UDP(0, closed, Evil)))
	add("udplite", e.Packet(136, e.UDP(next(), closed, Evil)))
	add("dccp", e.Packet(33, e.UDP(next(), closed, Evil)))
	add("sctp", e.Packet(132, append([]byte{0x50, 0, byte(closed >> 8), byte(closed), 0, 0, 0, 0, 0, 0, 0, 0}, 1, 0, 0, 20, 0, 0, 0, 1, 0, 0, 1, 0, 0, 1, 0, 1, 0, 0, 0, 1)))
	for _, p := range []uint8{0, 2, 3, 4, 41, 43, 44, 46, 47, 50, 51, 59, 60, 88, 89, 94, 97, 98, 103, 108, 112, 115, 135, 137, 139, 140, 253, 255} {
		inner := Ends{e.Src, e.Dst}.Packet(17, e.UDP(next(), closed, Evil))
		add(fmt.Sprint("proto ", p), e.Packet(p, inner))
	}
	// ICMP of every type.
	for t := range 256 {
		add(fmt.Sprint("icmp ", t), e.Packet(e.ICMPProto(), e.ICMP(uint8(t), 0, 0x12340001, []byte(Evil))))
	}
	// ICMP errors that quote flows.
	for _, t := range []uint8{1, 2, 3, 4, 5, 11, 12} {
		for i, q := range []Ends{e, e.Turned()} {
			for _, quote := range [][]byte{
				q.Packet(17, q.UDP(closed, next(), Evil)), q.Packet(6, q.TCP(open, next(), "A", Evil)),
				q.Packet(6, q.TCP(next(), open, "A", Evil)),
				q.Packet(e.ICMPProto(), q.ICMP(8, 0, 7, nil)), q.Packet(e.ICMPProto(), q.ICMP(128, 0, 7, nil)),
			} {
				add(fmt.Sprint("icmp error ", t, " quote ", i), e.Packet(e.ICMPProto(), e.ICMP(t, 0, 0, quote)))
			}
		}
	}
	// Fragments.
	big := e.UDP(next(), closed, string(bytes.Repeat([]byte(Evil), 50)))
	f := e.Pieces(17, 77, big, 8, 200)
	add("udp fragments", f...)
	f = e.Pieces(17, 78, big, 8, 200)
	add("udp fragments turned", f[2], f[1], f[0])
	f = e.Pieces(17, 79, big, 104, 200)
	add("udp first only", f[0])
	add("udp later only", f[1])
	add("udp last only", f[2])
	seg := e.TCP(next(), closed, "S", Evil+Evil)
	add("tcp tiny first", e.Pieces(6, 80, seg, 8, 16)...)
	f = e.Pieces(6, 81, seg, 8, 16)
	add("tcp tiny last first", f[2], f[0], f[1])
	// Overlap: a piece of what is allowed, then one that would overwrite its ports.
	good := e.UDP(next(), open, string(bytes.Repeat([]byte("good"), 20)))
	add("overlap at 0", e.Piece(17, 82, good[:24], 0, true), e.Piece(17, 82, big[:24], 0, true), e.Piece(17, 82, good[24:], 24, false))
	add("overlap at 8", e.Piece(17, 83, good[:24], 0, true), e.Piece(17, 83, big[8:32], 8, true), e.Piece(17, 83, good[32:], 32, false))
	add("atomic fragment", e.Piece(17, 84, big, 0, false))
	if is4 {
		for name, o := range map[string][]byte{
			"rr": {7, 7, 4, 0, 0, 0, 0, 0}, "lsrr": append([]byte{131, 7, 4}, append(e.Dst.AsSlice(), 0)...), "ssrr": append([]byte{137, 7, 4}, append(e.Dst.AsSlice(), 0)...),
			"nop": {1, 1, 1, 1}, "ts": {68, 8, 5, 0, 0, 0, 0, 0}, "alert": {148, 4, 0, 0}, "bad": {7, 0, 0, 0}, "cipso": {134, 8, 0, 0, 0, 1, 1, 2},
		} {
			p := e.Packet(17, e.UDP(next(), closed, Evil))
			h := append(append([]byte(nil), p[:20]...), o...)
			h = append(h, p[20:]...)
			h[0] = 0x40 | byte((20+len(o))/4)
			h[2], h[3] = byte(len(h)>>8), byte(len(h))
			h[10], h[11] = 0, 0
			sum := uint32(0)
			for i := 0; i < 20+len(o); i += 2 {
				sum += uint32(h[i])<<8 | uint32(h[i+1])
			}
			for sum > 0xffff {
				sum = sum>>16 + sum&0xffff
			}
			h[10], h[11] = byte(^sum>>8), byte(^sum)
			add("option "+name, h)
		}
	} else {
		u := func() []byte { return e.UDP(next(), closed, Evil) }
		ext := func(nh byte, rest ...byte) []byte {
			return append([]byte{nh, 0}, append(rest, make([]byte, 6-len(rest))...)...)
		}
		pad := []byte{1, 4, 0, 0, 0, 0}
		add("hbh", e.Packet(0, append(ext(17, pad...), u()...)))
		add("dst", e.Packet(60, append(ext(17, pad...), u()...)))
		add("hbh dst", e.Packet(0, append(append(ext(60, pad...), ext(17, pad...)...), u()...)))
		add("dst hbh", e.Packet(60, append(append(ext(0, pad...), ext(17, pad...)...), u()...)))
		for _, rt := range []byte{0, 2, 3, 4} {
			for _, left := range []byte{0, 1} {
				add(fmt.Sprint("routing ", rt, left), e.Packet(43, append(append([]byte{17, 2, rt, left, 0, 0, 0, 0}, e.Dst.AsSlice()...), u()...)))
			}
		}
		add("ah", e.Packet(51, append(append([]byte{17, 4}, make([]byte, 22)...), u()...)))
		add("esp", e.Packet(50, append(make([]byte, 8), u()...)))
		add("mobility", e.Packet(135, append(ext(17), u()...)))
		for _, n := range []int{7, 8, 9, 30} {
			var chain []byte
			for range n - 1 {
				chain = append(chain, ext(60, pad...)...)
			}
			chain = append(chain, ext(17, pad...)...)
			add(fmt.Sprint("chain ", n), e.Packet(60, append(chain, u()...)))
		}
		add("fragment behind dst", e.Packet(60, append(append(ext(44, pad...), 17, 0, 0, 0, 0, 0, 0, 9), u()...)))
		add("fragment in fragment", e.Packet(44, append([]byte{44, 0, 0, 0, 0, 0, 0, 9, 17, 0, 0, 0, 0, 0, 0, 9}, u()...)))
		// A first fragment whose headers do not fit it (RFC 7112).
		long := append(ext(60, pad...), append(ext(17, pad...), u()...)...)
		add("split chain", e.Pieces(60, 85, append(long, make([]byte, 8-len(long)%8)...), 8, 16)...)
	}
	// Lengths that lie.
	p := e.Packet(17, e.UDP(next(), closed, Evil))
	short := append([]byte(nil), p...)
	add("cut short", short[:len(short)-6])
	add("trailer", append(append([]byte(nil), p...), Evil...))
	for n := 1; n < len(p); n += 7 {
		add(fmt.Sprint("first ", n, " bytes"), p[:n])
	}
	// Layer 2.
	tag := func(tpid, tci, inner uint16, rest []byte) []byte {
		return w.Ether(tpid, append([]byte{byte(tci >> 8), byte(tci), byte(inner >> 8), byte(inner)}, rest...))
	}
	raw("vlan 0", tag(0x8100, 0, typ, p))
	raw("vlan 0 prio 5", tag(0x8100, 5<<13, typ, p))
	raw("vlan 5", tag(0x8100, 5, typ, p))
	raw("svlan 0", tag(0x88a8, 0, typ, p))
	raw("svlan 5", tag(0x88a8, 5, typ, p))
	raw("prio in prio", tag(0x8100, 0, 0x8100, append([]byte{0, 0, byte(typ >> 8), byte(typ)}, p...)))
	raw("prio in svlan prio", tag(0x88a8, 0, 0x8100, append([]byte{0, 0, byte(typ >> 8), byte(typ)}, p...)))
	raw("three tags", tag(0x88a8, 0, 0x8100, append([]byte{0, 0, 0x81, 0, 0, 0, byte(typ >> 8), byte(typ)}, p...)))
	raw("qinq", tag(0x88a8, 7, 0x8100, append([]byte{0, 8, byte(typ >> 8), byte(typ)}, p...)))
	raw("mpls", w.Ether(0x8847, append([]byte{0, 1, 1, 64}, p...)))
	raw("pppoe", w.Ether(0x8864, append([]byte{0x11, 0, 0, 1, 0, byte(len(p) + 2), 0, 0x21}, p...)))
	raw("snap", w.Ether(uint16(len(p)+8), append([]byte{0xaa, 0xaa, 3, 0, 0, 0, byte(typ >> 8), byte(typ)}, p...)))
	raw("wrong ethertype", w.Ether(0x86dd^0x0800^typ, p))
	raw("nsh", w.Ether(0x894f, p))
	for name, mac := range map[string]net.HardwareAddr{
		"broadcast": {255, 255, 255, 255, 255, 255}, "multicast": {1, 0, 0x5e, 0, 0, 1}, "own": w.MAC, "zero": {0, 0, 0, 0, 0, 0}, "stp": {1, 0x80, 0xc2, 0, 0, 0},
	} {
		b := w.Ether(typ, p)
		copy(b, mac)
		raw("to mac "+name, b)
	}
	for name, mac := range map[string]net.HardwareAddr{
		"meta": {0x92, 0, 0, 0, 0, 3}, "zero": {0, 0, 0, 0, 0, 0}, "multicast": {1, 2, 3, 4, 5, 6}, "peer": w.Peer,
	} {
		b := w.Ether(typ, p)
		copy(b[6:], mac)
		raw("from mac "+name, b)
	}
	land := Ends{e.Dst, e.Dst}
	add("land", land.Packet(17, land.UDP(closed, closed, Evil)))
	none := Ends{netip.IPv4Unspecified(), e.Dst}
	if !is4 {
		none.Src = netip.IPv6Unspecified()
	}
	add("from nobody", none.Packet(17, none.UDP(next(), closed, Evil)))
	return all
}
