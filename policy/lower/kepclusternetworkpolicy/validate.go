package kepclusternetworkpolicy

import (
	"fmt"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/api/kepcnp"
	"github.com/tierwall/tierwall/policy/diag"
	"github.com/tierwall/tierwall/policy/internal/kube"
)

// Validate checks one policy as the KEP asks of admission (S1-01…S1-36), and its
// tierwall.io annotations.
func (Dialect) Validate(o *api.Object) diag.List {
	f := &kube.Findings{Object: o}
	kube.ParseSettings(f)
	v := validation{f}
	if o.Namespace != "" {
		v.Error("metadata.namespace", o.Kind.Kind+" is cluster-scoped", "remove metadata.namespace")
	}
	switch p := o.Value.(type) {
	case *kepcnp.ClusterNetworkPolicy:
		v.appliedTo(p.Spec.AppliedTo)
		for i := range p.Spec.Ingress {
			r, path := &p.Spec.Ingress[i], kube.At("spec.ingress", i)
			v.action(path+".action", r.Action)
			v.rule(path, "from", r.From, r.Ports)
		}
		for i := range p.Spec.Egress {
			r, path := &p.Spec.Egress[i], kube.At("spec.egress", i)
			v.action(path+".action", r.Action)
			v.rule(path, "to", r.To, r.Ports)
		}
	case *kepcnp.ClusterDefaultNetworkPolicy:
		v.appliedTo(p.Spec.AppliedTo)
		for i := range p.Spec.Ingress {
			v.rule(kube.At("spec.ingress", i), "from", p.Spec.Ingress[i].From, p.Spec.Ingress[i].Ports)
		}
		for i := range p.Spec.Egress {
			v.rule(kube.At("spec.egress", i), "to", p.Spec.Egress[i].To, p.Spec.Egress[i].Ports)
		}
		if !written(o, "ingress", p.Spec.Ingress != nil) && !written(o, "egress", p.Spec.Egress != nil) {
			v.Warn("spec", "neither ingress nor egress is written: the policy isolates nothing",
				"write `ingress: []` or `egress: []` to isolate a direction")
		}
	default:
		v.Error("", fmt.Sprintf("not a %s but a %T", o.Kind.Kind, o.Value), kube.InternalHint)
	}
	return f.List
}

type validation struct{ *kube.Findings }

func (v validation) appliedTo(a *kepcnp.AppliedTo) {
	const path = "spec.appliedTo"
	switch {
	case a == nil:
		v.Error(path, "appliedTo is missing", "write `appliedTo: {namespaceSelector: {}}` for every pod")
		return
	case a.NamespaceSelector == nil:
		v.Error(path+".namespaceSelector", "namespaceSelector is missing: the policy is not of one namespace",
			"write `namespaceSelector: {}` to mean all namespaces")
	}
	kube.CheckSelector(v.Findings, path+".namespaceSelector", a.NamespaceSelector)
	kube.CheckSelector(v.Findings, path+".podSelector", a.PodSelector)
}

func (v validation) action(path, action string) {
	switch action {
	case actionEmpower, actionDeny, actionAllow:
		return
	case "":
		v.Error(path, "action is missing", "write Empower, Deny or Allow")
		return
	}
	hint := "write Empower, Deny or Allow"
	for _, known := range []string{actionEmpower, actionDeny, actionAllow} {
		if strings.EqualFold(action, known) {
			hint = "write " + known + ": actions are case-sensitive"
		}
	}
	switch strings.ToLower(action) {
	case "drop", "reject":
		hint = "write Deny"
	case "accept":
		hint = "write Allow"
	case "pass":
		hint = "write Empower, which skips Deny rules and no others"
	}
	v.Error(path, fmt.Sprintf("unknown action %q", action), hint)
}

func (v validation) rule(path, side string, peers []kepcnp.Peer, ports []networkingv1.NetworkPolicyPort) {
	for i := range ports {
		portOf(&ports[i]).Check(v.Findings, kube.At(path+".ports", i))
	}
	for i := range peers {
		v.peer(kube.At(path+"."+side, i), &peers[i])
	}
}

