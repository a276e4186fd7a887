package enforcement

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// LeasePrefix and the node's name make the name of its Lease, in the daemon's
	// namespace.
	LeasePrefix = "tierwall-"
	// Label is on every Lease of a node, with [LabelValue] as value, so that one
	// watch with a selector has all reports and nothing else.
	Label      = "tierwall.io/report"
	LabelValue = "enforcement"
	// Annotation holds the report as JSON.
	Annotation = "tierwall.io/enforcement"
	// MaxRefused bounds the list of refused objects in a report.
	MaxRefused = 64
	// Heartbeat is how often a report is renewed if nothing changes. A report
	// older than [Stale] says nothing about the node now.
	Heartbeat = 60 * time.Second
	Stale     = 3 * Heartbeat
	// maxMessage bounds what is said about one refused object, in bytes.
	maxMessage = 512
)

// Object names a policy object as the API server serves it.
type Object struct {
	// Resource is the plural name with the group, "networkpolicies.networking.k8s.io".
	Resource  string `json:"resource"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
}

// String returns "resource namespace/name", or "resource name".
func (o Object) String() string {
	if o.Namespace == "" {
		return o.Resource + " " + o.Name
	}
	return o.Resource + " " + o.Namespace + "/" + o.Name
}

// Refused is an object that is not in force as the API server has it.
type Refused struct {
	Object
	// ResourceVersion is the version up to which the object is refused: what the
	// node has observed of its resource.
	ResourceVersion uint64 `json:"resourceVersion"`
	// InForce is the generation of the older version that is in force instead; 0
	// when nothing of the object is.
	InForce int64 `json:"inForce,omitempty"`
	// Message is the first error, with its field path.
	Message string `json:"message"`
}

// Report is what one node enforces. The zero value says that it enforces nothing.
type Report struct {
	// Node is the name of the Node object.
	Node string `json:"node"`
	// Time is when the report was made, in whole microseconds; it travels as the
	// Lease's renewTime.
	Time time.Time `json:"-"`
	// Generation and PolicyHash are those of the table in force. Hashes are equal
	// on nodes that enforce the same policies; generations are the node's own.
	Generation uint64 `json:"generation"`
	PolicyHash string `json:"policyHash,omitempty"`
	// Snapshot is set while the table comes from the node's disk, because the API
	// server has not been reached since the daemon started.
	Snapshot bool `json:"snapshot,omitempty"`
	// Stalled says why the table in force is older than what was observed:
	// objects that are wrong together, or a table that could not be put in force.
	Stalled string `json:"stalled,omitempty"`
	// Observed is, by resource ("networkpolicies.networking.k8s.io"), the
	// resourceVersion up to which the table in force has everything.
	Observed map[string]uint64 `json:"observed,omitempty"`
	// Refused lists the objects that are not in force as they are, the first
	// [MaxRefused] of them by name. RefusedTotal counts all.
	Refused      []Refused `json:"refused,omitempty"`
	RefusedTotal int       `json:"refusedTotal,omitempty"`
}

// State is what a node does about one object.
type State string

// States.
const (
	// Pending: the node has not taken this version in.
	Pending State = "pending"
	// InForce: the object is in the table as it is.
	InForce State = "enforced"
	// RefusedState: the node has seen this version and cannot enforce it.
	RefusedState State = "refused"
	// Unknown: more objects were refused than the report lists, and this may be
	// one of them.
	Unknown State = "unknown"
)

// State returns what the node does about a version of an object. The second
// result explains every state but InForce.
func (r *Report) State(o Object, resourceVersion uint64) (State, string) {
	if r.Observed[o.Resource] < resourceVersion {
		if r.Stalled != "" {
			return Pending, r.Stalled
		}
		return Pending, "not taken in yet"
	}
	for i := range r.Refused {
		if r.Refused[i].Object == o {
			return RefusedState, r.Refused[i].Message
		}
	}
	if r.RefusedTotal > len(r.Refused) {
		return Unknown, fmt.Sprintf("the node refuses %d objects and reports %d of them", r.RefusedTotal, len(r.Refused))
	}
	return InForce, ""
}

// StaleAt reports whether the report is too old at a moment to say anything.
func (r *Report) StaleAt(now time.Time) bool { return now.Sub(r.Time) > Stale }

// LeaseName returns the name of a node's Lease.
func LeaseName(node string) string { return LeasePrefix + node }

// ParseVersion reads a resourceVersion. Errors name the text; "" is one.
func ParseVersion(text string) (uint64, error) {
	v, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("resourceVersion %q is not a number", text)
	}
	return v, nil
}

// Normalize sorts the refused objects, cuts the list and its messages to their
// bounds, and counts what is cut. Encode calls it.
func (r *Report) Normalize() {
	slices.SortFunc(r.Refused, func(a, b Refused) int {
		return cmp.Or(strings.Compare(a.Resource, b.Resource), strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	r.RefusedTotal = max(r.RefusedTotal, len(r.Refused))
	r.Refused = r.Refused[:min(len(r.Refused), MaxRefused)]
	for i := range r.Refused {
		if m := r.Refused[i].Message; len(m) > maxMessage {
			r.Refused[i].Message = strings.ToValidUTF8(m[:maxMessage-3], "") + "..."
		}
	}
}

// Encode puts the report into a Lease: its name, holder, times, label and
// annotation. Other labels, annotations and metadata stay as they are. The
// namespace is the caller's.
func Encode(r *Report, lease *coordinationv1.Lease) error {
	if r.Node == "" {
		return errors.New("enforcement: the report names no node")
	}
	c := *r
	c.Refused = slices.Clone(r.Refused)
	c.Normalize()
	text, err := json.Marshal(&c)
	if err != nil {
		return fmt.Errorf("enforcement: %w", err)
	}
	lease.Name = LeaseName(r.Node)
	if lease.Labels == nil {
		lease.Labels = map[string]string{}
	}
	lease.Labels[Label] = LabelValue
	if lease.Annotations == nil {
		lease.Annotations = map[string]string{}
	}
	lease.Annotations[Annotation] = string(text)
	renewed, holder, seconds := metav1.NewMicroTime(r.Time), r.Node, int32(Stale/time.Second)
	lease.Spec.RenewTime, lease.Spec.HolderIdentity, lease.Spec.LeaseDurationSeconds = &renewed, &holder, &seconds
	return nil
}

// Decode reads the report of a Lease. A Lease that carries none, or one whose
// name is not that of the node in it, is an error: one node must not speak for
// another.
func Decode(lease *coordinationv1.Lease) (*Report, error) {
	text, ok := lease.Annotations[Annotation]
	if !ok {
		return nil, fmt.Errorf("lease %s/%s has no annotation %s", lease.Namespace, lease.Name, Annotation)
	}
	r := &Report{}
	if err := json.Unmarshal([]byte(text), r); err != nil {
		return nil, fmt.Errorf("lease %s/%s: annotation %s: %w", lease.Namespace, lease.Name, Annotation, err)
	}
	if lease.Name != LeaseName(r.Node) {
		return nil, fmt.Errorf("lease %s/%s: the report in it is about node %q", lease.Namespace, lease.Name, r.Node)
	}
	if lease.Spec.RenewTime != nil {
		r.Time = lease.Spec.RenewTime.Time
	}
	return r, nil
}
