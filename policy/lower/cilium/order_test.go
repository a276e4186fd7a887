package cilium_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/policy/internal/fixture"
	"github.com/tierwall/tierwall/policy/lower/cilium"
)

// The universe of the ordered rules: one subject, the identities 5 to 8 of the
// proposal's examples, somebody outside, and a few ports around those it uses.
const orderWorld = `
namespace x
pod x/t t=t
pod x/id5 id=5
pod x/id6 id=6
pod x/id7 id=7
pod x/id8 id=8
host out 198.51.100.7 2001:db8::7
`

var (
	orderPeers = []string{"x/id5", "x/id6", "x/id7", "x/id8", "out"}
	orderPorts = []uint16{1, 79, 80, 81, 1023, 1024, 8080, 65535}
)

// A plainRule says what one rule means, in the proposal's words: (proto, ports,
// identities) with an order. It knows nothing of the rule IR.
type plainRule struct {
	order       int
	ids         []int // nil is the wildcard *, which includes the outside
	proto       string
	first, last int // 0: every port
	deny, auth  bool
	np          bool // a NetworkPolicy rule: allow of order 0
	isolates    bool
	egress      bool
}

func (r *plainRule) matches(peer, proto string, port uint16, egress bool) bool {
	if r.egress != egress || r.proto != proto {
		return false
	}
	if r.first != 0 && (int(port) < r.first || int(port) > r.last) {
		return false
	}
	return r.ids == nil || slices.ContainsFunc(r.ids, func(id int) bool { return peer == fmt.Sprintf("x/id%d", id) })
}

// decide is first match by order: the strongest matching rule decides, deny
// before allow (S3-10…S3-14); authentication is asked of all a rule matches
// (S3-32). It returns the verdict and the order that decided, in words.
func decide(rules []plainRule, peer, proto string, port uint16, egress bool) (allow bool, why string) {
	isolated, auth := false, false
	var best *plainRule
	for i := range rules {
		r := &rules[i]
		isolated = isolated || r.isolates && r.egress == egress
		if !r.matches(peer, proto, port, egress) {
			continue
		}
		auth = auth || r.auth
		if best == nil || r.order < best.order || r.order == best.order && r.deny && !best.deny {
			best = r
		}
	}
	switch {
	case best != nil && !best.deny && auth:
		return false, "auth-required"
	case best != nil:
		return !best.deny, fmt.Sprint("order ", best.order)
	case isolated:
		return false, "isolation"
	}
	return true, "default"
}

// yaml writes the rule as a policy of its own.
func (r *plainRule) yaml(name string) string {
	direction, side := "ingress", "from"
	if r.egress {
		direction, side = "egress", "to"
	}
	var ids []string
	for _, id := range r.ids {
		ids = append(ids, fmt.Sprintf("%q", fmt.Sprint(id)))
	}
	selector := fmt.Sprintf("{matchExpressions: [{key: id, operator: In, values: [%s]}]}", strings.Join(ids, ", "))
	if r.np {
		peers, ports := "", fmt.Sprintf("{protocol: %s}", r.proto)
		if r.ids != nil {
			peers = fmt.Sprintf("%s: [{podSelector: %s}], ", side, selector)
		}
		if r.first != 0 {
			ports = fmt.Sprintf("{protocol: %s, port: %d, endPort: %d}", r.proto, r.first, r.last)
		}
		return fmt.Sprintf("---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: %s, namespace: x}\n"+
			"spec: {podSelector: {matchLabels: {t: t}}, policyTypes: [%s], %s: [{%sports: [%s]}]}\n",
			name, strings.ToUpper(direction[:1])+direction[1:], direction, peers, ports)
	}
	kind, namespace := cilium.Name, ", namespace: x"
	if r.order < 0 || r.order%2 == 1 {
		kind, namespace = cilium.NameClusterwide, ""
	}
	if r.deny {
		direction += "Deny"
	}
	peers, auth := "", ""
	if r.ids != nil {
		peers = side + "Endpoints: [" + selector + "], "
	}
	if r.auth {
		auth = ", authentication: {mode: required}"
	}
	end := ""
	if r.first != r.last {
		end = fmt.Sprintf("endPort: %d, ", r.last)
	}
	order := ""
	if r.order != 0 {
		order = fmt.Sprintf("  order: %d\n", r.order)
	}
	return fmt.Sprintf("---\napiVersion: cilium.io/v2\nkind: %s\nmetadata: {name: %s%s}\nspec:\n%s"+
		"  endpointSelector: {matchLabels: {t: t}}\n  enableDefaultDeny: {ingress: %v, egress: %v}\n"+
		"  %s: [{%stoPorts: [{ports: [{port: %q, %sprotocol: %s}]}]%s}]\n",
		kind, name, namespace, order, r.isolates && !r.egress, r.isolates && r.egress,
		direction, peers, fmt.Sprint(r.first), end, r.proto, auth)
}

