package status

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/tierwall/tierwall/policy/enforcement"
	"github.com/tierwall/tierwall/policy/inventory"
)

// server is an API server's store, a View and a Client.
type server struct {
	t       testing.TB
	mu      sync.Mutex
	version int
	objects []Object
	world   *inventory.Snapshot
	reports []*enforcement.Report
	patches int
	events  []string
	prune   []string // fields of conditions the server does not keep
}

var plurals = map[string]string{
	"Tier": "tiers", "ClusterGroup": "clustergroups", "ClusterNetworkPolicy": "clusternetworkpolicies",
	"NetworkPolicy": "networkpolicies", "AdminNetworkPolicy": "adminnetworkpolicies",
}

func newServer(t testing.TB, texts ...string) *server {
	s := &server{t: t, world: world()}
	for _, text := range texts {
		s.add(text)
	}
	return s
}

func world() *inventory.Snapshot {
	w := &inventory.Snapshot{Namespaces: []inventory.Namespace{{Name: "x"}}}
	for i := range 3 {
		w.Nodes = append(w.Nodes, inventory.Node{Name: fmt.Sprintf("n%d", i+1), Labels: map[string]string{"kubernetes.io/os": "linux"}})
		w.Pods = append(w.Pods, inventory.Pod{Namespace: "x", Name: fmt.Sprintf("p%d", i), IPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)})}})
	}
	w.Nodes = append(w.Nodes, inventory.Node{Name: "w1", Labels: map[string]string{"kubernetes.io/os": "windows"}})
	return w
}

func (s *server) add(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &o.Object); err != nil {
		s.t.Fatal(err)
	}
	s.version++
	o.SetResourceVersion(fmt.Sprint(s.version))
	o.SetGeneration(1)
	o.SetUID(types.UID(fmt.Sprintf("uid-%d", len(s.objects))))
	s.objects = append(s.objects, Object{o.GroupVersionKind().GroupVersion().WithResource(plurals[o.GetKind()]), o})
}

func (s *server) Objects() []Object {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Object(nil), s.objects...)
}
func (s *server) World() *inventory.Snapshot { return s.world }
func (s *server) Reports() []*enforcement.Report {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]*enforcement.Report(nil), s.reports...)
}

// report makes all nodes but the last `missing` have everything up to now.
func (s *server) report(missing int, refused ...enforcement.Refused) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reports = nil
	for i := range 3 - missing {
		r := &enforcement.Report{Node: fmt.Sprintf("n%d", i+1), Time: time.Now(), Observed: map[string]uint64{}, Refused: refused, RefusedTotal: len(refused)}
		for _, o := range s.objects {
			r.Observed[o.Resource.GroupResource().String()] = uint64(s.version)
		}
		s.reports = append(s.reports, r)
	}
}

func (s *server) PatchStatus(_ context.Context, r schema.GroupVersionResource, namespace, name string, patch []byte) (*unstructured.Unstructured, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, o := range s.objects {
		if o.Resource != r || o.Stored.GetNamespace() != namespace || o.Stored.GetName() != name {
			continue
		}
		var p struct {
			Metadata struct{ ResourceVersion string }
		}
		if err := json.Unmarshal(patch, &p); err != nil || p.Metadata.ResourceVersion != o.Stored.GetResourceVersion() {
			return nil, fmt.Errorf("conflict: %w", err)
		}
		before, err := o.Stored.MarshalJSON()
		if err != nil {
			return nil, err
		}
		after, err := jsonpatch.MergePatch(before, patch)
		if err != nil {
			return nil, err
		}
		n := &unstructured.Unstructured{}
		if err := n.UnmarshalJSON(after); err != nil {
			return nil, err
		}
		list, _, _ := unstructured.NestedSlice(n.Object, "status", "conditions")
		for _, c := range list {
			for _, f := range s.prune {
				delete(c.(map[string]any), f)
			}
		}
		if err := unstructured.SetNestedSlice(n.Object, list, "status", "conditions"); err != nil {
			return nil, err
		}
		s.version++
		s.patches++
		n.SetResourceVersion(fmt.Sprint(s.version))
		s.objects[i].Stored = n
		return n, nil
	}
	return nil, fmt.Errorf("no %s %s", r, name)
}

func (s *server) Event(o runtime.Object, kind, reason, message string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, fmt.Sprintf("%s %s %s %s", o.(*corev1.ObjectReference).Name, kind, reason, message))
}

// condition returns "STATUS REASON MESSAGE", "" where there is none.
func (s *server) condition(name, kind string) string {
	for _, o := range s.Objects() {
		if o.Stored.GetName() != name {
			continue
		}
		list, _, _ := unstructured.NestedSlice(o.Stored.Object, "status", "conditions")
		for _, item := range list {
			if c := item.(map[string]any); c["type"] == kind {
				return fmt.Sprint(c["status"], " ", c["reason"], " ", c["message"])
			}
		}
	}
	return ""
}

