package attach

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	genl "github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// peers asks for the addresses at the other end of veth pairs, inside the pods'
// namespaces: the only word on which port of a bridge has which pod that a pod
// cannot forge. (Neighbour and forwarding tables are learned from packets; to
// change the addresses of its device a pod needs CAP_NET_ADMIN.)
type peers struct{ conn *genl.Conn }

// newPeers must run in the node's namespace.
func newPeers() (*peers, error) {
	// Strict, or the kernel ignores the namespace and answers for ours.
	conn, err := genl.Dial(unix.NETLINK_ROUTE, &genl.Config{Strict: true})
	if err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	return &peers{conn}, nil
}

// addresses returns what device index in the namespace that ours calls nsid has
// (IFA_TARGET_NETNSID, Linux 4.20; needs CAP_NET_ADMIN over that namespace).
func (p *peers) addresses(nsid, index int) (found []netip.Addr, err error) {
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		attrs := genl.NewAttributeEncoder()
		attrs.Int32(unix.IFA_TARGET_NETNSID, int32(nsid))
		tail, err := attrs.Encode()
		if err != nil {
			return nil, err
		}
		// struct ifaddrmsg: family, prefix length, flags, scope, index.
		head := binary.NativeEndian.AppendUint32([]byte{family, 0, 0, 0}, uint32(index))
		answers, err := p.conn.Execute(genl.Message{
			Header: genl.Header{Type: unix.RTM_GETADDR, Flags: genl.Request | genl.Dump},
			Data:   append(head, tail...),
		})
		if err != nil {
			return nil, fmt.Errorf("read the addresses of device %d in namespace %d: %w", index, nsid, err)
		}
		for _, m := range answers {
			if len(m.Data) < unix.SizeofIfAddrmsg || int(binary.NativeEndian.Uint32(m.Data[4:])) != index {
				continue
			}
			d, err := genl.NewAttributeDecoder(m.Data[unix.SizeofIfAddrmsg:])
			if err != nil {
				return nil, err
			}
			for d.Next() {
				if d.Type() == unix.IFA_ADDRESS {
					if a, ok := netip.AddrFromSlice(d.Bytes()); ok {
						found = append(found, a.Unmap())
					}
				}
			}
			if err := d.Err(); err != nil {
				return nil, err
			}
		}
	}
	return found, nil
}

func (p *peers) close() error { return p.conn.Close() }
