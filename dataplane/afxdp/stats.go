package afxdp

import "github.com/tierwall/tierwall/dataplane"

// kernelWays names the ways out of the programs on pods' devices and uplinks:
// enum counter has what each means. countStray to countUnheard are about frames
// on the upcall pair, which have been counted as upcalls before.
var kernelWays = []struct {
	counter uint32
	outcome dataplane.KernelOutcome
	reason  string
}{
	{countHit, dataplane.KernelPassed, "known_flow"},
	{countReturned, dataplane.KernelPassed, "returned"},
	{countExempt, dataplane.KernelPassed, "exempt"},
	{countForeign, dataplane.KernelPassed, "foreign"},
	{countUpcall, dataplane.KernelUpcall, "unknown_flow"},
	{countLater, dataplane.KernelDeferred, "known_flow"},
	{countUnparsed, dataplane.KernelDeferred, "unparsed"},
	{countAlonePass, dataplane.KernelDeferred, "no_daemon"},
	{countDrop, dataplane.KernelDropped, "unparsed"},
	{countDenied, dataplane.KernelDropped, "denied_flow"},
	{countLimited, dataplane.KernelDropped, "rate_limit"},
	{countAloneDrop, dataplane.KernelDropped, "no_daemon"},
	{countUnknown, dataplane.KernelDropped, "unknown_pod"},
	{countForged, dataplane.KernelDropped, "forged_source"},
}

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
	s := dataplane.BackendStats{
		Bypassed: b.count(countHit),
		Dropped: b.count(countDrop) + b.count(countStray) + b.count(countDenied) + b.count(countLimited) +
			b.count(countAloneDrop) + b.count(countUnknown) + b.count(countForged),
		Upcalls: b.count(countUpcall),
	}
	s.Kernel = make([]dataplane.KernelCount, len(kernelWays))
	for i, w := range kernelWays {
		s.Kernel[i] = dataplane.KernelCount{Outcome: w.outcome, Reason: w.reason, Packets: b.count(w.counter)}
	}
	if b.driver != nil {
		s.Overflow = b.driver.lostPackets() + b.pair.lost()
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
