package rule

import "slices"

// Op compares one label.
type Op uint8

// Operators, with the meaning Kubernetes label selectors give them: NotIn and
// NotExists also match when the key is absent (NotIn) or is the only thing
// asked (NotExists).
const (
	In Op = iota + 1
	NotIn
	Exists
	NotExists
)

// Requirement is one condition on a label map.
type Requirement struct {
	Key    string
	Op     Op
	Values []string // sorted, unique; for In and NotIn
}

// Matches reports whether labels fulfil the requirement.
func (r Requirement) Matches(labels map[string]string) bool {
	v, ok := labels[r.Key]
	switch r.Op {
	case In:
		return ok && slices.Contains(r.Values, v)
	case NotIn:
		return !ok || !slices.Contains(r.Values, v)
	case Exists:
		return ok
	case NotExists:
		return !ok
	}
	return false
}

// Labels is a conjunction of requirements. Empty matches every label map.
type Labels []Requirement

// Matches reports whether labels fulfil every requirement.
func (l Labels) Matches(labels map[string]string) bool {
	for _, r := range l {
		if !r.Matches(labels) {
			return false
		}
	}
	return true
}

// Selector chooses pods: all conditions must hold. The zero value selects every
// pod of every namespace. Host-network pods share their node's address and are
// never selected.
type Selector struct {
	Namespace       string // exact namespace name; "" = not restricted
	NamespaceLabels Labels // on the namespace's labels
	PodLabels       Labels // on the pod's labels
	ServiceAccount  string // exact service account name; "" = not restricted
	// AnyOf narrows the selection to pods in at least one of these; empty means
	// no narrowing. It expresses OR-ed appliedTo entries.
	AnyOf []Selector
	// None selects nothing, whatever else is set. It stands for "an option this
	// version does not know" (S0-33, S0-35).
	None bool
}

// Matches reports whether the selector selects the endpoint.
func (s *Selector) Matches(e *Endpoint) bool {
	if s.None || e.HostNetwork {
		return false
	}
	if s.Namespace != "" && s.Namespace != e.Namespace {
		return false
	}
	if s.ServiceAccount != "" && s.ServiceAccount != e.ServiceAccount {
		return false
	}
	if !s.NamespaceLabels.Matches(e.NamespaceLabels) || !s.PodLabels.Matches(e.Labels) {
		return false
	}
	if len(s.AnyOf) == 0 {
		return true
	}
	for i := range s.AnyOf {
		if s.AnyOf[i].Matches(e) {
			return true
		}
	}
	return false
}

// Relation ties a peer to the subject it is evaluated for: "same namespace",
// "same value of these labels". The zero value adds no condition. All
// conditions present must hold.
type Relation struct {
	Namespace       NamespaceRelation
	NamespaceLabels LabelRelation // compares namespace labels
	PodLabels       LabelRelation // compares pod labels
}

// NamespaceRelation compares namespace names.
type NamespaceRelation uint8

// Namespace relations.
const (
	AnyNamespace NamespaceRelation = iota
	SameNamespace
	OtherNamespace
)

// LabelRelation compares label values of peer and subject for the listed keys.
type LabelRelation struct {
	Op   RelationOp
	Keys []string
}

// RelationOp says what "same" means. The readings differ between APIs.
type RelationOp uint8

// Relation operators.
const (
	// NoRelation adds no condition.
	NoRelation RelationOp = iota
	// SameLabels holds when peer and subject both have every key with equal
	// values. No keys: never (S0-42).
	SameLabels
	// NotSameLabelsKEP holds when the subject has every key and for at least
	// one key the peer's value differs or is absent. No keys: never (S0-44,
	//
	NotSameLabelsKEP
	// NotSameLabelsRelease holds when subject and peer both have every key and
	// at least one value differs (v0.1.1). No keys: never.
	NotSameLabelsRelease
)

// Holds compares the subject's and the peer's labels.
func (r LabelRelation) Holds(subject, peer map[string]string) bool {
	if r.Op == NoRelation {
		return true
	}
	if len(r.Keys) == 0 {
		return false
	}
	same, differ, complete := 0, 0, true
	for _, k := range r.Keys {
		s, ok := subject[k]
		if !ok {
			return false // subject lacks the key: the rule is a no-op for it
		}
		p, ok := peer[k]
		switch {
		case !ok:
			complete = false
			differ++
		case p == s:
			same++
		default:
			differ++
		}
	}
	switch r.Op {
	case SameLabels:
		return same == len(r.Keys)
	case NotSameLabelsKEP:
		return differ > 0
	case NotSameLabelsRelease:
		return complete && differ > 0
	}
	return false
}

// Holds reports whether the relation ties peer to subject.
func (r *Relation) Holds(subject, peer *Endpoint) bool {
	switch r.Namespace {
	case SameNamespace:
		if subject.Namespace != peer.Namespace {
			return false
		}
	case OtherNamespace:
		if subject.Namespace == peer.Namespace {
			return false
		}
	}
	return r.NamespaceLabels.Holds(subject.NamespaceLabels, peer.NamespaceLabels) &&
		r.PodLabels.Holds(subject.Labels, peer.Labels)
}

// IsZero reports whether the relation adds no condition.
func (r *Relation) IsZero() bool {
	return r.Namespace == AnyNamespace && r.NamespaceLabels.Op == NoRelation && r.PodLabels.Op == NoRelation
}
