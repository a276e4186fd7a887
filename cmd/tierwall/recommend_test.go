package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/cmd/internal/auditlog"
	"github.com/tierwall/tierwall/cmd/internal/cli"
	"github.com/tierwall/tierwall/cmd/internal/proposal"
	"github.com/tierwall/tierwall/dataplane/nstest"
	"github.com/tierwall/tierwall/policy/lower"
)

// recommended runs the command and returns its JSON.
func recommended(t *testing.T, code int, args ...string) proposal.Proposal {
	t.Helper()
	got := tierwall(t, "", append([]string{"recommend", "-o", "json"}, args...)...)
	if got.code != code {
		t.Fatalf("exit %d, want %d: %s%s", got.code, code, got.out, got.err)
	}
	var p proposal.Proposal
	if err := json.Unmarshal([]byte(got.out), &p); err != nil {
		t.Fatalf("%v in %s", err, got.out)
	}
	return p
}

// written runs the command for YAML and puts it into a directory.
func written(t *testing.T, args ...string) (dir, text string) {
	t.Helper()
	got := tierwall(t, "", append([]string{"recommend"}, args...)...)
	if got.code != 0 {
		t.Fatalf("exit %d: %s%s", got.code, got.out, got.err)
	}
	dir = t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "recommended.yaml"), []byte(got.out), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir, got.out
}

// onlyWorld is a directory with the objects of another one that are no policies.
func onlyWorld(t *testing.T, dir string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, "world.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	docs := slices.DeleteFunc(strings.Split(string(b), "---\n"), func(d string) bool { return strings.Contains(d, "Policy\n") })
	out := t.TempDir()
	if err := os.WriteFile(filepath.Join(out, "world.yaml"), []byte(strings.Join(docs, "---\n")), 0o644); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestRecommendRoundTrip: in every language the policies are accepted by check
// without a warning, deny nothing that came through, deny what did not, and do what
// the command says they do.
func TestRecommendRoundTrip(t *testing.T) {
	world := bigShop(t)
	l := newShopLog(t, world)
	shopTraffic(l, 20)
	log := l.done()
	plain := onlyWorld(t, world)
	for _, as := range []string{"networkpolicy", "clusternetworkpolicy", "antrea", "cilium"} {
		t.Run(as, func(t *testing.T) {
			p := recommended(t, 0, "--log", log, "-m", world, "-n", "shop", "--as", as)
			if p.WouldDeny != 0 || p.Lost != 0 || p.Replayed == 0 || len(p.Policies) != 10 {
				t.Errorf("would deny %d, lost %d, replayed %d, %d policies", p.WouldDeny, p.Lost, p.Replayed, len(p.Policies))
			}
			staged, text := written(t, "--log", log, "-m", world, "-n", "shop", "--as", as)
			if n := strings.Count(text, "tierwall.io/stage: audit\n"); n != len(p.Policies) {
				t.Errorf("%d of %d policies are staged", n, len(p.Policies))
			}
			enforced, text := written(t, "--log", log, "-m", world, "-n", "shop", "--as", as, "--enforce")
			if strings.Contains(text, "tierwall.io/stage") {
				t.Error("--enforce: a policy is staged")
			}
			for _, dir := range []string{staged, enforced} {
				got := tierwall(t, "", "check", "-m", dir, "-m", plain)
				if got.code != 0 || !strings.Contains(got.out, ": 0 errors, 0 warnings") {
					t.Errorf("check: exit %d\n%s%s", got.code, got.out, got.err)
				}
			}
			got := tierwall(t, "", "audit", "simulate", "--manifests", enforced, "--inventory", plain, "-o", "json", "-n", "-1", log)
			var r auditlog.SimulationReport
			if err := json.Unmarshal([]byte(got.out), &r); err != nil {
				t.Fatalf("%v: %s%s", err, got.out, got.err)
			}
			for _, c := range r.Changes {
				denied := strings.HasPrefix(c.From, "shop/web-") && strings.HasPrefix(c.To, "shop/db-") // by db's node
				if c.Before.Verdict == "Allow" && !denied || c.After.Verdict == "Allow" {
					t.Errorf("simulate: %+v", c)
				}
			}
			in, err := cli.LoadWith(lower.Options{}, []string{enforced, plain}, "", nil)
			if err != nil || in.Table == nil {
				t.Fatal(err)
			}
			opened, seen := brute(t, in.Table, log)
			if c := p.NeverSeen.Connections; c.Opened != opened || c.Seen != seen || c.NeverSeen != opened-seen {
				t.Errorf("never seen: %+v, by brute force %v opened, %v seen", c, opened, seen)
			}
			if as == "clusternetworkpolicy" { // cannot name sources outside
				return
			}
			extra := 0.0
			if as == "cilium" { // all nodes: node 2 to web's pods on node 1
				extra = 2
			}
			if o := p.NeverSeen.Outside; o.NeverSeen != extra || o.Opened != 3*5+1+1+1+extra { // web's pods and clients, node 1 to web's pod on node 2, two APIs
				t.Errorf("outside: %+v", o)
			}
		})
	}
}

// brute counts what a table allows between the shop's pods and all others, by
// asking about every port that may be open, and what of it the log has.
func brute(t *testing.T, table *classifier.Table, log string) (opened, seen float64) {
	t.Helper()
	type conn struct {
		from, to, proto string
		port            uint16
	}
	inLog := map[conn]bool{}
	b, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		var r struct {
			Verdict, Direction, Protocol string
			Source, Destination          struct {
				Namespace, Pod string
				Port           uint16
			}
		}
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		if r.Verdict == "Allow" && r.Direction == "ingress" && r.Source.Pod != "" {
			inLog[conn{r.Source.Namespace + "/" + r.Source.Pod, r.Destination.Namespace + "/" + r.Destination.Pod, r.Protocol, r.Destination.Port}] = true
		}
	}
	pods := table.World().Endpoints
	for i := range pods {
		for j := range pods {
			a, b := &pods[i], &pods[j]
			idle := func(name string) bool { return strings.HasPrefix(name, "idle-") } // has no policy
			if i == j || !(a.Namespace == "shop" && !idle(a.Name)) && !(b.Namespace == "shop" && !idle(b.Name)) {
				continue
			}
			k := flow.Key{Src: flow.AddrFrom(a.Addrs[0]), Dst: flow.AddrFrom(b.Addrs[0]), SrcPort: 40000}
			for proto, last := range map[flow.Proto]int{flow.TCP: 10000, flow.UDP: 100, flow.SCTP: 10, 47: 0} {
				k.Proto = proto
				for port := min(1, last); port <= last; port++ {
					k.DstPort = uint16(port)
					if table.Lookup(k).Verdict != classifier.Allow {
						continue
					}
					opened++
					if inLog[conn{a.Namespace + "/" + a.Name, b.Namespace + "/" + b.Name, proto.String(), k.DstPort}] {
						seen++
					}
				}
			}
		}
	}
	return opened, seen
}

