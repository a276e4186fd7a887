package query

import (
	"cmp"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/cmd/internal/cli"
	"github.com/tierwall/tierwall/policy/inventory"
)

// classOf are targets that no decision tells apart.
type classOf struct{ pods []Target }

func (c *classOf) names() []string {
	var out []string
	for i := range c.pods[:min(len(c.pods), caseNames)] {
		out = append(out, c.pods[i].Name)
	}
	return out
}

// pair picks a connection between two classes, and counts them all: of a pod to
// another one, never to itself.
func (c *classOf) pair(to classOf) (src, dst Target, pairs int) {
	same := map[string]bool{}
	for i := range c.pods {
		same[c.pods[i].Name] = true
	}
	both := 0
	for i := range to.pods {
		if same[to.pods[i].Name] {
			both++
		}
	}
	pairs = len(c.pods)*len(to.pods) - both
	for i := range c.pods {
		for j := range to.pods {
			if c.pods[i].Name != to.pods[j].Name {
				return c.pods[i], to.pods[j], pairs
			}
		}
	}
	return src, dst, 0
}

// classes groups targets. Where it matters on which node a pod is, perNode is set.
func (a *answering) classes(targets []Target, perNode bool) []classOf {
	type key struct {
		class       [2]classifier.Class
		has         [2]bool
		ports, node string
		host        netip.Addr
	}
	at := map[key]int{}
	var out []classOf
	for _, target := range targets {
		var k key
		for i, is4 := range []bool{true, false} {
			addr, ok := first(target.Addrs, is4)
			if !ok {
				continue
			}
			k.has[i], k.class[i] = true, a.table.Class(a.table.EndOf(addr))
			if target.Pod == nil || target.Pod.HostNetwork {
				k.host = addr
			}
		}
		if target.Pod != nil {
			k.ports = fmt.Sprint(target.Pod.Ports)
			if perNode {
				k.node = target.Pod.Node
			}
		}
		i, ok := at[k]
		if !ok {
			i = len(out)
			at[k] = i
			out = append(out, classOf{})
		}
		out[i].pods = append(out[i].pods, target)
	}
	return out
}

func hostNetwork(list []Target) bool {
	return slices.ContainsFunc(list, func(t Target) bool { return t.Pod == nil || t.Pod.HostNetwork })
}

func (a *answering) newGroup(from, to *asked) *GroupExplanation {
	g := &GroupExplanation{From: from.text, To: to.text, Port: a.Port.Text, Cases: []GroupCase{}}
	pods := func(s *asked) int {
		if len(s.targets) == 0 || s.targets[0].Pod == nil {
			return 0
		}
		return len(s.targets)
	}
	g.FromPods, g.ToPods = pods(from), pods(to)
	return g
}

// verdict is "" for a Service whose backends differ.
func (c *GroupCase) verdict() string {
	if c.Service != nil {
		return c.Service.Verdict
	}
	if len(c.Example.DependsOnName) > 0 {
		return ""
	}
	return c.Example.Verdict
}

// alike reports whether two cases are decided by the same rules.
func (c *GroupCase) alike(o *GroupCase) bool {
	if c.Service != nil || o.Service != nil {
		if c.Service == nil || o.Service == nil || len(c.Service.Backends) != len(o.Service.Backends) {
			return false
		}
		for i := range c.Service.Backends {
			a, b := &c.Service.Backends[i], &o.Service.Backends[i]
			if a.To != b.To || !a.alike(b) {
				return false
			}
		}
		return true
	}
	return c.Example.alike(o.Example)
}

func (e *Explanation) alike(o *Explanation) bool {
	return e.Verdict == o.Verdict && e.ResolvedPort == o.ResolvedPort && len(e.DependsOnName) == len(o.DependsOnName) &&
		sameSide(&e.Egress, &o.Egress) && sameSide(&e.Ingress, &o.Ingress)
}

// add appends a case, or counts its connections with those of one decided alike.
func (g *GroupExplanation) add(c GroupCase) {
	g.Connections += c.Connections
	for i := range g.Cases {
		if have := &g.Cases[i]; have.alike(&c) {
			have.Connections += c.Connections
			have.From, have.To = mergeNames(have.From, c.From), mergeNames(have.To, c.To)
			return
		}
	}
	g.Cases = append(g.Cases, c)
}

