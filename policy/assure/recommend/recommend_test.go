package recommend

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/assure"
	"github.com/tierwall/tierwall/policy/internal/fixture"
)

func open(t testing.TB, text string) *assure.World {
	t.Helper()
	w, err := assure.Open(assure.State{Snapshot: fixture.MustWorld(t, text).Inventory})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func pod(t testing.TB, w *assure.World, name string) *rule.Endpoint {
	t.Helper()
	for _, e := range w.Pods() {
		if assure.PodName(e) == name {
			return e
		}
	}
	t.Fatalf("no pod %s", name)
	return nil
}

// connection is one between pods or addresses.
func connection(t testing.TB, w *assure.World, from, to string, proto flow.Proto, port uint16) Connection {
	t.Helper()
	end := func(name string) End {
		if a, err := netip.ParseAddr(name); err == nil {
			return End{Addr: a}
		}
		e := pod(t, w, name)
		a, _ := e.Addr(true)
		return End{Namespace: e.Namespace, Pod: e.Name, Addr: a, Node: e.Node}
	}
	return Connection{From: end(from), To: end(to), Proto: proto, Port: port, SrcPort: 40000, Allowed: true, BySource: true, Count: 1}
}

// TestSelectors: the fewest labels that match just the pods of a workload.
func TestSelectors(t *testing.T) {
	const others = "namespace x\npod x/o app=web tier=front\npod x/p app=api tier=back release=a\n"
	for _, tt := range []struct{ world, pod, want string }{
		{others, "x/p", "app=api"},
		{others + "pod x/q app=api tier=front\n", "x/p", "tier=back"},
		{others + "pod x/q app=api tier=back\n", "x/p", "release=a"},
		{others + "pod x/q app=api tier=back release=b\npod x/r app=web tier=back release=a\n", "x/p", "app=api,release=a"},
		{others + "pod x/q app=api tier=back release=a canary=yes\n", "x/p", "app=api,!canary"},
		{others + "pod x/q app=api tier=back release=a\n", "x/p", "app=api"}, // one workload: the same labels
		{others + "pod x/q pod-template-hash=1\n", "x/q", "!app"},
		{"namespace x\npod x/only\n", "x/only", "{}"},
		{others + "pod x/q app.kubernetes.io/version=1 app=new\n", "x/q", "app=new"},
	} {
		w := open(t, tt.world)
		g := newGroups(w)
		u := g.of[pod(t, w, tt.pod)]
		g.reduce(u)
		if got := selectorText(&u.selector); got != tt.want || !u.exact {
			t.Errorf("%q: selector of %s is %s (exact: %v), want %s", tt.world, tt.pod, got, u.exact, tt.want)
		}
	}
}

// TestSelectorMatchesMore: pods that no selector can tell from the chosen ones are
// subjects as well: their connections count, and it is said.
func TestSelectorMatchesMore(t *testing.T) {
	w := open(t, "namespace x\npod x/a app=web\npod x/b app=web extra=1\npod x/c\npod x/d app=db\n")
	s := NewSeen(w, []*rule.Endpoint{pod(t, w, "x/c")}) // without labels: everything but app
	if len(s.subjects) != 1 {
		t.Errorf("%d subjects, want x/c alone", len(s.subjects))
	}
	w = open(t, "namespace x\npod x/a app=web\npod x/b app=web extra=1\npod x/d app=web other=1\npod x/e app=db\n")
	s = NewSeen(w, []*rule.Endpoint{pod(t, w, "x/a")})
	if len(s.subjects) != 3 {
		t.Fatalf("%d subjects, want a, b and d", len(s.subjects))
	}
	for _, from := range []string{"x/a", "x/b"} {
		c := connection(t, w, from, "x/e", flow.TCP, 5432)
		s.Add(&c)
	}
	c := connection(t, w, "x/d", "x/e", flow.TCP, 6379)
	s.Add(&c)
	r, err := s.Recommend(Options{})
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprint(r.Policies[0])
	if !strings.Contains(text, "6379") || !strings.Contains(text, "do not tell its pods from those of x/b, x/d") {
		t.Errorf("x/d's connection or the note is missing: %s", text)
	}
}

// TestManyAddresses: more outside addresses than anybody reads are taken together,
// for the port where they are many and nowhere else.
func TestManyAddresses(t *testing.T) {
	w := open(t, "namespace x\npod x/a app=a\n")
	s := NewSeen(w, w.Pods())
	for i := range 3 * maxAddresses {
		c := connection(t, w, netip.AddrFrom4([4]byte{203, 0, byte(i >> 8), byte(i)}).String(), "x/a", flow.TCP, 8080)
		s.Add(&c)
	}
	c := connection(t, w, "x/a", "198.51.100.7", flow.TCP, 443)
	s.Add(&c)
	if len(s.conns) > maxAddresses+1 {
		t.Errorf("%d connections are remembered", len(s.conns))
	}
	r, err := s.Recommend(Options{})
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprint(r.Policies, r.Notes)
	for _, want := range []string{"198.51.100.7/32", "203.0.11.0/24", "x/a from 8080/TCP: more than 1000 outside addresses, taken together to prefixes of 24 bits"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in %s", want, text)
		}
	}
	// Everything that was added is still covered.
	c = connection(t, w, "203.0.0.1", "x/a", flow.TCP, 8080)
	if v, _, _ := s.Judge(&c); v != Counted {
		t.Errorf("the first connection is %v after the addresses were widened", v)
	}
}

