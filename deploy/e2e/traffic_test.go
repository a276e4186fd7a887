package e2e

import (
	"encoding/json"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/tierwall/tierwall/deploy/e2e/traffic"
)

const trafficPort = 9000

// trafficImage returns the image that has /traffic, or skips.
func trafficImage(t *testing.T) string {
	t.Helper()
	image := os.Getenv("TIERWALL_E2E_TRAFFIC_IMAGE")
	if image == "" {
		t.Skip("TIERWALL_E2E_TRAFFIC_IMAGE names no image with /traffic (deploy/e2e/traffic/cmd/traffic)")
	}
	return image
}

// sender makes a pod that runs the traffic program.
func (c *cluster) sender(t *testing.T, ns, app, name, node string, args ...string) *corev1.Pod {
	t.Helper()
	return c.create(t, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, Labels: map[string]string{"app": app}},
		Spec: corev1.PodSpec{
			NodeName: node, TerminationGracePeriodSeconds: new(int64), RestartPolicy: corev1.RestartPolicyNever,
			Containers: []corev1.Container{{
				Name: "traffic", Image: trafficImage(t), ImagePullPolicy: corev1.PullIfNotPresent, Command: append([]string{"/traffic"}, args...),
			}},
		},
	})
}

// report returns the counts of a pod that runs the traffic program.
func (c *cluster) report(t *testing.T, ns, pod string) traffic.Report {
	t.Helper()
	var said string
	var err error
	var r traffic.Report
	for range 5 { // the kubelet may be busy
		if said, err = c.exec(t.Context(), ns, pod, "/traffic", "-ask"); err == nil {
			err = json.Unmarshal([]byte(said), &r)
		}
		if err == nil {
			return r
		}
		time.Sleep(time.Second)
	}
	t.Fatalf("the report of %s/%s: %v %q", ns, pod, err, said)
	return r
}

// crowd are pods that talk to one server, by its ClusterIPs: on the server's node
// and on another, accepted and denied by its ingress policy or their own egress
// policy.
type crowd struct {
	*cluster
	near, far string // nodes
	service   *corev1.Service
	where     *corev1.Pod              // the server
	pods      map[string][]*corev1.Pod // by app
}

const crowdPolicies = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: server, namespace: $SERVER}
spec:
  podSelector: {matchLabels: {app: server}}
  ingress:
  - from:
    - namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: $CLIENT}}
      podSelector: {matchExpressions: [{key: app, operator: NotIn, values: [denied]}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: allowed, namespace: $CLIENT}
spec:
  podSelector: {matchLabels: {app: allowed}}
  policyTypes: [Ingress, Egress]
  egress:
  - to: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: $SERVER}}}]
    ports: [{port: 9000, protocol: TCP}, {port: 9000, protocol: UDP}]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: muted, namespace: $CLIENT}
