package intent

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/cmd/internal/cli"
	"github.com/tierwall/tierwall/cmd/internal/query"
	"github.com/tierwall/tierwall/policy/assure"
)

// Claim is what a claim came to. Its JSON form is a contract.
type Claim struct {
	File   string `json:"file"`
	Line   int    `json:"line"`
	Name   string `json:"name"`
	From   string `json:"from"`
	To     string `json:"to"`
	Port   string `json:"port"`
	Expect string `json:"expect"`
	Answer string `json:"answer"`        // proved, refuted or undecided
	Why    string `json:"why,omitempty"` // of one that is undecided
	// Covers counts kinds of pods and addresses that policies cannot tell apart.
	Covers assure.Cover `json:"covers"`
	// Assumes says what the answer takes as given.
	Assumes []string `json:"assumes"`
	Witness *Witness `json:"witness,omitempty"` // of one that is refuted
}

// Witness is a connection that refutes a claim.
type Witness struct {
	From   WitnessEnd `json:"from"`
	To     WitnessEnd `json:"to"`
	Packet Packet     `json:"packet"`
	// Service and Via are there if the connection is opened to a Service.
	Service    string   `json:"service,omitempty"`
	Via        string   `json:"via,omitempty"`
	Verdict    string   `json:"verdict"`
	Policy     string   `json:"policy"`
	Rule       string   `json:"rule"`
	Isolations []string `json:"isolations,omitempty"`
	Names      []string `json:"names,omitempty"`    // what DNS has to say
	Policies   []string `json:"policies,omitempty"` // what NetworkPolicies have to come
	// Manifest has the pods, namespaces and NetworkPolicies that are not there.
	Manifest    string             `json:"manifest,omitempty"`
	Explanation *query.Explanation `json:"explanation,omitempty"`
}

// WitnessEnd is a pod as it could be, or an address.
type WitnessEnd struct {
	Name            string            `json:"name"`
	Address         string            `json:"address"`
	Namespace       string            `json:"namespace,omitempty"`
	NamespaceLabels map[string]string `json:"namespaceLabels,omitzero"`
	Labels          map[string]string `json:"labels,omitzero"`
	ServiceAccount  string            `json:"serviceAccount,omitempty"`
	Ports           []WitnessPort     `json:"ports,omitempty"`
	Node            string            `json:"node,omitempty"`
	// Exists: there is such a pod; it has other labels now if Relabelled is set.
	Exists     bool `json:"exists"`
	Relabelled bool `json:"relabelled,omitempty"`
	// NewNamespace: there is no namespace of the name; RelabelledNamespace: it has
	// other labels now.
	NewNamespace        bool `json:"newNamespace,omitempty"`
	RelabelledNamespace bool `json:"relabelledNamespace,omitempty"`
	HostNetwork         bool `json:"hostNetwork,omitempty"`
}

// WitnessPort is a named port.
type WitnessPort struct {
	Name     string `json:"name"`
	Protocol string `json:"protocol"`
	Port     uint16 `json:"port"`
}

// Packet is the first one of the connection.
type Packet struct {
	Family     int    `json:"family"`
	Protocol   string `json:"protocol"`
	Port       uint16 `json:"port"` // of ICMP type<<8|code
	SourcePort uint16 `json:"sourcePort,omitempty"`
	Text       string `json:"text"`
}

// Claims are all of them. The JSON form is a contract.
type Claims struct {
	Claims    []Claim `json:"claims"`
	Proved    int     `json:"proved"`
	Refuted   int     `json:"refuted"`
	Undecided int     `json:"undecided"`
}

// ForProof returns the tests that say forever; of files in which none does, all.
func ForProof(tests []Test) []Test {
	says := map[string]bool{}
	for i := range tests {
		says[tests[i].File] = says[tests[i].File] || tests[i].Forever
	}
	var out []Test
	for i := range tests {
		if t := tests[i]; t.Forever || !says[t.File] {
			out = append(out, t)
		}
	}
	return out
}