// TestManyConnections: the bound on all connections widens all outside addresses.
func TestManyConnections(t *testing.T) {
	w := open(t, "namespace x\npod x/a app=a\n")
	s := NewSeen(w, w.Pods())
	s.limit = 100
	for i := range 1000 {
		c := connection(t, w, fmt.Sprintf("203.0.113.%d", i%250), "x/a", flow.TCP, uint16(8000+i%40))
		s.Add(&c)
	}
	if len(s.conns) > s.limit {
		t.Errorf("%d connections are remembered, the bound is %d", len(s.conns), s.limit)
	}
	total := uint64(0)
	for _, c := range s.conns {
		total += c.count()
	}
	if total != 1000 {
		t.Errorf("%d connections counted, want 1000", total)
	}
	r, err := s.Recommend(Options{})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(fmt.Sprint(r.Notes), "more than 100 different connections") {
		t.Errorf("notes: %q", r.Notes)
	}
}

// TestNamesOfPods: controllers' names for pods, and what only looks like them.
func TestNamesOfPods(t *testing.T) {
	for _, tt := range []struct {
		pod, kind, name string
		want            bool
	}{
		{"web-6d4b75cb6d-hjklm", "Deployment", "web", true},
		{"web-api-6d4b75cb6d-hjklm", "Deployment", "web", false},
		{"web-admin-hjklm", "Deployment", "web", false},
		{"web-6d4b75cb6d-hjklm", "DaemonSet", "web", false},
		{"agent-x2z9k", "DaemonSet", "agent", true},
		{"agent-aeiou", "DaemonSet", "agent", false},
		{"db-0", "StatefulSet", "db", true},
		{"db-x", "StatefulSet", "db", false},
		{"clean-29012345-x2z9k", "CronJob", "clean", true},
		{"web", "Deployment", "web", false},
		{"web-1", "Pod", "web", false},
	} {
		if got := madeBy(tt.pod, &group{kind: tt.kind, name: tt.name}); got != tt.want {
			t.Errorf("%s of %s %s: %v, want %v", tt.pod, tt.kind, tt.name, got, tt.want)
		}
	}
}

// TestNames: an address that a rule let pass by its DNS name is written by the name
// where the language has names, and the table knows the addresses.
func TestNames(t *testing.T) {
	w := open(t, "namespace x\npod x/a app=a\n")
	for _, d := range Dialects {
		s := NewSeen(w, w.Pods())
		for _, a := range []string{"198.51.100.7", "198.51.100.8"} {
			c := connection(t, w, "x/a", a, flow.TCP, 443)
			c.Names = []string{"api.example.com"}
			s.Add(&c)
		}
		r, err := s.Recommend(Options{Dialect: d})
		if err != nil {
			t.Fatalf("%s: %v", d.Name, err)
		}
		text := fmt.Sprint(r.Policies)
		if byName := strings.Contains(text, "api.example.com"); byName != (d.nameSet != nil) || byName == strings.Contains(text, "198.51.100.7") {
			t.Errorf("%s: %s", d.Name, text)
		}
		a, _ := pod(t, w, "x/a").Addr(true)
		k := flow.Key{Src: flow.AddrFrom(a), Dst: flow.AddrFrom(netip.MustParseAddr("198.51.100.8")), Proto: flow.TCP, SrcPort: 40000, DstPort: 443}
		if v := r.Table.Lookup(k).Verdict; v != classifier.Allow {
			t.Errorf("%s: %v", d.Name, v)
		}
		if k.DstPort = 444; r.Table.Lookup(k).Verdict == classifier.Allow {
			t.Errorf("%s: another port is open", d.Name)
		}
	}
}