// randomRules makes rules in the style of examples 1a to 2b: wildcards over
// single identities and the other way round, ranges over single ports.
func randomRules(r *rand.Rand) []plainRule {
	out := make([]plainRule, 1+r.IntN(7))
	isolating := r.IntN(3)
	for i := range out {
		p := &out[i]
		p.order, p.proto = r.IntN(5)-2, "TCP"
		if r.IntN(6) == 0 {
			p.proto = "UDP"
		}
		switch r.IntN(4) {
		case 0: // *
		case 1:
			p.ids = []int{5, 6}
		default:
			p.ids = []int{5 + r.IntN(4)}
		}
		switch r.IntN(4) {
		case 0: // every port
		case 1:
			p.first, p.last = 1, 1023
		case 2:
			p.first, p.last = 80, 80
		case 3:
			p.first, p.last = 80, 8080
		}
		p.deny, p.egress = r.IntN(2) == 0, r.IntN(5) == 0
		p.isolates = isolating > 0 && r.IntN(2) == 0
		switch r.IntN(12) {
		case 0:
			p.auth, p.deny = true, false
		case 1, 2:
			p.np, p.deny, p.order, p.isolates = true, false, 0, true
		}
	}
	return out
}

func policiesOf(rules []plainRule, r *rand.Rand) string {
	var b strings.Builder
	for i, at := range r.Perm(len(rules)) { // neither names nor places follow the order
		b.WriteString(rules[at].yaml(fmt.Sprintf("p%04d", i)))
	}
	return b.String()
}

// asked is a compiled world with names for its parties.
type asked struct {
	w     *fixture.World
	table *classifier.Table
}

func compile(t *testing.T, world, yaml string) asked {
	t.Helper()
	return compileWorld(t, fixture.MustWorld(t, world), yaml)
}

func compileWorld(t *testing.T, w *fixture.World, yaml string) asked {
	t.Helper()
	set, _ := fixture.MustBuild(t, w, yaml)
	inv := w.Inventory.World("")
	w.Inventory.FillSets(inv, &set)
	table, _, err := classifier.Compile(set, inv, classifier.Options{})
	if err != nil {
		t.Fatalf("%v\n%s", err, yaml)
	}
	return asked{w, table}
}

// ask returns, for each family, the verdict and what decided in the direction of
// the subject x/t.
func (a asked) ask(t *testing.T, peer, proto string, port uint16, egress bool) (verdicts []bool, why []string) {
	t.Helper()
	from, to := peer, "x/t"
	if egress {
		from, to = to, from
	}
	p := fixture.Probe{Port: port}
	var err [3]error
	p.From, err[0] = a.w.Party(from)
	p.To, err[1] = a.w.Party(to)
	p.Proto, err[2] = flow.ParseProto(proto)
	for _, e := range err {
		if e != nil {
			t.Fatal(e)
		}
	}
	for _, k := range p.Keys() {
		d := a.table.Lookup(k)
		o := a.table.Outcome(d.Ingress)
		if egress {
			o = a.table.Outcome(d.Egress)
		}
		w := o.Reason.String()
		if o.Reason == classifier.ReasonRule {
			w = fmt.Sprint("order ", a.table.Rule(o.Rule).Order.Priority)
		}
		verdicts, why = append(verdicts, d.Verdict == classifier.Allow), append(why, w)
	}
	return verdicts, why
}

