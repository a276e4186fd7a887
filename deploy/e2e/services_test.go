package e2e

import (
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Ways to a pod that a network plugin and the Service proxy make together: a host port, a
// pod's own Service (hairpin), and names. The server takes only the allowed client's
// connections, and every client may ask for names.
func TestHairpinHostPortsAndNames(t *testing.T) {
	const hostPort = 18080
	c := connect(t)
	if c.nodes = c.schedulable(t); len(c.nodes) < 2 {
		t.Skipf("%d nodes take pods, want two", len(c.nodes))
	}
	c.client, c.server = c.namespace(t, "client"), c.namespace(t, "server")
	near, far := c.nodes[0].Name, c.nodes[1].Name
	c.create(t, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.server, Name: "server", Labels: map[string]string{"app": "server"}},
		Spec: corev1.PodSpec{
			NodeName: near, TerminationGracePeriodSeconds: new(int64),
			Containers: []corev1.Container{{
				Name: "agnhost", Image: c.image, ImagePullPolicy: corev1.PullIfNotPresent, Command: []string{"/agnhost", "netexec", "--http-port=" + strconv.Itoa(port)},
				Ports: []corev1.ContainerPort{{ContainerPort: port, HostPort: hostPort}},
			}},
		},
	})
	for _, app := range []string{"denied", "allowed"} {
		c.pod(t, c.client, app+"1", near, "pause")
		c.pod(t, c.client, app+"2", far, "pause")
	}
	service := c.service(t)
	server := c.running(t, c.server, "server", time.Minute)
	var denied, allowed []path
	names := map[bool][]path{}
	for i, n := range []string{near, far} {
		suffix := strconv.Itoa(i + 1)
		for app, list := range map[string]*[]path{"denied": &denied, "allowed": &allowed} {
			pod := c.running(t, c.client, app+suffix, time.Minute)
			*list = append(*list, path{pod.Name, "host port, asked on " + n, net.JoinHostPort(server.Status.HostIP, strconv.Itoa(hostPort))})
			name := path{pod.Name, "the Service's name, asked on " + n, service.Name + "." + c.server + ".svc.cluster.local:80"}
			*list = append(*list, name)
			names[app == "allowed"] = append(names[app == "allowed"], name)
		}
	}
	c.expect(t, true, append(denied, allowed...))
	if t.Failed() {
		t.Fatalf("there is no connection even without a policy: %v", c)
	}
	fill := strings.NewReplacer("$CLIENT", c.client, "$SERVER", c.server)
	c.apply(t, fill.Replace(`apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: allowed-only, namespace: $SERVER}
spec:
  podSelector: {}
  policyTypes: [Ingress, Egress]
  ingress:
  - from:
    - namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: $CLIENT}}
      podSelector: {matchLabels: {app: allowed}}`))
	c.expect(t, false, denied)
	c.expect(t, true, allowed)

	// The pod is isolated in both directions and reaches itself all the same.
	own := &cluster{config: c.config, core: c.core, client: c.server}
	var hairpin []path
	for _, ip := range service.Spec.ClusterIPs {
		hairpin = append(hairpin, path{server.Name, "its own Service", net.JoinHostPort(ip, "80")})
	}
	own.expect(t, true, hairpin)

	// Names are asked for by UDP: who may not ask does not get there.
	c.apply(t, fill.Replace(`apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: no-names, namespace: $CLIENT}
spec:
  podSelector: {matchLabels: {app: allowed}}
  policyTypes: [Egress]
  egress:
  - to: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: $SERVER}}}]`))
	c.expect(t, false, names[true])
	c.expect(t, true, []path{{"allowed1", "the pod, without a name", net.JoinHostPort(server.Status.PodIP, strconv.Itoa(port))}})
}
