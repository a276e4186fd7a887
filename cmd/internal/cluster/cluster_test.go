package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/tierwall/tierwall/cmd/internal/api"
	"github.com/tierwall/tierwall/policy/enforcement"
)

func node(name string) *corev1.Node { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}} }

func daemonPod(name, node string, phase corev1.PodPhase) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: DefaultNamespace,
			Labels: map[string]string{"app.kubernetes.io/name": "tierwall", "app.kubernetes.io/component": "daemon"},
		},
		Spec: corev1.PodSpec{NodeName: node}, Status: corev1.PodStatus{Phase: phase},
	}
}

// forbid makes the client refuse a list.
func forbid(c *fake.Clientset, resource string) {
	c.PrependReactor("list", resource, func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: resource}, "", errors.New("not you"))
	})
}

func TestList(t *testing.T) {
	deleted := daemonPod("old", "n1", corev1.PodRunning)
	deleted.DeletionTimestamp, deleted.Finalizers = &metav1.Time{Time: time.Unix(1, 0)}, []string{"x"}
	crash := daemonPod("crash", "n3", corev1.PodRunning)
	crash.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}}}
	other := daemonPod("other", "n2", corev1.PodRunning)
	other.Labels = nil
	c := fake.NewClientset(node("n1"), node("n2"), node("n3"), deleted, daemonPod("new", "n1", corev1.PodRunning), crash, other)
	d := &Daemons{Cluster: &Cluster{Client: c}}
	want := []Daemon{
		{"n1", "new", ""},
		{"n2", "", "no daemon on this node"},
		{"n3", "crash", "the pod is not running: CrashLoopBackOff"},
	}
	if got, err := d.List(t.Context()); err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
	// Without the right to list nodes, those with a daemon.
	forbid(c, "nodes")
	if got, err := d.List(t.Context()); err != nil || !slices.Equal(got, []Daemon{want[0], want[2]}) {
		t.Errorf("without nodes: %v, %v", got, err)
	}
	d.Namespace = "elsewhere"
	if _, err := d.List(t.Context()); err == nil || !strings.Contains(err.Error(), "no daemon in namespace elsewhere") {
		t.Errorf("another namespace: %v", err)
	}
	forbid(c, "pods")
	if _, err := d.List(t.Context()); !apierrors.IsForbidden(errors.Unwrap(err)) {
		t.Errorf("without pods: %v", err)
	}
}

func lease(t *testing.T, r enforcement.Report) *coordinationv1.Lease {
	t.Helper()
	l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: DefaultNamespace}}
	if err := enforcement.Encode(&r, l); err != nil {
		t.Fatal(err)
	}
	return l
}

func TestStates(t *testing.T) {
	now := time.Now()
	object := enforcement.Object{Resource: "networkpolicies.networking.k8s.io", Namespace: "shop", Name: "db"}
	seen := func(v uint64) map[string]uint64 { return map[string]uint64{object.Resource: v} }
	forged := lease(t, enforcement.Report{Node: "n2", Time: now, Observed: seen(99)})
	forged.Name = enforcement.LeaseName("n9")
	c := fake.NewClientset(
		node("n1"), node("n2"), node("n3"), node("n4"), node("n5"), forged,
		lease(t, enforcement.Report{Node: "n1", Time: now, Observed: seen(42)}),
		lease(t, enforcement.Report{Node: "n2", Time: now, Observed: seen(41)}),
		lease(t, enforcement.Report{Node: "n3", Time: now, Observed: seen(42), Refused: []enforcement.Refused{{Object: object, ResourceVersion: 42, Message: "spec.x: wrong"}}}),
		lease(t, enforcement.Report{Node: "n4", Time: now.Add(-time.Hour), Observed: seen(42)}),
		lease(t, enforcement.Report{Node: "gone", Time: now, Observed: seen(1)}),
	)
	d := &Daemons{Cluster: &Cluster{Client: c}}
	v := Version{Object: object, ResourceVersion: 42}
	got, certain, err := d.States(t.Context(), v, now)
	if err != nil || !certain {
		t.Fatal(certain, err)
	}
	want := []enforcement.State{enforcement.InForce, enforcement.Pending, enforcement.RefusedState, NoReport, NoReport}
	for i, w := range want {
		if len(got) != len(want) || got[i].State != w || (w != enforcement.InForce) == (got[i].Why == "") {
			t.Fatalf("%+v, want %v", got, want)
		}
	}
	forbid(c, "nodes")
	if got, certain, err := d.States(t.Context(), v, now); err != nil || certain || len(got) != 5 {
		t.Errorf("without nodes: %v, %v, %v", got, certain, err) // gone counts: nobody says that it is
	}
}

