package kube_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/inventory"
	"github.com/tierwall/tierwall/policy/source/kube"
)

const cluster = `
apiVersion: v1
kind: Namespace
metadata: {name: x, labels: {team: a}}
---
apiVersion: v1
kind: Node
metadata: {name: n1}
spec: {podCIDRs: [10.0.1.0/24]}
status: {addresses: [{type: InternalIP, address: 192.0.2.1}, {type: Hostname, address: n1}]}
---
apiVersion: v1
kind: Service
metadata: {name: s, namespace: x}
spec: {clusterIP: 10.96.0.1, clusterIPs: [10.96.0.1], ports: [{port: 80, targetPort: web}]}
---
apiVersion: v1
kind: Pod
metadata: {name: a, namespace: x, labels: {app: a}}
spec: {nodeName: n1, serviceAccountName: sa, containers: [{name: c, ports: [{name: web, containerPort: 8080}]}]}
status: {phase: Running, podIP: 10.0.1.5, podIPs: [{ip: 10.0.1.5}]}`

const policy = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: deny, namespace: x, generation: 1, uid: u, creationTimestamp: "2026-01-02T03:04:05Z", managedFields: [{manager: m}]}
spec: {podSelector: {}}`

const (
	np  = "networking.k8s.io/v1/networkpolicies"
	cnp = "policy.networking.k8s.io/v1alpha2/clusternetworkpolicies"
)

const clusterPolicy = `
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: c}
spec: {tier: Admin, priority: 1, subject: {namespaces: {}}, ingress: [{action: Deny, from: [{namespaces: {}}]}]}
status: {conditions: []}`

// rig is a Source that reads an apiserver.
type rig struct {
	*kube.Source
	t   *testing.T
	api *apiserver
}

func newRig(t *testing.T, change func(*kube.Config, *apiserver)) *rig {
	t.Helper()
	r := &rig{t: t, api: newAPIServer(t)}
	r.api.apply(t, cluster)
	cfg := kube.Config{REST: &rest.Config{Host: r.api.URL}, Logger: slog.New(slog.DiscardHandler)}
	if change != nil {
		change(&cfg, r.api)
	}
	var err error
	if r.Source, err = kube.New(cfg); err != nil {
		t.Fatal(err)
	}
	r.run()
	return r
}

// run starts the Source until the test ends.
func (r *rig) run() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	r.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			r.t.Error(err)
		}
	})
}

const patience = 30 * time.Second

// load waits for a state of which ok says it is right.
func (r *rig) load(what string, ok func(objs []*api.Object, snap *inventory.Snapshot) bool) ([]*api.Object, *inventory.Snapshot) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	for {
		objs, snap, found := r.Load(ctx)
		if len(found.Errors) > 0 {
			r.t.Fatalf("%s: %v", what, found.Errors)
		}
		if ctx.Err() == nil && ok(objs, snap) {
			return objs, snap
		}
		select {
		case <-r.Changes():
		case <-ctx.Done():
			r.t.Fatalf("%s: does not come about: %s, %+v", what, names(objs), r.Status())
		}
	}
}

// names lists objects as "Kind name", those with problems with a "!".
func names(objs []*api.Object) string {
	var out []string
	for _, o := range objs {
		n := o.Ref().String()
		if o.Value == nil {
			n += "!"
		}
		out = append(out, n)
	}
	return strings.Join(out, ", ")
}

func (r *rig) wantObjects(what, want string) []*api.Object {
	r.t.Helper()
	objs, _ := r.load(what, func(objs []*api.Object, _ *inventory.Snapshot) bool { return names(objs) == want })
	return objs
}

// until waits for a condition that no change announces.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("does not come about: " + what)
		}
	}
}

func TestReadsWorldAndPolicies(t *testing.T) {
	for _, classic := range []bool{false, true} {
		t.Run(fmt.Sprintf("classic=%t", classic), func(t *testing.T) {
			r := newRig(t, func(_ *kube.Config, s *apiserver) { s.classic = classic; s.apply(t, policy) })
			objs := r.wantObjects("start", "NetworkPolicy x/deny")
			_, snap := r.load("start", func([]*api.Object, *inventory.Snapshot) bool { return true })
			p := snap.Pods[0]
			if len(snap.Pods) != 1 || p.Name != "a" || p.Labels["app"] != "a" || p.ServiceAccount != "sa" || p.Node != "n1" ||
				p.IPs[0].String() != "10.0.1.5" || p.Ports[0].Name != "web" || p.Ports[0].Port != 8080 {
				t.Errorf("pods: %+v", snap.Pods)
			}
			if n := snap.Nodes[0]; len(n.Addrs) != 1 || n.PodCIDRs[0].String() != "10.0.1.0/24" {
				t.Errorf("node: %+v", n)
			}
			if ns := snap.Namespaces[0]; ns.Labels["team"] != "a" || ns.Labels["kubernetes.io/metadata.name"] != "x" {
				t.Errorf("namespace: %+v", ns)
			}
			if s := snap.Services[0]; s.ClusterIPs[0].String() != "10.96.0.1" || s.Ports[0].TargetName != "web" {
				t.Errorf("service: %+v", s)
			}
			if err := r.Ready(); err != nil {
				t.Error(err)
			}
			// An update of what policy cannot see keeps the object, pointer and all.
			r.api.apply(t, strings.Replace(policy, "manager: m", "manager: other", 1))
			r.api.apply(t, strings.Replace(policy, "name: deny", "name: second", 1))
			if now := r.wantObjects("a second one", "NetworkPolicy x/deny, NetworkPolicy x/second"); now[0] != objs[0] {
				t.Error("an update that means nothing made a new object")
			}
			// So does the world as long as it is the same.
			_, again := r.load("again", func(_ []*api.Object, s *inventory.Snapshot) bool { return true })
			if again != snap {
				t.Error("the world is another without a change")
			}
			r.api.delete("/v1/pods", "x/a")
			r.load("pod gone", func(_ []*api.Object, s *inventory.Snapshot) bool { return len(s.Pods) == 0 })
			r.api.delete(np, "x/deny")
			r.wantObjects("deleted", "NetworkPolicy x/second")
		})
	}
}

// A pod that has finished is no part of the world, whatever the API server sends.
func TestFinishedPods(t *testing.T) {
	r := newRig(t, nil)
	r.load("start", func(_ []*api.Object, s *inventory.Snapshot) bool { return len(s.Pods) == 1 })
	pod := cluster[strings.LastIndex(cluster, "\n---\n")+5:]
	r.api.apply(t, strings.Replace(pod, "Running", "Succeeded", 1))
	r.load("finished", func(_ []*api.Object, s *inventory.Snapshot) bool { return len(s.Pods) == 0 })
}

// An object the decoder refuses is there, with what is wrong; the others are as
// they were (X-07: an unknown field never widens access).
func TestUnknownFieldIsRefused(t *testing.T) {
	r := newRig(t, func(_ *kube.Config, s *apiserver) { s.apply(t, policy) })
	r.wantObjects("start", "NetworkPolicy x/deny")
	r.api.apply(t, strings.ReplaceAll(strings.Replace(policy, "deny", "bad", 1), "podSelector: {}", "podSelector: {matchlabels: {a: b}}"))
	objs := r.wantObjects("a bad one", "NetworkPolicy x/bad!, NetworkPolicy x/deny")
	d := objs[0].Problems[0]
	if len(objs[0].Problems) != 1 || d.Object != objs[0].Ref() || d.Object.String() != "NetworkPolicy x/bad" || d.Path != "spec.podSelector.matchlabels" || !strings.Contains(d.Hint, "matchLabels") {
		t.Errorf("%+v", objs[0].Problems)
	}
}

// Policy APIs come and go while the daemon runs.
func TestPolicyAPIsComeAndGo(t *testing.T) {
	r := newRig(t, func(_ *kube.Config, s *apiserver) { s.apply(t, policy) })
	r.wantObjects("start", "NetworkPolicy x/deny")
	for range 2 {
		r.api.serve(t, cnp, true)
		r.api.apply(t, clusterPolicy)
		r.wantObjects("installed", "ClusterNetworkPolicy c (policy.networking.k8s.io), NetworkPolicy x/deny")
		if got := r.ResourceOf(api.Kind{Group: "policy.networking.k8s.io", Kind: "ClusterNetworkPolicy"}); got != "clusternetworkpolicies.policy.networking.k8s.io" {
			t.Errorf("resource %q", got)
		}
		r.api.serve(t, cnp, false)
		r.wantObjects("removed", "NetworkPolicy x/deny")
	}
}

// Of several versions of a kind one is read; kinds that are there only in versions
// we do not know, or with another scope, are reported.
func TestVersions(t *testing.T) {
	const tiers = "crd.antrea.io/v1beta1/networkpolicies"
	r := newRig(t, func(_ *kube.Config, s *apiserver) {
		for _, resource := range []string{
			tiers, "crd.antrea.io/v1alpha1/networkpolicies", "policy.networking.k8s.io/v1beta7/clusternetworkpolicies",
			"netpol.networking.k8s.io/v1alpha1/clusternetworkpolicies",
		} {
			s.serve(t, resource, true)
		}
		for _, v := range []string{"v1beta1", "v1alpha1"} {
			s.apply(t, "apiVersion: crd.antrea.io/"+v+"\nkind: NetworkPolicy\nmetadata: {name: a, namespace: x}\nspec: {priority: 1, appliedTo: [{podSelector: {}}]}")
		}
	})
	objs := r.wantObjects("start", "NetworkPolicy x/a (crd.antrea.io)")
	if objs[0].Kind.Version != "v1beta1" {
		t.Errorf("read in %s", objs[0].Kind.Version)
	}
	_, _, found := r.Load(t.Context())
	var said []string
	for _, d := range found.Warnings {
		said = append(said, d.Message)
	}
	for _, want := range []string{"only in versions this version does not enforce: v1beta7", "another scope"} {
		if !slices.ContainsFunc(said, func(m string) bool { return strings.Contains(m, want) }) {
			t.Errorf("no warning says %q: %q", want, said)
		}
	}
}

// While the API server is away, what was known stays; what happened meanwhile
// applies when it is back, whether the watch can go on or has expired.
func TestAPIServerAway(t *testing.T) {
	for _, expired := range []bool{false, true} {
		t.Run(fmt.Sprintf("expired=%t", expired), func(t *testing.T) {
			r := newRig(t, func(_ *kube.Config, s *apiserver) { s.apply(t, policy) })
			r.wantObjects("start", "NetworkPolicy x/deny")
			r.api.setDown(true)
			until(t, "an error", func() bool {
				return slices.ContainsFunc(r.Status().Resources, func(s kube.ResourceStatus) bool { return s.Error != "" })
			})
			if objs, snap, _ := r.Load(t.Context()); names(objs) != "NetworkPolicy x/deny" || len(snap.Pods) != 1 {
				t.Errorf("away: %s, %+v", names(objs), snap)
			}
			if err := r.Ready(); err != nil {
				t.Errorf("not ready while the API server is away: %v", err)
			}
			r.api.apply(t, strings.Replace(policy, "name: deny", "name: meanwhile", 1))
			r.api.delete(np, "x/deny")
			if expired {
				r.api.compact()
			}
			r.api.setDown(false)
			r.wantObjects("back", "NetworkPolicy x/meanwhile")
			until(t, "no error", func() bool {
				return !slices.ContainsFunc(r.Status().Resources, func(s kube.ResourceStatus) bool { return s.Error != "" })
			})
		})
	}
}

// A resource that may not be read keeps the Source from being ready, and it says
// which and why.
func TestForbidden(t *testing.T) {
	r := newRig(t, func(_ *kube.Config, s *apiserver) { s.forbidden["/v1/pods"] = true })
	until(t, "a reason", func() bool {
		err := r.Ready()
		return err != nil && strings.Contains(err.Error(), "waiting for pods") && strings.Contains(err.Error(), "Forbidden")
	})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if objs, _, _ := r.Load(ctx); len(objs) != 0 || ctx.Err() == nil {
		t.Error("Load returned before everything was read")
	}
}

// Observed counts events that mean nothing once everything before is in force, and
// never runs ahead of the table.
func TestObserved(t *testing.T) {
	r := newRig(t, func(_ *kube.Config, s *apiserver) { s.apply(t, policy) })
	const resource = "networkpolicies.networking.k8s.io"
	objs, snap := r.load("start", func(objs []*api.Object, _ *inventory.Snapshot) bool { return len(objs) == 1 })
	if got := r.Observed(); len(got) != 0 {
		t.Errorf("nothing is in force, observed %v", got)
	}
	r.InForce(objs, inventory.ViewOf(snap))
	first := r.Observed()[resource]
	if first < 105 {
		t.Errorf("observed %d", first)
	}
	mark := uint64(r.api.bookmark(np))
	until(t, "the bookmark counts", func() bool { return r.Observed()[resource] == mark })
	r.api.apply(t, strings.Replace(policy, "name: deny", "name: more", 1))
	<-r.Changes()
	if got := r.Observed()[resource]; got > mark {
		t.Errorf("observed %d, but the table has %d", got, mark)
	}
	objs, snap = r.load("more", func(objs []*api.Object, _ *inventory.Snapshot) bool { return len(objs) == 2 })
	if got := r.Observed()[resource]; got > mark {
		t.Errorf("loaded, not in force: observed %d", got)
	}
	r.InForce(objs, inventory.ViewOf(snap))
	if got := r.Observed()[resource]; got <= mark {
		t.Errorf("in force: observed %d", got)
	}
}

// A node that starts without an API server enforces what it last did.
func TestSnapshot(t *testing.T) {
	file := filepath.Join(t.TempDir(), "state", "snapshot")
	with := func(c *kube.Config, s *apiserver) {
		c.Snapshot, c.SnapshotWait = file, 50*time.Millisecond
		s.apply(t, policy)
	}
	r := newRig(t, with)
	bad := strings.ReplaceAll(strings.Replace(policy, "deny", "bad", 1), "podSelector", "podselector")
	r.api.apply(t, bad)
	objs, snap := r.load("start", func(objs []*api.Object, _ *inventory.Snapshot) bool { return len(objs) == 2 })
	good := slices.DeleteFunc(slices.Clone(objs), func(o *api.Object) bool { return o.Value == nil })
	r.InForce(good, inventory.ViewOf(snap))
	until(t, "a snapshot", func() bool { _, err := os.Stat(file); return err == nil })
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(file), ".*")); len(left) != 0 {
		t.Errorf("left over: %v", left)
	}

	t.Run("used", func(t *testing.T) {
		r := newRig(t, func(c *kube.Config, s *apiserver) { with(c, s); s.setDown(true) })
		r.wantObjects("from disk", "NetworkPolicy x/deny")
		now, restored, found := r.Load(t.Context())
		if got, want := fmt.Sprintf("%+v", *restored), fmt.Sprintf("%+v", *snap); got != want {
			t.Errorf("world\n%s\nwant\n%s", got, want)
		}
		if len(found.Warnings) != 1 || !strings.Contains(found.Warnings[0].Message, "snapshot") {
			t.Errorf("findings %+v", found)
		}
		r.InForce(now, inventory.ViewOf(restored))
		if got := r.Observed(); len(got) != 0 {
			t.Errorf("observed %v from disk", got)
		}
		if err := r.Ready(); err == nil || !strings.Contains(err.Error(), "snapshot") || r.Status().Snapshot.IsZero() {
			t.Errorf("ready: %v", err)
		}
		r.api.apply(t, strings.Replace(policy, "name: deny", "name: new", 1))
		r.api.setDown(false)
		r.wantObjects("the API server is back", "NetworkPolicy x/deny, NetworkPolicy x/new")
		if err := r.Ready(); err != nil || !r.Status().Snapshot.IsZero() {
			t.Errorf("ready: %v", err)
		}
	})
	damage := map[string]func() error{
		"too old": func() error { old := time.Now().Add(-25 * time.Hour); return os.Chtimes(file, old, old) },
		"cut short": func() error {
			b, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			return os.WriteFile(file, b[:len(b)-4], 0o600)
		},
		"missing": func() error { return os.Remove(file) },
	}
	for _, name := range []string{"too old", "cut short", "missing"} {
		t.Run(name, func(t *testing.T) {
			if err := damage[name](); err != nil {
				t.Fatal(err)
			}
			r := newRig(t, func(c *kube.Config, s *apiserver) { with(c, s); s.setDown(true) })
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			if objs, _, _ := r.Load(ctx); len(objs) != 0 || ctx.Err() == nil {
				t.Errorf("used: %s", names(objs))
			}
		})
	}
}

// policies of one kind and name in two APIs are two objects, also in the
// snapshot, and what is wrong with one is not said of the other.
func TestTwoAPIsOneName(t *testing.T) {
	const antrea = `
