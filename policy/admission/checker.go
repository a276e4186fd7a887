package admission

import (
	"context"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/json"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tierwall/tierwall/policy/api"
	antreaapi "github.com/tierwall/tierwall/policy/api/antrea"
	"github.com/tierwall/tierwall/policy/assess"
	"github.com/tierwall/tierwall/policy/diag"
	"github.com/tierwall/tierwall/policy/inventory"
	"github.com/tierwall/tierwall/policy/lint"
	"github.com/tierwall/tierwall/policy/lower"
	"github.com/tierwall/tierwall/policy/lower/antrea"
)

// World is what a review is held against. It is not modified.
type World struct {
	// Version changes with Objects or Inventory.
	Version uint64
	// Objects are the policies that decode.
	Objects   []*api.Object
	Inventory *inventory.Snapshot
}

// Bounds of what a review costs.
const (
	// MaxLintObjects is the number of policies up to which lint looks at the whole
	// cluster for one object.
	MaxLintObjects = 500
	// DefaultWait is how long a refusal that is due to other objects waits for news
	// of them.
	DefaultWait = time.Second
	// maxWarnings and maxWarning (bytes) are what a client can be expected to show.
	maxWarnings = 10
	maxWarning  = 250
)

// Checker reviews. Set View; the other fields are optional. It is safe for
// concurrent use.
type Checker struct {
	// View returns the world, nil while it is not in sync.
	View func() *World
	// Options as the daemons have them.
	Options lower.Options
	// Wait replaces DefaultWait; negative means not to wait.
	Wait time.Duration

	mu     sync.Mutex
	before map[string]baseline // group → what was wrong with it
}

type baseline struct {
	version uint64
	errors  map[wrong]bool
	mixed   bool // dialects that exclude each other
}

// wrong is an error on an object, to compare before and after.
type wrong struct {
	object        api.Ref
	path, message string
}

// worsens reports whether an error was not there before a request. One that several
// objects cause together names the first of them, which is another one when that
// one changes: to delete objects never causes such an error, and a mixture of
// dialects that was there is no news. So users can mend it one object at a time.
func (b *baseline) worsens(d *diag.Diagnostic, deletes bool) bool {
	if len(d.Among) > 0 && (deletes || b.mixed && d.Code == diag.MixedDialects) {
		return false
	}
	return !b.errors[wrong{d.Object, d.Path, d.Message}]
}

var policyGroups = func() map[string]bool {
	m := map[string]bool{}
	for _, k := range lower.Kinds() {
		m[k.Group] = true
	}
	return m
}()

// alone are the groups whose objects never concern each other.
var alone = map[string]bool{"networking.k8s.io": true, "cilium.io": true}

// Review answers one request. Before the world is in sync an object is checked by
// itself only.
func (c *Checker) Review(ctx context.Context, req *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	if req.SubResource != "" || !policyGroups[req.Kind.Group] {
		return allow(nil)
	}
	switch req.Operation {
	case admissionv1.Create, admissionv1.Update:
		return c.write(ctx, req)
	case admissionv1.Delete:
		return c.remove(ctx, req)
	}
	return allow(nil)
}

func (c *Checker) write(ctx context.Context, req *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	raw, err := object(req.Object.Raw)
	if err != nil {
		return deny(http.StatusBadRequest, "the object cannot be read: "+err.Error(), nil)
	}
	var old map[string]any
	if req.Operation == admissionv1.Update {
		if old, err = object(req.OldObject.Raw); err != nil {
			return deny(http.StatusBadRequest, "the old object cannot be read: "+err.Error(), nil)
		}
		if meta(raw)["deletionTimestamp"] != nil || samePolicy(raw, old) {
			return allow(nil)
		}
	}
	named(raw, req)
	o, found := assess.Decode(raw)
	if o == nil {
		return refuse(found.Errors, api.Ref{}, nil)
	}
	found.Add(validate(o))
	if o.Kind.Group == antreaapi.APIGroup && o.Kind.Kind == "Tier" && old != nil {
		found.Errors = append(found.Errors, tierUpdate(o, old)...)
	}
	if len(found.Errors) > 0 {
		return refuse(found.Errors, o.Ref(), nil)
	}
	return c.among(ctx, req, o, found.Warnings)
}

func (c *Checker) remove(ctx context.Context, req *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	if req.Kind.Group == antreaapi.APIGroup && req.Kind.Kind == "Tier" {
		if _, static := antrea.StaticTiers()[req.Name]; static { // S2-09
			return deny(http.StatusForbidden, fmt.Sprintf("Tier %s is one of the six that always exist and cannot be deleted", req.Name), nil)
		}
	}
	if alone[req.Kind.Group] {
		return allow(nil)
	}
	return c.among(ctx, req, nil, nil)
}

