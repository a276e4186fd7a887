package dataplane

import (
	"net/netip"
	"sync"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
)

// Publish is SetTable for a stubbed classifier; backends get a nil table.
func (e *Engine) Publish(c Classifier) (int, error) { return e.PublishChange(c, Change{}) }

// PublishChange is Publish with a change that is believed.
func (e *Engine) PublishChange(c Classifier, change Change) (int, error) {
	return e.publish(&snapshot{classifier: c, generation: c.Generation()}, change)
}

// Stub is a Classifier that is written down: it allows what Allowed says.
type Stub struct {
	Gen     uint64
	Allowed func(flow.Key) bool
	Via     func(flow.Key, flow.Service) bool // allowed by way of a Service; nil: as Allowed says
	Denial  classifier.Verdict                // Drop unless set to Reject
	Audit   bool
	VIPs    map[flow.Addr]bool
	Unknown map[flow.Addr]bool // UnknownLocal of either end
	Pods    map[flow.Addr]bool
	Nodes   map[flow.Addr]bool

	mu    sync.Mutex
	asked []flow.Key
	Quiet bool // do not record what was asked
}

func (s *Stub) Generation() uint64     { return s.Gen }
func (s *Stub) IsVIP(a flow.Addr) bool { return s.VIPs[a] }

func (s *Stub) IsPod(a flow.Addr) bool  { return s.Pods[a] }
func (s *Stub) IsNode(a flow.Addr) bool { return s.Nodes[a] }

func (s *Stub) UnknownLocal(k flow.Key) (src, dst bool) { return s.Unknown[k.Src], s.Unknown[k.Dst] }

// Lookup answers with outcome ids that name the generation, so that a mix-up of
// tables shows.
func (s *Stub) Lookup(k flow.Key) classifier.Decision {
	if !s.Quiet {
		s.mu.Lock()
		s.asked = append(s.asked, k)
		s.mu.Unlock()
	}
	d := classifier.Decision{
		Verdict: s.Denial, Audit: s.Audit,
		Egress: classifier.OutcomeID(s.Gen*10 + 1), Ingress: classifier.OutcomeID(s.Gen*10 + 2),
	}
	if s.Allowed(k) {
		d.Verdict = classifier.Allow
	}
	return d
}

// LookupVia is Lookup: the stub knows no Services.
func (s *Stub) LookupVia(k flow.Key, via flow.Service) classifier.Decision {
	if s.Via != nil && s.Via(k, via) {
		return (&Stub{Gen: s.Gen, Allowed: Always, Audit: s.Audit, Quiet: true}).Lookup(k)
	}
	return s.Lookup(k)
}

// LookupMasked allows what Allowed says of nobody's address.
func (s *Stub) LookupMasked(k flow.Key) classifier.Decision {
	k.Src = flow.Addr{}
	return s.Lookup(k)
}

// Asked returns the keys looked up since the last call.
func (s *Stub) Asked() []flow.Key {
	s.mu.Lock()
	defer s.mu.Unlock()
	asked := s.asked
	s.asked = nil
	return asked
}

// Always and Never are Allowed functions.
func Always(flow.Key) bool { return true }
func Never(flow.Key) bool  { return false }

// Key parses "10.0.0.1:1" style ends.
func Key(proto flow.Proto, src, dst string) flow.Key {
	return flow.MakeKey(proto, netip.MustParseAddrPort(src), netip.MustParseAddrPort(dst))
}

// Flags of a TCP segment.
type Flags struct{ SYN, ACK, FIN, RST bool }

// Segment builds an IP packet with a TCP header, by an encoder that is not ours.
func Segment(t testing.TB, src, dst string, f Flags, seq uint32) []byte {
	t.Helper()
	s, d := netip.MustParseAddrPort(src), netip.MustParseAddrPort(dst)
	tcp := &layers.TCP{
		SrcPort: layers.TCPPort(s.Port()), DstPort: layers.TCPPort(d.Port()), Seq: seq, Window: 1024,
		SYN: f.SYN, ACK: f.ACK, FIN: f.FIN, RST: f.RST,
	}
	return ipPacket(t, s.Addr(), d.Addr(), layers.IPProtocolTCP, tcp)
}

// Datagram builds an IP packet with a UDP header and four bytes.
func Datagram(t testing.TB, src, dst string) []byte {
	t.Helper()
	s, d := netip.MustParseAddrPort(src), netip.MustParseAddrPort(dst)
	udp := &layers.UDP{SrcPort: layers.UDPPort(s.Port()), DstPort: layers.UDPPort(d.Port())}
	return ipPacket(t, s.Addr(), d.Addr(), layers.IPProtocolUDP, udp, gopacket.Payload("data"))
}

// Message4 and Message6 build ICMP messages; body follows the first four bytes.
func Message4(t testing.TB, src, dst string, typ, code uint8, id uint16, body []byte) []byte {
	t.Helper()
	icmp := &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(typ, code), Id: id}
	return ipPacket(t, netip.MustParseAddr(src), netip.MustParseAddr(dst), layers.IPProtocolICMPv4, icmp, gopacket.Payload(body))
}

// Message6 is Message4 for ICMPv6; body starts at the message's fifth byte.
func Message6(t testing.TB, src, dst string, typ, code uint8, body []byte) []byte {
	t.Helper()
	icmp := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(typ, code)}
	return ipPacket(t, netip.MustParseAddr(src), netip.MustParseAddr(dst), layers.IPProtocolICMPv6, icmp, gopacket.Payload(body))
}

// Raw builds an IP packet of any protocol.
func Raw(t testing.TB, src, dst string, proto uint8, body []byte) []byte {
	t.Helper()
	return ipPacket(t, netip.MustParseAddr(src), netip.MustParseAddr(dst), layers.IPProtocol(proto), gopacket.Payload(body))
}

func ipPacket(t testing.TB, src, dst netip.Addr, proto layers.IPProtocol, rest ...gopacket.SerializableLayer) []byte {
	t.Helper()
	var network gopacket.NetworkLayer
	var all []gopacket.SerializableLayer
	if src.Is4() {
		ip := &layers.IPv4{Version: 4, IHL: 5, TTL: 64, Protocol: proto, SrcIP: src.AsSlice(), DstIP: dst.AsSlice()}
		network, all = ip, append(all, ip)
	} else {
		ip := &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: proto, SrcIP: src.AsSlice(), DstIP: dst.AsSlice()}
		network, all = ip, append(all, ip)
	}
	for _, l := range rest {
		if c, ok := l.(interface {
			SetNetworkLayerForChecksum(gopacket.NetworkLayer) error
		}); ok {
			if err := c.SetNetworkLayerForChecksum(network); err != nil {
				t.Fatal(err)
			}
		}
		all = append(all, l)
	}
	buf := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, all...); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}
