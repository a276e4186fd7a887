package query

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/policy/assure"
	"github.com/tierwall/tierwall/policy/inventory"
)

// Question is what "explain" asks: one connection, or those between two groups of
// pods.
type Question struct {
	From, To  string // ends, see [assure.EndForms]
	Namespace string // of names without one; "": any
	Port      Port
	Family    Family
}

// Result is the answer to a Question. Exactly one of its fields is set.
type Result struct {
	One     *Explanation
	Service *ServiceExplanation
	// Group is set when an end is several pods, or addresses that are not decided alike.
	Group *GroupExplanation
}

// GroupExplanation is the answer about several connections. Its JSON form is a
// contract.
type GroupExplanation struct {
	From string `json:"from"`
	To   string `json:"to"`
	Port string `json:"port"`
	// Agree says that all connections have one verdict, which is Verdict then.
	Agree   bool   `json:"agree"`
	Verdict string `json:"verdict,omitempty"`
	// FromPods and ToPods are how many pods the ends are; 0: no pods.
	FromPods int `json:"fromPods,omitempty"`
	ToPods   int `json:"toPods,omitempty"`
	// Connections is how many pairs of ends were asked about.
	Connections int         `json:"connections"`
	Cases       []GroupCase `json:"cases"`
}

// GroupCase stands for connections that are decided alike by the same rules.
type GroupCase struct {
	Connections int      `json:"connections"`
	From        []string `json:"from"` // the ends, at most caseNames of them
	To          []string `json:"to"`
	// One of the two explains the first of these connections.
	Example *Explanation        `json:"example,omitempty"`
	Service *ServiceExplanation `json:"service,omitempty"`
}

// caseNames is how many ends a case names.
const caseNames = 10

// asked is one end of a question, resolved.
type asked struct {
	text    string
	targets []Target
	outside *assure.End // a prefix of outside addresses; targets is then empty
	name    string      // a DNS name outside; targets is then empty
}

// Answer answers a question. The table is that of the snapshot.
func (q *Question) Answer(t *classifier.Table, inv *inventory.Snapshot) (*Result, error) {
	w := assure.NewWorld(inv, t)
	from, err := q.resolve(w, q.From, false)
	if err != nil {
		return nil, err
	}
	to, err := q.resolve(w, q.To, true)
	if err != nil {
		return nil, err
	}
	if err := CheckPort(t.World().Endpoints, q.Port); err != nil && (len(to.targets) == 0 || to.targets[0].Service == nil) {
		return nil, err
	}
	a := answering{Question: q, table: t, inv: inv, world: w}
	var r *Result
	switch {
	case from.outside != nil || to.outside != nil:
		r, err = a.prefixes(from, to)
	case to.name != "":
		r, err = a.named(from, to)
	case len(from.targets) == 1 && len(to.targets) == 1:
		r, err = a.one(from.targets[0], to.targets[0])
	default:
		r, err = a.group(from, to)
	}
	if err == nil {
		r.markMadeUp(inv)
	}
	return r, err
}

// resolve reads an end.
func (q *Question) resolve(w *assure.World, text string, destination bool) (*asked, error) {
	s := &asked{text: text}
	if _, err := netip.ParseAddr(text); err == nil {
		one, err := q.address(w, text, destination)
		s.targets = []Target{one}
		return s, err
	}
	e, err := w.End(text, q.Namespace)
	switch {
	case err != nil && destination && domainName(text) && !inCluster(text):
		s.name = text
		return s, nil
	case err != nil:
		return nil, err
	case e.Service != nil && !destination:
		return nil, fmt.Errorf("%s is a Service: connections come from pods and addresses", text)
	case e.Service != nil:
		s.targets = []Target{serviceTarget(e.Service)}
	case len(e.Outside) == 1 && e.Outside[0].IsSingleIP():
		one, err := q.address(w, e.Outside[0].Addr().String(), destination)
		s.targets = []Target{one}
		return s, err
	case len(e.Outside) > 0:
		s.outside = &e
	}
	for _, p := range e.Pods {
		s.targets = append(s.targets, Target{Name: PodName(p), Addrs: p.Addrs, Pod: p})
	}
	return s, nil
}

func (q *Question) address(w *assure.World, text string, destination bool) (Target, error) {
	if destination {
		return ResolveDestination(w.Table, w.Snapshot, text, q.Port)
	}
	one, err := Resolve(w.Table, w.Snapshot, text)
	if err == nil && one.Service != nil {
		err = fmt.Errorf("%s is a Service: connections come from pods and addresses", text)
	}
	return one, err
}

// inCluster reports whether a DNS name is one of the cluster's own.
func inCluster(name string) bool {
	name = strings.TrimSuffix(strings.ToLower(name), ".")
	return strings.HasSuffix(name, ".svc") || strings.Contains(name, ".svc.") || strings.HasSuffix(name, ".cluster.local")
}

