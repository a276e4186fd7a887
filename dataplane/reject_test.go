package dataplane

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/dataplane/packet"
)

// rejectDriver keeps the last answer.
type rejectDriver struct {
	quietDriver
	answer []byte
	fail   error
}

func (d *rejectDriver) Reject(_ *Packet, answer []byte) error {
	d.answer = append(d.answer[:0], answer...)
	return d.fail
}

// newRejecter is a bench whose driver answers.
func newRejecter(t testing.TB, cfg Config) (*bench, *rejectDriver) {
	x := newBench(t, cfg)
	d := &rejectDriver{}
	x.w.driver = d
	return x, d
}

// TestReject: who is told, and what (S2-21, S2-22).
func TestReject(t *testing.T) {
	syn, ack := Flags{SYN: true}, Flags{ACK: true}
	cut := Config{CutReset: true}
	for _, c := range []struct {
		name   string
		cfg    Config
		denial classifier.Verdict
		p      Packet
		path   Path
		proto  flow.Proto // of the answer; 0 = none
		count  Answer
	}{
		{"reject SYN", Config{}, classifier.Reject, Packet{Final: true, Frame: Segment(t, a4, b4, syn, 1)}, DropPolicy, flow.TCP, AnswerSent},
		{"reject SYN, v6", Config{}, classifier.Reject, Packet{Final: true, Frame: Segment(t, a6, b6, syn, 1)}, DropPolicy, flow.TCP, AnswerSent},
		{"reject datagram", Config{}, classifier.Reject, Packet{Final: true, Frame: Datagram(t, a4, b4)}, DropPolicy, flow.ICMP, AnswerSent},
		{"reject datagram, v6", Config{}, classifier.Reject, Packet{Final: true, Frame: Datagram(t, a6, b6)}, DropPolicy, flow.ICMPv6, AnswerSent},
		{"reject echo", Config{}, classifier.Reject, Packet{Final: true, Frame: Message4(t, "10.0.0.1", "10.0.0.2", 8, 0, 7, nil)}, DropPolicy, flow.ICMP, AnswerSent},
		{"reject to a group", Config{}, classifier.Reject, Packet{Final: true, Frame: Datagram(t, a4, "239.0.0.1:5")}, DropPolicy, 0, AnswerBarred},
		{"reject a reset", Config{}, classifier.Reject, Packet{Final: true, Frame: Segment(t, a4, b4, Flags{RST: true}, 1)}, DropPolicy, 0, AnswerBarred},
		{"no answers configured", Config{RejectRate: -1}, classifier.Reject, Packet{Final: true, Frame: Datagram(t, a4, b4)}, DropPolicy, 0, AnswerLimited},
		{"rejected ICMP error", Config{}, classifier.Reject, Packet{Final: true, Frame: Message4(t, "10.0.0.9", "10.0.0.1", 3, 4, 0, quoteOf(t, Segment(t, a4, b4, ack, 1))[4:])}, DropRelated, 0, 0},
		{"deferred", Config{}, classifier.Reject, Packet{Frame: Datagram(t, a4, b4)}, DeferDenied, 0, 0},
		{"drop stays silent", Config{}, classifier.Drop, Packet{Final: true, Frame: Segment(t, a4, b4, syn, 1)}, DropPolicy, 0, 0},
		{"drop in mid-stream stays silent", Config{}, classifier.Drop, Packet{Final: true, Frame: Segment(t, a4, b4, ack, 1)}, DropPolicy, 0, 0},
		{"cut: SYN stays silent", cut, classifier.Drop, Packet{Final: true, Frame: Segment(t, a4, b4, syn, 1)}, DropPolicy, 0, 0},
		{"cut: datagram stays silent", cut, classifier.Drop, Packet{Final: true, Frame: Datagram(t, a4, b4)}, DropPolicy, 0, 0},
		{"cut: data from the opener", cut, classifier.Drop, Packet{Final: true, Frame: Segment(t, a4, b4, ack, 1)}, DropPolicy, flow.TCP, AnswerSent},
		{"cut: data from the other side", cut, classifier.Drop, Packet{Final: true, Reply: true, Frame: Segment(t, b4, a4, ack, 1)}, DropPolicy, flow.TCP, AnswerSent},
	} {
		t.Run(c.name, func(t *testing.T) {
			x, d := newRejecter(t, c.cfg)
			if _, err := x.e.Publish(&Stub{Gen: 1, Allowed: Never, Denial: c.denial}); err != nil {
				t.Fatal(err)
			}
			path, p := x.feedTo(&d.quietDriver, c.p)
			if silent := c.path == DropPolicy && c.denial == classifier.Drop && c.proto == 0; p.Remember != silent {
				t.Errorf("remember is %t: only what nobody is told may be dropped in the kernel", p.Remember)
			}
			if path != c.path || p.Disposition == PassPacket {
				t.Fatalf("took %v", path)
			}
			var h packet.Headers
			if len(d.answer) > 0 && packet.ParseIP(d.answer, &h) != packet.OK {
				t.Fatalf("answer %x", d.answer)
			}
			if h.Key.Proto != c.proto || c.proto != 0 && (h.Key.Src != p.Headers.Key.Dst || h.Key.Dst != p.Headers.Key.Src) {
				t.Errorf("answer %v to %v", h.Key, p.Headers.Key)
			}
			want := [NumAnswers]uint64{}
			if c.proto != 0 || c.count != AnswerSent {
				want[c.count] = 1
			}
			if got := x.e.Stats().Answers; got != want {
				t.Errorf("counted %v, want %v", got, want)
			}
		})
	}
}

