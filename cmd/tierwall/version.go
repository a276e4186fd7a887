package main

import (
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/cmd/internal/cli"
	"github.com/tierwall/tierwall/cmd/internal/doctor"
)

// versionInfo is the JSON form of "tierwall version".
type versionInfo struct {
	Version  string `json:"version"`            // module version, "(devel)" for a build from a checkout
	Revision string `json:"revision,omitempty"` // commit, with "+dirty" when the tree had changes
	Go       string `json:"go"`
	Kernel   string `json:"kernel"`
	// Features are what this kernel can do for the daemon; absent without root,
	// because only trying tells.
	Features []feature `json:"features,omitempty"`
}

type feature struct {
	Name    string `json:"name"`
	OK      bool   `json:"ok"`
	How     string `json:"how,omitempty"`     // in which of several ways, when OK
	Missing string `json:"missing,omitempty"` // which piece, when not OK
}

func newVersion() *cobra.Command {
	output := cli.NewFormat("text", "json")
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print version, kernel and, as root, what this kernel can do",
		Long: `Prints the version of this program and of the kernel. As root it also tries, in
network namespaces of its own that end with it, everything the daemon's backends
need, and says in a sentence how they work here, or what is missing and what to do
about it. "tierwall doctor" says more: every piece, and what stands beside it.`,
		Example: `  tierwall version
  sudo tierwall version -o json | jq '.features[] | select(.ok | not)'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := buildVersion()
			if os.Geteuid() == 0 {
				v.Features = probeFeatures()
			}
			out := cmd.OutOrStdout()
			if output.JSON() {
				return cli.WriteJSON(out, v)
			}
			return v.writeText(out, cli.StyleFor(out))
		},
	}
	cmd.Flags().VarP(output, "output", "o", "output format")
	return cmd
}

func buildVersion() versionInfo {
	v := versionInfo{Version: "unknown", Kernel: "unknown"}
	if b, ok := debug.ReadBuildInfo(); ok {
		v.Version, v.Go = b.Main.Version, b.GoVersion
		for _, s := range b.Settings {
			switch {
			case s.Key == "vcs.revision":
				v.Revision = s.Value + v.Revision
			case s.Key == "vcs.modified" && s.Value == "true":
				v.Revision += "+dirty"
			}
		}
	}
	var u unix.Utsname
	if err := unix.Uname(&u); err == nil {
		v.Kernel = unix.ByteSliceToString(u.Release[:]) + " " + unix.ByteSliceToString(u.Machine[:])
	}
	return v
}

func probeFeatures() []feature {
	var out []feature
	for _, p := range doctor.Features() {
		f := feature{Name: p.Name, OK: p.Err == nil, How: p.How}
		if p.Err != nil {
			f.How, f.Missing = "", strings.ReplaceAll(p.Err.Error(), "\n", "; ")
		}
		out = append(out, f)
	}
	return out
}

func (v *versionInfo) writeText(w io.Writer, s cli.Style) error {
	var b strings.Builder
	fmt.Fprintf(&b, "tierwall %s", v.Version)
	if v.Revision != "" {
		fmt.Fprintf(&b, " (%s)", v.Revision)
	}
	fmt.Fprintf(&b, "\n%s, Linux %s\n", v.Go, v.Kernel)
	for _, f := range v.Features {
		switch {
		case f.OK && f.How == "":
			fmt.Fprintf(&b, "%s  %s\n", s.Green("yes"), f.Name)
		case f.OK:
			fmt.Fprintf(&b, "%s  %s: %s\n", s.Green("yes"), f.Name, f.How)
		default:
			fmt.Fprintf(&b, "%s   %s: %s\n", s.Red("no"), f.Name, f.Missing)
		}
	}
	if v.Features == nil {
		b.WriteString("run as root to see what this kernel can do for the daemon\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}
