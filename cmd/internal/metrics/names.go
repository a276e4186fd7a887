package metrics

import "github.com/tierwall/tierwall/dataplane/dns"

// Names is what is read of the daemon's knowledge of DNS names.
type Names struct {
	Known    dns.Stats
	Observed dns.ObserverStats
}

var (
	dnsSets      = desc("dns_sets", "Patterns of DNS names in the policy in force.")
	dnsNames     = desc("dns_names", "DNS names known with their addresses.")
	dnsAddresses = desc("dns_addresses", "Addresses known behind DNS names, once for each name.")
	dnsEvicted   = desc("dns_evictions_total", "DNS names and addresses forgotten because there were too many.")
	dnsRefused   = desc("dns_names_refused_total", "DNS names not taken in, because there were too many and all of them in use.")
	dnsMessages  = desc("dns_messages_total", "DNS messages of policed pods, by kind: query, answer, unasked (an answer nobody waited for), foreign (of a server that is not believed), unreadable. Only answers teach addresses; all pass.", "kind")
	dnsHeld      = desc("dns_answers_held_total", "Answers with new addresses, by whether they waited until these were in force: in-force, late (went on after dns.hold, before that), crowded (too many waited).", "result")
)

// names reads what DNS has taught.
func (c *Collector) names(s sink, n Names) {
	s.gauge(dnsSets, float64(n.Known.Sets))
	s.gauge(dnsNames, float64(n.Known.Names))
	s.gauge(dnsAddresses, float64(n.Known.Addresses))
	s.counter(dnsEvicted, n.Known.Evicted)
	s.counter(dnsRefused, n.Known.Refused)
	o := &n.Observed
	s.counter(dnsMessages, o.Queries, "query")
	s.counter(dnsMessages, o.Answers, "answer")
	s.counter(dnsMessages, o.Unasked, "unasked")
	s.counter(dnsMessages, o.Foreign, "foreign")
	s.counter(dnsMessages, o.Unreadable, "unreadable")
	s.counter(dnsHeld, o.Waited, "in-force")
	s.counter(dnsHeld, o.Late, "late")
	s.counter(dnsHeld, o.Crowded, "crowded")
}
