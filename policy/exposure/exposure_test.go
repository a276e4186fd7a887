package exposure

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/oracle"
	"github.com/tierwall/tierwall/classifier/oracle/universe"
	"github.com/tierwall/tierwall/classifier/rule"
)

// covers reports whether a list of ports has that of a connection.
func covers(ports []string, k flow.Key) bool {
	for _, text := range ports {
		var first, last, typ, code int
		var name string
		switch {
		case text == "all", text == "all/"+k.Proto.String(), text == k.Proto.String(), text == fmt.Sprintf("protocol %d", k.Proto):
			return true
		case text == "other protocols":
			if !k.Proto.HasPorts() && k.Proto != flow.ICMP && k.Proto != flow.ICMPv6 {
				return true // unless a rule names the protocol, which this text does not tell
			}
		default:
			if n, _ := fmt.Sscanf(text, "%d-%d/%s", &first, &last, &name); n == 3 && name == k.Proto.String() && first <= int(k.DstPort) && int(k.DstPort) <= last {
				return true
			}
			if n, _ := fmt.Sscanf(text, "%d/%s", &first, &name); n == 2 && name == k.Proto.String() && first == int(k.DstPort) {
				return true
			}
			if n, _ := fmt.Sscanf(text, k.Proto.String()+" type %d code %d", &typ, &code); n == 2 && int(k.DstPort) == typ<<8|code {
				return true
			}
			if n, _ := fmt.Sscanf(text, k.Proto.String()+" types %d to %d", &first, &last); n == 2 && first <= int(k.DstPort>>8) && int(k.DstPort>>8) <= last {
				return true
			}
		}
	}
	return false
}

// ends of a world: which pod has an address, and whether it is in a range of pods and
// nobody's.
func endOf(world *rule.World, a flow.Addr) (pod *rule.Endpoint, unknown bool) {
	for i := range world.Endpoints {
		if e := &world.Endpoints[i]; slices.Contains(e.Addrs, a.Netip()) && !e.HostNetwork {
			return e, false
		}
	}
	in := false
	for i := range world.Nodes {
		if slices.Contains(world.Nodes[i].Addrs, a.Netip()) {
			return nil, false
		}
		for _, c := range world.Nodes[i].PodCIDRs {
			in = in || c.Contains(a.Netip())
		}
	}
	return nil, in
}

// TestOpenedIsWhatOpens (S0-65): for random policies of which a part is taken away,
// every connection that was denied and is allowed then, by the evaluator that walks the
// rules one by one, is in the list with its port; and every one listed is so.
func TestOpenedIsWhatOpens(t *testing.T) {
	r := rand.New(rand.NewPCG(65, 65))
	listed, found := 0, 0
	for range 1500 {
		set, world := universe.Random(r)
		world.Node = ""
		for i := range world.Endpoints { // a kind of its own each
			e := &world.Endpoints[i]
			labels := map[string]string{"pod": e.Name}
			for k, v := range e.Labels {
				labels[k] = v
			}
			e.Labels = labels
		}
		var less rule.Set
		for _, ru := range set.Rules {
			if r.IntN(2) == 0 {
				less.Rules = append(less.Rules, ru)
			}
		}
		for _, iso := range set.Isolations {
			if r.IntN(2) == 0 {
				less.Isolations = append(less.Isolations, iso)
			}
		}
		compile := func(s rule.Set) *classifier.Table {
			table, _, err := classifier.Compile(s, world, classifier.Options{})
			if err != nil {
				t.Fatal(err)
			}
			return table
		}
		out, complete := Opened(Side{compile(set), &set}, Side{compile(less), &less}, world, Options{})
		if !complete {
			t.Fatal("a small world is too large")
		}
		for _, o := range out {
			listed++
			was, now := oracle.Evaluate(&set, world, o.Key), oracle.Evaluate(&less, world, o.Key)
			if was.Verdict == classifier.Allow || now.Verdict != classifier.Allow || !covers(o.Ports, o.Key) {
				t.Fatalf("%s: before %s, after %s, listed as %v", o.Key, was.Verdict, now.Verdict, o.Ports)
			}
		}
		for range 200 {
			k := universe.RandomKey(r, world)
			src, unknownSrc := endOf(world, k.Src)
			dst, unknownDst := endOf(world, k.Dst)
			if unknownSrc || unknownDst || (k.Proto == flow.ICMP) != k.Src.Is4() && (k.Proto == flow.ICMP || k.Proto == flow.ICMPv6) ||
				k.Proto.HasPorts() && (k.SrcPort == 0 || k.DstPort == 0) {
				continue
			}
			if oracle.Evaluate(&set, world, k).Verdict == classifier.Allow || oracle.Evaluate(&less, world, k).Verdict != classifier.Allow {
				continue
			}
			found++
			same := func(e *End, pod *rule.Endpoint, a flow.Addr) bool {
				if pod == nil {
					return e.Namespace == "" && (e.Node == "" || e.Name == a.Netip().String())
				}
				return e.Name == pod.Namespace+"/"+pod.Name
			}
			if !slices.ContainsFunc(out, func(o Opening) bool {
				return same(&o.From, src, k.Src) && same(&o.To, dst, k.Dst) && covers(o.Ports, k)
			}) {
				t.Fatalf("S0-65: %s opens and is not listed\nbefore\n%s\nafter\n%s\nlisted %+v", k, set.Text(), less.Text(), out)
			}
		}
	}
	t.Logf("%d listed, %d found", listed, found)
	if listed < 5000 || found < 2000 {
		t.Errorf("%d listed, %d found: the universes do not cover it", listed, found)
	}
}
