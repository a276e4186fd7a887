package recommend

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/assure"
	"github.com/tierwall/tierwall/policy/decode"
	"github.com/tierwall/tierwall/policy/diag"
	"github.com/tierwall/tierwall/policy/internal/kube"
	"github.com/tierwall/tierwall/policy/lower"
)

// Options of Recommend. The zero value writes exact NetworkPolicies, staged.
type Options struct {
	Dialect *Dialect // nil: the first of Dialects
	Enforce bool     // policies are enforced, not staged
	// PortRanges takes ports together that are at most this far apart; 0 does not.
	PortRanges int
	// MergeCIDRs takes addresses together that share a prefix of this length, by
	// family; 0 does not.
	MergeCIDRs    [2]int
	IncludeDenied bool // allow what was denied, too
	NoDNS         bool // do not allow DNS where it was not seen
	// Existing are the policies there are, and Lower how they are read.
	Existing []*api.Object
	Lower    lower.Options
}

// Policy is one recommended object.
type Policy struct {
	Workload string
	Object   map[string]any
	Notes    []string // what was generalised and why
}

// Recommendation is what comes of connections that were seen.
type Recommendation struct {
	Policies      []Policy
	Notes         []string
	Connections   uint64 // that were allowed and seen; those between nodes count once
	Uncovered     []Uncovered
	MoreUncovered uint64 // decisions that are not covered and not listed
	// Table has the recommended policies alone, enforced; Combined has them beside
	// the existing ones.
	Table, Combined *classifier.Table
	// NeverSeen is what Table opens beyond what was seen; Beside what Combined does.
	NeverSeen, Beside Tightness
}

// ErrNothing is wrapped by the errors of a log that leads to no policy.
var ErrNothing = errors.New("there is nothing to recommend")

// Recommend writes policies that allow what was seen.
func (s *Seen) Recommend(opt Options) (*Recommendation, error) {
	if opt.Dialect == nil {
		opt.Dialect = Dialects[0]
	}
	if err := s.nothing(); err != nil {
		return nil, err
	}
	b := &drafter{seen: s, opt: opt, dialect: opt.Dialect, learnt: map[string][]netip.Addr{}}
	drafts, unseen := b.drafts()
	if len(drafts) == 0 {
		return nil, fmt.Errorf("%w: no connection of the chosen pods that was allowed can be written as %s (%d decisions about them, %d kinds of connections not covered: %s)",
			ErrNothing, opt.Dialect.Name, s.relevant, len(s.uncover), s.firstReason())
	}
	r := &Recommendation{Connections: b.connections}
	if err := r.write(drafts, opt); err != nil {
		return nil, err
	}
	r.Uncovered, r.MoreUncovered = s.listUncovered(), s.more
	if err := r.compile(s, opt, b.learnt); err != nil {
		return nil, err
	}
	units := make([]*group, len(drafts))
	for i, d := range drafts {
		units[i] = d.unit
	}
	r.NeverSeen = s.tightness(assure.NewWorld(s.world.Snapshot, r.Table), units, opt.IncludeDenied)
	r.Beside = s.tightness(assure.NewWorld(s.world.Snapshot, r.Combined), units, opt.IncludeDenied)
	r.Notes = s.notes(unseen)
	if r.Beside.Connections.NeverSeen > r.NeverSeen.Connections.NeverSeen || r.Beside.Outside.NeverSeen > r.NeverSeen.Outside.NeverSeen {
		r.Notes = append(r.Notes, "the existing policies open more of these pods than the recommended ones: policies of this kind add up, so remove or narrow those to get what is recommended (beside in the JSON has the figures)")
	}
	return r, nil
}

