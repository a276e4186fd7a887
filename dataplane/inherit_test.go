package dataplane_test

import (
	"testing"
	"time"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/conntrack"
	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/fake"
)

// heir is a backend with connections of an earlier run.
type heir struct {
	*fake.Backend
	left  []dataplane.Inherited
	judge func(*dataplane.Inherited) bool
	asked int // times that somebody to ask was given

	took []bool // by connection, once the first Update was there
}

func newHeir(drivers ...dataplane.Driver) *heir {
	h := &heir{Backend: &fake.Backend{Label: "heir", D: drivers}}
	h.OnUpdate = func(*classifier.Table, dataplane.Change) (int, error) {
		if h.judge != nil {
			for i := range h.left {
				h.took = append(h.took, h.judge(&h.left[i]))
			}
		}
		h.judge = nil
		return 0, nil
	}
	return h
}

func (h *heir) Inherit(judge func(*dataplane.Inherited) bool) { h.judge, h.asked = judge, h.asked+1 }

// hostDriver is a driver of a host with one address.
type hostDriver struct {
	*fake.Driver
	own flow.Addr
}

func (d *hostDriver) IsHost(a flow.Addr) bool { return a == d.own }

// Of connections of an earlier run those are accepted that would be if they came up,
// as long as that takes no packet.
func TestInherit(t *testing.T) {
	const client, server, vip, host, stranger = "10.0.0.1:40000", "10.0.0.2:80", "10.96.0.10:80", "10.0.0.9:7000", "10.0.0.77:5"
	key := func(src, dst string) flow.Key { return dataplane.Key(flow.TCP, src, dst) }
	service := flow.Service{Addr: key(client, vip).Dst, Port: 80}
	ping := flow.Key{Src: key(client, server).Src, Dst: key(client, server).Dst, SrcPort: 7, Proto: flow.ICMP, DstPort: flow.ICMPEchoRequest << 8}
	for _, c := range []struct {
		name  string
		c     dataplane.Inherited
		open  bool // fail mode
		never bool // the table denies everything but what is by a Service
		want  bool
	}{
		{name: "allowed", c: dataplane.Inherited{Key: key(client, server), Final: true}, want: true},
		{name: "allowed, with a later hook", c: dataplane.Inherited{Key: key(client, server)}, want: true},
		{name: "denied", c: dataplane.Inherited{Key: key(client, server), Final: true}, never: true},
		{name: "echo", c: dataplane.Inherited{Key: ping, Final: true}, want: true},
		{name: "an answer to nobody's echo", c: dataplane.Inherited{Key: ping.Reverse(), Final: true}},
		{name: "to a Service, before the backend is known", c: dataplane.Inherited{Key: key(client, vip), Final: true, Onward: true}},
		{name: "to a Service that nobody else sees", c: dataplane.Inherited{Key: key(client, vip), Final: true}, want: true},
		{name: "to a Service, with a later hook", c: dataplane.Inherited{Key: key(client, vip)}},
		{name: "from a Service, with a later hook", c: dataplane.Inherited{Key: key(vip, client)}},
		{name: "to its backend", c: dataplane.Inherited{Key: key(client, server), Service: service, Real: true, Final: true, Onward: true}, want: true},
		{name: "by way of the Service only", c: dataplane.Inherited{Key: key(client, server), Service: service, Real: true, Final: true, Onward: true}, never: true, want: true},
		{name: "to the host", c: dataplane.Inherited{Key: key(client, host), Final: true}, want: true},
		{name: "to the host, with a later hook", c: dataplane.Inherited{Key: key(client, host)}},
		{name: "by the host or whom it masks", c: dataplane.Inherited{Key: key(host, server), Final: true}},
		{name: "of a pod that nobody knows", c: dataplane.Inherited{Key: key(stranger, server), Final: true}},
		{name: "to a pod that nobody knows", c: dataplane.Inherited{Key: key(client, stranger), Final: true}},
		{name: "of a pod that nobody knows, fail mode open", c: dataplane.Inherited{Key: key(stranger, server), Final: true}, open: true, want: true},
		{name: "malformed", c: dataplane.Inherited{Final: true}},
	} {
		h := newHeir(&hostDriver{fake.NewDriver(1, false), key(host, server).Src})
		h.left = []dataplane.Inherited{c.c}
		h.left[0].Idle = time.Minute
		config := dataplane.Config{Backends: []dataplane.Backend{fake.NewBackend("other"), h}, Clock: func() int64 { return int64(time.Hour) }}
		if c.open {
			config.FailMode = dataplane.FailOpen
		}
		e := dataplane.New(config)
		stub := &dataplane.Stub{
			Gen: 3, Allowed: dataplane.Always, VIPs: map[flow.Addr]bool{service.Addr: true},
			Unknown: map[flow.Addr]bool{key(stranger, server).Src: true},
		}
		if c.never {
			stub.Allowed, stub.Via = dataplane.Never, func(_ flow.Key, via flow.Service) bool { return via == service }
		}
		if _, err := e.Publish(stub); err != nil {
			t.Fatal(err)
		}
		if len(h.took) != 1 || h.took[0] != c.want {
			t.Errorf("%s: %v, want %v", c.name, h.took, c.want)
		}
		var recs []conntrack.Record
		e.Flows(func(_ string, r conntrack.Record) bool { recs = append(recs, r); return true })
		if !c.want {
			if len(recs) != 0 {
				t.Errorf("%s: there is a record: %+v", c.name, recs)
			}
			continue
		}
		if len(recs) != 1 || recs[0].Key != c.c.Key || recs[0].Generation != 3 || recs[0].Service != c.c.Service ||
			!recs[0].Bypassed || recs[0].LastSeen != int64(time.Hour-time.Minute) {
			t.Errorf("%s: recorded as %+v", c.name, recs)
		}
		// The first table's only.
		if _, err := e.Publish(&dataplane.Stub{Gen: 4, Allowed: dataplane.Always}); err != nil {
			t.Fatal(err)
		}
		if h.asked != 1 || len(h.took) != 1 {
			t.Errorf("%s: asked again with another table", c.name)
		}
	}
}

