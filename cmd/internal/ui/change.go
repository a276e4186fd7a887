package ui

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tierwall/tierwall/cmd/internal/auditlog"
	"github.com/tierwall/tierwall/cmd/internal/changes"
	"github.com/tierwall/tierwall/cmd/internal/cli"
	"github.com/tierwall/tierwall/cmd/internal/intent"
	"github.com/tierwall/tierwall/cmd/internal/query"
	"github.com/tierwall/tierwall/dataplane/audit"
	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/assure"
)

// Change is what a user would do to the policies.
type Change struct {
	YAML   string   `json:"yaml"`   // policies to add, or to put in the place of those of the same names
	Remove []string `json:"remove"` // policies to remove, as answers name them
}

// candidate is a change, compiled. It lives in memory, and only while it is among the
// last few.
type candidate struct {
	id   string
	base *reading
	in   *cli.Input

	once sync.Once
	by   *query.Groups
}

// groups are those of the policies after the change, compared with those before.
func (c *candidate) groups() *query.Groups {
	c.once.Do(func() { c.by = query.NewGroups(c.in.Table, c.base.groups, c.in.Snapshot) })
	return c.by
}

// maxCandidates is how many changes are remembered.
const maxCandidates = 4

func (s *state) candidate(id string) (*candidate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.changes {
		if c.id == id {
			return c, nil
		}
	}
	return nil, &statusError{http.StatusGone, errors.New("this change is not known any more: send it again")}
}

// changed is the answer to "change".
type changed struct {
	Change string `json:"change"` // names it in the other questions
	cli.Findings
	// Objects are the policies of the YAML, with what becomes of them: "new" or "replaces".
	Objects []changedObject `json:"objects"`
	// Ignored counts pods and other objects of the YAML that are no policies.
	Ignored int  `json:"ignored"`
	Fit     bool `json:"fit"` // it can be compared
	incomplete
}

type changedObject struct {
	Ref  string `json:"ref"`
	Does string `json:"does"` // new, replaces, removes
}

func (s *state) change(req *http.Request) (any, error) {
	var ch Change
	if err := decode(req, &ch); err != nil {
		return nil, err
	}
	r := s.now()
	out := changed{Findings: cli.Findings{}, Objects: []changedObject{}, incomplete: incomplete{r.in.Gaps}}
	files, err := cli.ReadFiles([]string{"-"}, s.source.Namespace, strings.NewReader(ch.YAML))
	if err != nil {
		return nil, err
	}
	files.Rename("-", "the change")
	if snap := files.Snapshot; snap != nil {
		out.Ignored = len(snap.Pods) + len(snap.Namespaces) + len(snap.Nodes) + len(snap.Services)
	}
	for _, o := range files.Objects {
		does := "new"
		if slices.ContainsFunc(r.in.Objects, func(old *api.Object) bool { return old.Ref() == o.Ref() }) {
			does = "replaces"
		}
		out.Objects = append(out.Objects, changedObject{refOf(o), does})
	}
	for _, ref := range ch.Remove {
		o, err := r.object(ref)
		if err != nil {
			return nil, err
		}
		files.Remove(o.Ref())
		out.Objects = append(out.Objects, changedObject{ref, "removes"})
	}
	in, err := r.in.WithFiles(files, s.source.Lower)
	if err != nil {
		return nil, err
	}
	out.Findings = cli.FindingsOf(&in.Findings)
	out.Fit = in.Table != nil && r.in.Table != nil
	sum := sha256.Sum256(fmt.Appendf(nil, "%d\n%q\n%s", r.number, ch.Remove, ch.YAML))
	out.Change = hex.EncodeToString(sum[:8])
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changes = slices.DeleteFunc(s.changes, func(c *candidate) bool { return c.id == out.Change })
	s.changes = append(s.changes, &candidate{id: out.Change, base: r, in: in})
	s.changes = s.changes[max(0, len(s.changes)-maxCandidates):]
	return out, nil
}

func decode(r *http.Request, v any) error {
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return fmt.Errorf("read the request: %w", err)
	}
	return nil
}

// compared finds the two states of a change.
func (s *state) compared(q url.Values) (*candidate, error) {
	c, err := s.candidate(q.Get("change"))
	switch {
	case err != nil:
		return nil, err
	case c.base.in.Table == nil:
		return nil, errNoTable
	case c.in.Table == nil:
		return nil, errors.New("the change has errors: correct them first")
	}
	return c, nil
}

