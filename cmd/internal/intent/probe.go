package intent

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/cmd/internal/cli"
	"github.com/tierwall/tierwall/cmd/internal/world"
	"github.com/tierwall/tierwall/policy/assure"
)

// maxPorts bounds the ports of a protocol that a test is probed on: a longer range is
// probed where the policies' answer changes and on the ports that the world's pods name.
const maxPorts = 16

// Probes are tests with the connections to make for them in the demo's world.
type Probes struct {
	List []world.Probe // every connection once; its hosts are those of world.Plan

	runner *runner
	tests  []probedTest
	index  map[world.Probe]int
	hosts  []*world.Host
}

type probedTest struct {
	result  Result // what the policies say
	probes  []int  // in List
	notSent []string
}

// PlanProbes asks the policies about every test, as Run does, and lists the connections
// to make. A test for which none can be made is an error.
func PlanProbes(tests []Test, in *cli.Input, namespace string) (*Probes, error) {
	res, err := Run(tests, in, namespace)
	if err != nil {
		return nil, err
	}
	p := &Probes{runner: newRunner(in), index: map[world.Probe]int{}, hosts: world.Plan()}
	var errs []error
	for i := range tests {
		t := probedTest{result: res.Tests[i]}
		if err := p.plan(&tests[i], &t); err != nil {
			errs = append(errs, &Error{File: tests[i].File, Line: tests[i].Line, Message: err.Error()})
		}
		p.tests = append(p.tests, t)
	}
	return p, errors.Join(errs...)
}

func (p *Probes) plan(t *Test, out *probedTest) error {
	ports, err := assure.ParsePorts(t.Port)
	if err != nil {
		return err
	}
	var ends [2]assure.End
	var hosts [2][]probedHost
	for i, text := range []string{t.From, t.To} {
		if ends[i], err = p.runner.world.End(text, t.Namespace); err != nil {
			return err
		}
		var rest []string
		if hosts[i], rest, err = p.hostsOf(&ends[i]); err != nil {
			return fmt.Errorf("%s: %w", []string{"from", "to"}[i], err)
		}
		out.notSent = append(out.notSent, rest...)
	}
	cases, err := p.runner.world.Ask(ends[0], ends[1], ports)
	if err != nil {
		return err
	}
	for _, network := range world.Networks {
		proto := protoOf(network)
		if ports.Proto != flow.AnyProto && ports.Proto != proto {
			continue
		}
		if slices.ContainsFunc(cases, func(c assure.Case) bool { return c.SourcePorts != nil && of(&c, proto) }) {
			return fmt.Errorf("the policies' answer depends on the source port of %s, which --probe does not choose: test this without --probe", proto)
		}
		numbers, rest := numbersOf(ports, proto, cases)
		out.notSent = append(out.notSent, rest...)
		for _, from := range hosts[0] {
			for _, to := range hosts[1] {
				// A pod does not meet itself in a group, nor the host outside at all: as in Ask.
				if from.Host == to.Host && (from.pod == nil || len(hosts[0])+len(hosts[1]) > 2) {
					continue
				}
				p.pair(out, from, to, network, portsFor(ports, proto, to.pod, numbers))
			}
		}
	}
	if ports.Proto == flow.AnyProto {
		out.notSent = append(out.notSent, "protocols other than TCP and UDP")
	}
	if len(out.probes) == 0 {
		return fmt.Errorf("no connection of %s from %s to %s can be sent in the demo's world, which has TCP and UDP between %s", ports.Text, t.From, t.To, p.who())
	}
	return nil
}

// probedHost is a host of the world, with the families that an end means of it.
type probedHost struct {
	*world.Host
	pod      *rule.Endpoint // nil: the host outside
	families []int
}

// who names the hosts of the world.
func (p *Probes) who() string {
	last := p.hosts[len(p.hosts)-1]
	return fmt.Sprintf("the pods %s to %s and the host outside (%s, %s)", p.hosts[0].Name, p.hosts[len(p.hosts)-2].Name, last.Addr4, last.Addr6)
}