// Daemons are asked through what Dial connects to.
func TestAskStates(t *testing.T) {
	status := api.Status{Enforced: &enforcement.Report{Node: "n1", Observed: map[string]uint64{"networkpolicies.networking.k8s.io": 5}}}
	s := httptest.NewServer(api.Handler(api.Config{Status: func() api.Status { return status }}))
	defer s.Close()
	dialed := ""
	d := &Daemons{
		Cluster: &Cluster{Client: fake.NewClientset(node("n1"), node("n2"), daemonPod("d1", "n1", corev1.PodRunning), daemonPod("d2", "n2", corev1.PodRunning))},
		Dial: func(_ context.Context, namespace, pod string, port int) (Conn, error) {
			if pod == "d2" {
				return nil, errors.New("refused")
			}
			dialed = namespace + "/" + pod
			return net.Dial("tcp", s.Listener.Addr().String())
		},
	}
	got, err := d.AskStates(t.Context(), Version{Object: enforcement.Object{Resource: "networkpolicies.networking.k8s.io", Name: "x"}, ResourceVersion: 5}, time.Now())
	if err != nil || len(got) != 2 || got[0].State != enforcement.InForce || got[1].State != NoReport || !strings.Contains(got[1].Why, "refused") {
		t.Errorf("%+v, %v", got, err)
	}
	if dialed != "tierwall/d1" {
		t.Errorf("dialed %q", dialed)
	}
}

// A dial that hangs ends with its request.
func TestDialGivesUp(t *testing.T) {
	hang := make(chan struct{})
	defer close(hang)
	d := &Daemons{Cluster: &Cluster{}, Dial: func(context.Context, string, string, int) (Conn, error) {
		<-hang
		return nil, errors.New("late")
	}}
	client, done := d.Client(Daemon{Node: "n1", Pod: "d1"})
	defer done()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := client.Status(ctx); !errors.Is(err, context.DeadlineExceeded) && !strings.Contains(err.Error(), "no connection") {
		t.Errorf("%v", err)
	}
}

const kubeconfig = `apiVersion: v1
kind: Config
current-context: one
clusters: [{name: c, cluster: {server: "SERVER"}}]
users: [{name: u, user: {token: t}}]
contexts:
- {name: one, context: {cluster: c, user: u, namespace: shop}}
- {name: two, context: {cluster: c, user: u}}
`