// What was inherited is a connection like any other: its packets that come up belong
// to it, and a change of policy cuts it.
func TestInheritedRecords(t *testing.T) {
	d := fake.NewDriver(16, true)
	h := newHeir(d)
	h.left = []dataplane.Inherited{
		{Key: dataplane.Key(flow.TCP, "10.0.0.1:40000", "10.0.0.2:81"), Final: true},
		{Key: dataplane.Key(flow.TCP, "10.0.0.1:40001", "10.0.0.2:82"), Final: true},
		{Key: dataplane.Key(flow.TCP, "10.0.0.1:40002", "10.0.0.2:81"), Final: true, Closing: true},
	}
	e := dataplane.New(dataplane.Config{Backends: []dataplane.Backend{h}})
	start(t, e)
	if _, err := e.SetTable(compile(t, 1), dataplane.Change{}); err != nil {
		t.Fatal(err)
	}
	if len(h.took) != 3 || !h.took[0] || h.took[1] || !h.took[2] {
		t.Errorf("accepted %v, want those to port 81", h.took)
	}
	n := 0
	e.Flows(func(_ string, r conntrack.Record) bool { n++; return true })
	if n != 1 {
		t.Errorf("%d records, want that of the connection that is open and allowed", n)
	}
	send := func(src, dst string) {
		d.Send(fake.In{Frame: dataplane.Segment(t, src, dst, dataplane.Flags{ACK: true}, 1), Final: true})
	}
	send("10.0.0.2:81", "10.0.0.1:40000") // the answer: by itself it would be an isolated pod's to anybody
	if !d.WaitApplied(1, 5*time.Second) {
		t.Fatal("no verdict")
	}
	if s := e.Stats(); s.Paths[dataplane.PassHit] != 1 {
		t.Errorf("paths %v, want a packet of a known connection", s.Paths)
	}
	if cut, err := e.SetTable(compile(t, 2), dataplane.Change{}); cut != 1 || err != nil {
		t.Errorf("cut %d connections (%v), want the one to port 81", cut, err)
	}
	send("10.0.0.1:40000", "10.0.0.2:81")
	if !d.WaitApplied(2, 5*time.Second) {
		t.Fatal("no verdict")
	}
	if got := d.Results()[1].Disposition; got != dataplane.DropPacket {
		t.Errorf("a packet of what was cut: %v", got)
	}
}
