package upcall

import (
	"encoding/binary"

	"github.com/tierwall/tierwall/dataplane/afxdp/kern"
)

// Bits of the first byte of a frame's source MAC address on the upcall pair.
// Byte 1 is the nonce, bytes 2 to 5 are the ifindex in network byte order, with
// metaOrigin.
const (
	metaBase   = 0x82
	metaFixed  = 0x83
	metaEgress = 0x04
	metaReply  = 0x08
	metaFast   = 0x08 // on the way back
	metaAccept = 0x10
	metaCut    = 0x20
	metaFinal  = 0x40

	metaOrigin = 1 << 31
)

// Where the metadata is in a frame: its source MAC address.
const metaOffset, MetaEnd = 6, 12

// Meta is what a captured frame says about itself.
type Meta struct {
	Ifindex int32
	Egress  bool // captured on its way to the pod, not from it
	Reply   bool
	Final   bool // no later hook will see it
	Cut     bool // only the first bytes: for judging, not for sending on
	Origin  bool // a struct origin precedes the IP header
}

// ReadMeta decodes the metadata of a frame of the upcall pair. ok is false for a
// frame our programs did not send.
func ReadMeta(frame []byte, nonce uint8) (m Meta, ok bool) {
	if len(frame) < MetaEnd || frame[metaOffset]&metaFixed != metaBase || frame[metaOffset+1] != nonce {
		return Meta{}, false
	}
	word := binary.BigEndian.Uint32(frame[metaOffset+2 : MetaEnd])
	m.Ifindex, m.Origin = int32(word&^metaOrigin), word&metaOrigin != 0
	m.Egress = frame[metaOffset]&metaEgress != 0
	m.Reply = frame[metaOffset]&metaReply != 0
	m.Cut = frame[metaOffset]&metaCut != 0
	m.Final = m.Egress || frame[metaOffset]&metaFinal != 0
	return m, m.Ifindex > 0
}

// TrueLength is the length of the packet a cut frame begins with, by its IP
// header, with the Ethernet header; 0 if it does not say.
func TrueLength(frame []byte) uint32 {
	const ipv4Length, ipv6Length, ipv6Header = 16, 18, 40
	if len(frame) < kern.EtherHeader+ipv6Header {
		return 0
	}
	switch binary.BigEndian.Uint16(frame[12:]) {
	case 0x0800:
		return kern.EtherHeader + uint32(binary.BigEndian.Uint16(frame[ipv4Length:]))
	case 0x86dd:
		return kern.EtherHeader + ipv6Header + uint32(binary.BigEndian.Uint16(frame[ipv6Length:]))
	}
	return 0
}

// SetMarks writes the marks that a frame gets into it before it goes back, whatever
// it arrived with: both on what is accepted, the fast one alone on what the program
// where it leaves is to judge.
func SetMarks(frame []byte, accept, fast bool) {
	frame[metaOffset] &^= metaAccept | metaFast
	if accept {
		frame[metaOffset] |= metaAccept
	}
	if fast {
		frame[metaOffset] |= metaFast
	}
}

// AnswerMeta addresses an answer to a packet with metadata m: the destination is
// whoever sent the packet, and the kernel side puts the source in.
func AnswerMeta(frame []byte, m *Meta, dev *kern.DeviceState, nonce uint8) {
	flags, to := uint8(metaBase|metaAccept), &dev.Own
	if !m.Egress {
		flags, to = flags|metaEgress, &dev.Peer
	}
	copy(frame[:metaOffset], to[:])
	frame[metaOffset], frame[metaOffset+1] = flags, nonce
	binary.BigEndian.PutUint32(frame[metaOffset+2:MetaEnd], uint32(m.Ifindex))
}
