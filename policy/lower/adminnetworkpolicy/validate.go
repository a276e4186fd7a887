package adminnetworkpolicy

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/api/kepanp"
	"github.com/tierwall/tierwall/policy/diag"
	"github.com/tierwall/tierwall/policy/internal/kube"
)

const (
	// MaxPriority is the strongest priority admission accepts. Only validation
	// knows it: any int32 orders correctly (S0-16).
	MaxPriority = 1000
	// MaxRules bounds a policy's ingress and egress rules together (S0-20).
	MaxRules = 100
)

// The actions a rule can have (S0-03).
const (
	actionAllow = "Allow"
	actionDeny  = "Deny"
	actionPass  = "Pass"
)

// Validate checks one policy as its API's admission would, the KEP's (S0-01…S0-61)
// or the release's, and its tierwall.io annotations.
func (Dialect) Validate(o *api.Object) diag.List {
	f := &kube.Findings{Object: o}
	if o.Namespace != "" {
		f.Error("metadata.namespace", o.Kind.Kind+" is cluster-scoped", "remove metadata.namespace") // S0-01
	}
	if r, ok := releasedOf(o); ok {
		r.validate(f)
		return f.List
	}
	p, ok := o.Value.(*kepanp.AdminNetworkPolicy)
	if !ok {
		f.Error("", fmt.Sprintf("not an %s but a %T", o.Kind.Kind, o.Value), kube.InternalHint)
		return f.List
	}
	kube.ParseSettings(f)
	v := validation{Findings: f, names: map[string]string{}}
	v.spec(&p.Spec)
	return f.List
}

type validation struct {
	*kube.Findings
	baseline bool              // priority 0
	names    map[string]string // rule name → path of its first use
}

func (v *validation) spec(s *kepanp.Spec) {
	switch {
	case s.Priority == nil:
		v.Error("spec.priority", "priority is missing", "write a number from 0 (baseline, after NetworkPolicy) to 1000 (strongest)")
	case *s.Priority < 0 || *s.Priority > MaxPriority:
		v.Error("spec.priority", fmt.Sprintf("priority %d is out of range", *s.Priority), "write a number from 0 to 1000")
	default:
		v.baseline = *s.Priority == 0
	}
	v.subject(&s.Subject)
	if n := len(s.Ingress) + len(s.Egress); n > MaxRules {
		v.Error("spec", fmt.Sprintf("%d rules (%d ingress, %d egress): at most %d together", n, len(s.Ingress), len(s.Egress), MaxRules),
			"split the policy in two")
	}
	for i := range s.Ingress {
		r := &s.Ingress[i]
		v.rule(kube.At("spec.ingress", i), "from", r.Name, r.Action, &r.L4Selector, r.From)
	}
	for i := range s.Egress {
		r := &s.Egress[i]
		v.rule(kube.At("spec.egress", i), "to", r.Name, r.Action, &r.L4Selector, r.To)
	}
}

// one reports anything but exactly one field set; what names the thing. set has
// "name" or "" in declaration order.
func (v *validation) one(path, what string, options []string, set ...bool) bool {
	var got []string
	for i, is := range set {
		if is {
			got = append(got, options[i])
		}
	}
	switch len(got) {
	case 1:
		return true
	case 0:
		v.UnknownSelector(path, what+" selects nothing", "set exactly one of "+strings.Join(options, ", "))
	default:
		v.Error(path, what+" sets "+strings.Join(got, " and "), "set exactly one of "+strings.Join(options, ", "))
	}
	return false
}

func (v *validation) subject(s *kepanp.Subject) {
	const path = "spec.subject"
	v.one(path, "subject", []string{"namespaceSelector", "namespaceAndPodSelector"},
		s.NamespaceSelector != nil, s.NamespaceAndPodSelector != nil)
	kube.CheckSelector(v.Findings, path+".namespaceSelector", s.NamespaceSelector)
	if both := s.NamespaceAndPodSelector; both != nil {
		at := path + ".namespaceAndPodSelector"
		v.required(at+".namespaceSelector", both.NamespaceSelector, "namespaces")
		v.required(at+".podSelector", both.PodSelector, "pods")
	}
}

func (v *validation) required(path string, s *metav1.LabelSelector, all string) {
	if s == nil {
		v.Error(path, "selector is missing", "write {} to mean all "+all)
	}
	kube.CheckSelector(v.Findings, path, s)
}

func (v *validation) rule(path, side, name, action string, l4 *kepanp.L4Selector, peers []kepanp.Peer) {
	if name != "" {
		if first, ok := v.names[name]; ok {
			v.Warn(path+".name", fmt.Sprintf("rule name %q is already used by %s", name, first),
				"audit records and explain name rules: give each its own name")
		} else {
			v.names[name] = path
		}
	}
	v.action(path, action)
	v.l4(path+".l4Selector", l4)
	for i := range peers {
		v.peer(kube.At(path+"."+side, i), &peers[i])
	}
}

