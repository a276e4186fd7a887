package agent

import (
	"errors"
	"log/slog"
	"slices"
	"testing"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/conntrack"
	"github.com/tierwall/tierwall/dataplane"
)

// noting is a backend that notes what is asked of it.
type noting struct {
	dataplane.BackendDefaults
	notes []string
}

func (n *noting) Name() string { return "noting" }

func (n *noting) Update(_ *classifier.Table, c dataplane.Change) (int, error) {
	note := "update"
	if c.All() {
		note = "update of everything"
	}
	n.notes = append(n.notes, note)
	return 1, nil
}

func (n *noting) Drivers() []dataplane.Driver   { return nil }
func (n *noting) Stats() dataplane.BackendStats { return dataplane.BackendStats{} }
func (n *noting) Close() error                  { return nil }

func (n *noting) Prepare(*classifier.Table) error { n.notes = append(n.notes, "prepare"); return nil }

func (n *noting) Drain() error { n.notes = append(n.notes, "drain"); return nil }

// notingLearner is one that learns.
type notingLearner struct{ noting }

// notingHeir is one that inherits.
type notingHeir struct{ noting }

func (n *notingHeir) Inherit(func(*dataplane.Inherited) bool) { n.notes = append(n.notes, "inherit") }

// What inherits does so alone, too, and nobody has marked anything for it meanwhile:
// one update is enough.
func TestSuccessorInherits(t *testing.T) {
	heir := &notingHeir{}
	b := alone(heir, &Config{}, slog.New(slog.DiscardHandler))
	removed := 0
	b.(*successor).remove = func() error { removed++; return nil }
	b.Inherit(nil)
	for range 2 {
		if cut, err := b.Update(nil, dataplane.Change{}); cut != 1 || err != nil {
			t.Errorf("cut %d, %v", cut, err)
		}
	}
	if want := []string{"inherit", "update of everything", "update of everything"}; !slices.Equal(heir.notes, want) || removed != 1 {
		t.Errorf("asked for %q, removed %d times, want %q", heir.notes, removed, want)
	}
	alone(&noting{}, &Config{}, slog.New(slog.DiscardHandler)).Inherit(nil) // inherits nothing
}

func (n *notingLearner) Learns() bool { return true }

func (n *notingLearner) Learn(_ string, _ []conntrack.Record, missed bool) {
	note := "learn"
	if missed {
		note = "learn that something was missed"
	}
	n.notes = append(n.notes, note)
}

// Alone a backend is what it is with others: it learns if it can, and drains. And
// once it has a table in force, what the other one left is removed, and what that
// accepted in the meantime looked for.
func TestSuccessor(t *testing.T) {
	plain, learner := &noting{}, &notingLearner{}
	config := &Config{}
	if alone(plain, config, slog.New(slog.DiscardHandler)).Learns() {
		t.Error("learns, although its backend cannot")
	}
	b := alone(learner, config, slog.New(slog.DiscardHandler))
	if !b.Learns() {
		t.Fatal("does not learn, although its backend can")
	}
	removals := []error{errors.New("not now"), nil}
	b.(*successor).remove = func() (err error) {
		learner.notes = append(learner.notes, "remove")
		err, removals = removals[0], removals[1:]
		return err
	}
	if err := b.Prepare(nil); err != nil { // no other backend leaves anything to it
		t.Error(err)
	}
	b.Learn("noting", nil, false)
	for i, want := range []int{1, 2, 1} {
		if cut, err := b.Update(nil, dataplane.ChangeWithin(nowhere{})); cut != want || err != nil {
			t.Errorf("update %d: cut %d, %v, want %d", i, cut, err, want)
		}
	}
	if err := b.Drain(); err != nil {
		t.Error(err)
	}
	want := []string{
		"learn",
		"update", "remove",
		"update", "remove", "learn that something was missed", "update of everything",
		"update",
		"drain",
	}
	if !slices.Equal(learner.notes, want) {
		t.Errorf("asked for %q, want %q", learner.notes, want)
	}
}

// nowhere is a change that affects nobody.
type nowhere struct{}

func (nowhere) Affects(flow.Key) bool  { return false }
func (nowhere) Touches(flow.Addr) bool { return false }
