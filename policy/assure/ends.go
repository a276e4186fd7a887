package assure

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/diag"
	"github.com/tierwall/tierwall/policy/inventory"
)

// End is one end of a question: some pods, a Service, or addresses outside.
type End struct {
	Text    string             // as asked
	Pods    []*rule.Endpoint   // by namespace and name
	Service *inventory.Service // Pods is then empty
	// Outside are prefixes of which those addresses are meant that no pod has.
	Outside []netip.Prefix
}

// EndForms explains what End reads, for help texts.
const EndForms = `  NAMESPACE/NAME      a pod, or all pods of the workload of that name
  NAME                the same, where only one namespace has it (or with -n)
  deploy/[NS/]NAME    a workload by kind: deploy, sts, ds, rs, rc, job, cj, pod
  svc/[NS/]NAME       a Service: its backends, at their target ports; also
                      NAME.NS, NAME.NS.svc and NAME.NS.svc.cluster.local
  app=web,tier!=old   pods by label; NAMESPACE/app=web in one namespace
  ns:shop             all pods of a namespace; ns:tier=dev those of all namespaces
                      with the label; ns:tier=dev/app=web the two together
  any                 all pods
  203.0.113.7         an address: of a pod, a node, a Service, or outside
  external:0.0.0.0/0  addresses outside the cluster; external:any is all of them`

// kindWords are the words for kinds of workloads in ends.
var kindWords = map[string]string{
	"deploy": "Deployment", "deployment": "Deployment", "deployments": "Deployment",
	"sts": "StatefulSet", "statefulset": "StatefulSet", "statefulsets": "StatefulSet",
	"ds": "DaemonSet", "daemonset": "DaemonSet", "daemonsets": "DaemonSet",
	"rs": "ReplicaSet", "replicaset": "ReplicaSet", "replicasets": "ReplicaSet",
	"rc": "ReplicationController", "replicationcontroller": "ReplicationController",
	"job": "Job", "jobs": "Job", "cj": "CronJob", "cronjob": "CronJob", "cronjobs": "CronJob",
	"podtemplate": "PodTemplate", "pod": "Pod", "pods": "Pod", "po": "Pod",
}

// End reads an end; see EndForms. Names without a namespace are of the given one,
// if it is not "". An end that means nothing is an error that says what there is.
func (w *World) End(text, namespace string) (End, error) {
	e := End{Text: text}
	var err error
	switch rest := text; {
	case text == "":
		return e, errors.New("an end is missing: say a pod, a workload, a Service or an address")
	case text == "any" || text == "*":
		if e.Pods = w.Pods(); len(e.Pods) == 0 {
			return e, errors.New("there is no pod with an address")
		}
		return e, nil
	case cut(&rest, "external:"):
		e.Outside, err = outsideOf(rest)
	case cut(&rest, "ns:") || cut(&rest, "namespace:"):
		e.Pods, err = w.byNamespace(rest)
	case cut(&rest, "svc:") || cut(&rest, "svc/") || cut(&rest, "service/") || cut(&rest, "services/"):
		e.Service, err = w.service(rest, namespace)
	case cut(&rest, "cidr:"):
		e.Outside, err = outsideOf(rest)
	default:
		if found, ok, aerr := w.address(text); ok {
			found.Text = text
			return found, aerr
		}
		if isSelector(text) {
			e.Pods, err = w.bySelector(text, namespace)
			break
		}
		if kind, rest, ok := w.kindOf(text); ok {
			e.Pods, err = w.byKind(kind, rest, namespace)
			break
		}
		e, err = w.byName(text, namespace)
	}
	e.Text = text
	return e, err
}

