package dataplane

import (
	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/conntrack"
)

// inherit lets backends go on with the connections that s, the first table, accepts
// of those an earlier process did. Otherwise each of them would come up once, all at
// the same moment.
func (e *Engine) inherit(s *snapshot) {
	now := e.clock()
	for i, b := range e.cfg.Backends {
		for _, w := range e.workers { // any one of the backend's
			if int(w.backend) == i {
				b.Inherit(func(c *Inherited) bool { return w.inherit(c, s, now) })
				break
			}
		}
	}
}

// inherit decides a connection as decide would with its next packet, as far as that
// does not take the packet. What it accepts has a record from now on, as if its
// packets had been seen. It runs on a control goroutine.
//
// Of what the host opened a packet tells that the host did, and not somebody
// masqueraded: that comes up.
func (w *Worker) inherit(c *Inherited, s *snapshot, now int64) bool {
	p := Packet{Final: c.Final, Onward: c.Onward, Service: c.Service}
	p.Headers.Key = c.Key
	if c.Real {
		p.Real = c.Key
	}
	if !c.Key.Valid() || isEchoReply(&c.Key) || w.driver.IsHost(c.Key.Src) || w.shownLater(&p, s, &c.Key) {
		return false
	}
	d, _ := w.judge(s, c.Key, c.Service, 0)
	if d.Verdict != classifier.Allow {
		return false
	}
	if !c.Closing { // like worthRemembering
		w.table(&c.Key).Restore(c.Key, conntrack.Admission{
			Generation: s.generation, Egress: uint32(d.Egress), Ingress: uint32(d.Ingress), Verdict: uint8(d.Verdict),
			Service: c.Service, Recorded: d.Audit || w.forced.allow, Bypassed: true,
		}, now-int64(c.Idle))
	}
	return true
}
