package afxdp

import "github.com/tierwall/tierwall/dataplane"

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
	s := dataplane.BackendStats{Restored: b.devices.restored}
	alone := dataplane.PassUnheard
	if !b.config.Strict {
		alone = dataplane.LeaveUnheard
	}
	for which, fate := range map[uint32]dataplane.Fate{
		countHit: dataplane.PassAccepted, countAcross: dataplane.PassAccelerated, countUpcall: dataplane.FateUpcall, countLater: dataplane.LeaveLater,
		countUnparsed: dataplane.LeaveUnparsed, countDrop: dataplane.DropUnparsed, countExempt: dataplane.PassExempt,
		countDenied: dataplane.DropDenied, countLimited: dataplane.DropLimited, countAloneDrop: dataplane.DropUnheard,
		countAlonePass: alone, countUnknown: dataplane.DropUnknownPod, countForged: dataplane.DropForged,
		countForeign: dataplane.PassForeign, countStray: dataplane.DropStray, countHeld: dataplane.DropHeld,
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
		s.Overflow = b.pair.lost()
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
