package agent

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/tierwall/tierwall/cmd/internal/world"
	"github.com/tierwall/tierwall/dataplane/dns"
	"github.com/tierwall/tierwall/dataplane/nstest"
	"github.com/tierwall/tierwall/dataplane/nstest/netlab"
)

// onlyNames lets y/b ask the server outside and reach what *.example.test is, and
// nothing else.
const onlyNames = `apiVersion: crd.antrea.io/v1beta1
kind: ClusterNetworkPolicy
metadata: {name: only-names}
spec:
  priority: 5
  tier: application
  appliedTo:
  - namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: y}}
    podSelector: {matchLabels: {pod: b}}
  egress:
  - action: Allow
    to: [{ipBlock: {cidr: 192.0.2.10/32}}]
    ports: [{protocol: UDP, port: 53}]
  - action: Allow
    to: [{fqdn: "*.example.test"}]
  - action: Drop
`

// nameServer answers for every name it has, over UDP.
type nameServer struct {
	ttl  atomic.Uint32
	zone map[string]netip.Addr // by name and type: "a.example.test. A"
}

func (r *rig) nameServer(zone map[string]netip.Addr) *nameServer {
	r.t.Helper()
	s := &nameServer{zone: zone}
	s.ttl.Store(300)
	host := r.world.Host(world.OutsideName)
	var conn *net.UDPConn
	err := host.NS.Do(func() (err error) {
		conn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(host.Addr4, 53)))
		return err
	})
	if err != nil {
		r.t.Fatal(err)
	}
	done := make(chan struct{})
	r.t.Cleanup(func() { conn.Close(); <-done })
	go func() {
		defer close(done)
		b := make([]byte, 4096)
		for {
			n, from, err := conn.ReadFromUDPAddrPort(b)
			if err != nil {
				return
			}
			if answer, err := s.answer(b[:n]); err == nil {
				_, _ = conn.WriteToUDPAddrPort(answer, from)
			}
		}
	}()
	return s
}

// answer leads through a CNAME, as names of services in a cloud do.
func (s *nameServer) answer(b []byte) ([]byte, error) {
	var p dnsmessage.Parser
	h, err := p.Start(b)
	if err != nil {
		return nil, err
	}
	q, err := p.Question()
	if err != nil {
		return nil, err
	}
	m := dnsmessage.Message{Header: dnsmessage.Header{ID: h.ID, Response: true}, Questions: []dnsmessage.Question{q}}
	alias := dnsmessage.MustNewName("balancer.elsewhere.test.")
	head := func(n dnsmessage.Name, t dnsmessage.Type) dnsmessage.ResourceHeader {
		return dnsmessage.ResourceHeader{Name: n, Type: t, Class: dnsmessage.ClassINET, TTL: s.ttl.Load()}
	}
	a, ok := s.zone[strings.ToLower(q.Name.String())+" "+strings.TrimPrefix(q.Type.String(), "Type")]
	if ok {
		m.Answers = []dnsmessage.Resource{{Header: head(q.Name, dnsmessage.TypeCNAME), Body: &dnsmessage.CNAMEResource{CNAME: alias}}}
		if a.Is4() {
			m.Answers = append(m.Answers, dnsmessage.Resource{Header: head(alias, dnsmessage.TypeA), Body: &dnsmessage.AResource{A: a.As4()}})
		} else {
			m.Answers = append(m.Answers, dnsmessage.Resource{Header: head(alias, dnsmessage.TypeAAAA), Body: &dnsmessage.AAAAResource{AAAA: a.As16()}})
		}
	}
	return m.Pack()
}

// resolver is a pod's socket to the name server.
type resolver struct {
	net.Conn
	id uint16
}

func (r *rig) resolver(from string) *resolver {
	r.t.Helper()
	c, err := r.world.Host(from).NS.Dial(context.Background(), "udp", netip.AddrPort{}, netip.AddrPortFrom(r.world.Host(world.OutsideName).Addr4, 53))
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { c.Close() })
	return &resolver{Conn: c}
}

// resolve asks until there is an answer.
func (c *resolver) resolve(name string, typ dnsmessage.Type) error {
	c.id++
	q := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: c.id, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: typ, Class: dnsmessage.ClassINET}},
	}
	b, err := q.Pack()
	if err != nil {
		return err
	}
	answer := make([]byte, 4096)
	for range 3 {
		if _, err := c.Write(b); err != nil {
			return err
		}
		_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
		for {
			n, err := c.Read(answer)
			if err != nil {
				break
			}
			var m dnsmessage.Message
			if m.Unpack(answer[:n]) == nil && m.ID == c.id {
				return nil
			}
		}
	}
	return errors.New("no answer")
}

