package e2e

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/remotecommand"
	"sigs.k8s.io/yaml"
)

// cluster is the cluster under test, and the pods the tests talk between.
type cluster struct {
	config  *rest.Config
	core    kubernetes.Interface
	dynamic dynamic.Interface
	image   string

	client, server string // namespaces
	nodes          []corev1.Node
}

const (
	port  = 8080 // of the server
	asked = 1500 * time.Millisecond
)

// connect returns the cluster, or skips.
func connect(t *testing.T) *cluster {
	t.Helper()
	path, image := os.Getenv("KUBECONFIG"), os.Getenv("TIERWALL_E2E_IMAGE")
	if path == "" || image == "" {
		t.Skip("KUBECONFIG and TIERWALL_E2E_IMAGE name no cluster and image to test with")
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		t.Fatal(err)
	}
	config.QPS, config.Burst = 50, 100
	c := &cluster{config: config, image: image}
	if c.core, err = kubernetes.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	if c.dynamic, err = dynamic.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	return c
}

// namespace makes a namespace that goes with the test.
func (c *cluster) namespace(t *testing.T, role string) string {
	t.Helper()
	ns, err := c.core.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		GenerateName: "tierwall-e2e-" + role + "-", Labels: map[string]string{"tierwall-e2e": role},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.core.CoreV1().Namespaces().Delete(context.Background(), ns.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	return ns.Name
}

// pod makes a pod and returns it; it may not be running yet.
func (c *cluster) pod(t *testing.T, ns, name, node string, args ...string) *corev1.Pod {
	t.Helper()
	return c.create(t, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, Labels: map[string]string{"app": strings.TrimRight(name, "0123456789")}},
		Spec: corev1.PodSpec{
			NodeName: node, TerminationGracePeriodSeconds: new(int64),
			Containers: []corev1.Container{{
				Name: "agnhost", Image: c.image, ImagePullPolicy: corev1.PullIfNotPresent, Command: append([]string{"/agnhost"}, args...),
			}},
		},
	})
}

func (c *cluster) create(t *testing.T, p *corev1.Pod) *corev1.Pod {
	t.Helper()
	p, err := c.core.CoreV1().Pods(p.Namespace).Create(t.Context(), p, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// running waits for a pod and returns it with its addresses.
func (c *cluster) running(t *testing.T, ns, name string, limit time.Duration) *corev1.Pod {
	t.Helper()
	var p *corev1.Pod
	deadline := time.Now().Add(limit)
	for {
		var err error
		if p, err = c.core.CoreV1().Pods(ns).Get(t.Context(), name, metav1.GetOptions{}); err != nil {
			t.Fatal(err)
		}
		if ready(p) {
			return p
		}
		if time.Now().After(deadline) {
			t.Fatalf("pod %s/%s is not ready after %v: %s %+v", ns, name, limit, p.Status.Phase, p.Status.Conditions)
		}
		time.Sleep(250 * time.Millisecond)
	}
}

func ready(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// exec runs a command in a pod. The error says that it failed, or did not run.
func (c *cluster) exec(ctx context.Context, ns, pod string, command ...string) (string, error) {
	url := c.core.CoreV1().RESTClient().Post().Resource("pods").Namespace(ns).Name(pod).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Command: command, Stdout: true, Stderr: true}, scheme.ParameterCodec).URL()
	e, err := remotecommand.NewSPDYExecutor(c.config, "POST", url)
	if err != nil {
		return "", err
	}
	var out bytes.Buffer
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	err = e.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: &out, Stderr: &out})
	return strings.TrimSpace(out.String()), err
}

// path is one way to reach the server, in the words of a failure.
type path struct{ from, name, address string }

// expect waits until every path is open or closed as said, and then sees that it
// stays so. A few paths are tried at a time: a closed one takes its time to say so.
func (c *cluster) expect(t *testing.T, open bool, paths []path) {
	t.Helper()
	var all errgroup.Group
	all.SetLimit(12)
	for _, p := range paths {
		all.Go(func() error {
			if problem := c.settles(t.Context(), open, p); problem != "" {
				t.Error(problem)
			}
			return nil
		})
	}
	_ = all.Wait()
}

// settles returns what is wrong with a path, "" when it becomes and stays as said.
func (c *cluster) settles(ctx context.Context, open bool, p path) string {
	deadline := time.Now().Add(20 * time.Second)
	for inARow := 0; inARow < 3; {
		said, err := c.exec(ctx, c.client, p.from, "/agnhost", "connect", "--timeout="+asked.String(), "--protocol=tcp", p.address)
		got := err == nil
		switch {
		case got == open:
			inARow++
		case inARow > 0 || time.Now().After(deadline):
			return fmt.Sprintf("%s to %s (%s): open is %v, want %v (%d times as wanted before; %q, %v)", p.from, p.name, p.address, got, open, inARow, said, err)
		default:
			time.Sleep(200 * time.Millisecond)
		}
	}
	return ""
}

