package auditlog

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/tierwall/tierwall/dataplane/audit"
)

// recordAt is a record of a second, of a node.
func recordAt(second int, node string) []byte {
	return fmt.Appendf(nil, `{"v":1,"kind":"flow","time":%q,"node":%q,"verdict":"Drop","count":1}`,
		time.Unix(int64(second), 0).UTC().Format(time.RFC3339), node)
}

func TestMerger(t *testing.T) {
	var got []string
	take := func() []string { out := got; got = nil; return out }
	m := Merger{Hold: time.Second, Last: 3, Deliver: func(line []byte) error {
		r, err := audit.Parse(line)
		got = append(got, r.Time.Format(time.RFC3339)+"@"+r.Node)
		return err
	}}
	name := func(second int, node string) string {
		return time.Unix(int64(second), 0).UTC().Format(time.RFC3339) + "@" + node
	}
	now := time.Unix(1000, 0)
	m.Begin("a")
	m.Begin("b")
	for _, s := range []int{1, 4, 5} {
		m.Add(recordAt(s, "a"), now)
	}
	if err := m.Caught("a"); err != nil || take() != nil {
		t.Fatalf("delivered before the past of b is known: %v", err)
	}
	for _, s := range []int{2, 3, 6} {
		m.Add(recordAt(s, "b"), now)
	}
	if err := m.Release(now.Add(time.Hour)); err != nil || take() != nil {
		t.Fatal("released before the past of b is known")
	}
	if err := m.Caught("b"); err != nil {
		t.Fatal(err)
	}
	if got, want := take(), []string{name(4, "a"), name(5, "a"), name(6, "b")}; !slices.Equal(got, want) {
		t.Errorf("the last three of the past: %v, want %v", got, want)
	}

	// New lines wait for those of other logs, and no longer.
	m.Add(recordAt(11, "a"), now)
	m.Add(recordAt(10, "b"), now.Add(900*time.Millisecond))
	if err := m.Release(now.Add(999 * time.Millisecond)); err != nil || take() != nil {
		t.Fatal("released too early")
	}
	m.Add(recordAt(12, "b"), now.Add(999*time.Millisecond))
	if err := m.Release(now.Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	if got, want := take(), []string{name(10, "b"), name(11, "a")}; !slices.Equal(got, want) {
		t.Errorf("released %v, want %v", got, want)
	}
	// One that comes too late is delivered all the same.
	m.Add(recordAt(9, "a"), now.Add(2*time.Second))
	if err := m.Release(now.Add(2 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if got, want := take(), []string{name(9, "a"), name(12, "b")}; !slices.Equal(got, want) {
		t.Errorf("late: %v, want %v", got, want)
	}
	m.Begin("c")
	m.Add(recordAt(20, "c"), now)
	if err := m.Flush(); err != nil {
		t.Fatal(err)
	}
	if got, want := take(), []string{name(20, "c")}; !slices.Equal(got, want) {
		t.Errorf("flushed %v, want %v", got, want)
	}
}

// A filter means the same as flags and as parameters.
func TestWords(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	f, err := Words{"verdict": {"drop"}, "port": {"80", "53/UDP"}, "from": {"shop/"}, "since": {"1h"}}.Filter("--", now)
	if err != nil || len(f.Ports) != 2 || f.Sources[0].Pod != "shop/*" || !f.Since.Equal(now.Add(-time.Hour)) {
		t.Errorf("%+v, %v", f, err)
	}
	for _, tt := range []struct {
		words Words
		want  string
	}{
		{Words{"verdict": {"maybe"}}, `--verdict "maybe": want one of`},
		{Words{"port": {"x"}}, "--port: "},
		{Words{"colour": {"red"}}, "--colour: is no filter"},
		{Words{"pod": {"["}}, "--pod: "},
		{Words{"until": {"soon"}}, "--until: "},
	} {
		if _, err := tt.words.Filter("--", now); err == nil || err.Error()[:len(tt.want)] != tt.want {
			t.Errorf("%v: %v, want %s", tt.words, err, tt.want)
		}
	}
}
