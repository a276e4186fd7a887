package audit

import (
	"net/netip"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/tierwall/tierwall/classifier/rule"
)

// nilWord fills a field that does not apply, as Antrea does since v1.13.
const nilWord = "<nil>"

// bandTables gives each band the name of the Open vSwitch table that holds the
// same rules in Antrea, because log processors filter on it. Antrea keeps
// upstream admin policies in its own policy tables and baseline policies in the
// default tables.
var bandTables = map[string]string{
	rule.BandAntreaUpper.String():    "AntreaPolicy%Rule",
	rule.BandAdmin.String():          "AntreaPolicy%Rule",
	rule.BandClusterEmpower.String(): "AntreaPolicy%Rule",
	rule.BandClusterDeny.String():    "AntreaPolicy%Rule",
	rule.BandClusterAllow.String():   "AntreaPolicy%Rule",
	rule.BandAntreaLower.String():    "AntreaPolicy%Rule",
	rule.BandNetworkPolicy.String():  "%Rule",
}

func antreaTable(r *Record) string {
	switch r.Kind {
	case KindLost:
		return "AuditLost"
	case KindPacket:
		return "Undecidable"
	case KindFile:
		return "AuditFile"
	}
	pattern := "%DefaultRule" // baselines, default deny and default allow
	if p, ok := bandTables[r.Band]; ok && r.Reason != "isolation" {
		pattern = p
	}
	if r.Stage == StageAudit {
		pattern = "Staged" + pattern // Antrea has no dry run: not to be taken for a real denial
	}
	return strings.Replace(pattern, "%", directionWord(r.Direction), 1)
}

func directionWord(d string) string {
	switch d {
	case "ingress":
		return "Ingress"
	case "egress":
		return "Egress"
	}
	return ""
}

// antreaReference names a policy the way Antrea's log does.
func antreaReference(p *Policy) string {
	kind := p.Kind
	switch {
	case p.Group == "crd.antrea.io":
		kind = "Antrea" + kind
	case p.Group == "networking.k8s.io" && kind == "NetworkPolicy":
		kind = "K8sNetworkPolicy"
	}
	name := p.Name
	if p.Namespace != "" {
		name = p.Namespace + "/" + name
	}
	return kind + ":" + name
}

// antreaPolicy is the policy field. A default deny names every isolating policy,
// separated by commas and without spaces: still one field.
func antreaPolicy(r *Record) string {
	deciders := r.Deciders()
	names := make([]string, len(deciders))
	for i := range deciders {
		names[i] = antreaReference(&deciders[i])
	}
	return strings.Join(names, ",")
}

// k8sPriority is what Antrea logs for every Kubernetes NetworkPolicy rule: the
// kind has no priorities, and tools have come to expect the number.
const k8sPriority = "190"

// antreaPriority is the rule's priority as its policy states it (lower wins).
// Antrea prints its flow's OpenFlow priority, which no other engine can have.
func antreaPriority(r *Record) string {
	switch {
	case r.Priority == nil:
		return nilWord
	case r.Band == rule.BandNetworkPolicy.String() && *r.Priority == 0:
		return k8sPriority
	}
	return strconv.FormatFloat(*r.Priority, 'f', -1, 64)
}

// word makes s one field: names come from users, and a blank in a rule's name
// must not shift the fields behind it.
func word(s string) string {
	if s == "" {
		return nilWord
	}
	clean := func(c rune) rune {
		if unicode.IsSpace(c) || !unicode.IsPrint(c) {
			return '_'
		}
		return c
	}
	return strings.Map(clean, s)
}

func addrWord(e *Endpoint) string {
	if e == nil || e.IP == (netip.Addr{}) {
		return nilWord
	}
	return e.IP.WithZone("").String() // a zone is free text; packets have none
}

func portWord(r *Record, e *Endpoint) string {
	if r.Ports != nil { // too many to tell
		return nilWord
	}
	switch r.Protocol {
	case "TCP", "UDP", "SCTP":
		if e != nil {
			return strconv.Itoa(int(e.Port))
		}
	}
	return nilWord
}

// appendAntrea appends the record as an Antrea audit line, v2 with rule name,
// direction, applied-to pod and log label. The date is the end of an
// aggregate's second, as with Antrea, whose line is stamped when it is written.
//
//	v1: date time table policy action priority srcIP srcPort dstIP dstPort protocol length
//	v2: date time table policy rule direction action priority appliedTo srcIP srcPort dstIP dstPort protocol length label
//
// An aggregate of several packets gains " [<n> packets in <duration>]" (S2-86).
func (r *Record) appendAntrea(b []byte, v2 bool) []byte {
	stamp := r.Time
	var took time.Duration
	if r.Until != nil {
		stamp, took = *r.Until, r.Until.Sub(r.Time)
	}
	verdict := r.Verdict
	for enforced, staged := range would {
		if verdict == staged { // the table's name says that it was not enforced
			verdict = enforced
		}
	}
	switch r.Kind {
	case KindLost:
		verdict = "Lost"
	case KindFile:
		verdict = ""
	}
	b = stamp.UTC().AppendFormat(b, "2006/01/02 15:04:05.000000")
	put := func(s string) { b = append(append(b, ' '), s...) }
	put(antreaTable(r))
	put(word(antreaPolicy(r)))
	if v2 {
		name := ""
		if r.Rule != nil {
			name = r.Rule.Name
		}
		put(word(name))
		put(word(directionWord(r.Direction)))
	}
	put(word(verdict))
	put(antreaPriority(r))
	if v2 {
		applied := r.Source
		if r.Direction == "ingress" {
			applied = r.Destination
		}
		name := ""
		if applied != nil && applied.Pod != "" {
			name = applied.Name()
		}
		put(word(name))
	}
	put(addrWord(r.Source))
	put(portWord(r, r.Source))
	put(addrWord(r.Destination))
	put(portWord(r, r.Destination))
	put(word(r.Protocol))
	put(strconv.FormatUint(uint64(r.Length), 10))
	if v2 {
		put(word(r.Label))
	}
	if r.Count > 1 || r.Kind == KindLost {
		put("[" + strconv.FormatUint(r.Count, 10) + " packets in " + took.String() + "]")
	}
	return append(b, '\n')
}