// situations says which of the proposal's sentences a flow is about: what else than
// the deciding rule matches it.
func situations(rules []plainRule, peer, proto string, port uint16, egress bool) (out []string) {
	var best *plainRule
	var all []*plainRule
	for i := range rules {
		if r := &rules[i]; r.matches(peer, proto, port, egress) {
			all = append(all, r)
			if best == nil || r.order < best.order || r.order == best.order && r.deny && !best.deny {
				best = r
			}
		}
	}
	for _, r := range all {
		specific := best.ids == nil && r.ids != nil || best.first == 0 && r.first != 0
		broad := r.ids == nil && best.ids != nil || r.first == 0 && best.first != 0
		same := slices.Equal(best.ids, r.ids) && best.first == r.first && best.last == r.last
		for what, is := range map[string]bool{
			"S3-10: one order, deny and allow":                                    r.order == best.order && r.deny != best.deny,
			"S3-11: one order, deny and allow about the same":                     r.order == best.order && r.deny != best.deny && same,
			"S3-12: a weaker rule is about the same":                              r.order > best.order && same,
			"S3-13: an order against none":                                        (best.order == 0) != (r.order == 0),
			"S3-14: no order, deny and allow":                                     r.order == 0 && best.order == 0 && r.deny != best.deny,
			"S3-19: a weaker rule says the opposite":                              r.order > best.order && r.deny != best.deny,
			"S3-20, S3-21: a weaker rule is more specific":                        r.order > best.order && specific,
			"S3-32: allowed, and another rule wants authentication":               !best.deny && !best.auth && r.auth,
			"S3-34: allowed by a specific rule, a broad one wants authentication": !best.deny && !best.auth && r.auth && broad,
		} {
			if is && !slices.Contains(out, what) {
				out = append(out, what)
			}
		}
	}
	return out
}

// For any set of rules the table's verdict is that of first match by order, and it
// names a rule of the order that decides. Every situation the proposal speaks of is
// among the generator's.
func TestTableIsFirstMatchByOrder(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 44))
	seen := map[string]int{}
	for n := range 1000 {
		rules := randomRules(r)
		yaml := policiesOf(rules, r)
		a := compile(t, orderWorld, yaml)
		for _, egress := range []bool{false, true} {
			for _, proto := range []string{"TCP", "UDP"} {
				for _, peer := range orderPeers {
					for _, port := range orderPorts {
						allow, want := decide(rules, peer, proto, port, egress)
						verdicts, why := a.ask(t, peer, proto, port, egress)
						if len(verdicts) != 2 {
							t.Fatalf("%s has %d families", peer, len(verdicts))
						}
						about := situations(rules, peer, proto, port, egress)
						for i := range verdicts {
							if verdicts[i] != allow || why[i] != want { // S3-44
								t.Fatalf("set %d, %s %d/%s egress=%v: got %v by %s, want %v by %s %q\n%s",
									n, peer, port, proto, egress, verdicts[i], why[i], allow, want, about, yaml)
							}
						}
						kind, _, _ := strings.Cut(want, " ")
						seen[fmt.Sprint(kind, " ", allow)]++
						for _, s := range about {
							seen[s]++
						}
					}
				}
			}
		}
	}
	for what, least := range map[string]int{
		"order true": 1000, "order false": 1000, "auth-required false": 1000, "isolation false": 1000, "default true": 1000,
		"S3-10: one order, deny and allow":                                    100,
		"S3-11: one order, deny and allow about the same":                     100,
		"S3-12: a weaker rule is about the same":                              100,
		"S3-13: an order against none":                                        100,
		"S3-14: no order, deny and allow":                                     100,
		"S3-19: a weaker rule says the opposite":                              100,
		"S3-20, S3-21: a weaker rule is more specific":                        100,
		"S3-32: allowed, and another rule wants authentication":               100,
		"S3-34: allowed by a specific rule, a broad one wants authentication": 100,
	} {
		if seen[what] < least {
			t.Errorf("only %d flows with %q, want %d: the generator does not cover it", seen[what], what, least)
		}
	}
}
