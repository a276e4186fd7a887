package flows

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
	"github.com/tierwall/tierwall/dataplane/afxdp/kern"
)

// Takeover asks the first table about the flows of an earlier process. Those that the first
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
type Takeover struct {
	Judge   func(*dataplane.Inherited) bool // nil: nothing to inherit, or done
	Objects *kern.Loaded
	Epoch   *Epoch
	Idle    func(p flow.Proto, closing bool) time.Duration // when the kernel side forgets a flow
	Strict  bool
	IsHost  func(flow.Addr) bool
	Log     *slog.Logger
}

// inheritPatience bounds how long the first table waits for the flows to be judged by
// it. Workers judge by it already, but what an earlier process accepted still passes.
// A full map of 131,072 flows takes a quarter of a second.
const inheritPatience = time.Second

// Renewal returns what epoch.advance is to do first, nil for nothing. It comes once.
func (h *Takeover) Renewal() func(g uint64) {
	judge := h.Judge
	if h.Judge = nil; judge == nil {
		return nil
	}
	return func(g uint64) {
		began := time.Now()
		i := inheritance{Takeover: h, judge: judge, now: kern.Now(), end: began.Add(inheritPatience)}
		err := i.walk(h.Objects.Flows, g, false, i.accepted)
		// These open nothing, whatever the policy: somebody else judges.
		err = errors.Join(err, i.walk(h.Objects.Later, g, true, func(*kern.FlowKey, *kern.FlowState) bool { return true }))
		if err != nil {
			h.Log.Warn("flows of an earlier run are all judged again", "error", err)
		}
		if i.seen > 0 {
			h.Log.Info("flows of an earlier run taken over", "flows", i.seen, "accepted", i.renewed, "took", time.Since(began))
		}
	}
}

// inheritance is one walk through what an earlier process left.
type inheritance struct {
	*Takeover
	judge         func(*dataplane.Inherited) bool
	now           uint64    // coarseNow
	end           time.Time // then it stops
	seen, renewed int       // entries in use, and of those that are good for the new generation
}

// inheritStep is how many entries are read at a time.
const inheritStep = 1024

// walk renews the entries of a map that accepted says yes to.
func (i *inheritance) walk(m *ebpf.Map, g uint64, later bool, accepted func(*kern.FlowKey, *kern.FlowState) bool) error {
	var cursor ebpf.MapBatchCursor
	keys, states := make([]kern.FlowKey, inheritStep), make([]kern.FlowState, inheritStep)
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
	n, err := i.Objects.Renew.Run(&ebpf.RunOptions{Data: list.bytes})
	list.clear()
	if err != nil {
		return fmt.Errorf("renew flows of an earlier run: %w", err)
	}
	i.renewed += int(n)
	return nil
}

// expired is the kernel side's, in bpf/flows.h.
func (i *inheritance) expired(k *kern.FlowKey, s *kern.FlowState) bool {
	idle := i.Idle(k.Proto, s.Flags&kern.FlowClosing != 0)
	return i.now > s.Last && i.now-s.Last > uint64(idle)
}

// accepted asks about a flow. The addresses it is about are known from now on: the
// next changes of policy are about it, too.
func (i *inheritance) accepted(k *kern.FlowKey, s *kern.FlowState) bool {
	c, ok := i.describe(k, s)
	if !ok || !i.judge(&c) {
		return false
	}
	cells := [2]uint16{i.Epoch.Add(&c.Key.Src), i.Epoch.Add(&c.Key.Dst)}
	// In the order of the packet that it was written for.
	if cells == s.Cell {
		return true
	}
	slices.Reverse(cells[:])
	return cells == s.Cell
}

// describe says which connection an entry is about, if the entry tells.
func (i *inheritance) describe(k *kern.FlowKey, s *kern.FlowState) (c dataplane.Inherited, ok bool) {
	c = dataplane.Inherited{
		Key: k.Opened(s), Final: i.Strict, Onward: i.Objects.Onward, Closing: s.Flags&kern.FlowClosing != 0,
		Idle: time.Duration(i.now - min(i.now, s.Last)),
	}
	if s.Flags&kern.FlowTranslated == 0 {
		// The kernel side takes an address of the host for what it is if the entry
		// says that it is one.
		host := i.IsHost(c.Key.Src) || i.IsHost(c.Key.Dst)
		return c, host == (s.Flags&kern.FlowHost != 0)
	}
	var o kern.Origin
	if i.Objects.Origins.Lookup(k, &o) != nil || !o.Names(&c.Key) {
		return c, false
	}
	c.Key = flow.Key{Src: o.Client, Dst: o.Backend, SrcPort: o.ClientPort, DstPort: o.BackendPort, Proto: o.Proto}
	c.Real, c.Final = true, true // no later hook's packets have real ends
	if o.Flags&kern.OriginDNAT != 0 {
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

func (l *renewals) add(k *kern.FlowKey, s *kern.FlowState) {
	b := append(append(l.bytes, k.A[:]...), k.B[:]...)
	b = binary.LittleEndian.AppendUint16(b, k.APort)
	b = binary.LittleEndian.AppendUint16(b, k.BPort)
	b = append(b, byte(k.Proto), k.Back, 0, 0)
	l.bytes = binary.LittleEndian.AppendUint32(b, s.Flags&^kern.FlowClosing)
}

func (l *renewals) empty() bool { return len(l.bytes) == renewalsHead }
func (l *renewals) full() bool  { return len(l.bytes) == cap(l.bytes) }
func (l *renewals) clear()      { l.bytes = l.bytes[:renewalsHead] }