// hostsOf returns the hosts of an end, and which of its addresses no host has.
func (p *Probes) hostsOf(e *assure.End) (out []probedHost, notSent []string, err error) {
	if e.Service != nil {
		return nil, nil, fmt.Errorf("%s is a Service, and the demo's world has none: --probe connects %s", e.Text, p.who())
	}
	for _, pod := range e.Pods {
		i := slices.IndexFunc(p.hosts, func(h *world.Host) bool { return h.Name == assure.PodName(pod) })
		if i < 0 {
			return nil, nil, fmt.Errorf("%s is not in the demo's world: --probe connects %s", assure.PodName(pod), p.who())
		}
		h := probedHost{Host: p.hosts[i], pod: pod}
		for _, family := range []int{4, 6} {
			if slices.Contains(pod.Addrs, h.Addr(family)) {
				h.families = append(h.families, family)
			}
		}
		out = append(out, h)
	}
	outside := probedHost{Host: p.hosts[len(p.hosts)-1]}
	for _, family := range []int{4, 6} {
		a := outside.Addr(family)
		if slices.ContainsFunc(e.Outside, func(x netip.Prefix) bool { return x.Contains(a) }) {
			outside.families = append(outside.families, family)
		}
	}
	if len(outside.families) > 0 {
		out = append(out, outside)
	}
	for _, x := range e.Outside {
		if !x.IsSingleIP() {
			notSent = append(notSent, fmt.Sprintf("addresses of %s that no host of the demo's world has", x))
		}
	}
	if len(out) == 0 {
		return nil, nil, fmt.Errorf("no host of the demo's world has an address of %s: --probe connects %s", e.Text, p.who())
	}
	return out, notSent, nil
}

func protoOf(network string) flow.Proto {
	if network == "udp" {
		return flow.UDP
	}
	return flow.TCP
}

// of tells whether a case is about a protocol.
func of(c *assure.Case, proto flow.Proto) bool {
	return c.Protocol == proto.String() || c.Protocol == assure.Other
}

// numbersOf returns the ports to probe, and which ones of those asked are not among them.
func numbersOf(ports assure.Ports, proto flow.Proto, cases []assure.Case) (numbers []uint16, notSent []string) {
	if ports.Name != "" {
		return nil, nil // the pod says it
	}
	first, last := max(ports.First, 1), ports.Last
	if int(last)-int(first) < maxPorts {
		for n := int(first); n <= int(last); n++ {
			numbers = append(numbers, uint16(n))
		}
		return numbers, nil
	}
	for _, np := range world.Ports {
		numbers = append(numbers, np.Number)
	}
	for i := range cases {
		if of(&cases[i], proto) {
			numbers = append(numbers, cases[i].Ports[0], cases[i].Ports[1])
		}
	}
	numbers = slices.DeleteFunc(numbers, func(n uint16) bool { return n < first || n > last })
	seen := map[uint16]bool{}
	numbers = slices.DeleteFunc(numbers, func(n uint16) bool { was := seen[n]; seen[n] = true; return was })
	numbers = numbers[:min(len(numbers), maxPorts)]
	if len(numbers) == 0 {
		numbers = []uint16{first}
	}
	slices.Sort(numbers)
	return numbers, []string{fmt.Sprintf("%s ports %d-%d other than %s", proto, first, last, list(numbers))}
}

func list(numbers []uint16) string {
	var parts []string
	for _, n := range numbers {
		parts = append(parts, fmt.Sprint(n))
	}
	return strings.Join(parts, ", ")
}

// portsFor returns the ports to probe of a pod: those given, or the one it names.
func portsFor(ports assure.Ports, proto flow.Proto, pod *rule.Endpoint, numbers []uint16) []uint16 {
	if ports.Name == "" || pod == nil {
		return numbers
	}
	for _, np := range pod.Ports {
		if np.Name == ports.Name && np.Proto == proto {
			return []uint16{np.Port}
		}
	}
	return nil
}

