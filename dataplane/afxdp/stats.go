package afxdp

import (
	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/afxdp/kern"
)

// Stats implements dataplane.Backend.
func (b *Backend) Stats() dataplane.BackendStats {
	var s dataplane.BackendStats
	err := b.thread.do(func() error {
		if s = b.final; !b.closed {
			s = b.stats()
		}
		return nil
	})
	if err != nil { // the thread ended with Close, which set final before
		return b.final
	}
	return s
}

func (b *Backend) stats() dataplane.BackendStats {
	s := dataplane.BackendStats{Restored: b.devices.Restored}
	alone := dataplane.PassUnheard
	if !b.config.Strict {
		alone = dataplane.LeaveUnheard
	}
	for which, fate := range map[uint32]dataplane.Fate{
		kern.CountHit: dataplane.PassAccepted, kern.CountAcross: dataplane.PassAccelerated, kern.CountUpcall: dataplane.FateUpcall, kern.CountLater: dataplane.LeaveLater,
		kern.CountUnparsed: dataplane.LeaveUnparsed, kern.CountDrop: dataplane.DropUnparsed, kern.CountExempt: dataplane.PassExempt,
		kern.CountDenied: dataplane.DropDenied, kern.CountLimited: dataplane.DropLimited, kern.CountAloneDrop: dataplane.DropUnheard,
		kern.CountAlonePass: alone, kern.CountUnknown: dataplane.DropUnknownPod, kern.CountForged: dataplane.DropForged,
		kern.CountForeign: dataplane.PassForeign, kern.CountStray: dataplane.DropStray, kern.CountHeld: dataplane.DropHeld,
	} {
		n := b.count(which)
		s.Fates[fate] = n
		if fate.Disposition() == "drop" {
			s.Dropped += n
		}
	}
	s.Accelerated, s.Upcalls = s.Fates[dataplane.PassAccelerated], s.Fates[dataplane.FateUpcall]
	s.Bypassed = s.Fates[dataplane.PassAccepted] + s.Accelerated
	if b.pair != nil {
		s.Overflow = b.pair.Lost()
	}
	for _, d := range b.drivers {
		s.Overflow += d.lostPackets()
	}
	return s
}

// count sums a counter over the CPUs, since New.
func (b *Backend) count(which uint32) (total uint64) {
	var perCPU []uint64
	if err := b.objects.Counters.Lookup(which, &perCPU); err != nil {
		return 0
	}
	for _, n := range perCPU {
		total += n
	}
	return total - b.base[which]
}
