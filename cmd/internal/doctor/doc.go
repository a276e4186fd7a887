// Package doctor looks at a node: what Tierwall needs and whether it is there, what
// stands beside it, and which dataplanes work. It changes nothing on the node, except
// that using a feature of the kernel makes it load the module (Options.NoLoad keeps it
// from that).
//
// Whether a backend works is found out by running it in a network namespace that ends
// with the call; everything else is there to explain the result, and to name what a
// namespace of its own cannot show: the network plugin, the Service proxy, other rules.
package doctor

import (
	"cmp"
	"os"
	"slices"
)

// State is what a check found.
type State string

// States, from good to bad.
const (
	OK       State = "ok"
	Loadable State = "loadable" // a module that using it loads
	Warning  State = "warning"  // works, with what Detail says; or could not be looked at
	Missing  State = "missing"
)

// Check is one thing that was looked at.
type Check struct {
	Name   string `json:"name"`
	State  State  `json:"state"`
	Detail string `json:"detail"`
	Hint   string `json:"hint,omitempty"` // what to do about it
}

// Dataplane says how a value of the configuration key "dataplane" would work here.
type Dataplane struct {
	Works  Works    `json:"works"`
	How    string   `json:"how,omitempty"`    // in which of several ways
	Limits []string `json:"limits,omitempty"` // what it does not do here
	Why    string   `json:"why,omitempty"`    // why it does not work, or was not tried
}

// Works is how well a dataplane works.
type Works string

// Degrees of Works.
const (
	Fully    Works = "fully"
	Partly   Works = "partly"
	No       Works = "no"
	NotTried Works = "not tried"
)

// Report is what a look at a node gave.
type Report struct {
	Kernel     string               `json:"kernel"`
	Checks     []Check              `json:"checks"`
	Dataplanes map[string]Dataplane `json:"dataplanes"` // auto, nfqueue, afxdp
}

// Healthy reports whether some dataplane works fully.
func (r *Report) Healthy() bool {
	for _, d := range r.Dataplanes {
		if d.Works == Fully {
			return true
		}
	}
	return false
}

// Options say how to look.
type Options struct {
	NoLoad bool // do not make the kernel load modules
	// Root is where the node's file system is: "" or "/", or where a container has it.
	Root string
	// Dirs are directories that the daemon writes to.
	Dirs []string
	// probes tries the backends; in tests something else.
	probes func() probes
	root   bool // user 0
}

// examiner is one look at a node.
type examiner struct {
	Options
	node   node
	checks []Check
}

func (x *examiner) say(name string, state State, detail, hint string) {
	x.checks = append(x.checks, Check{Name: name, State: state, Detail: detail, Hint: hint})
}

// unseen is said of what cannot be looked at without root.
func (x *examiner) unseen(name string) {
	x.say(name, Warning, "not looked at: it needs root", "run tierwall doctor as root")
}

// Examine looks at the node that the calling thread is on, in its network namespace.
func Examine(o Options) Report {
	o.root = os.Geteuid() == 0
	if o.probes == nil {
		o.probes = probeBackends
	}
	o.Root = cmp.Or(o.Root, "/")
	x := &examiner{Options: o, node: readNode(o.Root)}
	x.kernel()
	before := x.node.modules(pieces)
	var got probes
	switch {
	case !o.root:
		got = untried("it needs root")
	case o.NoLoad && slices.ContainsFunc(before, func(s pieceState) bool { return s.state != OK && s.piece.tried }):
		got = untried("with --no-load a backend is tried only where all of its modules are loaded")
	default:
		got = o.probes()
	}
	x.pieces(before, got)
	x.privileges()
	blocked := x.network()
	x.limits()
	return Report{Kernel: x.node.release, Checks: x.checks, Dataplanes: judge(got, blocked)}
}
