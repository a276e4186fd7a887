package afxdp

import (
	"maps"

	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/afxdp/kern"
)

// dropKey is struct drop of bpf/state.h.
type dropKey struct{ Ifindex, Which uint32 }

// drops counts packets by sender and reason.
type drops map[dropKey]uint64

// dropFates are the fates of what the kernel side counts by sender.
var dropFates = map[uint32]dataplane.Fate{
	kern.CountForged: dataplane.DropForged, kern.CountUnknown: dataplane.DropUnknownPod, kern.CountDrop: dataplane.DropUnparsed,
	kern.CountLimited: dataplane.DropLimited, kern.CountAloneDrop: dataplane.DropUnheard,
}

// readDrops reads all counts.
func (b *Backend) readDrops() drops {
	now := drops{}
	var k dropKey
	var n uint64
	for it := b.objects.Drops.Iterate(); it.Next(&k, &n); {
		now[k] = n
	}
	return now
}

// Drops implements dataplane.Backend.
func (b *Backend) Drops(report func(dataplane.Drop)) {
	_ = b.thread.do(func() error { // an error: it is closed
		if b.closed {
			return nil
		}
		now := b.readDrops()
		if maps.Equal(now, b.reported) {
			return nil
		}
		pods := b.devices.PodBehind()
		for k, n := range now {
			if n > b.reported[k] {
				report(dataplane.Drop{Fate: dropFates[k.Which], Device: int32(k.Ifindex), Pod: pods[k.Ifindex], Packets: n - b.reported[k]})
			}
		}
		b.reported = now
		return nil
	})
}
