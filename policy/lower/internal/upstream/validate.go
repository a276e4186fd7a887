package upstream

import (
	"errors"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/internal/kube"
)

var errMapped = errors.New("IPv4 address in IPv6 form")

// Limits is what differs in the checks of the APIs.
type Limits struct {
	Actions []string // the words a rule may use, for messages in this order
	// Rules bounds each direction, Peers each from and to.
	Rules, Peers int
	// EgressFields are the fields a peer under `to` can set; those under `from`
	// are namespaces and pods everywhere.
	EgressFields []string
}

const (
	maxName   = 100 // characters of a rule's name
	maxList   = 25  // items of networks and domainNames
	maxKeys   = 100 // items of sameLabels and notSameLabels
	portsHint = "ports go from 1 to 65535"
)

// checker is one call of [Policy.Validate].
type checker struct {
	*kube.Findings
	limits Limits
	names  map[string]string // rule name → path of its first use
}

// Validate reports what the APIs' admission refuses, except for ports, which each
// dialect checks itself.
func (p *Policy) Validate(f *kube.Findings, limits Limits) {
	kube.ParseSettings(f)
	v := checker{Findings: f, limits: limits, names: map[string]string{}}
	v.subject(&p.Subject)
	for _, d := range []flow.Direction{flow.Ingress, flow.Egress} {
		rules := p.Ingress
		if d == flow.Egress {
			rules = p.Egress
		}
		if len(rules) > limits.Rules {
			v.Error("spec."+d.String(), fmt.Sprintf("%d rules, at most %d are allowed", len(rules), limits.Rules), "split the policy in two")
		}
		for i := range rules {
			v.rule(d, rulePath(d, i), &rules[i])
		}
	}
}

func (v *checker) subject(s *Subject) {
	const path = "spec.subject"
	switch {
	case s.Namespaces == nil && s.Pods == nil:
		v.UnknownSelector(path, "subject selects nothing", "set exactly one of namespaces, pods; `namespaces: {}` means every pod")
	case s.Namespaces != nil && s.Pods != nil:
		v.Error(path, "subject sets namespaces and pods", "set exactly one of namespaces, pods")
	}
	kube.CheckSelector(v.Findings, path+".namespaces", s.Namespaces)
	v.pods(path+".pods", s.Pods)
}

func (v *checker) pods(path string, p *Pods) {
	if p == nil {
		return
	}
	v.required(path+".namespaceSelector", p.Namespaces, "namespaces")
	v.required(path+".podSelector", p.Pods, "pods")
}

func (v *checker) required(path string, s *metav1.LabelSelector, all string) {
	if s == nil {
		v.Error(path, "selector is missing", "write {} to mean all "+all)
	}
	kube.CheckSelector(v.Findings, path, s)
}

func (v *checker) rule(d flow.Direction, path string, r *Rule) {
	v.name(path+".name", r.Name)
	v.action(path+".action", r.Action)
	list := path + "." + side(d)
	switch n := len(r.Peers); {
	case n == 0:
		v.Error(list, side(d)+" is missing or empty: a rule needs at least one peer",
			"write `namespaces: {}` for every pod of the cluster")
	case n > v.limits.Peers:
		v.Error(list, fmt.Sprintf("%d peers, at most %d are allowed", n, v.limits.Peers), "split the rule in two")
	}
	for i := range r.Peers {
		v.peer(d, kube.At(list, i), &r.Peers[i], r)
	}
}

func (v *checker) name(path, name string) {
	if name == "" {
		return
	}
	if n := len([]rune(name)); n > maxName {
		v.Error(path, fmt.Sprintf("the name has %d characters, at most %d are allowed", n, maxName), "shorten it")
	}
	if first, ok := v.names[name]; ok {
		v.Warn(path, fmt.Sprintf("rule name %q is already used by %s", name, strings.TrimSuffix(first, ".name")),
			"audit records and explain name rules: give each its own name")
		return
	}
	v.names[name] = path
}

// words are the APIs' words for one meaning.
var words = map[string][]string{
	"Allow":  {"accept", "permit", "allow"},
	"Accept": {"allow", "permit", "accept"},
	"Deny":   {"drop", "reject", "block", "deny"},
	"Pass":   {"pass", "empower", "skip", "delegate"},
}