// schedulable returns nodes that take ordinary pods.
func (c *cluster) schedulable(t *testing.T) []corev1.Node {
	t.Helper()
	list, err := c.core.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var out []corev1.Node
	for _, n := range list.Items {
		blocked := n.Spec.Unschedulable
		for _, taint := range n.Spec.Taints {
			blocked = blocked || taint.Effect != corev1.TaintEffectPreferNoSchedule
		}
		if !blocked {
			out = append(out, n)
		}
	}
	return out
}

// service exposes the server inside and on every node.
func (c *cluster) service(t *testing.T) *corev1.Service {
	t.Helper()
	policy := corev1.IPFamilyPolicyPreferDualStack
	s, err := c.core.CoreV1().Services(c.server).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "server"},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeNodePort, Selector: map[string]string{"app": "server"}, IPFamilyPolicy: &policy,
			Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(port)}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Which NodePorts are among the paths. A node that is asked for a NodePort rewrites
// the destination, and the source as well when another node asked it: who the server
// is shows on the client's own node only for the NodePort of that node, and who the
// client is never shows to an ingress policy.
type nodePorts int

const (
	noNodePort nodePorts = iota
	ownNodePort
	everyNodePort
)

// paths returns every way from a client pod to the server.
func paths(from *corev1.Pod, server *corev1.Pod, s *corev1.Service, nodes []corev1.Node, which nodePorts) []path {
	var out []path
	add := func(name, host string, port int32) {
		out = append(out, path{from.Name, name, net.JoinHostPort(host, strconv.Itoa(int(port)))})
	}
	for _, ip := range server.Status.PodIPs {
		add("the pod", ip.IP, port)
	}
	for _, ip := range s.Spec.ClusterIPs {
		add("the ClusterIP", ip, 80)
	}
	for _, n := range nodes {
		if which == noNodePort || which == ownNodePort && n.Name != from.Spec.NodeName {
			continue
		}
		for _, a := range n.Status.Addresses {
			if a.Type == corev1.NodeInternalIP && sameFamily(a.Address, s.Spec.ClusterIPs) {
				add("the NodePort of "+n.Name, a.Address, s.Spec.Ports[0].NodePort)
			}
		}
	}
	return out
}

func sameFamily(address string, others []string) bool {
	for _, o := range others {
		if strings.Contains(o, ":") == strings.Contains(address, ":") {
			return true
		}
	}
	return false
}

// apply creates objects from YAML; they go with the test, and undo removes them
// earlier. A kind that the cluster does not have skips the test.
func (c *cluster) apply(t *testing.T, text string) (undo func()) {
	t.Helper()
	groups, err := restmapper.GetAPIGroupResources(discovery.NewDiscoveryClientForConfigOrDie(c.config))
	if err != nil {
		t.Fatal(err)
	}
	mapper := restmapper.NewDiscoveryRESTMapper(groups)
	var made []func()
	for _, doc := range strings.Split(text, "\n---\n") {
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(doc), &o.Object); err != nil {
			t.Fatalf("%v\n%s", err, doc)
		}
		gvk := o.GroupVersionKind()
		mapping, err := mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
		if meta.IsNoMatchError(err) {
			t.Skipf("the cluster has no %s", gvk)
		}
		if err != nil {
			t.Fatal(err)
		}
		client := c.resource(mapping.Resource, o.GetNamespace())
		if _, err := client.Create(t.Context(), o, metav1.CreateOptions{}); err != nil {
			t.Fatalf("create %s %s: %v", gvk.Kind, o.GetName(), err)
		}
		made = append(made, func() {
			err := client.Delete(context.Background(), o.GetName(), metav1.DeleteOptions{})
			if err != nil && !apierrors.IsNotFound(err) {
				t.Errorf("delete %s %s: %v", gvk.Kind, o.GetName(), err)
			}
		})
	}
	undo = func() {
		for _, f := range made {
			f()
		}
	}
	t.Cleanup(undo)
	return undo
}

func (c *cluster) resource(r schema.GroupVersionResource, ns string) dynamic.ResourceInterface {
	if ns == "" {
		return c.dynamic.Resource(r)
	}
	return c.dynamic.Resource(r).Namespace(ns)
}

func (c *cluster) String() string {
	return fmt.Sprintf("%s, clients in %s, server in %s", c.config.Host, c.client, c.server)
}