// TestRecommendTightness: on the shop's log nothing is opened between workloads that
// was never seen but DNS, which is said.
func TestRecommendTightness(t *testing.T) {
	world := bigShop(t)
	l := newShopLog(t, world)
	shopTraffic(l, 20)
	p := recommended(t, 0, "--log", l.done(), "-m", world, "-n", "shop")
	w := p.NeverSeen.Workloads
	t.Logf("never seen: %.1f%% of %.0f between workloads, %.1f%% of %.0f between pods", 100*w.Share, w.Opened, 100*p.NeverSeen.Connections.Share, p.NeverSeen.Connections.Opened)
	// 18 kinds of connections between workloads; DNS of catalog, search, payments
	// and mailer, and TCP beside UDP for web, cart and orders, was never seen. search
	// opens nothing.
	if w.Seen != 11+3+7 || w.NeverSeen != 3*2+3 {
		t.Errorf("between workloads: %+v", w)
	}
	for _, o := range p.NeverSeen.List {
		if o.To != "kube-system/coredns" || o.Ports != [2]uint16{53, 53} {
			t.Errorf("opened and never seen: %+v", o)
		}
	}
	exact := recommended(t, 0, "--log", l.paths[0], "--log", l.paths[1], "-m", world, "-n", "shop", "--no-dns")
	if w := exact.NeverSeen.Workloads; w.NeverSeen != 3 { // TCP beside UDP
		t.Errorf("--no-dns: between workloads: %+v", w)
	}
	half := recommended(t, 0, "--log", l.paths[0], "-m", world, "-n", "shop")
	if !strings.Contains(fmt.Sprint(half.Notes), "nothing recorded by n2,") || strings.Contains(fmt.Sprint(p.Notes), "nothing recorded") {
		t.Errorf("a node without a log: notes %v", half.Notes)
	}
	if exact.Connections != p.Connections || exact.Decisions != p.Decisions {
		t.Errorf("one log of two nodes: %d connections, two logs: %d", p.Connections, exact.Connections)
	}
	// 17 kinds of 20 (web to db was denied, the node's to its own pods need no rule),
	// 5 clients, 7 scrapes; 20 times each.
	fromNode := uint64(0)
	for _, n := range p.Notes {
		if strings.Contains(n.Text, "from a node to its own pods") {
			if _, err := fmt.Sscan(n.Text, &fromNode); err != nil {
				t.Fatal(err)
			}
		}
	}
	if want := uint64(20*(17+5+7)) - fromNode; p.Connections != want || fromNode == 0 {
		t.Errorf("%d connections, want %d (each once, whichever nodes recorded it)", p.Connections, want)
	}
}

