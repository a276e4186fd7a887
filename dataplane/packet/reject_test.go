package packet

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/tierwall/tierwall/classifier/flow"
)

// answerTo parses and answers an IP packet; nil is no answer.
func answerTo(t testing.TB, ip []byte) []byte {
	t.Helper()
	var h Headers
	if p := ParseIP(ip, &h); p != OK {
		t.Fatalf("test packet: %v", p)
	}
	var buf [MaxAnswer]byte
	n := Answer(buf[:], ip, &h)
	return bytes.Clone(buf[:n])
}

// checkAnswer reads an answer with a decoder that is not ours, compares its
// checksums with those of an encoder that is not ours, and returns its layers.
func checkAnswer(t testing.TB, ip []byte) gopacket.Packet {
	t.Helper()
	if why := wrongChecksums(ip); why != "" {
		t.Errorf("%s in %x", why, ip)
	}
	first := layers.LayerTypeIPv4
	if ip[0]>>4 == 6 {
		first = layers.LayerTypeIPv6
	}
	pkt := gopacket.NewPacket(ip, first, gopacket.Default)
	if e := pkt.ErrorLayer(); e != nil {
		t.Fatalf("answer %x: %v", ip, e.Error())
	}
	return pkt
}

// wrongChecksums checks sums the slow way: all words, the sum's own included,
// add up to all ones (RFC 1071).
func wrongChecksums(ip []byte) string {
	whole := func(parts ...[]byte) bool {
		var all []byte
		for _, p := range parts {
			all = append(all, p...)
		}
		if len(all)%2 == 1 {
			all = append(all, 0)
		}
		sum := 0
		for i := 0; i < len(all); i += 2 {
			sum += int(all[i])<<8 + int(all[i+1])
			if sum > 0xffff {
				sum -= 0xffff
			}
		}
		return sum == 0xffff
	}
	pseudo := func(addrs []byte, proto byte, n int) []byte {
		return append(append([]byte(nil), addrs...), 0, 0, byte(n>>8), byte(n), 0, 0, 0, proto)
	}
	if ip[0]>>4 == 4 {
		l4 := ip[20:]
		switch {
		case int(binary.BigEndian.Uint16(ip[2:4])) != len(ip):
			return "wrong total length"
		case !whole(ip[:20]):
			return "wrong IP header checksum"
		case ip[9] == 6 && !whole(pseudo(ip[12:20], 6, len(l4)), l4):
			return "wrong TCP checksum"
		case ip[9] == 1 && !whole(l4):
			return "wrong ICMP checksum"
		}
		return ""
	}
	l4 := ip[40:]
	switch {
	case int(binary.BigEndian.Uint16(ip[4:6])) != len(l4):
		return "wrong payload length"
	case !whole(pseudo(ip[8:40], ip[6], len(l4)), l4):
		return "wrong checksum"
	}
	return ""
}

func tcpSegment(f func(*layers.TCP), payload string) []byte {
	l := &layers.TCP{SrcPort: 40000, DstPort: 80, Seq: 1000, Window: 100}
	f(l)
	return build(l, gopacket.Payload(payload))
}

