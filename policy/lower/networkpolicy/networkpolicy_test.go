package networkpolicy_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/internal/fixture"
	"github.com/tierwall/tierwall/policy/inventory"
	"github.com/tierwall/tierwall/policy/lower/networkpolicy"
)

func TestFixtures(t *testing.T) { fixture.Run(t) }

func object(p *networkingv1.NetworkPolicy) *api.Object {
	return &api.Object{Kind: networkpolicy.Dialect{}.Kinds()[0], Namespace: p.Namespace, Name: p.Name, Value: p}
}

// A peer or port that admission would refuse must allow nothing if it arrives
// all the same; above all it must not turn into "any".
func TestRefusedAllowsNothing(t *testing.T) {
	all := &metav1.LabelSelector{}
	odd := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Near"}}}
	end := int32(9)
	low, name := intstr.FromInt32(10), intstr.FromString("web")
	ten := networkingv1.IPBlock{CIDR: "10.0.0.0/8"}
	peer := func(p networkingv1.NetworkPolicyPeer) networkingv1.NetworkPolicyIngressRule {
		return networkingv1.NetworkPolicyIngressRule{From: []networkingv1.NetworkPolicyPeer{p}}
	}
	port := func(p networkingv1.NetworkPolicyPort) networkingv1.NetworkPolicyIngressRule {
		return networkingv1.NetworkPolicyIngressRule{Ports: []networkingv1.NetworkPolicyPort{p}}
	}
	icmp := corev1.Protocol("ICMP")
	for what, r := range map[string]networkingv1.NetworkPolicyIngressRule{
		"empty peer":           peer(networkingv1.NetworkPolicyPeer{}),
		"block and selector":   peer(networkingv1.NetworkPolicyPeer{IPBlock: &ten, PodSelector: all}),
		"unreadable cidr":      peer(networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: "10.0.0.0/99"}}),
		"unreadable hole":      peer(networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: "10.0.0.0/8", Except: []string{"?"}}}),
		"mapped cidr":          peer(networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: "::ffff:0:0/96"}}),
		"unknown operator":     peer(networkingv1.NetworkPolicyPeer{NamespaceSelector: odd}),
		"unknown protocol":     port(networkingv1.NetworkPolicyPort{Protocol: &icmp}),
		"range turned round":   port(networkingv1.NetworkPolicyPort{Port: &low, EndPort: &end}),
		"range without start":  port(networkingv1.NetworkPolicyPort{EndPort: &end}),
		"range of a name":      port(networkingv1.NetworkPolicyPort{Port: &name, EndPort: &end}),
		"number out of bounds": port(networkingv1.NetworkPolicyPort{Port: &intstr.IntOrString{IntVal: 70000}}),
	} {
		p := &networkingv1.NetworkPolicy{}
		p.Namespace, p.Name = "x", "p"
		p.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{r}
		if found := (networkpolicy.Dialect{}).Validate(object(p)); len(found.Errors) == 0 {
			t.Errorf("%s: accepted", what)
		}
		set, _ := networkpolicy.Dialect{}.Lower([]*api.Object{object(p)}, &inventory.Snapshot{})
		if err := set.Validate(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		e := rule.Endpoint{Namespace: "x", Name: "p", Labels: map[string]string{"a": "b"}, NamespaceLabels: map[string]string{"a": "b"}}
		for _, r := range set.Rules {
			for _, got := range r.Peers {
				if len(r.L4) > 0 && (got.Kind != rule.PeerPods || got.Pods.Matches(&e)) {
					t.Errorf("%s: lowered to\n%s", what, set.Text())
				}
			}
		}
		if len(set.Isolations) != 1 {
			t.Errorf("%s: the pod is not isolated", what)
		}
	}
}

func TestNotAPolicy(t *testing.T) {
	o := &api.Object{Kind: networkpolicy.Dialect{}.Kinds()[0], Namespace: "x", Name: "p", Value: 1}
	if found := (networkpolicy.Dialect{}).Validate(o); len(found.Errors) != 1 {
		t.Error("took a number for a policy")
	}
	p := &networkingv1.NetworkPolicy{}
	p.Name = "p"
	if found := (networkpolicy.Dialect{}).Validate(object(p)); len(found.Errors) != 1 || found.Errors[0].Path != "metadata.namespace" {
		t.Errorf("no namespace: %v", found)
	}
}