func (v *validation) action(path, action string) {
	switch action {
	case actionAllow, actionDeny:
	case actionPass:
		if v.baseline {
			v.Warn(path+".action", "Pass at priority 0 has no NetworkPolicy left to pass to: the traffic is allowed by default",
				"write Allow if that is meant")
		}
	case "":
		v.Error(path+".action", "action is missing", "write Allow, Deny or Pass")
	default:
		hint := "write Allow, Deny or Pass"
		for _, known := range []string{actionAllow, actionDeny, actionPass} {
			if strings.EqualFold(action, known) {
				hint = "write " + known + ": actions are case-sensitive"
			}
		}
		if strings.EqualFold(action, "Drop") || strings.EqualFold(action, "Reject") {
			hint = "write Deny"
		}
		v.Error(path+".action", fmt.Sprintf("unknown action %q", action), hint)
	}
}

func (v *validation) l4(path string, s *kepanp.L4Selector) {
	switch {
	case s.AllPorts == nil && s.Ports == nil:
		v.Error(path, "l4Selector is missing", "write `allPorts: true` or list `ports`")
	case s.AllPorts != nil && s.Ports != nil:
		v.Error(path, "l4Selector sets allPorts and ports", "set exactly one of allPorts, ports")
	case s.AllPorts == nil && len(s.Ports) == 0:
		v.Error(path+".ports", "an empty list of ports could only match nothing", "write `allPorts: true`, or list the ports")
	}
	if s.AllPorts != nil && !*s.AllPorts {
		v.Error(path+".allPorts", "allPorts cannot be false", "write `allPorts: true`, or list `ports` instead")
	}
	for i := range s.Ports {
		p, at := &s.Ports[i], kube.At(path+".ports", i)
		portOf(p).Check(v.Findings, at)
		if p.Port == nil {
			v.Error(at+".port", "port is missing: the item would match no port",
				"name a port; for every port write `allPorts: true`, for every port of the protocol `port: 1` with `endPort: 65535`")
		}
	}
}

func (v *validation) peer(path string, p *kepanp.Peer) {
	v.one(path, "peer", []string{"namespaces", "namespacedPods"}, p.Namespaces != nil, p.NamespacedPods != nil)
	if p.Namespaces != nil {
		v.namespaces(path+".namespaces", p.Namespaces)
	}
	if both := p.NamespacedPods; both != nil {
		path += ".namespacedPods"
		if both.Namespaces == nil {
			v.Error(path+".namespaces", "namespaces is missing", "write `namespaces: {namespaceSelector: {}}` to mean all namespaces")
		} else {
			v.namespaces(path+".namespaces", both.Namespaces)
		}
		if both.Pods == nil {
			v.Error(path+".pods", "pods is missing", "write `pods: {podSelector: {}}` to mean all pods")
		} else {
			v.pods(path+".pods", both.Pods)
		}
	}
}

func (v *validation) namespaces(path string, s *kepanp.NamespaceSet) {
	v.one(path, "namespaces", []string{"self", "notSelf", "namespaceSelector", "sameLabels", "notSameLabels"},
		s.Self != nil, s.NotSelf != nil, s.NamespaceSelector != nil, s.SameLabels != nil, s.NotSameLabels != nil)
	if s.Self != nil && !*s.Self {
		v.Error(path+".self", "self cannot be false", "write `notSelf: true` for the other namespaces")
	}
	if s.NotSelf != nil && !*s.NotSelf {
		v.Error(path+".notSelf", "notSelf cannot be false", "write `self: true` for the subject's own namespace")
	}
	kube.CheckSelector(v.Findings, path+".namespaceSelector", s.NamespaceSelector)
	v.keys(path+".sameLabels", s.SameLabels)
	v.keys(path+".notSameLabels", s.NotSameLabels)
}

func (v *validation) pods(path string, s *kepanp.PodSet) {
	v.one(path, "pods", []string{"podSelector", "sameLabels", "notSameLabels"},
		s.PodSelector != nil, s.SameLabels != nil, s.NotSameLabels != nil)
	kube.CheckSelector(v.Findings, path+".podSelector", s.PodSelector)
	v.keys(path+".sameLabels", s.SameLabels)
	v.keys(path+".notSameLabels", s.NotSameLabels)
}

func (v *validation) keys(path string, keys []string) {
	if keys != nil && len(keys) == 0 {
		v.Warn(path, "an empty list selects nothing", "list the label keys to compare")
	}
	for i, k := range keys {
		kube.CheckLabelKey(v.Findings, kube.At(path, i), k)
	}
}
