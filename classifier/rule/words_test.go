package rule

import "testing"

func TestWords(t *testing.T) {
	app := Labels{{Key: "app", Op: In, Values: []string{"web"}}}
	many := Labels{{Key: "tier", Op: In, Values: []string{"a", "b"}}, {Key: "x", Op: NotIn, Values: []string{"1"}}, {Key: "y", Op: NotIn, Values: []string{"1", "2"}}, {Key: "z", Op: Exists}, {Key: "w", Op: NotExists}}
	for want, p := range map[string]Peer{
		"pods app=web in namespace shop": {Kind: PeerPods, Pods: Selector{Namespace: "shop", PodLabels: app}},
		"pods":                           {Kind: PeerPods},
		"no pods":                        {Kind: PeerPods, Pods: Selector{None: true}},
		"pods of service account ci in namespaces app=web":  {Kind: PeerPods, Pods: Selector{ServiceAccount: "ci", NamespaceLabels: app}},
		"pods tier in (a,b),x!=1,y notin (1,2),z,!w":        {Kind: PeerPods, Pods: Selector{PodLabels: many}},
		"pods that are pods app=web or pods in namespace x": {Kind: PeerPods, Pods: Selector{AnyOf: []Selector{{PodLabels: app}, {Namespace: "x"}}}},
		"pods in the same namespace":                        {Kind: PeerPods, Relation: Relation{Namespace: SameNamespace}},
		"addresses that api.stripe.com resolves to":         {Kind: PeerSet, Set: "cilium-fqdn:api.stripe.com"},
		"addresses that *.example.com resolves to":          {Kind: PeerSet, Set: "domain:*.example.com"},
		"nodes role=worker":                                 {Kind: PeerSet, Set: "node-selector:role=worker"},
		"any node":                                          {Kind: PeerSet, Set: "node-selector:"},
		"Service shop/db":                                   {Kind: PeerService, Set: "service:shop/db"},
		"anywhere":                                          {Kind: PeerAny},
	} {
		if got := p.Words(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