func TestOpen(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	t.Setenv("KUBECONFIG", "")
	if _, err := (&Options{}).Open(); !errors.Is(err, ErrNone) {
		t.Errorf("nothing: %v", err)
	}
	path := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(path, []byte(strings.Replace(kubeconfig, "SERVER", "https://192.0.2.1:6443", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := (&Options{Kubeconfig: path + "x"}).Open(); err == nil || errors.Is(err, ErrNone) {
		t.Errorf("a file that is not there: %v", err)
	}
	if _, err := (&Options{Kubeconfig: path, Context: "three"}).Open(); err == nil || !strings.Contains(err.Error(), "three") {
		t.Errorf("a context that is not there: %v", err)
	}
	t.Setenv("KUBECONFIG", path)
	for _, tt := range []struct {
		o    Options
		want string
	}{{Options{}, "shop"}, {Options{Context: "two"}, "default"}, {Options{Namespace: "x"}, "x"}} {
		c, err := tt.o.Open()
		if err != nil || c.Namespace != tt.want || c.Config.Host != "https://192.0.2.1:6443" {
			t.Errorf("%+v: %+v, %v", tt.o, c, err)
		}
	}
}

// Find takes what kubectl takes, and only policies.
func TestFind(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		text := map[string]string{
			"/api":    `{"kind":"APIVersions","versions":["v1"]}`,
			"/api/v1": `{"kind":"APIResourceList","groupVersion":"v1","resources":[{"name":"pods","singularName":"pod","namespaced":true,"kind":"Pod","verbs":["get"]}]}`,
			"/apis": `{"kind":"APIGroupList","groups":[
				{"name":"networking.k8s.io","versions":[{"groupVersion":"networking.k8s.io/v1","version":"v1"}],"preferredVersion":{"groupVersion":"networking.k8s.io/v1","version":"v1"}},
				{"name":"crd.antrea.io","versions":[{"groupVersion":"crd.antrea.io/v1beta1","version":"v1beta1"}],"preferredVersion":{"groupVersion":"crd.antrea.io/v1beta1","version":"v1beta1"}}]}`,
			"/apis/networking.k8s.io/v1":                                    `{"kind":"APIResourceList","groupVersion":"networking.k8s.io/v1","resources":[{"name":"networkpolicies","singularName":"networkpolicy","namespaced":true,"kind":"NetworkPolicy","verbs":["get"],"shortNames":["netpol"]}]}`,
			"/apis/crd.antrea.io/v1beta1":                                   `{"kind":"APIResourceList","groupVersion":"crd.antrea.io/v1beta1","resources":[{"name":"networkpolicies","singularName":"networkpolicy","namespaced":true,"kind":"NetworkPolicy","verbs":["get"],"shortNames":["annp"]}]}`,
			"/apis/networking.k8s.io/v1/namespaces/shop/networkpolicies/db": `{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"name":"db","namespace":"shop","resourceVersion":"77"}}`,
			"/apis/crd.antrea.io/v1beta1/namespaces/shop/networkpolicies/x": `{"apiVersion":"crd.antrea.io/v1beta1","kind":"NetworkPolicy","metadata":{"name":"x","namespace":"shop","resourceVersion":"9","annotations":{"tierwall.io/stage":"audit"}}}`,
		}[r.URL.Path]
		if text == "" {
			w.WriteHeader(http.StatusNotFound)
			text = `{"kind":"Status","status":"Failure","reason":"NotFound","message":"it is not there","code":404}`
		}
		_, _ = w.Write([]byte(text))
	}))
	defer s.Close()
	path := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(path, []byte(strings.Replace(kubeconfig, "SERVER", s.URL, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := (&Options{Kubeconfig: path}).Open()
	if err != nil {
		t.Fatal(err)
	}
	for ref, want := range map[string]string{
		"netpol/db":                          "networkpolicies.networking.k8s.io shop/db 77",
		"NetworkPolicy.networking.k8s.io/db": "networkpolicies.networking.k8s.io shop/db 77",
		"annp/x":                             "networkpolicies.crd.antrea.io shop/x 9 staged",
		"networkpolicy/db":                   "is in several APIs: say networkpolicies.networking.k8s.io or networkpolicies.crd.antrea.io",
		"pod/web":                            "pods is no policy",
		"nothing/x":                          `no kind "nothing"`,
		"netpol/none":                        "it is not there",
		"netpol":                             "want KIND/NAME",
		// As other outputs write it.
		"networkpolicy.networking.k8s.io/shop/db": "networkpolicies.networking.k8s.io shop/db 77",
		"NetworkPolicy shop/x (crd.antrea.io)":    "networkpolicies.crd.antrea.io shop/x 9",
		"netpol/other/db":                         "it is not there",
	} {
		v, err := c.Find(t.Context(), ref)
		got := ""
		if err != nil {
			got = err.Error()
		} else {
			got = fmt.Sprint(v.String(), " ", v.ResourceVersion)
			if v.Staged {
				got += " staged"
			}
		}
		if !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %s", ref, got, want)
		}
	}
}
