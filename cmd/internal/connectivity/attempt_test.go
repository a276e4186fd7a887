package connectivity

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/dataplane/nstest"
	"github.com/tierwall/tierwall/dataplane/nstest/netlab"
	"github.com/tierwall/tierwall/policy/simulate"
)

// Ways to a server.
const (
	direct   = "direct"
	service  = "ClusterIP"
	byNode   = "node port"
	hairpin  = "hairpin" // a pod to its own Service
	fromNode = "node"    // the node to its own pod
)

// attempt is one connection to try and what became of it.
type attempt struct {
	way      string
	from, to *party
	key      flow.Key // as the policy sees it: the backend is the destination
	dial     netip.AddrPort
	want     simulate.Result
	hasty    bool // nobody waits for it: it is denied

	passed   bool
	tries    int
	mute     int // tries of which nothing left the source
	err      error
	arrived  int
	sources  []uint16 // of the tries
	tooEarly error    // an error that says nothing about policy
}

func (a *attempt) allowed() bool { return a.want.Verdict == classifier.Allow }

func (a *attempt) String() string {
	return fmt.Sprintf("%s > %s %s %s (%s > %s)", a.from.name, a.to.name, a.way, portText(a.key), a.key.Src.Netip(), a.dial)
}

func portText(k flow.Key) string {
	if k.Proto.HasPorts() {
		return fmt.Sprintf("%d/%s", k.DstPort, k.Proto)
	}
	return k.Proto.String()
}

// How long attempts wait. An allowed one that fails costs all of it, a denied one
// always does unless it is rejected.
const (
	patience = 5 * time.Second
	blocked  = 300 * time.Millisecond
	parallel = 96
	// What is expected to pass is tried again, and counted: a machine that is busy
	// with something else loses a datagram.
	tries = 3
	// A denied attempt that says nothing in its time proves nothing: it is made
	// again, so often.
	mostMute = 20
)

// attempts makes every attempt.
func (l *lab) attempts(all []*attempt) {
	l.outside.forget()
	for _, p := range l.pods {
		p.tap.forget()
	}
	var next atomic.Int64
	var wg sync.WaitGroup
	for range parallel {
		wg.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= len(all) {
					return
				}
				l.attempt(all[i])
			}
		})
	}
	wg.Wait()
	time.Sleep(20 * time.Millisecond) // what is on its way to a tap
	// What passed has arrived; a tap that has read it has read what came before.
	for deadline := time.Now().Add(nstest.Timeout); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if !slices.ContainsFunc(all, func(a *attempt) bool { return a.passed && a.arrivals() == 0 }) {
			break
		}
	}
	for _, a := range all {
		a.arrived = a.arrivals()
	}
}

// arrivals returns how many packets of all tries the tap at the destination saw.
func (a *attempt) arrivals() (n int) {
	for _, from := range a.sources {
		p := arrival{at: a.key.Dst.Netip(), proto: byte(a.key.Proto), from: from, port: a.key.DstPort}
		if !a.key.Proto.HasPorts() {
			p.port = 0
		}
		n += a.to.tap.saw(p)
	}
	return n
}

func (l *lab) attempt(a *attempt) {
	n, timeout := tries, patience
	if a.hasty {
		n, timeout = 1, blocked
	}
	for i := 0; i < n; i++ {
		a.tries++
		port := l.source()
		a.sources = append(a.sources, port)
		a.err = connect(a.from.ns, a.key.Proto, netip.AddrPortFrom(a.key.Src.Netip(), port), a.dial, timeout)
		if a.err == nil {
			a.passed = true
			return
		}
		if !refusal(a.err) {
			a.tooEarly = a.err
			return
		}
		if a.hasty && !a.spoke(port) {
			// The time was over before anything was said, or the source is still
			// looking for its neighbour: no filter has seen it.
			if a.mute++; a.mute < mostMute {
				n++
			}
		}
	}
}

