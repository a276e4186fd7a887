package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/tierwall/tierwall/cmd/internal/agent"
	"github.com/tierwall/tierwall/cmd/internal/cli"
	"github.com/tierwall/tierwall/dataplane/audit"
)

func newAudit() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Read the audit log",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newAuditTail())
	return cmd
}

func newAuditTail() *cobra.Command {
	var follow bool
	lines := 10
	output := cli.NewFormat("text", "json", "antrea")
	cmd := &cobra.Command{
		Use:   "tail [FILE]",
		Short: "Print the last records of an audit log",
		Long: `Prints records of the daemon's JSON audit log: time, verdict, who to whom, what,
and which policy and rule decided. FILE "-" is standard input; without FILE it is
` + agent.Default().Audit.File + `.

-o json prints the records as they are, -o antrea the line format of Antrea 1.13
and later. Lines that are no records are shown as they are, marked with "?".`,
		Example: `  tierwall audit tail
  tierwall audit tail -f -n 50 /var/log/tierwall/audit.log
  tierwall audit tail -n -1 audit.log -o json | jq 'select(.verdict == "Drop") | .policy.name' | sort | uniq -c`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			path := agent.Default().Audit.File
			if len(args) == 1 {
				path = args[0]
			}
			if follow && path == "-" {
				return usage(cmd, errors.New("-f needs a file"))
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			out := cmd.OutOrStdout()
			p := recordPrinter{w: out, style: cli.StyleFor(out), format: output.String()}
			return tail(ctx, cmd.InOrStdin(), path, lines, follow, p.print)
		},
	}
	f := cmd.Flags()
	f.BoolVarP(&follow, "follow", "f", false, "go on with new records until Ctrl-C, also when the file is rotated")
	f.IntVarP(&lines, "lines", "n", lines, "how many records of the past to print; -1 for all")
	f.VarP(output, "output", "o", "form of the records")
	return cmd
}

// tail prints the last n lines (all if n is negative) and, with follow, what
// comes after them.
func tail(ctx context.Context, in io.Reader, path string, n int, follow bool, print func([]byte) error) error {
	var last [][]byte // the newest n lines, a ring that starts at next
	next := 0
	var seen int64 // bytes of complete lines read
	keep := func(line []byte) error {
		seen += int64(len(line)) + 1
		switch {
		case n < 0:
			return print(line)
		case n == 0:
		case len(last) < n:
			last = append(last, bytes.Clone(line))
		default:
			last[next] = append(last[next][:0], line...)
			next = (next + 1) % n
		}
		return nil
	}
	before, err := os.Stat(path)
	if path == "-" {
		err = scanLines(in, keep)
	} else if err == nil || !follow { // a file to follow may come later
		err = audit.Follow(ctx, path, audit.FollowOptions{FromStart: true, Once: true}, keep)
	} else if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	if err != nil {
		return err
	}
	for i := range last {
		if err := print(last[(next+i)%len(last)]); err != nil {
			return err
		}
	}
	if !follow {
		return nil
	}
	// Follow from the start again and leave out what was read, so that no line
	// written in between is lost. A file that is new by now has none of it.
	if after, err := os.Stat(path); err != nil || before == nil || !os.SameFile(before, after) {
		seen = 0
	}
	return audit.Follow(ctx, path, audit.FollowOptions{FromStart: true}, func(line []byte) error {
		if seen > 0 {
			seen -= int64(len(line)) + 1
			return nil
		}
		return print(line)
	})
}

func scanLines(r io.Reader, f func([]byte) error) error {
	s := bufio.NewScanner(r)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		if err := f(s.Bytes()); err != nil {
			return err
		}
	}
	return s.Err()
}

// recordPrinter prints lines of a JSON audit log.
type recordPrinter struct {
	w      io.Writer
	style  cli.Style
	format string
	zone   *time.Location // nil = local
}

func (p *recordPrinter) print(line []byte) error {
	if len(bytes.TrimSpace(line)) == 0 {
		return nil
	}
	rec, err := audit.Parse(line)
	if err != nil {
		// Whatever it is, hiding it would make the log look complete.
		_, err := fmt.Fprintf(p.w, "? %s\n", line)
		return err
	}
	switch p.format {
	case "json":
		_, err = fmt.Fprintf(p.w, "%s\n", line)
	case "antrea":
		var b []byte
		if b, err = rec.Append(nil, audit.AntreaV2); err == nil {
			_, err = p.w.Write(b)
		}
	default:
		zone := p.zone
		if zone == nil {
			zone = time.Local
		}
		_, err = fmt.Fprintln(p.w, cli.AuditLine(p.style, zone, &rec))
	}
	return err
}
