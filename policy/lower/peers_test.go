package lower_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/internal/fixture"
)

// Antrea's document counts seven kinds of selectors, lists eight, and has a
// ninth. Each lowers to a peer, alone and in the place it is for.
func TestAntreaPeers(t *testing.T) {
	w := fixture.MustWorld(t, "namespace x env=prod\nnode n1 192.0.2.1\npod x/a app=a\npod x/b app=b serviceAccount=sa\n")
	for _, c := range []struct{ name, peer, want string }{
		{"podSelector", "{podSelector: {matchLabels: {app: a}}}", `pods {pods("app"=["a"])}`},
		{"namespaceSelector", "{namespaceSelector: {matchLabels: {env: prod}}}", `pods {namespaces("env"=["prod"])}`},
		{"both", "{podSelector: {matchLabels: {app: a}}, namespaceSelector: {matchLabels: {env: prod}}}", `pods {namespaces("env"=["prod"]) pods("app"=["a"])}`},
		{"nodeSelector", "{nodeSelector: {}}", "set node-selector:"},
		{"namespaces", "{namespaces: {match: Self}}", "pods {} in the same namespace"},
		{"group", "{group: g}", `pods {pods("app"=["b"])}`},
		{"ipBlock", "{ipBlock: {cidr: 10.0.0.0/8}}", "10.0.0.0/8"},
		{"fqdn", "{fqdn: example.org}", "set fqdn:example.org"},
		{"serviceAccount", "{serviceAccount: {namespace: x, name: sa}}", `pods {namespace="x" serviceAccount="sa"}`},
	} {
		yaml := fmt.Sprintf(`
apiVersion: crd.antrea.io/v1beta1
kind: ClusterGroup
metadata: {name: g}
spec: {podSelector: {matchLabels: {app: b}}}
---
apiVersion: crd.antrea.io/v1beta1
kind: ClusterNetworkPolicy
metadata: {name: p}
spec:
  priority: 1
  appliedTo: [{namespaceSelector: {}}]
  egress: [{action: Drop, to: [%s]}]
`, c.peer)
		set, _ := fixture.MustBuild(t, w, yaml)
		var peers []string
		for _, r := range set.Rules {
			for i := range r.Peers {
				peers = append(peers, r.Peers[i].String())
			}
		}
		if len(set.Rules) != 1 || set.Rules[0].Action != rule.Deny || strings.Join(peers, " ") != c.want { // nine kinds
			t.Errorf("%s: got %q, want %q", c.name, peers, c.want)
		}
	}
}
