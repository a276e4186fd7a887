package dataplane

// Fate is what a backend's kernel side did with a packet by itself. Each packet it
// saw has one, so that the counts of all fates add up to the packets seen; those of
// FateUpcall then take a Path in userspace, or are counted by BackendStats.Overflow.
type Fate uint8

// Fates. Pass, Leave and Drop say what became of the packet.
const (
	FateUpcall      Fate = iota // sent to userspace
	PassAccepted                // of an accepted connection
	PassAccelerated             // of an accepted connection, to the other pod past the host's stack
	PassExempt                  // not IP, or signalling of the link
	PassForeign                 // not a pod's business
	PassUnheard                 // nobody there to judge it, or no room to wait, and fail mode open
	LeaveLater                  // left to the later hook: it is known to judge this flow
	LeaveUnparsed               // left to the later hook: this one cannot judge it
	LeaveUnheard                // left to the later hook: nobody there to judge it, or no room to wait
	DropUnparsed                // cannot be judged, and there is no later hook
	DropDenied                  // of a flow denied a moment ago
	DropLimited                 // its source sends more first packets than it may
	DropUnheard                 // nobody there to judge it
	DropUnknownPod              // an address of this node's pods that no known pod has
	DropForged                  // an address that its sender cannot have
	DropStray                   // not from any pod: a frame on a device of our own
	DropHeld                    // translated, and judged from its next packet on
	NumFates        = int(DropHeld) + 1
)

var fateNames = [NumFates][2]string{
	{"upcall", "first"},
	{"pass", "accepted"},
	{"pass", "accelerated"},
	{"pass", "exempt"},
	{"pass", "foreign"},
	{"pass", "unheard"},
	{"defer", "later"},
	{"defer", "unparsed"},
	{"defer", "unheard"},
	{"drop", "unparsed"},
	{"drop", "denied"},
	{"drop", "limited"},
	{"drop", "unheard"},
	{"drop", "unknown-local"},
	{"drop", "forged"},
	{"drop", "stray"},
	{"drop", "held"},
}

// Disposition and Reason are bounded metric labels: "pass", "defer", "drop" or
// "upcall", and why.
func (f Fate) Disposition() string { return f.name()[0] }

// Reason is why; see Disposition.
func (f Fate) Reason() string { return f.name()[1] }

func (f Fate) name() [2]string {
	if int(f) < len(fateNames) {
		return fateNames[f]
	}
	return [2]string{"invalid", "invalid"}
}

// String returns "pass/accepted", "drop/forged" and so on.
func (f Fate) String() string { return f.Disposition() + "/" + f.Reason() }

// Fates counts packets by fate. It is a plain value.
type Fates [NumFates]uint64

// Total returns the packets of all fates.
func (f *Fates) Total() (n uint64) {
	for _, c := range f {
		n += c
	}
	return n
}
