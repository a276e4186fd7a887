package workload

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
)

// WriteManifests writes the cluster as manifests to a directory: nodes,
// namespaces, pods and policies, one file each. The directory is made if need be;
// files of these names are overwritten. What the domain names of policies resolve
// to cannot be written down: DNS tells it.
func (c *Cluster) WriteManifests(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("write manifests: %w", err)
	}
	for name, write := range map[string]func(*yaml){
		"nodes.yaml": c.writeNodes, "namespaces.yaml": c.writeNamespaces, "pods.yaml": c.writePods, "policies.yaml": c.writePolicies,
	} {
		if err := writeFile(filepath.Join(dir, name), write); err != nil {
			return fmt.Errorf("write manifests: %w", err)
		}
	}
	return nil
}

// WritePolicies writes what policies.yaml of [Cluster.WriteManifests] holds: one
// document a policy.
func (c *Cluster) WritePolicies(w io.Writer) error {
	buf := bufio.NewWriter(w)
	c.writePolicies(&yaml{w: buf})
	return buf.Flush()
}

func writeFile(path string, write func(*yaml)) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	buf := bufio.NewWriter(f)
	write(&yaml{w: buf})
	if err := buf.Flush(); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

// yaml writes documents line by line. All strings are quoted, so nothing reads as
// a number or a boolean by accident.
type yaml struct {
	w    io.Writer // a bufio.Writer, which keeps the first error
	docs int
}

func (y *yaml) doc(apiVersion, kind, namespace, name string, labels map[string]string) {
	if y.docs++; y.docs > 1 {
		fmt.Fprintln(y.w, "---")
	}
	fmt.Fprintf(y.w, "apiVersion: %s\nkind: %s\nmetadata:\n  name: %q\n", apiVersion, kind, name)
	if namespace != "" {
		fmt.Fprintf(y.w, "  namespace: %q\n", namespace)
	}
	if len(labels) > 0 {
		fmt.Fprintf(y.w, "  labels: {%s}\n", pairs(labels))
	}
}

func (y *yaml) line(format string, args ...any) { fmt.Fprintf(y.w, format+"\n", args...) }

func pairs(m map[string]string) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, strconv.Quote(k)+": "+strconv.Quote(m[k]))
	}
	return strings.Join(parts, ", ")
}

func (c *Cluster) writeNodes(y *yaml) {
	for i := range c.World.Nodes {
		n := &c.World.Nodes[i]
		y.doc("v1", "Node", "", n.Name, nil)
		var cidrs []string
		for _, p := range n.PodCIDRs {
			cidrs = append(cidrs, strconv.Quote(p.String()))
		}
		y.line("spec: {podCIDR: %s, podCIDRs: [%s]}", cidrs[0], strings.Join(cidrs, ", "))
		y.line("status:\n  addresses:")
		for _, a := range n.Addrs {
			y.line("  - {type: InternalIP, address: %q}", a)
		}
	}
}

func (c *Cluster) writeNamespaces(y *yaml) {
	for _, n := range c.namespaces {
		y.doc("v1", "Namespace", "", n.name, n.labels)
	}
}

func (c *Cluster) writePods(y *yaml) {
	for i := range c.World.Endpoints {
		e := &c.World.Endpoints[i]
		y.doc("v1", "Pod", e.Namespace, e.Name, e.Labels)
		y.line("spec:\n  nodeName: %q\n  containers:\n  - name: main\n    image: none\n    ports:", e.Node)
		for _, p := range e.Ports {
			y.line("    - {name: %q, protocol: %s, containerPort: %d}", p.Name, p.Proto, p.Port)
		}
		var ips []string
		for _, a := range e.Addrs {
			ips = append(ips, fmt.Sprintf("{ip: %q}", a))
		}
		y.line("status: {phase: Running, podIP: %q, podIPs: [%s]}", e.Addrs[0], strings.Join(ips, ", "))
	}
}

// object is the rules of one policy, in the order they were written.
type object struct {
	origin     rule.Origin
	subject    rule.Selector
	rules      [2][]*rule.Rule
	isolations [2]bool
	band       rule.Band
	priority   float64
}

// objects groups the rules by policy, sorted by kind, namespace and name.
func (c *Cluster) objects() []*object {
	byRef := map[string]*object{}
	of := func(o rule.Origin, subject rule.Selector) *object {
		ref := o.Ref()
		if byRef[ref] == nil {
			byRef[ref] = &object{origin: o, subject: subject}
		}
		return byRef[ref]
	}
	for i := range c.Set.Isolations { // a rule-less policy is its isolation
		iso := &c.Set.Isolations[i]
		of(iso.Origin, iso.Subject).isolations[iso.Direction] = true
	}
	for i := range c.Set.Rules { // the set is sorted: rules of one direction come by index
		r := &c.Set.Rules[i]
		o := of(r.Origin, r.Subject)
		o.rules[r.Direction] = append(o.rules[r.Direction], r)
		o.band, o.priority = r.Order.Band, r.Order.Priority
	}
	var out []*object
	for _, ref := range slices.Sorted(maps.Keys(byRef)) {
		out = append(out, byRef[ref])
	}
	return out
}

func (c *Cluster) writePolicies(y *yaml) {
	for _, o := range c.objects() {
		if o.origin.Kind == npKind {
			o.writeNetworkPolicy(y)
		} else {
			o.writeClusterPolicy(y)
		}
	}
}

var sections = [2]struct{ rules, peers, policyType string }{{"ingress", "from", "Ingress"}, {"egress", "to", "Egress"}}

