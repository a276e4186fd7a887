package attach

import (
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/dataplane/afxdp/kern"
)

// guard is what the programs know about devices and addresses (bpf/guard.h).
// Namespace thread only.
type guard struct {
	guards *mirror[uint32, kern.GuardState]
	pods   *mirror[flow.Addr, kern.LocalPod]
	ranges *mirror[kern.PrefixKey, uint8]
	ports  *mirror[uint32, uint32]
	nodes  *mirror[flow.Addr, uint8] // the node's own addresses; nil with AttachXDPGeneric
}

// newGuard takes over what is in the maps.
func newGuard(o *kern.Objects) (g guard, err error) {
	if g.guards, err = newMirror[uint32, kern.GuardState](o.Guards); err != nil {
		return g, err
	}
	if g.pods, err = newMirror[flow.Addr, kern.LocalPod](o.LocalPods); err != nil {
		return g, err
	}
	if g.ranges, err = newMirror[kern.PrefixKey, uint8](o.PodCidrs); err != nil {
		return g, err
	}
	if g.ports, err = newMirror[uint32, uint32](o.BridgePorts); err != nil {
		return g, err
	}
	if o.NodeAddresses != nil {
		g.nodes, err = newMirror[flow.Addr, uint8](o.NodeAddresses)
	}
	return g, err
}

// tookChanges reports whether what the guard knows has changed since the last
// call. Then the caller must start a generation: the front cache holds flows whose
// packets the guard let in before.
func (g *guard) tookChanges() bool {
	changed := g.guards.changed || g.pods.changed || g.ranges.changed
	g.guards.changed, g.pods.changed, g.ranges.changed = false, false, false
	return changed
}

// podDevices are those that the guard has as pods'.
func (g *guard) podDevices() map[int]bool {
	pods := map[int]bool{}
	for index, s := range g.guards.known {
		if s.Flags&kern.GuardPod != 0 {
			pods[int(index)] = true
		}
	}
	return pods
}

// podBehind returns the pod with the least address of each device.
func (g *guard) podBehind() map[uint32]flow.Addr {
	pods := map[uint32]flow.Addr{}
	for a, p := range g.pods.known {
		if old, ok := pods[p.Ifindex]; p.Ifindex != 0 && (!ok || string(a[:]) < string(old[:])) {
			pods[p.Ifindex] = a
		}
	}
	return pods
}
