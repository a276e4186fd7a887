package connectivity

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/tierwall/tierwall/dataplane/nstest/netlab"
)

const (
	protoICMP   = 1
	protoICMPv6 = 58

	echoRequest4, echoReply4 = 8, 0     // RFC 792
	echoRequest6, echoReply6 = 128, 129 // RFC 4443 §4
)

// ping sends one echo request with an identifier and waits for the reply.
func ping(ns *netlab.NS, src, dst netip.Addr, id uint16, timeout time.Duration) error {
	proto, request, reply := protoICMP, byte(echoRequest4), byte(echoReply4)
	if dst.Is6() {
		proto, request, reply = protoICMPv6, echoRequest6, echoReply6
	}
	c, err := rawSocket(ns, proto, src)
	if err != nil {
		return fmt.Errorf("raw socket: %w", err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	b := []byte{request, 0, 0, 0}
	b = binary.BigEndian.AppendUint16(b, id)
	b = append(b, 0, 1, 't', 'i', 'e', 'r')
	if dst.Is4() { // the kernel fills in that of ICMPv6
		binary.BigEndian.PutUint16(b[2:], checksum(b))
	}
	if _, err := c.WriteToIP(b, &net.IPAddr{IP: dst.AsSlice()}); err != nil {
		return err
	}
	return await(c, dst, func(b []byte) bool {
		return len(b) >= 8 && b[0] == reply && binary.BigEndian.Uint16(b[4:]) == id
	})
}

// checksum is the Internet checksum (RFC 1071) of an even number of bytes.
func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}