func (o *object) writeNetworkPolicy(y *yaml) {
	y.doc(npGroup+"/v1", npKind, o.origin.Namespace, o.origin.Name, nil)
	y.line("spec:\n  podSelector: %s", selector(o.subject.PodLabels))
	var types []string
	for d, is := range o.isolations {
		if is {
			types = append(types, sections[d].policyType)
		}
	}
	y.line("  policyTypes: [%s]", strings.Join(types, ", "))
	for d, rules := range o.rules {
		if len(rules) > 0 {
			y.line("  %s:", sections[d].rules)
		}
		for _, r := range rules {
			y.line("  - %s:", sections[d].peers)
			for i := range r.Peers {
				y.line("    - %s", npPeer(&r.Peers[i], o.origin.Namespace))
			}
			if !slices.Equal(r.L4, anyL4) {
				y.line("    ports:")
				for _, l := range r.L4 {
					y.line("    - %s", npPort(l))
				}
			}
		}
	}
}

func npPeer(p *rule.Peer, namespace string) string {
	if p.Kind == rule.PeerBlock {
		var except []string
		for _, e := range p.Block.Except {
			except = append(except, strconv.Quote(e.String()))
		}
		return fmt.Sprintf("ipBlock: {cidr: %q, except: [%s]}", p.Block.Prefix, strings.Join(except, ", "))
	}
	if p.Pods.Namespace == namespace {
		return "podSelector: " + selector(p.Pods.PodLabels)
	}
	return fmt.Sprintf("{namespaceSelector: %s, podSelector: %s}", selector(p.Pods.NamespaceLabels), selector(p.Pods.PodLabels))
}

func npPort(l rule.L4) string {
	switch {
	case l.Name != "":
		return fmt.Sprintf("{protocol: %s, port: %q}", l.Proto, l.Name)
	case l.Ports.First == l.Ports.Last:
		return fmt.Sprintf("{protocol: %s, port: %d}", l.Proto, l.Ports.First)
	}
	return fmt.Sprintf("{protocol: %s, port: %d, endPort: %d}", l.Proto, l.Ports.First, l.Ports.Last)
}

func (o *object) writeClusterPolicy(y *yaml) {
	tier := "Admin"
	if o.band == rule.BandBaseline {
		tier = "Baseline"
	}
	y.doc(cnpGroup+"/v1alpha2", cnpKind, "", o.origin.Name, nil)
	y.line("spec:\n  tier: %s\n  priority: %g\n  subject: {%s}", tier, o.priority, clusterPods(&o.subject))
	for d, rules := range o.rules {
		if len(rules) > 0 {
			y.line("  %s:", sections[d].rules)
		}
		for _, r := range rules {
			y.line("  - action: %s\n    %s:", r.Origin.Word, sections[d].peers)
			for i := range r.Peers {
				y.line("    - %s", clusterPeer(&r.Peers[i]))
			}
			if !slices.Equal(r.L4, anyL4) {
				y.line("    protocols:")
				for _, l := range r.L4 {
					y.line("    - %s", clusterPort(l))
				}
			}
		}
	}
}

func clusterPods(s *rule.Selector) string {
	if len(s.PodLabels) == 0 {
		return "namespaces: " + selector(s.NamespaceLabels)
	}
	return fmt.Sprintf("pods: {namespaceSelector: %s, podSelector: %s}", selector(s.NamespaceLabels), selector(s.PodLabels))
}

func clusterPeer(p *rule.Peer) string {
	switch p.Kind {
	case rule.PeerBlock:
		return fmt.Sprintf("networks: [%q]", p.Block.Prefix)
	case rule.PeerSet:
		return fmt.Sprintf("domainNames: [%q]", strings.TrimPrefix(p.Set, domainSet))
	}
	return clusterPods(&p.Pods)
}

func clusterPort(l rule.L4) string {
	proto := map[flow.Proto]string{flow.TCP: "tcp", flow.UDP: "udp", flow.SCTP: "sctp"}[l.Proto]
	switch {
	case l.Ports == rule.AllPorts:
		return fmt.Sprintf("%s: {}", proto)
	case l.Ports.First == l.Ports.Last:
		return fmt.Sprintf("%s: {destinationPort: {number: %d}}", proto, l.Ports.First)
	}
	return fmt.Sprintf("%s: {destinationPort: {range: {start: %d, end: %d}}}", proto, l.Ports.First, l.Ports.Last)
}

// selector writes a label selector in flow style.
func selector(l rule.Labels) string {
	if len(l) == 0 {
		return "{}"
	}
	var match, expressions []string
	for _, r := range l {
		if r.Op == rule.In && len(r.Values) == 1 {
			match = append(match, fmt.Sprintf("%q: %q", r.Key, r.Values[0]))
			continue
		}
		op := [...]string{rule.In: "In", rule.NotIn: "NotIn", rule.Exists: "Exists", rule.NotExists: "DoesNotExist"}[r.Op]
		e := fmt.Sprintf("{key: %q, operator: %s", r.Key, op)
		if len(r.Values) > 0 {
			var vs []string
			for _, v := range r.Values {
				vs = append(vs, strconv.Quote(v))
			}
			e += ", values: [" + strings.Join(vs, ", ") + "]"
		}
		expressions = append(expressions, e+"}")
	}
	var parts []string
	if len(match) > 0 {
		parts = append(parts, "matchLabels: {"+strings.Join(match, ", ")+"}")
	}
	if len(expressions) > 0 {
		parts = append(parts, "matchExpressions: ["+strings.Join(expressions, ", ")+"]")
	}
	return "{" + strings.Join(parts, ", ") + "}"
}