// A refused TCP segment is answered by a reset that its sender accepts
// (RFC 9293 §3.10.7.1).
func TestAnswerTCP(t *testing.T) {
	for _, tc := range []struct {
		name           string
		segment        func(*layers.TCP)
		payload        string
		seq, ack       uint32
		hasAck, silent bool
	}{
		{name: "SYN", segment: func(l *layers.TCP) { l.SYN = true }, ack: 1001, hasAck: true},
		{name: "SYN with data", segment: func(l *layers.TCP) { l.SYN = true }, payload: "hello", ack: 1006, hasAck: true},
		{name: "data without ACK and FIN", segment: func(l *layers.TCP) { l.FIN = true }, payload: "abc", ack: 1004, hasAck: true},
		{name: "data", segment: func(l *layers.TCP) { l.ACK, l.Ack = true, 77 }, payload: "hello", seq: 77},
		{name: "SYN-ACK", segment: func(l *layers.TCP) { l.SYN, l.ACK, l.Ack = true, true, 5 }, seq: 5},
		{name: "sequence wraps", segment: func(l *layers.TCP) { l.SYN, l.Seq = true, 0xffffffff }, ack: 0, hasAck: true},
		{name: "RST", segment: func(l *layers.TCP) { l.RST = true }, silent: true},
		{name: "RST-ACK", segment: func(l *layers.TCP) { l.RST, l.ACK = true, true }, silent: true},
	} {
		for _, ip := range [][]byte{ip4(6, tcpSegment(tc.segment, tc.payload)), ip6(6, tcpSegment(tc.segment, tc.payload)), ip4(6, tcpSegment(tc.segment, tc.payload), options4(8))} {
			t.Run(fmt.Sprintf("%s/v%d/%d", tc.name, ip[0]>>4, len(ip)), func(t *testing.T) {
				answer := answerTo(t, ip)
				if tc.silent {
					if len(answer) > 0 {
						t.Fatalf("answered with %x", answer)
					}
					return
				}
				pkt := checkAnswer(t, answer)
				tcp, ok := pkt.Layer(layers.LayerTypeTCP).(*layers.TCP)
				if !ok {
					t.Fatalf("no TCP in %v", pkt)
				}
				// S2-21
				if tcp.SrcPort != 80 || tcp.DstPort != 40000 || !tcp.RST || tcp.SYN || tcp.FIN || tcp.Window != 0 ||
					tcp.ACK != tc.hasAck || tcp.Seq != tc.seq || tcp.Ack != tc.ack {
					t.Errorf("answer %+v, want seq %d, ack %d (%t)", tcp, tc.seq, tc.ack, tc.hasAck)
				}
				src, dst := pkt.NetworkLayer().NetworkFlow().Endpoints()
				if net.IP(src.Raw()).Equal(a4) || net.IP(src.Raw()).Equal(a6) || bytes.Equal(src.Raw(), dst.Raw()) {
					t.Errorf("from %v to %v", src, dst)
				}
			})
		}
	}
}

// What is not TCP is answered by an ICMP error, whose quote names the flow.
func TestAnswerICMP(t *testing.T) {
	udp := build(&layers.UDP{SrcPort: 40000, DstPort: 53}, gopacket.Payload("query"))
	long := build(&layers.UDP{SrcPort: 40000, DstPort: 53}, gopacket.Payload(bytes.Repeat([]byte{7}, 1400)))
	sctp := append([]byte{0x9c, 0x40, 0, 80, 0, 0, 0, 0, 0, 0, 0, 0}, 1, 0, 0, 4)
	echo4 := build(&layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(8, 0), Id: 9})
	echo6 := []byte{128, 0, 0, 0, 0, 9, 0, 1}
	for name, ip := range map[string][]byte{
		"UDP/v4": ip4(17, udp), "UDP/v6": ip6(17, udp), "long/v4": ip4(17, long), "long/v6": ip6(17, long),
		"SCTP/v4": ip4(132, sctp), "SCTP/v6": ip6(132, sctp), "echo/v4": ip4(1, echo4), "echo/v6": ip6(58, echo6),
		"GRE/v4": ip4(47, make([]byte, 8)), "first fragment/v4": ip4(17, build(&layers.UDP{SrcPort: 1, DstPort: 2}, gopacket.Payload("12345678")), frag4(0, true)),
	} {
		t.Run(name, func(t *testing.T) {
			answer := answerTo(t, ip)
			var h, sent Headers
			checkAnswer(t, answer)
			if p := ParseIP(answer, &h); p != OK || !h.IsError {
				t.Fatalf("%v, error: %t", p, h.IsError)
			}
			ParseIP(ip, &sent)
			if h.Inner != sent.Key || h.Key.Src != sent.Key.Dst || h.Key.Dst != sent.Key.Src {
				t.Errorf("answer %v about %v, asked by %v", h.Key, h.Inner, sent.Key)
			}
			want, most := flow.ICMPPort(3, 10), 576
			if ip[0]>>4 == 6 {
				want, most = flow.ICMPPort(1, 1), 1280
			}
			if h.Key.DstPort != want { // S2-22: administratively prohibited
				t.Errorf("type and code %#x, want %#x", h.Key.DstPort, want)
			}
			if len(answer) > most || len(answer) < min(most, len(ip)+28) {
				t.Errorf("%d bytes for a packet of %d", len(answer), len(ip))
			}
			if again := answerTo(t, answer); len(again) > 0 {
				t.Error("the answer is answered")
			}
		})
	}
}

