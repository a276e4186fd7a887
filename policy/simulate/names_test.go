package simulate

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/inventory"
)

// TestNames: X-45.
func TestNames(t *testing.T) {
	names := []string{"foobar.com", "www.foobar.com", "test.uswest.foobar.com", "notfoobar.com", "foobar.com.example.org"}
	for _, tt := range []struct {
		api     func(string) func(string) bool
		pattern string
		want    string
	}{
		{antreaName, "*foobar.com", "++++."}, // S4-21
		{antreaName, "*.foobar.com", ".++.."},
		{antreaName, "foobar.com", "+...."},
		{antreaName, "w*.f*bar.com", ".+..."},
		{antreaName, "FooBar.com.", "+...."},
		{upstreamName, "*.foobar.com", ".++.."},
		{upstreamName, "foobar.com", "+...."},
		{upstreamName, "foobar.com.", "+...."},
		{ciliumName, "*.foobar.com", ".+..."},
		{ciliumName, "**.foobar.com", ".++.."},
		{ciliumName, "*foobar.com", "+..+."},
		{ciliumName, "*", "+++++"},
		{ciliumName, "foobar.com", "+...."},
	} {
		got := ""
		for _, n := range names {
			if tt.api(tt.pattern)(n) {
				got += "+"
			} else {
				got += "."
			}
		}
		if got != tt.want {
			t.Errorf("%s: %s, want %s", tt.pattern, got, tt.want)
		}
	}
}

// TestResolve: once a name has an address, rules about it match.
func TestResolve(t *testing.T) {
	inv := world(t, "x", "x/a app=client", "x/b")
	for _, tt := range []struct{ doc, want string }{
		// S2-93
		{acnp("p", "platform", 1, all+"  egress: [{name: some, action: Drop, to: [{fqdn: '*foobar.com'}]}]\n"), "Drop /p some, default, default"},
		{acnp("p", "platform", 1, all+"  egress: [{name: some, action: Drop, to: [{fqdn: svcA.default.svc.cluster.local}]}]\n"), "Drop /p some, default, default"}, // S2-94
		// S4-20
		{acnp("p", "platform", 1, all+"  egress: [{name: some, action: Allow, to: [{fqdn: '*foobar.com'}], ports: [{port: 80}]}, {name: rest, action: Drop}]\n"), "Allow /p some, Drop /p rest, Drop /p rest"},
		{release("p", 1, "  subject: {namespaces: {}}\n  egress: [{name: some, action: Allow, to: [{domainNames: ['*.foobar.com']}]}, {name: rest, action: Deny, to: [{networks: [0.0.0.0/0]}]}]\n"), "Allow /p some, Drop /p rest, Drop /p rest"},
		{ciliumDoc("x", "p", everyPod+"  egress: [{toFQDNs: [{matchName: www.foobar.com}]}]\n"), "Allow x/p egress[0], Drop [x/p], Drop [x/p]"},
	} {
		s, err := New(objects(t, tt.doc), inv, "")
		if err != nil {
			t.Fatal(err)
		}
		s.Resolve(map[string][]netip.Addr{"www.foobar.com": addrs("192.0.2.1", "10.0.0.2"), "svca.default.svc.cluster.local": addrs("192.0.2.1"), "example.org": addrs("192.0.2.9")})
		wants := strings.Split(tt.want, ", ")
		check(t, s, inv, "x/a > 192.0.2.1 80/TCP: "+wants[0]+"; not-local v4only")
		check(t, s, inv, "x/a > 192.0.2.9 80/TCP: "+wants[1]+"; not-local v4only")
		check(t, s, inv, "x/a > 192.0.2.8 80/TCP: "+wants[2]+"; not-local v4only")
	}
}

// Names the universe's policies may ask for, and what they resolve to.
var resolvable = []string{"foobar.com", "www.foobar.com", "a.b.foobar.com", "notfoobar.com"}

// learn fills the sets only DNS can fill, as DNS learning will: the set's name
// says the pattern and whose it is.
func learn(w *rule.World, inv *inventory.Snapshot, names map[string][]netip.Addr) {
	for set := range w.Sets {
		api, pattern, _ := strings.Cut(set, ":")
		matcher, worldOnly := antreaName(pattern), false
		switch api {
		case "fqdn":
		case "domain":
			matcher = upstreamName(pattern)
		case "cilium-fqdn":
			matcher, worldOnly = ciliumName(pattern), true
		default:
			continue
		}
		for name, as := range names {
			for _, a := range as {
				if matcher(name) && !(worldOnly && inCluster(inv, a)) {
					w.Sets[set] = append(w.Sets[set], netip.PrefixFrom(a, a.BitLen()))
				}
			}
		}
	}
}

func inCluster(inv *inventory.Snapshot, a netip.Addr) bool {
	return slices.ContainsFunc(inv.Pods, func(p inventory.Pod) bool { return slices.Contains(p.IPs, a) }) ||
		slices.ContainsFunc(inv.Nodes, func(n inventory.Node) bool { return slices.Contains(n.Addrs, a) })
}