// nothing says why there is nothing to recommend.
func (s *Seen) nothing() error {
	switch {
	case s.total == 0:
		return fmt.Errorf("%w: the log has no decision about a connection; set audit.all in the daemon's configuration to record all", ErrNothing)
	case s.known == 0 && len(s.unknown) > 0:
		return fmt.Errorf("%w: the log is about other pods than the manifests: it has %s; give the manifests of the cluster it was written in (kubectl get pods,namespaces,nodes,services -A -o yaml)",
			ErrNothing, clean(strings.TrimPrefix(diag.Among("", slices.Sorted(maps.Keys(s.unknown))), "; there is ")))
	case s.relevant == 0:
		var names []string
		for _, u := range s.units {
			names = append(names, u.title)
		}
		return fmt.Errorf("%w: none of %d decisions in the log is about %s; is it the log of their nodes, and was audit.all set?",
			ErrNothing, s.total, clean(strings.TrimPrefix(diag.Among("", names), "; there is ")))
	}
	return nil
}

func (s *Seen) firstReason() string {
	if list := s.listUncovered(); len(list) > 0 {
		return list[0].Why
	}
	return "none was seen"
}

// notes says what was made of the log.
func (s *Seen) notes(unseen []*group) []string {
	var out []string
	if len(unseen) > 0 {
		var names []string
		for _, u := range unseen {
			names = append(names, u.title)
		}
		out = append(out, fmt.Sprintf("no policy for %s: no connection of these that was allowed is in the log, and a policy would deny everything", strings.Join(names, ", ")))
	}
	for _, title := range slices.Sorted(maps.Keys(s.taken)) {
		names := slices.Sorted(maps.Keys(s.taken[title]))
		out = append(out, fmt.Sprintf("%s of the log, not in the manifests, counted as %s, by labels or by name", amount(len(names), "pod"), title))
	}
	if s.answers > 0 {
		out = append(out, fmt.Sprintf("%s in the log about packets of connections in the other direction, which allow them", amount(int(s.answers), "decision")))
	}
	if s.local > 0 {
		out = append(out, fmt.Sprintf("%s from a node to its own pods need no rule: nodes always reach their pods", amount(int(s.local), "decision")))
	}
	if s.step > 0 {
		w := widths[s.step]
		out = append(out, fmt.Sprintf("the log has more than %d different connections: outside addresses were taken together to prefixes of %d bits (IPv6: %d)", s.limit, w[0], w[1]))
	}
	out = append(out, s.widened()...)
	for i := range out {
		out[i] = clean(out[i])
	}
	return out
}

// widened says which outside addresses were taken together, as there are too many.
func (s *Seen) widened() (out []string) {
	for k, u := range s.buckets {
		if u.step == 0 {
			continue
		}
		side := "from"
		if k.outbound {
			side = "to"
		}
		w := widths[u.step][1]
		if k.is4 {
			w = widths[u.step][0]
		}
		out = append(out, fmt.Sprintf("%s %s %s: more than %d outside addresses, taken together to prefixes of %d bits",
			k.group.title, side, portText(k.proto, k.port), maxAddresses, w))
	}
	slices.Sort(out)
	return out
}

func amount(n int, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return fmt.Sprintf("%d %ss", n, word)
}

// clean makes text with names from elsewhere fit for a comment: one line, without
// control characters.
func clean(s string) string { return diag.Escape(s) }

// write turns drafts into objects.
func (r *Recommendation) write(drafts []*draft, opt Options) error {
	taken := map[string]bool{}
	for _, d := range drafts {
		meta := metav1.ObjectMeta{Name: objectName(d, opt.Dialect, taken)}
		if opt.Dialect.namespaced {
			meta.Namespace = d.unit.namespace
		}
		if !opt.Enforce {
			meta.Annotations = map[string]string{kube.AnnotationStage: "audit"}
		}
		objects, err := opt.Dialect.write(d, meta, len(r.Policies))
		if err != nil {
			return err
		}
		for i, o := range objects {
			m, err := generic(o)
			if err != nil {
				return fmt.Errorf("write a policy for %s: %w", d.unit.title, err)
			}
			p := Policy{Workload: d.unit.title, Object: m}
			if i == 0 {
				for _, n := range d.notes {
					p.Notes = append(p.Notes, clean(n))
				}
			}
			r.Policies = append(r.Policies, p)
		}
	}
	return nil
}