func (s *server) status(name string) map[string]any {
	for _, o := range s.Objects() {
		if o.Stored.GetName() == name {
			m, _, _ := unstructured.NestedMap(o.Stored.Object, "status")
			return m
		}
	}
	return nil
}

// during runs a Reporter over s while f runs, in a bubble with its own clock.
func during(t *testing.T, s *server, limits Limits, f func(r *Reporter, wait func(time.Duration))) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		changes := make(chan struct{}, 1)
		r := NewReporter(s, s, s, Judge{}, limits, slog.New(slog.DiscardHandler))
		done := make(chan struct{})
		go func() { defer close(done); r.Run(ctx, changes) }()
		f(r, func(d time.Duration) {
			for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(time.Second) {
				select {
				case changes <- struct{}{}: // every write is an event
				default:
				}
			}
			synctest.Wait()
		})
		cancel()
		<-done
	})
}

func acnp(name, tier, action string, priority int) string {
	return fmt.Sprintf(`{apiVersion: crd.antrea.io/v1beta1, kind: ClusterNetworkPolicy, metadata: {name: %s},
  spec: {tier: %s, priority: %d, appliedTo: [{podSelector: {}}], ingress: [{action: %s, from: [{podSelector: {}}]}]}}`, name, tier, priority, action)
}

func want(t *testing.T, s *server, name, kind string, parts ...string) {
	t.Helper()
	got := s.condition(name, kind)
	if len(parts) == 0 && got != "" {
		t.Errorf("%s of %s is %q, want none", kind, name, got)
	}
	for _, p := range parts {
		if !strings.Contains(got, p) {
			t.Errorf("%s of %s is %q, want %q in it", kind, name, got, p)
		}
	}
}

// What the conditions say.
func TestConditions(t *testing.T) {
	s := newServer(t,
		acnp("bad", "nowhere", "Drop", 5), acnp("one", "platform", "Drop", 7), acnp("two", "platform", "Allow", 7),
		strings.Replace(acnp("skewed", "platform", "Drop", 9), "from: [{podSelector: {}}]", "from: [{workloads: {}}]", 1),
		"{apiVersion: crd.antrea.io/v1beta1, kind: ClusterGroup, metadata: {name: g}, spec: {podSelector: {}}}",
		`{apiVersion: policy.networking.k8s.io/v1alpha1, kind: AdminNetworkPolicy, metadata: {name: kep},
  spec: {priority: 5, subject: {namespaceSelector: {}}, ingress: [{action: Deny, from: [{namespaces: {namespaceSelector: {}}}], l4Selector: {allPorts: true}}]}}`)
	during(t, s, Limits{}, func(_ *Reporter, wait func(time.Duration)) {
		s.report(0)
		wait(3 * time.Second)
		want(t, s, "bad", Accepted, "False Invalid spec.tier: there is no tier", "(create the Tier")
		want(t, s, "bad", Enforced, "False Refused 3 of 3 nodes; see condition Accepted") // S0-62
		want(t, s, "one", Accepted, "True Accepted")                                      // S0-62
		want(t, s, "one", Enforced, "True AllNodes 3 of 3 nodes")
		want(t, s, "two", PriorityConflict, "True EqualPriority", "x/p", "TCP 80")
		want(t, s, "skewed", Degraded, "True UnknownSelector", "spec.ingress[0].from[0].workloads")
		want(t, s, "one", Degraded)
		want(t, s, "g", GroupMembersComputed, "True Computed") // S2-82
		want(t, s, "kep", Dialect, "True KEP")
		if st := s.status("one"); st["phase"] != "Realized" || st["currentNodesRealized"] != int64(3) || st["desiredNodesRealized"] != int64(3) || st["observedGeneration"] != int64(1) {
			t.Errorf("status of one: %v", st)
		}
		if st := s.status("bad"); st["phase"] != "Failed" {
			t.Errorf("phase of bad: %v", st["phase"])
		}
		if st := s.status("g"); st["phase"] != nil {
			t.Errorf("a group has a phase: %v", st)
		}
		before := s.patches
		wait(5 * time.Minute)
		s.report(0)
		if s.patches > before+12 { // stale and back: news once each way
			t.Errorf("%d writes while nothing happened", s.patches-before)
		}
	})
}