// TestRecommendUncovered: what is not covered is listed with the reason.
func TestRecommendUncovered(t *testing.T) {
	world := bigShop(t)
	l := newShopLog(t, world)
	l.connect(5, "shop/web", "shop/cart", "8080/TCP")
	l.connect(5, "shop/web", "shop/cart", "8/ICMP")
	l.connect(5, "shop/web", "shop/db", "5432/TCP")
	log := l.done()
	why := func(p proposal.Proposal) (out []string) {
		for _, u := range p.Uncovered {
			out = append(out, u.From+" "+u.To+" "+u.Port+": "+u.Why)
		}
		slices.Sort(out)
		return out
	}
	np := recommended(t, 1, "--log", log, "-m", world, "-n", "shop")
	want := []string{
		"shop/web shop/cart ICMP type 8 code 0: networkpolicy policies cannot allow ICMP",
		"shop/web shop/db 5432/TCP: it was denied",
	}
	if got := why(np); !slices.Equal(got, want) || np.WouldDeny == 0 {
		t.Errorf("NetworkPolicy: %q, would deny %d", got, np.WouldDeny)
	}
	for _, as := range []string{"cilium", "antrea"} {
		p := recommended(t, 0, "--log", log, "-m", world, "-n", "shop", "--as", as)
		if got := why(p); !slices.Equal(got, want[1:]) {
			t.Errorf("%s: %q", as, got)
		}
	}
	all := recommended(t, 0, "--log", log, "-m", world, "-n", "shop", "--as", "cilium", "--include-denied")
	if len(all.Uncovered) != 0 {
		t.Errorf("--include-denied: %+v", all.Uncovered)
	}
}

// TestRecommendNothing: a log that leads to no policy is an error that says what to
// do, and no policy is written.
func TestRecommendNothing(t *testing.T) {
	world := bigShop(t)
	l := newShopLog(t, world)
	l.connect(5, "shop/web", "shop/cart", "8080/TCP")
	log := l.done()
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	b, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	empty := write("empty.log", "")
	text := write("text.log", "2026/01/02 IngressRule K8sNetworkPolicy:shop/db Allow\n")
	other := write("other.log", strings.ReplaceAll(string(b), `"namespace":"shop"`, `"namespace":"other"`))
	void := filepath.Join(dir, "void")
	if err := os.Mkdir(void, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args string
		want string
	}{
		{"-m " + world, "--log is required"},
		{"--log " + empty + " -m " + world, "no record in " + empty},
		{"--log " + text + " -m " + world, "give a log in JSON"},
		{"--log " + dir + "/none.log -m " + world, "read the log"},
		{"--log " + void + " -m " + world, "neither audit.log nor"},
		{"--log " + other + " -m " + world, "the log is about other pods than the manifests: it has other/"},
		{"--log " + log + " -m " + world + " -n shp", "no namespace shp; there is shop"},
		{"--log " + log + " -m " + world + " shop/wbe", "no pod or workload shop/wbe; there is shop/"},
		{"--log " + log + " -m " + world + " -n monitoring", "none of 6 decisions in the log is about monitoring/prometheus"},
		{"--log " + log + " -m " + world + " 203.0.113.7", "203.0.113.7 is no workload"},
		{"--log " + log + " -m " + world + " --as calico", "there is networkpolicy, clusternetworkpolicy, antrea, cilium"},
		{"--log " + log + " -m " + world + " --merge-cidrs 33", "want a prefix length"},
		{"--log " + log + " -m " + world + " --port-ranges=-1", "want a distance"},
		{"--log " + log + " -m " + world + " --since someday", "want how long ago"},
		{"--log " + log + " -m " + world + " --until 2020-01-01", "no decision about a connection"},
	} {
		got := tierwall(t, "", append([]string{"recommend"}, strings.Fields(tt.args)...)...)
		if got.code != 2 || got.out != "" || !strings.Contains(got.err, tt.want) {
			t.Errorf("%s: exit %d, want 2 and %q\n%s%s", tt.args, got.code, tt.want, got.out, got.err)
		}
	}
}

