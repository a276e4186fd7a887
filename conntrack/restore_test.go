package conntrack

import (
	"testing"
	"time"

	"github.com/tierwall/tierwall/classifier/flow"
)

// What is restored is a connection that is open and bypassed, takes nobody's place and
// is no news.
func TestRestore(t *testing.T) {
	now := int64(time.Hour)
	tab := New(Limits{Records: 2})
	adm := Admission{Generation: 3, Egress: 1, Ingress: 2, Verdict: 1, Bypassed: true}
	k := key(flow.TCP, "10.0.0.1:1000", "10.1.0.1:53")
	if !tab.Restore(k, adm, now-int64(time.Minute)) {
		t.Fatal("not restored")
	}
	rec, reply, ok := tab.Lookup(k.Reverse(), now)
	want := Record{Admission: adm, ID: rec.ID, Since: now - int64(time.Minute), LastSeen: now - int64(time.Minute), Key: k, State: Established}
	if !ok || !reply || rec != want || rec.ID == 0 {
		t.Errorf("found %v, reply %v: %+v, want %+v", ok, reply, rec, want)
	}
	if tab.Restore(k, adm, now) || tab.Restore(k.Reverse(), adm, now) || tab.Restore(flow.Key{}, adm, now) {
		t.Error("restored what is known, or no connection")
	}
	if recs, missed := told(tab); len(recs) != 0 || missed {
		t.Errorf("restoring is news: %v", recs)
	}
	n := 0
	tab.EachTouching(func(a flow.Addr) bool { return a == k.Dst }, func(Record) bool { n++; return true })
	if n != 1 {
		t.Errorf("found %d times by its address", n)
	}
	// A packet of it belongs to it; a SYN opens another one, whose place it is.
	var got Record
	if r := tab.Seen(tcpPacket(k.Reverse(), ack, 1), now, &got); r != HitReply || got.ID != rec.ID {
		t.Errorf("an answer: %v", r)
	}
	if recs, _ := told(tab); len(recs) != 1 {
		t.Errorf("its packets are no news: %v", recs)
	}
	if r := tab.Seen(tcpPacket(k, syn, 77), now, &got); r != Reopened {
		t.Errorf("a SYN: %v", r)
	}
	other := numbered(2)
	tab.Insert(other, tcpPacket(other, syn, 1), adm, now)
	if tab.Restore(numbered(3), adm, now) || tab.Len() != 2 {
		t.Error("restored into a full table")
	}
	if tab.Expire(now+int64(2*DefaultTimeouts().TCPEstablished), 2) != 2 {
		t.Error("restored for ever")
	}
	if s := tab.Stats(); s.Inserted != 2 || s.Expired != 2 {
		t.Errorf("%+v", s)
	}
	checkBooks(t, tab)
}