spec:
  podSelector: {matchLabels: {app: muted}}
  policyTypes: [Egress]`

// crowd makes the server and the policies, and no client yet.
func (c *cluster) crowd(t *testing.T) *crowd {
	t.Helper()
	trafficImage(t)
	c.nodes = c.schedulable(t)
	if len(c.nodes) < 2 {
		t.Skipf("%d nodes take pods, want two", len(c.nodes))
	}
	c.client, c.server = c.namespace(t, "client"), c.namespace(t, "server")
	w := &crowd{cluster: c, near: c.nodes[0].Name, far: c.nodes[1].Name, pods: map[string][]*corev1.Pod{}}
	c.apply(t, w.fill(crowdPolicies))
	c.sender(t, c.server, "server", "server", w.near, "-serve", strconv.Itoa(trafficPort))
	family := corev1.IPFamilyPolicyPreferDualStack
	var err error
	w.service, err = c.core.CoreV1().Services(c.server).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "server"},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": "server"}, IPFamilyPolicy: &family,
			Ports: []corev1.ServicePort{
				{Name: "tcp", Protocol: corev1.ProtocolTCP, Port: trafficPort, TargetPort: intstr.FromInt32(trafficPort)},
				{Name: "udp", Protocol: corev1.ProtocolUDP, Port: trafficPort, TargetPort: intstr.FromInt32(trafficPort)},
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w.where = c.running(t, c.server, "server", time.Minute)
	time.Sleep(3 * time.Second) // kube-proxy has the Service
	return w
}

func (w *crowd) fill(text string) string {
	return strings.NewReplacer("$CLIENT", w.client, "$SERVER", w.server).Replace(strings.TrimPrefix(text, "\n"))
}

// join makes clients of one app, on both nodes, that send in these ways.
func (w *crowd) join(t *testing.T, app string, every, patience time.Duration, kinds ...traffic.Kind) {
	t.Helper()
	args := []string{"-every", every.String(), "-patience", patience.String()}
	for _, ip := range w.service.Spec.ClusterIPs {
		for _, k := range kinds {
			args = append(args, "-"+string(k), net.JoinHostPort(ip, strconv.Itoa(trafficPort)))
		}
	}
	for i, node := range []string{w.near, w.far} {
		w.sender(t, w.client, app, app+strconv.Itoa(i+1), node, args...)
	}
	for _, n := range []string{"1", "2"} {
		w.pods[app] = append(w.pods[app], w.running(t, w.client, app+n, time.Minute))
	}
}

// counts returns the reports of all clients of an app, flows in the order of their
// making, and what the server heard of each pod.
func (w *crowd) counts(t *testing.T, app string) (flows []traffic.Flow, heard []traffic.Heard) {
	t.Helper()
	for _, p := range w.pods[app] {
		flows = append(flows, w.report(t, w.client, p.Name).Flows...)
	}
	all := w.report(t, w.server, "server").Heard
	for _, p := range w.pods[app] {
		for _, ip := range p.Status.PodIPs {
			heard = append(heard, all[ip.IP])
		}
	}
	return flows, heard
}

// silent checks that nothing of an app's clients ever passed.
func (w *crowd) silent(t *testing.T, app string) {
	t.Helper()
	flows, heard := w.counts(t, app)
	sent := 0
	for _, f := range flows {
		sent += f.Sent
		if f.Sent == 0 || f.Answered > 0 {
			t.Errorf("%s: %+v", app, f)
		}
	}
	for i, h := range heard {
		if h != (traffic.Heard{}) {
			t.Errorf("%s: address %d was heard: %+v", app, i, h)
		}
	}
	t.Logf("%s: %d packets and connections tried, none passed", app, sent)
}

// unharmed checks that since before nothing of the accepted flows was lost.
func (w *crowd) unharmed(t *testing.T, before []traffic.Flow, heardBefore []traffic.Heard) {
	t.Helper()
	flows, heard := w.counts(t, "allowed")
	for i, f := range flows {
		b := before[i]
		t.Logf("allowed %s to %s: %d sent, %d answered, %d lost, %d sent again needlessly, slowest answer %v",
			f.Kind, f.To, f.Sent-b.Sent, f.Answered-b.Answered, f.Lost-b.Lost, f.Spurious-b.Spurious, f.Slowest.Round(100*time.Microsecond))
		switch {
		case f.Answered == b.Answered:
			t.Errorf("nothing came through: %+v", f)
		case f.Broken != "":
			t.Errorf("broken: %+v", f)
		case f.Kind != traffic.NewDatagrams && f.Lost > b.Lost: // new flows wait for the daemon; UDP does not ask twice
			t.Errorf("lost: %+v, before %+v", f, b)
		}
	}
	for i, h := range heard {
		if h.Lost > heardBefore[i].Lost {
			t.Errorf("answers on a stream were lost: %+v, before %+v", h, heardBefore[i])
		}
	}
}

// settled waits until every flow of the accepted clients works and returns counts.
func (w *crowd) settled(t *testing.T) ([]traffic.Flow, []traffic.Heard) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for {
		flows, heard := w.counts(t, "allowed")
		working := true
		for _, f := range flows {
			working = working && f.Answered > 20
		}
		if working {
			return flows, heard
		}
		if time.Now().After(deadline) {
			t.Fatalf("accepted traffic does not flow: %+v", flows)
		}
		time.Sleep(time.Second)
	}
}
