package adversary

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/dataplane/nstest/netlab"
)

// Wire is a raw socket on a pod's device: it sends any frame and keeps what
// arrives.
type Wire struct {
	t         testing.TB
	fd        int
	index     int
	MAC, Peer net.HardwareAddr // the pod's own, and where it sends to
	host      *os.File
	hops      map[netip.Addr]net.HardwareAddr // who has an address on the same link
	done      chan struct{}
	mu        sync.Mutex
	arrived   [][]byte
}

func networkOrder(v uint16) uint16 { return v<<8 | v>>8 }

func OpenWire(t testing.TB, ns *netlab.NS, peer net.HardwareAddr) *Wire {
	t.Helper()
	link, err := ns.Link(netlab.PodDevice)
	if err != nil {
		t.Fatal(err)
	}
	w := &Wire{t: t, index: link.Attrs().Index, MAC: link.Attrs().HardwareAddr, Peer: peer, done: make(chan struct{})}
	err = ns.Do(func() error {
		if w.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, int(networkOrder(unix.ETH_P_ALL)))
		if err != nil {
			return err
		}
		w.host = os.NewFile(uintptr(fd), "wire")
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20); err != nil {
			return err
		}
		if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1); err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: networkOrder(unix.ETH_P_ALL), Ifindex: w.index})
	})
	if err != nil {
		t.Fatal(err)
	}
	go w.listen()
	t.Cleanup(func() {
		w.host.Close()
		<-w.done
		unix.Close(w.fd)
	})
	return w
}

func (w *Wire) listen() {
	defer close(w.done)
	buf := make([]byte, 1<<17)
	for {
		n, err := w.host.Read(buf)
		if errors.Is(err, os.ErrClosed) {
			return
		}
		if err == nil {
			w.mu.Lock()
			w.arrived = append(w.arrived, append([]byte(nil), buf[:n]...))
			w.mu.Unlock()
		}
	}
}

// Take returns what arrived since the last call.
func (w *Wire) Take() [][]byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	a := w.arrived
	w.arrived = nil
	return a
}

// Frame sends a whole frame.
func (w *Wire) Frame(b []byte) error {
	return unix.Sendto(w.fd, b, 0, &unix.SockaddrLinklayer{Ifindex: w.index})
}

// Ether wraps a payload.
func (w *Wire) Ether(typ uint16, payload []byte) []byte {
	b := append(append([]byte(nil), w.Peer...), w.MAC...)
	return append(binary.BigEndian.AppendUint16(b, typ), payload...)
}

// Beside says that an address is on the wire's link, and whose device has it. Packets
// to others go to Peer.
func (w *Wire) Beside(a netip.Addr, mac net.HardwareAddr) {
	if w.hops == nil {
		w.hops = map[netip.Addr]net.HardwareAddr{}
	}
	w.hops[a] = mac
}

// IP sends an IP packet.
func (w *Wire) IP(b []byte) {
	w.t.Helper()
	typ, dst := uint16(0x0800), b[16:20]
	if b[0]>>4 == 6 {
		typ, dst = 0x86dd, b[24:40]
	}
	frame := w.Ether(typ, b)
	if to, ok := netip.AddrFromSlice(dst); ok && w.hops[to] != nil {
		copy(frame, w.hops[to])
	}
	if err := w.Frame(frame); err != nil {
		w.t.Errorf("send: %v", err)
	}
}

func serialise(ls ...gopacket.SerializableLayer) []byte {
	buf := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, ls...); err != nil {
		panic(err)
	}
	return append([]byte(nil), buf.Bytes()...)
}

// Ends is from whom to whom crafted packets go.
type Ends struct{ Src, Dst netip.Addr }

func (e Ends) Turned() Ends { return Ends{e.Dst, e.Src} }

