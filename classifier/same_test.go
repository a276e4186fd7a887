package classifier

import (
	"net/netip"
	"reflect"
	"strconv"
	"testing"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
)

// TestSameSeesEveryField changes every field there is, one at a time: a Compiler
// that overlooked one would keep an old rule in force. A field added to package
// rule is covered by being there.
func TestSameSeesEveryField(t *testing.T) {
	labels := func() rule.Labels { return rule.Labels{{Key: "k", Op: rule.In, Values: []string{"v"}}} }
	selector := func() rule.Selector {
		return rule.Selector{Namespace: "n", NamespaceLabels: labels(), PodLabels: labels(), ServiceAccount: "s", AnyOf: []rule.Selector{{Namespace: "m"}}}
	}
	relation := func() rule.LabelRelation { return rule.LabelRelation{Op: rule.SameLabels, Keys: []string{"k"}} }
	newRule := func() *rule.Rule {
		return &rule.Rule{
			Subject: selector(), L4: []rule.L4{rule.AnyL4},
			Peers: []rule.Peer{{
				Pods: selector(), Relation: rule.Relation{NamespaceLabels: relation(), PodLabels: relation()},
				Block: rule.IPBlock{Prefix: netip.MustParsePrefix("10.0.0.0/8"), Except: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}},
			}},
		}
	}
	check(t, "Rule", newRule, func(a, b *rule.Rule) bool { return sameRule(a, b) })

	newIsolation := func() *rule.Isolation { return &rule.Isolation{Subject: selector()} }
	check(t, "Isolation", newIsolation, func(a, b *rule.Isolation) bool {
		p := &policyEntry{isolations: []*isolationEntry{{rule: a}}}
		return p.same(&rule.Set{Isolations: []rule.Isolation{*b}}, nil, []int32{0})
	})

	newPod := func() *rule.Endpoint {
		return &rule.Endpoint{
			Labels: map[string]string{"a": "b"}, NamespaceLabels: map[string]string{"a": "b"},
			Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, Ports: []rule.NamedPort{{Name: "p", Proto: flow.TCP, Port: 1}},
		}
	}
	check(t, "Endpoint", newPod, func(a, b *rule.Endpoint) bool { return diffFinds(t, a, b) })
}

// diffFinds reports whether a Live of pod a sees no difference to pod b.
func diffFinds(t *testing.T, a, b *rule.Endpoint) bool {
	l, _, err := NewLive(rule.Set{}, &rule.World{Endpoints: []rule.Endpoint{*a}}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	var found [2]bool // with lookups, and side by side
	for i, pods := range [][]rule.Endpoint{nil, {*a}} {
		d, err := l.diff(&rule.Set{}, pods, &rule.World{Endpoints: []rule.Endpoint{*b}})
		if err != nil {
			t.Fatal(err)
		}
		found[i] = len(d.Pods)+len(d.DropPods) == 0
	}
	if found[0] != found[1] {
		t.Errorf("looking up pods says %t, walking lists %t", found[0], found[1])
	}
	return found[0]
}

func check[T any](t *testing.T, name string, make func() *T, same func(a, b *T) bool) {
	t.Helper()
	if !same(make(), make()) {
		t.Fatalf("%s: equal ones differ", name)
	}
	n := 0
	for {
		b := make()
		left := n
		path, ok := spoil(reflect.ValueOf(b).Elem(), name, &left)
		if !ok {
			break
		}
		if same(make(), b) {
			t.Errorf("a change of %s is not seen", path)
		}
		n++
	}
	if n < 8 {
		t.Errorf("%s: only %d fields tried", name, n)
	}
}

// spoil changes the *left-th leaf of v, counting from zero, and returns its path.
func spoil(v reflect.Value, path string, left *int) (string, bool) {
	switch v.Interface().(type) {
	case netip.Prefix:
		return leafAt(v, path, left, reflect.ValueOf(netip.MustParsePrefix("192.0.2.0/24")))
	case netip.Addr:
		return leafAt(v, path, left, reflect.ValueOf(netip.MustParseAddr("192.0.2.1")))
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if p, ok := spoil(v.Field(i), path+"."+v.Type().Field(i).Name, left); ok {
				return p, true
			}
		}
	case reflect.Slice:
		if v.Len() > 0 {
			if p, ok := spoil(v.Index(0), path+"[0]", left); ok {
				return p, true
			}
		}
		longer := reflect.Append(v, reflect.Zero(v.Type().Elem()))
		if v.Type().Elem() == reflect.TypeFor[netip.Addr]() {
			longer = reflect.Append(v, reflect.ValueOf(netip.MustParseAddr("192.0.2.9")))
		}
		return leafAt(v, path+" (longer)", left, longer)
	case reflect.Map:
		other := reflect.MakeMap(v.Type())
		other.SetMapIndex(reflect.ValueOf("other"), reflect.ValueOf("label"))
		return leafAt(v, path, left, other)
	case reflect.String:
		return leafAt(v, path, left, reflect.ValueOf(v.String()+"x").Convert(v.Type()))
	case reflect.Bool:
		return leafAt(v, path, left, reflect.ValueOf(!v.Bool()).Convert(v.Type()))
	case reflect.Float64:
		return leafAt(v, path, left, reflect.ValueOf(v.Float()+1).Convert(v.Type()))
	case reflect.Int, reflect.Int32, reflect.Int64:
		return leafAt(v, path, left, reflect.ValueOf(v.Int()+1).Convert(v.Type()))
	case reflect.Uint8, reflect.Uint16:
		return leafAt(v, path, left, reflect.ValueOf(v.Uint()^1).Convert(v.Type()))
	default:
		panic("cannot change " + path)
	}
	return "", false
}

func leafAt(v reflect.Value, path string, left *int, to reflect.Value) (string, bool) {
	if *left > 0 {
		*left--
		return "", false
	}
	v.Set(to)
	return path, true
}

// TestDiffSorted compares walking two lists side by side with what a set would say,
// for all pairs of lists of four pods, each absent, there, or there with another
// label.
func TestDiffSorted(t *testing.T) {
	const pods, states = 4, 3
	all := 1
	for range pods {
		all *= states
	}
	list := func(code int) (out []rule.Endpoint) {
		for i := range pods {
			if state := code % states; state > 0 {
				// Names that sort differently alone than behind their namespace.
				out = append(out, rule.Endpoint{
					Namespace: []string{"a", "a", "b", "c"}[i], Name: []string{"y", "z", "a", "z"}[i], Labels: map[string]string{"l": strconv.Itoa(state)},
				})
			}
			code /= states
		}
		return out
	}
	for x := range all {
		for y := range all {
			old, world := list(x), list(y)
			var d Delta
			diffSorted(old, world, &d)
			now := map[PodName]string{}
			for _, e := range old {
				now[PodName{e.Namespace, e.Name}] = e.Labels["l"]
			}
			for _, n := range d.DropPods {
				if _, there := now[n]; !there {
					t.Errorf("%v → %v: drops %v, which is not there", old, world, n)
				}
				delete(now, n)
			}
			for _, e := range d.Pods {
				n := PodName{e.Namespace, e.Name}
				if now[n] == e.Labels["l"] {
					t.Errorf("%v → %v: %v has not changed", old, world, n)
				}
				now[n] = e.Labels["l"]
			}
			if len(now) != len(world) {
				t.Errorf("%v → %v: leads to %v", old, world, now)
			}
			for _, e := range world {
				if now[PodName{e.Namespace, e.Name}] != e.Labels["l"] {
					t.Errorf("%v → %v: leads to %v", old, world, now)
				}
			}
		}
	}
}