// objectName makes a name that Kubernetes takes, and that no other policy of the
// recommendation has.
func objectName(d *draft, l *Dialect, taken map[string]bool) string {
	name := "recommended-"
	if !l.namespaced {
		name += d.unit.namespace + "-"
	}
	name += d.unit.name
	var b strings.Builder
	for _, c := range strings.ToLower(name) {
		if c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' || c == '.' {
			b.WriteRune(c)
		} else {
			b.WriteByte('-')
		}
	}
	const most = 200 // of 253: a number may follow
	base := b.String()
	base = strings.Trim(base[:min(len(base), most)], "-.")
	base = strings.NewReplacer("..", ".", ".-", "-", "-.", "-").Replace(base)
	key := func(n string) string { return d.unit.namespace + "/" + n }
	if taken[key(base)] {
		base += "-" + strings.ToLower(d.unit.kind)
	}
	name = base
	for i := 2; taken[key(name)]; i++ {
		name = fmt.Sprintf("%s-%d", base, i)
	}
	taken[key(name)] = true
	return name
}

// generic is an object as it is written: without what its type adds.
func generic(o any) (map[string]any, error) {
	data, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	var m map[string]any
	if err := json.Unmarshal(data, &m); err != nil {
		return nil, err
	}
	delete(m, "status")
	if meta, ok := m["metadata"].(map[string]any); ok && meta["creationTimestamp"] == nil {
		delete(meta, "creationTimestamp")
	}
	return m, nil
}

// compile reads the policies as a daemon does, and makes their tables.
func (r *Recommendation) compile(s *Seen, opt Options, learnt map[string][]netip.Addr) error {
	var objects []*api.Object
	dec := decode.Decoder{Kinds: lower.Kinds()}
	mine := map[api.Ref]bool{}
	for _, p := range r.Policies {
		data, err := yaml.Marshal(p.Object)
		if err != nil {
			return fmt.Errorf("write a policy for %s: %w", p.Workload, err)
		}
		found, problems := dec.Decode("recommendation", data)
		if err := problems.Err(); err != nil {
			return fmt.Errorf("the policy for %s cannot be read: %w", clean(p.Workload), err)
		}
		for _, o := range found {
			if o.Annotations[kube.AnnotationStage] != "" {
				o.Annotations = maps.Clone(o.Annotations)
				delete(o.Annotations, kube.AnnotationStage) // judged as enforced
			}
			mine[o.Ref()] = true
			objects = append(objects, o)
		}
	}
	var err error
	if r.Table, err = table(s, opt.Lower, objects, learnt); err != nil {
		return err
	}
	for _, o := range opt.Existing {
		if o != nil && !mine[o.Ref()] {
			objects = append(objects, o)
		}
	}
	r.Combined, err = table(s, opt.Lower, objects, learnt)
	return err
}

func table(s *Seen, opt lower.Options, objects []*api.Object, learnt map[string][]netip.Addr) (*classifier.Table, error) {
	snap := s.world.Snapshot
	set, found := opt.Build(objects, snap)
	if err := found.Err(); err != nil {
		return nil, fmt.Errorf("the recommended policies are not valid: %w", err)
	}
	w := snap.World("")
	snap.FillSets(w, &set)
	learn(w, learnt)
	t, _, err := classifier.Compile(set, w, classifier.Options{})
	if err != nil {
		return nil, fmt.Errorf("compile the recommended policies: %w", err)
	}
	return t, nil
}

// learn gives names the addresses that were seen behind them.
func learn(w *rule.World, learnt map[string][]netip.Addr) {
	for set, addrs := range learnt {
		if _, ok := w.Sets[set]; !ok {
			continue
		}
		slices.SortFunc(addrs, netip.Addr.Compare)
		prefixes := make([]netip.Prefix, len(addrs))
		for i, a := range addrs {
			prefixes[i] = netip.PrefixFrom(a, a.BitLen())
		}
		w.Sets[set] = prefixes
	}
}
