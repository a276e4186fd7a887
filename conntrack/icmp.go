package conntrack

import (
	"bytes"

	"github.com/tierwall/tierwall/classifier/flow"
)

// isEchoRequest reports whether an ICMP or ICMPv6 key is an echo request's.
func isEchoRequest(k flow.Key) bool {
	if k.Proto == flow.ICMP {
		return k.DstPort>>8 == flow.ICMPEchoRequest
	}
	return k.Proto == flow.ICMPv6 && k.DstPort>>8 == flow.ICMPv6EchoRequest
}

// isOneWay reports whether no packet can be a reply to one with key k. If a
// message that is its own reverse could answer itself, permission for one side to
// send it would be permission for both.
func isOneWay(k flow.Key) bool {
	switch k.Proto {
	case flow.ICMP, flow.ICMPv6:
		return flow.ReverseICMP(k.Proto, k.DstPort) == k.DstPort
	case flow.IGMP:
		return true
	}
	return false
}

// canonical returns the one key under which both directions of a connection are
// filed: the lesser of k and its reverse.
func canonical(k flow.Key) flow.Key {
	if isOneWay(k) {
		return k
	}
	c := bytes.Compare(k.Src[:], k.Dst[:])
	if c < 0 {
		return k
	}
	r := k.Reverse()
	if c > 0 {
		return r
	}
	// A host talking to itself: the ports tell the directions apart.
	if k.SrcPort < r.SrcPort || k.SrcPort == r.SrcPort && k.DstPort <= r.DstPort {
		return k
	}
	return r
}
