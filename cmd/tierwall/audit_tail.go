package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/spf13/cobra"

	"github.com/tierwall/tierwall/cmd/internal/api"
	"github.com/tierwall/tierwall/cmd/internal/auditlog"
	"github.com/tierwall/tierwall/cmd/internal/cli"
	"github.com/tierwall/tierwall/cmd/internal/cluster"
	"github.com/tierwall/tierwall/dataplane/audit"
)

func newAuditTail() *cobra.Command {
	var q logQuestion
	var n nodesFlags
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

--all-nodes reads the logs of all nodes of the kubeconfig's cluster, merged by time,
through their daemons (rights as for "flows"); --node then narrows it down. With -f
a stream that breaks is taken up again behind the last record. What cannot be read
is said on standard error, and without -f makes exit code 1.

-o json prints the records as they are, -o antrea the line format of Antrea 1.13
and later. Lines that are no records are shown as they are, marked with "?".`,
		Example: `  tierwall audit tail
  tierwall audit tail -f --verdict Drop --namespace shop
  tierwall audit tail -f --all-nodes --verdict Drop,Reject
  tierwall audit tail -n -1 audit.log -o json | jq 'select(.verdict == "Drop") | (.isolations // [.policy])[].name' | sort | uniq -c`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			path := logs(args)[0]
			switch {
			case follow && path == auditlog.Stdin:
				return usage(cmd, errors.New("-f needs a file"))
			case socket != "" && len(args) > 0:
				return usage(cmd, errors.New("--socket and FILE are two different sources: give one"))
			case n.all && (socket != "" || len(args) > 0):
				return usage(cmd, errors.New("--all-nodes and a log of this machine are two different sources: give one"))
			case n.cluster.Given() && !n.all:
				return usage(cmd, errors.New("--kubeconfig and --context go with --all-nodes"))
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
			if n.all {
				return q.tailNodes(ctx, cmd, &n, lines, follow)
			}
			opt := auditlog.TailOptions{
				ReadOptions: auditlog.ReadOptions{Stdin: cmd.InOrStdin(), Since: q.filter.Since}, Lines: lines, Follow: follow, Keep: q.keep(),
				Missing: func(first, last uint64) {
					fmt.Fprintf(cmd.ErrOrStderr(), "tierwall: records %d to %d were rotated away and removed before they could be read\n", first, last)
				},
			}
			opt.Opened = q.cover.opened
			err := auditlog.Tail(ctx, path, opt, func(line []byte) error {
				q.cover.matched++
				return p.Print(line)
			})
			if err == nil && !follow {
				q.cover.tell(cmd.ErrOrStderr(), q.words.words(), q.zone())
			}
			if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
				return nil // Ctrl-C is how it ends
			}
			return err
		},
	}
	q.flags(cmd, "text", "json", "antrea")
	n.clusterOnly(cmd)
	f := cmd.Flags()
	f.BoolVarP(&follow, "follow", "f", false, "go on with new records until Ctrl-C, also when the file is rotated")
	f.IntVarP(&lines, "lines", "n", lines, "how many records of the past to print; -1 for all")
	f.StringVar(&socket, "socket", "", "read the daemon's stream on this Unix socket instead of files")
	return cmd
}

// tailNodes prints the logs of the cluster's nodes as one.
func (q *logQuestion) tailNodes(ctx context.Context, cmd *cobra.Command, n *nodesFlags, lines int, follow bool) error {
	d, err := n.daemons()
	if err != nil {
		return err
	}
	words := q.words.words()
	only := words["node"]
	delete(words, "node") // it chooses streams
	for name, at := range map[string]time.Time{"since": q.filter.Since, "until": q.filter.Until} {
		if !at.IsZero() {
			words[name] = []string{at.UTC().Format(time.RFC3339Nano)} // by this machine's zone and clock
		}
	}
	p := q.printer(cmd.OutOrStdout())
	t := &nodeTail{
		list: func(ctx context.Context) ([]cluster.Daemon, error) {
			list, err := d.List(ctx)
			if err != nil {
				return nil, err
			}
			p.NodeWidth = 0
			for _, one := range list {
				p.NodeWidth = max(p.NodeWidth, len(one.Node))
			}
			if len(only) > 0 {
				return pick(list, only)
			}
			return list, nil
		},
		client: d.Client,
		tail:   api.Tail{Filter: words, Lines: lines, Follow: follow},
		notes:  cmd.ErrOrStderr(),
		merge:  auditlog.Merger{Hold: holdLines, Last: lines, Deliver: p.Print},
		retry:  time.Second,
	}
	return t.run(ctx)
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
		q.cover.saw(&r)
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
	q := logQuestion{inOrder: true}
	cmd := &cobra.Command{
		Use:   "query [FILE...]",
		Short: "Print all records of audit logs that match",
		Long: `Prints every record the filters select, oldest first, from the log and its rotated
and compressed files. Of several logs one comes after the other.

` + ofNodes + `
Records of all nodes come in the order of time.`,
		Example: `  tierwall audit query --since 1h --verdict Drop,Reject --to shop/db
  tierwall audit query --policy 'NetworkPolicy/shop/*' --port 5432/TCP -o json
  tierwall audit query --cidr 192.0.2.0/24 --since "2026-01-02 08:00" --until "2026-01-02 09:30"`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := errors.Join(q.source(cmd, args), q.parse(cmd)); err != nil {
				return err
			}
			out := bufio.NewWriterSize(cmd.OutOrStdout(), 64<<10)
			p := q.printer(cmd.OutOrStdout())
			p.W = out
			err := q.each(cmd, logs(args), p.Record, p.Print)
			if err == nil {
				q.cover.tell(cmd.ErrOrStderr(), q.words.words(), q.zone())
			}
			return errors.Join(err, out.Flush(), q.incomplete())
		},
	}
	q.flags(cmd, "text", "json", "antrea")
	q.addNodes(cmd)
	return cmd
}
