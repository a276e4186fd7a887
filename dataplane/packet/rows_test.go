package packet

import (
	"github.com/google/gopacket/layers"

	"github.com/tierwall/tierwall/classifier/flow"
)

// row is one packet and what a parse of it must say. key and inner are in
// flow.Key's text form; "" means the zero key is acceptable (problems) or, for
// inner, required.
type row struct {
	name    string
	ip      []byte // starts with the IP header
	problem Problem
	key     string
	inner   string
	check   func(h *Headers) bool
}

const (
	k4    = " 10.0.0.1:40000 > 10.0.0.2:80"
	k6    = " [fd00::1]:40000 > [fd00::2]:80"
	any4  = " 10.0.0.1 > 10.0.0.2"
	any6  = " fd00::1 > fd00::2"
	echo4 = "ICMP 10.0.0.1 > 10.0.0.2 type 8 code 0"
	echo6 = "ICMPv6 fd00::1 > fd00::2 type 128 code 0"
)

func offsets(l4, payload uint16) func(*Headers) bool {
	return func(h *Headers) bool {
		return h.L3 == 0 && h.L4 == l4 && h.Payload == payload && !h.Fragment && !h.IsError
	}
}

func isFragment(h *Headers) bool { return h.Fragment }
func isWhole(h *Headers) bool    { return !h.Fragment }
func isError(h *Headers) bool    { return h.IsError }
func noError(h *Headers) bool    { return !h.IsError && h.Inner == flow.Key{} }

func echoID(id uint16) func(*Headers) bool {
	return func(h *Headers) bool { return h.Key.SrcPort == id && noError(h) }
}

