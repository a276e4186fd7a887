package report

import (
	"time"

	"github.com/tierwall/tierwall/cmd/internal/api"
	"github.com/tierwall/tierwall/cmd/internal/auditlog"
	"github.com/tierwall/tierwall/cmd/internal/cli"
	"github.com/tierwall/tierwall/cmd/internal/listing"
	"github.com/tierwall/tierwall/policy/assure"
	"github.com/tierwall/tierwall/policy/diag"
)

// Report is everything on the page. Its JSON form is a contract: fields are added,
// not changed.
type Report struct {
	V         int                  `json:"v"` // 1
	Made      Made                 `json:"made"`
	Profile   *Profile             `json:"profile,omitempty"`
	Totals    Totals               `json:"totals"`
	Reach     Reach                `json:"reach"`
	Isolation []NamespaceIsolation `json:"isolation"`
	Policies  []listing.Policy     `json:"policies"`  // in the order they are evaluated in
	Overrides []diag.Diagnostic    `json:"overrides"` // what stronger policies decide
	Staged    Staged               `json:"staged"`
	Log       *Log                 `json:"log,omitempty"` // absent without a log
	Nodes     Nodes                `json:"nodes"`
	// Errors are about policies of a cluster that are not in force because of them.
	Errors     []diag.Diagnostic `json:"errors"`
	Incomplete []cli.Gap         `json:"incomplete,omitempty"` // what of a cluster was not read
}

// Made says what a report was made from, when, and by which program.
type Made struct {
	Time      time.Time `json:"time"` // UTC
	Version   string    `json:"version"`
	TableHash string    `json:"tableHash"` // as "tierwall status" shows it of nodes
	Source    string    `json:"source"`    // "manifests" or "cluster"
	Cluster   string    `json:"cluster,omitempty"`
	Paths     []Path    `json:"paths,omitempty"`
}

// Path is a directory or file that was read.
type Path struct {
	Path string `json:"path"`
	// Commit is the git revision that is checked out, "" outside of a repository;
	// Changed says that the files are not as they are in it.
	Commit  string `json:"commit,omitempty"`
	Changed bool   `json:"changed,omitempty"`
}

// Totals count what was read, and pairs of pods. A pod and itself are no pair.
type Totals struct {
	Namespaces int `json:"namespaces"`
	Workloads  int `json:"workloads"`
	Pods       int `json:"pods"` // with an address
	Policies   int `json:"policies"`
	Rules      int `json:"rules"`
	Pairs      int `json:"pairs"`
	// Refused pairs have no connection that is allowed, Some have some, and All have
	// no other; of these, Open ones are about which no policy says anything.
	Refused int `json:"refused"`
	Some    int `json:"some"`
	All     int `json:"all"`
	Open    int `json:"open"`
}

// Reach is who can reach whom. The answer from ends[i] to ends[j] is
// answers[cells[ends[i].group][ends[j].group]]: an empty one where nothing is decided
// (both outside, or no address family in common). Of an end with one pod, the answer
// to itself means nothing: a pod always reaches itself.
type Reach struct {
	Ends    []End           `json:"ends"`
	Answers []assure.Ranges `json:"answers"`
	// Cells is null where there are more than 2,000 groups.
	Cells      [][]int32       `json:"cells"`
	Namespaces []NamespacePair `json:"namespaces"`
}

// End is a set of pods of one workload, or of addresses outside, that have the same
// answers.
type End struct {
	Name        string   `json:"name"` // of the workload; "outside"
	Namespace   string   `json:"namespace"`
	Pods        []string `json:"pods"`
	HostNetwork bool     `json:"hostNetwork,omitempty"`
	Outside     []string `json:"outside,omitempty"` // prefixes, without what pods and nodes have of them
	Group       int      `json:"group"`
}

// NamespacePair counts pairs of pods between two namespaces; "" is outside.
type NamespacePair struct {
	From    string `json:"from"`
	To      string `json:"to"`
	Pairs   int    `json:"pairs"`
	Refused int    `json:"refused"`
	Some    int    `json:"some"`
	All     int    `json:"all"`
	Open    int    `json:"open"`
}

// NamespaceIsolation says which pods of a namespace policies are about.
type NamespaceIsolation struct {
	Namespace string    `json:"namespace"`
	Pods      int       `json:"pods"`
	Ingress   Direction `json:"ingress"`
	Egress    Direction `json:"egress"`
}