// kindOf splits deploy/NAME, deploy/NAMESPACE/NAME, NAMESPACE/deploy/NAME, and what
// kubectl -o name prints, deployment.apps/NAME.
func (w *World) kindOf(text string) (kind, rest string, ok bool) {
	parts := strings.Split(text, "/")
	word := func(s string) string {
		s, _, _ = strings.Cut(strings.ToLower(s), ".")
		return kindWords[s]
	}
	switch {
	case len(parts) == 3 && w.namespaces[parts[0]] != nil && word(parts[1]) != "":
		return word(parts[1]), parts[0] + "/" + parts[2], true
	case len(parts) == 2 && w.namespaces[parts[0]] != nil:
		return "", "", false // a namespace that is called like a kind
	case len(parts) < 2 || word(parts[0]) == "":
		return "", "", false
	}
	return word(parts[0]), strings.Join(parts[1:], "/"), true
}

func cut(s *string, prefix string) bool {
	rest, ok := strings.CutPrefix(*s, prefix)
	if ok {
		*s = rest
	}
	return ok
}

func outsideOf(text string) ([]netip.Prefix, error) {
	if text == "any" || text == "*" {
		return []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0)}, nil
	}
	if a, err := netip.ParseAddr(text); err == nil {
		a = a.Unmap().WithZone("")
		return []netip.Prefix{netip.PrefixFrom(a, a.BitLen())}, nil
	}
	p, err := netip.ParsePrefix(text)
	if err != nil {
		return nil, fmt.Errorf("external:%s: want an address, a prefix such as 203.0.113.0/24, or any", text)
	}
	if p != p.Masked() {
		return nil, fmt.Errorf("external:%s: the prefix has bits behind its length: write %s", text, p.Masked())
	}
	return []netip.Prefix{p}, nil
}

// address reads an IP address or a prefix. ok is false if text is neither.
func (w *World) address(text string) (e End, ok bool, err error) {
	if p, err := netip.ParsePrefix(text); err == nil {
		e.Outside, err = outsideOf(p.String())
		return e, true, err
	}
	a, err := netip.ParseAddr(text)
	if err != nil {
		return e, false, nil
	}
	a = a.Unmap().WithZone("")
	for i := range w.Snapshot.Services {
		if s := &w.Snapshot.Services[i]; slices.Contains(s.ClusterIPs, a) {
			e.Service = s
			return e, true, nil
		}
	}
	for i := range w.pods {
		if p := &w.pods[i]; !p.HostNetwork && slices.Contains(p.Addrs, a) {
			one := *p
			one.Addrs = []netip.Addr{a}
			e.Pods = []*rule.Endpoint{&one}
			return e, true, nil
		}
	}
	e.Outside = []netip.Prefix{netip.PrefixFrom(a, a.BitLen())}
	return e, true, nil
}

// isSelector tells a label selector from a name: names have no operators.
func isSelector(text string) bool {
	return strings.ContainsAny(text, "=!,()") || strings.Contains(text, " in ") || strings.Contains(text, " notin ")
}

func (w *World) bySelector(text, namespace string) ([]*rule.Endpoint, error) {
	if ns, rest, ok := strings.Cut(text, "/"); ok && w.namespaces[ns] != nil {
		text, namespace = rest, ns
	}
	sel, err := labels.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("label selector %q: %w", text, err)
	}
	pods := w.filter(func(e *rule.Endpoint) bool {
		return (namespace == "" || e.Namespace == namespace) && sel.Matches(labels.Set(e.Labels))
	})
	if len(pods) == 0 {
		where := ""
		if namespace != "" {
			where = " in namespace " + namespace
		}
		return nil, fmt.Errorf("label selector %q matches no pod%s%s", text, where, w.labelHint(sel, namespace))
	}
	return pods, nil
}

// labelHint lists the values that pods have for the selector's keys.
func (w *World) labelHint(sel labels.Selector, namespace string) string {
	reqs, _ := sel.Requirements()
	for _, r := range reqs {
		values := map[string]bool{}
		for i := range w.pods {
			if v, ok := w.pods[i].Labels[r.Key()]; ok && (namespace == "" || w.pods[i].Namespace == namespace) {
				values[v] = true
			}
		}
		if len(values) == 0 {
			return "; no pod has the label " + r.Key()
		}
		if !slices.ContainsFunc(r.Values().List(), func(v string) bool { return values[v] }) {
			return "; the values of " + r.Key() + " are " + among(strings.Join(r.Values().List(), ","), keys(values))
		}
	}
	return ""
}

