package report

import (
	"fmt"
	"slices"

	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/cmd/internal/auditlog"
	"github.com/tierwall/tierwall/dataplane/audit"
)

// LogReader counts the records of rules. The zero value is ready.
type LogReader struct {
	uses   map[useKey]*useCount
	others uint64 // records about no policy: nobody asked for them
	staged *auditlog.Staged
	events auditlog.Events
}

// useKey is a rule as records and policies name it; index is -1 for an isolation.
type useKey struct {
	policy, direction, name string
	index                   int
}

type useCount struct{ records, packets, allowed uint64 }

// NewLogReader returns a reader that has counted nothing.
func NewLogReader() *LogReader {
	l := &LogReader{uses: map[useKey]*useCount{}, staged: auditlog.NewStaged()}
	l.events.Done = l.staged.Add
	return l
}

// Add counts a record.
func (l *LogReader) Add(r *audit.Record) {
	l.events.Add(r)
	if r.Kind != audit.KindFlow {
		return
	}
	if r.Policy == nil {
		l.others++
		return
	}
	count := func(p *audit.Policy, name string, index int) {
		o := rule.Origin{Group: p.Group, Kind: p.Kind, Namespace: p.Namespace, Name: p.Name}
		k := useKey{o.Ref(), r.Direction, name, index}
		c := l.uses[k]
		if c == nil {
			c = &useCount{}
			l.uses[k] = c
		}
		c.records++
		c.packets += r.Count
		if r.Verdict == audit.Allow {
			c.allowed++
		}
	}
	if r.Rule != nil {
		count(r.Policy, r.Rule.Name, r.Rule.Index)
		return
	}
	deciders := r.Deciders()
	for i := range deciders {
		count(&deciders[i], "", -1)
	}
}

// finish writes down the use of every rule that is enforced or staged.
func (l *LogReader) finish(log *Log, r *Report, set *rule.Set) {
	l.events.Flush()
	staged := l.staged.Report(20)
	r.Staged.Seen = &staged
	log.Everything = l.others > 0
	seen := map[useKey]int{}
	place := map[string]int{}
	for i := range r.Policies {
		p := &r.Policies[i]
		o := rule.Origin{Group: p.Group, Kind: p.Kind, Namespace: p.Namespace, Name: p.Name}
		place[o.Ref()] = i
	}
	add := func(o *rule.Origin, direction, action, name string, asked bool) {
		k := useKey{o.Ref(), direction, o.Rule, o.Index}
		if i, ok := seen[k]; ok {
			log.Rules[i].Asked = log.Rules[i].Asked || asked
			return
		}
		seen[k] = len(log.Rules)
		use := RuleUse{Policy: k.policy, Rule: name, Direction: direction, Action: action, Asked: asked}
		if c := l.uses[k]; c != nil {
			use.Records, use.Packets = c.records, c.packets
			log.Everything = log.Everything || !asked && c.allowed > 0
		}
		log.Rules = append(log.Rules, use)
	}
	log.Rules = []RuleUse{}
	for i := range set.Rules {
		x := &set.Rules[i]
		action := x.Origin.Word
		if action == "" {
			action = x.Action.String()
		}
		add(&x.Origin, x.Direction.String(), action, x.RuleName(), x.Audit || x.Stage == rule.AuditOnly)
	}
	for i := range set.Isolations {
		x := &set.Isolations[i]
		add(&x.Origin, x.Direction.String(), "isolate", "", x.Audit || x.Stage == rule.AuditOnly)
	}
	slices.SortStableFunc(log.Rules, func(a, b RuleUse) int { return place[a.Policy] - place[b.Policy] })
	for i := range log.Rules {
		if log.Rules[i].Records == 0 {
			log.Unused++
		}
	}
}

// Losses says in words what the log does not know.
func (l *Log) Losses() string {
	switch {
	case l.Lost == 0 && l.Bad == 0:
		return "nothing is missing, as the log itself says"
	case l.Bad == 0:
		return fmt.Sprintf("%d decisions or records are missing, as the log itself says", l.Lost)
	}
	return fmt.Sprintf("%d decisions or records are missing, as the log itself says; %d lines are no records", l.Lost, l.Bad)
}
