package antrea

import (
	"fmt"
	"net/netip"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/policy/api"
	antreaapi "github.com/tierwall/tierwall/policy/api/antrea"
	"github.com/tierwall/tierwall/policy/diag"
	"github.com/tierwall/tierwall/policy/internal/kube"
)

// Priorities of policies; fractions are allowed (S2-19).
const (
	MinPriority = 1.0
	MaxPriority = 10000.0
)

// The actions a rule can have (S2-20).
const (
	actionAllow  = "Allow"
	actionDrop   = "Drop"
	actionReject = "Reject"
	actionPass   = "Pass"
	// actionDeny is in two samples of the documents and in no schema.
	actionDeny = "Deny"
)

// Messages used in several places.
const (
	noExternalEntities = "external entities are not known to this version"
	noNodePolicies     = "policies that apply to nodes are not enforced by this version"
	noServicePolicies  = "policies that apply to Services are not enforced by this version"
)

// Validate checks one object as Antrea's schema and admission webhook would, and
// its tierwall.io annotations. What needs other objects is left to Lower.
func (Dialect) Validate(o *api.Object) diag.List {
	f := &kube.Findings{Object: o}
	kube.ParseSettings(f)
	if o.Kind.Version != current {
		f.Warn("apiVersion", fmt.Sprintf("%s is no longer served upstream and read as %s", o.Kind.Version, current),
			"write apiVersion: "+antreaapi.APIGroup+"/"+current)
	}
	switch v := o.Value.(type) {
	case *antreaapi.Tier:
		checkTier(f, v)
	case *antreaapi.ClusterGroup:
		checkGroup(f, &v.Spec, o.Kind.Version)
	case *antreaapi.Group:
		checkGroup(f, &v.Spec, o.Kind.Version)
	case *antreaapi.ClusterNetworkPolicy:
		(&checker{Findings: f, version: o.Kind.Version}).policy(&v.Spec)
	case *antreaapi.NetworkPolicy:
		(&checker{Findings: f, version: o.Kind.Version, namespaced: true}).policy(&v.Spec)
	default:
		f.Error("", fmt.Sprintf("not an object of %s but a %T", antreaapi.APIGroup, o.Value), kube.InternalHint)
	}
	return f.List
}

// checker checks one policy.
type checker struct {
	*kube.Findings
	version    string
	namespaced bool
	names      map[string]string // rule name → path of the rule that has it
	groupAt    string            // path of the first group reference
	selectorAt string            // path of the first stand-alone selector
}

func (v *checker) policy(s *antreaapi.PolicySpec) {
	switch {
	case s.Priority == nil:
		v.Error("spec.priority", "priority is missing", "write a number from 1 (evaluated first) to 10000")
	case *s.Priority < MinPriority || *s.Priority > MaxPriority:
		v.Error("spec.priority", fmt.Sprintf("priority %v is out of range", *s.Priority), "write a number from 1.0 (evaluated first) to 10000.0")
	}
	v.appliedTo("spec.appliedTo", s.AppliedTo)
	v.placement(s)
	v.names = map[string]string{}
	baseline := strings.EqualFold(s.Tier, baselineTier)
	for i := range s.Ingress {
		v.rule(flow.Ingress, kube.At("spec.ingress", i), &s.Ingress[i], baseline)
	}
	for i := range s.Egress {
		v.rule(flow.Egress, kube.At("spec.egress", i), &s.Egress[i], baseline)
	}
	if v.groupAt != "" && v.selectorAt != "" && v.version != current { // S2-32
		v.Error(v.selectorAt, fmt.Sprintf("a selector of its own beside the group in %s", v.groupAt),
			"a "+v.version+" policy uses either groups or selectors throughout; v1beta1 allows both")
	}
}

// placement checks that appliedTo is given once for all, or in every rule
// (S2-29…S2-31).
func (v *checker) placement(s *antreaapi.PolicySpec) {
	with, without := "", ""
	for _, d := range []struct {
		path  string
		rules []antreaapi.Rule
	}{{"spec.ingress", s.Ingress}, {"spec.egress", s.Egress}} {
		for i := range d.rules {
			at := &without
			if len(d.rules[i].AppliedTo) > 0 {
				at = &with
			}
			if *at == "" {
				*at = kube.At(d.path, i)
			}
		}
	}
	switch {
	case len(s.AppliedTo) > 0 && with != "":
		v.Error(with+".appliedTo", "appliedTo is set for the policy and for a rule", "keep spec.appliedTo, or move it into every rule")
	case len(s.AppliedTo) == 0 && with == "":
		v.Error("spec.appliedTo", "appliedTo is missing", "say which pods the policy is about; `podSelector: {}` means all")
	case len(s.AppliedTo) == 0 && without != "":
		v.Error(without+".appliedTo", "appliedTo is set for some rules, but not for this one", "set it in every rule, or once in spec.appliedTo")
	}
}