// answering is a Question with what it is asked of.
type answering struct {
	*Question
	table *classifier.Table
	inv   *inventory.Snapshot
	world *assure.World
}

func (a *answering) one(from, to Target) (*Result, error) {
	if to.Service != nil {
		e, err := ExplainService(a.table, a.inv, from, to, a.Port, a.Family)
		return &Result{Service: &e}, err
	}
	e, err := Explain(a.table, from, to, a.Port, a.Family)
	if err != nil {
		return nil, err
	}
	if to.Pod == nil {
		if dst, err := netip.ParseAddr(e.ToIP); err == nil {
			if err := dependsOnName(a.table, &e, from, dst, a.Port); err != nil {
				return nil, err
			}
		}
	}
	return &Result{One: &e}, nil
}

// named answers about a DNS name outside the cluster.
func (a *answering) named(from, to *asked) (*Result, error) {
	if a.Port.Name != "" {
		return nil, fmt.Errorf("port %s: %s is outside the cluster, where ports have no names: ask about a number", a.Port.Text, to.name)
	}
	g := a.newGroup(from, to)
	for _, class := range a.classes(from.targets, false) {
		list, err := explainName(a.table, a.inv, class.pods[0], to.name, a.Port, a.Family)
		if err != nil {
			return nil, err
		}
		for i := range list {
			dst := []string{to.name}
			if len(list) > 1 {
				dst = list[i].outside
			}
			g.add(GroupCase{Connections: len(class.pods), From: class.names(), To: dst, Example: &list[i]})
		}
	}
	return g.result()
}

// prefixes answers about outside addresses that have no single address.
func (a *answering) prefixes(from, to *asked) (*Result, error) {
	ports := assure.Ports{Text: a.Port.Text, Proto: a.Port.Proto, First: a.Port.Number, Last: a.Port.Number, Name: a.Port.Name}
	if !a.Port.Proto.HasPorts() {
		ports.First, ports.Last = 0, 0
		if a.Port.Proto == flow.ICMP || a.Port.Proto == flow.ICMPv6 {
			k := a.Port.key(flow.AddrFrom(netip.IPv4Unspecified()), flow.AddrFrom(netip.IPv4Unspecified()), 0)
			ports.First, ports.Last = k.DstPort, k.DstPort
		}
	}
	ends := make([]assure.End, 2)
	for i, text := range []string{a.From, a.To} {
		var err error
		if ends[i], err = a.world.End(text, a.Namespace); err != nil {
			return nil, err
		}
	}
	cases, err := a.world.Ask(ends[0], ends[1], ports)
	if err != nil {
		return nil, err
	}
	g := a.newGroup(from, to)
	for i := range cases {
		c := &cases[i]
		if a.Family == IPv4 && c.Family != 4 || a.Family == IPv6 && c.Family != 6 {
			continue
		}
		src, dst := c.Packet.Src.Netip(), c.Packet.Dst.Netip()
		e := ExplainVia(a.table, c.From, c.To, src, dst, a.Port, c.Via)
		client := Target{Name: c.From, Addrs: []netip.Addr{src}, Pod: a.table.Endpoint(c.Packet.Src)}
		if err := dependsOnName(a.table, &e, client, dst, a.Port); err != nil {
			return nil, err
		}
		if to.outside != nil {
			e.ToIP = c.To // it stands for all of them
		}
		if from.outside != nil {
			e.FromIP = c.From
		}
		g.add(GroupCase{Connections: 1, From: []string{c.From}, To: []string{c.To}, Example: &e})
	}
	return g.result()
}

// group answers about several pods on one side or both.
func (a *answering) group(from, to *asked) (*Result, error) {
	g := a.newGroup(from, to)
	service := to.targets[0].Service != nil
	sources := a.classes(from.targets, service || hostNetwork(to.targets))
	if service {
		for _, s := range sources {
			e, err := ExplainService(a.table, a.inv, s.pods[0], to.targets[0], a.Port, a.Family)
			if err != nil {
				return nil, err
			}
			g.add(GroupCase{Connections: len(s.pods), From: s.names(), To: []string{to.text}, Service: &e})
		}
		return g.result()
	}
	var failed error
	for _, s := range sources {
		for _, d := range a.classes(to.targets, hostNetwork(from.targets)) {
			src, dst, pairs := s.pair(d)
			if pairs == 0 {
				continue // one pod, which always reaches itself
			}
			r, err := a.one(src, dst)
			if err != nil {
				failed = err
				continue
			}
			g.add(GroupCase{Connections: pairs, From: s.names(), To: d.names(), Example: r.One})
		}
	}
	if len(g.Cases) == 0 && failed == nil {
		failed = errors.New(a.From + " and " + a.To + " are one pod, which always reaches itself: name the pod to ask about that")
	}
	if len(g.Cases) == 0 {
		return nil, failed
	}
	return g.result()
}
