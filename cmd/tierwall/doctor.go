package main

import (
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tierwall/tierwall/cmd/internal/agent"
	"github.com/tierwall/tierwall/cmd/internal/cli"
	"github.com/tierwall/tierwall/cmd/internal/doctor"
)

func newDoctor() *cobra.Command {
	var o doctor.Options
	output := cli.NewFormat("text", "json")
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Look at this node: what Tierwall needs, what is missing, what to do about it",
		Long: `Looks at the node it runs on, in the current network namespace: the kernel with its
build options, modules, BTF and lockdown; the privileges of this process; network
plugin, Service proxy, bridges, sysctls and other rules; what the daemon could run
out of. Every piece is there ("ok"), there once it is used ("loadable"), "missing", or
works with a restriction ("warning"), with what to do about it.

Then it says of each dataplane whether it works: fully, partly and what it leaves out,
or not and why. Backends are tried for real, in network namespaces that end with the
command, as the daemon does when it starts. That makes the kernel load their modules;
with --no-load none is loaded, and a backend is tried only where all of them are.

Without root it says what it could not look at, and tries no backend.

JSON: {"kernel","checks":[{"name","state":"ok|loadable|missing|warning","detail","hint"}],
"dataplanes":{"auto"|"nfqueue"|"afxdp":{"works":"fully|partly|no|not tried","how","limits","why"}}}.
Exit code 0 when one of the dataplanes works fully, 1 when none does.`,
		Example: `  sudo tierwall doctor
  sudo tierwall doctor -o json | jq '.checks[] | select(.state == "missing" or .state == "warning")'
  sudo tierwall doctor --no-load`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c := agent.Default()
			for _, path := range []string{c.Audit.File, c.Kubernetes.Snapshot} {
				o.Dirs = append(o.Dirs, filepath.Dir(path))
			}
			r := cli.EscapeAll(doctor.Examine(o))
			out := cmd.OutOrStdout()
			var err error
			if output.JSON() {
				err = cli.WriteJSON(out, r)
			} else {
				err = writeDoctor(out, cli.StyleFor(out), &r)
			}
			if err == nil && !r.Healthy() {
				return &cli.FindingError{Err: fmt.Errorf("no dataplane works fully on this node"), Shown: true}
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&o.NoLoad, "no-load", false, "do not make the kernel load modules")
	cmd.Flags().VarP(output, "output", "o", "output format")
	return cmd
}

func writeDoctor(w io.Writer, s cli.Style, r *doctor.Report) error {
	var b strings.Builder
	paint := func(word string, pad int) string {
		text := fmt.Sprintf("%-*s", pad, word)
		switch word {
		case string(doctor.OK), string(doctor.Fully):
			return s.Green(text)
		case string(doctor.Missing), string(doctor.No):
			return s.Red(text)
		}
		return s.Yellow(text)
	}
	for _, c := range r.Checks {
		fmt.Fprintf(&b, "%s  %-20s  %s\n", paint(string(c.State), 8), c.Name, c.Detail)
		if c.Hint != "" {
			fmt.Fprintf(&b, "%32s%s\n", "", s.Cyan("-> "+c.Hint))
		}
	}
	b.WriteString("\n")
	for _, name := range []string{"auto", "nfqueue", "afxdp"} {
		d := r.Dataplanes[name]
		fmt.Fprintf(&b, "dataplane %-8s %s", name, paint(string(d.Works), 9))
		for _, text := range []string{d.How, d.Why} {
			if text != "" {
				b.WriteString("  " + text)
			}
		}
		b.WriteString("\n")
		if d.Works == doctor.Partly {
			for _, l := range d.Limits {
				fmt.Fprintf(&b, "%32s%s\n", "", s.Yellow("not: "+l))
			}
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}
