package afxdp

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/nfqueue"
	"github.com/tierwall/tierwall/dataplane/nstest"
	"github.com/tierwall/tierwall/dataplane/nstest/netlab"
)

// flipFor is how long policy changes.
const flipFor = 1200 * time.Millisecond

// flipTable is a policy by which pod b takes UDP at openPort if open, and nothing else.
func flipTable(c *classifier.Compiler, gen uint64, open bool, pods map[string]*netlab.Pod) (*classifier.Table, *classifier.Report, error) {
	world := &rule.World{Node: "n"}
	for name, p := range pods {
		world.Endpoints = append(world.Endpoints, rule.Endpoint{
			Namespace: "x", Name: name, Node: "n", Labels: map[string]string{"pod": name}, Addrs: []netip.Addr{p.Addr4, p.Addr6},
		})
	}
	subject := rule.Selector{Namespace: "x", PodLabels: rule.Labels{{Key: "pod", Op: rule.In, Values: []string{"b"}}}}
	origin := rule.Origin{Group: "networking.k8s.io", Kind: "NetworkPolicy", Namespace: "x", Name: "b", Index: -1}
	set := rule.Set{Isolations: []rule.Isolation{{Direction: flow.Ingress, Band: rule.BandNetworkPolicy, Subject: subject, Origin: origin}}}
	if open {
		allow := origin
		allow.Index = 0
		set.Rules = []rule.Rule{{
			Direction: flow.Ingress, Order: rule.Order{Band: rule.BandNetworkPolicy}, Subject: subject,
			Peers: []rule.Peer{{Kind: rule.PeerAny}}, Action: rule.Allow, Origin: allow,
			L4: []rule.L4{{Proto: flow.UDP, Ports: rule.PortRange{First: openPort, Last: openPort}, SrcPorts: rule.AllPorts}},
		}}
	}
	return c.Compile(set, world, classifier.Options{Generation: gen})
}

// hookRuns reports whether this kernel has what the later hook needs.
func hookRuns() error {
	ns, err := netlab.New("probe")
	if err != nil {
		return err
	}
	defer ns.Close()
	return ns.Do(func() error {
		b, err := nfqueue.New(nfqueue.Config{Queues: 1})
		if err != nil {
			return err
		}
		return b.Close()
	})
}

// What is sent after a change that denies it is in force does not arrive, whatever
// queue it comes up on: with the engine's own workers, in short turns, while some
// connections go on in the kernel and others begin. And every packet is accounted for.
func TestPolicyFlips(t *testing.T) {
	nstest.TwoProcessors(t)
	nstest.Need(t, canRun)
	for _, c := range []struct {
		name       string
		fast, hook bool
	}{{"alone", true, false}, {"before the hook", true, true}, {"the hook alone", false, true}} {
		t.Run(c.name, func(t *testing.T) { flips(t, c.fast, c.hook) })
	}
}