// rows returns every case; the other tests reuse them as a corpus.
func rows() []row {
	syn, dg, sc := tcp(40000, 80), udp(40000, 80), sctp(40000, 80)
	syn4, syn6 := ip4(6, syn), ip6(6, syn)
	chain := cat(ext(43, 0), routing(60, 4, 1), ext(51, 2), ah(6), syn) // hop-by-hop, routing, destination, AH
	return []row{
		// Transport headers, both families.
		{name: "v4 tcp", ip: syn4, key: "TCP" + k4, check: offsets(20, 40)},
		{name: "v6 tcp", ip: syn6, key: "TCP" + k6, check: offsets(40, 60)},
		{name: "v4 tcp fields", ip: syn4, key: "TCP" + k4, check: func(h *Headers) bool {
			return h.TCPFlags == SYN && h.SYNOnly() && h.TCPSeq == 0x01020304 && h.TCPAck == 0x05060708 && h.Length == 48
		}},
		{name: "v4 tcp syn-ack", ip: ip4(6, tcp(40000, 80, tcpFlags(SYN|ACK))), key: "TCP" + k4, check: func(h *Headers) bool { return !h.SYNOnly() }},
		{name: "v4 tcp syn with ECN bits", ip: ip4(6, tcp(40000, 80, tcpFlags(SYN|0xc0))), key: "TCP" + k4, check: func(h *Headers) bool { return h.SYNOnly() && h.TCPFlags == SYN|0xc0 }},
		{name: "v4 tcp options", ip: ip4(6, tcp(40000, 80, func(l *layers.TCP) {
			l.Options = []layers.TCPOption{{OptionType: 2, OptionLength: 4, OptionData: []byte{5, 0xb4}}}
		})), key: "TCP" + k4, check: offsets(20, 44)},
		{name: "v4 udp", ip: ip4(17, dg), key: "UDP" + k4, check: offsets(20, 28)},
		{name: "v6 udp", ip: ip6(17, dg), key: "UDP" + k6, check: offsets(40, 48)},
		{name: "v4 udp from port 0", ip: ip4(17, udp(0, 80)), key: "UDP 10.0.0.1:0 > 10.0.0.2:80"},
		{name: "v4 sctp", ip: ip4(132, sc), key: "SCTP" + k4, check: offsets(20, 32)},
		{name: "v6 sctp", ip: ip6(132, sc), key: "SCTP" + k6, check: offsets(40, 52)},
		{name: "v4 igmp", ip: ip4(2, []byte{0x16, 99, 0, 0, 239, 1, 1, 1}), key: "IGMP 10.0.0.1 > 10.0.0.2 type 22 code 0", check: offsets(20, 28)},
		{name: "v4 gre", ip: ip4(47, []byte("12345")), key: "47" + any4, check: offsets(20, 25)},
		{name: "v4 gre after options", ip: ip4(47, []byte("12345"), options4(12)), key: "47" + any4, check: offsets(32, 37)},
		{name: "v4 esp", ip: ip4(50, []byte("12345")), key: "50" + any4, check: offsets(20, 25)},
		{name: "v4 ah is a protocol", ip: ip4(51, cat(ah(6), syn)), key: "51" + any4, check: offsets(20, 72)},
		{name: "v4 protocol without payload", ip: ip4(47, nil), key: "47" + any4, check: offsets(20, 20)},
		{name: "v4 options", ip: ip4(6, syn, options4(8)), key: "TCP" + k4, check: offsets(28, 48)},
		{name: "v4 most options", ip: ip4(17, dg, options4(40)), key: "UDP" + k4, check: offsets(60, 68)},
		{name: "v4 from 0.0.0.0", ip: ip4(17, udp(68, 67), func(l *layers.IPv4) { l.SrcIP = []byte{0, 0, 0, 0} }), key: "UDP 0.0.0.0:68 > 10.0.0.2:67"},

		// ICMP, RFC 792 and RFC 4443.
		{name: "v4 echo", ip: ip4(1, icmp4(8, 0, 0x1234, nil)), key: echo4, check: echoID(0x1234)},
		{name: "v4 echo reply", ip: ip4(1, icmp4(0, 0, 0x1234, nil)), key: "ICMP 10.0.0.1 > 10.0.0.2 type 0 code 0", check: echoID(0x1234)},
		{name: "v4 timestamp has no id", ip: ip4(1, icmp4(13, 0, 0x1234, make([]byte, 12))), key: "ICMP 10.0.0.1 > 10.0.0.2 type 13 code 0", check: echoID(0)},
		{name: "v6 echo", ip: ip6(58, icmp6(128, 0, 0x1234, nil)), key: echo6, check: echoID(0x1234)},
		{name: "v6 echo reply", ip: ip6(58, icmp6(129, 0, 0x1234, nil)), key: "ICMPv6 fd00::1 > fd00::2 type 129 code 0", check: echoID(0x1234)},
		{name: "v6 type 8 is no echo", ip: ip6(58, icmp6(8, 0, 0x1234, nil)), key: "ICMPv6 fd00::1 > fd00::2 type 8 code 0", check: echoID(0)},
		{name: "v4 type 128 is no echo", ip: ip4(1, icmp4(128, 0, 0x1234, nil)), key: "ICMP 10.0.0.1 > 10.0.0.2 type 128 code 0", check: echoID(0)},
		{name: "v6 redirect is no error", ip: ip6(58, icmp6(137, 0, 0, make([]byte, 40))), key: "ICMPv6 fd00::1 > fd00::2 type 137 code 0", check: noError},
		{name: "v6 type 0 is no error", ip: ip6(58, icmp6(0, 0, 0, syn6)), key: "ICMPv6 fd00::1 > fd00::2 type 0 code 0", check: noError},
		{name: "v4 icmp short", ip: ip4(1, icmp4(8, 0, 1, nil)[:7]), problem: Truncated},
		{name: "v6 icmp short", ip: ip6(58, icmp6(128, 0, 1, nil)[:7]), problem: Truncated},
		{name: "v4 igmp short", ip: ip4(2, make([]byte, 7)), problem: Truncated},

		// ICMP errors name the flow they are about.
		{name: "v4 unreachable", ip: ip4(1, icmp4(3, 1, 0, syn4)), key: "ICMP 10.0.0.1 > 10.0.0.2 type 3 code 1", inner: "TCP" + k4, check: isError},
		{name: "v4 unreachable, RFC 792 quote", ip: ip4(1, icmp4(3, 3, 0, ip4(17, dg)[:28])), inner: "UDP" + k4, check: isError},
		{name: "v4 source quench", ip: ip4(1, icmp4(4, 0, 0, syn4)), inner: "TCP" + k4, check: isError},
		{name: "v4 redirect", ip: ip4(1, icmp4(5, 0, 0, syn4)), inner: "TCP" + k4, check: isError},
		{name: "v4 time exceeded, sctp", ip: ip4(1, icmp4(11, 0, 0, ip4(132, sc))), inner: "SCTP" + k4, check: isError},
		{name: "v4 parameter problem", ip: ip4(1, icmp4(12, 0, 0, syn4)), inner: "TCP" + k4, check: isError},
		{name: "v4 error about options", ip: ip4(1, icmp4(3, 1, 0, ip4(6, syn, options4(12)))), inner: "TCP" + k4, check: isError},
		{name: "v4 error about an echo", ip: ip4(1, icmp4(11, 0, 0, ip4(1, icmp4(8, 0, 77, nil)))), inner: echo4, check: func(h *Headers) bool { return h.IsError && h.Inner.SrcPort == 77 }},
		{name: "v4 error about gre", ip: ip4(1, icmp4(3, 2, 0, ip4(47, nil))), inner: "47" + any4, check: isError},
		{name: "v4 error about igmp", ip: ip4(1, icmp4(3, 2, 0, ip4(2, []byte{0x11, 0, 0, 0, 0, 0, 0, 0}))), inner: "IGMP 10.0.0.1 > 10.0.0.2 type 17 code 0", check: isError},
		{name: "v4 error about a first fragment", ip: ip4(1, icmp4(11, 1, 0, ip4(6, syn[:24], frag4(0, true)))), inner: "TCP" + k4, check: isError},
		{name: "v6 unreachable", ip: ip6(58, icmp6(1, 4, 0, syn6)), key: "ICMPv6 fd00::1 > fd00::2 type 1 code 4", inner: "TCP" + k6, check: isError},
		{name: "v6 too big", ip: ip6(58, icmp6(2, 0, 0, syn6)), inner: "TCP" + k6, check: isError},
		{name: "v6 time exceeded, extensions", ip: ip6(58, icmp6(3, 0, 0, ip6(0, chain))), inner: "TCP" + k6, check: isError},
		{name: "v6 parameter problem", ip: ip6(58, icmp6(4, 1, 0, ip6(17, dg))), inner: "UDP" + k6, check: isError},
		{name: "v6 error about an echo", ip: ip6(58, icmp6(3, 0, 0, ip6(58, icmp6(128, 0, 77, nil)))), inner: echo6, check: func(h *Headers) bool { return h.IsError && h.Inner.SrcPort == 77 }},
		// An error whose quote names no flow is still an error.
		{name: "v4 error, empty quote", ip: ip4(1, icmp4(3, 1, 0, nil)), check: isError},
		{name: "v4 error, cut IP header", ip: ip4(1, icmp4(3, 1, 0, syn4[:19])), check: isError},
		{name: "v4 error, cut options", ip: ip4(1, icmp4(3, 1, 0, ip4(6, syn, options4(12))[:24])), check: isError},
		{name: "v4 error, cut ports", ip: ip4(1, icmp4(3, 1, 0, syn4[:23])), check: isError},
		{name: "v4 error, quoted total length ends before the ports", ip: ip4(1, icmp4(3, 1, 0, poke(syn4, 2, 0, 22))), check: isError},
		{name: "v4 error, v6 quote", ip: ip4(1, icmp4(3, 1, 0, syn6)), check: isError},
		{name: "v4 error, quoted port 0", ip: ip4(1, icmp4(3, 1, 0, ip4(6, tcp(40000, 0)))), check: isError},
		{name: "v4 error, quoted sctp from 0", ip: ip4(1, icmp4(3, 1, 0, ip4(132, sctp(0, 80)))), check: isError},
		{name: "v4 error about a later fragment", ip: ip4(1, icmp4(3, 1, 0, ip4(6, syn, frag4(8, false)))), check: isError},
		{name: "v4 error about an error", ip: ip4(1, icmp4(3, 1, 0, ip4(1, icmp4(3, 1, 0, syn4)))), check: isError},
		{name: "v4 error about a cut echo", ip: ip4(1, icmp4(3, 1, 0, ip4(1, icmp4(8, 0, 1, nil))[:26])), check: isError},
		{name: "v4 error about nothing of igmp", ip: ip4(1, icmp4(3, 1, 0, ip4(2, nil))), check: isError},
		{name: "v6 error, cut quote", ip: ip6(58, icmp6(1, 0, 0, syn6[:43])), check: isError},
		{name: "v6 error about an error", ip: ip6(58, icmp6(1, 0, 0, ip6(58, icmp6(1, 0, 0, syn6)))), check: isError},
		{name: "v6 error, v4 quote", ip: ip6(58, icmp6(1, 0, 0, syn4)), check: isError},
		{name: "v6 error about a packet from ::", ip: ip6(58, icmp6(1, 0, 0, ip6(6, syn, src6("::")))), check: isError},
		{name: "v6 error about a mapped source", ip: ip6(58, icmp6(1, 0, 0, poke(syn6, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1))), check: isError},

		// IPv6 extension headers.
		{name: "v6 hop-by-hop", ip: ip6(0, cat(ext(17, 0), dg)), key: "UDP" + k6, check: offsets(48, 56)},
		{name: "v6 long destination options", ip: ip6(60, cat(ext(17, 3), dg)), key: "UDP" + k6, check: offsets(72, 80)},
		{name: "v6 whole chain", ip: ip6(0, chain), key: "TCP" + k6, check: offsets(120, 140)},
		{name: "v6 destination options twice", ip: ip6(60, cat(ext(43, 0), routing(60, 2, 1), ext(6, 0), syn)), key: "TCP" + k6},
		{name: "v6 atomic fragment", ip: ip6(44, cat(frag6(17, 0, false), dg)), key: "UDP" + k6, check: isWhole},
		{name: "v6 esp ends the chain", ip: ip6(60, cat(ext(50, 0), dg)), key: "50" + any6, check: offsets(48, 64)},
		{name: "v6 esp after long options", ip: ip6(60, cat(ext(50, 2), dg)), key: "50" + any6, check: offsets(64, 80)},
		{name: "v6 no next header", ip: ip6(59, nil), key: "59" + any6, check: offsets(40, 40)},
		{name: "v6 unknown header is the protocol", ip: ip6(60, cat(ext(253, 0), dg)), key: "253" + any6, check: offsets(48, 64)},
		{name: "v6 as many as we follow", ip: ip6(60, cat(destinations(MaxExtHeaders, 6), syn)), key: "TCP" + k6},
		{name: "v6 one more", ip: ip6(60, cat(destinations(MaxExtHeaders+1, 6), syn)), problem: TooManyHeaders},
		{name: "v6 hop-by-hop not first", ip: ip6(60, cat(ext(0, 0), ext(6, 0), syn)), problem: Unparsable},
		{name: "v6 hop-by-hop twice", ip: ip6(0, cat(ext(0, 0), ext(6, 0), syn)), problem: Unparsable},
		{name: "v6 abolished routing header", ip: ip6(43, cat(routing(6, 0, 1), syn)), problem: Unparsable},
		{name: "v6 abolished routing header, used up", ip: ip6(43, cat(routing(6, 0, 0), syn)), key: "TCP" + k6},
		{name: "v6 extension ends beyond the packet", ip: ip6(60, poke(ext(6, 0), 1, 200)), problem: BadHeaderLength},
		{name: "v6 no room for an extension", ip: ip6(60, ext(6, 0)[:7]), problem: BadHeaderLength},
		{name: "v6 ah shorter than itself", ip: ip6(51, cat(poke(ah(47), 1, 0), syn)), problem: BadHeaderLength},
		{name: "v6 jumbogram", ip: poke(ip6(0, cat(ext(6, 0), syn)), 4, 0, 0), problem: BadTotalLength},
		{name: "v6 nothing after the header", ip: ip6(6, nil), problem: Truncated},

		// Fragments: RFC 791, RFC 8200 §4.5.
		{name: "v4 first fragment", ip: ip4(6, tcp(40000, 80)[:24], frag4(0, true)), key: "TCP" + k4, check: isFragment},
		{name: "v6 first fragment", ip: ip6(44, cat(frag6(6, 0, true), tcp(40000, 80)[:24])), key: "TCP" + k6, check: isFragment},
		{name: "v4 first fragment of a long datagram", ip: ip4(17, poke(dg, 4, 5, 0), frag4(0, true)), key: "UDP" + k4, check: isFragment},
		{name: "v4 tiny first fragment", ip: ip4(6, tcp(40000, 80)[:8], frag4(0, true)), problem: Truncated}, // RFC 1858
		{name: "v4 later fragment", ip: ip4(17, dg, frag4(1480, false)), problem: LaterFragment, key: "UDP 10.0.0.1:0 > 10.0.0.2:0", check: isWhole},
		{name: "v4 middle fragment", ip: ip4(17, dg, frag4(1480, true)), problem: LaterFragment, key: "UDP 10.0.0.1:0 > 10.0.0.2:0"},
		{name: "v6 later fragment", ip: ip6(44, cat(frag6(17, 1448, false), dg)), problem: LaterFragment, key: "UDP [fd00::1]:0 > [fd00::2]:0"},
		{name: "v6 later fragment after hop-by-hop", ip: ip6(0, cat(ext(44, 0), frag6(6, 8, true), dg)), problem: LaterFragment, key: "TCP [fd00::1]:0 > [fd00::2]:0"},
		{name: "v6 later fragment from ::", ip: ip6(44, cat(frag6(17, 8, false), dg), src6("::")), problem: BadAddress},
		{name: "v4 fragment length no multiple of 8", ip: ip4(17, dg[:15], frag4(0, true)), problem: BadTotalLength},
		{name: "v6 fragment length no multiple of 8", ip: ip6(44, cat(frag6(17, 0, true), dg[:15])), problem: BadTotalLength},
		{name: "v4 fragment beyond 64 KiB", ip: ip4(1, make([]byte, 8), frag4(65528, false)), problem: BadTotalLength}, // "ping of death"
		{name: "v6 fragment beyond 64 KiB", ip: ip6(44, cat(frag6(58, 65528, false), make([]byte, 8))), problem: BadTotalLength},
		{name: "v4 fragment that just fits", ip: ip4(17, dg[:11], frag4(65504, false)), problem: LaterFragment},
		{name: "v4 fragment that fits but for the header", ip: ip4(17, dg[:12], frag4(65504, false)), problem: BadTotalLength},
		{name: "v6 fragment that just fits", ip: ip6(44, cat(frag6(17, 65520, false), dg[:15])), problem: LaterFragment},
		{name: "v6 fragment that fits but for an extension", ip: ip6(0, cat(ext(44, 0), frag6(17, 65520, false), dg[:8])), problem: BadTotalLength},
		{name: "v6 fragment in a fragment", ip: ip6(44, cat(frag6(44, 0, false), frag6(6, 0, false), syn)), problem: Unparsable},
		{name: "v6 hop-by-hop in a fragment", ip: ip6(44, cat(frag6(0, 8, false), ext(6, 0), syn)), problem: Unparsable},

		// Malformed.
		{name: "empty", ip: []byte{}, problem: Truncated},
		{name: "version 5", ip: poke(syn4, 0, 0x55), problem: BadVersion},
		{name: "version 0", ip: make([]byte, 60), problem: BadVersion},
		{name: "v4 19 bytes", ip: syn4[:19], problem: Truncated},
		{name: "v6 39 bytes", ip: syn6[:39], problem: Truncated},
		{name: "v4 IHL 4", ip: poke(syn4, 0, 0x44), problem: BadHeaderLength},
		{name: "v4 IHL beyond total length", ip: poke(ip4(47, nil), 0, 0x46), problem: BadTotalLength},
		{name: "v4 total length below header", ip: poke(syn4, 2, 0, 19), problem: BadTotalLength},
		{name: "v4 total length 0", ip: poke(syn4, 2, 0, 0), problem: BadTotalLength},
		{name: "v4 longer than the packet", ip: poke(syn4, 2, 0, 49), problem: BadTotalLength},
		{name: "v6 longer than the packet", ip: poke(syn6, 4, 0, 29), problem: BadTotalLength},
		{name: "v4 total length cuts the TCP header", ip: poke(syn4, 2, 0, 39), problem: Truncated},
		{name: "v4 protocol 0", ip: ip4(0, syn), problem: Unparsable},
		{name: "v4 icmpv6", ip: ip4(58, icmp6(128, 0, 1, nil)), problem: Unparsable},
		{name: "v6 icmp", ip: ip6(1, icmp4(8, 0, 1, nil)), problem: Unparsable},
		{name: "v6 igmp", ip: ip6(2, make([]byte, 8)), problem: Unparsable},
		{name: "v4 tcp short", ip: ip4(6, syn[:19]), problem: Truncated},
		{name: "v4 udp short", ip: ip4(17, dg[:7]), problem: Truncated},
		{name: "v4 sctp short", ip: ip4(132, sc[:11]), problem: Truncated},
		{name: "v4 tcp data offset 4", ip: ip4(6, poke(syn, 12, 4<<4)), problem: BadHeaderLength},
		{name: "v4 tcp data offset beyond the packet", ip: ip4(6, poke(syn, 12, 15<<4)), problem: BadHeaderLength},
		{name: "v4 udp length 7", ip: ip4(17, poke(dg, 4, 0, 7)), problem: BadTotalLength},
		{name: "v4 udp longer than the packet", ip: ip4(17, poke(dg, 4, 0, 17)), problem: BadTotalLength},
		{name: "v4 udp shorter than the packet", ip: ip4(17, poke(dg, 4, 0, 12)), key: "UDP" + k4},
		{name: "v4 tcp from port 0", ip: ip4(6, tcp(0, 80)), problem: BadPort},
		{name: "v4 tcp to port 0", ip: ip4(6, tcp(40000, 0)), problem: BadPort},
		{name: "v6 udp to port 0", ip: ip6(17, udp(40000, 0)), problem: BadPort},
		{name: "v4 sctp from port 0", ip: ip4(132, sctp(0, 80)), problem: BadPort},
		{name: "v6 sctp to port 0", ip: ip6(132, sctp(40000, 0)), problem: BadPort},
		{name: "v4 syn+fin", ip: ip4(6, tcp(40000, 80, tcpFlags(SYN|FIN))), problem: BadTCPFlags},
		{name: "v6 syn+rst", ip: ip6(6, tcp(40000, 80, tcpFlags(SYN|RST|ACK))), problem: BadTCPFlags},
		{name: "v4 no flag", ip: ip4(6, tcp(40000, 80, tcpFlags(0))), problem: BadTCPFlags},
		{name: "v4 only ECN flags", ip: ip4(6, tcp(40000, 80, tcpFlags(0xc0))), problem: BadTCPFlags},
		{name: "v4 fin without ack", ip: ip4(6, tcp(40000, 80, tcpFlags(FIN))), key: "TCP" + k4},

		// Addresses.
		{name: "v6 mapped source", ip: poke(syn6, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1), problem: BadAddress},
		{name: "v6 mapped destination", ip: poke(syn6, 24, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 2), problem: BadAddress},
		{name: "v6 both mapped", ip: poke(syn6, 8, []byte("\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff\x0a\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff\x0a\x00\x00\x02")...), problem: BadAddress},
		{name: "v6 to ::", ip: ip6(6, syn, dst6("::")), problem: BadAddress},
		{name: "v6 tcp from ::", ip: ip6(6, syn, src6("::")), problem: BadAddress},
		{name: "v6 echo from ::", ip: ip6(58, icmp6(128, 0, 1, nil), src6("::"), dst6("ff02::1")), problem: BadAddress},
		{name: "v6 neighbour solicitation from :: to a host", ip: ip6(58, icmp6(135, 0, 0, b6), src6("::")), problem: BadAddress},
		{name: "v6 address probe", ip: ip6(58, icmp6(135, 0, 0, b6), src6("::"), dst6("ff02::1:ff00:2")), key: "ICMPv6 :: > ff02::1:ff00:2 type 135 code 0", check: noError},
		{name: "v6 router solicitation from ::", ip: ip6(58, icmp6(133, 0, 0, nil), src6("::"), dst6("ff02::2")), key: "ICMPv6 :: > ff02::2 type 133 code 0"},
		{name: "v6 MLD report from ::", ip: ip6(0, cat(ext(58, 0), icmp6(143, 0, 0, nil)), src6("::"), dst6("ff02::16")), key: "ICMPv6 :: > ff02::16 type 143 code 0"},
	}
}

// destinations is a chain of n destination-options headers ending in next.
func destinations(n int, next uint8) []byte {
	var b []byte
	for i := range n {
		follows := uint8(60)
		if i == n-1 {
			follows = next
		}
		b = append(b, ext(follows, 0)...)
	}
	return b
}
