package kern

import "github.com/tierwall/tierwall/classifier/flow"

// Origin is struct origin of bpf/tierwall.h: the connection of a packet whose own
// addresses do not say whom it is about. bpf/nat.h has the picture.
type Origin struct {
	Client, Service, Backend             flow.Addr
	ClientPort, ServicePort, BackendPort uint16
	Proto                                flow.Proto
	Flags                                uint8
}

// OriginLen is the size of an origin in a frame.
const OriginLen = 56

// Bits of origin.Flags.
const (
	OriginNAT     = 1 << iota // the fields before are filled in
	OriginDNAT                // Service and Backend differ
	OriginReply               // the packet travels from the backend to the client
	OriginHost                // this host sent it
	OriginMasked              // it did not, although the source address says so
	originNew                 // no answer has been seen
	OriginRelated             // the packet is an error about it
)

// Real is the connection between client and backend, in the packet's direction.
func (o *Origin) Real() flow.Key {
	k := flow.Key{Src: o.Client, Dst: o.Backend, SrcPort: o.ClientPort, DstPort: o.BackendPort, Proto: o.Proto}
	if o.Flags&OriginReply != 0 {
		return k.Reverse()
	}
	return k
}

// Opened is the name of the connection as its client opened it.
func (o *Origin) Opened() flow.Key {
	return flow.Key{Src: o.Client, Dst: o.Service, SrcPort: o.ClientPort, DstPort: o.ServicePort, Proto: o.Proto}
}

// Names reports whether k, in the direction the connection was opened in, is one of
// o's two names in that direction: to the Service, or behind translation to the
// backend. Where worker and conntrack disagree about who opened it, it is not.
func (o *Origin) Names(k *flow.Key) bool {
	return k.Proto == o.Proto && (*k == o.Opened() || k.Dst == o.Backend && k.DstPort == o.BackendPort)
}