func mergeNames(a, b []string) []string {
	for _, n := range b {
		if !slices.Contains(a, n) && len(a) < caseNames {
			a = append(a, n)
		}
	}
	return a
}

// result is the explanation itself where there is one connection only.
func (g *GroupExplanation) result() (*Result, error) {
	if len(g.Cases) == 0 {
		return nil, fmt.Errorf("there is no connection from %s to %s", g.From, g.To)
	}
	if g.Connections == 1 && g.FromPods < 2 && g.ToPods < 2 {
		return &Result{One: g.Cases[0].Example, Service: g.Cases[0].Service}, nil
	}
	g.Verdict = g.Cases[0].verdict()
	g.Agree = g.Verdict != "" && !slices.ContainsFunc(g.Cases, func(c GroupCase) bool { return c.verdict() != g.Verdict })
	if !g.Agree {
		g.Verdict = ""
	}
	return &Result{Group: g}, nil
}

// explanations lists all that a result has.
func (r *Result) explanations() []*Explanation {
	var out []*Explanation
	service := func(s *ServiceExplanation) {
		for i := range s.Backends {
			out = append(out, &s.Backends[i])
		}
	}
	switch {
	case r.One != nil:
		out = append(out, r.One)
	case r.Service != nil:
		service(r.Service)
	case r.Group != nil:
		for i := range r.Group.Cases {
			if c := &r.Group.Cases[i]; c.Service != nil {
				service(c.Service)
			} else {
				out = append(out, c.Example)
			}
		}
	}
	return out
}

// markMadeUp notes which addresses are not those of any cluster.
func (r *Result) markMadeUp(inv *inventory.Snapshot) {
	madeUp := map[string]bool{}
	for i := range inv.Pods {
		if p := &inv.Pods[i]; p.MadeUpIPs {
			madeUp[p.Namespace+"/"+p.Name] = true
		}
	}
	for _, e := range r.explanations() {
		e.FromMadeUp, e.ToMadeUp = madeUp[e.From], madeUp[e.To]
	}
}

// WriteGroup prints an answer about several connections: what they come to, then each
// case with one connection explained.
func WriteGroup(w io.Writer, s cli.Style, g *GroupExplanation, full bool) error {
	g = cli.EscapeAll(g)
	var b strings.Builder
	verdict, summary := s.Verdict(g.Verdict), "all "+cli.Plural(g.Connections, "connection")
	if g.Connections == 1 {
		summary = "1 connection"
	}
	if !g.Agree {
		verdict = s.Yellow("mixed")
		count := map[string]int{}
		for i := range g.Cases {
			count[cmp.Or(g.Cases[i].verdict(), "undecided")] += g.Cases[i].Connections
		}
		var parts []string
		for _, v := range []string{"Allow", "Drop", "Reject", "undecided"} {
			if n := count[v]; n > 0 {
				parts = append(parts, fmt.Sprintf("%d %s", n, s.Verdict(v)))
			}
		}
		summary = strings.Join(parts, ", ")
	}
	fmt.Fprintf(&b, "%s  %s -> %s  port %s: %s\n", s.Bold(verdict), groupEnd(g.From, g.FromPods), groupEnd(g.To, g.ToPods), g.Port, summary)
	if _, err := io.WriteString(w, b.String()); err != nil {
		return err
	}
	for i := range g.Cases {
		c := &g.Cases[i]
		what := cli.Plural(c.Connections, "connection")
		if len(g.Cases) == 1 {
			what = "one of them"
		}
		if _, err := fmt.Fprintf(w, "\n%s: %s -> %s\n", what, caseEnds(c.From), caseEnds(c.To)); err != nil {
			return err
		}
		var err error
		if c.Service != nil {
			err = WriteServiceExplanation(w, s, c.Service, full)
		} else {
			err = WriteExplanation(w, s, c.Example, full)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func groupEnd(text string, pods int) string {
	if pods == 0 {
		return text
	}
	return text + " (" + cli.Plural(pods, "pod") + ")"
}

// caseEnds names the first ends of a case.
func caseEnds(names []string) string {
	const most = 4
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return strings.Join(names[:most], ", ") + ", …"
}
