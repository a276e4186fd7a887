package intent

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/cmd/internal/changes"
	"github.com/tierwall/tierwall/cmd/internal/cli"
	"github.com/tierwall/tierwall/cmd/internal/query"
	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/assure"
)

// Result is what a test came to. Its JSON form is a contract.
type Result struct {
	File   string `json:"file"`
	Line   int    `json:"line"`
	Name   string `json:"name"`
	From   string `json:"from"`
	To     string `json:"to"`
	Port   string `json:"port"`
	Expect string `json:"expect"`
	Got    string `json:"got"` // allow, deny, reject, or mixed
	OK     bool   `json:"ok"`
	// Policy and Rule decide the connection below, "" where no policy does.
	Policy string `json:"policy"`
	Rule   string `json:"rule"`
	// Isolations are all policies that isolate, where no rule decides; Policy is the
	// first of them.
	Isolations []string `json:"isolations,omitempty"`
	// Connection is the first one that is not as expected; of a test that passes,
	// any.
	Connection string `json:"connection"`
	Why        string `json:"why,omitempty"` // of a test that fails
	// Probed is how many connections were made for the test, NotSent which of those
	// that it asks about were not: Got is then what the wire showed.
	Probed  int      `json:"probed,omitempty"`
	NotSent []string `json:"notSent,omitempty"`
	// PolicyFile and PolicyLine are where the policy's rule is written, if in a file.
	PolicyFile string `json:"policyFile,omitempty"`
	PolicyLine int    `json:"policyLine,omitempty"`

	explanation *query.Explanation
}

// Results are those of all tests. The JSON form is a contract.
type Results struct {
	Tests  []Result `json:"tests"`
	Passed int      `json:"passed"`
	Failed int      `json:"failed"`
	// Dataplane is what the packets of probes went through.
	Dataplane string `json:"dataplane,omitempty"`
}

// Run asks about every test. An end that means nothing, a port that cannot be, a
// policy that does not exist are errors with file and line, and there is no result.
func Run(tests []Test, in *cli.Input, namespace string) (*Results, error) {
	r := newRunner(in)
	out := &Results{Tests: []Result{}}
	var errs []error
	for i := range tests {
		t := &tests[i]
		if t.Namespace == "" {
			t.Namespace = namespace
		}
		res, err := r.test(t)
		if err != nil {
			errs = append(errs, &Error{File: t.File, Line: t.Line, Message: err.Error()})
			continue
		}
		if res.OK {
			out.Passed++
		} else {
			out.Failed++
		}
		out.Tests = append(out.Tests, res)
	}
	return out, errors.Join(errs...)
}

type runner struct {
	world   *assure.World
	in      *cli.Input
	objects map[string]*api.Object
}

func newRunner(in *cli.Input) *runner {
	r := &runner{world: assure.NewWorld(in.Snapshot, in.Table), in: in, objects: map[string]*api.Object{}}
	for _, o := range in.Objects {
		r.objects[refOf(o)] = o
	}
	return r
}

// refOf is rule.Origin.Ref of an object.
func refOf(o *api.Object) string {
	return strings.ToLower(o.Kind.Kind) + "." + o.Kind.Group + "/" + o.Namespace + "/" + o.Name
}

func (r *runner) test(t *Test) (Result, error) {
	res := Result{File: t.File, Line: t.Line, Name: t.Name, From: t.From, To: t.To, Port: t.Port, Expect: t.Expect}
	from, err := r.world.End(t.From, t.Namespace)
	if err != nil {
		return res, fmt.Errorf("from: %w", err)
	}
	to, err := r.world.End(t.To, t.Namespace)
	if err != nil {
		return res, fmt.Errorf("to: %w", err)
	}
	ports, err := assure.ParsePorts(t.Port)
	if err != nil {
		return res, err
	}
	if err := r.known(t.By); err != nil {
		return res, err
	}
	cases, err := r.world.Ask(from, to, ports)
	if err != nil {
		return res, err
	}
	res.Got = word(cases[0].Decision.Verdict)
	shown, why := &cases[0], ""
	for i := range cases {
		c := &cases[i]
		if word(c.Decision.Verdict) != res.Got {
			res.Got = "mixed"
		}
		if why != "" {
			continue
		}
		switch by := r.world.Deciders(c); {
		case !fits(t.Expect, word(c.Decision.Verdict)):
			shown, why = c, fmt.Sprintf("want %s, got %s", t.Expect, word(c.Decision.Verdict))
		case t.By != "" && !slices.ContainsFunc(by, func(ref string) bool { return matches(ref, t.By) }):
			who := "no policy"
			if len(by) > 0 {
				who = strings.Join(by, " and ")
			}
			shown, why = c, fmt.Sprintf("want it decided by %s, got %s", t.By, who)
		}
	}
	res.OK, res.Why = why == "", why
	r.show(&res, shown)
	if !res.OK {
		res.explanation = r.explain(shown)
	}
	return res, nil
}

