package networkpolicy

import (
	"fmt"
	"net/netip"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/diag"
	"github.com/tierwall/tierwall/policy/internal/kube"
)

// Validate checks one NetworkPolicy as the API server's admission would, and its
// tierwall.io annotations.
func (Dialect) Validate(o *api.Object) diag.List {
	f := &kube.Findings{Object: o}
	p, ok := o.Value.(*networkingv1.NetworkPolicy)
	if !ok {
		f.Error("", fmt.Sprintf("not a NetworkPolicy but a %T", o.Value), kube.InternalHint)
		return f.List
	}
	kube.ParseSettings(f)
	if o.Namespace == "" {
		f.Error("metadata.namespace", "a NetworkPolicy belongs to a namespace", "write metadata.namespace")
	}
	kube.CheckSelector(f, "spec.podSelector", &p.Spec.PodSelector)
	checkTypes(f, &p.Spec)
	for i := range p.Spec.Ingress {
		r := &p.Spec.Ingress[i]
		checkRule(f, kube.At("spec.ingress", i), "from", r.Ports, r.From)
	}
	for i := range p.Spec.Egress {
		r := &p.Spec.Egress[i]
		checkRule(f, kube.At("spec.egress", i), "to", r.Ports, r.To)
	}
	return f.List
}

func checkTypes(f *kube.Findings, s *networkingv1.NetworkPolicySpec) {
	if len(s.PolicyTypes) > 2 {
		f.Error("spec.policyTypes", "more than two policyTypes", "there are only Ingress and Egress")
	}
	for i, t := range s.PolicyTypes {
		if t == networkingv1.PolicyTypeIngress || t == networkingv1.PolicyTypeEgress {
			continue
		}
		hint := "write Ingress or Egress"
		for _, known := range []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress} {
			if strings.EqualFold(string(t), string(known)) {
				hint = "write " + string(known) + ": the values are case-sensitive"
			}
		}
		f.Error(kube.At("spec.policyTypes", i), fmt.Sprintf("unknown policy type %q", t), hint)
	}
	ingress, egress := directions(s)
	if len(s.Ingress) > 0 && !ingress {
		f.Warn("spec.ingress", "ingress rules have no effect: policyTypes does not contain Ingress", "add Ingress to spec.policyTypes")
	}
	if len(s.Egress) > 0 && !egress {
		f.Warn("spec.egress", "egress rules have no effect: policyTypes does not contain Egress", "add Egress to spec.policyTypes")
	}
}

func checkRule(f *kube.Findings, path, side string, ports []networkingv1.NetworkPolicyPort, peers []networkingv1.NetworkPolicyPeer) {
	for i := range ports {
		portOf(&ports[i]).Check(f, kube.At(path+".ports", i))
	}
	for i := range peers {
		checkPeer(f, kube.At(path+"."+side, i), &peers[i])
	}
}

func checkPeer(f *kube.Findings, path string, p *networkingv1.NetworkPolicyPeer) {
	kube.CheckSelector(f, path+".podSelector", p.PodSelector)
	kube.CheckSelector(f, path+".namespaceSelector", p.NamespaceSelector)
	selectors := p.PodSelector != nil || p.NamespaceSelector != nil
	switch {
	case p.IPBlock == nil && !selectors:
		f.Error(path, "empty peer", "set podSelector, namespaceSelector, both, or ipBlock; leave the whole list out to mean any peer")
	case p.IPBlock != nil && selectors:
		f.Error(path, "ipBlock together with a selector", "a peer is either addresses or pods: write two list items")
	}
	if p.IPBlock != nil {
		checkBlock(f, path+".ipBlock", p.IPBlock)
	}
}

func checkBlock(f *kube.Findings, path string, b *networkingv1.IPBlock) {
	if b.CIDR == "" {
		f.Error(path+".cidr", "cidr is missing", `write an address range such as "10.0.0.0/8" or "2001:db8::/32"`)
		return
	}
	cidr, ok := kube.CheckPrefix(f, path+".cidr", b.CIDR)
	for i, e := range b.Except {
		at := kube.At(path+".except", i)
		except, exceptOK := kube.CheckPrefix(f, at, e)
		if ok && exceptOK && !strictlyInside(except, cidr) {
			f.Error(at, fmt.Sprintf("%s is not a strict subset of cidr %s", e, b.CIDR),
				"a hole must lie inside the block and be smaller than it")
		}
	}
}

// strictlyInside reports whether inner lies in outer and is smaller. Families
// must agree; both are masked.
func strictlyInside(inner, outer netip.Prefix) bool {
	return inner.Bits() > outer.Bits() && outer.Contains(inner.Addr())
}
