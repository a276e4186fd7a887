package conntrack

import (
	"errors"
	"fmt"
	"time"

	"github.com/tierwall/tierwall/classifier/flow"
)

// DefaultRecords is Limits.Records when that is zero, MaxRecords the most it may be.
const (
	DefaultRecords = 65536
	MaxRecords     = 1 << 24
)

// Limits bound a table. The zero value is the default.
type Limits struct {
	Records  int // most records at a time; 0 = DefaultRecords
	Timeouts Timeouts
	// Worker numbers the table among those of the process. It becomes the upper
	// 16 bits of every Record.ID.
	Worker uint16
}

// Timeouts are idle times, by protocol and state. Zero means the default.
type Timeouts struct {
	TCPOpening     time.Duration // syn-sent, syn-recv: 4 min (RFC 5382 REQ-5, transitory)
	TCPEstablished time.Duration // established: 2 h 4 min (RFC 5382 REQ-5, the least it allows)
	TCPClosing     time.Duration // one or both FINs: 4 min (RFC 5382 REQ-5, transitory)
	TCPTimeWait    time.Duration // 2 min, twice the segment lifetime (Linux nf_conntrack_tcp_timeout_time_wait)
	TCPClosed      time.Duration // after RST: 10 s (Linux nf_conntrack_tcp_timeout_close)
	UDPUnreplied   time.Duration // 2 min (RFC 4787 REQ-5, the least it allows)
	UDPReplied     time.Duration // 5 min (RFC 4787 REQ-5, its recommendation)
	SCTPUnreplied  time.Duration // 2 min, two retransmissions at RTO.Max (RFC 9260 §16)
	SCTPReplied    time.Duration // 210 s, several heartbeats (Linux nf_conntrack_sctp_timeout_established)
	ICMP           time.Duration // 60 s (RFC 5508 §3.2, the least it allows)
	Other          time.Duration // 10 min (Linux nf_conntrack_generic_timeout)
}

// DefaultTimeouts returns what the zero Timeouts stands for.
func DefaultTimeouts() Timeouts {
	return Timeouts{
		TCPOpening:     4 * time.Minute,
		TCPEstablished: 2*time.Hour + 4*time.Minute,
		TCPClosing:     4 * time.Minute,
		TCPTimeWait:    2 * time.Minute,
		TCPClosed:      10 * time.Second,
		UDPUnreplied:   2 * time.Minute,
		UDPReplied:     5 * time.Minute,
		SCTPUnreplied:  2 * time.Minute,
		SCTPReplied:    210 * time.Second,
		ICMP:           time.Minute,
		Other:          10 * time.Minute,
	}
}

// fields pairs every timeout with its name.
func (t *Timeouts) fields() [11]struct {
	name  string
	value *time.Duration
} {
	return [11]struct {
		name  string
		value *time.Duration
	}{
		{"TCPOpening", &t.TCPOpening},
		{"TCPEstablished", &t.TCPEstablished},
		{"TCPClosing", &t.TCPClosing},
		{"TCPTimeWait", &t.TCPTimeWait},
		{"TCPClosed", &t.TCPClosed},
		{"UDPUnreplied", &t.UDPUnreplied},
		{"UDPReplied", &t.UDPReplied},
		{"SCTPUnreplied", &t.SCTPUnreplied},
		{"SCTPReplied", &t.SCTPReplied},
		{"ICMP", &t.ICMP},
		{"Other", &t.Other},
	}
}

// Validate reports every limit that makes no sense.
func (l Limits) Validate() error {
	var errs []error
	if l.Records < 0 || l.Records > MaxRecords {
		errs = append(errs, fmt.Errorf("limit Records is %d: want 0 for the default, or 1 to %d", l.Records, MaxRecords))
	}
	for _, f := range l.Timeouts.fields() {
		if *f.value < 0 {
			errs = append(errs, fmt.Errorf("limit Timeouts.%s is %v: want 0 for the default, or more", f.name, *f.value))
		}
	}
	return errors.Join(errs...)
}

// withDefaults replaces zeros.
func (l Limits) withDefaults() Limits {
	if l.Records == 0 {
		l.Records = DefaultRecords
	}
	defaults := DefaultTimeouts()
	ours, theirs := l.Timeouts.fields(), defaults.fields()
	for i, f := range ours {
		if *f.value == 0 {
			*f.value = *theirs[i].value
		}
	}
	return l
}

// Idle returns after how long without a packet rec is forgotten. t must have no
// zeros (see DefaultTimeouts).
func (t *Timeouts) Idle(rec *Record) time.Duration {
	switch rec.Key.Proto {
	case flow.TCP:
		return t.tcp(rec)
	case flow.UDP:
		if rec.State == Replied || rec.Bypassed {
			return t.UDPReplied
		}
		return t.UDPUnreplied
	case flow.SCTP:
		if rec.State == Replied || rec.Bypassed {
			return t.SCTPReplied
		}
		return t.SCTPUnreplied
	case flow.ICMP, flow.ICMPv6:
		return t.ICMP
	}
	return t.Other
}

func (t *Timeouts) tcp(rec *Record) time.Duration {
	switch rec.State {
	case SynSent, SynRecv:
		if rec.Bypassed {
			return t.TCPEstablished
		}
		return t.TCPOpening
	case FinOpener, FinReplier, Closing:
		return t.TCPClosing
	case TimeWait:
		return t.TCPTimeWait
	case Closed:
		return t.TCPClosed
	}
	return t.TCPEstablished
}