// Direction is one direction of a namespace's pods. Isolated pods refuse what no
// policy allows; those with Rules only allow what no rule denies; nothing is said
// about Open ones.
type Direction struct {
	Isolated int `json:"isolated"`
	Rules    int `json:"rules"`
	Open     int `json:"open"`
	// IsolatedBy and RulesBy are policies that do so for some of the pods; Admin are
	// those of RulesBy that come before NetworkPolicies.
	IsolatedBy []string `json:"isolatedBy"`
	RulesBy    []string `json:"rulesBy"`
	Admin      []string `json:"admin"`
	OpenPods   []string `json:"openWorkloads"`
}

// Staged is what enforcing all staged policies together would change.
type Staged struct {
	Policies []string `json:"policies"`
	assure.Summary
	Changes []StagedChange `json:"changes"`
	// Cut counts changes that are not listed.
	Cut int `json:"cut,omitempty"`
	// Seen is what the log says about it; absent without a log.
	Seen *auditlog.StagedReport `json:"seen,omitempty"`
}

// StagedChange is what would open or close between some workloads.
type StagedChange struct {
	Kind   assure.Kind     `json:"kind"`
	From   string          `json:"from"`
	To     string          `json:"to"`
	Ports  string          `json:"ports"`
	Before assure.Decision `json:"before"`
	After  assure.Decision `json:"after"`
}

// Log is what an audit log says about the rules, and whether it is what was
// written.
type Log struct {
	Files   []string   `json:"files"`
	Records int        `json:"records"`
	First   *time.Time `json:"first,omitempty"`
	Last    *time.Time `json:"last,omitempty"`
	Lost    uint64     `json:"lost"` // what the log itself says is missing
	Bad     uint64     `json:"bad"`  // lines that are no records
	// Everything is set when the log has records that no rule asked for: then rules
	// without a record were not used (audit.all).
	Everything bool                   `json:"everything"`
	Rules      []RuleUse              `json:"rules"` // in order of evaluation
	Unused     int                    `json:"unused"`
	Chain      *auditlog.Verification `json:"chain"`
}

// RuleUse counts the records of a rule, or of a policy's isolation.
type RuleUse struct {
	Policy    string `json:"policy"`
	Rule      string `json:"rule"` // "" for the isolation
	Direction string `json:"direction"`
	Action    string `json:"action"`
	Records   uint64 `json:"records"`
	Packets   uint64 `json:"packets"`
	// Asked is set if the policy asks for records.
	Asked bool `json:"asked"`
}

// Nodes are the tables in force.
type Nodes struct {
	// Unknown is why nothing is known, "" if daemons were asked.
	Unknown string `json:"unknown,omitempty"`
	List    []Node `json:"list"`
}

// Node is what one daemon enforces.
type Node struct {
	Node  string `json:"node"`
	Error string `json:"error,omitempty"` // why it did not answer
	// Same says that it enforces just the policies of this report.
	Same   bool        `json:"same"`
	Status *api.Status `json:"status,omitempty"`
}

// Profile is the answer to one control of a standard.
type Profile struct {
	Name    string   `json:"name"` // "pci" or "cis"
	Control string   `json:"control"`
	Pass    bool     `json:"pass"`
	Why     []string `json:"why"` // what made it fail
	Method  []string `json:"method"`
	// InScope and OutOfScope are what was asked, of pci.
	InScope    *Scope `json:"inScope,omitempty"`
	OutOfScope *Scope `json:"outOfScope,omitempty"`
	// Connections are those that are possible from out of scope into scope.
	Connections []Connection `json:"connections"`
	// Namespaces are those of cis.
	Namespaces []NamespaceCheck `json:"namespaces,omitempty"`
}

// Scope is a set of ends.
type Scope struct {
	Selectors []string `json:"selectors"` // as asked
	Pods      []string `json:"pods"`
	Outside   []string `json:"outside,omitempty"`
	// LeftOut are host-network pods that count as part of their node.
	LeftOut []string `json:"leftOut,omitempty"`
}

// Connection is possible from an end out of scope to one in scope.
type Connection struct {
	From  string          `json:"from"`
	To    string          `json:"to"`
	Ports string          `json:"ports"` // in words
	By    string          `json:"by"`    // in words
	Why   assure.Decision `json:"decision"`
	// Ranges are the ports.
	Ranges []assure.Range `json:"ranges"`
}

// NamespaceCheck says whether a namespace has policies.
type NamespaceCheck struct {
	Namespace string `json:"namespace"`
	Pass      bool   `json:"pass"`
	// Policies are its own that are enforced; ClusterWide those that are about its
	// pods; Staged ones do not count.
	Policies    []string `json:"policies"`
	ClusterWide []string `json:"clusterWide"`
	Staged      []string `json:"staged"`
	Pods        int      `json:"pods"`
	// Isolated counts the pods that policies isolate in both directions.
	Isolated int `json:"isolated"`
}
