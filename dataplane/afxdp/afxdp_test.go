package afxdp

import (
	"net/netip"
	"testing"

	"github.com/tierwall/tierwall/dataplane/afxdp/kern"
	"github.com/tierwall/tierwall/dataplane/nstest"
	"github.com/tierwall/tierwall/dataplane/nstest/netlab"
)

func TestProbe(t *testing.T) {
	nstest.Need(t)
	if _, _, err := Probe(); err != nil {
		t.Fatal(err)
	}
}

// Alone, the backend judges every connection of a pod: from it and to it, both
// families, TCP and UDP, with strict reverse path filtering (the lab's default).
func TestConnectivity(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{Strict: true})
	a, b := r.AddPod(t, "a"), r.AddPod(t, "b")
	r.update(t, a, b)
	type end struct {
		name   string
		ns     *netlab.NS
		v4, v6 netip.Addr
		pod    bool
	}
	ends := []end{
		{"a", a.NS, a.Addr4, a.Addr6, true},
		{"b", b.NS, b.Addr4, b.Addr6, true},
		{"outside", r.Outside, r.Outside4, r.Outside6, false},
		{"node", r.NS, r.Addr4, r.Addr6, false},
	}
	for _, network := range []string{"tcp", "udp"} {
		for _, to := range ends {
			for _, addr := range []netip.Addr{to.v4, to.v6} {
				open := nstest.Echo(t, to.ns, network, addr, openPort)
				closed := nstest.Echo(t, to.ns, network, addr, closedPort)
				for _, from := range ends {
					if from.name == to.name || !from.pod && !to.pod {
						continue
					}
					r.upcalls()
					nstest.Reach(t, from.ns, network, open.Addr)
					if len(r.upcalls()) == 0 {
						t.Errorf("%s %s to %s was not judged", network, from.name, open.Addr)
					}
					nstest.Unreachable(t, from.ns, network, closed.Addr)
					for _, s := range r.upcalls() {
						if !s.final {
							t.Errorf("%v: not final although nothing judges after us", s.key)
						}
					}
				}
				if n := closed.Seen(); n != 0 {
					t.Errorf("%s %s: %d denied connections arrived", network, closed.Addr, n)
				}
			}
		}
	}
	if s := r.backend.Stats(); s.Overflow != 0 || s.Upcalls == 0 || s.Bypassed == 0 {
		t.Errorf("stats: %+v", s)
	}
	if n := r.counter(t, kern.CountStray); n != 0 {
		t.Errorf("%d stray frames on the upcall pair", n)
	}
}
