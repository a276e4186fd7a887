package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/spf13/cobra"

	"github.com/tierwall/tierwall/cmd/internal/auditlog"
	"github.com/tierwall/tierwall/cmd/internal/cli"
	"github.com/tierwall/tierwall/dataplane/audit"
)

func newAuditTail() *cobra.Command {
	var q logQuestion
	var follow bool
	var socket string
	lines := 10
	cmd := &cobra.Command{
		Use:   "tail [FILE]",
		Short: "Print the last records of an audit log, and new ones as they come",
		Long: `Prints records of the daemon's JSON audit log: time, verdict, who to whom, what,
and which policy and rule decided. With a filter, the last records that match.

-f goes on with new records until Ctrl-C. It follows the log across rotation and
compression, also when it is rotated faster than it can be watched.

--socket reads the daemon's stream (configuration key audit.stream) instead of
files: new records only, and the daemon hangs up on a reader that is too slow.

-o json prints the records as they are, -o antrea the line format of Antrea 1.13
and later. Lines that are no records are shown as they are, marked with "?".`,
		Example: `  tierwall audit tail
  tierwall audit tail -f --verdict Drop --namespace shop
  tierwall audit tail -n -1 audit.log -o json | jq 'select(.verdict == "Drop") | .policy.name' | sort | uniq -c`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			path := logs(args)[0]
			switch {
			case follow && path == auditlog.Stdin:
				return usage(cmd, errors.New("-f needs a file"))
			case socket != "" && len(args) > 0:
				return usage(cmd, errors.New("--socket and FILE are two different sources: give one"))
			}
			if err := q.parse(cmd); err != nil {
				return err
			}
			ctx, stop := interruptible(cmd)
			defer stop()
			p := q.printer(cmd.OutOrStdout())
			if socket != "" {
				return q.stream(ctx, socket, p)
			}
			opt := auditlog.TailOptions{
				ReadOptions: auditlog.ReadOptions{Stdin: cmd.InOrStdin(), Since: q.filter.Since}, Lines: lines, Follow: follow, Keep: q.keep(),
				Missing: func(first, last uint64) {
					fmt.Fprintf(cmd.ErrOrStderr(), "tierwall: records %d to %d were rotated away and removed before they could be read\n", first, last)
				},
			}
			err := auditlog.Tail(ctx, path, opt, p.Print)
			if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
				return nil // Ctrl-C is how it ends
			}
			return err
		},
	}
	q.flags(cmd, "text", "json", "antrea")
	f := cmd.Flags()
	f.BoolVarP(&follow, "follow", "f", false, "go on with new records until Ctrl-C, also when the file is rotated")
	f.IntVarP(&lines, "lines", "n", lines, "how many records of the past to print; -1 for all")
	f.StringVar(&socket, "socket", "", "read the daemon's stream on this Unix socket instead of files")
	return cmd
}

// keep is the filter for lines; nil keeps all.
func (q *logQuestion) keep() func([]byte) bool {
	if q.filter.Empty() {
		return nil
	}
	return func(line []byte) bool {
		r, err := audit.Parse(line)
		if err != nil {
			return len(bytes.TrimSpace(line)) > 0 // shown as it is
		}
		return q.filter.Match(&r)
	}
}

// stream prints what the daemon sends until it hangs up or ctx ends.
func (q *logQuestion) stream(ctx context.Context, path string, p *auditlog.Printer) error {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return fmt.Errorf("connect to the stream (configuration key audit.stream): %w", err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	keep := q.keep()
	s := bufio.NewScanner(conn)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		if keep != nil && !keep(s.Bytes()) {
			continue
		}
		if err := p.Print(s.Bytes()); err != nil {
			return err
		}
	}
	switch {
	case ctx.Err() != nil:
		return nil
	case s.Err() != nil:
		return fmt.Errorf("read the stream: %w", s.Err())
	}
	return cli.Finding("the daemon hung up: it stopped, or this reader was too slow")
}

func newAuditQuery() *cobra.Command {
	var q logQuestion
	cmd := &cobra.Command{
		Use:   "query [FILE...]",
		Short: "Print all records of audit logs that match",
		Long: `Prints every record the filters select, oldest first, from the log and its rotated
and compressed files. Of several logs (of several nodes) one comes after the other.`,
		Example: `  tierwall audit query --since 1h --verdict Drop,Reject --to shop/db
  tierwall audit query --policy 'NetworkPolicy/shop/*' --port 5432/TCP -o json
  tierwall audit query --cidr 192.0.2.0/24 --since "2026-01-02 08:00" --until "2026-01-02 09:30"`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := q.parse(cmd); err != nil {
				return err
			}
			out := bufio.NewWriterSize(cmd.OutOrStdout(), 64<<10)
			p := q.printer(cmd.OutOrStdout())
			p.W = out
			err := q.each(cmd, logs(args), p.Record, p.Print)
			return errors.Join(err, out.Flush())
		},
	}
	q.flags(cmd, "text", "json", "antrea")
	return cmd
}
