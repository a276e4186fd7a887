package connectivity

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"net"
	"net/netip"
	"time"

	"github.com/tierwall/tierwall/dataplane/nstest/netlab"
)

// The part of SCTP that opens an association (RFC 9260 §5.1), one chunk per
// packet, big endian:
//
//	INIT ──► INIT ACK with a cookie ──► COOKIE ECHO ──► COOKIE ACK
const (
	protoSCTP = 132

	chunkInit       = 1
	chunkInitAck    = 2
	chunkAbort      = 6
	chunkCookieEcho = 10
	chunkCookieAck  = 11

	paramCookie = 7
)

var (
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
	cookie     = []byte("connectivity")
)

const (
	clientTag = 0x11223344
	serverTag = 0x55667788
)

// sctpPacket makes a packet of one chunk. tag is the verification tag: the one
// the receiver chose, 0 for INIT (§8.5).
func sctpPacket(src, dst uint16, tag uint32, typ byte, value []byte) []byte {
	b := binary.BigEndian.AppendUint16(nil, src)
	b = binary.BigEndian.AppendUint16(b, dst)
	b = binary.BigEndian.AppendUint32(b, tag)
	b = append(b, 0, 0, 0, 0, typ, 0)
	b = binary.BigEndian.AppendUint16(b, uint16(4+len(value)))
	b = append(b, value...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, castagnoli)) // appendix A
	return b
}

// initChunk is the value of INIT and INIT ACK: our tag, window, streams, TSN.
func initChunk(tag uint32, params ...byte) []byte {
	b := binary.BigEndian.AppendUint32(nil, tag)
	b = binary.BigEndian.AppendUint32(b, 1<<16)
	b = append(b, 0, 1, 0, 1)
	b = binary.BigEndian.AppendUint32(b, 1)
	return append(b, params...)
}

// parseSCTP returns the ports, the tag and the first chunk of a packet whose
// checksum is right.
func parseSCTP(b []byte) (src, dst uint16, tag uint32, typ byte, ok bool) {
	if len(b) < 16 {
		return 0, 0, 0, 0, false
	}
	sum := binary.LittleEndian.Uint32(b[8:])
	zero := append([]byte(nil), b...)
	clear(zero[8:12])
	if crc32.Checksum(zero, castagnoli) != sum {
		return 0, 0, 0, 0, false
	}
	return binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:]), binary.BigEndian.Uint32(b[4:]), b[12], true
}

// rawSocket opens a raw socket for a protocol, bound to an address.
func rawSocket(ns *netlab.NS, proto int, at netip.Addr) (c *net.IPConn, err error) {
	network := "ip4"
	if at.Is6() {
		network = "ip6"
	}
	err = ns.Do(func() (err error) {
		c, err = net.ListenIP(fmt.Sprintf("%s:%d", network, proto), &net.IPAddr{IP: at.AsSlice()})
		return err
	})
	return c, err
}

// serveSCTP accepts associations on every port of an address until the socket is
// closed.
func serveSCTP(c *net.IPConn) {
	// parameter type, length with its header, cookie
	param := append([]byte{0, paramCookie, 0, byte(4 + len(cookie))}, cookie...)
	buf := make([]byte, 2048)
	for {
		n, from, err := c.ReadFromIP(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // an ICMP error about an earlier answer
		}
		src, dst, tag, typ, ok := parseSCTP(buf[:n])
		switch {
		case !ok:
			continue
		case typ == chunkInit && tag == 0 && n >= 20:
			// What is lost on its way back is what the client looks for.
			_, _ = c.WriteToIP(sctpPacket(dst, src, binary.BigEndian.Uint32(buf[16:]), chunkInitAck, initChunk(serverTag, param...)), from)
		case typ == chunkCookieEcho && tag == serverTag:
			_, _ = c.WriteToIP(sctpPacket(dst, src, clientTag, chunkCookieAck, nil), from)
		}
	}
}

// dialSCTP opens an association and aborts it.
func dialSCTP(ns *netlab.NS, src, dst netip.AddrPort, timeout time.Duration) error {
	c, err := rawSocket(ns, protoSCTP, src.Addr())
	if err != nil {
		return fmt.Errorf("raw socket: %w", err)
	}
	defer c.Close()
	to := &net.IPAddr{IP: dst.Addr().AsSlice()}
	if err := c.SetDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	steps := []struct {
		tag    uint32
		typ    byte
		value  []byte
		answer byte
	}{
		{0, chunkInit, initChunk(clientTag), chunkInitAck},
		{serverTag, chunkCookieEcho, cookie, chunkCookieAck},
	}
	for _, s := range steps {
		if _, err := c.WriteToIP(sctpPacket(src.Port(), dst.Port(), s.tag, s.typ, s.value), to); err != nil {
			return err
		}
		if err := await(c, dst.Addr(), func(b []byte) bool {
			from, local, tag, typ, ok := parseSCTP(b)
			return ok && from == dst.Port() && local == src.Port() && tag == clientTag && typ == s.answer
		}); err != nil {
			return err
		}
	}
	_, err = c.WriteToIP(sctpPacket(src.Port(), dst.Port(), serverTag, chunkAbort, nil), to)
	return err
}

// await reads until a packet from an address is the one wanted.
func await(c *net.IPConn, from netip.Addr, wanted func([]byte) bool) error {
	buf := make([]byte, 2048)
	for {
		n, at, err := c.ReadFromIP(buf)
		if err != nil {
			return err
		}
		a, _ := netip.AddrFromSlice(at.IP)
		if a.Unmap() == from && wanted(buf[:n]) {
			return nil
		}
	}
}