// everyPod names every pod but y/b as POD-NS.example.test.
func (r *rig) everyPod() (zone map[string]netip.Addr, names []string) {
	zone = map[string]netip.Addr{}
	for _, h := range r.world.Hosts {
		if h.Name == "y/b" || h.Name == world.OutsideName {
			continue
		}
		ns, pod, _ := strings.Cut(h.Name, "/")
		name := pod + "-" + ns + ".example.test."
		zone[name+" A"], zone[name+" AAAA"] = h.Addr4, h.Addr6
		names = append(names, name)
	}
	return zone, names
}

func (r *rig) openNames() {
	r.conf.DNS.State = filepath.Join(r.state, "dns.json")
	r.write("policy.yaml", onlyNames)
}

// TestNamesFirstConnection: the very first packet a pod sends to an address it has
// just been told passes, in both families. What was resolved is known after a restart; what was not is closed all the time.
func TestNamesFirstConnection(t *testing.T) {
	for _, dp := range dataplanes {
		t.Run(dp, func(t *testing.T) {
			r := newRig(t, dp)
			r.openNames()
			zone, names := r.everyPod()
			r.nameServer(zone)
			r.start()
			if r.opens("tcp", "y/b", "x/a", 4) || r.opens("udp", "y/b", "x/a", 6) {
				t.Fatal("a name nobody has resolved is open") // S4-23
			}
			c := r.resolver("y/b")
			from := r.world.Host("y/b").NS
			for _, name := range names[1:] {
				for _, typ := range []dnsmessage.Type{dnsmessage.TypeA, dnsmessage.TypeAAAA} {
					if err := c.resolve(name, typ); err != nil {
						t.Fatalf("%s %s: %v\n%s", name, typ, err, r.logText())
					}
					to := netip.AddrPortFrom(zone[name+" "+strings.TrimPrefix(typ.String(), "Type")], 80)
					if err := from.Probe("udp", to, nstest.Timeout); err != nil { // S2-91; one datagram: nobody sends it again
						t.Errorf("%s %s: the first datagram to %s is lost: %v", name, typ, to, err)
					}
				}
			}
			if r.opens("udp", "y/b", "x/a", 4) {
				t.Error("a name nobody has resolved is open")
			}
			if r.opens("tcp", "y/b", world.OutsideName, 4) {
				t.Error("the name server is open beyond port 53")
			}
			r.stop(syscall.SIGTERM)
			if n := strings.Count(r.logText(), "level=ERROR"); n > 0 {
				t.Errorf("%d errors in the log:\n%s", n, r.logText())
			}
			r.start()
			if !r.reaches("tcp", "y/b", "x/b", 4) || !r.reaches("tcp", "y/b", "z/c", 6) {
				t.Errorf("what was resolved before a restart is closed after it\n%s", r.logText())
			}
			if r.opens("tcp", "y/b", "x/a", 4) {
				t.Error("after a restart everything is open")
			}
			r.stop(syscall.SIGTERM)
			r.cleanup()
		})
	}
}

// TestNamesExpire: an address whose TTL is over is closed again, one that a
// connection uses is not.
func TestNamesExpire(t *testing.T) {
	r := newRig(t, "nfqueue")
	r.openNames()
	r.conf.DNS.Grace.Duration = 0
	zone, _ := r.everyPod()
	server := r.nameServer(zone)
	server.ttl.Store(1)
	r.start()
	c := r.resolver("y/b")
	for _, name := range []string{"a-x.example.test.", "c-z.example.test."} {
		if err := c.resolve(name, dnsmessage.TypeA); err != nil {
			t.Fatal(err)
		}
	}
	used := r.dial("tcp", "y/b", "x/a", 4)
	r.until("the address nobody uses is forgotten", func() bool {
		n := dns.NewNames(dns.Config{})
		if n.Load(r.conf.DNS.State) != nil {
			return false
		}
		l := n.List()
		return len(l) == 1 && l[0].Name == "a-x.example.test"
	})
	if r.opens("udp", "y/b", "z/c", 4) {
		t.Error("an address is open after its TTL")
	}
	if !alive(used) {
		t.Error("a connection was cut because a TTL passed")
	}
	if netlab.Exchange(used, []byte("still?"), nstest.Timeout) != nil || !r.reaches("udp", "y/b", "x/a", 4) {
		t.Error("an address in use is closed")
	}
	r.stop(syscall.SIGTERM)
}

// TestNamesDaemonGone: without the daemon, and with its table left behind, names
// are still resolved.
func TestNamesDaemonGone(t *testing.T) {
	r := newRig(t, "nfqueue")
	r.openNames()
	zone, _ := r.everyPod()
	r.nameServer(zone)
	r.start()
	c := r.resolver("y/b")
	if err := c.resolve("a-x.example.test.", dnsmessage.TypeA); err != nil {
		t.Fatal(err)
	}
	r.stop(syscall.SIGKILL)
	if err := c.resolve("a-x.example.test.", dnsmessage.TypeAAAA); err != nil { // S4-22
		t.Errorf("an accepted connection to the name server: %v", err)
	}
	r.cleanup()
}
