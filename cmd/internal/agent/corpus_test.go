package agent

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"

	"github.com/google/gopacket/layers"
)

// evil is in every packet of the corpus that has room for it.
const evil = "evil"

// sample is frames that are sent one after the other.
type sample struct {
	name   string
	frames [][]byte
}

// corpus is what a pod may try to reach a port it must not reach.
func corpus(w *wire, e ends, open, closed uint16) (all []sample) {
	is4 := e.src.Is4()
	typ := uint16(0x86dd)
	if is4 {
		typ = 0x0800
	}
	add := func(name string, pkts ...[]byte) {
		var f [][]byte
		for _, p := range pkts {
			f = append(f, w.ether(typ, p))
		}
		all = append(all, sample{name, f})
	}
	raw := func(name string, frames ...[]byte) { all = append(all, sample{name, frames}) }
	sp := uint16(20000)
	next := func() uint16 { sp++; return sp }
	for _, flags := range []string{"S", "A", "SA", "F", "FA", "R", "RA", "PA", "SF", "SR", "", "FPU", "SFPUAR", "SAU"} {
		for _, dp := range []uint16{closed} {
			add("tcp "+flags, e.packet(6, e.tcp(next(), dp, flags, evil)))
		}
	}
	add("tcp from closed to anything", e.packet(6, e.tcp(closed, next(), "SA", evil)))
	add("tcp port 0", e.packet(6, e.tcp(0, closed, "S", "")))
	add("tcp to port 0", e.packet(6, e.tcp(next(), 0, "S", "")))
	add("tfo", e.packet(6, e.tcp(next(), closed, "S", evil, func(l *layers.TCP) {
		l.Options = []layers.TCPOption{{OptionType: 34, OptionLength: 10, OptionData: []byte("cookie!!")}}
	})))
	add("udp", e.packet(17, e.udp(next(), closed, evil)))
	add("udp 0 source", e.packet(17, e.udp(0, closed, evil)))
	add("udplite", e.packet(136, e.udp(next(), closed, evil)))
	add("dccp", e.packet(33, e.udp(next(), closed, evil)))
	add("sctp", e.packet(132, append([]byte{0x50, 0, byte(closed >> 8), byte(closed), 0, 0, 0, 0, 0, 0, 0, 0}, 1, 0, 0, 20, 0, 0, 0, 1, 0, 0, 1, 0, 0, 1, 0, 1, 0, 0, 0, 1)))
	for _, p := range []uint8{0, 2, 3, 4, 41, 43, 44, 46, 47, 50, 51, 59, 60, 88, 89, 94, 97, 98, 103, 108, 112, 115, 135, 137, 139, 140, 253, 255} {
		inner := ends{e.src, e.dst}.packet(17, e.udp(next(), closed, evil))
		add(fmt.Sprint("proto ", p), e.packet(p, inner))
	}
	// ICMP of every type.
	for t := range 256 {
		add(fmt.Sprint("icmp ", t), e.packet(e.icmpProto(), e.icmp(uint8(t), 0, 0x12340001, []byte(evil))))
	}
	// ICMP errors that quote flows.
	for _, t := range []uint8{1, 2, 3, 4, 5, 11, 12} {
		for i, q := range []ends{e, e.turned()} {
			for _, quote := range [][]byte{
				q.packet(17, q.udp(closed, next(), evil)), q.packet(6, q.tcp(open, next(), "A", evil)),
				q.packet(6, q.tcp(next(), open, "A", evil)),
				q.packet(e.icmpProto(), q.icmp(8, 0, 7, nil)), q.packet(e.icmpProto(), q.icmp(128, 0, 7, nil)),
			} {
				add(fmt.Sprint("icmp error ", t, " quote ", i), e.packet(e.icmpProto(), e.icmp(t, 0, 0, quote)))
			}
		}
	}
	// Fragments.
	big := e.udp(next(), closed, string(bytes.Repeat([]byte(evil), 50)))
	f := e.pieces(17, 77, big, 8, 200)
	add("udp fragments", f...)
	f = e.pieces(17, 78, big, 8, 200)
	add("udp fragments turned", f[2], f[1], f[0])
	f = e.pieces(17, 79, big, 104, 200)
	add("udp first only", f[0])
	add("udp later only", f[1])
	add("udp last only", f[2])
	seg := e.tcp(next(), closed, "S", evil+evil)
	add("tcp tiny first", e.pieces(6, 80, seg, 8, 16)...)
	f = e.pieces(6, 81, seg, 8, 16)
	add("tcp tiny last first", f[2], f[0], f[1])
	// Overlap: a piece of what is allowed, then one that would overwrite its ports.
	good := e.udp(next(), open, string(bytes.Repeat([]byte("good"), 20)))
	add("overlap at 0", e.piece(17, 82, good[:24], 0, true), e.piece(17, 82, big[:24], 0, true), e.piece(17, 82, good[24:], 24, false))
	add("overlap at 8", e.piece(17, 83, good[:24], 0, true), e.piece(17, 83, big[8:32], 8, true), e.piece(17, 83, good[32:], 32, false))
	add("atomic fragment", e.piece(17, 84, big, 0, false))
	if is4 {
		for name, o := range map[string][]byte{
			"rr": {7, 7, 4, 0, 0, 0, 0, 0}, "lsrr": append([]byte{131, 7, 4}, append(e.dst.AsSlice(), 0)...), "ssrr": append([]byte{137, 7, 4}, append(e.dst.AsSlice(), 0)...),
			"nop": {1, 1, 1, 1}, "ts": {68, 8, 5, 0, 0, 0, 0, 0}, "alert": {148, 4, 0, 0}, "bad": {7, 0, 0, 0}, "cipso": {134, 8, 0, 0, 0, 1, 1, 2},
		} {
			p := e.packet(17, e.udp(next(), closed, evil))
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
		u := func() []byte { return e.udp(next(), closed, evil) }
		ext := func(nh byte, rest ...byte) []byte {
			return append([]byte{nh, 0}, append(rest, make([]byte, 6-len(rest))...)...)
		}
		pad := []byte{1, 4, 0, 0, 0, 0}
		add("hbh", e.packet(0, append(ext(17, pad...), u()...)))
		add("dst", e.packet(60, append(ext(17, pad...), u()...)))
		add("hbh dst", e.packet(0, append(append(ext(60, pad...), ext(17, pad...)...), u()...)))
		add("dst hbh", e.packet(60, append(append(ext(0, pad...), ext(17, pad...)...), u()...)))
		for _, rt := range []byte{0, 2, 3, 4} {
			for _, left := range []byte{0, 1} {
				add(fmt.Sprint("routing ", rt, left), e.packet(43, append(append([]byte{17, 2, rt, left, 0, 0, 0, 0}, e.dst.AsSlice()...), u()...)))
			}
		}
		add("ah", e.packet(51, append(append([]byte{17, 4}, make([]byte, 22)...), u()...)))
		add("esp", e.packet(50, append(make([]byte, 8), u()...)))
		add("mobility", e.packet(135, append(ext(17), u()...)))
		for _, n := range []int{7, 8, 9, 30} {
			var chain []byte
			for range n - 1 {
				chain = append(chain, ext(60, pad...)...)
			}
			chain = append(chain, ext(17, pad...)...)
			add(fmt.Sprint("chain ", n), e.packet(60, append(chain, u()...)))
		}
		add("fragment behind dst", e.packet(60, append(append(ext(44, pad...), 17, 0, 0, 0, 0, 0, 0, 9), u()...)))
		add("fragment in fragment", e.packet(44, append([]byte{44, 0, 0, 0, 0, 0, 0, 9, 17, 0, 0, 0, 0, 0, 0, 9}, u()...)))
		// A first fragment whose headers do not fit it (RFC 7112).
		long := append(ext(60, pad...), append(ext(17, pad...), u()...)...)
		add("split chain", e.pieces(60, 85, append(long, make([]byte, 8-len(long)%8)...), 8, 16)...)
	}
	// Lengths that lie.
	p := e.packet(17, e.udp(next(), closed, evil))
	short := append([]byte(nil), p...)
	add("cut short", short[:len(short)-6])
	add("trailer", append(append([]byte(nil), p...), evil...))
	for n := 1; n < len(p); n += 7 {
		add(fmt.Sprint("first ", n, " bytes"), p[:n])
	}
	// Layer 2.
	tag := func(tpid, tci, inner uint16, rest []byte) []byte {
		return w.ether(tpid, append([]byte{byte(tci >> 8), byte(tci), byte(inner >> 8), byte(inner)}, rest...))
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
	raw("mpls", w.ether(0x8847, append([]byte{0, 1, 1, 64}, p...)))
	raw("pppoe", w.ether(0x8864, append([]byte{0x11, 0, 0, 1, 0, byte(len(p) + 2), 0, 0x21}, p...)))
	raw("snap", w.ether(uint16(len(p)+8), append([]byte{0xaa, 0xaa, 3, 0, 0, 0, byte(typ >> 8), byte(typ)}, p...)))
	raw("wrong ethertype", w.ether(0x86dd^0x0800^typ, p))
	raw("nsh", w.ether(0x894f, p))
	for name, mac := range map[string]net.HardwareAddr{
		"broadcast": {255, 255, 255, 255, 255, 255}, "multicast": {1, 0, 0x5e, 0, 0, 1}, "own": w.mac, "zero": {0, 0, 0, 0, 0, 0}, "stp": {1, 0x80, 0xc2, 0, 0, 0},
	} {
		b := w.ether(typ, p)
		copy(b, mac)
		raw("to mac "+name, b)
	}
	for name, mac := range map[string]net.HardwareAddr{
		"meta": {0x92, 0, 0, 0, 0, 3}, "zero": {0, 0, 0, 0, 0, 0}, "multicast": {1, 2, 3, 4, 5, 6}, "peer": w.peer,
	} {
		b := w.ether(typ, p)
		copy(b[6:], mac)
		raw("from mac "+name, b)
	}
	land := ends{e.dst, e.dst}
	add("land", land.packet(17, land.udp(closed, closed, evil)))
	none := ends{netip.IPv4Unspecified(), e.dst}
	if !is4 {
		none.src = netip.IPv6Unspecified()
	}
	add("from nobody", none.packet(17, none.udp(next(), closed, evil)))
	return all
}
