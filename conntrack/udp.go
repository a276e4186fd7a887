package conntrack

// Protocols without a connection of their own that we read (UDP, ICMP echo, the
// unknown ones) have two states. So has SCTP: its multi-homing and its restart
// rules make a tuple-based machine wrong more often than useful, and heartbeats
// (RFC 9260 §8.3) keep both directions audible.

// startPair is the state after the first packet seen.
func startPair(reply bool) State { return advancePair(Unreplied, reply) }

// advancePair is the machine: one answer is enough.
func advancePair(s State, reply bool) State {
	if reply {
		return Replied
	}
	return s
}
