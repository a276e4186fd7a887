package query

import (
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/cmd/internal/cli"
	"github.com/tierwall/tierwall/policy/inventory"
)

// ServiceExplanation is the answer about a Service: one explanation per
// backend, since any of them may get the connection. Its JSON form is a
// contract.
type ServiceExplanation struct {
	From string `json:"from"`
	To   string `json:"to"`
	Port string `json:"port"`
	// Agree says that all backends have one verdict. It and what else they have in
	// common of the decision is here, too; Verdict is "" where they differ.
	Agree   bool   `json:"agree"`
	Verdict string `json:"verdict,omitempty"`
	Egress  *Side  `json:"egress,omitempty"`
	Ingress *Side  `json:"ingress,omitempty"`
	// Notes are about all backends.
	Notes    []string      `json:"notes,omitempty"`
	Backends []Explanation `json:"backends"`
}

// ResolveDestination is [Resolve] for where a connection to a port is opened to:
// what the Service proxy would translate is the Service, whichever of its addresses
// it is, a node's address with a node port included.
func ResolveDestination(t *classifier.Table, inv *inventory.Snapshot, s string, p Port) (Target, error) {
	to, err := Resolve(t, inv, s)
	if err != nil || to.Service != nil {
		return to, err
	}
	a, err := netip.ParseAddr(s)
	if err != nil || to.Pod != nil || !p.Proto.HasPorts() {
		return to, nil
	}
	a = a.Unmap().WithZone("")
	node := t.NodeOf(flow.AddrFrom(a)) != nil
	for i := range inv.Services {
		svc := &inv.Services[i]
		external := slices.Contains(svc.ExternalIPs, a)
		if external && findPort(svc, p) != nil || node && findNodePort(svc, p) != nil {
			found := serviceTarget(svc)
			found.At = a
			return found, nil
		}
		if external {
			to.Notes = append(to.Notes, fmt.Sprintf("%s is also an address of svc/%s/%s, but the Service proxy leaves this connection alone: svc/%s/%s has no port %s",
				a, svc.Namespace, svc.Name, svc.Namespace, svc.Name, p.Text))
		}
	}
	return to, nil
}

// findPort returns the port of a Service that a client asks for by number or name.
func findPort(s *inventory.Service, p Port) *inventory.ServicePort {
	i := slices.IndexFunc(s.Ports, func(sp inventory.ServicePort) bool {
		return sp.Proto == p.Proto.String() && (p.Name != "" && sp.Name == p.Name || p.Name == "" && sp.Port == p.Number)
	})
	if i < 0 {
		return nil
	}
	return &s.Ports[i]
}

func findNodePort(s *inventory.Service, p Port) *inventory.ServicePort {
	i := slices.IndexFunc(s.Ports, func(sp inventory.ServicePort) bool {
		return sp.NodePort != 0 && p.Name == "" && sp.NodePort == p.Number && sp.Proto == p.Proto.String()
	})
	if i < 0 {
		return nil
	}
	return &s.Ports[i]
}

// call is one connection to a Service.
type call struct {
	table  *classifier.Table
	inv    *inventory.Snapshot
	from   Target
	to     Target
	port   Port // as asked
	family Family

	sp *inventory.ServicePort // nil: headless, at any port
	// outer is set when the connection does not go to the ClusterIP: to an external
	// address, or to a node.
	outer bool
	// proxy is the node whose Service proxy translates the connection; "" where that
	// is not known.
	proxy string
	// home is the node of the client; "" when it is elsewhere, or not known.
	home string
}

// ExplainService explains a connection to a Service, backend by backend.
func ExplainService(t *classifier.Table, inv *inventory.Snapshot, from, to Target, p Port, family Family) (ServiceExplanation, error) {
	c := call{table: t, inv: inv, from: from, to: to, port: p, family: family}
	if err := c.translate(); err != nil {
		return ServiceExplanation{}, err
	}
	backends, err := c.backends()
	if err != nil {
		return ServiceExplanation{}, err
	}
	out := ServiceExplanation{From: from.Name, To: to.Name, Port: p.Text, Backends: []Explanation{}}
	if c.outer && c.proxy == "" && !to.Service.ExternalLocal {
		out.Notes = append(out.Notes, "a backend on another node than the one the connection arrives at sees that node's address instead of "+from.Name+"'s (externalTrafficPolicy: Cluster)")
	}
	for i := range backends {
		if e, ok := c.explain(&backends[i]); ok {
			out.Backends = append(out.Backends, e)
		}
	}
	if len(out.Backends) == 0 {
		return out, fmt.Errorf("no backend of %s has an address of a family %s has too", to.Name, from.Name)
	}
	out.agree()
	return out, nil
}

