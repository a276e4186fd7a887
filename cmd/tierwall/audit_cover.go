package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tierwall/tierwall/cmd/internal/auditlog"
	"github.com/tierwall/tierwall/cmd/internal/cli"
	"github.com/tierwall/tierwall/dataplane/audit"
	"github.com/tierwall/tierwall/policy/diag"
)

// coverage is what a question about a log looked at: an answer without records
// says so, or nobody could tell it from one about another log or day.
type coverage struct {
	Files   []string   `json:"files"`
	Records int        `json:"records"`
	First   *time.Time `json:"first,omitempty"` // of the records
	Last    *time.Time `json:"last,omitempty"`

	matched int
	names   map[string]map[string]bool // by the word of the filter: values there are
}

// maxNames bounds the values of one word that are remembered.
const maxNames = 10_000

// opened takes in the name of a file that is read.
func (c *coverage) opened(name string) { c.Files = append(c.Files, name) }

// saw takes in a record, whether it matches or not.
func (c *coverage) saw(r *audit.Record) {
	c.Records++
	if c.First == nil || r.Time.Before(*c.First) {
		t := r.Time
		c.First = &t
	}
	last := r.Time
	if r.Until != nil {
		last = *r.Until
	}
	if c.Last == nil || last.After(*c.Last) {
		c.Last = &last
	}
	if c.matched > 0 {
		return // names are for answers without records
	}
	deciders := r.Deciders()
	for i := range deciders {
		c.name("policy", auditlog.PolicyName(&deciders[i]))
	}
	c.name("node", r.Node)
	for _, e := range []*audit.Endpoint{r.Source, r.Destination} {
		if e != nil && e.Pod != "" {
			c.name("namespace", e.Namespace)
			c.name("pod", e.Name())
		}
	}
}

func (c *coverage) name(word, value string) {
	if c.names == nil {
		c.names = map[string]map[string]bool{}
	}
	if c.names[word] == nil {
		c.names[word] = map[string]bool{}
	}
	if value != "" && len(c.names[word]) < maxNames {
		c.names[word][value] = true
	}
}

// tell says what was looked at if nothing matched: files, records and time, and for
// each name that was asked for those there are.
func (c *coverage) tell(w io.Writer, words auditlog.Words, zone *time.Location) {
	if c.matched > 0 {
		return
	}
	var b strings.Builder
	fmt.Fprintf(&b, "no record matches: read %s", cli.Plural(c.Records, "record"))
	if c.First != nil {
		fmt.Fprintf(&b, " from %s to %s", c.First.In(zone).Format(time.DateTime), c.Last.In(zone).Format(time.DateTime))
	}
	fmt.Fprintf(&b, " in %s\n", strings.Join(c.Files, ", "))
	for _, word := range []string{"policy", "node", "namespace", "pod", "from", "to"} {
		list := word
		if word == "from" || word == "to" {
			list = "pod"
		}
		names := slices.Collect(maps.Keys(c.names[list]))
		for _, asked := range words[word] {
			if p, err := auditlog.ParseParty(asked); len(names) > 0 && (list != "pod" || err == nil && !p.Net.IsValid()) {
				fmt.Fprintf(&b, "--%s %s: in these records%s\n", word, cli.Escape(asked), strings.TrimPrefix(diag.Among(asked, names), ";"))
			}
		}
	}
	fmt.Fprint(w, b.String())
}
