package e2e

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// languages are one denial, said in each policy language: what $DENIED in $CLIENT
// may not reach, and for $INGRESS what may not reach the server.
var languages = []struct {
	name            string
	egress, ingress string
}{
	{
		"NetworkPolicy", `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: deny, namespace: $CLIENT}
spec:
  podSelector: {matchLabels: {app: denied}}
  policyTypes: [Egress]`, `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: deny, namespace: $SERVER}
spec:
  podSelector: {matchLabels: {app: server}}
  ingress:
  - from:
    - namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: $CLIENT}}
      podSelector: {matchLabels: {app: allowed}}`,
	},
	{
		"KEP AdminNetworkPolicy", `
apiVersion: policy.networking.k8s.io/v1alpha1
kind: AdminNetworkPolicy
metadata: {name: $CLIENT}
spec:
  priority: 500
  subject:
    namespaceAndPodSelector:
      namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: $CLIENT}}
      podSelector: {matchLabels: {app: denied}}
  egress:
  - action: Deny
    l4Selector: {ports: [{protocol: TCP, port: 8080}]}
    to: [{namespaces: {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: $SERVER}}}}]`, `
apiVersion: policy.networking.k8s.io/v1alpha1
kind: AdminNetworkPolicy
metadata: {name: $CLIENT}
spec:
  priority: 500
  subject: {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: $SERVER}}}
  ingress:
  - action: Deny
    l4Selector: {allPorts: true}
    from:
    - namespacedPods:
        namespaces: {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: $CLIENT}}}
        pods: {podSelector: {matchLabels: {app: denied}}}`,
	},
	{
		"ClusterNetworkPolicy v1alpha2", `
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: $CLIENT}
spec:
  tier: Admin
  priority: 10
  subject:
    pods:
      namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: $CLIENT}}
      podSelector: {matchLabels: {app: denied}}
  egress:
  - action: Deny
    to: [{namespaces: {matchLabels: {kubernetes.io/metadata.name: $SERVER}}}]`, `
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: $CLIENT}
spec:
  tier: Admin
  priority: 10
  subject: {namespaces: {matchLabels: {kubernetes.io/metadata.name: $SERVER}}}
  ingress:
  - action: Deny
    from:
    - pods:
        namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: $CLIENT}}
        podSelector: {matchLabels: {app: denied}}`,
	},
	{
		"KEP ClusterNetworkPolicy", `
apiVersion: netpol.networking.k8s.io/v1alpha1
kind: ClusterNetworkPolicy
metadata: {name: $CLIENT}
spec:
  appliedTo:
    namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: $CLIENT}}
    podSelector: {matchLabels: {app: denied}}
  egress:
  - action: Deny
    to: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: $SERVER}}}]`, `
apiVersion: netpol.networking.k8s.io/v1alpha1
kind: ClusterNetworkPolicy
metadata: {name: $CLIENT}
spec:
  appliedTo: {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: $SERVER}}}
  ingress:
  - action: Deny
    from:
    - namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: $CLIENT}}
      podSelector: {matchLabels: {app: denied}}`,
	},
	{
		"Antrea ClusterNetworkPolicy", `
apiVersion: crd.antrea.io/v1beta1
kind: ClusterNetworkPolicy
metadata: {name: $CLIENT}
spec:
  tier: securityops
  priority: 5
  appliedTo:
  - namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: $CLIENT}}
    podSelector: {matchLabels: {app: denied}}
  egress:
  - action: Drop
    to: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: $SERVER}}}]`, `
apiVersion: crd.antrea.io/v1beta1
kind: ClusterGroup
metadata: {name: $CLIENT}
spec:
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: $CLIENT}}
  podSelector: {matchLabels: {app: denied}}
---
apiVersion: crd.antrea.io/v1beta1
kind: NetworkPolicy
metadata: {name: deny, namespace: $SERVER}
spec:
  priority: 5
  appliedTo: [{podSelector: {}}]
  ingress:
  - action: Reject
    from:
    - namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: $CLIENT}}
      podSelector: {matchLabels: {app: denied}}`,
	},
}

