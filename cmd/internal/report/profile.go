package report

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"go4.org/netipx"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/cmd/internal/changes"
	"github.com/tierwall/tierwall/cmd/internal/cli"
	"github.com/tierwall/tierwall/policy/assure"
)

// Profiles are the names of profiles.
var Profiles = []string{"pci", "cis"}

// Check refuses options that mean nothing together.
func (o *Options) Check() error {
	switch {
	case o.Profile != "" && !slices.Contains(Profiles, o.Profile):
		return fmt.Errorf("--profile %q: want %s", o.Profile, strings.Join(Profiles, " or "))
	case o.Profile == "pci" && len(o.InScope) == 0:
		return errors.New("--profile pci needs --in-scope: which pods have to be protected, such as ns:pci or ns:scope=cde")
	case o.Profile != "pci" && len(o.InScope)+len(o.OutOfScope) > 0:
		return errors.New("--in-scope and --out-of-scope belong to --profile pci")
	}
	return nil
}

// scope is what a profile separates.
type scope struct {
	in, out map[*rule.Endpoint]bool
	outside []netip.Prefix
	said    [2]Scope // in, out
}

// readScope reads selectors. Without one for what is out of scope, that is all
// that is not in scope: pods, and addresses outside.
func readScope(w *assure.World, opt *Options) (*scope, error) {
	if opt.Profile != "pci" {
		return nil, nil
	}
	s := &scope{in: map[*rule.Endpoint]bool{}, out: map[*rule.Endpoint]bool{}}
	for i, texts := range [][]string{opt.InScope, opt.OutOfScope} {
		flag := []string{"--in-scope", "--out-of-scope"}[i]
		s.said[i].Selectors = list(texts)
		for _, text := range texts {
			end, err := w.End(text, opt.Namespace)
			switch {
			case err != nil:
				return nil, fmt.Errorf("%s %s: %w", flag, text, err)
			case end.Service != nil:
				return nil, fmt.Errorf("%s %s: a Service is no scope: name its pods, by labels or by workload", flag, text)
			case i == 0 && len(end.Pods) == 0:
				return nil, fmt.Errorf("%s %s: addresses cannot be in scope: policies protect pods", flag, text)
			}
			for _, e := range end.Pods {
				if i == 0 {
					s.in[e] = true
				} else if s.out[e] = true; s.in[e] {
					return nil, fmt.Errorf("%s %s: pod %s is in scope, too", flag, text, assure.PodName(e))
				}
			}
			s.outside = append(s.outside, end.Outside...)
		}
	}
	if len(opt.OutOfScope) == 0 {
		s.said[1].Selectors = []string{"all that is not in scope"}
		s.outside = []netip.Prefix{allIPv4, allIPv6}
		for _, e := range w.Pods() {
			switch {
			case s.in[e]:
			case e.HostNetwork:
				s.said[1].LeftOut = append(s.said[1].LeftOut, assure.PodName(e))
			default:
				s.out[e] = true
			}
		}
	}
	for _, e := range w.Pods() {
		if s.in[e] {
			s.said[0].Pods = append(s.said[0].Pods, assure.PodName(e))
		}
		if s.out[e] {
			s.said[1].Pods = append(s.said[1].Pods, assure.PodName(e))
		}
	}
	s.said[1].Pods = list(s.said[1].Pods)
	for _, p := range s.outside {
		s.said[1].Outside = append(s.said[1].Outside, p.String())
	}
	return s, nil
}

// ends returns which pods of an end are out of scope, and which in scope; outside
// addresses may be out of scope.
func (s *scope) ends(e *assure.MatrixEnd) (out, in []*rule.Endpoint, outside bool) {
	for _, p := range e.Pods {
		if s.out[p] {
			out = append(out, p)
		}
		if s.in[p] {
			in = append(in, p)
		}
	}
	outside = slices.ContainsFunc(e.Outside, func(p netip.Prefix) bool {
		return slices.ContainsFunc(s.outside, p.Overlaps)
	})
	return out, in, outside
}

