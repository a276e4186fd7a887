package dataplane

import (
	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/dataplane/packet"
)

// Answer says what became of the answer to a packet that was refused.
type Answer uint8

// Answers.
const (
	AnswerSent    Answer = iota
	AnswerLimited        // more than Config.RejectRate
	AnswerBarred         // the packet must not be answered, see packet.Answer
	AnswerFailed         // the driver could not send it, or cannot answer at all
	NumAnswers    = int(AnswerFailed) + 1
)

var answerNames = [NumAnswers]string{"sent", "limited", "barred", "failed"}

// String returns the name, a bounded metric label.
func (a Answer) String() string {
	if int(a) < len(answerNames) {
		return answerNames[a]
	}
	return "invalid"
}

// reject answers a packet that was denied, if its sender is to know.
func (w *Worker) reject(p *Packet, now int64) {
	if w.tells(p) {
		w.count.answers[w.respond(p, now)]++
	}
}

// tells reports whether the sender of a denied packet is to know.
func (w *Worker) tells(p *Packet) bool {
	return p.Verdict == classifier.Reject || w.engine.cfg.CutReset && inMidStream(&p.Headers)
}

// inMidStream reports whether a segment belongs to a connection that its sender
// believes in.
func inMidStream(h *packet.Headers) bool {
	return h.Key.Proto == flow.TCP && h.TCPFlags&(packet.SYN|packet.RST) == 0
}

// respond sends the answer. The order of checks: nothing is taken from the bucket
// for what is not sent.
func (w *Worker) respond(p *Packet, now int64) Answer {
	n := packet.Answer(w.answer[:], p.Frame, &p.Headers)
	switch {
	case n == 0:
		return AnswerBarred
	case !w.bucket.take(now):
		return AnswerLimited
	case w.driver.Reject(p, w.answer[:n]) != nil:
		return AnswerFailed
	}
	return AnswerSent
}

// bucket is a token bucket, kept as the time at which it will be full (the
// generic cell rate algorithm): two words, and nothing to refill.
type bucket struct {
	full  int64 // engine clock
	cost  int64 // nanoseconds a token takes to come back; 0 = there are none
	depth int64 // nanoseconds until an empty bucket is full
}

// newBucket returns a full bucket of rate tokens a second and a tenth of that,
// at least one, at once.
func newBucket(rate int) bucket {
	if rate <= 0 {
		return bucket{}
	}
	const second = 1_000_000_000
	cost := max(second/int64(rate), 1)
	return bucket{cost: cost, depth: max(int64(rate)/10, 1) * cost}
}

// take takes a token and reports whether there was one.
func (b *bucket) take(now int64) bool {
	full := max(b.full, now) + b.cost
	if b.cost == 0 || full-now > b.depth {
		return false
	}
	b.full = full
	return true
}
