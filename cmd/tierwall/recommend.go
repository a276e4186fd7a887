package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/cmd/internal/agent"
	"github.com/tierwall/tierwall/cmd/internal/auditlog"
	"github.com/tierwall/tierwall/cmd/internal/cli"
	"github.com/tierwall/tierwall/cmd/internal/proposal"
	"github.com/tierwall/tierwall/policy/assure"
	"github.com/tierwall/tierwall/policy/assure/recommend"
)

type recommendFlags struct {
	world
	logs          agent.Paths
	as, merge     string
	since, until  string
	enforce       bool
	ranges        int
	includeDenied bool
	noDNS         bool
	output        *cli.Format
}

func newRecommend() *cobra.Command {
	var q recommendFlags
	var dialects []string
	for _, d := range recommend.Dialects {
		dialects = append(dialects, d.Name)
	}
	cmd := &cobra.Command{
		Use:   "recommend [WORKLOAD...] --log FILE [--manifests DIR]",
		Short: "Write least-privilege policies from the audit log",
		Long: `Reads the connections that an audit log has of the chosen workloads and writes, for
each of them, a policy that allows just these, in both directions. Without WORKLOAD it
is all workloads of --namespace, or of all namespaces but those named kube-….

WORKLOAD is one of these:

` + assure.EndForms + `

Pods are selected by the fewest labels that match just the pods of their workload today;
workloads reached on the same ports share a rule. Ports and outside addresses are exact
unless --port-ranges and --merge-cidrs ask for less. An address that an existing rule let
pass by its DNS name is written by that name, where the language has names. What was
generalised is said in comments, in JSON under "notes".

Policies are staged (annotation tierwall.io/stage: audit): daemons record what they would
do and do not enforce them. --enforce leaves the annotation out.

The log is complete only if the daemons were configured with audit.all. It is read twice:
the second time every decision is judged again by the recommended policies, and what they
would deny of what was allowed is listed ("wouldDeny", 0 unless a connection cannot be
written in the language, such as ICMP in a NetworkPolicy). What they open and nobody used
is computed over all pods, ports and outside addresses ("neverSeen").

JSON: {"policies":[objects],"notes":[{"policy","text"}],"span":{"from","to"},"nodes",
"records","decisions","connections","lost","bad","partial","uncovered":[{"from","to","port","why","decisions",
"first","last"}],"uncoveredMore","replayed","wouldDeny","denied":[…],"neverSeen":
{"connections":{"opened","seen","neverSeen","share"},"workloads":{…},"outside":{…},"list":
[{"from","to","pods","family","protocol","ports":[first,last],"opened","seen"}],"more"},
"beside":{"wouldDeny","connections","outside"},"staged"}. "beside" is what the policies
come to together with the existing ones.

Exit code 0, 1 when a connection of the log would be denied or the log says that records
are missing, 2 when there is nothing to recommend or the question makes no sense.`,
		Example: `  tierwall recommend --log audit.log --manifests world.yaml -n shop > shop.yaml
  tierwall recommend --log audit.log --manifests world.yaml shop/web --as cilium
  tierwall recommend --log node-1/ --log node-2/ -n shop --merge-cidrs 24 -o json
  tierwall audit query --all-nodes --since 14d -o json | tierwall recommend --log - -n shop`,
		RunE: func(cmd *cobra.Command, args []string) error { return q.run(cmd, args) },
	}
	q.flags(cmd)
	q.output = cli.NewFormat("yaml", "json")
	f := cmd.Flags()
	f.Var(&q.logs, "log", "audit log, or a directory with audit.log or files *.log; \"-\" for standard input; may be given several times (required)")
	f.StringVar(&q.as, "as", recommend.Dialects[0].Name, "language of the policies: "+strings.Join(dialects, ", "))
	f.BoolVar(&q.enforce, "enforce", false, "write policies that are enforced, not staged")
	f.StringVar(&q.since, "since", "", "only records after this time: 15m, 36h, 7d ago, or a time such as \"2026-01-02 15:04\"")
	f.StringVar(&q.until, "until", "", "only records before this time")
	f.IntVar(&q.ranges, "port-ranges", 0, "take ports together that are at most this far apart; 1 (also without a number) takes consecutive ones")
	f.Lookup("port-ranges").NoOptDefVal = "1"
	f.StringVar(&q.merge, "merge-cidrs", "", "take outside addresses together that share a prefix of this length: 24, or 24,64 for IPv4 and IPv6")
	f.BoolVar(&q.includeDenied, "include-denied", false, "allow connections that were denied, too")
	f.BoolVar(&q.noDNS, "no-dns", false, "do not allow DNS to workloads that were not seen to use it")
	f.VarP(q.output, "output", "o", "output format")
	return cmd
}