// TestDeniedOnly: connections that were all denied lead to no policy.
func TestDeniedOnly(t *testing.T) {
	w := open(t, "namespace x\npod x/a app=a\npod x/b app=b\n")
	s := NewSeen(w, w.Pods())
	c := connection(t, w, "x/a", "x/b", flow.TCP, 80)
	c.Allowed = false
	s.Add(&c)
	if r, err := s.Recommend(Options{}); !errors.Is(err, ErrNothing) || !strings.Contains(err.Error(), WhyDenied) {
		t.Errorf("%v, %v", r, err)
	}
	r, err := s.Recommend(Options{IncludeDenied: true})
	if err != nil || len(r.Policies) != 2 {
		t.Errorf("--include-denied: %v, %v", r, err)
	}
}

// TestRandomWorlds: in worlds of random labels and connections, and in every
// language, the policies allow what was seen, and open just as much more as they say.
func TestRandomWorlds(t *testing.T) {
	const worlds = 150
	opened := 0.0
	for seed := range uint64(worlds) {
		r := rand.New(rand.NewPCG(seed, 7))
		var b strings.Builder
		b.WriteString("namespace x\nnamespace y\n")
		for i := range 8 {
			fmt.Fprintf(&b, "pod %s/p%d", []string{"x", "y"}[r.IntN(2)], i)
			for _, k := range []string{"app", "tier", "team"} {
				if r.IntN(3) > 0 {
					fmt.Fprintf(&b, " %s=%d", k, r.IntN(3))
				}
			}
			b.WriteString("\n")
		}
		w := open(t, b.String())
		pods := w.Pods()
		chosen := slices.DeleteFunc(slices.Clone(pods), func(*rule.Endpoint) bool { return r.IntN(2) == 0 })
		opt := Options{Dialect: Dialects[seed%uint64(len(Dialects))], PortRanges: r.IntN(2) * 3, NoDNS: true}
		s := NewSeen(w, chosen)
		type conn struct {
			from, to *rule.Endpoint
			proto    flow.Proto
			port     uint16
		}
		seen := map[conn]bool{}
		for range 1 + r.IntN(30) {
			c := conn{pods[r.IntN(8)], pods[r.IntN(8)], []flow.Proto{flow.TCP, flow.UDP}[r.IntN(2)], uint16(80 + r.IntN(12))}
			if c.from == c.to {
				continue
			}
			x := connection(t, w, assure.PodName(c.from), assure.PodName(c.to), c.proto, c.port)
			s.Add(&x)
			seen[c] = true
		}
		rec, err := s.Recommend(opt)
		if errors.Is(err, ErrNothing) {
			continue
		}
		if err != nil {
			t.Fatalf("world %d: %v\n%s", seed, err, b.String())
		}
		drafted := map[*rule.Endpoint]bool{}
		for _, p := range rec.Policies {
			for _, u := range s.units {
				if u.title == p.Workload {
					for _, e := range u.matched {
						drafted[e] = true
					}
				}
			}
		}
		var want Tally
		for _, from := range pods {
			for _, to := range pods {
				if from == to || !drafted[from] && !drafted[to] {
					continue
				}
				a, _ := from.Addr(true)
				d, _ := to.Addr(true)
				for _, proto := range []flow.Proto{flow.TCP, flow.UDP, flow.SCTP} {
					for port := uint16(60); port < 120; port++ {
						ok := rec.Table.Lookup(flow.Key{Src: flow.AddrFrom(a), Dst: flow.AddrFrom(d), Proto: proto, SrcPort: 40000, DstPort: port}).Verdict == classifier.Allow
						was := seen[conn{from, to, proto, port}]
						if was && !ok {
							t.Errorf("world %d, %s: %s to %s %d/%s was seen and is denied\n%s", seed, opt.Dialect.Name, assure.PodName(from), assure.PodName(to), port, proto, b.String())
						}
						if ok {
							want.Opened++
						}
						if ok && was {
							want.Seen++
						}
					}
				}
			}
		}
		want.finish()
		if got := rec.NeverSeen.Connections; got != want {
			t.Errorf("world %d, %s: never seen %+v, by brute force %+v\n%s", seed, opt.Dialect.Name, got, want, b.String())
		}
		opened += want.Opened
	}
	if opened == 0 {
		t.Error("nothing was opened in any world")
	}
}