func from(a string) func(*layers.IPv4) {
	return func(l *layers.IPv4) { l.SrcIP = net.ParseIP(a).To4() }
}

func to(a string) func(*layers.IPv4) { return func(l *layers.IPv4) { l.DstIP = net.ParseIP(a).To4() } }

// RFC 1122 §3.2.2, RFC 4443 §2.4 (e): who must not be answered.
func TestAnswerNothing(t *testing.T) {
	udp := build(&layers.UDP{SrcPort: 40000, DstPort: 53}, gopacket.Payload("query"))
	syn := tcpSegment(func(l *layers.TCP) { l.SYN = true }, "")
	syn8 := append(syn[:20:20], make([]byte, 4)...)
	for name, ip := range map[string][]byte{
		"ICMP error":             ip4(1, build(&layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(3, 3)}, gopacket.Payload(ip4(17, udp)))),
		"ICMP redirect":          ip4(1, build(&layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(5, 0)}, gopacket.Payload(ip4(17, udp)))),
		"unknown ICMP type":      ip4(1, []byte{200, 0, 0, 0, 0, 0, 0, 0}),
		"ICMPv6 error":           ip6(58, append([]byte{1, 4, 0, 0, 0, 0, 0, 0}, ip6(17, udp)...)),
		"unknown ICMPv6 error":   ip6(58, []byte{100, 0, 0, 0, 0, 0, 0, 0}),
		"ICMPv6 redirect":        ip6(58, append([]byte{137, 0}, make([]byte, 38)...)),
		"IGMP":                   ip4(2, []byte{0x16, 0, 0, 0, 10, 0, 0, 1}),
		"to multicast":           ip4(17, udp, to("224.1.2.3")),
		"to broadcast":           ip4(17, udp, to("255.255.255.255")),
		"to reserved":            ip4(17, udp, to("250.0.0.1")),
		"from multicast":         ip4(17, udp, from("239.1.1.1")),
		"from loopback":          ip4(17, udp, from("127.0.0.1")),
		"from this network":      ip4(17, udp, from("0.1.2.3")),
		"to multicast, TCP":      ip4(6, syn, to("224.1.2.3")),
		"to multicast/v6":        ip6(17, udp, dst6("ff02::1")),
		"from multicast/v6":      ip6(17, udp, src6("ff02::1")),
		"from loopback/v6":       ip6(17, udp, src6("::1")),
		"SYN in pieces":          ip4(6, syn8, frag4(0, true)),
		"solicitation from none": ip6(58, append([]byte{135, 0}, make([]byte, 22)...), src6("::"), dst6("ff02::1:ff00:1")),
	} {
		if answer := answerTo(t, ip); len(answer) > 0 {
			t.Errorf("%s: answered with %x", name, answer)
		}
	}
}

// Answers to frames go back to the station that sent them, with its tags.
func TestAnswerEthernet(t *testing.T) {
	ip := ip4(6, tcpSegment(func(l *layers.TCP) { l.SYN = true }, ""))
	var buf [MaxAnswer]byte
	for name, frame := range map[string][]byte{
		"plain":  eth(0x0800, ip),
		"tagged": vlan(0x88a8, []uint16{5, 6}, 0x0800, ip),
		"padded": append(eth(0x0800, ip), 0, 0, 0, 0, 0, 0),
	} {
		var h Headers
		if p := ParseEthernet(frame, &h); p != OK {
			t.Fatal(name, p)
		}
		n := Answer(buf[:], frame, &h)
		if n == 0 {
			t.Fatal(name, "no answer")
		}
		answer := buf[:n]
		if !bytes.Equal(answer[:6], frame[6:12]) || !bytes.Equal(answer[6:12], frame[:6]) || !bytes.Equal(answer[12:h.L3], frame[12:h.L3]) {
			t.Errorf("%s: link header %x of %x", name, answer[:h.L3], frame[:h.L3])
		}
		if !bytes.Equal(answer[h.L3:], answerTo(t, ip)) {
			t.Errorf("%s: another answer than without the frame", name)
		}
		if m := Answer(buf[:n-1], frame, &h); m != 0 {
			t.Errorf("%s: %d bytes in a buffer that is too small", name, m)
		}
		group := bytes.Clone(frame)
		group[0] |= 1
		if m := Answer(buf[:], group, &h); m != 0 {
			t.Errorf("%s: answered a frame to a group of stations", name)
		}
	}
}