// pci lists every connection from out of scope into scope.
func (r *Report) pci(reach *assure.Matrix, s *scope) {
	p := &Profile{
		Name: "pci", Control: "PCI DSS 4.0.1, 11.4.5 and 11.4.6: segmentation isolates systems in scope",
		Why: []string{}, Connections: []Connection{}, InScope: &s.said[0], OutOfScope: &s.said[1],
		Method: []string{
			"Every pair of an end out of scope and a pod in scope was decided by the compiled policies: both address families, all protocols, ports and ICMP messages. Nothing was sampled; no packet was sent.",
			"Connections through a Service count by the pods they end at.",
			"This is evidence about the policies that were read. It is not a penetration test, and it holds on nodes that enforce the table with the hash above.",
			"A node always reaches its own pods, for the kubelet's probes: nodes that run pods in scope are in scope.",
		},
	}
	if len(p.OutOfScope.LeftOut) > 0 {
		p.Method = append(p.Method, fmt.Sprintf("%s on the host network count as part of their nodes, and were left out: name them with --out-of-scope to judge them.", cli.Plural(len(p.OutOfScope.LeftOut), "pod")))
	}
	for i := range reach.Ends {
		from := &reach.Ends[i]
		out, _, outside := s.ends(from)
		if len(out) == 0 && !outside {
			continue
		}
		for j := range reach.Ends {
			to := &reach.Ends[j]
			_, in, _ := s.ends(to)
			if len(in) == 0 {
				continue
			}
			a := reach.Answers[reach.Cells[from.Group][to.Group]]
			if from.HostNetwork && sameNode(out, in) {
				a = assure.Ranges{{Protocol: assure.Other, Decision: assure.Decision{Verdict: "Allow", Direction: flow.Ingress.String()}}}
			}
			p.Connections = append(p.Connections, connections(reach, partName(from, out), partName(to, in), a)...)
		}
	}
	if n := len(p.Connections); n > 0 {
		p.Why = append(p.Why, cli.Plural(n, "kind")+" of connections from out of scope into scope "+map[bool]string{true: "is", false: "are"}[n == 1]+" possible")
	}
	r.incomplete(p)
	r.Profile = p
}

// incomplete fails a profile if not all was read: what is not known may be open.
func (r *Report) incomplete(p *Profile) {
	for _, g := range r.Incomplete {
		p.Why = append(p.Why, "not everything was read ("+g.Resource+"): "+g.Means)
	}
	p.Pass = len(p.Why) == 0
}

func sameNode(a, b []*rule.Endpoint) bool {
	return slices.ContainsFunc(a, func(x *rule.Endpoint) bool {
		return slices.ContainsFunc(b, func(y *rule.Endpoint) bool { return x.Node == y.Node })
	})
}

// partName names an end, or the pods of it that are meant.
func partName(e *assure.MatrixEnd, pods []*rule.Endpoint) string {
	if len(e.Pods) == 0 {
		return outsideName(e)
	}
	if len(pods) == len(e.Pods) {
		return e.Workload
	}
	names := make([]string, len(pods))
	for i, p := range pods {
		names[i] = assure.PodName(p)
	}
	return some(names, 3)
}

// outsideName names prefixes by what they are, or by what is missing.
func outsideName(e *assure.MatrixEnd) string {
	var have, v4, v6 netipx.IPSetBuilder
	for _, p := range e.Outside {
		have.AddPrefix(p)
	}
	v4.AddPrefix(allIPv4)
	v6.AddPrefix(allIPv6)
	set, err := have.IPSet()
	if err != nil {
		return "outside"
	}
	var parts []string
	for i, b := range []*netipx.IPSetBuilder{&v4, &v6} {
		is4 := i == 0
		list := slices.DeleteFunc(slices.Clone(e.Outside), func(p netip.Prefix) bool { return p.Addr().Is4() != is4 })
		b.RemoveSet(set)
		missing, err := b.IPSet()
		family := []string{"IPv4", "IPv6"}[i]
		switch {
		case err != nil || len(list) == 0:
		case len(missing.Prefixes()) == 0:
			parts = append(parts, "all of "+family)
		case len(missing.Prefixes()) < len(list):
			parts = append(parts, family+" except "+prefixes(missing.Prefixes()))
		default:
			parts = append(parts, prefixes(list))
		}
	}
	return "outside " + strings.Join(parts, ", ")
}

var allIPv4, allIPv6 = netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")

func prefixes(list []netip.Prefix) string {
	texts := make([]string, len(list))
	for i, p := range list {
		texts[i] = p.String()
	}
	return some(texts, 3)
}

