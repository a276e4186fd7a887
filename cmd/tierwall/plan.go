package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/cmd/internal/cli"
	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/assess"
	"github.com/tierwall/tierwall/policy/exposure"
	"github.com/tierwall/tierwall/policy/inventory"
)

// removal is a step of "cleanup --plan": what goes, and what opens by it.
type removal struct {
	// What is "kind", for the objects of one kind, "kinds" for those of --without, or
	// "daemon" for Tierwall itself.
	What  string   `json:"what"`
	Kinds []string `json:"kinds,omitempty"` // "Kind.group"
	// Policies is how many objects go; AlsoLost names others that need them.
	Policies int       `json:"policies"`
	AlsoLost []string  `json:"alsoLost,omitempty"`
	Opens    []opening `json:"opens"`
	// Complete is false if the search was ended early: more may open.
	Complete bool `json:"complete"`
}

// opening is a pair of ends between which connections open that are denied today.
type opening struct {
	From     openEnd  `json:"from"`
	To       openEnd  `json:"to"`
	Ports    []string `json:"ports"`
	DeniedBy []string `json:"deniedBy"` // today
}

type openEnd struct {
	Name      string `json:"name"` // "namespace/pod", for all pods like it, or an address
	Namespace string `json:"namespace,omitempty"`
	Pods      int    `json:"pods,omitempty"`
	Node      string `json:"node,omitempty"`
}

// planFlags are the flags of "cleanup --plan".
type planFlags struct {
	world
	on      bool
	without []string
}

func (p *planFlags) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.BoolVar(&p.on, "plan", false, "remove nothing: list the connections that would open, of manifests or the cluster")
	f.StringSliceVar(&p.without, "without", nil, "with --plan: only what opens when these kinds go together, such as ClusterNetworkPolicy.crd.antrea.io")
	p.world.flags(cmd)
}

// given reports whether a flag was given that means nothing without --plan.
func (p *planFlags) given() bool {
	return len(p.manifests) > 0 || p.cluster.Given() || p.cluster.Namespace != "" || len(p.without) > 0
}

func (p *planFlags) run(cmd *cobra.Command, output *cli.Format) error {
	in, err := p.load(cmd, "")
	if err != nil {
		return err
	}
	if err := showFindings(cmd, in, output.JSON()); err != nil {
		return err
	}
	plan, err := p.plan(cmd, in)
	if err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	if output.JSON() {
		err = writeAnswer(out, in, struct {
			Plan []removal `json:"plan"`
		}{plan})
	} else {
		err = writePlan(out, cli.StyleFor(out), plan)
	}
	if err == nil && slices.ContainsFunc(plan, func(r removal) bool { return len(r.Opens) > 0 || !r.Complete }) {
		return &cli.FindingError{Err: errors.New("connections that are denied now would open"), Shown: true}
	}
	return err
}

// kindOf names a kind as API resources are named.
func kindOf(o *api.Object) string { return o.Kind.Kind + "." + o.Kind.Group }

