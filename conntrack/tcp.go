package conntrack

// TCP flag bits (RFC 9293 §3.1). The package depends on package flow alone, so
// it has its own names for what the wire says.
const (
	fin = 0x01
	syn = 0x02
	rst = 0x04
	ack = 0x10
)

// isSYN reports whether the segment opens a connection.
func isSYN(flags uint8) bool { return flags&(syn|ack|rst|fin) == syn }

// startTCP is the state after the first segment seen. Anything but a handshake
// segment is a connection picked up in mid-stream.
func startTCP(flags uint8, reply bool) State {
	switch {
	case flags&rst != 0:
		return Closed
	case flags&syn != 0 && flags&ack == 0:
		return SynSent
	case flags&syn != 0:
		return SynRecv
	}
	return advanceTCP(Established, flags, reply)
}

// advanceTCP is the TCP machine: one segment, from the opener or (reply) from
// the other side. A SYN that opens a new connection does not come here, see
// IsNewConnection; any other is a retransmission and changes nothing.
func advanceTCP(s State, flags uint8, reply bool) State {
	if flags&rst != 0 {
		return Closed
	}
	if flags&syn != 0 {
		if s == SynSent && reply && flags&ack != 0 {
			return SynRecv
		}
		return s
	}
	if flags&fin != 0 {
		return advanceFIN(s, reply)
	}
	switch {
	case flags&ack == 0:
		return s // no segment of a synchronised connection lacks ACK (RFC 9293 §3.10.7.4)
	case s == SynSent && !reply:
		// The opener acknowledges, so the SYN-ACK took another way than through
		// here. An ACK from the replier alone can be a challenge to an old
		// duplicate (RFC 9293 §3.5.2) and proves nothing.
		return Established
	case s == SynRecv && !reply:
		return Established
	case s == Closing:
		return TimeWait
	}
	return s
}

// advanceFIN handles the segments that carry a FIN.
func advanceFIN(s State, reply bool) State {
	switch s {
	case SynSent, SynRecv, Established:
		if reply {
			return FinReplier
		}
		return FinOpener
	case FinOpener:
		if reply {
			return Closing
		}
	case FinReplier:
		if !reply {
			return Closing
		}
	}
	return s // a retransmission
}
