package auditlog

import (
	"bytes"
	"fmt"
	"io"
	"time"

	"github.com/tierwall/tierwall/cmd/internal/cli"
	"github.com/tierwall/tierwall/dataplane/audit"
)

// Printer prints lines of a JSON audit log. The zero value, with W set, prints
// for people.
type Printer struct {
	W      io.Writer
	Style  cli.Style
	Format string         // "text" (or ""), "json" as they are, "antrea" (v2)
	Zone   *time.Location // of text; nil = local
	// Today is the day times are printed for without a date, as text; the zero
	// value is the first record's.
	Today time.Time
	// NodeWidth, if not 0, puts the node before each line of text, in a column of
	// this width.
	NodeWidth int

	day string
}

// Print prints a line. What is no record is shown as it is, marked with "?":
// hiding it would make the log look complete.
func (p *Printer) Print(line []byte) error {
	if len(bytes.TrimSpace(line)) == 0 {
		return nil
	}
	rec, err := audit.Parse(line)
	if err != nil {
		_, err := fmt.Fprintf(p.W, "? %s\n", cli.Escape(string(line)))
		return err
	}
	return p.Record(&rec, line)
}

// Record prints a record that was read from line.
func (p *Printer) Record(r *audit.Record, line []byte) error {
	var err error
	switch p.Format {
	case "json":
		_, err = fmt.Fprintf(p.W, "%s\n", line)
	case "antrea":
		if r.Kind == audit.KindFile {
			return nil // about the file, not about traffic: the format has no such line
		}
		var b []byte
		if b, err = r.Append(nil, audit.AntreaV2); err == nil {
			_, err = p.W.Write(b)
		}
	default:
		err = p.text(r)
	}
	return err
}

func (p *Printer) text(r *audit.Record) error {
	zone := p.Zone
	if zone == nil {
		zone = time.Local
	}
	day := r.Time.In(zone).Format(time.DateOnly)
	if p.day == "" {
		p.day = day
		if !p.Today.IsZero() {
			p.day = p.Today.In(zone).Format(time.DateOnly)
		}
	}
	if day != p.day {
		p.day = day
		if _, err := fmt.Fprintln(p.W, p.Style.Dim("--- "+day+" ---")); err != nil {
			return err
		}
	}
	node := ""
	if p.NodeWidth > 0 {
		node = fmt.Sprintf("%-*s ", p.NodeWidth, cli.Escape(r.Node))
	}
	_, err := fmt.Fprintln(p.W, node+cli.AuditLine(p.Style, zone, r))
	return err
}
