package e2e

import (
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tierwall/tierwall/deploy/e2e/traffic"
)

// A pod that starts under a policy that denies everything passes and hears nothing,
// from its first instruction on: it sends before anybody has seen it run, and every
// address of its node is sent to all the time.
func TestNewPods(t *testing.T) {
	const pods, batch = 20, 4
	c := connect(t)
	trafficImage(t)
	c.nodes = c.schedulable(t)
	if len(c.nodes) < 2 {
		t.Skipf("%d nodes take pods, want two", len(c.nodes))
	}
	open, closed := c.namespace(t, "open"), c.namespace(t, "closed")
	c.apply(t, strings.NewReplacer("$NS", closed).Replace(`apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: deny-all, namespace: $NS}
spec: {podSelector: {}, policyTypes: [Ingress, Egress]}`))
	at := strconv.Itoa(trafficPort)
	args := []string{"-serve", at, "-every", "50ms"}
	for i, n := range c.nodes[:2] {
		cidrs := n.Spec.PodCIDRs
		if len(cidrs) == 0 && i == 0 { // Nodes need not say them
			cidrs = strings.Split(os.Getenv("TIERWALL_E2E_POD_CIDRS"), ",")
		}
		for _, cidr := range cidrs {
			if _, p, err := net.ParseCIDR(cidr); err == nil && p.IP.To4() != nil {
				if ones, bits := p.Mask.Size(); bits-ones <= 8 {
					args = append(args, "-"+string(traffic.Sweep), net.JoinHostPort(cidr, at))
				}
			}
		}
	}
	if len(args) < 8 {
		t.Skip("the nodes have no IPv4 pod range of at most 256 addresses to try all of")
	}
	c.sender(t, open, "server", "server", c.nodes[0].Name, args...)
	server := c.running(t, open, "server", time.Minute)

	args = []string{"-serve", at, "-every", "5ms", "-patience", "300ms"}
	for _, ip := range server.Status.PodIPs {
		to := net.JoinHostPort(ip.IP, at)
		args = append(args, "-"+string(traffic.NewDatagrams), to, "-"+string(traffic.Connects), to)
	}
	// start makes pods, and returns what they sent, what was answered, and what they
	// and the server heard of each other.
	start := func(ns, prefix string, n int) (sent, answered, heard, heardOf int) {
		before := c.report(t, open, "server").Heard
		for i := range n {
			c.sender(t, ns, "new", prefix+strconv.Itoa(i), c.nodes[i%2].Name, args...)
		}
		var made []*corev1.Pod
		for i := range n {
			made = append(made, c.running(t, ns, prefix+strconv.Itoa(i), time.Minute))
		}
		time.Sleep(2 * time.Second)
		for _, p := range made {
			r := c.report(t, ns, p.Name)
			for _, f := range r.Flows {
				if f.Sent == 0 {
					t.Errorf("%s has sent nothing: %+v", p.Name, f)
				}
				sent += f.Sent
				answered += f.Answered
			}
			for _, h := range r.Heard {
				heard += h.Datagrams + h.Connections
			}
		}
		after := c.report(t, open, "server").Heard
		for _, p := range made {
			for _, ip := range p.Status.PodIPs {
				heardOf += after[ip.IP].Datagrams + after[ip.IP].Connections - before[ip.IP].Datagrams - before[ip.IP].Connections
			}
			if err := c.core.CoreV1().Pods(ns).Delete(t.Context(), p.Name, metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		}
		return sent, answered, heard, heardOf
	}
	if sent, answered, heard, heardOf := start(open, "open", 2); answered == 0 || heard == 0 || heardOf == 0 {
		t.Fatalf("without a policy: %d sent, %d answered, %d heard by the pods, %d of them: the test sees nothing", sent, answered, heard, heardOf)
	} else {
		t.Logf("without a policy, 2 pods: %d sent, %d answered, %d heard by the pods, %d of them", sent, answered, heard, heardOf)
	}
	var total int
	for i := 0; i < pods; i += batch {
		sent, answered, heard, heardOf := start(closed, "new"+strconv.Itoa(i)+"-", batch)
		total += sent
		if answered+heard+heardOf > 0 {
			t.Errorf("pods %d to %d: %d sent, %d answered, %d heard by the pods, %d of them", i, i+batch-1, sent, answered, heard, heardOf)
		}
	}
	t.Logf("%d pods that everything is denied: %d packets and connections tried", pods, total)
}

// A pod that policy isolates and allows what it does waits until policy knows it. How long
// is logged: from its first instruction to its first answer. With the chained CNI plugin
// (TIERWALL_E2E_CNI=1 says that the cluster has it) it need not wait for the API server.
func TestStartOfAllowedPods(t *testing.T) {
	const pods, batch = 20, 2
	c := connect(t)
	trafficImage(t)
	if c.nodes = c.schedulable(t); len(c.nodes) < 2 {
		t.Skipf("%d nodes take pods, want two", len(c.nodes))
	}
	servers, clients := c.namespace(t, "servers"), c.namespace(t, "clients")
	c.apply(t, strings.NewReplacer("$NS", clients, "$TO", servers).Replace(`apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: only-servers, namespace: $NS}
spec:
  podSelector: {}
  policyTypes: [Ingress, Egress]
  egress: [{to: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: $TO}}}]}]`))
	at := strconv.Itoa(trafficPort)
	c.sender(t, servers, "server", "server", c.nodes[0].Name, "-serve", at)
	server := c.running(t, servers, "server", time.Minute)
	to := net.JoinHostPort(server.Status.PodIP, at)
	var waited []time.Duration
	for i := 0; i < pods; i += batch {
		for n := range batch {
			c.sender(t, clients, "client", "client"+strconv.Itoa(i+n), c.nodes[n%2].Name, "-serve", at, "-every", "1ms", "-"+string(traffic.NewDatagrams), to)
		}
		for n := range batch {
			name := "client" + strconv.Itoa(i+n)
			c.running(t, clients, name, time.Minute)
			var first time.Duration
			for deadline := time.Now().Add(20 * time.Second); first == 0 && time.Now().Before(deadline); time.Sleep(200 * time.Millisecond) {
				for _, f := range c.report(t, clients, name).Flows {
					first = f.First
				}
			}
			if first == 0 {
				t.Fatalf("%s has had no answer", name)
			}
			waited = append(waited, first)
			if err := c.core.CoreV1().Pods(clients).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		}
	}
	slices.Sort(waited)
	t.Logf("from the first instruction to the first answer, %d pods: median %v, slowest %v", pods, waited[pods/2], waited[pods-1])
	if os.Getenv("TIERWALL_E2E_CNI") == "1" && waited[pods/2] > 100*time.Millisecond {
		t.Errorf("half of the pods waited more than %v although the CNI plugin told their addresses", waited[pods/2])
	}
}