func keys(m map[string]bool) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

func (w *World) byNamespace(text string) ([]*rule.Endpoint, error) {
	nsText, podText, both := strings.Cut(text, "/")
	if both && isSelector(nsText) != isSelector(text) { // a label key with a prefix: ns:example.com/tier=dev
		nsText, podText, both = text, "", false
	}
	pods := labels.Everything()
	if both {
		var err error
		if pods, err = labels.Parse(podText); err != nil {
			return nil, fmt.Errorf("label selector %q: %w", podText, err)
		}
	}
	chosen := map[string]bool{}
	if isSelector(nsText) {
		sel, err := labels.Parse(nsText)
		if err != nil {
			return nil, fmt.Errorf("label selector %q: %w", nsText, err)
		}
		for name, l := range w.namespaces {
			if sel.Matches(labels.Set(l)) {
				chosen[name] = true
			}
		}
		if len(chosen) == 0 {
			return nil, fmt.Errorf("ns:%s matches no namespace; there is %s", nsText, among(nsText, w.namespaceNames()))
		}
	} else {
		if w.namespaces[nsText] == nil {
			return nil, fmt.Errorf("no namespace %s; there is %s", nsText, among(nsText, w.namespaceNames()))
		}
		chosen[nsText] = true
	}
	out := w.filter(func(e *rule.Endpoint) bool { return chosen[e.Namespace] && pods.Matches(labels.Set(e.Labels)) })
	if len(out) == 0 {
		return nil, fmt.Errorf("ns:%s matches no pod with an address (namespaces: %s)", text, among("", keys(chosen)))
	}
	return out, nil
}

func (w *World) namespaceNames() []string {
	var out []string
	for i := range w.Snapshot.Namespaces {
		out = append(out, w.Snapshot.Namespaces[i].Name)
	}
	return out
}

func (w *World) filter(keep func(*rule.Endpoint) bool) []*rule.Endpoint {
	var out []*rule.Endpoint
	for i := range w.pods {
		if keep(&w.pods[i]) {
			out = append(out, &w.pods[i])
		}
	}
	slices.SortFunc(out, comparePods)
	return out
}