func (v *checker) action(path, action string) {
	for _, a := range v.limits.Actions {
		if a == action {
			return
		}
	}
	hint := "write " + enumerate(v.limits.Actions, "or")
	if action == "" {
		v.Error(path, "action is missing", hint)
		return
	}
	for _, a := range v.limits.Actions {
		if strings.EqualFold(a, action) {
			hint = "write " + a + ": actions are case-sensitive"
			break
		}
		for _, w := range words[a] {
			if strings.EqualFold(w, action) {
				hint = "write " + a
			}
		}
	}
	v.Error(path, fmt.Sprintf("unknown action %q", action), hint)
}

func (v *checker) peer(d flow.Direction, path string, p *Peer, r *Rule) {
	possible := []string{"namespaces", "pods"}
	if d == flow.Egress {
		possible = v.limits.EgressFields
	}
	switch set := p.fields(); len(set) {
	case 0:
		v.UnknownSelector(path, "peer selects nothing", "set exactly one of "+strings.Join(possible, ", "))
	case 1:
	default:
		v.Error(path, "peer sets "+enumerate(set, "and"), "write one list item for each: the items of a list are OR-ed")
	}
	kube.CheckSelector(v.Findings, path+".namespaces", p.Namespaces)
	v.pods(path+".pods", p.Pods)
	if s := p.NamespaceSet; s != nil {
		v.namespaceSet(path+".namespaces", s)
	}
	if s := p.PodSet; s != nil {
		if s.Namespaces == nil {
			v.Error(path+".pods.namespaces", "namespaces is missing", "write `namespaces: {namespaceSelector: {}}` to mean all namespaces")
		} else {
			v.namespaceSet(path+".pods.namespaces", s.Namespaces)
		}
		v.required(path+".pods.podSelector", s.Pods, "pods")
	}
	kube.CheckSelector(v.Findings, path+".nodes", p.Nodes)
	v.networks(path+".networks", p.Networks)
	v.domainNames(path+".domainNames", p.DomainNames, r.Action)
	if external := p.Nodes != nil || p.Networks != nil || p.DomainNames != nil; external && r.NamedPort {
		v.Error(path, enumerate(p.fields(), "and")+" together with a named port", "only pods have named ports: write the number, or another rule")
	}
}

func (v *checker) namespaceSet(path string, s *NamespaceSet) {
	var set []string
	for _, f := range []struct {
		name string
		set  bool
	}{{"namespaceSelector", s.Selector != nil}, {"sameLabels", s.SameLabels != nil}, {"notSameLabels", s.NotSameLabels != nil}} {
		if f.set {
			set = append(set, f.name)
		}
	}
	const all = "set exactly one of namespaceSelector, sameLabels, notSameLabels"
	switch len(set) {
	case 0:
		v.UnknownSelector(path, "namespaces selects nothing", all)
	case 1:
	default:
		v.Error(path, "namespaces sets "+enumerate(set, "and"), all)
	}
	kube.CheckSelector(v.Findings, path+".namespaceSelector", s.Selector)
	v.keys(path+".sameLabels", s.SameLabels)
	v.keys(path+".notSameLabels", s.NotSameLabels)
}

func (v *checker) keys(path string, keys []string) {
	switch {
	case keys != nil && len(keys) == 0:
		v.Warn(path, "an empty list selects nothing", "list the label keys to compare")
	case len(keys) > maxKeys:
		v.Error(path, fmt.Sprintf("%d keys, at most %d are allowed", len(keys), maxKeys), "use fewer labels, or one label that stands for them")
	}
	for i, k := range keys {
		kube.CheckLabelKey(v.Findings, kube.At(path, i), k)
	}
}

// set checks a list that the API calls a set: bounded, not empty, no item twice.
func (v *checker) set(path, item string, list []string) {
	switch n := len(list); {
	case list == nil:
		return
	case n == 0:
		v.Error(path, "an empty list selects nothing", "list at least one "+item)
	case n > maxList:
		v.Error(path, fmt.Sprintf("%d items, at most %d are allowed", n, maxList), "write another peer for the rest")
	}
	first := map[string]int{}
	for i, s := range list {
		if j, ok := first[s]; ok {
			v.Error(kube.At(path, i), fmt.Sprintf("%q is already item %d", s, j), "remove it")
			continue
		}
		first[s] = i
	}
}