// show makes a case the one that a result tells about.
func (r *runner) show(res *Result, c *assure.Case) {
	res.Policy, res.Rule = c.Decision.Policy, c.Decision.Rule
	res.Isolations = c.Decision.Isolations.List()
	res.Connection = connection(c)
	res.PolicyFile, res.PolicyLine = r.place(&c.Decision)
}

// word is a verdict in the words of tests.
func word(verdict string) string {
	switch verdict {
	case classifier.Allow.String():
		return "allow"
	case classifier.Reject.String():
		return "reject"
	}
	return "deny"
}

func fits(expect, got string) bool {
	return got == expect || expect == "deny" && got == "reject"
}

func connection(c *assure.Case) string {
	ports := ""
	if c.Ports[0] == c.Ports[1] {
		ports = fmt.Sprintf(" %d", c.Ports[0])
	} else {
		ports = fmt.Sprintf(" %d-%d", c.Ports[0], c.Ports[1])
	}
	switch {
	case c.Protocol == "ICMP" || c.Protocol == "ICMPv6":
		ports = fmt.Sprintf(" type %d code %d", c.Ports[0]>>8, c.Ports[0]&0xff)
		if c.Ports[0] != c.Ports[1] {
			ports = fmt.Sprintf(" type %d to %d", c.Ports[0]>>8, c.Ports[1]>>8)
		}
	case c.Ports == [2]uint16{}:
		ports = ""
	}
	s := fmt.Sprintf("%s → %s %s%s", c.From, c.To, c.Protocol, ports)
	if c.SourcePorts != nil {
		s += fmt.Sprintf(" from port %d-%d", c.SourcePorts[0], c.SourcePorts[1])
	}
	if c.Family == 6 {
		s += " (IPv6)"
	}
	return s
}

// known wants a policy that exists.
func (r *runner) known(by string) error {
	if by == "" {
		return nil
	}
	var names []string
	for ref := range r.objects {
		if matches(ref, by) {
			return nil
		}
		names = append(names, changes.PolicyName(ref))
	}
	slices.Sort(names)
	more := ""
	if len(names) > 10 {
		names, more = names[:10], fmt.Sprintf(" and %d more", len(names)-10)
	}
	return fmt.Errorf("by: no policy %s; there is %s%s", by, strings.Join(names, ", "), more)
}

// matches compares a policy with what a test calls it: KIND.GROUP/NAMESPACE/NAME as
// answers have it, KIND/NAMESPACE/NAME, NAMESPACE/NAME, KIND/NAME or NAME.
func matches(ref, by string) bool {
	full := strings.Split(ref, "/") // kind.group, namespace, name
	kind, _, _ := strings.Cut(full[0], ".")
	parts := strings.Split(by, "/")
	isKind := func(s string) bool { s = strings.ToLower(s); return s == kind || s == full[0] }
	switch len(parts) {
	case 1:
		return parts[0] == full[2]
	case 2:
		return parts[1] == full[2] && (parts[0] == full[1] || full[1] == "" && isKind(parts[0]))
	case 3:
		return parts[2] == full[2] && parts[1] == full[1] && isKind(parts[0])
	}
	return false
}

// place returns where the rule that decides is written.
func (r *runner) place(d *assure.Decision) (string, int) {
	o := r.objects[d.Policy]
	if o == nil {
		return "", 0
	}
	path := "spec"
	if d.Rule != "" {
		path = rulePath(o, d)
	}
	file := o.Finding(path, "", "").File
	if i := strings.LastIndexByte(file, ':'); i >= 0 {
		if line, err := strconv.Atoi(file[i+1:]); err == nil {
			return file[:i], line
		}
	}
	return file, 1
}

// rulePath finds the field of a rule: by its place, or by the name it has.
func rulePath(o *api.Object, d *assure.Decision) string {
	if strings.HasPrefix(d.Rule, d.Direction+"[") {
		return "spec." + d.Rule
	}
	spec, _ := o.Raw["spec"].(map[string]any)
	list, _ := spec[d.Direction].([]any)
	for i, item := range list {
		if rule, _ := item.(map[string]any); rule["name"] == d.Rule {
			return fmt.Sprintf("spec.%s[%d]", d.Direction, i)
		}
	}
	return "spec"
}

// explain tells the way to a decision.
func (r *runner) explain(c *assure.Case) *query.Explanation {
	src, dst := c.Packet.Src.Netip(), c.Packet.Dst.Netip()
	p := query.Port{Proto: c.Packet.Proto, Number: c.Packet.DstPort}
	p.Text = strconv.Itoa(int(p.Number)) + "/" + c.Protocol
	if c.Protocol == "ICMP" || c.Protocol == "ICMPv6" {
		p.Number, p.Text, p.HasType = 0, "0/"+c.Protocol, true
		p.Type, p.Code = uint8(c.Packet.DstPort>>8), uint8(c.Packet.DstPort)
	}
	e, err := query.Explain(r.in.Table, query.Target{Name: c.From, Addrs: []netip.Addr{src}}, query.Target{Name: c.To, Addrs: []netip.Addr{dst}}, p, query.AnyFamily)
	if err != nil {
		return nil // no more than a story is missing
	}
	return &e
}