// agree fills in what the backends have in common.
func (s *ServiceExplanation) agree() {
	one := &s.Backends[0]
	s.Agree = !slices.ContainsFunc(s.Backends, func(e Explanation) bool { return e.Verdict != one.Verdict })
	if !s.Agree {
		return
	}
	s.Verdict = one.Verdict
	same := func(side func(*Explanation) *Side) *Side {
		if slices.ContainsFunc(s.Backends, func(e Explanation) bool { return !sameSide(side(&e), side(one)) }) {
			return nil
		}
		return side(one)
	}
	s.Egress = same(func(e *Explanation) *Side { return &e.Egress })
	s.Ingress = same(func(e *Explanation) *Side { return &e.Ingress })
}

func sameSide(a, b *Side) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Verdict == b.Verdict && a.Band == b.Band && a.Policy == b.Policy && a.Rule == b.Rule && a.Reason == b.Reason &&
		slices.Equal(a.Isolations, b.Isolations) && sameSide(a.Staged, b.Staged)
}

// translate finds the Service's port and who translates to it.
func (c *call) translate() error {
	svc := c.to.Service
	if !c.port.Proto.HasPorts() {
		return fmt.Errorf("%s: a Service forwards ports; %s has none", c.to.Name, c.port.Proto)
	}
	if c.from.Pod != nil {
		c.home = c.from.Pod.Node
	} else if n := c.table.NodeOf(flow.AddrFrom(c.from.Addrs[0])); n != nil {
		c.home = n.Name
	}
	c.sp, c.proxy = findPort(svc, c.port), c.home
	if c.to.At.IsValid() {
		if c.family == IPv4 && !c.to.At.Is4() || c.family == IPv6 && c.to.At.Is4() {
			return fmt.Errorf("%s is no IPv%d address", c.to.At, c.family)
		}
		c.family = IPv6
		if c.to.At.Is4() {
			c.family = IPv4
		}
		c.outer = !slices.Contains(svc.ClusterIPs, c.to.At)
		if n := c.table.NodeOf(flow.AddrFrom(c.to.At)); c.outer && n != nil && !(slices.Contains(svc.ExternalIPs, c.to.At) && c.sp != nil) {
			c.sp, c.proxy = findNodePort(svc, c.port), n.Name
		}
	}
	if c.sp != nil || svc.Headless && c.port.Name == "" && !c.outer {
		return nil
	}
	var declared []string
	for _, sp := range svc.Ports {
		text := sp.Text()
		if sp.Name != "" {
			text += " (" + sp.Name + ")"
		}
		declared = append(declared, text)
	}
	if len(declared) == 0 {
		return fmt.Errorf("%s has no ports", c.to.Name)
	}
	return fmt.Errorf("%s has no port %s; it has %s", c.to.Name, c.port.Text, strings.Join(declared, ", "))
}