func (q *recommendFlags) options(cmd *cobra.Command) (o recommend.Options, err error) {
	o = recommend.Options{Enforce: q.enforce, PortRanges: q.ranges, IncludeDenied: q.includeDenied, NoDNS: q.noDNS, Lower: q.lower}
	if o.Dialect, err = recommend.DialectOf(q.as); err != nil {
		return o, usage(cmd, fmt.Errorf("--as: %w", err))
	}
	if q.ranges < 0 {
		return o, usage(cmd, fmt.Errorf("--port-ranges %d: want a distance of ports such as 1 or 100", q.ranges))
	}
	if q.merge == "" {
		return o, nil
	}
	four, six, both := strings.Cut(q.merge, ",")
	if !both {
		six = "64"
	}
	for i, text := range []string{four, six} {
		bits, err := strconv.Atoi(text)
		if most := []int{32, 128}[i]; err != nil || bits < 1 || bits > most {
			return o, usage(cmd, fmt.Errorf("--merge-cidrs %q: want a prefix length such as 24, or 24,64 for IPv4 and IPv6", q.merge))
		}
		o.MergeCIDRs[i] = bits
	}
	return o, nil
}

func (q *recommendFlags) run(cmd *cobra.Command, args []string) error {
	if len(q.logs) == 0 {
		return usage(cmd, errors.New("--log is required: the audit log to read connections from"))
	}
	opt, err := q.options(cmd)
	if err != nil {
		return err
	}
	log := logQuestion{}
	now := time.Now()
	for text, t := range map[*string]*time.Time{&q.since: &log.filter.Since, &q.until: &log.filter.Until} {
		if *text != "" {
			if *t, err = auditlog.ParseTime(*text, now); err != nil {
				return usage(cmd, err)
			}
		}
	}
	if slices.Contains(q.logs, "-") && slices.Contains(q.manifests, "-") {
		return usage(cmd, errors.New("standard input can be the log or the manifests, not both"))
	}
	in, err := q.load(cmd, "")
	if err != nil {
		return err
	}
	if err := showFindings(cmd, in, q.output.JSON()); err != nil {
		return err
	}
	if err := in.CheckNamespace(q.cluster.Namespace); err != nil {
		return err
	}
	w := assure.NewWorld(in.Snapshot, in.Table)
	chosen, err := q.chosen(w, args)
	if err != nil {
		return err
	}
	paths, remove, err := logFiles(q.logs, cmd.InOrStdin())
	defer remove()
	if err != nil {
		return err
	}
	opt.Existing = in.Objects
	return q.recommend(cmd, in, w, chosen, &log, paths, opt)
}

// chosen finds the pods that policies are for.
func (q *recommendFlags) chosen(w *assure.World, args []string) ([]*rule.Endpoint, error) {
	var out []*rule.Endpoint
	namespace := q.cluster.Namespace
	for _, text := range args {
		end, err := w.End(text, namespace)
		if err != nil {
			return nil, err
		}
		if len(end.Pods) == 0 {
			return nil, fmt.Errorf("%s is no workload: policies are for pods", text)
		}
		out = append(out, end.Pods...)
	}
	if len(args) == 0 {
		for _, e := range w.Pods() {
			if e.Namespace == namespace || namespace == "" && !strings.HasPrefix(e.Namespace, "kube-") {
				out = append(out, e)
			}
		}
		if len(out) == 0 && namespace != "" {
			return nil, fmt.Errorf("namespace %s has no pod with an address, and no workload", namespace)
		}
	}
	if len(out) == 0 {
		return nil, errors.New("there is no pod to write a policy for: the manifests have no pod, Deployment, StatefulSet, DaemonSet or Job")
	}
	out = slices.DeleteFunc(out, func(e *rule.Endpoint) bool { return e.HostNetwork })
	if len(out) == 0 {
		return nil, errors.New("all chosen pods are on the host network, where no policy selects pods")
	}
	return out, nil
}