// TestCutReset: a table cuts a live connection; its next segment is answered by a
// reset, though the verdict is Drop.
func TestCutReset(t *testing.T) {
	x, d := newRejecter(t, Config{CutReset: true})
	if _, err := x.e.Publish(&Stub{Gen: 1, Allowed: Always}); err != nil {
		t.Fatal(err)
	}
	x.feedTo(&d.quietDriver, Packet{Final: true, Frame: Segment(t, a4, b4, Flags{SYN: true}, 1)})
	// Not yet judged again: the record is there, the table is new.
	x.e.current.Store(&snapshot{classifier: &Stub{Gen: 2, Allowed: Never}, generation: 2})
	if path, _ := x.feedTo(&d.quietDriver, Packet{Final: true, Frame: Segment(t, a4, b4, Flags{ACK: true}, 2)}); path != DropCut || len(d.answer) == 0 {
		t.Errorf("took %v, answer %x", path, d.answer)
	}
}

// TestRejectRate: so many a second, a tenth of them at once, by the engine's clock.
func TestRejectRate(t *testing.T) {
	x, d := newRejecter(t, Config{RejectRate: 50})
	if _, err := x.e.Publish(&Stub{Gen: 1, Allowed: Never, Denial: classifier.Reject}); err != nil {
		t.Fatal(err)
	}
	p := Packet{Final: true, Frame: Datagram(t, a4, b4)}
	flood := func(n int) uint64 {
		before := x.e.Stats().Answers[AnswerSent]
		for range n {
			x.feedTo(&d.quietDriver, p)
		}
		return x.e.Stats().Answers[AnswerSent] - before
	}
	if got := flood(100); got != 5 {
		t.Errorf("%d answers at once, want 5", got)
	}
	x.now += int64(20 * time.Millisecond)
	if got := flood(100); got != 1 {
		t.Errorf("%d answers 20 ms later, want 1", got)
	}
	x.now += int64(time.Hour)
	if got := flood(100); got != 5 {
		t.Errorf("%d answers an hour later, want 5", got)
	}
	total := uint64(0)
	for range 1000 {
		x.now += int64(time.Millisecond)
		total += flood(2)
	}
	if total < 49 || total > 51 {
		t.Errorf("%d answers in a second, want 50", total)
	}
	d.fail = errors.New("no buffer")
	x.now += int64(time.Second)
	before := x.e.Stats().Answers
	flood(3)
	if after := x.e.Stats().Answers; after[AnswerFailed]-before[AnswerFailed] != 3 || after[AnswerSent] != before[AnswerSent] {
		t.Errorf("failures: %v, then %v", before, after)
	}
	d.answer = nil
	p.Frame = Datagram(t, a4, "255.255.255.255:9")
	if flood(1); d.answer != nil {
		t.Errorf("broadcast answered with %x", bytes.Clone(d.answer))
	}
}

// A driver that cannot answer drops.
func TestRejectWithoutRejecter(t *testing.T) {
	x := newBench(t, Config{})
	if _, err := x.e.Publish(&Stub{Gen: 1, Allowed: Never, Denial: classifier.Reject}); err != nil {
		t.Fatal(err)
	}
	path, p := x.feed(Packet{Final: true, Frame: Datagram(t, a4, b4)})
	if path != DropPolicy || p.Verdict != classifier.Reject || x.e.Stats().Answers[AnswerFailed] != 1 {
		t.Errorf("took %v, verdict %v, counted %v", path, p.Verdict, x.e.Stats().Answers)
	}
}

func TestRejectAllocatesNothing(t *testing.T) {
	x, d := newRejecter(t, Config{RejectRate: 1 << 20})
	if _, err := x.e.Publish(&Stub{Gen: 1, Allowed: Never, Denial: classifier.Reject, Quiet: true}); err != nil {
		t.Fatal(err)
	}
	d.answer = make([]byte, 0, packet.MaxAnswer)
	var b Batch
	for i := range b.Packets {
		b.Packets[i] = Packet{Final: true, Frame: Segment(t, a4, b4, Flags{SYN: true}, 1)}
	}
	b.N = BatchSize
	if n := testing.AllocsPerRun(20, func() { x.now += int64(time.Second); x.w.process(&b) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if x.e.Stats().Answers[AnswerSent] != 21*BatchSize {
		t.Errorf("counted %v", x.e.Stats().Answers)
	}
}