// service finds NAME, NAMESPACE/NAME or a DNS name.
func (w *World) service(text, namespace string) (*inventory.Service, error) {
	ns, name, ok := strings.Cut(text, "/")
	if !ok {
		ns, name = namespace, text
	}
	var found []*inventory.Service
	var known []string
	for i := range w.Snapshot.Services {
		s := &w.Snapshot.Services[i]
		known = append(known, s.Namespace+"/"+s.Name)
		if s.Name == name && (ns == "" || s.Namespace == ns) {
			found = append(found, s)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return nil, fmt.Errorf("no Service %s; there is %s", text, among(text, known))
	}
	return nil, fmt.Errorf("svc/%s is in several namespaces: say svc/%s/%s or svc/%s/%s", name, found[0].Namespace, name, found[1].Namespace, name)
}

func (w *World) byKind(kind, text, namespace string) ([]*rule.Endpoint, error) {
	ns, name, ok := strings.Cut(text, "/")
	if !ok {
		ns, name = namespace, text
	}
	var keys []workloadKey
	var known []string
	match := func(k workloadKey) bool {
		known = append(known, ShortKind(k.kind)+"/"+k.namespace+"/"+k.name)
		return k.name == name && (ns == "" || k.namespace == ns)
	}
	if kind == "Pod" { // any pod by its own name
		pods := w.filter(func(e *rule.Endpoint) bool { return match(workloadKey{e.Namespace, kind, e.Name}) })
		if len(pods) == 1 {
			return pods, nil
		}
		for _, e := range pods {
			keys = append(keys, workloadKey{e.Namespace, kind, e.Name})
		}
	} else {
		for k := range w.workloads {
			if k.kind == kind && match(k) {
				keys = append(keys, k)
			}
		}
	}
	switch len(keys) {
	case 1:
		return w.workloads[keys[0]], nil
	case 0:
		return nil, fmt.Errorf("no %s %s with a pod that has an address; there is %s", kind, text, among(text, known))
	}
	return nil, fmt.Errorf("%s %s is in several namespaces: say %s/%s/%s", kind, name, ShortKind(kind), keys[0].namespace, name)
}

// byName finds a pod, a workload, or a Service by its DNS name.
func (w *World) byName(text, namespace string) (End, error) {
	ns, name, ok := strings.Cut(text, "/")
	if !ok {
		ns, name = namespace, text
	} else if strings.Contains(name, "/") {
		return End{}, fmt.Errorf("%q is no end: want NAMESPACE/NAME, KIND/NAMESPACE/NAME, a selector or an address", text)
	}
	pods := w.filter(func(e *rule.Endpoint) bool { return e.Name == name && (ns == "" || e.Namespace == ns) })
	var keys []workloadKey
	for k := range w.workloads {
		if k.name == name && (ns == "" || k.namespace == ns) && (k.kind != "Pod" || len(pods) == 0) {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, func(a, b workloadKey) int { return strings.Compare(w.names[a], w.names[b]) })
	switch {
	case len(pods) == 1:
		return End{Pods: pods}, nil // a pod's name comes before a workload's
	case len(pods) > 1:
		return End{}, fmt.Errorf("%s is in several namespaces: say %s or %s", text, PodName(pods[0]), PodName(pods[1]))
	case len(keys) == 1:
		return End{Pods: w.workloads[keys[0]]}, nil
	case len(keys) > 1:
		return End{}, fmt.Errorf("%s may be several things: say %s/%s/%s or %s/%s/%s", text,
			ShortKind(keys[0].kind), keys[0].namespace, name, ShortKind(keys[1].kind), keys[1].namespace, name)
	}
	if !ok {
		if e, found, err := w.byDNS(text); found {
			return e, err
		}
	}
	for i := range w.Snapshot.Pods {
		if p := &w.Snapshot.Pods[i]; len(p.IPs) == 0 && p.Name == name && (ns == "" || p.Namespace == ns) {
			return End{}, fmt.Errorf("pod %s has no address (it waits for one, or has ended): no packet can come from it or reach it", text)
		}
	}
	if ok && w.namespaces[ns] == nil {
		return End{}, fmt.Errorf("no namespace %s; there is %s", ns, among(ns, w.namespaceNames()))
	}
	known := w.Workloads()
	for i := range w.Snapshot.Services {
		known = append(known, "svc/"+w.Snapshot.Services[i].Namespace+"/"+w.Snapshot.Services[i].Name)
	}
	return End{}, fmt.Errorf("no pod or workload %s; there is %s", text, among(text, known))
}

// byDNS finds a Service by the name it has in the cluster's DNS: NAME.NS, NAME.NS.svc,
// NAME.NS.svc.DOMAIN, and a pod of a headless Service by POD.NAME.NS.svc.
func (w *World) byDNS(text string) (e End, found bool, err error) {
	labels := strings.Split(strings.TrimSuffix(strings.ToLower(text), "."), ".")
	at := slices.Index(labels, "svc")
	if at < 0 && len(labels) == 2 {
		if e.Service = w.Snapshot.Service(labels[1], labels[0]); e.Service != nil {
			return e, true, nil
		}
	}
	switch at {
	case 2:
		e.Service, err = w.service(labels[1]+"/"+labels[0], "")
		return e, true, err
	case 3:
		if _, err = w.service(labels[2]+"/"+labels[1], ""); err != nil {
			return e, true, err
		}
		e.Pods, err = w.byKind("Pod", labels[2]+"/"+labels[0], "")
		return e, true, err
	}
	return e, false, nil
}

// among lists what exists, the names most like s first, for an error text.
func among(s string, known []string) string {
	if len(known) == 0 {
		return "none at all"
	}
	return strings.TrimPrefix(diag.Among(s, known), "; there is ")
}