// logFiles finds the logs to read. Standard input is kept in a file, since logs are
// read twice; remove deletes it.
func logFiles(logs []string, stdin io.Reader) (paths []string, remove func(), err error) {
	remove = func() {}
	for i, path := range logs {
		if slices.Contains(logs[:i], path) {
			continue // given twice: its connections count once
		}
		if path == auditlog.Stdin {
			f, err := os.CreateTemp("", "tierwall-log-")
			if err != nil {
				return nil, remove, err
			}
			remove = func() { _ = os.Remove(f.Name()) } // a temporary file more is not worth an error
			_, err = io.Copy(f, stdin)
			if err := errors.Join(err, f.Close()); err != nil {
				return nil, remove, fmt.Errorf("keep the log from standard input: %w", err)
			}
			paths = append(paths, f.Name())
			continue
		}
		info, err := os.Stat(path)
		if err != nil {
			return nil, remove, fmt.Errorf("read the log: %w", err)
		}
		if !info.IsDir() {
			paths = append(paths, path)
			continue
		}
		if name := filepath.Join(path, "audit.log"); exists(name) {
			paths = append(paths, name)
			continue
		}
		found, err := filepath.Glob(filepath.Join(path, "*.log"))
		if err != nil || len(found) == 0 {
			return nil, remove, fmt.Errorf("read the log: %s has neither audit.log nor other files named *.log", path)
		}
		paths = append(paths, found...)
	}
	return paths, remove, nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func (q *recommendFlags) recommend(cmd *cobra.Command, in *cli.Input, w *assure.World, chosen []*rule.Endpoint, log *logQuestion, paths []string, opt recommend.Options) error {
	progress := progressOn(cmd)
	if !progress.Live {
		progress = nil
	}
	defer progress.Done()
	progress.Step("reading the log")
	reader := proposal.NewReader(recommend.NewSeen(w, chosen), &in.Set)
	lost, bad, err := log.events(cmd, paths, reader.Add)
	if err != nil {
		return err
	}
	if log.cover.Records == 0 {
		return fmt.Errorf("no record in %s (%s): give a log in JSON, as the daemon's audit.file writes it", strings.Join(log.cover.Files, ", "),
			cli.Plural(bad, "line"))
	}
	rec, err := reader.Seen.Recommend(opt)
	if err != nil {
		return fmt.Errorf("%w (read %s, %s to %s, %d missing)", err, cli.Plural(uint64(log.cover.Records), "record"),
			log.cover.First.UTC().Format(time.RFC3339), log.cover.Last.UTC().Format(time.RFC3339), lost)
	}
	progress.Step("judging the log again by %s", cli.Plural(uint64(len(rec.Policies)), "policy"))
	replay := proposal.NewReplay(reader, rec)
	again := logQuestion{filter: log.filter}
	if end := log.cover.Last.Add(1); again.filter.Until.IsZero() || end.Before(again.filter.Until) {
		again.filter.Until = end // the log may have grown meanwhile
	}
	if _, _, err := again.events(cmd, paths, replay.Add); err != nil {
		return err
	}
	progress.Done()
	p := proposal.New(rec, reader, replay)
	p.Records, p.Lost, p.Bad, p.Staged = log.cover.Records, lost, bad, !opt.Enforce
	if q.output.JSON() {
		err = writeAnswer(cmd.OutOrStdout(), in, p)
	} else {
		err = p.WriteYAML(cmd.OutOrStdout())
	}
	if err != nil {
		return err
	}
	if problem := p.Problem(); problem != "" {
		return cli.Finding("%s", problem)
	}
	return nil
}
