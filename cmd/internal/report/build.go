package report

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/cmd/internal/changes"
	"github.com/tierwall/tierwall/cmd/internal/cli"
	"github.com/tierwall/tierwall/cmd/internal/listing"
	"github.com/tierwall/tierwall/policy/assure"
	"github.com/tierwall/tierwall/policy/controller"
	"github.com/tierwall/tierwall/policy/lint"
)

// Options are what a report is made with besides policies and pods.
type Options struct {
	Made  Made // TableHash is filled in
	Log   *Log
	Seen  *LogReader // what Log was read by, nil without one
	Nodes Nodes
	// Profile is "", "pci" or "cis". InScope and OutOfScope are selectors of pci,
	// whose names without a namespace are of Namespace.
	Profile             string
	InScope, OutOfScope []string
	Namespace           string
}

// Data is a report with what the page needs to name ends and ports.
type Data struct {
	*Report
	reach *assure.Matrix

	looks       []look // how answers are shown
	lookIDs     map[string]int
	lookNumbers map[int32]int
}

// maxCells is how many groups of ends have a row of answers in JSON.
const maxCells = 2000

// Build makes the report of what was read. in.Table is not nil.
func Build(in *cli.Input, opt Options) (*Data, error) {
	w := assure.NewWorld(in.Snapshot, in.Table)
	r := &Report{V: 1, Made: opt.Made, Nodes: opt.Nodes, Errors: list(in.Findings.Errors), Incomplete: in.Gaps}
	scope, err := readScope(w, &opt)
	if err != nil {
		return nil, err
	}
	set := cloneSet(&in.Set)
	r.Made.TableHash = controller.PolicyHash(set)
	r.Policies = listing.Policies(in.Objects, &set)
	found := lint.Overridden(in.Objects, &in.Set, in.Snapshot)
	r.Overrides = list(append(found.Warnings, found.Notes...))
	r.Isolation = isolation(w, &set)
	reach := w.Matrix()
	r.fill(w, reach)
	r.Totals.Policies, r.Totals.Rules = len(r.Policies), len(set.Rules)
	if err := r.stage(in, &set); err != nil {
		return nil, err
	}
	if opt.Seen != nil {
		opt.Seen.finish(opt.Log, r, &set)
		r.Log = opt.Log
	}
	for i := range r.Nodes.List {
		n := &r.Nodes.List[i]
		n.Same = n.Status != nil && n.Status.Ready && n.Status.Policy.Hash == r.Made.TableHash
	}
	r.Nodes.List = list(r.Nodes.List)
	switch opt.Profile {
	case "pci":
		r.pci(reach, scope)
	case "cis":
		r.cis(w, in)
	}
	return &Data{Report: r, reach: reach}, nil
}

// list is a list that JSON does not show as null.
func list[T any](l []T) []T {
	if l == nil {
		return []T{}
	}
	return l
}

func cloneSet(s *rule.Set) rule.Set {
	return rule.Set{Rules: slices.Clone(s.Rules), Isolations: slices.Clone(s.Isolations)}
}

// level is how much an answer allows.
type level uint8

const (
	levelNone level = iota // nothing is decided
	levelRefused
	levelSome
	levelAll
	levelOpen // all of it, and no policy says anything
)

func levelOf(a assure.Ranges) level {
	allowed, refused, ruled := false, false, false
	for i := range a {
		if a[i].Allowed() {
			allowed = true
		} else {
			refused = true
		}
		ruled = ruled || a[i].Policy != ""
	}
	switch {
	case allowed && refused:
		return levelSome
	case allowed && ruled:
		return levelAll
	case allowed:
		return levelOpen
	case refused:
		return levelRefused
	}
	return levelNone
}

func levels(answers []assure.Ranges) []level {
	out := make([]level, len(answers))
	for i := range answers {
		out[i] = levelOf(answers[i])
	}
	return out
}