// every policy of the mixture says so.
func TestMixed(t *testing.T) {
	s := newServer(t, `{apiVersion: policy.networking.k8s.io/v1alpha1, kind: AdminNetworkPolicy, metadata: {name: kep},
  spec: {priority: 5, subject: {namespaceSelector: {}}, ingress: [{action: Deny, from: [{namespaces: {namespaceSelector: {}}}], l4Selector: {allPorts: true}}]}}`,
		`{apiVersion: policy.networking.k8s.io/v1alpha1, kind: AdminNetworkPolicy, metadata: {name: released},
  spec: {priority: 5, subject: {namespaces: {}}, ingress: [{action: Deny, from: [{namespaces: {}}]}]}}`)
	during(t, s, Limits{}, func(_ *Reporter, wait func(time.Duration)) {
		wait(3 * time.Second)
		want(t, s, "kep", Accepted, "False")
		want(t, s, "released", Accepted, "False MixedDialects")
		want(t, s, "kep", Dialect, "False MixedDialects", "KEP")
		want(t, s, "released", Dialect, "False MixedDialects", "release v0.1")
	})
}

// Nodes come in one by one; a status write of ours is no new version to wait for.
func TestEnforced(t *testing.T) {
	s := newServer(t, acnp("p", "platform", "Drop", 5))
	during(t, s, Limits{}, func(_ *Reporter, wait func(time.Duration)) {
		s.report(3)
		wait(3 * time.Second)
		want(t, s, "p", Enforced, "False NoReport 0 of 3 nodes; no report from n1, n2, n3")
		s.mu.Lock()
		s.version-- // nodes have the version of the object, not of our write
		s.mu.Unlock()
		s.report(1)
		s.mu.Lock()
		s.version++
		s.mu.Unlock()
		wait(5 * time.Second)
		want(t, s, "p", Enforced, "False NoReport 2 of 3 nodes; no report from n3")
		s.report(0)
		wait(5 * time.Second)
		want(t, s, "p", Enforced, "True AllNodes 3 of 3 nodes")
		name := enforcement.Object{Resource: "clusternetworkpolicies.crd.antrea.io", Name: "p"}
		s.report(0, enforcement.Refused{Object: name, ResourceVersion: uint64(s.version), Message: "no room"})
		wait(5 * time.Second)
		want(t, s, "p", Enforced, "False Refused 0 of 3 nodes; refused by 3: no room")
		s.report(0)
		wait(5 * time.Second)
		want(t, s, "p", Enforced, "True AllNodes")
		wait(enforcement.Stale + 2*time.Minute)
		want(t, s, "p", Enforced, "False NoReport 0 of 3 nodes")
	})
}

// A staged policy had the condition "Enforced: True".
func TestStagedIsNotEnforced(t *testing.T) {
	s := newServer(t, strings.Replace(acnp("p", "platform", "Drop", 5), "metadata: {", "metadata: {annotations: {tierwall.io/stage: audit}, ", 1))
	during(t, s, Limits{}, func(_ *Reporter, wait func(time.Duration)) {
		s.report(1)
		wait(3 * time.Second)
		want(t, s, "p", Enforced, "False NoReport 2 of 3 nodes")
		s.report(0)
		wait(5 * time.Second)
		want(t, s, "p", Enforced, "False Staged 3 of 3 nodes", "none enforces it")
	})
}

// A new leader believes what the status says, although nodes have not reported the
// version of the last status write.
func TestNewLeader(t *testing.T) {
	s := newServer(t, acnp("p", "platform", "Drop", 5))
	s.report(0)
	during(t, s, Limits{}, func(_ *Reporter, wait func(time.Duration)) { s.report(0); wait(3 * time.Second) })
	want(t, s, "p", Enforced, "True")
	before := s.patches
	during(t, s, Limits{}, func(_ *Reporter, wait func(time.Duration)) {
		s.mu.Lock()
		for _, r := range s.reports {
			r.Time, r.Observed["clusternetworkpolicies.crd.antrea.io"] = time.Now(), 1 // before our writes
		}
		s.mu.Unlock()
		wait(3 * time.Second)
	})
	if want(t, s, "p", Enforced, "True"); s.patches != before {
		t.Errorf("%d writes by a new leader that has nothing to say", s.patches-before)
	}
}

// Conditions of others stay; what an API server does not keep is not written for
// ever.
func TestOthersAndPruning(t *testing.T) {
	s := newServer(t, acnp("p", "platform", "Drop", 5))
	s.prune = []string{"reason", "message", "observedGeneration"}
	_ = unstructured.SetNestedSlice(s.objects[0].Stored.Object, []any{map[string]any{"type": "Theirs", "status": "True"}}, "status", "conditions")
	during(t, s, Limits{}, func(_ *Reporter, wait func(time.Duration)) {
		s.report(0)
		wait(10 * time.Second)
		if s.patches > 2 {
			t.Errorf("%d writes to a server that keeps a part", s.patches)
		}
	})
	want(t, s, "p", "Theirs", "True")
	want(t, s, "p", Accepted, "True")
}