func (p *Probes) pair(out *probedTest, from, to probedHost, network string, numbers []uint16) {
	for _, family := range from.families {
		if !slices.Contains(to.families, family) {
			continue
		}
		for _, n := range numbers {
			probe := world.Probe{From: from.Host, To: to.Host, Network: network, Port: n, Family: family}
			at, ok := p.index[probe]
			if !ok {
				at = len(p.List)
				p.index[probe] = at
				p.List = append(p.List, probe)
			}
			out.probes = append(out.probes, at)
		}
	}
}

// Judge compares what came through with what tests expect and with what the policies
// say; a test passes when all three agree. results are those of List.
func (p *Probes) Judge(results []world.Result, dataplane string) (*Results, error) {
	out := &Results{Tests: []Result{}, Dataplane: dataplane}
	var errs []error
	for i := range results {
		errs = append(errs, results[i].Broken)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("connections failed for reasons of their own: %w", err)
	}
	for i := range p.tests {
		r, err := p.judge(&p.tests[i], results)
		if err != nil {
			return nil, &Error{File: r.File, Line: r.Line, Message: err.Error()}
		}
		if r.OK {
			out.Passed++
		} else {
			out.Failed++
		}
		out.Tests = append(out.Tests, r)
	}
	return out, nil
}

func (p *Probes) judge(t *probedTest, results []world.Result) (Result, error) {
	r := t.result
	r.Probed, r.NotSent, r.Got = len(t.probes), t.notSent, ""
	why := ""
	for _, i := range t.probes {
		wire := wireWord(&results[i])
		switch r.Got {
		case "":
			r.Got = wire
		case wire:
		default:
			r.Got = "mixed"
		}
		if why != "" {
			continue
		}
		says := p.says(&p.List[i])
		switch {
		case !fits(r.Expect, wire):
			why = fmt.Sprintf("want %s, the wire shows %s", r.Expect, wire)
			if says != wire {
				why += ", the policies say " + says
			}
		case says != wire:
			why = fmt.Sprintf("the wire shows %s, the policies say %s", wire, says)
		}
		if why == "" {
			continue
		}
		c, err := p.ask(&p.List[i])
		if err != nil {
			return r, err
		}
		p.runner.show(&r, c)
		r.explanation = p.runner.explain(c)
	}
	switch {
	case why != "":
		r.OK, r.Why = false, why
	case !r.OK: // of a connection that was not made, or decided by another policy
		r.Why = fmt.Sprintf("the policies say: %s; the wire shows %s", r.Why, r.Got)
	}
	return r, nil
}

// wireWord is what happened to a connection in the words of tests.
func wireWord(r *world.Result) string {
	switch {
	case r.Passed:
		return "allow"
	case r.Silent():
		return "deny"
	}
	return "reject"
}

// says returns what the policies say of a connection.
func (p *Probes) says(c *world.Probe) string {
	d := p.runner.in.Table.Lookup(flow.Key{
		Src: flow.AddrFrom(c.From.Addr(c.Family)), Dst: flow.AddrFrom(c.To.Addr(c.Family)),
		Proto: protoOf(c.Network), SrcPort: assure.SourcePort, DstPort: c.Port,
	})
	return word(d.Verdict.String())
}

// ask asks the policies about a connection that was made.
func (p *Probes) ask(c *world.Probe) (*assure.Case, error) {
	var ends [2]assure.End
	for i, h := range []*world.Host{c.From, c.To} {
		var err error
		if ends[i], err = p.runner.world.End(h.Addr(c.Family).String(), ""); err != nil {
			return nil, err
		}
	}
	proto := protoOf(c.Network)
	cases, err := p.runner.world.Ask(ends[0], ends[1], assure.Ports{Text: fmt.Sprintf("%d/%s", c.Port, proto), Proto: proto, First: c.Port, Last: c.Port})
	if err != nil {
		return nil, err
	}
	return &cases[0], nil
}
