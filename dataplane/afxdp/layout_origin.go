package afxdp

import "github.com/tierwall/tierwall/classifier/flow"

// origin is struct origin of bpf/tierwall.h: the connection of a packet whose own
// addresses do not say whom it is about. bpf/nat.h has the picture.
type origin struct {
	Client, Service, Backend             flow.Addr
	ClientPort, ServicePort, BackendPort uint16
	Proto                                flow.Proto
	Flags                                uint8
}

// originLen is the size of an origin in a frame.
const originLen = 56

// Bits of origin.Flags.
const (
	originNAT     = 1 << iota // the fields before are filled in
	originDNAT                // Service and Backend differ
	originReply               // the packet travels from the backend to the client
	originHost                // this host sent it
	originMasked              // it did not, although the source address says so
	originNew                 // no answer has been seen
	originRelated             // the packet is an error about it
)

// real is the connection between client and backend, in the packet's direction.
func (o *origin) real() flow.Key {
	k := flow.Key{Src: o.Client, Dst: o.Backend, SrcPort: o.ClientPort, DstPort: o.BackendPort, Proto: o.Proto}
	if o.Flags&originReply != 0 {
		return k.Reverse()
	}
	return k
}

// opened is the name of the connection as its client opened it.
func (o *origin) opened() flow.Key {
	return flow.Key{Src: o.Client, Dst: o.Service, SrcPort: o.ClientPort, DstPort: o.ServicePort, Proto: o.Proto}
}

// names reports whether k, in the direction the connection was opened in, is one of
// o's two names in that direction: to the Service, or behind translation to the
// backend. Where worker and conntrack disagree about who opened it, it is not.
func (o *origin) names(k *flow.Key) bool {
	return k.Proto == o.Proto && (*k == o.opened() || k.Dst == o.Backend && k.DstPort == o.BackendPort)
}