// some joins the first names of a list.
func some(names []string, most int) string {
	if len(names) > most+1 {
		return strings.Join(names[:most], ", ") + fmt.Sprintf(" and %d more", len(names)-most)
	}
	return strings.Join(names, ", ")
}

// connections returns what an answer allows, by what decides.
func connections(reach *assure.Matrix, from, to string, a assure.Ranges) []Connection {
	var out []Connection
	for i := range a {
		if !a[i].Allowed() {
			continue
		}
		at := slices.IndexFunc(out, func(c Connection) bool { return c.Why == a[i].Decision })
		if at < 0 {
			at = len(out)
			out = append(out, Connection{From: from, To: to, By: by(&a[i].Decision), Why: a[i].Decision})
		}
		out[at].Ranges = append(out[at].Ranges, a[i])
	}
	for i := range out {
		if out[i].Ranges[0].Family == 0 {
			out[i].Ports, out[i].By = "everything", "its own node always reaches a pod"
			out[i].Ranges = []assure.Range{}
			continue
		}
		out[i].Ports = portsText(reach, out[i].Ranges)
	}
	return out
}

func portsText(reach *assure.Matrix, ranges []assure.Range) string {
	sets := make([]changes.PortSet, len(ranges))
	for i := range ranges {
		sets[i] = changes.PortSet{Family: ranges[i].Family, Protocol: ranges[i].Protocol, Ports: ranges[i].Ports, SourcePorts: ranges[i].SourcePorts}
	}
	return changes.PortsText(sets, reach.Protocols)
}

func by(d *assure.Decision) string {
	if d.Policy == "" {
		return "no policy says anything"
	}
	return changes.By(d)
}

// cis says of every namespace whether it has policies.
func (r *Report) cis(w *assure.World, in *cli.Input) {
	p := &Profile{
		Name: "cis", Control: "CIS Kubernetes Benchmark 5.3.2: all namespaces have network policies",
		Why: []string{}, Connections: []Connection{}, Namespaces: []NamespaceCheck{},
		Method: []string{
			"A namespace passes with an enforced policy of its own, of any API, or with a cluster-wide one that selects its pods; where it has no pods, one that would select a pod without labels. Staged policies do not count, nor do policies with errors.",
			"The last column goes further than the benchmark: pods that are isolated in both directions, so that only what a policy allows passes.",
		},
	}
	selects := newSelection(&in.Set)
	pods := map[string][]*rule.Endpoint{}
	for _, e := range w.Pods() {
		pods[e.Namespace] = append(pods[e.Namespace], e)
	}
	for i := range in.Snapshot.Namespaces {
		ns := &in.Snapshot.Namespaces[i]
		c := NamespaceCheck{Namespace: ns.Name, Pods: len(pods[ns.Name]), Policies: []string{}, ClusterWide: []string{}, Staged: []string{}}
		about := pods[ns.Name]
		if len(about) == 0 {
			about = []*rule.Endpoint{{Namespace: ns.Name, NamespaceLabels: ns.Labels, ServiceAccount: "default"}}
		}
		for j := range r.Policies {
			one := &r.Policies[j]
			switch {
			case one.Namespace != "" && one.Namespace != ns.Name:
			case one.Stage != rule.Enforce.String():
				if one.Namespace != "" || slices.ContainsFunc(about, one.Selects) {
					c.Staged = append(c.Staged, one.Source)
				}
			case one.Namespace != "":
				c.Policies = append(c.Policies, one.Source)
			case slices.ContainsFunc(about, one.Selects):
				c.ClusterWide = append(c.ClusterWide, one.Source)
			}
		}
		for _, e := range pods[ns.Name] {
			if a := selects.of(e); len(a[flow.Egress].isolated) > 0 && len(a[flow.Ingress].isolated) > 0 {
				c.Isolated++
			}
		}
		if c.Pass = len(c.Policies)+len(c.ClusterWide) > 0; !c.Pass {
			p.Why = append(p.Why, "namespace "+ns.Name+" has no policy")
		}
		p.Namespaces = append(p.Namespaces, c)
	}
	if len(p.Namespaces) == 0 {
		p.Why = append(p.Why, "there are no namespaces")
	}
	r.incomplete(p)
	r.Profile = p
}