// fill writes down who can reach whom.
func (r *Report) fill(w *assure.World, reach *assure.Matrix) {
	out := &r.Reach
	out.Answers, out.Namespaces, out.Ends = reach.Answers, []NamespacePair{}, []End{}
	out.Answers[0] = assure.Ranges{}
	if len(reach.Cells) <= maxCells {
		out.Cells = reach.Cells
	}
	namespaces := map[string]bool{}
	for i := range reach.Ends {
		e := &reach.Ends[i]
		end := End{Name: endName(e), Namespace: e.Namespace, Pods: []string{}, HostNetwork: e.HostNetwork, Group: e.Group}
		for _, p := range e.Pods {
			end.Pods = append(end.Pods, assure.PodName(p))
		}
		for _, p := range e.Outside {
			end.Outside = append(end.Outside, p.String())
		}
		out.Ends = append(out.Ends, end)
		namespaces[e.Namespace] = true
		r.Totals.Pods += len(e.Pods)
	}
	r.Totals.Namespaces = len(w.Snapshot.Namespaces)
	r.Totals.Workloads = len(w.Workloads())
	level := levels(reach.Answers)
	type key struct{ from, to string }
	pairs := map[key]*NamespacePair{}
	for i := range reach.Ends {
		from := &reach.Ends[i]
		var last *NamespacePair // ends come by namespace
		for j := range reach.Ends {
			to := &reach.Ends[j]
			l := level[reach.Cell(i, j)]
			if l == levelNone {
				continue
			}
			if last == nil || last.To != to.Namespace {
				k := key{from.Namespace, to.Namespace}
				if last = pairs[k]; last == nil {
					last = &NamespacePair{From: k.from, To: k.to}
					pairs[k] = last
				}
			}
			n := from.Size() * to.Size()
			if i == j {
				n -= from.Size()
			}
			last.add(l, n)
			if len(from.Pods) > 0 && len(to.Pods) > 0 {
				r.Totals.add(l, n)
			}
		}
	}
	for _, p := range pairs {
		out.Namespaces = append(out.Namespaces, *p)
	}
	slices.SortFunc(out.Namespaces, func(a, b NamespacePair) int {
		return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To))
	})
}

func (t *Totals) add(l level, n int) { count(l, n, &t.Pairs, &t.Refused, &t.Some, &t.All, &t.Open) }

func (p *NamespacePair) add(l level, n int) {
	count(l, n, &p.Pairs, &p.Refused, &p.Some, &p.All, &p.Open)
}

func count(l level, n int, pairs, refused, some, all, open *int) {
	*pairs += n
	switch l {
	case levelRefused:
		*refused += n
	case levelSome:
		*some += n
	case levelOpen:
		*open += n
		*all += n
	case levelAll:
		*all += n
	}
}

func endName(e *assure.MatrixEnd) string {
	if len(e.Pods) == 0 {
		return "outside"
	}
	return e.Workload
}

// isolation finds which pods policies are about, by namespace and direction.
func isolation(w *assure.World, set *rule.Set) []NamespaceIsolation {
	byName := map[string]*NamespaceIsolation{}
	out := make([]NamespaceIsolation, len(w.Snapshot.Namespaces))
	for i := range w.Snapshot.Namespaces {
		out[i].Namespace = w.Snapshot.Namespaces[i].Name
		byName[out[i].Namespace] = &out[i]
	}
	selects := newSelection(set)
	for _, e := range w.Pods() {
		ns := byName[e.Namespace]
		if ns == nil {
			continue // the snapshot has every namespace with a pod
		}
		ns.Pods++
		about := selects.of(e)
		for _, d := range flow.Directions {
			dir := &ns.Ingress
			if d == flow.Egress {
				dir = &ns.Egress
			}
			dir.add(w.WorkloadOf(e), &about[d])
		}
	}
	for i := range out {
		for _, d := range []*Direction{&out[i].Ingress, &out[i].Egress} {
			for _, l := range []*[]string{&d.IsolatedBy, &d.RulesBy, &d.Admin, &d.OpenPods} {
				*l = list(*l)
				slices.Sort(*l)
			}
		}
	}
	slices.SortFunc(out, func(a, b NamespaceIsolation) int { return cmp.Compare(a.Namespace, b.Namespace) })
	return out
}

func (d *Direction) add(workload string, about *aboutPod) {
	merge := func(to *[]string, names []string) {
		for _, n := range names {
			if !slices.Contains(*to, n) {
				*to = append(*to, n)
			}
		}
	}
	merge(&d.IsolatedBy, about.isolated)
	merge(&d.RulesBy, about.rules)
	merge(&d.Admin, about.admin)
	switch {
	case len(about.isolated) > 0:
		d.Isolated++
	case len(about.rules) > 0:
		d.Rules++
	default:
		d.Open++
		merge(&d.OpenPods, []string{workload})
	}
}

