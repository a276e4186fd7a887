package afxdp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/cilium/ebpf"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/dataplane"
)

// heir knows whom to ask about the flows of an earlier process. Those that the first
// table accepts are renewed, in place, before its generation begins: thousands of
// flows that come up at the same moment find no room in the ring, and lose packets.
//
// What is not renewed for any reason comes up once, as after every Update, so nothing
// depends on this being complete:
//
//   - denied flows, and those about which something is missing that only their packet
//     tells: whether the host opened it, or somebody with its address;
//   - flows whose entry appears or changes while we read;
//   - the rest, when inheritPatience is over.
type heir struct {
	judge   func(*dataplane.Inherited) bool // nil: nothing to inherit, or done
	objects *loaded
	epoch   *epoch
	idle    func(p flow.Proto, closing bool) time.Duration // when the kernel side forgets a flow
	strict  bool
	isHost  func(flow.Addr) bool
	log     *slog.Logger
}

// inheritPatience bounds how long the first table waits for the flows to be judged by
// it. Workers judge by it already, but what an earlier process accepted still passes.
// A full map of 131,072 flows takes a quarter of a second.
const inheritPatience = time.Second

// inherit returns what epoch.advance is to do first, nil for nothing. It comes once.
func (h *heir) inherit() func(g uint64) {
	judge := h.judge
	if h.judge = nil; judge == nil {
		return nil
	}
	return func(g uint64) {
		began := time.Now()
		i := inheritance{heir: h, judge: judge, now: coarseNow(), end: began.Add(inheritPatience)}
		err := i.walk(h.objects.Flows, g, false, i.accepted)
		// These open nothing, whatever the policy: somebody else judges.
		err = errors.Join(err, i.walk(h.objects.Later, g, true, func(*flowKey, *flowState) bool { return true }))
		if err != nil {
			h.log.Warn("flows of an earlier run are all judged again", "error", err)
		}
		if i.seen > 0 {
			h.log.Info("flows of an earlier run taken over", "flows", i.seen, "accepted", i.renewed, "took", time.Since(began))
		}
	}
}

// inheritance is one walk through what an earlier process left.
type inheritance struct {
	*heir
	judge         func(*dataplane.Inherited) bool
	now           uint64    // coarseNow
	end           time.Time // then it stops
	seen, renewed int       // entries in use, and of those that are good for the new generation
}

// inheritStep is how many entries are read at a time.
const inheritStep = 1024

// walk renews the entries of a map that accepted says yes to.
func (i *inheritance) walk(m *ebpf.Map, g uint64, later bool, accepted func(*flowKey, *flowState) bool) error {
	var cursor ebpf.MapBatchCursor
	keys, states := make([]flowKey, inheritStep), make([]flowState, inheritStep)
	list := newRenewals(g, later)
	for time.Now().Before(i.end) {
		n, err := m.BatchLookup(&cursor, keys, states, nil)
		last := errors.Is(err, ebpf.ErrKeyNotExist)
		if err != nil && !last {
			return fmt.Errorf("read the flows of an earlier run (Linux 5.6): %w", err)
		}
		for at := range keys[:n] {
			k, s := &keys[at], &states[at]
			if s.Generation >= g || i.expired(k, s) {
				continue
			}
			i.seen++
			if !accepted(k, s) {
				continue
			}
			if list.add(k, s); list.full() {
				if err := i.renew(list); err != nil {
					return err
				}
			}
		}
		if last {
			break
		}
	}
	return i.renew(list)
}

func (i *inheritance) renew(list *renewals) error {
	if list.empty() {
		return nil
	}
	n, err := i.objects.Renew.Run(&ebpf.RunOptions{Data: list.bytes})
	list.clear()
	if err != nil {
		return fmt.Errorf("renew flows of an earlier run: %w", err)
	}
	i.renewed += int(n)
	return nil
}

// expired is the kernel side's, in bpf/flows.h.
func (i *inheritance) expired(k *flowKey, s *flowState) bool {
	idle := i.idle(k.Proto, s.Flags&flowClosing != 0)
	return i.now > s.Last && i.now-s.Last > uint64(idle)
}

// accepted asks about a flow. The addresses it is about are known from now on: the
// next changes of policy are about it, too.
func (i *inheritance) accepted(k *flowKey, s *flowState) bool {
	c, ok := i.describe(k, s)
	if !ok || !i.judge(&c) {
		return false
	}
	cells := [2]uint16{i.epoch.add(&c.Key.Src), i.epoch.add(&c.Key.Dst)}
	// In the order of the packet that it was written for.
	if cells == s.Cell {
		return true
	}
	slices.Reverse(cells[:])
	return cells == s.Cell
}

// describe says which connection an entry is about, if the entry tells.
func (i *inheritance) describe(k *flowKey, s *flowState) (c dataplane.Inherited, ok bool) {
	c = dataplane.Inherited{
		Key: k.opened(s), Final: i.strict, Onward: i.objects.onward, Closing: s.Flags&flowClosing != 0,
		Idle: time.Duration(i.now - min(i.now, s.Last)),
	}
	if s.Flags&flowVeiled == 0 {
		// The kernel side takes an address of the host for what it is if the entry
		// says that it is one.
		host := i.isHost(c.Key.Src) || i.isHost(c.Key.Dst)
		return c, host == (s.Flags&flowHost != 0)
	}
	var o origin
	if i.objects.Origins.Lookup(k, &o) != nil || !o.names(&c.Key) {
		return c, false
	}
	c.Key = flow.Key{Src: o.Client, Dst: o.Backend, SrcPort: o.ClientPort, DstPort: o.BackendPort, Proto: o.Proto}
	c.Real, c.Final = true, true // no later hook's packets have real ends
	if o.Flags&originDNAT != 0 {
		c.Service = flow.Service{Addr: o.Service, Port: o.ServicePort}
	}
	return c, c.Key.Valid()
}

// maxRenewals is RENEWALS of bpf/renew.h.
const maxRenewals = 64

// renewals is what the program renew reads: struct renewals and what follows it.
type renewals struct{ bytes []byte }

// Sizes of struct renewals and struct renewal.
const renewalsHead, renewalSize = 16, 44

func newRenewals(g uint64, later bool) *renewals {
	l := &renewals{make([]byte, renewalsHead, renewalsHead+maxRenewals*renewalSize)}
	binary.LittleEndian.PutUint64(l.bytes, g)
	if later {
		l.bytes[8] = 1
	}
	return l
}

func (l *renewals) add(k *flowKey, s *flowState) {
	b := append(append(l.bytes, k.A[:]...), k.B[:]...)
	b = binary.LittleEndian.AppendUint16(b, k.APort)
	b = binary.LittleEndian.AppendUint16(b, k.BPort)
	b = append(b, byte(k.Proto), k.Back, 0, 0)
	l.bytes = binary.LittleEndian.AppendUint32(b, s.Flags&^flowClosing)
}

func (l *renewals) empty() bool { return len(l.bytes) == renewalsHead }
func (l *renewals) full() bool  { return len(l.bytes) == cap(l.bytes) }
func (l *renewals) clear()      { l.bytes = l.bytes[:renewalsHead] }
