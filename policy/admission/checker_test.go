package admission_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/tierwall/tierwall/policy/admission"
	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/internal/fixture"
	"github.com/tierwall/tierwall/policy/inventory"
)

const crd = "crd.antrea.io/v1beta1"

func tier(name string, priority int) string {
	return fmt.Sprintf("{apiVersion: %s, kind: Tier, metadata: {name: %s}, spec: {priority: %d}}", crd, name, priority)
}

func acnp(name, tier string) string {
	return fmt.Sprintf(`{apiVersion: %s, kind: ClusterNetworkPolicy, metadata: {name: %s},
  spec: {tier: %s, priority: 5, appliedTo: [{podSelector: {}}], ingress: [{action: Drop, from: [{podSelector: {}}]}]}}`, crd, name, tier)
}

func group(name, spec string) string {
	return fmt.Sprintf("{apiVersion: %s, kind: ClusterGroup, metadata: {name: %s}, spec: %s}", crd, name, spec)
}

func policy(name, spec string) string {
	return fmt.Sprintf("{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: %s, namespace: x}, spec: %s}", name, spec)
}

const kep = `{apiVersion: policy.networking.k8s.io/v1alpha1, kind: AdminNetworkPolicy, metadata: {name: kep},
  spec: {priority: 5, subject: {namespaceSelector: {}}, ingress: [{action: Deny, from: [{namespaces: {namespaceSelector: {}}}], l4Selector: {allPorts: true}}]}}`

const released = `{apiVersion: policy.networking.k8s.io/v1alpha1, kind: AdminNetworkPolicy, metadata: {name: released},
  spec: {priority: 5, subject: {namespaces: {}}, ingress: [{action: Deny, from: [{namespaces: {}}]}]}}`