// aboutPod names the policies about a pod in one direction.
type aboutPod struct{ isolated, rules, admin []string }

// selection finds the enforced policies about pods; pods that differ in their name
// alone cost a look.
type selection struct {
	isolations []isolating
	rules      []ruling
	memo       map[string]*[2]aboutPod
}

type isolating struct {
	d       flow.Direction
	subject *rule.Selector
	ref     string
}

type ruling struct {
	d       flow.Direction
	subject *rule.Selector
	ref     string
	admin   bool
}

func newSelection(set *rule.Set) *selection {
	s := &selection{memo: map[string]*[2]aboutPod{}}
	seen := map[string]bool{}
	for i := range set.Isolations {
		if iso := &set.Isolations[i]; iso.Stage == rule.Enforce {
			s.isolations = append(s.isolations, isolating{iso.Direction, &iso.Subject, iso.Origin.Ref()})
		}
	}
	for i := range set.Rules {
		r := &set.Rules[i]
		key := fmt.Sprint(r.Direction, r.Origin.Ref(), " ", r.Subject.String())
		if r.Stage != rule.Enforce || seen[key] {
			continue
		}
		seen[key] = true
		s.rules = append(s.rules, ruling{r.Direction, &r.Subject, r.Origin.Ref(), r.Order.Band < rule.BandNetworkPolicy})
	}
	return s
}

func (s *selection) of(e *rule.Endpoint) *[2]aboutPod {
	key := fmt.Sprint(e.Namespace, e.ServiceAccount, e.HostNetwork, e.Labels) // maps print sorted
	if got := s.memo[key]; got != nil {
		return got
	}
	out := &[2]aboutPod{}
	for _, i := range s.isolations {
		if i.subject.Matches(e) {
			out[i.d].isolated = append(out[i.d].isolated, i.ref)
		}
	}
	for _, r := range s.rules {
		if !r.subject.Matches(e) {
			continue
		}
		if out[r.d].rules = append(out[r.d].rules, r.ref); r.admin {
			out[r.d].admin = append(out[r.d].admin, r.ref)
		}
	}
	s.memo[key] = out
	return out
}

// maxStaged bounds the changes listed.
const maxStaged = 200

// stage compares what is in force with what would be if staged policies were
// enforced.
func (r *Report) stage(in *cli.Input, set *rule.Set) error {
	r.Staged.Policies, r.Staged.Changes = []string{}, []StagedChange{}
	promoted := cloneSet(set)
	add := func(o *rule.Origin, stage *rule.Stage) {
		if *stage == rule.Enforce {
			return
		}
		*stage = rule.Enforce
		if ref := o.Ref(); !slices.Contains(r.Staged.Policies, ref) {
			r.Staged.Policies = append(r.Staged.Policies, ref)
		}
	}
	for i := range promoted.Rules {
		add(&promoted.Rules[i].Origin, &promoted.Rules[i].Stage)
	}
	for i := range promoted.Isolations {
		add(&promoted.Isolations[i].Origin, &promoted.Isolations[i].Stage)
	}
	if len(r.Staged.Policies) == 0 {
		return nil
	}
	slices.Sort(r.Staged.Policies)
	d, err := assure.Compare(assure.State{Snapshot: in.Snapshot, Set: cloneSet(set)}, assure.State{Snapshot: in.Snapshot, Set: promoted}, assure.Options{})
	if err != nil {
		return fmt.Errorf("compare with staged policies enforced: %w", err)
	}
	groups, sum := changes.Groups(d)
	r.Staged.Summary = sum
	namer := changes.NewNamer(d)
	for i := range groups {
		g := &groups[i]
		if g.Kind == assure.OtherRule {
			continue
		}
		if len(r.Staged.Changes) == maxStaged {
			r.Staged.Cut++
			continue
		}
		r.Staged.Changes = append(r.Staged.Changes, StagedChange{
			g.Kind, namer.Name(g.From, g.To), namer.Name(g.To, g.From), g.Ports, g.Before, g.After,
		})
	}
	return nil
}