// One denial in every language, between pods of one node and of two, by every
// address the server has, both directions; and its end when the policy goes.
func TestPoliciesBetweenPods(t *testing.T) {
	c := connect(t)
	c.nodes = c.schedulable(t)
	if len(c.nodes) < 2 {
		t.Skipf("%d nodes take pods, want two", len(c.nodes))
	}
	c.client, c.server = c.namespace(t, "client"), c.namespace(t, "server")
	near, far := c.nodes[0].Name, c.nodes[1].Name
	c.pod(t, c.server, "server", near, "netexec", "--http-port=8080")
	for _, app := range []string{"denied", "allowed"} {
		c.pod(t, c.client, app+"1", near, "pause")
		c.pod(t, c.client, app+"2", far, "pause")
	}
	service := c.service(t)
	clients := map[string][]*corev1.Pod{}
	for _, app := range []string{"denied", "allowed"} {
		clients[app] = []*corev1.Pod{c.running(t, c.client, app+"1", time.Minute), c.running(t, c.client, app+"2", time.Minute)}
	}
	server := c.running(t, c.server, "server", time.Minute)
	all := func(app string, which nodePorts) (out []path) {
		for _, from := range clients[app] {
			out = append(out, paths(from, server, service, c.nodes[:2], which)...)
		}
		return out
	}
	c.expect(t, true, append(all("denied", everyNodePort), all("allowed", everyNodePort)...))
	if t.Failed() {
		t.Fatalf("there is no connection even without a policy: %v", c)
	}
	fill := strings.NewReplacer("$CLIENT", c.client, "$SERVER", c.server)
	for _, lang := range languages {
		for _, dir := range []struct {
			name, policy string
			which        nodePorts
		}{{"egress", lang.egress, ownNodePort}, {"ingress", lang.ingress, noNodePort}} {
			if lang.name == "NetworkPolicy" && dir.name == "egress" { // denies every address
				dir.which = everyNodePort
			}
			t.Run(lang.name+" "+dir.name, func(t *testing.T) {
				undo := c.apply(t, fill.Replace(strings.TrimPrefix(dir.policy, "\n")))
				c.expect(t, false, all("denied", dir.which))
				c.expect(t, true, all("allowed", dir.which))
				undo()
				c.expect(t, true, all("denied", dir.which))
			})
		}
	}
}

// The kubelet's probes reach a pod that a policy denies everything (S0-81, X-58),
// also one that starts under the policy.
func TestProbesUnderDenyAll(t *testing.T) {
	c := connect(t)
	ns := c.namespace(t, "probed")
	c.apply(t, strings.NewReplacer("$NS", ns).Replace(`apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: deny-all, namespace: $NS}
spec: {podSelector: {}, policyTypes: [Ingress, Egress]}
---
apiVersion: policy.networking.k8s.io/v1alpha1
kind: AdminNetworkPolicy
metadata: {name: $NS}
spec:
  priority: 1000
  subject: {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: $NS}}}
  ingress: [{action: Deny, l4Selector: {allPorts: true}, from: [{namespaces: {namespaceSelector: {}}}]}]`))
	probe := func(path string) *corev1.Probe {
		return &corev1.Probe{
			ProbeHandler:  corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromInt32(port)}},
			PeriodSeconds: 1, FailureThreshold: 2, TimeoutSeconds: 1,
		}
	}
	for _, n := range c.schedulable(t) {
		c.create(t, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "on-" + n.Name},
			Spec: corev1.PodSpec{
				NodeName: n.Name, TerminationGracePeriodSeconds: new(int64),
				Containers: []corev1.Container{{
					Name: "server", Image: c.image, Command: []string{"/agnhost", "netexec", "--http-port=8080"},
					ReadinessProbe: probe("/"), LivenessProbe: probe("/"),
				}},
			},
		})
	}
	for _, n := range c.schedulable(t) {
		c.running(t, ns, "on-"+n.Name, time.Minute)
	}
	time.Sleep(8 * time.Second) // four times what it takes to fail
	list, err := c.core.CoreV1().Pods(ns).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range list.Items {
		if restarts := p.Status.ContainerStatuses[0].RestartCount; !ready(&p) || restarts > 0 {
			t.Errorf("pod %s: ready %v, %d restarts", p.Name, ready(&p), restarts)
		}
	}
}