func raw(t *testing.T, text string) []byte {
	t.Helper()
	b, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func decoded(t *testing.T, texts ...string) []*api.Object {
	t.Helper()
	var out []*api.Object
	for _, text := range texts {
		var m map[string]any
		if err := json.Unmarshal(raw(t, text), &m); err != nil {
			t.Fatal(err)
		}
		o, found := admission.Decode(m)
		if o == nil {
			t.Fatal(found.Err())
		}
		out = append(out, o)
	}
	return out
}

// request makes the review the API server would send.
func request(t *testing.T, op admissionv1.Operation, now, old string) *admissionv1.AdmissionRequest {
	t.Helper()
	text := now
	if text == "" {
		text = old
	}
	var o metav1.PartialObjectMetadata
	if err := yaml.Unmarshal([]byte(text), &o); err != nil {
		t.Fatal(err)
	}
	gvk := o.GroupVersionKind()
	r := &admissionv1.AdmissionRequest{
		UID: "u", Operation: op, Name: o.Name, Namespace: o.Namespace,
		Kind: metav1.GroupVersionKind{Group: gvk.Group, Version: gvk.Version, Kind: gvk.Kind},
	}
	if now != "" {
		r.Object = runtime.RawExtension{Raw: raw(t, now)}
	}
	if old != "" {
		r.OldObject = runtime.RawExtension{Raw: raw(t, old)}
	}
	return r
}

func TestReview(t *testing.T) {
	const create, update, remove = admissionv1.Create, admissionv1.Update, admissionv1.Delete
	pods := "{podSelector: {}}"
	for _, c := range []struct {
		rule     string
		world    []string
		op       admissionv1.Operation
		now, old string
		denied   string // part of the message; "" = allowed
	}{
		{"S2-03", nil, create, tier("mytier", 10), "", ""},
		{"S2-04", nil, create, acnp("p", "nowhere"), "", `spec.tier: there is no tier "nowhere"`},
		{"S2-05", []string{tier("a", 10)}, create, tier("b", 10), "", "spec.priority: priority 10 is already that of tier a"},
		{"S2-05 the error is on the other", []string{tier("b", 10)}, create, tier("a", 10), "", "this would put an error on Tier b: spec.priority"},
		{"S2-06", []string{tier("a", 10)}, update, tier("a", 11), tier("a", 10), "spec.priority: the priority of a Tier cannot be changed, it is 10"},
		{"S2-06 description", []string{tier("a", 10)}, update, "{apiVersion: " + crd + ", kind: Tier, metadata: {name: a}, spec: {priority: 10, description: new}}", tier("a", 10), ""},
		{"S2-07", []string{tier("a", 10), acnp("p", "a")}, remove, "", tier("a", 10), "this would put an error on ClusterNetworkPolicy p (crd.antrea.io): spec.tier"},
		{"S2-07 the last reference is gone", []string{tier("a", 10), acnp("p", "platform")}, remove, "", tier("a", 10), ""},
		{"S2-08", nil, create, tier("a", 251), "", "spec.priority"},
		{"S2-09 delete", []string{tier("emergency", 50)}, remove, "", tier("emergency", 50), "one of the six"},
		{"S2-09 priority", []string{tier("emergency", 50)}, update, tier("emergency", 51), tier("emergency", 50), "always has priority 50"},
		{"S2-70", nil, create, group("g", "{podSelector: {}, ipBlocks: [{cidr: 10.0.0.0/8}]}"), "", "spec: the group sets"},
		{"S2-77 a child cannot get children", []string{group("top", "{childGroups: [mid]}"), group("mid", pods), group("low", pods)}, update, group("mid", "{childGroups: [low]}"), group("mid", pods), "this would put an error on ClusterGroup top: spec.childGroups[0]"},
		{"S2-77 cycle", []string{group("top", "{childGroups: [mid]}"), group("mid", pods)}, update, group("mid", "{childGroups: [top]}"), group("mid", pods), "spec.childGroups[0]"},
		{"S2-78", nil, create, group("top", "{childGroups: [mid]}"), "", "spec.childGroups[0]: there is no ClusterGroup mid"},
		{"S2-79", []string{group("top", "{childGroups: [mid]}"), group("mid", pods)}, remove, "", group("mid", pods), "this would put an error on ClusterGroup top"},
		{"S2-79 the parent can go", []string{group("top", "{childGroups: [mid]}"), group("mid", pods)}, remove, "", group("top", "{childGroups: [mid]}"), ""},
		{"X-02", []string{released}, create, kep, "", "larger priority is the stronger"},
		{"X-02 the other way round", []string{kep}, create, released, "", "larger priority is the stronger"},
		{"X-08", nil, create, policy("p", "{podSelector: {matchlabels: {a: b}}}"), "", "write matchLabels"},
		{"X-23", nil, create, strings.Replace(acnp("p", "platform"), "from: [{podSelector: {}}]", "from: [{}]", 1), "", "spec.ingress[0].from[0]: empty"},
		{"what was wrong before denies nothing", []string{acnp("old", "nowhere")}, create, acnp("new", "platform"), "", ""},
		{"an object in error can go", []string{acnp("old", "nowhere")}, remove, "", acnp("old", "nowhere"), ""},
		{"an object in error can lose its finalizers", nil, update, acnp("old", "nowhere"), strings.Replace(acnp("old", "nowhere"), "name: old", "name: old, finalizers: [a/b]", 1), ""},
		{"an annotation is policy", nil, update, strings.Replace(acnp("old", "nowhere"), "name: old", "name: old, annotations: {tierwall.io/audit: 'true'}", 1), acnp("old", "nowhere"), "spec.tier"},
		{"a generated name", nil, create, "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {generateName: p-, namespace: x}, spec: {podSelector: {}}}", "", ""},
		{"others' kinds", nil, create, "{apiVersion: apps/v1, kind: Deployment, metadata: {name: x}}", "", ""},
	} {
		t.Run(c.rule, func(t *testing.T) {
			w := &admission.World{Version: 1, Objects: decoded(t, c.world...), Inventory: &inventory.Snapshot{}}
			checker := &admission.Checker{View: func() *admission.World { return w }, Wait: -1}
			a := checker.Review(context.Background(), request(t, c.op, c.now, c.old))
			switch {
			case c.denied == "" && !a.Allowed:
				t.Errorf("denied: %s", a.Result.Message)
			case c.denied != "" && a.Allowed:
				t.Error("allowed")
			case c.denied != "" && !strings.Contains(a.Result.Message, c.denied):
				t.Errorf("denied with %q, want %q in it", a.Result.Message, c.denied)
			}
		})
	}
}

// A policy and its tier are often applied together; the watch is behind.
func TestWaitsForNews(t *testing.T) {
	var now atomic.Pointer[admission.World]
	now.Store(&admission.World{Version: 1, Inventory: &inventory.Snapshot{}})
	checker := &admission.Checker{View: now.Load, Wait: 10 * time.Second}
	late := &admission.World{Version: 2, Objects: decoded(t, tier("late", 10)), Inventory: &inventory.Snapshot{}}
	time.AfterFunc(50*time.Millisecond, func() { now.Store(late) })
	if a := checker.Review(context.Background(), request(t, admissionv1.Create, acnp("p", "late"), "")); !a.Allowed {
		t.Errorf("denied although the tier came: %s", a.Result.Message)
	}
	began := time.Now()
	if a := checker.Review(context.Background(), request(t, admissionv1.Create, strings.Replace(acnp("p", "late"), "priority: 5", "priority: 0", 1), "")); a.Allowed {
		t.Error("priority 0 is allowed")
	} else if time.Since(began) > 5*time.Second {
		t.Error("an error that no other object can mend was waited for")
	}
}

// Warnings are those of the whole cluster's lint, and conflicts.
func TestWarnings(t *testing.T) {
	allowAll := strings.Replace(acnp("a", "platform"), "Drop", "Allow", 1)
	w := &admission.World{Version: 1, Objects: decoded(t, allowAll), Inventory: &inventory.Snapshot{}}
	checker := &admission.Checker{View: func() *admission.World { return w }, Wait: -1}
	later := strings.Replace(acnp("b", "platform"), "priority: 5", "priority: 6", 1)
	a := checker.Review(context.Background(), request(t, admissionv1.Create, later, ""))
	if !a.Allowed || len(a.Warnings) == 0 || !strings.Contains(strings.Join(a.Warnings, "\n"), "never decides") {
		t.Errorf("allowed %v, warnings %q", a.Allowed, a.Warnings)
	}
}

// TestOverridingIsSaidToTheAdministrator (S0-67): who creates a policy that overrides
// NetworkPolicies learns which, with a connection.
func TestOverridingIsSaidToTheAdministrator(t *testing.T) {
	const ingress = "{podSelector: {}, ingress: [{from: [{podSelector: {}}], ports: [{port: 80}, {port: 81}]}]}"
	w := &admission.World{
		Version: 1, Inventory: fixture.MustWorld(t, "namespace x\npod x/a app=a\npod x/b app=b\n").Inventory,
		Objects: decoded(t, policy("p", ingress), policy("q", ingress), policy("r", "{podSelector: {}, ingress: [{ports: [{port: 443}]}]}")),
	}
	checker := &admission.Checker{View: func() *admission.World { return w }, Wait: -1}
	wall := func(action string) string {
		return "{apiVersion: policy.networking.k8s.io/v1alpha1, kind: AdminNetworkPolicy, metadata: {name: wall}, " +
			"spec: {priority: 5, subject: {namespaces: {}}, ingress: [{action: " + action + ", from: [{namespaces: {}}], ports: [{portNumber: {protocol: TCP, port: 80}}]}]}}"
	}
	for action, want := range map[string]string{
		"Deny":  "is stronger than NetworkPolicy x/p, NetworkPolicy x/q and denies what they allow, for example 80/TCP from x/a to x/b",
		"Allow": "",
		"Pass":  "",
	} {
		a := checker.Review(context.Background(), request(t, admissionv1.Create, wall(action), ""))
		if !a.Allowed || strings.Join(a.Warnings, "\n") != want {
			t.Errorf("S0-67: %s: allowed %v, warnings %q, want %q", action, a.Allowed, a.Warnings, want)
		}
	}
	w.Objects, w.Version = w.Objects[2:], 2
	a := checker.Review(context.Background(), request(t, admissionv1.Create, wall("Allow"), ""))
	if got := strings.Join(a.Warnings, "\n"); got != "is stronger than NetworkPolicy x/r and allows what they deny, for example 80/TCP from x/b to x/a" {
		t.Errorf("warnings %q", got)
	}
}

func TestHandler(t *testing.T) {
	w := &admission.World{Version: 1, Inventory: &inventory.Snapshot{}}
	s := httptest.NewServer(admission.NewHandler(&admission.Checker{View: func() *admission.World { return w }, Wait: -1}, nil))
	defer s.Close()
	post := func(body string) (int, admissionv1.AdmissionReview) {
		t.Helper()
		r, err := http.Post(s.URL+admission.Path, "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		var review admissionv1.AdmissionReview
		if r.StatusCode == http.StatusOK {
			if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
				t.Fatal(err)
			}
		}
		return r.StatusCode, review
	}
	// As an API server 1.36 sends it.
	body := `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"7f0b2891-916f-4ed6-b7cd-27bff1815a8c",
	 "kind":{"group":"crd.antrea.io","version":"v1beta1","kind":"Tier"},"resource":{"group":"crd.antrea.io","version":"v1beta1","resource":"tiers"},
	 "requestKind":{"group":"crd.antrea.io","version":"v1beta1","kind":"Tier"},"requestResource":{"group":"crd.antrea.io","version":"v1beta1","resource":"tiers"},
	 "name":"late","operation":"CREATE","userInfo":{"username":"admin","groups":["system:masters","system:authenticated"]},
	 "object":{"apiVersion":"crd.antrea.io/v1beta1","kind":"Tier","metadata":{"name":"late","uid":"1","creationTimestamp":"2026-11-21T05:00:00Z","generation":1,
	   "managedFields":[{"manager":"kubectl","operation":"Update","apiVersion":"crd.antrea.io/v1beta1","fieldsType":"FieldsV1","fieldsV1":{"f:spec":{}}}]},"spec":{"priority":PRIORITY}},
	 "oldObject":null,"dryRun":false,"options":{"kind":"CreateOptions","apiVersion":"meta.k8s.io/v1"}}}`
	code, review := post(strings.Replace(body, "PRIORITY", "255", 1))
	if code != http.StatusOK || review.Request != nil || review.Response == nil || review.Response.Allowed || review.Response.UID != types.UID("7f0b2891-916f-4ed6-b7cd-27bff1815a8c") {
		t.Fatalf("code %d, review %+v", code, review)
	}
	if c := review.Response.Result.Details.Causes; len(c) != 1 || c[0].Field != "spec.priority" {
		t.Errorf("causes %v", c)
	}
	if _, review := post(strings.Replace(body, "PRIORITY", "25", 1)); !review.Response.Allowed {
		t.Errorf("denied: %s", review.Response.Result.Message)
	}
	for _, bad := range []string{"", "{}", `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1beta1","request":{}}`, string(bytes.Repeat([]byte("["), 9<<20))} {
		if code, _ := post(bad); code != http.StatusBadRequest {
			t.Errorf("code %d for a body of %d bytes", code, len(bad))
		}
	}
}

// deny has one kind and name in two APIs.
const (
	kubernetesDeny = "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: deny, namespace: x}, spec: {podSelector: {}}}"
	antreaDeny     = `{apiVersion: crd.antrea.io/v1beta1, kind: NetworkPolicy, metadata: {name: deny, namespace: x},
  spec: {tier: missing, priority: 1, appliedTo: [{podSelector: {}}], ingress: [{action: Drop, from: [{podSelector: {}}]}]}}`
)

// an object with an error denies nothing to the object that has its kind and
// name in another API, and its denial is about itself.
func TestTwoAPIsOneName(t *testing.T) {
	other := strings.Replace(kubernetesDeny, "podSelector: {}", "podSelector: {matchLabels: {app: nobody}}", 1)
	for _, c := range []struct {
		what     string
		world    []string
		op       admissionv1.Operation
		now, old string
		denied   string // the message begins with it; "" = allowed
	}{
		{"the wrong one comes", []string{kubernetesDeny}, admissionv1.Create, antreaDeny, "", `spec.tier: there is no tier "missing"`},
		{"the other one comes", []string{antreaDeny}, admissionv1.Create, kubernetesDeny, "", ""},
		{"the other one changes", []string{kubernetesDeny, antreaDeny}, admissionv1.Update, other, kubernetesDeny, ""},
		{"the other one goes", []string{kubernetesDeny, antreaDeny}, admissionv1.Delete, "", kubernetesDeny, ""},
		{"the wrong one goes", []string{kubernetesDeny, antreaDeny}, admissionv1.Delete, "", antreaDeny, ""},
	} {
		w := &admission.World{Version: 1, Objects: decoded(t, c.world...), Inventory: &inventory.Snapshot{Namespaces: []inventory.Namespace{{Name: "x"}}}}
		checker := &admission.Checker{View: func() *admission.World { return w }, Wait: -1}
		a := checker.Review(context.Background(), request(t, c.op, c.now, c.old))
		switch {
		case c.denied == "" && !a.Allowed:
			t.Errorf("%s: denied: %s", c.what, a.Result.Message)
		case c.denied != "" && (a.Allowed || !strings.HasPrefix(a.Result.Message, c.denied)):
			t.Errorf("%s: allowed %v, %+v, want %q", c.what, a.Allowed, a.Result, c.denied)
		}
	}
	// What is said of another object names its group.
	w := &admission.World{Version: 1, Objects: decoded(t, tier("missing", 10), antreaDeny, kubernetesDeny), Inventory: &inventory.Snapshot{}}
	checker := &admission.Checker{View: func() *admission.World { return w }, Wait: -1}
	a := checker.Review(context.Background(), request(t, admissionv1.Delete, "", tier("missing", 10)))
	if want := "this would put an error on NetworkPolicy x/deny (crd.antrea.io): spec.tier: "; a.Allowed || !strings.HasPrefix(a.Result.Message, want) {
		t.Errorf("denied with %+v, want %q", a.Result, want)
	}
}

// whoever mends what several objects do wrong together can begin with any of
// them.
func TestMixtureCanBeMended(t *testing.T) {
	second := func(text, name string) string { return strings.Replace(text, "name: "+name, "name: z-"+name, 1) }
	mixed := []string{kep, second(kep, "kep"), released, second(released, "released"), tier("a", 10), tier("b", 10), tier("c", 10)}
	w := &admission.World{Version: 1, Objects: decoded(t, mixed...), Inventory: &inventory.Snapshot{}}
	checker := &admission.Checker{View: func() *admission.World { return w }, Wait: -1}
	for _, text := range mixed {
		if a := checker.Review(context.Background(), request(t, admissionv1.Delete, "", text)); !a.Allowed {
			t.Errorf("%s\ncannot go: %s", text, a.Result.Message)
		}
	}
	// More of the same is refused all the same.
	for _, text := range []string{tier("0", 10), tier("d", 10)} {
		if a := checker.Review(context.Background(), request(t, admissionv1.Create, text, "")); a.Allowed {
			t.Errorf("%s\nis allowed", text)
		}
	}
}
