package afxdp

import (
	"errors"
	"fmt"

	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/afxdp/kern"
	"github.com/tierwall/tierwall/dataplane/afxdp/upcall"
	"github.com/tierwall/tierwall/dataplane/afxdp/xsk"
)

var errNotHeld = errors.New("afxdp: an answer to a packet that is not there")

// Reject implements dataplane.Driver. The answer takes the buffer of the packet
// it answers, which is dropped, and leaves with the batch through the upcall pair:
// what came from the pod is answered towards it, what was on its way there is
// answered as if the pod had. Which stations these are the kernel side knows; to
// ask it costs a system call, at the rate the engine allows.
func (d *driver) Reject(p *dataplane.Packet, answer []byte) error {
	if p.ID >= uint32(d.n) || len(answer) < upcall.MetaEnd {
		return errNotHeld
	}
	m := &d.meta[p.ID]
	var dev kern.DeviceState
	if err := d.devices.Lookup(uint32(m.Ifindex), &dev); err != nil {
		return fmt.Errorf("answer on device %d: %w", m.Ifindex, err)
	}
	// Every buffer holds MaxAnswer bytes behind its headroom: see Config.FrameSize.
	desc := xsk.Desc{Addr: d.held[p.ID].Addr, Len: uint32(len(answer))}
	frame := d.sock.XSK.Frame(desc)
	copy(frame, answer)
	upcall.AnswerMeta(frame, m, &dev, d.nonce)
	d.held[p.ID] = desc
	d.answered |= 1 << p.ID
	return nil
}