// plan compares the policy with what is left of it after each removal.
func (p *planFlags) plan(cmd *cobra.Command, in *cli.Input) ([]removal, error) {
	count := map[string]int{}
	for _, o := range in.Objects {
		count[kindOf(o)]++
	}
	var kinds []string
	for k := range count {
		kinds = append(kinds, k)
	}
	slices.Sort(kinds)
	c := comparison{in: in, opt: p, namespace: p.cluster.Namespace}
	if len(p.without) > 0 {
		r := removal{What: "kinds"}
		for _, name := range p.without {
			at := slices.IndexFunc(kinds, func(k string) bool { return strings.EqualFold(k, name) })
			if at < 0 {
				return nil, usage(cmd, fmt.Errorf("--without %s: there are no policies of this kind; there are %s", name, orNone(strings.Join(kinds, ", "))))
			}
			r.Kinds = append(r.Kinds, kinds[at])
			r.Policies += count[kinds[at]]
		}
		err := c.fill(&r)
		return []removal{r}, err
	}
	var out []removal
	for _, k := range kinds {
		r := removal{What: "kind", Kinds: []string{k}, Policies: count[k]}
		if err := c.fill(&r); err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	r := removal{What: "daemon", Policies: len(in.Objects)}
	if err := c.fill(&r); err != nil {
		return nil, err
	}
	return append(out, r), nil
}

// comparison holds what all removals are compared with.
type comparison struct {
	in        *cli.Input
	opt       *planFlags
	namespace string
}

// fill finds out what a removal opens.
func (c *comparison) fill(r *removal) error {
	var kept []*api.Object
	for _, o := range c.in.Objects {
		if r.What != "daemon" && !slices.Contains(r.Kinds, kindOf(o)) {
			kept = append(kept, o)
		}
	}
	left := assess.Run(c.opt.lower, kept, c.in.Snapshot, nil)
	if err := left.Findings.Err(); err != nil {
		return fmt.Errorf("what is left without %s: %w", strings.Join(r.Kinds, ", "), err)
	}
	for i := range left.Refused {
		r.AlsoLost = append(r.AlsoLost, left.Refused[i].Object.Ref().String())
	}
	world := c.in.Table.World()
	after, err := compileFor(c.in.Snapshot, &left.Set)
	if err != nil {
		return err
	}
	found, complete := exposure.Opened(exposure.Side{Table: c.in.Table, Set: &c.in.Set}, exposure.Side{Table: after, Set: &left.Set},
		world, exposure.Options{Namespace: c.namespace})
	r.Complete, r.Opens = complete, []opening{}
	for i := range found {
		f := &found[i]
		o := opening{From: openEnd(f.From), To: openEnd(f.To), Ports: f.Ports, DeniedBy: []string{}}
		for _, ref := range f.DeniedBy {
			o.DeniedBy = append(o.DeniedBy, ref.String())
		}
		r.Opens = append(r.Opens, o)
	}
	return nil
}

func compileFor(snap *inventory.Snapshot, set *rule.Set) (*classifier.Table, error) {
	world := snap.World("")
	snap.FillSets(world, set)
	table, _, err := classifier.Compile(*set, world, classifier.Options{})
	if err != nil {
		return nil, fmt.Errorf("compile the policies: %w", err)
	}
	return table, nil
}

// place is what text calls the namespace of addresses.
func (e *openEnd) place() string {
	switch {
	case e.Namespace != "":
		return e.Namespace
	case e.Node != "":
		return "(nodes)"
	}
	return "(outside)"
}

// writePlan prints, for each removal, the namespaces between which connections open.
func writePlan(w io.Writer, s cli.Style, plan []removal) error {
	for i := range plan {
		r := &plan[i]
		title := "without Tierwall at all"
		if r.What != "daemon" {
			title = "without " + strings.Join(r.Kinds, ", ")
		}
		policies := "1 policy"
		if r.Policies != 1 {
			policies = fmt.Sprintf("%d policies", r.Policies)
		}
		opens := "nothing opens"
		if n := len(r.Opens); n == 1 {
			opens = s.Red("connections open between 1 pair of workloads")
		} else if n > 1 {
			opens = s.Red(fmt.Sprintf("connections open between %d pairs of workloads", n))
		}
		if _, err := fmt.Fprintf(w, "%s (%s): %s\n", s.Bold(title), policies, opens); err != nil {
			return err
		}
		for _, name := range r.AlsoLost {
			if _, err := fmt.Fprintf(w, "  %s is refused then: it needs what goes\n", name); err != nil {
				return err
			}
		}
		if err := writeOpens(w, r.Opens); err != nil {
			return err
		}
		if !r.Complete {
			if _, err := fmt.Fprintln(w, "  the search was ended early, and more may open: ask for one namespace with -n"); err != nil {
				return err
			}
		}
	}
	return nil
}

// few joins the first three of a list and says how many more there are.
func few(list []string, sep string) string {
	const most = 3
	out := strings.Join(list[:min(len(list), most)], sep)
	if n := len(list) - most; n > 0 {
		out += fmt.Sprintf(" and %d more", n)
	}
	return out
}

// writeOpens prints one line for each pair of namespaces.
func writeOpens(w io.Writer, opens []opening) error {
	type pair struct{ from, to string }
	at := map[pair][]*opening{}
	var order []pair
	for i := range opens {
		o := &opens[i]
		p := pair{o.From.place(), o.To.place()}
		if at[p] == nil {
			order = append(order, p)
		}
		at[p] = append(at[p], o)
	}
	if len(order) == 0 {
		return nil
	}
	slices.SortFunc(order, func(a, b pair) int { return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(a.to, b.to)) })
	rows := [][]string{{"  FROM", "TO", "PAIRS", "FOR EXAMPLE", "PORTS", "DENIED TODAY BY"}}
	for _, p := range order {
		first := at[p][0]
		rows = append(rows, []string{
			"  " + p.from, p.to, fmt.Sprint(len(at[p])), first.From.Name + " -> " + first.To.Name, few(first.Ports, " "), orNone(few(first.DeniedBy, ", ")),
		})
	}
	return writeTable(w, rows)
}