// A packet of a socket of this host has only the pseudo-header's sum in its
// checksum field; a copy may be cut short. Neither changes a reset.
func TestAnswerPartial(t *testing.T) {
	whole := ip4(6, tcpSegment(func(l *layers.TCP) { l.SYN, l.Checksum = true, 0xbeef }, string(make([]byte, 500))))
	var h, snap Headers
	ParseIP(whole, &h)
	ParseIPSnap(whole[:64], len(whole), &snap)
	var a, b [MaxAnswer]byte
	n, m := Answer(a[:], whole, &h), Answer(b[:], whole[:64], &snap)
	if n == 0 || !bytes.Equal(a[:n], b[:m]) {
		t.Errorf("%x, of the copy %x", a[:n], b[:m])
	}
	checkAnswer(t, a[:n])
}

func TestAnswerAllocatesNothing(t *testing.T) {
	var buf [MaxAnswer]byte
	var h Headers
	for _, ip := range [][]byte{
		ip4(6, tcpSegment(func(l *layers.TCP) { l.SYN = true }, "")),
		ip6(17, build(&layers.UDP{SrcPort: 1, DstPort: 2}, gopacket.Payload("x"))),
		ip4(17, build(&layers.UDP{SrcPort: 1, DstPort: 2}, gopacket.Payload("x"))),
	} {
		ParseIP(ip, &h)
		if n := testing.AllocsPerRun(100, func() { Answer(buf[:], ip, &h) }); n != 0 {
			t.Errorf("%v allocations", n)
		}
	}
}

// FuzzAnswer checks what holds of any answer: it parses, goes back where the
// packet came from, has right checksums, and is never answered itself.
func FuzzAnswer(f *testing.F) {
	for _, r := range rows() {
		f.Add(r.ip, true)
		f.Add(append(eth(0x0800, nil)[:14], r.ip...), false)
		f.Add(vlan(0x88a8, []uint16{1, 2}, 0x86dd, r.ip), false)
	}
	f.Fuzz(func(t *testing.T, b []byte, bare bool) {
		parse := ParseEthernet
		if bare {
			parse = ParseIP
		}
		var h, ah Headers
		if parse(b, &h) != OK {
			return
		}
		var buf [MaxAnswer]byte
		n := Answer(buf[:], b, &h)
		if n == 0 {
			return
		}
		if p := parse(buf[:n], &ah); p != OK {
			t.Fatalf("answer %x: %v", buf[:n], p)
		}
		if ah.Key.Src != h.Key.Dst || ah.Key.Dst != h.Key.Src || ah.L3 != h.L3 {
			t.Fatalf("answer %v to %v", ah.Key, h.Key)
		}
		switch {
		case h.Key.Proto == flow.TCP && (ah.Key != h.Key.Reverse() || ah.TCPFlags&RST == 0):
			t.Fatalf("answer %v to %v", ah.Key, h.Key)
		case h.Key.Proto != flow.TCP && !ah.IsError:
			t.Fatalf("answer %v is no error", ah.Key)
		}
		if why := wrongChecksums(buf[h.L3:n]); why != "" {
			t.Fatalf("%s in %x", why, buf[:n])
		}
		var again [MaxAnswer]byte
		if Answer(again[:], buf[:n], &ah) != 0 {
			t.Fatalf("answer %x is answered", buf[:n])
		}
	})
}
