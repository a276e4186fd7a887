package api

import (
	"time"

	"github.com/tierwall/tierwall/conntrack"
	"github.com/tierwall/tierwall/policy/diag"
	"github.com/tierwall/tierwall/policy/enforcement"
)

// Version is the version of the interface in every status. Fields may be added
// without a new one.
const Version = 1

// MaxFindings bounds the errors in a status.
const MaxFindings = 50

// Status is what a daemon is doing. Times are UTC.
type Status struct {
	V       int       `json:"v"`
	Version string    `json:"version"` // of the program
	Node    string    `json:"node"`
	Started time.Time `json:"started"`
	Now     time.Time `json:"now"` // the node's clock
	// Ready is what /readyz says; NotReady is why not.
	Ready    bool   `json:"ready"`
	NotReady string `json:"notReady,omitempty"`

	Dataplane Dataplane `json:"dataplane"`
	Policy    Policy    `json:"policy"`
	Source    Source    `json:"source"`
	Traffic   Traffic   `json:"traffic"`
	Audit     *Audit    `json:"audit,omitempty"` // absent without an audit log

	// Enforced is what the node reports to the cluster; absent for a daemon that
	// reads files.
	Enforced *enforcement.Report `json:"enforced,omitempty"`
}

// Dataplane is how packets get to userspace.
type Dataplane struct {
	Backends    string  `json:"backends"` // fast path first: "afxdp+nfqueue"
	Why         string  `json:"why"`
	Probes      []Probe `json:"probes"`
	FailMode    string  `json:"failMode"`
	Established string  `json:"established"`
	Kernel      string  `json:"kernel,omitempty"` // the node's release, as "uname -r" prints it
}

// Probe is what became of one backend at start.
type Probe struct {
	Backend string `json:"backend"`
	Running bool   `json:"running"`
	How     string `json:"how,omitempty"` // it works on this kernel, when it runs
	Why     string `json:"why,omitempty"` // when it does not
}

// Policy is the table in force.
type Policy struct {
	Generation uint64 `json:"generation"` // 0 = none yet
	Hash       string `json:"hash,omitempty"`
	Objects    int    `json:"objects"`
	Staged     int    `json:"staged"` // policies of them that are recorded and not enforced
	Rules      int    `json:"rules"`
	// Unmatched are the rules and isolations that have not decided anything since they
	// came or the daemon started, and Matches what the others decided; nil if not known.
	Unmatched   *int       `json:"unmatched,omitempty"`
	Matches     *uint64    `json:"matches,omitempty"`
	Isolations  int        `json:"isolations"`
	Pods        int        `json:"pods"`
	LastAttempt *time.Time `json:"lastAttempt,omitempty"`
	LastSuccess *time.Time `json:"lastSuccess,omitempty"`
	// Errors are those of the last attempt, the first MaxFindings of ErrorsTotal.
	Errors        []diag.Diagnostic `json:"errors"`
	ErrorsTotal   int               `json:"errorsTotal"`
	WarningsTotal int               `json:"warningsTotal"`
}

// Source is where policies and pods come from.
type Source struct {
	Kind   string `json:"kind"`  // "manifests" or "kubernetes"
	Where  string `json:"where"` // the directory, or the API server
	Synced bool   `json:"synced"`
	// Snapshot is set while the policy in force was read from the node's disk.
	Snapshot bool `json:"snapshot,omitempty"`
	// Problem is what keeps it from being read now.
	Problem string `json:"problem,omitempty"`
	// NotUnderstood are policy kinds that the cluster has and Tierwall does not
	// enforce.
	NotUnderstood []NotUnderstood `json:"notUnderstood,omitempty"`
}

// NotUnderstood is an installed policy kind of another project.
type NotUnderstood struct {
	Group   string `json:"group"`
	Version string `json:"version"`
	Kind    string `json:"kind"`
	Project string `json:"project,omitempty"`
	Used    string `json:"used"`              // are there objects: "yes", "no", "unknown"
	Objects *int   `json:"objects,omitempty"` // absent if unknown
	// Matters is set if there are, or may be, objects that decide about connections.
	Matters bool   `json:"matters"`
	Message string `json:"message"`
	Hint    string `json:"hint"`
}

// Traffic are totals of packets since the daemon started.
type Traffic struct {
	// Connections are remembered: Open ones, those InKernel, of which some may have
	// ended unseen, and those that Ended and are remembered for a while.
	Connections int    `json:"connections"`
	Open        int    `json:"open"`
	InKernel    int    `json:"inKernel"`
	Ended       int    `json:"ended"`
	Userspace   uint64 `json:"userspace"` // packets seen in userspace
	Kernel      uint64 `json:"kernel"`    // packets of known flows, passed in the kernel
	Passed      uint64 `json:"passed"`    // of those in userspace
	Dropped     uint64 `json:"dropped"`   // of those in userspace
	Overflow    uint64 `json:"overflow"`  // lost in full queues
	Cut         uint64 `json:"cut"`       // connections ended by a change of policy
}

// CountConnections fills in the connections by what is known of them.
func (t *Traffic) CountConnections(e Engine) {
	t.Connections, t.Open, t.InKernel, t.Ended = 0, 0, 0, 0
	e.Flows(func(_ string, rec conntrack.Record) bool {
		t.Connections++
		switch alive(&rec) {
		case AliveYes:
			t.Open++
		case AliveNo:
			t.Ended++
		default:
			t.InKernel++
		}
		return true
	})
}

// Audit are totals of the audit log since the daemon started.
type Audit struct {
	File    string `json:"file,omitempty"`
	Records uint64 `json:"records"`
	Lost    uint64 `json:"lost"` // records missing, all causes
}