// Prove decides every claim. An end that means nothing, a port that cannot be, a
// policy that does not exist are errors with file and line, and there is no answer.
// progress is called before every claim.
func Prove(tests []Test, in *cli.Input, namespace string, limit int, progress func(done int)) (*Claims, error) {
	r := newRunner(in)
	out := &Claims{Claims: []Claim{}}
	var errs []error
	for i := range tests {
		t := &tests[i]
		progress(i)
		if t.Namespace == "" {
			t.Namespace = namespace
		}
		c, err := r.prove(t, limit)
		if err != nil {
			errs = append(errs, &Error{File: t.File, Line: t.Line, Message: err.Error()})
			continue
		}
		switch c.Answer {
		case assure.Proved:
			out.Proved++
		case assure.Refuted:
			out.Refuted++
		default:
			out.Undecided++
		}
		out.Claims = append(out.Claims, c)
	}
	progress(len(tests))
	return out, errors.Join(errs...)
}

func (r *runner) prove(t *Test, limit int) (Claim, error) {
	out := Claim{File: t.File, Line: t.Line, Name: t.Name, From: t.From, To: t.To, Port: t.Port, Expect: t.Expect}
	ports, err := assure.ParsePorts(t.Port)
	if err != nil {
		return out, err
	}
	if err := r.known(t.By); err != nil {
		return out, err
	}
	c := assure.Claim{From: t.From, To: t.To, Namespace: t.Namespace, Ports: ports, Expect: t.Expect}
	if t.By != "" {
		c.By = func(ref string) bool { return matches(ref, t.By) }
	}
	if t.Rights != nil {
		c.Rights = *t.Rights
	}
	ans, err := r.world.Prove(&c, limit)
	if err != nil {
		return out, err
	}
	out.Answer, out.Why, out.Covers, out.Assumes = ans.Answer, ans.Why, ans.Covers, ans.Assumes
	if ans.Witness != nil {
		out.Witness = r.witness(ans.Witness)
	}
	return out, nil
}

func (r *runner) witness(w *assure.Witness) *Witness {
	out := &Witness{
		From: witnessEnd(&w.From), To: witnessEnd(&w.To), Verdict: w.Decision.Verdict, Policy: w.Decision.Policy, Rule: w.Decision.Rule,
		Isolations: w.Decision.Isolations.List(), Names: w.Names, Policies: w.Policies, Service: w.Service, Via: w.Via.String(),
	}
	k := w.Packet
	out.Packet = Packet{Family: 6, Protocol: w.Protocol, Port: k.DstPort, SourcePort: k.SrcPort}
	if k.Src.Is4() {
		out.Packet.Family = 4
	}
	p := query.Port{Proto: k.Proto, Number: k.DstPort}
	switch {
	case k.Proto == flow.ICMP || k.Proto == flow.ICMPv6:
		out.Packet.Text = fmt.Sprintf("%s type %d code %d", w.Protocol, k.DstPort>>8, k.DstPort&0xff)
		p.Text, p.Number, p.HasType, p.Type, p.Code = "0/"+w.Protocol, 0, true, uint8(k.DstPort>>8), uint8(k.DstPort)
	case k.Proto.HasPorts():
		out.Packet.Text = strconv.Itoa(int(k.DstPort)) + "/" + w.Protocol
		p.Text = out.Packet.Text
		if k.SrcPort != assure.SourcePort {
			out.Packet.Text += fmt.Sprintf(" from port %d", k.SrcPort)
		}
	default:
		out.Packet.Text = fmt.Sprintf("protocol %d", k.Proto)
		p.Text = fmt.Sprintf("0/%d", k.Proto)
	}
	src, dst := k.Src.Netip(), k.Dst.Netip()
	if e := query.ExplainVia(w.Table, w.From.Name, w.To.Name, src, dst, p, w.Via); e.Verdict == out.Verdict {
		out.Explanation = &e
	}
	out.Manifest = manifest(w)
	return out
}

func witnessEnd(e *assure.WitnessEnd) WitnessEnd {
	out := WitnessEnd{
		Name: e.Name, Address: e.Addr.String(), Exists: e.Exists, Relabelled: e.Relabelled, NewNamespace: e.NewNamespace,
		RelabelledNamespace: e.LabelsNamespace, HostNetwork: e.HostNetwork, Node: e.Node,
	}
	p := e.Pod
	if p == nil {
		p = e.Host
	}
	if p != nil {
		out.Namespace, out.NamespaceLabels, out.Labels, out.ServiceAccount, out.Node = p.Namespace, p.NamespaceLabels, p.Labels, p.ServiceAccount, p.Node
		if out.Labels == nil {
			out.Labels = map[string]string{}
		}
		for _, n := range p.Ports {
			out.Ports = append(out.Ports, WitnessPort{n.Name, n.Proto.String(), n.Port})
		}
	}
	return out
}
