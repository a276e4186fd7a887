package dataplane_test

import (
	"net/netip"
	"testing"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/conntrack"
	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/fake"
)

// compile makes a real table: pod x/b is isolated and admits TCP port 80+gen.
func compile(t *testing.T, gen uint64) *classifier.Table {
	t.Helper()
	return compileFor(t, gen, "b")
}

// compileFor is compile with another pod in the place of x/b, for which the same
// rules hold.
func compileFor(t *testing.T, gen uint64, name string) *classifier.Table {
	t.Helper()
	return compileOpen(t, gen, name, uint16(80+gen))
}

// compileOpen is compileFor with the port that is open.
func compileOpen(t *testing.T, gen uint64, name string, port uint16) *classifier.Table {
	t.Helper()
	pod := func(name, addr string) rule.Endpoint {
		return rule.Endpoint{Namespace: "x", Name: name, Labels: map[string]string{"pod": name}, Node: "n", Addrs: []netip.Addr{netip.MustParseAddr(addr)}}
	}
	b := rule.Selector{Namespace: "x", PodLabels: rule.Labels{{Key: "pod", Op: rule.In, Values: []string{name}}}}
	origin := rule.Origin{Group: "networking.k8s.io", Kind: "NetworkPolicy", Namespace: "x", Name: "b", Index: -1}
	allow := origin
	allow.Index = 0
	set := rule.Set{
		Rules: []rule.Rule{{
			Direction: flow.Ingress, Order: rule.Order{Band: rule.BandNetworkPolicy}, Subject: b,
			Peers: []rule.Peer{{Kind: rule.PeerAny}}, Action: rule.Allow, Origin: allow,
			L4: []rule.L4{{Proto: flow.TCP, Ports: rule.PortRange{First: port, Last: port}, SrcPorts: rule.AllPorts}},
		}},
		Isolations: []rule.Isolation{{Direction: flow.Ingress, Band: rule.BandNetworkPolicy, Subject: b, Origin: origin}},
	}
	world := &rule.World{Node: "n", Endpoints: []rule.Endpoint{pod("a", "10.0.0.1"), pod(name, "10.0.0.2")}}
	table, _, err := classifier.Compile(set, world, classifier.Options{Generation: gen})
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// TestRealTable runs packets against a compiled table and changes it under a
// live connection.
func TestRealTable(t *testing.T) {
	d := fake.NewDriver(16, true)
	e := dataplane.New(dataplane.Config{Backends: []dataplane.Backend{fake.NewBackend("fake", d)}})
	start(t, e)
	if _, err := e.SetTable(compile(t, 1), dataplane.Change{}); err != nil {
		t.Fatal(err)
	}
	send := func(dst string, f dataplane.Flags) {
		d.Send(fake.In{Frame: dataplane.Segment(t, "10.0.0.1:40000", dst, f, 1), Final: true})
	}
	syn, ack := dataplane.Flags{SYN: true}, dataplane.Flags{ACK: true}
	send("10.0.0.2:81", syn)
	send("10.0.0.2:82", syn)
	send("10.0.0.2:81", ack)
	if !d.WaitApplied(3, patience) {
		t.Fatal("no verdict")
	}
	if cut, err := e.SetTable(compile(t, 2), dataplane.Change{}); cut != 1 || err != nil {
		t.Errorf("cut %d connections (%v), want the one to port 81", cut, err)
	}
	send("10.0.0.2:81", ack)
	send("10.0.0.2:82", syn)
	if !d.WaitApplied(5, patience) {
		t.Fatal("no verdict")
	}
	pass, drop := dataplane.PassPacket, dataplane.DropPacket
	for i, want := range []dataplane.Disposition{pass, drop, pass, drop, pass} {
		if got := d.Results()[i]; got.Disposition != want || !got.Remember {
			t.Errorf("packet %d: %+v, want %v", i, got, want)
		}
	}
	var ports []uint16
	e.Flows(func(backend string, r conntrack.Record) bool {
		ports = append(ports, r.Key.DstPort)
		return backend == "fake"
	})
	if len(ports) != 1 || ports[0] != 82 {
		t.Errorf("connections to ports %v, want 82", ports)
	}
}

// TestKeepIsForPods: with Keep, connections outlive changes of policy, but not the
// pods they were accepted for: the next one that has the address inherits nothing
// that it would not have itself.
func TestKeepIsForPods(t *testing.T) {
	d := fake.NewDriver(16, true)
	e := dataplane.New(dataplane.Config{Backends: []dataplane.Backend{fake.NewBackend("fake", d)}, Established: dataplane.Keep})
	start(t, e)
	sent := uint64(0)
	send := func(port string, f dataplane.Flags) dataplane.Disposition {
		t.Helper()
		d.Send(fake.In{Frame: dataplane.Segment(t, "10.0.0.1:40000", "10.0.0.2:"+port, f, 1), Final: true})
		if sent++; !d.WaitApplied(sent, patience) {
			t.Fatal("no verdict")
		}
		return d.Results()[sent-1].Disposition
	}
	set := func(table *classifier.Table, want int) {
		t.Helper()
		if cut, err := e.SetTable(table, dataplane.Change{}); cut != want || err != nil {
			t.Errorf("cut %d connections (%v), want %d", cut, err, want)
		}
	}
	syn, ack := dataplane.Flags{SYN: true}, dataplane.Flags{ACK: true}
	set(compile(t, 1), 0)
	if send("81", syn) != dataplane.PassPacket {
		t.Fatal("not accepted")
	}
	set(compile(t, 2), 0)
	if send("81", ack) != dataplane.PassPacket {
		t.Error("a connection does not outlive a change of policy")
	}
	if send("82", syn) != dataplane.PassPacket {
		t.Fatal("not accepted")
	}
	set(compileFor(t, 2+1, "c"), 2)
	for _, port := range []string{"81", "82"} {
		if send(port, ack) != dataplane.DropPacket {
			t.Errorf("another pod inherits the connection to port %s", port)
		}
	}
	if send("83", syn) != dataplane.PassPacket {
		t.Fatal("not accepted")
	}
	set(compile(t, 4), 1)
	if send("83", ack) != dataplane.DropPacket {
		t.Error("the pod before inherits the connection")
	}
}
