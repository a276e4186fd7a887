package simulate

import (
	"math/rand/v2"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Random Cilium policies. They are drawn as documents and not as Go values: an
// absent list and an empty one are different things here.

type doc = map[string]any

func (u *draft) cilium() {
	r := u.r
	for range r.IntN(6) {
		ns, kind := pick(r, u.inv.Namespaces).Name, "CiliumNetworkPolicy"
		if chance(r, 2) {
			ns, kind = "", "CiliumClusterwideNetworkPolicy"
		}
		first := randomCilium(r, ns)
		more := []any{}
		for range max(0, r.IntN(4)-2) {
			more = append(more, randomCilium(r, ns))
		}
		u.addDoc("cilium.io/v2", kind, ns, pick(r, names), first, more)
	}
}

// addDoc adds a policy with one spec or several.
func (u *draft) addDoc(apiVersion, kind, ns, name string, spec doc, specs []any) {
	u.specs = specs
	u.add(apiVersion, kind, ns, name, spec, nil)
	u.specs = nil
}

func randomCilium(r *rand.Rand, ns string) doc {
	keys := ciliumKeys
	if ns != "" {
		keys = ciliumKeys[:5] // a namespaced policy is about its own namespace
	}
	s := doc{"endpointSelector": randomCiliumSelector(r, keys)}
	if orders := []int32{-1, 0, 1, 1, 2}; chance(r, 2) {
		if ns != "" {
			orders = orders[1:] // S3-15
		}
		s[pick(r, []string{"order", "order", "priority"})] = pick(r, orders)
	}
	rules := func(field, direction string, deny bool, n int) bool {
		list := []any{}
		for range r.IntN(n) {
			list = append(list, randomCiliumRule(r, direction, deny))
		}
		if len(list) > 0 {
			s[field] = list
		}
		return len(list) > 0
	}
	in := rules("ingress", "from", false, 3)
	in = rules("ingressDeny", "from", true, 2) || in
	out := rules("egress", "to", false, 3)
	out = rules("egressDeny", "to", true, 2) || out
	if !in && !out { // a spec has something to say
		s["ingress"] = []any{doc{}}
	}
	if chance(r, 3) {
		d := doc{}
		for _, k := range []string{"ingress", "egress"} {
			if !chance(r, 3) {
				d[k] = chance(r, 2)
			}
		}
		s["enableDefaultDeny"] = d
	}
	return s
}

var ciliumKeys = []string{
	"app", "k8s:app", "any:tier", "tier", "k8s:io.cilium.k8s.policy.serviceaccount",
	"k8s:io.kubernetes.pod.namespace", "io.kubernetes.pod.namespace", "k8s:io.cilium.k8s.namespace.labels.team",
}

// randomCiliumSelector is randomSelector with Cilium's keys.
func randomCiliumSelector(r *rand.Rand, keys []string) *metav1.LabelSelector {
	value := func(k string) string {
		switch stripSource(k) {
		case ciliumNamespace:
			return pick(r, nsNames)
		case ciliumServiceAccount:
			return pick(r, accounts)
		}
		return pick(r, values)
	}
	s := &metav1.LabelSelector{}
	for range r.IntN(5) / 2 {
		k := pick(r, keys)
		if _, twice := s.MatchLabels[k]; twice {
			continue
		}
		n := r.IntN(8)
		if stripSource(k) == ciliumServiceAccount {
			n = 7 // the one operator that is enforced
		}
		add := func(op metav1.LabelSelectorOperator, values ...string) {
			s.MatchExpressions = append(s.MatchExpressions, metav1.LabelSelectorRequirement{Key: k, Operator: op, Values: values})
		}
		switch n {
		case 0:
			add(metav1.LabelSelectorOpNotIn, value(k))
		case 1:
			add(metav1.LabelSelectorOpExists)
		case 2:
			add(metav1.LabelSelectorOpDoesNotExist)
		case 3:
			add(metav1.LabelSelectorOpIn, value(k), value(k))
		default:
			if s.MatchLabels == nil {
				s.MatchLabels = map[string]string{}
			}
			s.MatchLabels[k] = value(k)
		}
	}
	return s
}

// randomCiliumRule is an entry of ingress or egress, direction being "from" or
// "to". An entry without anything matches nothing.
func randomCiliumRule(r *rand.Rand, direction string, deny bool) doc {
	e := doc{}
	switch r.IntN(10) {
	case 0:
	case 1:
		e[direction+pick(r, []string{"Endpoints", "CIDR", "Entities"})] = []any{}
	case 2:
		c := pick(r, cidrs)
		e[direction+"CIDR"] = []any{pick(r, []string{c[0], "192.0.2.1", "2001:db8::9"})}
	case 3:
		c := pick(r, cidrs)
		set := doc{"cidr": c[0]}
		if len(c) > 1 && chance(r, 2) {
			set["except"] = []any{pick(r, c[1:])}
		}
		e[direction+"CIDRSet"] = []any{set}
	case 4, 5:
		list := []any{pick(r, entities)}
		switch {
		case chance(r, 3):
			list = append(list, pick(r, entities))
		case chance(r, 4) && direction == "to": // every node
			list = []any{"host", "remote-node"}
		case chance(r, 4) && direction == "from":
			list = []any{pick(r, []string{"host", "remote-node"})}
		}
		e[direction+"Entities"] = list
	case 9:
		if direction == "to" {
			e["toServices"], e["toFQDNs"] = []any{randomCiliumService(r)}, nil
			if !deny && chance(r, 4) {
				e["toServices"], e["toFQDNs"] = nil, []any{pick(r, []doc{{"matchPattern": "*.foobar.com"}, {"matchPattern": "**.foobar.com"}, {"matchPattern": "*"}, {"matchName": "foobar.com"}})}
			}
			break
		}
		fallthrough
	case 6:
		e[direction+"Nodes"] = []any{randomSelector(r, nodeKeys)}
	default:
		list := []any{randomCiliumSelector(r, ciliumKeys)}
		if chance(r, 3) {
			list = append(list, randomCiliumSelector(r, ciliumKeys))
		}
		e[direction+"Endpoints"] = list
	}
	if !deny && chance(r, 8) {
		e["authentication"] = doc{"mode": pick(r, []string{"required", "disabled", "test-always-fail"})}
	}
	switch r.IntN(6) {
	case 0, 1:
		var ps []any
		for range 1 + r.IntN(2) {
			ps = append(ps, randomCiliumPort(r))
		}
		if e["toServices"] == nil { // a rule to Services is about all ports
			e["toPorts"] = []any{doc{"ports": ps}}
		}
	case 2:
		var fs []any
		for range 1 + r.IntN(2) {
			f := doc{"type": pick(r, []any{0, 8, 128, "EchoRequest", "EchoReply"})}
			if family := pick(r, []string{"", "IPv4", "IPv6"}); family != "" {
				f["family"] = family
			}
			fs = append(fs, f)
		}
		e["icmps"] = []any{doc{"fields": fs}}
	}
	return e
}

var entities = []string{"all", "world", "world-ipv4", "world-ipv6", "cluster", "none"}

func randomCiliumService(r *rand.Rand) doc {
	ref := doc{}
	if !chance(r, 3) { // else in any
		ref["namespace"] = pick(r, nsNames)
	}
	if chance(r, 2) {
		ref["serviceName"] = "svc"
		return doc{"k8sService": ref}
	}
	ref["selector"] = randomSelector(r, podKeys)
	return doc{"k8sServiceSelector": ref}
}

func randomCiliumPort(r *rand.Rand) doc {
	p := doc{"port": strconv.Itoa(int(pick(r, ports)))}
	switch r.IntN(6) {
	case 2:
		p["port"] = "0"
	case 0:
		p["port"] = pick(r, portNames)
	case 1:
		p["port"], p["endPort"] = strconv.Itoa(int(ports[r.IntN(2)])), pick(r, []int{82, 100, 8080})
	}
	if proto := pick(r, []string{"", "ANY", "TCP", "TCP", "UDP", "SCTP"}); proto != "" {
		p["protocol"] = proto
	}
	return p
}