// TestRecommendLosses: a log with losses, or with lines that are no records, is not
// complete; the answer and the exit code say so.
func TestRecommendLosses(t *testing.T) {
	world := bigShop(t)
	l := newShopLog(t, world)
	l.connect(5, "shop/web", "shop/cart", "8080/TCP")
	log := l.done()
	b, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	loss := `{"v":1,"kind":"lost","time":"2026-01-02T03:04:06Z","until":"2026-01-02T03:04:07Z","reason":"ring-full","count":117}` + "\n"
	if err := os.WriteFile(log, append(b, loss...), 0o644); err != nil {
		t.Fatal(err)
	}
	if p := recommended(t, 1, "--log", log, "-m", world, "-n", "shop"); p.Lost != 117 || p.WouldDeny != 0 || len(p.Policies) != 2 {
		t.Errorf("lost %d, would deny %d, %d policies", p.Lost, p.WouldDeny, len(p.Policies))
	}
	got := tierwall(t, "", "recommend", "--log", log, "-m", world, "-n", "shop")
	if got.code != 1 || !strings.Contains(got.out, "117 missing") || !strings.Contains(got.err, "117 records are missing in the log") {
		t.Errorf("exit %d\n%s%s", got.code, got.out, got.err)
	}
	if err := os.WriteFile(log, append(b, "{\"v\":1,\"ki\n"...), 0o644); err != nil {
		t.Fatal(err)
	}
	if p := recommended(t, 1, "--log", log, "-m", world, "-n", "shop"); p.Bad != 1 {
		t.Errorf("bad %d", p.Bad)
	}
}