func (v *checker) networks(path string, list []string) {
	v.set(path, "CIDR", list)
	for i, s := range list {
		at := kube.At(path, i)
		p, err := parseNetwork(s)
		switch {
		case errors.Is(err, errMapped):
			v.Error(at, fmt.Sprintf("%q is an IPv4 network in IPv6 form", s), "write it as IPv4")
		case err != nil:
			hint := `write a network such as "10.0.0.0/8" or "fd00::/8"`
			if !strings.Contains(s, "/") && s != "" {
				hint = `one address needs its length too: "/32" for IPv4, "/128" for IPv6`
			}
			v.Error(at, fmt.Sprintf("%q is not a CIDR", s), hint)
		case p != p.Masked():
			v.Warn(at, fmt.Sprintf("%s has bits beyond its length: read as %s", s, p.Masked()), "write "+p.Masked().String())
		}
	}
}

func (v *checker) domainNames(path string, list []string, action string) {
	if list == nil {
		return
	}
	v.set(path, "domain name", list)
	if action == "Deny" || action == "Pass" {
		v.Error(path, "domainNames in a rule that says "+action, // a name can be reached by other addresses
			"domain names can only be allowed: write "+v.limits.Actions[0]+", and deny the rest by a rule behind it")
	}
	for i, s := range list {
		if problem, hint := checkDomainName(s); problem != "" {
			v.Error(kube.At(path, i), fmt.Sprintf("%q is not a domain name: %s", s, problem), hint)
		}
	}
}

// checkDomainName follows the pattern of the published definition: an optional
// "*." and at least two labels of letters, digits, - and _, that begin and end
// with a letter or digit; a final dot is allowed. (The published pattern lets some
// punctuation begin the last label, by way of the range A-z. No name has it.)
func checkDomainName(s string) (problem, hint string) {
	name := strings.TrimSuffix(strings.TrimPrefix(s, "*."), ".")
	if strings.Contains(name, "*") {
		return "* can only stand alone as the first label", "write *.example.org for every name below example.org"
	}
	labels := strings.Split(name, ".")
	if len(labels) < 2 {
		return "it needs at least two labels", "write it in full, such as www.example.org"
	}
	for _, l := range labels {
		if l == "" {
			return "it has an empty label", "remove the extra dot"
		}
		for i := range len(l) {
			c := l[i]
			alnum := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
			if !alnum && (c != '-' && c != '_' || i == 0 || i == len(l)-1) {
				return fmt.Sprintf("label %q", l), "labels are letters, digits, - and _, with a letter or digit at both ends"
			}
		}
	}
	return "", ""
}

// CheckPortName reports a name that no container port can have.
func CheckPortName(f *kube.Findings, path, name string) {
	for _, msg := range validation.IsValidPortName(name) {
		hint := kube.PortNameHint
		if strings.Trim(name, "0123456789") == "" && name != "" {
			hint = "write it as a number"
		}
		f.Error(path, fmt.Sprintf("%q is not a port name: %s", name, msg), hint)
	}
}

// CheckPort reports a number that is not a port. ok is false when it is none.
func CheckPort(f *kube.Findings, path string, n int32) (ok bool) {
	if n < 1 || n > 65535 {
		f.Error(path, fmt.Sprintf("%d is not a port number", n), portsHint)
		return false
	}
	return true
}

// Ports is a range of destination ports of a protocol; ok is false when there is
// no such range.
func Ports(proto flow.Proto, first, last int32) (l rule.L4, ok bool) {
	if first < 1 || last > 65535 || first > last {
		return rule.L4{}, false
	}
	return rule.L4{
		Proto: proto, Ports: rule.PortRange{First: uint16(first), Last: uint16(last)}, SrcPorts: rule.AllPorts,
	}, true
}

// NamedPort is a container port's name, whatever its protocol.
func NamedPort(name string) rule.L4 {
	return rule.L4{Name: name, Ports: rule.AllPorts, SrcPorts: rule.AllPorts}
}

// enumerate writes a list of words: "a, b and c".
func enumerate(list []string, word string) string {
	if len(list) < 2 {
		return strings.Join(list, "")
	}
	last := len(list) - 1
	return strings.Join(list[:last], ", ") + " " + word + " " + list[last]
}
