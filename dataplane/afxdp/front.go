package afxdp

import (
	"fmt"
	"math/bits"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// The front cache (bpf/front.h) has up to frontSlots slots of frontSlotSize bytes
// per CPU, which is 256 kB, and fewer on machines with so many CPUs that it would
// grow beyond frontMemory. A CPU that has more flows at a time than half of its
// slots (a flow whose both directions it sees counts twice) looks some of them up
// in the flow map, packet by packet.
const (
	frontSlots    = 4096
	frontSlotSize = 64
	frontMemory   = 16 << 20
)

// maxFrontTime bounds how long a CPU passes packets of a flow before it looks it
// up again. Changes of policy do not wait for it.
const maxFrontTime = 500 * time.Millisecond

// frontTime is that time under this configuration. A flow's idle time must not
// pass unnoticed: the time of its last packet is noted when it is looked up.
func (c *Config) frontTime() time.Duration {
	t := c.Timeouts
	return min(maxFrontTime, min(t.TCP, t.Closing, t.UDP, t.SCTP, t.ICMP, t.Other)/4)
}

// sizeFront prepares the front cache in programs that are about to be loaded.
func (c *Config) sizeFront(spec *ebpf.CollectionSpec) error {
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return fmt.Errorf("count the CPUs: %w", err)
	}
	tick, err := coarseResolution()
	if err != nil {
		return err
	}
	slots := slotsPerCPU(cpus)
	spec.Maps["front"].MaxEntries = slots * uint32(cpus)
	if c.Accelerate {
		spec.Maps["ways"].MaxEntries = slots * uint32(cpus)
	}
	liberal, _ := liberalTCP()
	for name, v := range map[string]any{
		"front_mask":  slots - 1,
		"front_time":  uint64(c.frontTime()),
		"front_ticks": uint64(c.frontTime() / tick),
		"accelerate":  c.Accelerate,
		"tcp_liberal": liberal,
		"way_ticks":   uint64(wayTime / tick),
	} {
		if err := spec.Variables[name].Set(v); err != nil {
			return fmt.Errorf("set %s in the programs: %w", name, err)
		}
	}
	return nil
}

// slotsPerCPU is a power of two.
func slotsPerCPU(cpus int) uint32 {
	most := max(1, frontMemory/frontSlotSize/cpus)
	return min(frontSlots, uint32(1)<<(bits.Len(uint(most))-1))
}

// coarseResolution is the time between two ticks of the coarse clock, which are
// those of the kernel's jiffies.
func coarseResolution() (time.Duration, error) {
	var tick unix.Timespec
	if err := unix.ClockGetres(unix.CLOCK_MONOTONIC_COARSE, &tick); err != nil {
		return 0, fmt.Errorf("ask for the length of a tick: %w", err)
	}
	return max(1, time.Duration(tick.Nano())), nil
}