// among holds a changed world (o in its place, or with nil gone) against the one
// before, and waits a moment when it is worse.
func (c *Checker) among(ctx context.Context, req *admissionv1.AdmissionRequest, o *api.Object, warnings []diag.Diagnostic) *admissionv1.AdmissionResponse {
	wait := c.Wait
	if wait == 0 {
		wait = DefaultWait
	}
	deadline := time.Now().Add(wait)
	if d, ok := ctx.Deadline(); ok && d.Add(-500*time.Millisecond).Before(deadline) {
		deadline = d.Add(-500 * time.Millisecond) // leave time to answer
	}
	seen := ^uint64(0)
	var answer *admissionv1.AdmissionResponse
	for {
		w := c.View()
		switch {
		case w == nil:
			return allow(append([]string{"checked by itself only: the controller has just started"}, texts(warnings)...))
		case w.Version != seen:
			seen = w.Version
			if answer = c.compare(w, req, o, warnings); answer.Allowed {
				return answer
			}
		}
		if !time.Now().Before(deadline) {
			return answer
		}
		select {
		case <-ctx.Done():
			return answer
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (c *Checker) compare(w *World, req *admissionv1.AdmissionRequest, o *api.Object, warnings []diag.Diagnostic) *admissionv1.AdmissionResponse {
	id := api.Ref{Group: req.Kind.Group, Kind: req.Kind.Kind, Namespace: req.Namespace, Name: req.Name}
	if o != nil {
		id = o.Ref()
	}
	var objs []*api.Object
	if !alone[id.Group] {
		for _, other := range w.Objects {
			if other.Kind.Group == id.Group && other.Ref() != id {
				objs = append(objs, other)
			}
		}
	}
	if o != nil {
		objs = append(objs, o)
	}
	r := assess.Run(c.Options, objs, w.Inventory, nil)
	found := r.ByObject()
	own := found[id]
	if o != nil && len(own.Errors) > 0 {
		return refuse(own.Errors, id, warnings)
	}
	if !alone[id.Group] {
		before := c.baseline(w, id.Group)
		var worse []diag.Diagnostic
		for _, l := range found {
			for i := range l.Errors {
				if before.worsens(&l.Errors[i], o == nil) {
					worse = append(worse, l.Errors[i])
				}
			}
		}
		if len(worse) > 0 {
			return refuse(worse, id, warnings)
		}
	}
	if o != nil {
		// Validate has said its warnings already.
		for _, d := range own.Warnings {
			if !slices.ContainsFunc(warnings, d.Equal) {
				warnings = append(warnings, d)
			}
		}
		warnings = append(warnings, c.lint(w, id, o)...)
	}
	return allow(texts(warnings))
}

// baseline returns what is wrong with a group's objects as they are.
func (c *Checker) baseline(w *World, group string) baseline {
	c.mu.Lock()
	defer c.mu.Unlock()
	if b, ok := c.before[group]; ok && b.version == w.Version {
		return b
	}
	var objs []*api.Object
	for _, o := range w.Objects {
		if o.Kind.Group == group {
			objs = append(objs, o)
		}
	}
	b := baseline{version: w.Version, errors: map[wrong]bool{}}
	r := assess.Run(c.Options, objs, w.Inventory, nil)
	for _, l := range r.ByObject() {
		for _, e := range l.Errors {
			b.errors[wrong{e.Object, e.Path, e.Message}] = true
			b.mixed = b.mixed || e.Code == diag.MixedDialects
		}
	}
	if c.before == nil {
		c.before = map[string]baseline{}
	}
	c.before[group] = b
	return b
}

// lint returns what lint says about an object that is named id.
func (c *Checker) lint(w *World, id api.Ref, o *api.Object) []diag.Diagnostic {
	if len(w.Objects) > MaxLintObjects {
		return nil
	}
	objs := []*api.Object{o}
	for _, other := range w.Objects {
		if other.Ref() != id {
			objs = append(objs, other)
		}
	}
	r := assess.Run(c.Options, objs, w.Inventory, nil)
	if len(r.Findings.Errors) > 0 {
		return nil
	}
	var out []diag.Diagnostic
	found := lint.Check(r.Objects, &r.Set, w.Inventory)
	for _, d := range found.Warnings {
		if d.Object == id {
			out = append(out, d)
		}
	}
	return append(out, overriding(id, found)...)
}

// overriding says which policies the object under review overrides (S0-67): in one
// sentence those of which it denies what they allow, in another those of which it
// allows what they deny.
func overriding(id api.Ref, found diag.List) []diag.Diagnostic {
	var denied, opened []diag.Diagnostic
	for _, d := range slices.Concat(found.Warnings, found.Notes) {
		switch {
		case d.Override.By != id || d.Object == id:
		case d.Override.Action == "Allow" || d.Override.Action == "Accept":
			opened = append(opened, d)
		default:
			denied = append(denied, d)
		}
	}
	var out []diag.Diagnostic
	for _, l := range []struct {
		found []diag.Diagnostic
		what  string
	}{{denied, "is stronger than %s and denies what they allow"}, {opened, "is stronger than %s and allows what they deny"}} {
		if len(l.found) == 0 {
			continue
		}
		var names []string
		for _, d := range l.found {
			if name := d.Object.String(); !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
		const most = 3
		text := strings.Join(names[:min(len(names), most)], ", ")
		if len(names) > most {
			text += fmt.Sprintf(" and %d more", len(names)-most)
		}
		d := diag.Diagnostic{Message: fmt.Sprintf(l.what, text)}
		if e := l.found[0].Override; e.From != "" {
			d.Message += fmt.Sprintf(", for example %s from %s to %s", e.Port, e.From, e.To)
		}
		out = append(out, d)
	}
	return out
}

// validate checks an object alone.
func validate(o *api.Object) diag.List {
	for _, d := range lower.All() {
		for _, k := range d.Kinds() {
			if k.Group == o.Kind.Group && k.Version == o.Kind.Version && k.Kind == o.Kind.Kind {
				return d.Validate(o)
			}
		}
	}
	return diag.List{}
}

// tierUpdate refuses another priority (S2-06).
func tierUpdate(o *api.Object, old map[string]any) []diag.Diagnostic {
	t, ok := o.Value.(*antreaapi.Tier)
	if !ok || t.Spec.Priority == nil {
		return nil
	}
	spec, _ := old["spec"].(map[string]any)
	was, ok := number(spec["priority"])
	if !ok || was == float64(*t.Spec.Priority) {
		return nil
	}
	return []diag.Diagnostic{o.Finding("spec.priority",
		fmt.Sprintf("the priority of a Tier cannot be changed, it is %v", was),
		"create another Tier, move the policies, and delete this one")}
}

func number(v any) (float64, bool) {
	switch n := v.(type) {
	case int64:
		return float64(n), true
	case float64:
		return n, true
	}
	return 0, false
}

func object(raw []byte) (map[string]any, error) {
	var m map[string]any
	if err := json.Unmarshal(raw, &m); err != nil {
		return nil, err
	}
	if m == nil {
		return nil, fmt.Errorf("there is none")
	}
	return m, nil
}

func meta(o map[string]any) map[string]any {
	m, _ := o["metadata"].(map[string]any)
	return m
}

// samePolicy reports whether two versions ask for the same: everything but status
// and the metadata no dialect reads.
func samePolicy(a, b map[string]any) bool {
	policy := func(o map[string]any) map[string]any {
		out := map[string]any{}
		for k, v := range o {
			if k != "status" && k != "metadata" {
				out[k] = v
			}
		}
		annotations, _ := meta(o)["annotations"].(map[string]any)
		for k, v := range annotations {
			if k != "kubectl.kubernetes.io/last-applied-configuration" {
				out["annotation "+k] = v
			}
		}
		return out
	}
	return reflect.DeepEqual(policy(a), policy(b))
}

// named fills in what the API server has not yet: the end of a generated name, and
// the namespace of the request.
func named(o map[string]any, req *admissionv1.AdmissionRequest) {
	m := meta(o)
	if m == nil {
		return
	}
	if prefix, _ := m["generateName"].(string); prefix != "" {
		if name, _ := m["name"].(string); name == "" {
			m["name"] = prefix + "00000"
		}
		delete(m, "generateName")
	}
	if namespace, _ := m["namespace"].(string); namespace == "" && req.Namespace != "" {
		m["namespace"] = req.Namespace
	}
}

func allow(warnings []string) *admissionv1.AdmissionResponse {
	return &admissionv1.AdmissionResponse{Allowed: true, Warnings: warnings}
}

func deny(code int32, message string, causes []metav1.StatusCause) *admissionv1.AdmissionResponse {
	s := &metav1.Status{Status: metav1.StatusFailure, Code: code, Message: message, Reason: metav1.StatusReasonForbidden}
	if len(causes) > 0 {
		s.Details = &metav1.StatusDetails{Causes: causes}
	}
	return &admissionv1.AdmissionResponse{Result: s}
}

// refuse denies because of errors. Those on another object than id name it.
func refuse(found []diag.Diagnostic, id api.Ref, warnings []diag.Diagnostic) *admissionv1.AdmissionResponse {
	lines := make([]string, 0, len(found))
	causes := make([]metav1.StatusCause, 0, len(found))
	for _, d := range found {
		field, line := d.Path, ""
		if !id.IsZero() && !d.Object.IsZero() && d.Object != id {
			field, line = "", "this would put an error on "+d.Object.String()+": "
		}
		d.File, d.Object = "", api.Ref{}
		lines = append(lines, line+d.String())
		causes = append(causes, metav1.StatusCause{Type: metav1.CauseTypeFieldValueInvalid, Message: d.Message, Field: field})
	}
	slices.Sort(lines)
	// Not Invalid: kubectl would print the causes only, without hints.
	a := deny(http.StatusForbidden, strings.Join(lines, "; "), causes)
	a.Warnings = texts(warnings)
	return a
}

// texts makes admission warnings of findings.
func texts(found []diag.Diagnostic) []string {
	var out []string
	for i, d := range found {
		if i == maxWarnings {
			return append(out, fmt.Sprintf("and %d more", len(found)-i))
		}
		d.File, d.Object = "", api.Ref{}
		s := d.String()
		if len(s) > maxWarning {
			s = strings.ToValidUTF8(s[:maxWarning-3], "") + "..."
		}
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

// Decode reads a stored object as a review does, for a [World]. The object is nil
// when there are errors; raw is not modified or kept.
func Decode(raw map[string]any) (*api.Object, diag.List) { return assess.Decode(raw) }