// changeGroup is a set of changes that reads as one line.
type changeGroup struct {
	Kind   assure.Kind     `json:"kind"`
	From   string          `json:"from"`
	To     string          `json:"to"`
	Ports  string          `json:"ports"`
	Before string          `json:"before"` // in words
	After  string          `json:"after"`
	First  [2]string       `json:"first"` // one end of each side, to ask about
	Some   bool            `json:"some,omitempty"`
	By     assure.Decision `json:"by"`
}

// Bounds of the answer to "diff": lines for people, and changes one by one.
const (
	maxChangeGroups = 300
	maxChanges      = 1000
)

func (s *state) diff(_ *http.Request, q url.Values) (any, error) {
	c, err := s.compared(q)
	if err != nil {
		return nil, err
	}
	d, err := assure.Compare(c.base.in.State(), c.in.State(), assure.Options{})
	if err != nil {
		return nil, err
	}
	out := struct {
		Changes []assure.Change `json:"changes"` // the first ones: Omitted more are left out
		Omitted int             `json:"omitted"`
		Summary assure.Summary  `json:"summary"`
		Added   []string        `json:"added"`
		Removed []string        `json:"removed"`
		Groups  []changeGroup   `json:"groups"`
		// GroupsTotal counts those that are left out, too.
		GroupsTotal int `json:"groupsTotal"`
		incomplete
	}{Changes: []assure.Change{}, Added: append([]string{}, d.Added...), Removed: append([]string{}, d.Removed...), Groups: []changeGroup{}, incomplete: incomplete{c.in.Gaps}}
	groups, sum := changes.Groups(d)
	out.Summary, out.GroupsTotal = sum, len(groups)
	names := changes.NewNamer(d)
	for i := range groups[:min(len(groups), maxChangeGroups)] {
		g := &groups[i]
		out.Groups = append(out.Groups, changeGroup{
			Kind: g.Kind, From: names.Name(g.From, g.To), To: names.Name(g.To, g.From), Ports: g.Ports,
			Before: changes.By(&g.Before), After: changes.By(&g.After), First: [2]string{g.From[0], g.To[0]}, Some: g.Some, By: g.After,
		})
	}
	for ch := range d.Changes() {
		if len(out.Changes) == maxChanges {
			break
		}
		out.Changes = append(out.Changes, ch)
	}
	out.Omitted = sum.Total() - len(out.Changes)
	return out, nil
}

// replayTime bounds reading a log.
const replayTime = 2 * time.Minute

// replay judges the connections of the log again, by the policies after the change.
func (s *state) replay(r *http.Request, q url.Values) (any, error) {
	c, err := s.compared(q)
	if err != nil {
		return nil, err
	}
	if s.source.Records == nil {
		return nil, &statusError{http.StatusConflict, errors.New(s.source.NoRecords)}
	}
	since := q.Get("since")
	if since == "" {
		since = "1h"
	}
	words := auditlog.Words{"since": {since}}
	if _, err := words.Filter("", time.Now()); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(r.Context(), replayTime)
	defer cancel()
	sim := auditlog.NewSimulation(c.in.Table)
	events := auditlog.Events{Done: sim.Add}
	var lost, bad uint64
	err = s.source.Records(ctx, RecordQuestion{Filter: words, Lines: -1}, func(line []byte) error {
		rec, err := audit.Parse(line)
		switch {
		case err != nil:
			bad++
			return nil
		case rec.Kind == audit.KindLost:
			lost += rec.Count
		}
		events.Add(&rec)
		return nil
	}, func(string) { lost++ })
	if err != nil {
		return nil, &statusError{http.StatusBadGateway, err}
	}
	events.Flush()
	report := sim.Report(100)
	report.Lost, report.Bad = lost, bad
	return report, nil
}

func (s *state) test(req *http.Request) (any, error) {
	var body struct {
		Tests  string `json:"tests"`
		Change string `json:"change"` // "": the policies as they are
	}
	if err := decode(req, &body); err != nil {
		return nil, err
	}
	q := url.Values{}
	if body.Change != "" {
		q.Set("change", body.Change)
	}
	c, err := s.asked(q)
	if err != nil {
		return nil, err
	}
	tests, err := intent.Load([]string{"-"}, intent.Options{Stdin: strings.NewReader(body.Tests)})
	if err != nil {
		return nil, err
	}
	return intent.Run(tests, c.in, s.source.Namespace)
}
