package main

import (
	"strings"
	"testing"
)

// layers is a cluster of two nodes in which one policy of each layer decides
// about one port of the pod x/server.
const layers = `
apiVersion: v1
kind: Node
metadata: {name: n1}
spec: {podCIDR: 10.0.1.0/24}
status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}
---
apiVersion: v1
kind: Node
metadata: {name: n2}
spec: {podCIDR: 10.0.2.0/24}
status: {addresses: [{type: InternalIP, address: 192.0.2.2}]}
---
apiVersion: v1
kind: Pod
metadata: {name: server, namespace: x, labels: {app: server}}
spec: {nodeName: n1, containers: [{name: c, image: i}]}
status: {phase: Running, podIP: 10.0.1.1}
---
apiVersion: v1
kind: Pod
metadata: {name: free, namespace: x, labels: {app: free}}
spec: {nodeName: n1, containers: [{name: c, image: i}]}
status: {phase: Running, podIP: 10.0.1.2}
---
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: y}
spec: {nodeName: n2, containers: [{name: c, image: i}]}
status: {phase: Running, podIP: 10.0.2.1}
---
apiVersion: policy.networking.k8s.io/v1alpha1
kind: AdminNetworkPolicy
metadata: {name: strong}
spec:
  priority: 10
  subject: {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: x}}}
  ingress:
  - {name: no-80, action: Deny, l4Selector: {ports: [{port: 80}]}, from: [{namespaces: {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: y}}}}]}
---
apiVersion: policy.networking.k8s.io/v1alpha1
kind: AdminNetworkPolicy
metadata: {name: base}
spec:
  priority: 0
  subject: {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: x}}}
  ingress:
  - {name: no-82, action: Deny, l4Selector: {ports: [{port: 82}]}, from: [{namespaces: {namespaceSelector: {}}}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: app, namespace: x}
spec:
  podSelector: {matchLabels: {app: server}}
  ingress: [{ports: [{port: 81}]}]
`

// For a pair of pods, which layer decided, and which policy of it.
func TestExplainNamesTheLayer(t *testing.T) {
	for _, c := range []struct{ to, port, verdict, band, policy string }{
		{"x/server", "80/TCP", "Drop", "admin", "strong"},
		{"x/server", "81/TCP", "Allow", "networkpolicy", "app"},
		{"x/server", "82/TCP", "Drop", "networkpolicy", "app"}, // isolation, before priority 0
		{"x/free", "82/TCP", "Drop", "baseline", "base"},
		{"x/free", "83/TCP", "Allow", "default", ""},
	} {
		r := tierwall(t, layers, "explain", "-m", "-", "--from", "y/client", "--to", c.to, "-p", c.port, "-o", "json")
		var answer struct {
			Verdict string
			Ingress struct{ Band, Policy string }
		}
		decode(t, r.out, &answer)
		if answer.Verdict != c.verdict || answer.Ingress.Band != c.band || !strings.HasSuffix(answer.Ingress.Policy, c.policy) || (c.policy == "") != (answer.Ingress.Policy == "") { // S0-70, X-25
			t.Errorf("%s %s: got %+v %s", c.to, c.port, answer, r.err)
		}
	}
}

// A node knows the pods of the others: only so can it tell a pod from an address
// outside, which no AdminNetworkPolicy matches.
func TestPeersOfOtherNodes(t *testing.T) {
	for from, want := range map[string]string{"y/client": "Drop", "198.51.100.1": "Allow"} {
		r := tierwall(t, layers, "explain", "-m", "-", "--node", "n1", "--from", from, "--to", "x/free", "-p", "80/TCP", "-o", "json")
		var answer struct{ Verdict string }
		decode(t, r.out, &answer)
		if answer.Verdict != want { // S0-52, S0-50
			t.Errorf("%s: got %s%s", from, r.out, r.err)
		}
	}
}

// Where APIs differ about the same words, explain says how it reads them.
func TestExplainSaysTheReading(t *testing.T) {
	kep := func(from string) string {
		return "{priority: 5, subject: {namespaceSelector: {}}, ingress: [{action: Deny, l4Selector: {allPorts: true}, from: [" + from + "]}]}"
	}
	world, _, _ := strings.Cut(layers, "---\napiVersion: policy.networking.k8s.io")
	for _, c := range []struct{ spec, want string }{
		{kep(""), "matches nothing because `from` is empty (KEP dialect)"},
		{kep("{namespaces: {notSameLabels: [tenant]}}"), "whose namespace has another value, or none, of one of [tenant]"},
		{ // the first release's
			"{priority: 5, subject: {namespaces: {}}, ingress: [{action: Deny, from: [{namespaces: {notSameLabels: [tenant]}}]}]}",
			"whose namespace has another value of one of [tenant]",
		},
	} {
		policy := "---\napiVersion: policy.networking.k8s.io/v1alpha1\nkind: AdminNetworkPolicy\nmetadata: {name: read}\nspec: " + c.spec + "\n"
		r := tierwall(t, world+policy, "explain", "-m", "-", "--from", "y/client", "--to", "x/free", "-p", "83/TCP")
		if !strings.Contains(r.out, c.want) {
			t.Errorf("want %q in\n%s%s", c.want, r.out, r.err)
		}
	}
}
