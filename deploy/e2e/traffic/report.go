package traffic

import "time"

// Late is how long an answer may take before its datagram counts as lost. It is far
// longer than any queue on the way and shorter than a conntrack entry.
const Late = 2 * time.Second

// Kind is a way of sending.
type Kind string

// The kinds of traffic.
const (
	// Datagrams is one UDP flow, request and response.
	Datagrams Kind = "udp"
	// NewDatagrams is UDP with a socket, hence a flow, per request.
	NewDatagrams Kind = "new-udp"
	// Stream is one TCP connection, request and response.
	Stream Kind = "stream"
	// Connects is TCP with a connection per request.
	Connects Kind = "connect"
	// Sweep is UDP to every address of a prefix in turn; nothing is awaited.
	Sweep Kind = "sweep"
)

// Report is what a process has sent and heard since it started.
type Report struct {
	Flows []Flow           `json:"flows"`
	Heard map[string]Heard `json:"heard"` // by the sender's address
}

// Flow is what became of one kind of traffic to one address. Durations are in
// nanoseconds.
type Flow struct {
	Kind     Kind   `json:"kind"`
	To       string `json:"to"`
	Sent     int    `json:"sent"`     // requests, or connections tried
	Answered int    `json:"answered"` // of them
	// Lost are datagrams without an answer after Late, and segments that had to be
	// sent again because they did not arrive.
	Lost int `json:"lost"`
	// Spurious are segments sent again that had arrived.
	Spurious int           `json:"spurious"`
	Slowest  time.Duration `json:"slowest"` // answer since the last report
	// First is how long after the process started to send there was an answer.
	First time.Duration `json:"first"`
	// Broken says why a stream ended, or why the last try could not be made.
	Broken string `json:"broken,omitempty"`
}

// Heard is what arrived from one address.
type Heard struct {
	Datagrams   int `json:"datagrams"`
	Connections int `json:"connections"`
	Lost        int `json:"lost"` // segments of the answers on its streams
}
