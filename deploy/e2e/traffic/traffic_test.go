package traffic

import (
	"net"
	"strconv"
	"testing"
	"time"
)

// Every kind is heard and answered, over both families, and counted where it came
// from.
func TestCounts(t *testing.T) {
	s, err := Serve(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"127.0.0.1", "::1"} {
		to := net.JoinHostPort(host, strconv.Itoa(s.Port()))
		before := s.Heard()[host]
		var senders []*Sender
		for _, k := range []Kind{Datagrams, NewDatagrams, Stream, Connects} {
			senders = append(senders, Send(t.Context(), k, to, 2*time.Millisecond, time.Second))
		}
		for _, s := range senders {
			var slowest time.Duration
			wait(t, func() bool {
				f := s.Flow()
				slowest = max(slowest, f.Slowest)
				return f.Answered >= 20
			})
			if f := s.Flow(); f.Lost > 0 || f.Broken != "" || f.Answered > f.Sent || slowest <= 0 || slowest > time.Minute {
				t.Errorf("%+v, slowest %v", f, slowest)
			}
		}
		h := s.Heard()[host]
		if h.Datagrams < before.Datagrams+40 || h.Connections < before.Connections+21 {
			t.Errorf("from %s: %+v, before %+v", host, h, before)
		}
	}
}

// What nobody answers is lost, after its time.
func TestLost(t *testing.T) {
	silent, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	for _, k := range []Kind{Datagrams, NewDatagrams} {
		s := Send(t.Context(), k, silent.LocalAddr().String(), 5*time.Millisecond, 0)
		time.Sleep(20 * time.Millisecond)
		if f := s.Flow(); f.Lost != 0 || f.Sent == 0 {
			t.Errorf("before its time: %+v", f)
		}
		wait(t, func() bool { return s.Flow().Lost >= 5 })
		if f := s.Flow(); f.Answered != 0 {
			t.Errorf("%+v", f)
		}
	}
}

// A sweep reaches every address of its prefix but the first.
func TestSweep(t *testing.T) {
	s, err := Serve(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	to := net.JoinHostPort("127.0.0.0/30", strconv.Itoa(s.Port()))
	sweep := Send(t.Context(), Sweep, to, 5*time.Millisecond, 0)
	wait(t, func() bool { return s.Heard()["127.0.0.1"].Datagrams >= 9 })
	if f := sweep.Flow(); f.Sent%3 != 0 && f.Sent < 9 || f.Broken != "" {
		t.Errorf("%+v", f)
	}
}

// A connection nobody takes is tried, and not answered.
func TestRefused(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	to := l.Addr().String()
	_ = l.Close()
	s := Send(t.Context(), Connects, to, 5*time.Millisecond, time.Second)
	stream := Send(t.Context(), Stream, to, 5*time.Millisecond, time.Second)
	wait(t, func() bool { return s.Flow().Lost >= 3 && stream.Flow().Broken != "" })
	if f := s.Flow(); f.Answered != 0 {
		t.Errorf("%+v", f)
	}
}

func wait(t *testing.T, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ok(); {
		if time.Now().After(deadline) {
			t.Fatal("not within 10 s")
		}
		time.Sleep(2 * time.Millisecond)
	}
}