func (v *checker) appliedTo(path string, entries []antreaapi.AppliedTo) {
	for i := range entries {
		a, at := &entries[i], kube.At(path, i)
		v.oneForm(at, "appliedTo", []form{
			selectorForm(a.PodSelector, a.NamespaceSelector, nil),
			{name: "group", set: a.Group != ""},
			{name: "serviceAccount", set: a.ServiceAccount != nil},
			{name: "externalEntitySelector", set: a.ExternalEntitySelector != nil, refused: true},
			{name: "service", set: a.Service != nil, refused: true},
			{name: "nodeSelector", set: a.NodeSelector != nil, refused: true},
		})
		kube.CheckSelector(v.Findings, at+".podSelector", a.PodSelector)
		kube.CheckSelector(v.Findings, at+".namespaceSelector", a.NamespaceSelector)
		v.reserved(at+".podSelector", a.PodSelector)
		if v.namespaced && a.NamespaceSelector != nil { // S2-56
			v.Error(at+".namespaceSelector", "a NetworkPolicy is about pods of its own namespace", "remove namespaceSelector, or write a ClusterNetworkPolicy")
		}
		if a.PodSelector != nil || a.NamespaceSelector != nil {
			v.selector(at)
		}
		if a.ServiceAccount != nil {
			v.selector(at)
			v.serviceAccount(at+".serviceAccount", a.ServiceAccount)
			if ns := a.ServiceAccount.Namespace; v.namespaced && ns != "" && ns != v.Object.Namespace {
				v.Error(at+".serviceAccount.namespace", "a NetworkPolicy is about pods of its own namespace", "write "+v.Object.Namespace+", or a ClusterNetworkPolicy")
			}
		}
		if a.Group != "" {
			v.group(at + ".group")
		}
		if a.ExternalEntitySelector != nil {
			v.Error(at+".externalEntitySelector", noExternalEntities, "write an ipBlock with the machine's addresses in rules, and remove this entry")
		}
		if a.Service != nil {
			v.Error(at+".service", noServicePolicies, "apply the policy to the pods behind the Service: a group with a serviceReference keeps up with them")
		}
		if a.NodeSelector != nil {
			v.Error(at+".nodeSelector", noNodePolicies, "select pods; traffic of nodes themselves is not policed")
		}
	}
}

// form is one of several ways to write an entry.
type form struct {
	name    string
	set     bool
	refused bool // anyway, so not worth recommending
}

// selectorForm is the form of one or two selectors, named for the one that is
// set.
func selectorForm(pods, namespaces *labelSelector, related *antreaapi.PeerNamespaces) form {
	switch {
	case pods == nil && namespaces != nil:
		return form{name: "namespaceSelector", set: true}
	case pods == nil && related != nil:
		return form{name: "namespaces", set: true}
	}
	return form{name: "podSelector", set: pods != nil}
}

// oneForm reports anything but exactly one form: they exclude each other, and an
// entry without any would select nothing or everything, depending on the reader
// (S2-27, S2-47, S2-51, S2-54, X-23).
func (v *checker) oneForm(path, what string, forms []form) {
	var got, all []string
	for _, f := range forms {
		if !f.refused {
			all = append(all, f.name)
		}
		if f.set {
			got = append(got, f.name)
		}
	}
	switch len(got) {
	case 0:
		v.UnknownSelector(path, "empty "+what+" entry", "set one of "+strings.Join(all, ", ")+"; `podSelector: {}` means all pods")
	case 1:
	default:
		v.Error(path, strings.Join(got, " and ")+" in one "+what+" entry", "write one entry for each: entries are alternatives")
	}
}

func (v *checker) selector(path string) {
	if v.selectorAt == "" {
		v.selectorAt = path
	}
}

// group notes a reference. A NetworkPolicy has them since v1beta1 (S2-58, X-51).
func (v *checker) group(path string) {
	if v.groupAt == "" {
		v.groupAt = path
	}
	if v.namespaced && v.version != current {
		v.Error(path, "a NetworkPolicy of "+v.version+" cannot use groups", "write selectors, or apiVersion: "+antreaapi.APIGroup+"/"+current+" and a Group of the namespace")
	}
}