// explain decides the connection to one backend. ok is false when the two have no
// address family in common: the proxy leads to backends of the connection's only.
func (c *call) explain(b *inventory.Backend) (e Explanation, ok bool) {
	family := c.family
	if ips := c.to.Service.ClusterIPs; family == AnyFamily && len(ips) > 0 {
		// The Service's first address is the one clients are told first.
		if family = IPv6; ips[0].Is4() {
			family = IPv4
		}
		if _, _, ok := family.pick(c.from.Addrs, b.Addrs); !ok {
			family = AnyFamily
		}
	}
	src, dst, ok := family.pick(c.from.Addrs, b.Addrs)
	if !ok {
		return e, false
	}
	via, port := flow.Service{}, c.portAt(b)
	if c.to.At.IsValid() {
		via = flow.Service{Addr: flow.AddrFrom(c.to.At), Port: c.sp.Port}
		if c.outer {
			via.Port = c.number()
		}
	} else if vip, ok := first(c.to.Service.ClusterIPs, src.Is4()); ok && c.sp != nil {
		via = flow.Service{Addr: flow.AddrFrom(vip), Port: c.sp.Port}
	}
	e = explain(c.table, c.from.Name, b.Name, src, dst, port, via)
	if c.outer && c.from.Pod != nil && c.home != "" && c.proxy != c.home {
		// Nothing on the client's node knows that the node's address is a Service's.
		asked := Port{Text: c.port.Text, Proto: c.port.Proto, Number: c.port.Number}
		egress := explain(c.table, c.from.Name, c.to.At.String(), src, c.to.At, asked, flow.Service{})
		e.Egress, e.Trace.Egress, e.Trace.EgressOthers = egress.Egress, egress.Trace.Egress, egress.Trace.EgressOthers
		e.Notes = append(e.Notes, fmt.Sprintf("leaves node %s as a connection to %s, which node %s translates: egress is judged by that address", c.home, c.to.At, c.proxy))
	}
	if seen, ok := c.masquerade(b, src.Is4()); ok {
		ingress := explain(c.table, seen.String(), b.Name, seen, dst, port, flow.Service{})
		e.Ingress, e.Trace.Ingress, e.Trace.IngressOthers = ingress.Ingress, ingress.Trace.Ingress, ingress.Trace.IngressOthers
		e.Notes = append(e.Notes, fmt.Sprintf("reaches node %s as from %s, the address of node %s, whose Service proxy masquerades it (externalTrafficPolicy: Cluster): ingress is judged by that address", b.Node, seen, c.proxy))
	}
	if e.Verdict = e.Egress.Verdict; e.Verdict == classifier.Allow.String() {
		e.Verdict = e.Ingress.Verdict
	}
	return e, true
}

// number is the port number the client uses.
func (c *call) number() uint16 {
	if c.port.Number != 0 {
		return c.port.Number
	}
	return c.sp.Port
}

// masquerade returns whose address a backend sees in the place of the client's. The
// node that translates masquerades behind the hooks that judge there, so it is only
// on another node that the address counts.
func (c *call) masquerade(b *inventory.Backend, is4 bool) (netip.Addr, bool) {
	if !c.outer || c.to.Service.ExternalLocal || c.proxy == "" || b.Node == "" || b.Node == c.proxy {
		return netip.Addr{}, false
	}
	nodes := c.table.World().Nodes
	i := slices.IndexFunc(nodes, func(n rule.Node) bool { return n.Name == c.proxy })
	if i < 0 {
		return netip.Addr{}, false
	}
	return first(nodes[i].Addrs, is4)
}

// WriteServiceExplanation prints the verdict over all backends, then each one.
func WriteServiceExplanation(w io.Writer, s cli.Style, e *ServiceExplanation, full bool) error {
	e = cli.EscapeAll(e)
	backends := fmt.Sprintf("%d backends", len(e.Backends))
	if len(e.Backends) == 1 {
		backends = "1 backend"
	}
	verdict := s.Verdict(e.Verdict)
	if !e.Agree {
		verdict = "mixed"
		count := map[string]int{}
		for i := range e.Backends {
			count[e.Backends[i].Verdict]++
		}
		var parts []string
		for _, v := range []classifier.Verdict{classifier.Allow, classifier.Drop, classifier.Reject} {
			if n := count[v.String()]; n > 0 {
				parts = append(parts, fmt.Sprintf("%d %s", n, s.Verdict(v.String())))
			}
		}
		backends += ": " + strings.Join(parts, ", ")
	}
	if _, err := fmt.Fprintf(w, "%s  %s -> %s  port %s, %s\n", s.Bold(verdict), e.From, e.To, e.Port, backends); err != nil {
		return err
	}
	for _, n := range e.Notes {
		if _, err := fmt.Fprintf(w, "  %s\n", n); err != nil {
			return err
		}
	}
	for i := range e.Backends {
		if _, err := io.WriteString(w, "\n"); err != nil {
			return err
		}
		if err := WriteExplanation(w, s, &e.Backends[i], full); err != nil {
			return err
		}
	}
	return nil
}
