package dns

import (
	"net/netip"
	"time"

	"github.com/tierwall/tierwall/classifier/flow"
)

// Bounds of what is remembered of queries.
const (
	perClient  = 512
	maxClients = 4096
	askedFor   = 15 * time.Second // resolvers give up after five
)

// query is an open question.
type query struct {
	flow     flow.Key // in the query's direction
	id       uint16
	question question
	at       time.Time // zero: answered
}

// asked remembers open questions by client. It belongs to one goroutine.
type asked struct {
	clients map[netip.Addr]*clientQueries
	swept   time.Time
}

// clientQueries is a ring that grows up to perClient.
type clientQueries struct {
	list []query
	next int // to be overwritten, once list is full
	last time.Time
}

// add remembers a query. k is the packet's.
func (a *asked) add(k flow.Key, m *message, now time.Time) {
	client := k.Src.Netip()
	c := a.clients[client]
	if c == nil {
		if a.clients == nil {
			a.clients = map[netip.Addr]*clientQueries{}
		}
		if len(a.clients) >= maxClients || now.Sub(a.swept) > askedFor {
			a.sweep(now)
		}
		if len(a.clients) >= maxClients {
			return // its answers pass and teach nothing
		}
		c = &clientQueries{}
		a.clients[client] = c
	}
	c.last = now
	q := query{k, m.id, m.question, now}
	if len(c.list) < perClient {
		c.list = append(c.list, q)
		return
	}
	c.list[c.next] = q
	c.next = (c.next + 1) % perClient
}

// take reports whether an answer was asked for, and closes the question. k is the
// answer's.
func (a *asked) take(k flow.Key, m *message, now time.Time) bool {
	c := a.clients[k.Dst.Netip()]
	if c == nil {
		return false
	}
	k = k.Reverse()
	for i := range c.list {
		q := &c.list[i]
		if q.id == m.id && q.flow == k && q.question == m.question && !q.at.IsZero() && now.Sub(q.at) <= askedFor {
			q.at = time.Time{}
			return true
		}
	}
	return false
}

// sweep forgets clients that are silent.
func (a *asked) sweep(now time.Time) {
	a.swept = now
	for client, c := range a.clients {
		if now.Sub(c.last) > askedFor {
			delete(a.clients, client)
		}
	}
}