apiVersion: crd.antrea.io/v1beta1
kind: NetworkPolicy
metadata: {name: deny, namespace: x}
spec: {priority: 1, appliedTo: [{podSelector: {}}]}
`
	file := filepath.Join(t.TempDir(), "snapshot")
	with := func(c *kube.Config, s *apiserver) {
		c.Snapshot, c.SnapshotWait = file, 50*time.Millisecond
		s.serve(t, "crd.antrea.io/v1beta1/networkpolicies", true)
		s.apply(t, policy)
	}
	const both = "NetworkPolicy x/deny (crd.antrea.io), NetworkPolicy x/deny"
	r := newRig(t, func(c *kube.Config, s *apiserver) { with(c, s); s.apply(t, antrea) })
	objs := r.wantObjects("both", both)
	_, snap, _ := r.Load(t.Context())
	r.InForce(objs, inventory.ViewOf(snap))
	until(t, "a snapshot", func() bool { _, err := os.Stat(file); return err == nil })
	down := newRig(t, func(c *kube.Config, s *apiserver) { with(c, s); s.setDown(true) })
	down.wantObjects("from disk", both)
	r.api.apply(t, strings.Replace(antrea, "appliedTo", "appliedto", 1))
	objs = r.wantObjects("one is unreadable", "NetworkPolicy x/deny (crd.antrea.io)!, NetworkPolicy x/deny")
	if p := objs[0].Problems; len(p) != 1 || p[0].Object != objs[0].Ref() || p[0].Object == objs[1].Ref() {
		t.Errorf("problems %+v", p)
	}
}

func TestRead(t *testing.T) {
	s := newAPIServer(t)
	s.apply(t, cluster)
	s.apply(t, policy)
	s.serve(t, cnp, true)
	s.apply(t, clusterPolicy)
	s.apply(t, strings.ReplaceAll(strings.Replace(policy, "deny", "bad", 1), "podSelector", "podselector"))
	config := &rest.Config{Host: s.URL}
	objs, snap, found, missing, err := kube.Read(t.Context(), config, kube.ReadOptions{})
	if err != nil || len(missing) != 0 || names(objs) != "ClusterNetworkPolicy c (policy.networking.k8s.io), NetworkPolicy x/deny" ||
		len(snap.Pods) != 1 || len(found.Errors) != 1 || found.Errors[0].Path != "spec.podselector" {
		t.Errorf("%s, %+v, %+v, %v, %v", names(objs), snap, found, missing, err)
	}
	for _, r := range []string{"/v1/pods", "/v1/nodes", "/v1/namespaces", np, cnp} {
		s.forbidden[r] = true
	}
	_, snap, _, missing, err = kube.Read(t.Context(), config, kube.ReadOptions{Fallback: "x"})
	var said []string
	for _, m := range missing {
		said = append(said, m.Resource+":"+m.Read)
	}
	slices.Sort(said)
	want := "clusternetworkpolicies.policy.networking.k8s.io: namespaces:x networkpolicies.networking.k8s.io:x nodes: pods:x"
	if got := strings.Join(said, " "); err != nil || got != want || len(snap.Pods) != 1 || len(snap.Nodes) != 0 {
		t.Errorf("limited: %v\n%s\nwant\n%s\n%+v", err, got, want, snap)
	}
	s.setDown(true)
	if _, _, _, _, err := kube.Read(t.Context(), config, kube.ReadOptions{}); err == nil {
		t.Error("no error from an API server that is away")
	}
}