func (v validation) peer(path string, p *kepcnp.Peer) {
	const one = "set exactly one of namespaceSelector, namespaces"
	switch {
	case p.NamespaceSelector != nil && p.Namespaces != nil: // S1-29
		v.Error(path, "peer sets namespaceSelector and namespaces", one)
	case p.NamespaceSelector != nil || p.Namespaces != nil:
	case p.PodSelector != nil: // S1-28
		v.Error(path, "podSelector without namespaces: the policy is not of one namespace",
			one+"; `namespaces: {scope: Self}` is the subject's own")
	default:
		v.UnknownSelector(path, "peer selects nothing", one+"; leave the whole list out to mean every pod")
	}
	kube.CheckSelector(v.Findings, path+".podSelector", p.PodSelector)
	kube.CheckSelector(v.Findings, path+".namespaceSelector", p.NamespaceSelector)
	if p.Namespaces != nil {
		v.namespaces(path+".namespaces", p.Namespaces)
	}
}

func (v validation) namespaces(path string, n *kepcnp.Namespaces) {
	const known = "write Self, Selector or SameLabels"
	scope, exact := canonicalScope(n.Scope)
	switch {
	case n.Scope == "":
		v.Error(path+".scope", "scope is missing", known)
		return
	case scope == "":
		v.Error(path+".scope", fmt.Sprintf("unknown scope %q", n.Scope), known)
		return
	case !exact:
		v.Warn(path+".scope", fmt.Sprintf("scope %q is read as %s", n.Scope, scope), "write "+scope)
	}
	switch {
	case scope != scopeSameLabels && n.Labels != nil: // S1-31
		v.Error(path+".labels", "labels with scope "+scope, "only scope SameLabels has labels")
	case scope == scopeSameLabels && len(n.Labels) == 0:
		v.Error(path+".labels", "scope SameLabels compares no labels", "list the label keys to compare")
	}
	switch {
	case scope != scopeSelector && n.Selector != nil: // S1-32
		v.Error(path+".selector", "selector with scope "+scope, "only scope Selector has a selector")
	case scope == scopeSelector && n.Selector == nil:
		v.Error(path+".selector", "selector is missing", "write {} to mean all namespaces")
	}
	for i, k := range n.Labels {
		kube.CheckLabelKey(v.Findings, kube.At(path+".labels", i), k)
	}
	kube.CheckSelector(v.Findings, path+".selector", n.Selector)
}

// fieldHint answers fields of the APIs that share a name or a purpose and
// what the KEP left for later (S1-40).
func fieldHint(path string) string {
	parent, name := path, ""
	if i := strings.LastIndexByte(path, '.'); i >= 0 {
		parent, name = path[:i], path[i+1:]
	}
	isRule := strings.HasPrefix(parent, "spec.") && strings.Count(parent, ".") == 1 && strings.HasSuffix(parent, "]")
	isPeer := strings.HasPrefix(parent, "spec.") && strings.Count(parent, ".") == 2 && strings.HasSuffix(parent, "]")
	switch {
	case parent == "spec" && name == "subject":
		return "in " + Group + " it is called appliedTo"
	case parent == "spec" && (name == "priority" || name == "tier"):
		return "there is no order but that of the actions: Empower, Deny, Allow"
	case parent == "spec.appliedTo" && name == "nodeSelector":
		return "policies apply to pods, not to nodes"
	case isRule && name == "name":
		return "rules have no names here; they are called by their place, such as ingress[0]"
	case strings.HasSuffix(parent, ".namespaces") && name == "namespaceSelector":
		return "write namespaceSelector in the peer, in the place of namespaces, which takes a `scope`"
	case name == "auditPolicy":
		return "write the annotation tierwall.io/audit: \"true\""
	case isPeer && (name == "ipBlock" || name == "networks"):
		return "peers are pods of the cluster; for addresses outside use a NetworkPolicy"
	}
	return ""
}

// defaultHint is fieldHint for ClusterDefaultNetworkPolicy.
func defaultHint(path string) string {
	if strings.HasSuffix(path, "].action") && strings.Count(path, ".") == 2 { // S1-04
		return "rules of a " + DefaultName + " have no action: each allows"
	}
	return fieldHint(path)
}
