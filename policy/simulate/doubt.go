package simulate

import (
	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/policy/inventory"
)

// A rule can ask three kinds of questions about an address of a pod network that no
// known pod has: those that the address answers, those about the pod that may
// be about to have it, and how that pod's ports are named. The last two are in doubt.
// No rule asks for the opposite of something, so a rule surely matches if it does
// when every doubt is resolved as no, and may match if it does when every doubt is
// resolved as yes.

// answer is whether a rule matches.
type answer uint8

const (
	no answer = iota
	inDoubt
	yes
)

// ask asks a rule about the connection.
func (c *connection) ask(matches func(*connection) bool) answer {
	if matches(c) {
		return yes
	}
	maybe := *c
	maybe.src.guess, maybe.dst.guess = c.src.unknown, c.dst.unknown
	if (c.src.unknown || c.dst.unknown) && matches(&maybe) {
		return inDoubt
	}
	return no
}

// first finds the rule that decides among n that are asked in order: the first that
// matches, surely or in doubt. An Allow in doubt does not count where the further
// rules come to an Allow anyway.
func first(n int, ask func(i int) answer, allows func(i int) bool) (i int, a answer) {
	for i = range n {
		if a = ask(i); a == no {
			continue
		}
		if a == yes || !allows(i) {
			return i, a
		}
		for j := i + 1; j < n; j++ {
			switch b := ask(j); {
			case b == no:
			case !allows(j):
				return i, inDoubt
			case b == yes:
				return j, yes
			}
		}
		return i, inDoubt
	}
	return -1, no
}

// is applies a question about a pod.
func (p *party) is(such func(*inventory.Pod) bool) bool {
	if p.pod == nil {
		return p.guess
	}
	return such(p.pod)
}

// doubted is the outcome when it matters who has an address, and nobody knows: fail
// closed.
func doubted() Outcome {
	return Outcome{Verdict: classifier.Drop, Reason: classifier.ReasonUnknownPeer, Index: -1}
}
