package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tierwall/tierwall/cmd/internal/api"
	"github.com/tierwall/tierwall/cmd/internal/auditlog"
	"github.com/tierwall/tierwall/cmd/internal/cli"
	"github.com/tierwall/tierwall/dataplane/audit"
)

func newFlows() *cobra.Command {
	var n nodesFlags
	var w filterFlags
	limit := api.DefaultFlows
	output := cli.NewFormat("text", "wide", "json")
	cmd := &cobra.Command{
		Use:   "flows",
		Short: "List the connections daemons remember, and which rules let them in",
		Long: `Asks node daemons for the connections they remember: who opened them to whom, since
when, and which policy and rule allowed them on either side. A connection between
two nodes is known on both. The newest come first.

Without flags it asks all nodes of the kubeconfig's cluster, by port-forward; on a
machine without a kubeconfig, and with --local, the daemon of this machine. That
takes the right to list pods and to create pods/portforward in the daemons'
namespace: an operator's.

Packets and bytes are those seen in userspace. Of a connection in the state in-kernel
the daemon sees no more packets: it may go on, or have ended since LAST-SEEN. One
that has ended (closed, time-wait) is remembered for a while.

Filters are those of "audit": flags of different kinds must all match, of a
repeated one any.

JSON: {"flows":[{"node","protocol","source","destination","state","since",
"lastSeen","inKernel","alive","egress","ingress",…}],"omitted","failed":[{"node","error"}]}.
Exit code 1 when some daemons did not answer.`,
		Example: `  tierwall flows --namespace shop
  tierwall flows --node worker-1 --to shop/db --port 5432/TCP
  sudo tierwall flows --local --policy 'NetworkPolicy/shop/*' -o wide
  tierwall flows -o json | jq -r '.flows[] | select(.ingress.reason == "default") | .destination.pod'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			words := w.words()
			if _, err := words.Filter("--", time.Now()); err != nil {
				return usage(cmd, err)
			}
			if limit < 1 || limit > api.MaxFlows {
				return usage(cmd, fmt.Errorf("--limit: want 1 to %d", api.MaxFlows))
			}
			ctx, stop := interruptible(cmd)
			defer stop()
			targets, err := n.targets(ctx, cmd)
			if err != nil {
				return err
			}
			a := gatherFlows(ctx, targets, words, limit)
			out := cmd.OutOrStdout()
			if output.JSON() {
				err = cli.WriteJSON(out, a)
			} else {
				err = a.write(out, time.Now(), output.String() == "wide")
			}
			a.tell(cmd.ErrOrStderr(), targets)
			return errors.Join(err, answered(cmd, targets, a.errs))
		},
	}
	n.flags(cmd)
	w.ends(cmd)
	w.list(cmd, "verdict", "Allow, Drop or Reject: a daemon that keeps established connections may know denied ones")
	cmd.Flags().IntVar(&limit, "limit", limit, "most connections to list per node")
	cmd.Flags().VarP(output, "output", "o", "output format")
	return cmd
}

// flowsAnswer is the JSON form of "tierwall flows".
type flowsAnswer struct {
	Flows   []api.Flow   `json:"flows"`
	Omitted int          `json:"omitted"` // matched as well, and were left out because of --limit
	Failed  []nodeFailed `json:"failed"`

	errs []error
}

// nodeFailed says why a node's part of an answer is missing.
type nodeFailed struct {
	Node  string `json:"node"`
	Error string `json:"error"`
}

func gatherFlows(ctx context.Context, targets []target, words auditlog.Words, limit int) *flowsAnswer {
	parts := make([]flowsAnswer, len(targets))
	a := &flowsAnswer{Flows: []api.Flow{}, Failed: []nodeFailed{}}
	a.errs = ask(ctx, targets, func(ctx context.Context, i int, t *target) error {
		end, err := t.Client.Flows(ctx, words, limit, func(f *api.Flow) error {
			parts[i].Flows = append(parts[i].Flows, *f)
			return nil
		})
		parts[i].Omitted = end.Omitted
		return err
	})
	for i := range parts {
		a.Flows = append(a.Flows, parts[i].Flows...)
		a.Omitted += parts[i].Omitted
		if err := a.errs[i]; err != nil {
			a.Failed = append(a.Failed, nodeFailed{nodeName(&targets[i]), err.Error()})
		}
	}
	slices.SortStableFunc(a.Flows, func(x, y api.Flow) int { return y.Since.Compare(x.Since) })
	return a
}

// tell says who was asked, if nothing matched.
func (a *flowsAnswer) tell(w io.Writer, targets []target) {
	if len(a.Flows) > 0 || len(a.Failed) == len(targets) {
		return
	}
	var asked []string
	for i := range targets {
		if a.errs[i] == nil {
			asked = append(asked, nodeName(&targets[i]))
		}
	}
	fmt.Fprintf(w, "no connection matches: asked %s: %s\n", cli.Plural(len(asked), "daemon"), cli.Escape(strings.Join(asked, ", ")))
}

func (a *flowsAnswer) write(w io.Writer, now time.Time, wide bool) error {
	header := []string{"NODE", "SOURCE", "DESTINATION", "PROTOCOL", "STATE", "AGE", "LAST-SEEN", "PACKETS", "ALLOWED-BY"}
	if wide {
		header = []string{"NODE", "SOURCE", "DESTINATION", "PROTOCOL", "STATE", "AGE", "LAST-SEEN", "PACKETS", "BYTES", "BACKEND", "TABLE", "CONNECTION", "ALLOWED-BY"}
	}
	rows := [][]string{header}
	inKernel := 0
	for i := range a.Flows {
		f := &a.Flows[i]
		state := f.State
		if f.InKernel && f.Alive != api.AliveNo {
			state = "in-kernel"
			inKernel++
		}
		table := fmt.Sprint(f.TableGeneration)
		if f.Rejudged {
			table += "*"
		}
		row := []string{f.Node, endName(f.Source), endName(f.Destination), f.Protocol, state, age(now.Sub(f.Since)), age(now.Sub(f.LastSeen))}
		packets := fmt.Sprintf("%d/%d", f.Packets.FromSource, f.Packets.FromDestination)
		if wide {
			row = append(row, packets, fmt.Sprintf("%d/%d", f.Bytes.FromSource, f.Bytes.FromDestination),
				f.Backend, table, f.Connection, f.Decided())
		} else {
			row = append(row, packets, f.Decided())
		}
		rows = append(rows, row)
	}
	if err := writeTable(w, rows); err != nil {
		return err
	}
	if inKernel > 0 {
		if _, err := fmt.Fprintf(w, "%s in-kernel: the daemon sees no more of their packets, nor their end; LAST-SEEN is the last packet it saw\n", cli.Plural(inKernel, "connection")); err != nil {
			return err
		}
	}
	if a.Omitted > 0 {
		_, err := fmt.Fprintf(w, "%d more match and are not listed: --limit\n", a.Omitted)
		return err
	}
	return nil
}

// endName is "namespace/pod:port", or the address with the port.
func endName(e *audit.Endpoint) string {
	name := e.Name()
	if e.Pod == "" && e.IP.Is6() && e.Port != 0 {
		name = "[" + name + "]"
	}
	if e.Port != 0 {
		name += fmt.Sprintf(":%d", e.Port)
	}
	return name
}

// age is a duration in its largest unit, as kubectl writes it.
func age(d time.Duration) string {
	switch {
	case d < 0:
		return "0s" // clocks differ
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

// oneLine takes line breaks out of a text, for a cell of a table.
func oneLine(s string) string { return cli.Escape(strings.Join(strings.Fields(s), " ")) }