// Writes are limited: a thousand new objects take the time the limit says.
func TestRate(t *testing.T) {
	s := newServer(t)
	for i := range 1000 {
		s.add(acnp(fmt.Sprintf("p%d", i), "platform", "Drop", 1+i))
	}
	during(t, s, Limits{Writes: 20}, func(_ *Reporter, wait func(time.Duration)) {
		s.report(0)
		wait(10 * time.Second)
		if n := s.patches; n < 150 || n > 260 {
			t.Errorf("%d writes in 10 s at 20 a second", n)
		}
		wait(60 * time.Second)
		if s.patches < 1000 {
			t.Errorf("%d of 1000 written after 70 s", s.patches)
		}
	})
}

// S0-67, S0-69: a NetworkPolicy whose say is taken away gets an event, once.
func TestEvents(t *testing.T) {
	np := "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: mine, namespace: x}, spec: {podSelector: {}, ingress: [{from: [{podSelector: {}}]}]}}"
	s := newServer(t, np, strings.Replace(np, "podSelector: {}, ingress", "podSelector: {matchlabels: {}}, ingress", 1), acnp("wall", "platform", "Drop", 5))
	s.objects[1].Stored.SetName("typo")
	during(t, s, Limits{}, func(_ *Reporter, wait func(time.Duration)) {
		wait(5 * time.Minute)
		all := strings.Join(s.events, "\n")
		if len(s.events) != 2 || !strings.Contains(all, "mine Warning PolicyOverridden") || !strings.Contains(all, "ClusterNetworkPolicy wall") || !strings.Contains(all, "typo Warning PolicyRefused spec.podSelector.matchlabels") {
			t.Errorf("events:\n%s", all)
		}
		s.mu.Lock()
		s.objects = s.objects[:1]
		s.mu.Unlock()
		wait(2 * time.Minute)
		if n := len(s.events); n != 3 || !strings.Contains(s.events[n-1], "mine Normal PolicyAccepted") {
			t.Errorf("events:\n%s", strings.Join(s.events, "\n"))
		}
	})
}

func BenchmarkLook(b *testing.B) {
	s := newServer(b)
	for i := range 10_000 {
		s.add(acnp(fmt.Sprintf("p%d", i), "platform", "Drop", 1+i%9000))
	}
	r := NewReporter(s, s, s, Judge{}, Limits{}, slog.New(slog.DiscardHandler))
	r.Look()
	b.Run("reports", func(b *testing.B) {
		for b.Loop() {
			r.Look()
		}
	})
	b.Run("objects", func(b *testing.B) {
		for b.Loop() {
			r.judged = nil
			r.Look()
		}
	})
}

// each object has its own verdict and conditions, whatever objects of
// its kind and name another API has.
func TestTwoAPIsOneName(t *testing.T) {
	np := "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: deny, namespace: x}, spec: {podSelector: {}, ingress: [{from: [{podSelector: {}}]}]}}"
	annp := `{apiVersion: crd.antrea.io/v1beta1, kind: NetworkPolicy, metadata: {name: deny, namespace: x},
  spec: {tier: missing, priority: 1, appliedTo: [{podSelector: {}}], ingress: [{action: Drop, from: [{podSelector: {}}]}]}}`
	kepCNP := `{apiVersion: netpol.networking.k8s.io/v1alpha1, kind: ClusterNetworkPolicy, metadata: {name: same},
  spec: {appliedTo: {namespaceSelector: {}}, ingress: [{action: Deny, from: [{namespaces: {scope: Self}}]}]}}`
	cnp := `{apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy, metadata: {name: same},
  spec: {tier: Admin, priority: 5, subject: {namespaces: {}}, ingress: [{action: Deny, from: [{namespaces: {}}]}]}}`
	for _, order := range [][]string{
		{np, annp, kepCNP, cnp, acnp("same", "missing", "Drop", 5)}, {acnp("same", "missing", "Drop", 5), cnp, kepCNP, annp, np},
	} {
		s := newServer(t, order...)
		var j Judge
		verdicts := j.Judge(s.Objects(), s.world)
		for i, o := range s.objects {
			antrea := o.Resource.Group == antreaGroup
			if n := len(verdicts[i].Errors); (n == 1) != antrea || n > 1 {
				t.Errorf("%s has errors %v", o.Resource, verdicts[i].Errors)
			}
			for _, d := range verdicts[i].Errors {
				if !strings.Contains(d.String(), "("+antreaGroup+")") {
					t.Errorf("%q does not name the group", d)
				}
			}
			if kubernetes := o.Resource.Group == "networking.k8s.io"; (len(verdicts[i].Overridden) > 0) != kubernetes {
				t.Errorf("%s is overridden: %v", o.Resource, verdicts[i].Overridden)
			}
		}
	}
}