// TestRecommendGoneAndAnswers: pods that were replaced count as their workload, and
// answers are no connections.
func TestRecommendGoneAndAnswers(t *testing.T) {
	world := bigShop(t)
	l := newShopLog(t, world)
	l.connect(5, "shop/web", "shop/cart", "8080/TCP")
	l.connect(5, "shop/web", "kube-system/coredns", "53/UDP")
	answer := flow.Key{
		Src: flow.AddrFrom(l.addr("kube-system/coredns")), Dst: flow.AddrFrom(l.addr("shop/web")), Proto: flow.UDP, SrcPort: 53, DstPort: 40123,
	}
	l.send(answer, 0)
	log := l.done()
	b, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.NewReplacer("web-6d4b75cb6d-bcdfg", "web-7f9c6d5b48-x2z9k", "web-6d4b75cb6d-hjklm", "web-7f9c6d5b48-qq2vw", "web-6d4b75cb6d-npqrs", "web-7f9c6d5b48-b4t7n",
		"cart-6d4b75cb6d-bcdfg", "someone").Replace(string(b))
	if err := os.WriteFile(log, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	p := recommended(t, 0, "--log", log, "-m", world, "-n", "shop")
	if p.WouldDeny != 0 {
		t.Errorf("would deny %+v", p.Denied)
	}
	notes := fmt.Sprint(p.Notes)
	for _, want := range []string{"of the log, not in the manifests, counted as shop/web", "about packets of connections in the other direction"} {
		if !strings.Contains(notes, want) {
			t.Errorf("no note %q in %s", want, notes)
		}
	}
	if strings.Contains(fmt.Sprint(p.Policies), "40123") {
		t.Error("an answer opened its port")
	}
	if len(p.Uncovered) == 0 || !strings.Contains(p.Uncovered[0].To, "shop/someone") {
		t.Errorf("a pod nobody knows is not listed: %+v", p.Uncovered)
	}
}

// TestRecommendGeneralises: port ranges and prefixes only where they are asked for,
// and with a note.
func TestRecommendGeneralises(t *testing.T) {
	world := bigShop(t)
	l := newShopLog(t, world)
	for i := range 4 {
		l.connect(3, "shop/web", "shop/cart", fmt.Sprintf("%d/TCP", 8080+i))
		l.connect(3, "shop/payments", fmt.Sprintf("198.51.100.%d", 7+i), "443/TCP")
	}
	l.connect(3, "shop/web", "shop/cart", "8100/TCP")
	log := l.done()
	_, text := written(t, "--log", log, "-m", world, "-n", "shop")
	if strings.Contains(text, "endPort") || strings.Count(text, "/32\n") != 4 {
		t.Errorf("generalised without being asked:\n%s", text)
	}
	_, text = written(t, "--log", log, "-m", world, "-n", "shop", "--port-ranges", "--merge-cidrs", "28")
	for _, want := range []string{"endPort: 8083\n", "port: 8100\n", "cidr: 198.51.100.0/28\n", "# addresses: 198.51.100.0/28 stands for 4 addresses that were seen"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	p := recommended(t, 0, "--log", log, "-m", world, "-n", "shop", "--port-ranges=20", "--merge-cidrs", "28", "--no-dns")
	if o := p.NeverSeen.Outside; o.Opened != 16 || o.Seen != 4 {
		t.Errorf("outside: %+v", o)
	}
	if w := p.NeverSeen.Workloads; w.Opened != 21 || w.Seen != 5 {
		t.Errorf("between workloads: %+v", w)
	}
	if !strings.Contains(fmt.Sprint(p.Notes), "8080-8100/TCP of shop/cart stands for 5 ports that were seen") {
		t.Errorf("notes: %v", p.Notes)
	}
}

// TestRecommendHostileNames: names from the log and the manifests stay inside
// comments and values.
func TestRecommendHostileNames(t *testing.T) {
	world := bigShop(t)
	l := newShopLog(t, world)
	l.connect(60, "shop/web", "shop/cart", "8080/TCP")
	log := l.done()
	b, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	evil := `x\n---\napiVersion: v1\nkind: Evil\n# \u001b[31m\u202e`
	text := strings.ReplaceAll(string(b), "cart-6d4b75cb6d-bcdfg", evil)
	text = strings.ReplaceAll(text, `"node":"n1"`, `"node":"n1`+evil+`"`)
	if text == string(b) {
		t.Fatal("nothing hostile in the log")
	}
	if err := os.WriteFile(log, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	dir, out := written(t, "--log", log, "-m", world, "-n", "shop")
	for line := range strings.Lines(out) {
		if !strings.HasPrefix(line, "#") && strings.Contains(line, "Evil") {
			t.Errorf("outside of a comment: %q", line)
		}
	}
	if strings.ContainsAny(out, "\x1b\u202e") {
		t.Error("control characters in the output")
	}
	in, err := cli.LoadWith(lower.Options{}, []string{dir, onlyWorld(t, world)}, "", nil)
	if err != nil || in.Table == nil || !slices.Equal(slices.Sorted(maps.Keys(map[int]bool{len(in.Objects): true})), []int{2}) {
		t.Errorf("%v: %d objects, want 2", err, len(in.Objects))
	}
}

// TestRecommendExample: the log beside the examples is what daemons write in their
// shop; -update writes it.
func TestRecommendExample(t *testing.T) {
	l := newShopLog(t, "../../deploy/examples/quickstart")
	for _, c := range []struct{ from, to, port string }{
		{"shop/frontend", "shop/backend-0", "8080/TCP"},
		{"shop/frontend", "shop/backend-1", "9090/TCP"},
		{"shop/backend-0", "shop/db", "5432/TCP"},
		{"shop/backend-1", "shop/db", "5432/TCP"},
		{"monitoring/prometheus", "shop/db", "9100/TCP"},
		{"203.0.113.7", "shop/frontend", "8080/TCP"},
		{"shop/frontend", "shop/db", "5432/TCP"}, // denied
	} {
		l.connect(5, c.from, c.to, c.port)
	}
	got, err := os.ReadFile(l.done())
	if err != nil {
		t.Fatal(err)
	}
	path := "../../deploy/examples/recommend/audit.log"
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Errorf("%s is not what is written now (run with -update and read the change)", path)
	}
}

// TestRecommendDemo: on the log of the demo's real daemon nothing would be denied, in
// any language.
func TestRecommendDemo(t *testing.T) {
	nstest.Need(t, runs("nfqueue"))
	lock, err := os.Create(filepath.Join(os.TempDir(), "tierwall-test-keep.lock")) // as TestDemoKeep: names are the machine's
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	p := startProgram(t, nil, "demo", "--keep", "--dataplane", "nfqueue")
	p.waitFor(t, "daemon's log")
	logs, err := filepath.Glob(filepath.Join(p.tmp, "tierwall-demo-*", "audit.log"))
	if err != nil || len(logs) != 1 {
		t.Fatal(logs, err)
	}
	for _, as := range []string{"networkpolicy", "clusternetworkpolicy", "antrea", "cilium"} {
		got := recommended(t, 0, "--log", logs[0], "-m", filepath.Join(filepath.Dir(logs[0]), "manifests"), "--as", as)
		if got.WouldDeny != 0 || got.Replayed == 0 || len(got.Policies) != 9 {
			t.Errorf("%s: would deny %d of %d, %d policies", as, got.WouldDeny, got.Replayed, len(got.Policies))
		}
		if got.Partial == 0 {
			t.Errorf("%s: the demo's policies audit themselves only, and it is not said", as)
		}
	}
	if err := p.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	p.end(t, patience)
}
