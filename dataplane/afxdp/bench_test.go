package afxdp

import (
	"flag"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/afxdp/kern"
	"github.com/tierwall/tierwall/dataplane/nstest"
	"github.com/tierwall/tierwall/dataplane/nstest/netlab"
	"github.com/tierwall/tierwall/dataplane/packet"
)

// blackhole is an address that is routed to a pod, which does not have it and
// forwards nothing: packets get all the way and cause no answers.
var blackhole = netip.MustParseAddr("198.51.100.1")

// sender returns a function that sends one small datagram from inside a pod to
// the blackhole, to a port of its choice.
func sender(b *testing.B, node *nstest.Node, from, to *netlab.Pod) func(port int) {
	b.Helper()
	l, err := node.NS.Link(to.HostDevice)
	if err != nil {
		b.Fatal(err)
	}
	mac, err := to.NS.MAC(netlab.PodDevice)
	if err != nil {
		b.Fatal(err)
	}
	if err := node.NS.Neigh(to.HostDevice, blackhole, mac); err != nil {
		b.Fatal(err)
	}
	if err := node.NS.Handle().RouteAdd(&netlink.Route{
		LinkIndex: l.Attrs().Index, Scope: netlink.SCOPE_LINK, Dst: netlink.NewIPNet(blackhole.AsSlice()),
	}); err != nil {
		b.Fatal(err)
	}
	fd := -1
	if err := from.NS.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		return err
	}); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { unix.Close(fd) })
	payload := make([]byte, 18)
	sa := &unix.SockaddrInet4{Addr: blackhole.As4()}
	return func(port int) {
		sa.Port = port
		if err := unix.Sendto(fd, payload, 0, sa); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkUpcall is one first packet of a flow: up, parsed, accepted, written to
// the flow map in both directions, sent back and on to the destination. The
// sender runs on the same goroutine, so its cost is included; allocs/op counts
// both.
func BenchmarkUpcall(b *testing.B) {
	nstest.Need(b, canRun)
	node := nstest.NewNode(b)
	from, to := node.AddPod(b, "a"), node.AddPod(b, "b")
	var backend *Backend
	if err := node.NS.Do(func() (err error) { backend, err = New(Config{Strict: true, Queues: 1, UpcallRate: -1}); return err }); err != nil {
		b.Fatal(err)
	}
	defer backend.Close()
	if err := backend.update([]netip.Addr{from.Addr4}, dataplane.Change{}); err != nil { // one device: one upcall per packet
		b.Fatal(err)
	}
	send := sender(b, node, from, to)
	d := backend.Drivers()[0]
	var batch dataplane.Batch
	b.ReportAllocs()
	const ports = 60000 / dataplane.BatchSize * dataplane.BatchSize
	sent := 0
	b.ResetTimer()
	for done := 0; done < b.N; {
		if sent > 0 && sent%ports == 0 { // they start over
			if err := backend.epoch.Advance(dataplane.Change{}, nil); err != nil {
				b.Fatal(err)
			}
		}
		for range min(dataplane.BatchSize, b.N-sent) {
			send(1024 + sent%ports)
			sent++
		}
		for idle := 0; done < sent; {
			if err := d.Recv(&batch); err != nil {
				b.Fatal(err)
			}
			if batch.N == 0 { // on a busy machine the kernel takes its time
				if idle++; idle*100 > int(nstest.Timeout.Milliseconds()) {
					b.Fatalf("%d of %d packets came up: %+v", done, sent, backend.Stats())
				}
				continue
			}
			for i := range batch.Packets[:batch.N] {
				p := &batch.Packets[i]
				p.Problem = packet.ParseEthernet(p.Frame, &p.Headers)
				p.Disposition, p.Remember = dataplane.PassPacket, true
			}
			if err := d.Apply(&batch); err != nil {
				b.Fatal(err)
			}
			done += batch.N
		}
	}
}

// BenchmarkForward is a packet of a known flow from pod to pod, sender included,
// with our programs on both devices ("hit") and without ("plain").
func BenchmarkForward(b *testing.B) {
	for _, attached := range []bool{false, true} {
		name := map[bool]string{false: "plain", true: "hit"}[attached]
		b.Run(name, func(b *testing.B) {
			r := newRig(b, Config{Strict: true})
			r.policy(func(_ flow.Key, _ *dataplane.Packet) dataplane.Disposition { return dataplane.PassPacket })
			from, to := r.AddPod(b, "a"), r.AddPod(b, "b")
			send := sender(b, r.Node, from, to)
			if attached {
				r.update(b, from, to)
				send(openPort)
				deadline := time.Now().Add(nstest.Timeout)
				for r.counter(b, kern.CountReturned) == 0 && time.Now().Before(deadline) {
					time.Sleep(time.Millisecond)
				}
			}
			for b.Loop() {
				send(openPort)
			}
			if s := r.backend.Stats(); attached && s.Upcalls > 2 {
				b.Errorf("%d upcalls", s.Upcalls)
			}
		})
	}
}

// The packet path allocates nothing per batch: received, written to the flow
// map, sent back.
func TestNoAllocations(t *testing.T) {
	nstest.Need(t, canRun)
	// Enough batches that what starting costs does not count, on a busy machine too.
	was := flag.Lookup("test.benchtime").Value.String()
	if err := flag.Set("test.benchtime", "200000x"); err != nil {
		t.Fatal(err)
	}
	defer flag.Set("test.benchtime", was)
	// What is still being started beside it allocates as well, but not every time.
	for try := range 3 {
		res := testing.Benchmark(BenchmarkUpcall)
		if res.N == 0 {
			t.Fatal("the benchmark failed")
		}
		// Starting a generation allocates, once per 60,000 packets.
		batches := uint64(res.N / dataplane.BatchSize)
		if res.MemAllocs <= batches/2 {
			return
		}
		t.Logf("attempt %d: %d allocations in %d batches, sender included", try+1, res.MemAllocs, batches)
	}
	t.Error("the packet path allocates")
}

// BenchmarkProgram is what our programs cost a packet of a known flow: on its way
// from a pod, on its way to one right after, and to one that another CPU or a
// later hook brought.
func BenchmarkProgram(b *testing.B) {
	nstest.Need(b, canRun)
	k := newKernel(b, true)
	frame := build(b, ether4, ipv4(17), &layers.UDP{SrcPort: 40000, DstPort: 53}, gopacket.Payload("tierwall"))
	var h packet.Headers
	if p := packet.ParseEthernet(frame, &h); p != packet.OK {
		b.Fatal(p)
	}
	name, _ := kern.MakeFlowKey(&h.Key)
	k.put("flows", name, kern.FlowState{Generation: 1, Last: kern.Now() + 1e15})
	for _, c := range []struct {
		name, program string
		mark          uint32
	}{{"from", "pod_ingress", 0}, {"to", "pod_egress", DefaultMarks.Accept | DefaultMarks.Fast}, {"lookup", "pod_egress", 0}} {
		b.Run(c.name, func(b *testing.B) {
			// One packet, repeated in the kernel: nothing is copied in between.
			if _, err := k.c.Programs[c.program].Run(&ebpf.RunOptions{
				Data: frame, Repeat: uint32(b.N), Context: skbContext{Mark: c.mark},
			}); err != nil {
				b.Fatal(err)
			}
		})
	}
}

// BenchmarkInherit is what the first table of a daemon waits for: a full map of flows
// that it takes over, each judged by a table and renewed. Half of the table's records
// are too many for conntrack.
func BenchmarkInherit(b *testing.B) {
	nstest.Need(b, canRun)
	node := nstest.NewNode(b)
	var backend *Backend
	if err := node.NS.Do(func() (err error) { backend, err = New(Config{Strict: true}); return err }); err != nil {
		b.Fatal(err)
	}
	defer backend.Close()
	const flows = 100_000
	subject, name := netip.MustParseAddr("10.0.0.2"), "b"
	pods := []rule.Endpoint{{Namespace: "x", Name: name, Labels: map[string]string{"pod": name}, Node: "n", Addrs: []netip.Addr{subject}}}
	origin := rule.Origin{Group: "networking.k8s.io", Kind: "NetworkPolicy", Namespace: "x", Name: "b"}
	selector := rule.Selector{Namespace: "x", PodLabels: rule.Labels{{Key: "pod", Op: rule.In, Values: []string{name}}}}
	table, _, err := classifier.Compile(rule.Set{
		Rules: []rule.Rule{{
			Direction: flow.Ingress, Order: rule.Order{Band: rule.BandNetworkPolicy}, Subject: selector,
			Peers: []rule.Peer{{Kind: rule.PeerAny}}, Action: rule.Allow, Origin: origin,
			L4: []rule.L4{{Proto: flow.TCP, Ports: rule.PortRange{First: 80, Last: 80}, SrcPorts: rule.AllPorts}},
		}},
		Isolations: []rule.Isolation{{Direction: flow.Ingress, Band: rule.BandNetworkPolicy, Subject: selector, Origin: rule.Origin{Group: origin.Group, Kind: origin.Kind, Namespace: "x", Name: "b", Index: -1}}},
	}, &rule.World{Node: "n", Endpoints: pods}, classifier.Options{Generation: 1})
	if err != nil {
		b.Fatal(err)
	}
	for i := range flows {
		client := netip.AddrFrom4([4]byte{192, 168, byte(i >> 6), byte(i)})
		k := flow.MakeKey(flow.TCP, netip.AddrPortFrom(client, uint16(1024+i%50_000)), netip.AddrPortFrom(subject, 80))
		f, back := kern.MakeFlowKey(&k)
		s := kern.FlowState{Generation: 1, Last: kern.Now(), Cell: [2]uint16{kern.CellOf(&k.Src), kern.CellOf(&k.Dst)}}
		if back {
			s.Flags = kern.FlowBack
		}
		if err := backend.objects.Flows.Put(&f, &s); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		e := dataplane.New(dataplane.Config{Backends: []dataplane.Backend{backend}})
		if _, err := e.SetTable(table, dataplane.Change{}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/flows, "ns/flow")
	n, g := 0, backend.epoch.Current()
	var k kern.FlowKey
	var s kern.FlowState
	for it := backend.objects.Flows.Iterate(); it.Next(&k, &s); {
		if s.Generation == g {
			n++
		}
	}
	if n < flows*9/10 { // the map forgets some
		b.Errorf("%d of %d flows were taken over", n, flows)
	}
}
