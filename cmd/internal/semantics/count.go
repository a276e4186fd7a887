package main

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// Count is how a document's lines are spread over the states.
type Count struct {
	Seed                                  Seed
	Proved, Unproved, Informational, Todo int
}

// CountRows counts the rows of each document. A line is proved when every one of
// its proofs holds.
func CountRows(rows []Row, holds func(Proof, Number) bool) []Count {
	index := map[string]int{}
	counts := make([]Count, len(Seeds))
	for i, s := range Seeds {
		index[s.Prefix], counts[i].Seed = i, s
	}
	for _, r := range rows {
		prefix, _ := r.Number.split()
		i, ok := index[prefix]
		if !ok {
			continue
		}
		c := &counts[i]
		switch {
		case r.State == Informational:
			c.Informational++
		case r.State == NotYet:
			c.Todo++
		case proved(r, holds):
			c.Proved++
		default:
			c.Unproved++
		}
	}
	return counts
}

func proved(r Row, holds func(Proof, Number) bool) bool {
	for _, p := range r.Proofs {
		if !holds(p, r.Number) {
			return false
		}
	}
	return len(r.Proofs) > 0
}

// WriteCounts prints the counts with their sum. The share is of the lines that
// can have a proof.
func WriteCounts(w io.Writer, counts []Count) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "\tdocument\tlines\tproved\tunproved\tnot yet\tinformational\tshare")
	var sum Count
	for _, c := range counts {
		writeCount(t, c)
		sum.Seed.Lines += c.Seed.Lines
		sum.Proved += c.Proved
		sum.Unproved += c.Unproved
		sum.Todo += c.Todo
		sum.Informational += c.Informational
	}
	sum.Seed.Title = "all"
	writeCount(t, sum)
	return t.Flush()
}

func writeCount(w io.Writer, c Count) {
	share := 100.0
	if n := c.Seed.Lines - c.Informational; n > 0 {
		share = 100 * float64(c.Proved) / float64(n)
	}
	fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%d\t%d\t%d\t%.0f %%\n", c.Seed.Prefix, c.Seed.Title, c.Seed.Lines, c.Proved, c.Unproved, c.Todo, c.Informational, share)
}
