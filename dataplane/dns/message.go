package dns

import (
	"errors"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// Bounds of one message; a real one comes nowhere near.
const (
	maxRecords = 4096
	maxChain   = 16 // CNAME records in a row; resolvers give up earlier
)

// question is what a query asks for. name is in lower case, with the root's dot.
type question struct {
	name  string
	typ   dnsmessage.Type
	class dnsmessage.Class
}

// message is what counts of a DNS message.
type message struct {
	id       uint16
	response bool
	question question
	addrs    []record // of the question's name; only in a response
}

// record is an address and how long it holds.
type record struct {
	addr netip.Addr
	ttl  time.Duration
}

// parse reads a message of RFC 1035 §4.1. ok is false for what is neither a
// standard query nor an answer to one, for errors, for messages with other than
// one question, and for what is malformed. Of an answer that ends early the
// records before count (RFC 2181 §9).
func parse(b []byte) (m message, ok bool) {
	var p dnsmessage.Parser
	h, err := p.Start(b)
	if err != nil || h.OpCode != 0 || h.RCode != dnsmessage.RCodeSuccess {
		return m, false
	}
	q, err := p.Question()
	if err != nil {
		return m, false
	}
	if _, err := p.Question(); !errors.Is(err, dnsmessage.ErrSectionDone) {
		return m, false
	}
	m = message{id: h.ID, response: h.Response, question: question{lower(q.Name), q.Type, q.Class}}
	if !h.Response {
		return m, true
	}
	m.addrs = addresses(&p, m.question.name)
	return m, true
}

// alias is a CNAME record.
type alias struct {
	to  string
	ttl time.Duration
}

// addresses returns the addresses that the answer section gives for a name.
func addresses(p *dnsmessage.Parser, name string) []record {
	aliases := map[string]alias{}
	found := map[string][]record{}
	for range maxRecords {
		h, err := p.AnswerHeader()
		if err != nil {
			break
		}
		owner, ttl := lower(h.Name), duration(h.TTL)
		if h.Class != dnsmessage.ClassINET {
			if p.SkipAnswer() != nil {
				break
			}
			continue
		}
		switch h.Type {
		case dnsmessage.TypeCNAME:
			r, rerr := p.CNAMEResource()
			if err = rerr; err == nil {
				aliases[owner] = alias{lower(r.CNAME), ttl}
			}
		case dnsmessage.TypeA:
			r, rerr := p.AResource()
			if err = rerr; err == nil {
				found[owner] = appendAddr(found[owner], netip.AddrFrom4(r.A), ttl)
			}
		case dnsmessage.TypeAAAA:
			r, rerr := p.AAAAResource()
			if err = rerr; err == nil {
				found[owner] = appendAddr(found[owner], netip.AddrFrom16(r.AAAA), ttl)
			}
		default:
			err = p.SkipAnswer()
		}
		if err != nil {
			break
		}
	}
	var all []record
	least := time.Duration(1<<63 - 1)
	for range maxChain {
		for _, r := range found[name] {
			all = append(all, record{r.addr, min(r.ttl, least)})
		}
		delete(found, name) // a chain in a ring
		a, ok := aliases[name]
		if !ok {
			break
		}
		name, least = a.to, min(least, a.ttl)
	}
	return all
}

// appendAddr leaves out addresses that no peer can have.
func appendAddr(to []record, a netip.Addr, ttl time.Duration) []record {
	if a.IsUnspecified() || a.IsLoopback() || a.IsMulticast() || a.Is4In6() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
		return to
	}
	return append(to, record{a, ttl})
}

// duration reads a TTL: what has the highest bit set is 0 (RFC 2181 §8).
func duration(ttl uint32) time.Duration {
	if ttl >= 1<<31 {
		return 0
	}
	return time.Duration(ttl) * time.Second
}

func lower(n dnsmessage.Name) string { return strings.ToLower(n.String()) }
