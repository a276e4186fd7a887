package status

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/diag"
	"github.com/tierwall/tierwall/policy/lower"
	"github.com/tierwall/tierwall/policy/lower/adminnetworkpolicy"
)

// Condition types.
const (
	Accepted             = "Accepted"
	PriorityConflict     = "PriorityConflict"
	Degraded             = "Degraded"
	Dialect              = "Dialect"
	Enforced             = "Enforced"
	GroupMembersComputed = "GroupMembersComputed"
)

// ours are the types this package writes and takes away.
var ours = []string{Accepted, PriorityConflict, Degraded, Dialect, Enforced, GroupMembersComputed}

// Reasons of conditions.
const (
	ReasonAccepted      = "Accepted"
	ReasonInvalid       = "Invalid"         // the object has errors
	ReasonMixed         = "MixedDialects"
	ReasonConflict      = "EqualPriority"
	ReasonUnknown       = "UnknownSelector"
	ReasonAllNodes      = "AllNodes"
	ReasonPending       = "Pending"   // some nodes have not taken it in
	ReasonRefused       = "Refused"   // nodes say no
	ReasonNoReport      = "NoReport"  // nodes that say nothing are all that is missing
	ReasonNoNodes       = "NoNodes"   // nobody to enforce it
	ReasonStaged        = "Staged"    // recorded by all nodes, and not to be enforced
	ReasonComputed      = "Computed"  // a group's members
	ReasonNotComputed   = "Invalid"   // the group has errors
	reasonDialectPrefix = "Released_" // and the version with underscores
	reasonDialectKEP    = "KEP"
)

const (
	// maxFindings and maxMessage (bytes) bound what a message says.
	maxFindings = 5
	maxMessage  = 1024
)

// text joins findings to a message.
func text(found []diag.Diagnostic) string {
	var parts []string
	for i, d := range found {
		if i == maxFindings {
			parts = append(parts, fmt.Sprintf("and %d more", len(found)-i))
			break
		}
		d.File, d.Object = "", api.Ref{} // the condition is on the object
		parts = append(parts, d.String())
	}
	return limit(strings.Join(parts, "; "))
}

func limit(s string) string {
	if len(s) <= maxMessage {
		return s
	}
	return strings.ToValidUTF8(s[:maxMessage-3], "") + "..."
}

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

// conditions returns what there is to say about an object; transition times are
// not set.
func conditions(o *Object, v *Verdict, c Count, silent []string) []metav1.Condition {
	generation := o.Stored.GetGeneration()
	var out []metav1.Condition
	add := func(kind string, s metav1.ConditionStatus, reason, message string) {
		out = append(out, metav1.Condition{Type: kind, Status: s, Reason: reason, Message: message, ObservedGeneration: generation})
	}
	switch {
	case len(v.Errors) > 0:
		add(Accepted, metav1.ConditionFalse, ReasonInvalid, text(v.Errors))
	case v.Mixed:
		add(Accepted, metav1.ConditionFalse, ReasonMixed, mixedMessage)
	default:
		add(Accepted, metav1.ConditionTrue, ReasonAccepted, acceptedMessage(v))
	}
	if l := v.find(diag.PriorityConflict); len(l) > 0 {
		add(PriorityConflict, metav1.ConditionTrue, ReasonConflict, text(l))
	}
	if l := append(v.find(diag.UnknownSelector), v.find(diag.UnknownField)...); len(l) > 0 {
		add(Degraded, metav1.ConditionTrue, ReasonUnknown, text(l))
	}
	if v.Dialect != "" {
		reason, message := dialect(v.Dialect)
		s := metav1.ConditionTrue
		if v.Mixed {
			s, reason, message = metav1.ConditionFalse, ReasonMixed, message+". "+mixedMessage
		}
		add(Dialect, s, reason, message)
	}
	if isGroup(o) {
		if len(v.Errors) == 0 {
			add(GroupMembersComputed, metav1.ConditionTrue, ReasonComputed, "each node computes the members from the objects it watches")
		} else {
			add(GroupMembersComputed, metav1.ConditionFalse, ReasonNotComputed, "this version of the group has errors")
		}
	}
	s, reason, message := enforced(v, c, silent)
	if s == metav1.ConditionTrue && lower.Staged(o.Stored.GetAnnotations()) {
		s, reason = metav1.ConditionFalse, ReasonStaged
		message += " record what it would do; tierwall.io/stage is audit: none enforces it"
	}
	add(Enforced, s, reason, message)
	return out
}