// spoke reports whether something of a try left its source. The node has no tap:
// nothing denies what it sends.
func (a *attempt) spoke(port uint16) bool {
	return a.from.tap == nil || a.from.tap.sent(arrival{at: a.dial.Addr(), proto: byte(a.key.Proto), from: port, port: a.dial.Port()}) > 0
}

// connect makes one connection, with a whole exchange over it.
func connect(ns *netlab.NS, proto flow.Proto, src, dst netip.AddrPort, timeout time.Duration) error {
	switch proto {
	case flow.ICMP, flow.ICMPv6:
		return ping(ns, src.Addr(), dst.Addr(), src.Port(), timeout)
	case flow.SCTP:
		return dialSCTP(ns, src, dst, timeout)
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	c, err := ns.Dial(ctx, networkOf(byte(proto)), src, dst)
	if err != nil {
		return err
	}
	defer c.Close()
	if t, ok := c.(*net.TCPConn); ok {
		// A reset at the end: no port stays in TIME-WAIT.
		if err := t.SetLinger(0); err != nil {
			return err
		}
	}
	return netlab.Exchange(c, []byte("connectivity"), timeout)
}

// refusal reports whether an error is one that a packet filter can cause.
func refusal(err error) bool {
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) {
		return true
	}
	for _, e := range []unix.Errno{
		unix.ECONNREFUSED, unix.ECONNRESET, unix.EHOSTUNREACH, unix.ENETUNREACH, unix.EACCES, unix.EPERM, unix.ETIMEDOUT, unix.EPIPE, unix.ENOPROTOOPT,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// plan lists the connections to try: everybody to everybody on every port, in
// every protocol and family both have, directly and by the Services of the pods: by
// their addresses, and by node ports of this node.
func (l *lab) plan(s *sample, parties []*party) (all []*attempt) {
	node := &party{name: "node", slot: -1, ns: l.node.NS, v4: l.node.Gateway4.Addr(), v6: l.node.Gateway6.Addr()}
	add := func(way string, from, to *party, family int, dial netip.Addr, ports func(i int) uint16) {
		src, dst := from.addr(family), to.addr(family)
		for _, proto := range []flow.Proto{flow.TCP, flow.UDP, flow.SCTP} {
			for i, n := range s.ports {
				all = append(all, &attempt{
					way: way, from: from, to: to, dial: netip.AddrPortFrom(dial, ports(i)),
					key: flow.Key{Src: flow.AddrFrom(src), Dst: flow.AddrFrom(dst), SrcPort: firstSource, DstPort: n, Proto: proto},
				})
			}
		}
		if way != direct && way != fromNode {
			return // Services have no ICMP
		}
		k := flow.Key{Src: flow.AddrFrom(src), Dst: flow.AddrFrom(dst), Proto: flow.ICMP, DstPort: echoRequest4 << 8}
		if family == 6 {
			k.Proto, k.DstPort = flow.ICMPv6, echoRequest6<<8
		}
		all = append(all, &attempt{way: way, from: from, to: to, dial: netip.AddrPortFrom(dial, 0), key: k})
	}
	same := func(i int) uint16 { return s.ports[i] }
	for _, family := range []int{4, 6} {
		for _, to := range parties {
			if !to.addr(family).IsValid() {
				continue
			}
			for _, from := range parties {
				if !from.addr(family).IsValid() || from.slot < 0 && to.slot < 0 {
					continue
				}
				if from != to {
					add(direct, from, to, family, to.addr(family), same)
				}
				vip, own := to.service(family), l.node.Addr4
				if family == 6 {
					own = l.node.Addr6
				}
				switch {
				case !vip.IsValid():
				case from == to:
					add(hairpin, from, to, family, vip, same)
				case from.slot >= 0:
					add(service, from, to, family, vip, same)
				}
				if to.slot >= 0 && (from.slot >= 0 || from.name == "outside") {
					add(byNode, from, to, family, own, func(i int) uint16 { return uint16(nodePort(to.slot, i)) })
				}
			}
			if to.slot >= 0 {
				add(fromNode, node, to, family, to.addr(family), same)
			}
		}
	}
	return all
}