func flips(t *testing.T, fast, hook bool) {
	if hook {
		nstest.Need(t, hookRuns)
	}
	node := nstest.NewNode(t)
	a, b := node.AddPod(t, "a"), node.AddPod(t, "b")
	var backends []dataplane.Backend
	open := func(err error, b dataplane.Backend) error {
		if err == nil {
			backends = append(backends, b)
		}
		return err
	}
	if err := node.NS.Do(func() error {
		if hook {
			q, err := nfqueue.New(nfqueue.Config{Queues: 2, FastMark: DefaultMarks.Fast})
			if open(err, q) != nil {
				return err
			}
		}
		if fast {
			x, err := New(Config{Strict: !hook, Queues: 2, FlowEntries: 4096, LaterEntries: 4096, UpcallRate: -1})
			if open(err, x) != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	slices.Reverse(backends)
	defer func() {
		for _, b := range backends {
			if err := b.Close(); err != nil {
				t.Error(err)
			}
		}
	}()
	e := dataplane.New(dataplane.Config{Backends: backends})
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan error, 1)
	go func() { over <- e.Run(ctx) }()

	var server net.PacketConn
	if err := b.NS.Do(func() (err error) {
		server, err = net.ListenPacket("udp", netip.AddrPortFrom(b.Addr4, openPort).String())
		return err
	}); err != nil {
		t.Fatal(err)
	}
	var turn atomic.Uint64          // odd: denied
	var arrived, late atomic.Uint64 // late: sent and arrived in the same turn, which denies
	go func() {
		buf := make([]byte, 64)
		for {
			n, from, err := server.ReadFrom(buf)
			if err != nil {
				return
			}
			if n == 8 {
				arrived.Add(1)
				if sent := binary.LittleEndian.Uint64(buf); sent&1 == 1 && sent == turn.Load() {
					late.Add(1)
				}
				server.WriteTo(buf[:8], from)
			}
		}
	}()
	defer server.Close()
	pods := map[string]*netlab.Pod{"a": a, "b": b}
	gen := uint64(0)
	var compiler classifier.Compiler
	publish := func(open bool) {
		gen++
		table, report, err := flipTable(&compiler, gen, open, pods)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := e.SetTable(table, dataplane.ChangeOf(report)); err != nil {
			t.Fatal(err)
		}
	}
	publish(true)
	var gate sync.RWMutex // taken by who changes the policy from denied to allowed: nobody sends meanwhile
	stop := make(chan struct{})
	var senders sync.WaitGroup
	for cpu := range 2 {
		senders.Go(func() {
			onCPU(t, cpu, func() error {
				var conns []net.Conn
				for i := 0; ; i++ {
					select {
					case <-stop:
						for _, c := range conns {
							c.Close()
						}
						return nil
					default:
					}
					if len(conns) < 32 {
						c, err := a.NS.Dial(t.Context(), "udp", netip.AddrPort{}, netip.AddrPortFrom(b.Addr4, openPort))
						if err != nil {
							return err
						}
						conns = append(conns, c)
					} else if i%97 == 0 {
						conns[0].Close()
						conns = conns[1:]
						continue
					}
					gate.RLock()
					var p [8]byte
					binary.LittleEndian.PutUint64(p[:], turn.Load())
					conns[i%len(conns)].Write(p[:])
					gate.RUnlock()
					if i%8 == 0 { // or all the time goes into what waits for its verdict
						time.Sleep(200 * time.Microsecond)
					}
				}
			})
		})
	}
	// However slow the machine is, something arrives while it is allowed, and something
	// of it is not asked about.
	passes := func() bool {
		for _, b := range backends {
			if b.Stats().Bypassed == 0 {
				return false
			}
		}
		return arrived.Load() > 0
	}
	for began := time.Now(); time.Since(began) < flipFor || !passes() && time.Since(began) < 2*nstest.Timeout; {
		time.Sleep(2 * time.Millisecond)
		publish(false)
		turn.Add(1)
		time.Sleep(3 * time.Millisecond)
		gate.Lock()
		// What was sent until now is judged by that policy.
		for still, before := 0, uint64(0); still < 10; time.Sleep(time.Millisecond) {
			still++
			if n := e.Stats().Received; n != before {
				still, before = 0, n
			}
		}
		turn.Add(1)
		publish(true)
		gate.Unlock()
	}
	close(stop)
	senders.Wait()
	began := time.Now()
	cancel()
	if err := <-over; err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > nstest.Timeout {
		t.Errorf("the engine took %v to stop", took)
	}
	if late.Load() > 0 || arrived.Load() == 0 {
		t.Errorf("%d of %d packets that arrived were sent while policy denied them", late.Load(), arrived.Load())
	}
	received := map[string]uint64{}
	for _, w := range e.Workers() {
		if sum := w.Passed() + w.Deferred() + w.Dropped(); sum != w.Received {
			t.Errorf("%s queue %d: %d packets, %d outcomes", w.Backend, w.Queue, w.Received, sum)
		}
		received[w.Backend] += w.Received
	}
	for _, b := range backends {
		st := b.Stats()
		if up := st.Fates[dataplane.FateUpcall]; up != received[b.Name()]+st.Overflow || st.Bypassed == 0 {
			t.Errorf("%s: %d packets sent up, of which %d were received and %d lost; %d bypassed", b.Name(), up, received[b.Name()], st.Overflow, st.Bypassed)
		}
	}
}
