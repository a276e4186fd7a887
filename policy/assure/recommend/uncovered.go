package recommend

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/tierwall/tierwall/classifier/flow"
)

// Uncovered is a kind of connection that the recommendation does not allow, and
// why.
type Uncovered struct {
	From      string    `json:"from"`
	To        string    `json:"to"`
	Port      string    `json:"port"`
	Why       string    `json:"why"`
	Decisions uint64    `json:"decisions"` // in the log
	First     time.Time `json:"first,omitzero"`
	Last      time.Time `json:"last,omitzero"`
}

type uncoveredKey struct{ from, to, port, why string }

// refuse notes a connection that is not covered.
func (s *Seen) refuse(c *Connection, why string) {
	k := uncoveredKey{c.From.name(), c.To.name(), portText(c.Proto, c.Port), why}
	u := s.uncover[k]
	if u == nil {
		if len(s.uncover) >= maxUncovered {
			s.more++
			return
		}
		u = &Uncovered{From: k.from, To: k.to, Port: k.port, Why: why, First: c.Time, Last: c.Time}
		s.uncover[k] = u
	}
	u.Decisions++
	if c.Time.Before(u.First) {
		u.First = c.Time
	}
	if c.Time.After(u.Last) {
		u.Last = c.Time
	}
}

// leaveOut notes decisions that are not covered, by workload.
func (s *Seen) leaveOut(from, to, port, why string, n uint64) {
	k := uncoveredKey{from, to, port, why}
	u := s.uncover[k]
	if u == nil {
		if len(s.uncover) >= maxUncovered {
			s.more += n
			return
		}
		u = &Uncovered{From: from, To: to, Port: port, Why: why}
		s.uncover[k] = u
	}
	u.Decisions += n
}

// listUncovered returns what is not covered, the most frequent first.
func (s *Seen) listUncovered() []Uncovered {
	out := make([]Uncovered, 0, len(s.uncover))
	for _, u := range s.uncover {
		out = append(out, *u)
	}
	slices.SortFunc(out, func(a, b Uncovered) int {
		return cmp.Or(cmp.Compare(b.Decisions, a.Decisions), strings.Compare(a.From, b.From), strings.Compare(a.To, b.To),
			strings.Compare(a.Port, b.Port), strings.Compare(a.Why, b.Why))
	})
	return out
}

// portText writes a port as questions do: "443/TCP", "ICMP type 8 code 0".
func portText(p flow.Proto, port uint16) string { return spanText(p.String(), p, port, port) }
