package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tierwall/tierwall/cmd/internal/cli"
	"github.com/tierwall/tierwall/policy/diag"
)

// habits gives the program what people expect of one beside kubectl: command groups,
// --version, and the printers of -o.
func habits(root *cobra.Command) {
	root.Version = buildVersion().Version
	root.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	groups := []struct {
		id, title string
		commands  []string
	}{
		{"ask", "Ask policies:", []string{"explain", "matrix", "get", "check", "why"}},
		{"assure", "Assure policies:", []string{"diff", "test", "prove", "recommend", "report"}},
		{"run", "Look at a cluster or node:", []string{"status", "flows", "wait", "audit", "usage", "ui", "doctor", "cleanup"}},
	}
	for _, g := range groups {
		root.AddGroup(&cobra.Group{ID: g.id, Title: g.title})
		for _, c := range root.Commands() {
			if slices.Contains(g.commands, c.Name()) {
				c.GroupID = g.id
			}
		}
	}
}

// checkCommand refuses a command there is not before its flags are read, which would
// be refused first.
func checkCommand(root *cobra.Command, args []string) error {
	cmd := root
	for _, arg := range args {
		if strings.HasPrefix(arg, "-") || !cmd.HasAvailableSubCommands() || strings.HasPrefix(arg, "__complete") || arg == "help" || arg == "completion" {
			return nil
		}
		next := slices.IndexFunc(cmd.Commands(), func(c *cobra.Command) bool { return c.Name() == arg || c.HasAlias(arg) })
		if next < 0 {
			return &cli.UsageError{Command: cmd.CommandPath(), Err: fmt.Errorf("unknown command %q for %q%s", arg, cmd.CommandPath(), didYouMean(arg, commandNames(cmd)))}
		}
		cmd = cmd.Commands()[next]
	}
	return nil
}

func commandNames(cmd *cobra.Command) []string {
	var out []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			out = append(out, c.Name())
		}
	}
	return out
}

// didYouMean names the one that was meant, if one is like what was typed.
func didYouMean(typed string, names []string) string {
	if len(names) == 0 {
		return ""
	}
	near := diag.Nearest(typed, names)[0]
	if diag.Edits(typed, near) > max(1, len(typed)/3) && !strings.HasPrefix(near, typed) {
		return ""
	}
	return fmt.Sprintf("; did you mean %q?", near)
}

// flagError adds the flag that was meant.
func flagError(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) || unknown.GetSpecifiedShortnames() != "" {
		return err
	}
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, "--"+f.Name) })
	return fmt.Errorf("%w%s", err, didYouMean("--"+unknown.GetSpecifiedName(), names))
}

// convertOutput puts a printer between a command that writes JSON and its output,
// where -o asks for a form that is made of JSON. The function it returns ends it.
func convertOutput(cmd *cobra.Command, out io.Writer) (end func() error) {
	flag := cmd.Flags().Lookup("output")
	if flag == nil {
		return func() error { return nil }
	}
	format, ok := flag.Value.(*cli.Format)
	if !ok || format.Printer() == nil {
		return func() error { return nil }
	}
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := format.Printer()(r, out)
		r.CloseWithError(err)
		done <- err
	}()
	cmd.Root().SetOut(w)
	return func() error {
		_ = w.Close() // always nil
		return <-done
	}
}
