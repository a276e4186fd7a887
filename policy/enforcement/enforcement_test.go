package enforcement_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/tierwall/tierwall/policy/enforcement"
)

const nps = "networkpolicies.networking.k8s.io"

func object(name string) enforcement.Object {
	return enforcement.Object{Resource: nps, Namespace: "x", Name: name}
}

func TestState(t *testing.T) {
	r := enforcement.Report{
		Node: "n1", Observed: map[string]uint64{nps: 100},
		Refused: []enforcement.Refused{{Object: object("bad"), ResourceVersion: 100, Message: "spec: no"}},
	}
	more := r
	more.RefusedTotal = 2
	stalled := r
	stalled.Stalled = "two dialects"
	for _, c := range []struct {
		what    string
		report  enforcement.Report
		object  enforcement.Object
		version uint64
		want    enforcement.State
		why     string
	}{
		{"seen", r, object("a"), 99, enforcement.InForce, ""},
		{"seen just now", r, object("a"), 100, enforcement.InForce, ""},
		{"not seen", r, object("a"), 101, enforcement.Pending, "not taken in yet"},
		{"not seen, as integers", r, object("a"), 1000, enforcement.Pending, "not taken in yet"},
		{"refused", r, object("bad"), 90, enforcement.RefusedState, "spec: no"},
		{"refused, newer version not seen", r, object("bad"), 101, enforcement.Pending, "not taken in yet"},
		{"stalled", stalled, object("a"), 101, enforcement.Pending, "two dialects"},
		{"another resource", r, enforcement.Object{Resource: "tiers.crd.antrea.io", Name: "a"}, 1, enforcement.Pending, "not taken in yet"},
		{"refused but not listed, perhaps", more, object("a"), 99, enforcement.Unknown, "the node refuses 2 objects and reports 1 of them"},
		{"refused and listed", more, object("bad"), 99, enforcement.RefusedState, "spec: no"},
		{"nothing reported", enforcement.Report{}, object("a"), 1, enforcement.Pending, "not taken in yet"},
	} {
		if got, why := c.report.State(c.object, c.version); got != c.want || why != c.why {
			t.Errorf("%s: %s (%s), want %s (%s)", c.what, got, why, c.want, c.why)
		}
	}
}

func TestLeaseRoundTrip(t *testing.T) {
	want := enforcement.Report{
		Node: "n1", Time: time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC), Generation: 7, PolicyHash: "abc", Snapshot: true, Stalled: "why",
		Observed:     map[string]uint64{nps: 1<<63 + 1},
		Refused:      []enforcement.Refused{{Object: object("bad"), ResourceVersion: 5, InForce: 3, Message: "m"}},
		RefusedTotal: 1,
	}
	lease := &coordinationv1.Lease{}
	lease.Annotations = map[string]string{"other": "stays"}
	if err := enforcement.Encode(&want, lease); err != nil {
		t.Fatal(err)
	}
	if lease.Name != "tierwall-n1" || lease.Labels[enforcement.Label] != enforcement.LabelValue || lease.Annotations["other"] != "stays" ||
		*lease.Spec.HolderIdentity != "n1" || *lease.Spec.LeaseDurationSeconds != 180 {
		t.Errorf("lease: %+v", lease)
	}
	got, err := enforcement.Decode(lease)
	if err != nil {
		t.Fatal(err)
	}
	if !got.Time.Equal(want.Time) {
		t.Errorf("time %s, want %s", got.Time, want.Time)
	}
	got.Time = want.Time
	if !reflect.DeepEqual(*got, want) {
		t.Errorf("got %+v, want %+v", *got, want)
	}
	if got.StaleAt(want.Time.Add(enforcement.Stale)) || !got.StaleAt(want.Time.Add(enforcement.Stale+1)) {
		t.Error("stale at the wrong moment")
	}
}

// A report must fit into an annotation whatever happens in the cluster: 256 KiB
// for all of them (Kubernetes' limit), of which we leave most to others.
func TestReportIsBounded(t *testing.T) {
	r := enforcement.Report{Node: "n1", Observed: map[string]uint64{}}
	for i := range 20 {
		r.Observed[fmt.Sprintf("resource%d.%s", i, strings.Repeat("g", 200))] = 1 << 62
	}
	for i := range 5000 {
		o := enforcement.Object{Resource: strings.Repeat("r", 253), Namespace: strings.Repeat("n", 63), Name: fmt.Sprintf("%0250d", 5000-i)}
		r.Refused = append(r.Refused, enforcement.Refused{Object: o, Message: strings.Repeat("ä", 5000)})
	}
	lease := &coordinationv1.Lease{}
	if err := enforcement.Encode(&r, lease); err != nil {
		t.Fatal(err)
	}
	if n := len(lease.Annotations[enforcement.Annotation]); n > 128<<10 {
		t.Errorf("%d bytes", n)
	}
	got, err := enforcement.Decode(lease)
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Refused) != enforcement.MaxRefused || got.RefusedTotal != 5000 || got.Refused[0].Name != fmt.Sprintf("%0250d", 1) {
		t.Errorf("%d of %d, first %s", len(got.Refused), got.RefusedTotal, got.Refused[0].Name)
	}
	if len(r.Refused) != 5000 || r.Refused[0].Name != fmt.Sprintf("%0250d", 5000) {
		t.Error("Encode has changed the report")
	}
}

func TestDecodeRefuses(t *testing.T) {
	for name, change := range map[string]func(*coordinationv1.Lease){
		"another node's": func(l *coordinationv1.Lease) { l.Name = "tierwall-n2" },
		"no report":      func(l *coordinationv1.Lease) { l.Annotations = nil },
		"not JSON":       func(l *coordinationv1.Lease) { l.Annotations[enforcement.Annotation] = "{" },
		"wrong type": func(l *coordinationv1.Lease) {
			l.Annotations[enforcement.Annotation] = `{"node":"n1","observed":{"a":-1}}`
		},
	} {
		lease := &coordinationv1.Lease{}
		if err := enforcement.Encode(&enforcement.Report{Node: "n1"}, lease); err != nil {
			t.Fatal(err)
		}
		change(lease)
		if _, err := enforcement.Decode(lease); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if err := enforcement.Encode(&enforcement.Report{}, &coordinationv1.Lease{}); err == nil {
		t.Error("a report about no node is accepted")
	}
	for _, text := range []string{"", "-1", "0x1", "1 "} {
		if _, err := enforcement.ParseVersion(text); err == nil {
			t.Errorf("version %q accepted", text)
		}
	}
}