func (v *checker) serviceAccount(path string, sa *antreaapi.NamespacedName) {
	if sa.Name == "" {
		v.Error(path+".name", "name is missing", "write the service account's name")
	}
	if sa.Namespace == "" {
		v.Error(path+".namespace", "namespace is missing", "name and namespace select the ServiceAccount together")
	}
}

// reservedLabel is what Antrea labels pods with inside itself (S2-105).
const reservedLabel = "internal.antrea.io/service-account"

func (v *checker) reserved(path string, s *labelSelector) {
	if s == nil {
		return
	}
	_, used := s.MatchLabels[reservedLabel]
	for i := range s.MatchExpressions {
		used = used || s.MatchExpressions[i].Key == reservedLabel
	}
	if used {
		v.Warn(path, fmt.Sprintf("the label key %s is reserved", reservedLabel), "select by `serviceAccount` instead")
	}
}

func (v *checker) rule(d flow.Direction, path string, r *antreaapi.Rule, baseline bool) {
	v.action(path+".action", r, baseline)
	v.name(d, path, r)
	if r.LogLabel != "" {
		for _, msg := range validation.IsValidLabelValue(r.LogLabel) {
			msg, _, _ = strings.Cut(msg, " (e.g. ")
			v.Error(path+".logLabel", fmt.Sprintf("%q is not a log label: %s", r.LogLabel, msg), "write it like a label's value: at most 63 letters, digits, `-`, `_` and `.`")
		}
	}
	v.appliedTo(path+".appliedTo", r.AppliedTo)
	v.peers(d, path, r)
	v.ports(path, r)
	v.protocols(d, path, r)
	if len(r.L7Protocols) > 0 {
		v.Error(path+".l7Protocols", "layer 7 rules are not enforced: Tierwall decides by address, protocol and port", "remove l7Protocols, or allow the ports and leave the rest to a proxy")
	}
}

func (v *checker) action(path string, r *antreaapi.Rule, baseline bool) {
	const known = "write Allow, Drop, Reject or Pass"
	if r.Action == nil || *r.Action == "" {
		v.Error(path, "action is missing", known)
		return
	}
	switch a := *r.Action; a {
	case actionAllow, actionDrop, actionReject:
	case actionPass:
		if baseline { // S2-24
			v.Error(path, "Pass in the baseline tier: nothing comes after it", "write Allow")
		}
	case actionDeny:
		v.Warn(path, "Deny is read as Drop", "write Drop; Antrea's own schema refuses Deny")
	default:
		hint := known
		for _, k := range []string{actionAllow, actionDrop, actionReject, actionPass} {
			if strings.EqualFold(a, k) {
				hint = "write " + k + ": actions are case-sensitive"
			}
		}
		v.Error(path, fmt.Sprintf("unknown action %q", a), hint)
	}
}

// name checks that given and generated names are unique (S2-39…S2-42).
func (v *checker) name(d flow.Direction, path string, r *antreaapi.Rule) {
	name := RuleName(d, r)
	first, taken := v.names[name]
	switch {
	case !taken:
		v.names[name] = path
	case r.Name != "":
		v.Error(path+".name", fmt.Sprintf("rule name %q is already that of %s", name, first), "names, also generated ones, are unique within a policy")
	default:
		v.Error(path, fmt.Sprintf("the name %q, generated for this rule, is already that of %s", name, first), "remove the rule if it is there twice, or give it a name")
	}
}

// checkBlock checks an address range; ok is false when it was refused.
func checkBlock(f *kube.Findings, path string, b *antreaapi.IPBlock, version string) (p netip.Prefix, ok bool) {
	if b.CIDR == "" {
		f.Error(path+".cidr", "cidr is missing", `write an address range such as "10.0.0.0/8" or "2001:db8::/32"`)
		return p, false
	}
	if len(b.Except) > 0 && version != current { // S2-45, X-50
		f.Error(path+".except", version+" has no except", "write an earlier rule for the hole, or apiVersion: "+antreaapi.APIGroup+"/"+current)
	}
	p, ok = kube.CheckPrefix(f, path+".cidr", b.CIDR)
	for i, text := range b.Except {
		at := kube.At(path+".except", i)
		e, exceptOK := kube.CheckPrefix(f, at, text)
		if ok && exceptOK && !(e.Bits() > p.Bits() && p.Contains(e.Addr())) {
			f.Error(at, fmt.Sprintf("%s is not a strict subset of cidr %s", text, b.CIDR), "a hole must lie inside the block and be smaller than it")
		}
	}
	return p, ok
}
