package intent

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/cmd/internal/changes"
	"github.com/tierwall/tierwall/cmd/internal/cli"
	"github.com/tierwall/tierwall/cmd/internal/query"
	"github.com/tierwall/tierwall/policy/assure"
)

// WriteClaims prints claims for people: the answer, what it covers, and the witness
// with the way to its verdict.
func WriteClaims(w io.Writer, s cli.Style, all *Claims) error {
	var b strings.Builder
	for i := range all.Claims {
		printable := cli.EscapeAll(all.Claims[i])
		c := &printable
		word := s.Green("proved   ")
		switch c.Answer {
		case assure.Refuted:
			word = s.Red("REFUTED  ")
		case assure.Undecided:
			word = s.Yellow("UNDECIDED")
		}
		fmt.Fprintf(&b, "%s  %s:%d  %s\n", word, c.File, c.Line, s.Bold(c.Name))
		switch c.Answer {
		case assure.Undecided:
			fmt.Fprintf(&b, "      not decided: %s\n", c.Why)
		case assure.Proved:
			fmt.Fprintf(&b, "      %s as sources × %s as destinations, %s of connections, all as claimed\n",
				cli.Plural(c.Covers.From, "kind"), cli.Plural(c.Covers.To, "kind"), cli.Plural(c.Covers.Ranges, "range"))
		default:
			c.Witness.write(&b, s, all.Claims[i].Witness.Explanation)
		}
		fmt.Fprintf(&b, "      %s\n", s.Dim("given: "+strings.Join(c.Assumes, "; ")))
	}
	fmt.Fprintf(&b, "%d proved, %d refuted, %d undecided\n", all.Proved, all.Refuted, all.Undecided)
	_, err := io.WriteString(w, b.String())
	return err
}

func (x *Witness) write(b *strings.Builder, s cli.Style, e *query.Explanation) {
	fmt.Fprintf(b, "      %s → %s  %s  IPv%d", x.From.Name, x.To.Name, x.Packet.Text, x.Packet.Family)
	if x.Service != "" {
		fmt.Fprintf(b, ", opened to Service %s (%s)", x.Service, x.Via)
	}
	fmt.Fprintf(b, ": %s\n", s.Verdict(x.Verdict))
	x.From.write(b, "from")
	x.To.write(b, "to")
	for _, n := range x.Names {
		fmt.Fprintf(b, "        where %s\n", n)
	}
	for _, p := range x.Policies {
		fmt.Fprintf(b, "        %s\n", p)
	}
	if e == nil {
		by := "no policy applies"
		if x.Policy != "" {
			by = "by " + changes.PolicyName(x.Policy) + " " + x.Rule
		}
		fmt.Fprintf(b, "      %s\n", by)
		return
	}
	var story strings.Builder
	if query.WriteExplanation(&story, s, e, false) == nil {
		for l := range strings.Lines(story.String()) {
			b.WriteString("      " + l)
		}
	}
}

func (e *WitnessEnd) write(b *strings.Builder, word string) {
	if e.Namespace == "" {
		return // an address
	}
	fmt.Fprintf(b, "        %-4s  ", word)
	switch {
	case e.HostNetwork && e.Exists:
		fmt.Fprintf(b, "pod %s in the network of its node (%s)", e.Name, e.Address)
	case e.HostNetwork:
		fmt.Fprintf(b, "a pod in the network of its node (%s)", e.Address)
	case e.Relabelled:
		fmt.Fprintf(b, "pod %s, with labels %s", e.Name, labelText(e.Labels))
	case e.Exists:
		fmt.Fprintf(b, "pod %s as it is, labels %s", e.Name, labelText(e.Labels))
	default:
		fmt.Fprintf(b, "a pod with labels %s", labelText(e.Labels))
	}
	if !e.HostNetwork && e.ServiceAccount != "" && e.ServiceAccount != "default" {
		fmt.Fprintf(b, ", account %s", e.ServiceAccount)
	}
	for _, p := range e.Ports {
		fmt.Fprintf(b, ", port %d/%s named %s", p.Port, p.Protocol, p.Name)
	}
	if e.Node != "" && !e.Exists {
		fmt.Fprintf(b, ", on node %s", e.Node)
	}
	kind := "namespace"
	switch {
	case e.NewNamespace:
		kind = "a new namespace"
	case e.RelabelledNamespace:
		kind = "relabelled namespace"
	}
	fmt.Fprintf(b, ", in %s %s, labels %s\n", kind, e.Namespace, labelText(e.NamespaceLabels))
}

func labelText(l map[string]string) string {
	if len(l) == 0 {
		return "{}"
	}
	parts := make([]string, 0, len(l))
	for _, k := range slices.Sorted(maps.Keys(l)) {
		parts = append(parts, k+"="+l[k])
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

// manifest writes what a witness needs and is not there.
func manifest(w *assure.Witness) string {
	type object = map[string]any
	var docs []object
	done := map[string]bool{}
	for _, e := range []*assure.WitnessEnd{&w.From, &w.To} {
		p := e.Pod
		if p == nil {
			continue
		}
		if (e.NewNamespace || e.LabelsNamespace) && !done[p.Namespace] {
			done[p.Namespace] = true
			docs = append(docs, object{"apiVersion": "v1", "kind": "Namespace", "metadata": object{"name": p.Namespace, "labels": p.NamespaceLabels}})
		}
		if e.Exists && !e.Relabelled {
			continue
		}
		container := object{"name": "c", "image": "registry.k8s.io/pause"}
		var ports []object
		for _, n := range p.Ports {
			ports = append(ports, object{"name": n.Name, "protocol": n.Proto.String(), "containerPort": int(n.Port)})
		}
		if len(ports) > 0 {
			container["ports"] = ports
		}
		spec := object{"containers": []object{container}}
		if p.ServiceAccount != "" {
			spec["serviceAccountName"] = p.ServiceAccount
		}
		if p.Node != "" {
			spec["nodeName"] = p.Node
		}
		var ips []object
		for _, a := range p.Addrs {
			ips = append(ips, object{"ip": a.String()})
		}
		docs = append(docs, object{
			"apiVersion": "v1", "kind": "Pod", "metadata": object{"name": p.Name, "namespace": p.Namespace, "labels": p.Labels},
			"spec": spec, "status": object{"podIP": p.Addrs[0].String(), "podIPs": ips},
		})
	}
	for d, kind := range w.NetworkPolicies {
		pod := w.From.Pod
		if flow.Direction(d) == flow.Ingress {
			pod = w.To.Pod
		}
		if kind == assure.NoNetworkPolicy || pod == nil {
			continue
		}
		name := flow.Direction(d).String()
		types := map[flow.Direction]string{flow.Egress: "Egress", flow.Ingress: "Ingress"}
		spec := object{"podSelector": object{}, "policyTypes": []string{types[flow.Direction(d)]}}
		if kind == assure.AllowingNetworkPolicy {
			spec[name] = []object{{}}
		}
		docs = append(docs, object{
			"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
			"metadata": object{"name": assure.MadeUpPolicy + "-" + name, "namespace": pod.Namespace}, "spec": spec,
		})
	}
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	for _, d := range docs {
		if enc.Encode(d) != nil {
			return ""
		}
	}
	if enc.Close() != nil {
		return ""
	}
	return b.String()
}