const mixedMessage = "AdminNetworkPolicies of the KEP and released ones count priority in opposite directions: none of their changes comes into force until all are of one dialect (or allowMixedDialects is set)"

func acceptedMessage(v *Verdict) string {
	var rest []diag.Diagnostic
	for _, d := range v.Warnings {
		if d.Code != diag.PriorityConflict { // has a condition of its own
			rest = append(rest, d)
		}
	}
	if len(rest) == 0 {
		return "understood, without warnings"
	}
	return "understood, with warnings: " + text(rest)
}

func dialect(d string) (reason, message string) {
	if d == adminnetworkpolicy.KEP {
		return reasonDialectKEP, "read as the KEP's AdminNetworkPolicy: the larger priority is the stronger one, 0 comes after NetworkPolicy"
	}
	return reasonDialectPrefix + strings.ReplaceAll(d, ".", "_"), "read as AdminNetworkPolicy of release " + d + ": the smaller priority is the stronger one"
}

func isGroup(o *Object) bool {
	return o.Resource.Group == antreaGroup && (o.Resource.Resource == "clustergroups" || o.Resource.Resource == "groups")
}

// enforced condenses a count.
func enforced(v *Verdict, c Count, silent []string) (s metav1.ConditionStatus, reason, message string) {
	message = fmt.Sprintf("%d of %d nodes", c.Enforced, c.Desired)
	more := func(format string, args ...any) { message += "; " + fmt.Sprintf(format, args...) }
	switch {
	case c.Desired == 0:
		return metav1.ConditionUnknown, ReasonNoNodes, message
	case c.Refused > 0:
		more("refused by %d: %s", c.Refused, c.Why)
		return metav1.ConditionFalse, ReasonRefused, limit(message)
	case len(v.Errors) > 0 || v.Mixed:
		// Nodes that say otherwise are of another version than we are.
		more("see condition %s", Accepted)
		return metav1.ConditionFalse, ReasonRefused, message
	case c.Enforced == c.Desired:
		return metav1.ConditionTrue, ReasonAllNodes, message
	}
	reason = ReasonPending
	if len(silent) > 0 {
		const most = 3
		names := strings.Join(silent[:min(most, len(silent))], ", ")
		if n := len(silent) - most; n > 0 {
			names += fmt.Sprintf(" and %d more", n)
		}
		more("no report from %s", names)
		if c.Enforced+len(silent) >= c.Desired {
			reason = ReasonNoReport
		}
	}
	return metav1.ConditionFalse, reason, message
}

// difference says how much a status is news.
type difference int

const (
	same    difference = iota
	wording            // only messages and numbers
	news               // a status, a reason or a generation
)

// merge puts wanted conditions into a stored list and says what changed. Conditions
// of types that are not ours stay where they are; times are kept where the status
// is.
func merge(stored []any, wanted []metav1.Condition, now time.Time) ([]any, difference) {
	diff := same
	var out []any
	left := slices.Clone(wanted)
	for _, item := range stored {
		old, ok := item.(map[string]any)
		kind, _ := old["type"].(string)
		if !ok || !slices.Contains(ours, kind) {
			out = append(out, item)
			continue
		}
		i := slices.IndexFunc(left, func(c metav1.Condition) bool { return c.Type == kind })
		if i < 0 {
			diff = news // no longer, or twice
			continue
		}
		c := left[i]
		left = slices.Delete(left, i, i+1)
		generation, _, _ := unstructured.NestedInt64(old, "observedGeneration")
		switch {
		case old["status"] != string(c.Status):
			c.LastTransitionTime = metav1.NewTime(now)
			diff = news
		case old["reason"] != c.Reason || generation != c.ObservedGeneration:
			diff = news
		case old["message"] != c.Message:
			diff = max(diff, wording)
		}
		out = append(out, condition(c, old["lastTransitionTime"], now))
	}
	for _, c := range left {
		out = append(out, condition(c, nil, now))
		diff = news
	}
	return out, diff
}

// condition is c as JSON values. before is the transition time to keep unless c has
// one.
func condition(c metav1.Condition, before any, now time.Time) map[string]any {
	at := now.UTC().Format(time.RFC3339)
	if text, ok := before.(string); ok && c.LastTransitionTime.IsZero() {
		at = text
	}
	return map[string]any{
		"type": c.Type, "status": string(c.Status), "reason": c.Reason, "message": c.Message,
		"observedGeneration": c.ObservedGeneration, "lastTransitionTime": at,
	}
}