// Packet puts an IP header around a transport segment.
func (e Ends) Packet(proto uint8, segment []byte, mod ...func(*layers.IPv4, *layers.IPv6)) []byte {
	l4 := &layers.IPv4{Version: 4, IHL: 5, TTL: 64, Id: uint16(time.Now().UnixNano()), Protocol: layers.IPProtocol(proto), SrcIP: e.Src.AsSlice(), DstIP: e.Dst.AsSlice()}
	l6 := &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: layers.IPProtocol(proto), SrcIP: e.Src.AsSlice(), DstIP: e.Dst.AsSlice()}
	for _, m := range mod {
		m(l4, l6)
	}
	if e.Src.Is4() {
		return serialise(l4, gopacket.Payload(segment))
	}
	return serialise(l6, gopacket.Payload(segment))
}

func (e Ends) network() gopacket.NetworkLayer {
	if e.Src.Is4() {
		return &layers.IPv4{Version: 4, TTL: 64, SrcIP: e.Src.AsSlice(), DstIP: e.Dst.AsSlice()}
	}
	return &layers.IPv6{Version: 6, SrcIP: e.Src.AsSlice(), DstIP: e.Dst.AsSlice()}
}

// TCP is a segment with a right checksum.
func (e Ends) TCP(sport, dport uint16, flags string, data string, mod ...func(*layers.TCP)) []byte {
	l := &layers.TCP{SrcPort: layers.TCPPort(sport), DstPort: layers.TCPPort(dport), Seq: 1000, Ack: 1, Window: 1000}
	for _, f := range flags {
		switch f {
		case 'S':
			l.SYN = true
		case 'A':
			l.ACK = true
		case 'F':
			l.FIN = true
		case 'R':
			l.RST = true
		case 'P':
			l.PSH = true
		case 'U':
			l.URG = true
		}
	}
	for _, m := range mod {
		m(l)
	}
	_ = l.SetNetworkLayerForChecksum(e.network())
	return serialise(l, gopacket.Payload(data))
}

func (e Ends) UDP(sport, dport uint16, data string) []byte {
	l := &layers.UDP{SrcPort: layers.UDPPort(sport), DstPort: layers.UDPPort(dport)}
	_ = l.SetNetworkLayerForChecksum(e.network())
	return serialise(l, gopacket.Payload(data))
}

// ICMP is an ICMP or ICMPv6 message, by the family: type, code, four bytes, data.
func (e Ends) ICMP(typ, code uint8, rest uint32, data []byte) []byte {
	b := append([]byte{typ, code, 0, 0}, binary.BigEndian.AppendUint32(nil, rest)...)
	b = append(b, data...)
	sum := uint32(0)
	add := func(p []byte) {
		for i := 0; i < len(p); i += 2 {
			if i+1 < len(p) {
				sum += uint32(p[i])<<8 | uint32(p[i+1])
			} else {
				sum += uint32(p[i]) << 8
			}
		}
	}
	if e.Src.Is6() {
		add(e.Src.AsSlice())
		add(e.Dst.AsSlice())
		sum += uint32(len(b)) + 58
	}
	add(b)
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(b[2:], ^uint16(sum))
	return b
}

func (e Ends) ICMPProto() uint8 {
	if e.Src.Is4() {
		return 1
	}
	return 58
}

// Pieces cuts an IP packet's payload into fragments that begin at the given
// offsets (multiples of 8).
func (e Ends) Pieces(proto uint8, id uint32, segment []byte, cuts ...int) (out [][]byte) {
	cuts = append(cuts, len(segment))
	start := 0
	for _, end := range cuts {
		out = append(out, e.Piece(proto, id, segment[start:end], start, end < len(segment)))
		start = end
	}
	return out
}

func (e Ends) Piece(proto uint8, id uint32, data []byte, offset int, more bool) []byte {
	if e.Src.Is4() {
		return e.Packet(proto, data, func(l *layers.IPv4, _ *layers.IPv6) {
			l.Id, l.FragOffset = uint16(id), uint16(offset/8)
			if more {
				l.Flags = layers.IPv4MoreFragments
			}
		})
	}
	h := []byte{proto, 0, 0, 0, 0, 0, 0, 0}
	binary.BigEndian.PutUint16(h[2:], uint16(offset))
	if more {
		h[3] |= 1
	}
	binary.BigEndian.PutUint32(h[4:], id)
	return e.Packet(44, append(h, data...))
}
