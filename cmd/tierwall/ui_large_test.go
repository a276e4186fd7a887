package main

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/tierwall/tierwall/cmd/internal/cli"
	"github.com/tierwall/tierwall/cmd/internal/query"
	"github.com/tierwall/tierwall/policy/lower"
)

// Every view that answers questions does so among 10,000 pods and 2,000 policies.
func TestUILargeWorld(t *testing.T) {
	needBrowser(t)
	dir := t.TempDir()
	w := largeWorld()
	w.manifests(t, dir)
	b := openTab(t, 1280, 800)
	base := b.enter(startUI(t, "--manifests", dir))
	took := func(what string, began time.Time) { t.Logf("%s after %d ms", what, time.Since(began).Milliseconds()) }

	// All rows come, the ones in sight first.
	began := time.Now()
	b.visit(base, "/order")
	b.text("cluster-empower")
	took("order", began)
	b.wait(`document.querySelectorAll("details.policy").length === ` + strconv.Itoa(w.policies))
	took("all rows", began)
	b.fill("input[type=search]", "namespaces(\"team\"=[\"t7\"]) clusternetworkpolicy")
	b.wait(`/^\d+ of /.test(document.querySelector("main [role=status]").textContent) && document.querySelectorAll("details.policy").length < 200`)

	// Why: names are completed, the answer is the command's, the way can be opened.
	b.click("nav a", "Why")
	b.wait(`document.activeElement.getAttribute("aria-label") === "From"`)
	began = time.Now()
	b.do(chromedp.KeyEvent("ns19/p"))
	b.wait(`[...document.querySelectorAll("[role=listbox]:not([hidden]) [role=option]")].some((e) => e.textContent === "ns19/p1")`)
	took("names", began)
	b.do(chromedp.KeyEvent("1"), chromedp.KeyEvent(kb.Tab), chromedp.KeyEvent("ns105/p4"), chromedp.KeyEvent(kb.Tab), chromedp.KeyEvent("http/TCP"))
	began = time.Now()
	b.do(chromedp.KeyEvent(kb.Enter))
	b.text("Entering ns105/p4")
	took("why", began)
	r := tierwall(t, "", "explain", "--manifests", dir, "--from", "ns19/p1", "--to", "ns105/p4", "--port", "http/TCP")
	want, _, _ := strings.Cut(r.out, " ")
	if got := js[string](b, `document.querySelector(".verdict .big").textContent`); want == "" || !strings.HasSuffix(got, want) {
		t.Errorf("the page says %q, explain %q", got, r.out)
	}
	b.calm(base)

	// Matrix: all of it is counted, a cell leads to workloads and back.
	began = time.Now()
	b.visit(base, "/matrix?port=http/TCP")
	b.wait("performance.getEntriesByName('matrix-filled').length")
	took("cells in sight", began)
	b.wait("performance.getEntriesByName('matrix-complete').length")
	took("all cells", began)
	b.click("button", "Fit")
	b.wait(`location.search.includes("zoom=fit") && document.querySelector(".scroll").scrollHeight <= document.querySelector(".scroll").clientHeight + 2`)
	b.shot("matrix-large-fit")
	b.click("button", "+")
	b.wait(`/zoom=\d/.test(location.search)`)
	b.visit(base, "/matrix?port=http/TCP&row=ns9&col=ns105")
	b.text("Show by workload")
	b.shot("matrix-large")
	b.click("aside a", "Show by workload")
	b.wait(`document.querySelector(".crumb").textContent.includes("ns9 + ns105 by workload")`)
	b.wait(`document.querySelector("aside").textContent.includes("Choose a cell")`)
	b.do(chromedp.NavigateBack())
	b.wait(`document.querySelector("aside").textContent.includes("ns9 → ns105")`)
	b.calm(base)

	// Change: errors as they are typed, a comparison when it is asked for, and the page
	// answers other questions meanwhile.
	b.visit(base, "/change")
	began = time.Now()
	b.fill("textarea", strings.Replace(deny, "spec:", "spek:", 1))
	b.text(`unknown field "spek"`)
	took("an error", began)
	began = time.Now()
	b.fill("textarea", deny)
	b.text("new NetworkPolicy ns9/closed")
	took("a correct change", began)
	began = time.Now()
	b.click("section button, .empty button", "Compare")
	b.text("Comparing")
	slowest := js[float64](b, `(async () => {
		let slowest = 0;
		for (let i = 0; i < 10; i++) { const t = performance.now(); await (await fetch("/api/v1/world")).json(); slowest = Math.max(slowest, performance.now() - t); await new Promise((f) => setTimeout(f, 50)); }
		return slowest;
	})()`)
	b.wait(`/[\d,]+ opened, [\d,]+ closed/.test(document.querySelector("main").innerText)`)
	took("a comparison", began)
	t.Logf("the slowest other answer meanwhile took %.0f ms", slowest)
	if n := js[string](b, `/([\d,]+) closed/.exec(document.querySelector("main").innerText)[1]`); n == "0" {
		t.Error("a policy that isolates a namespace closes nothing")
	}
	b.shot("change-large")
	b.calm(base)
}

const deny = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: closed, namespace: ns9}
spec: {podSelector: {}, policyTypes: [Ingress]}
`

// The counts of the matrix are those of every pair of pods, with policies of every API,
// and with a change.
func TestUIReachIsExact(t *testing.T) {
	dir := t.TempDir()
	scale{namespaces: 12, podsEach: 12, policies: 240}.manifests(t, dir)
	in, err := cli.Load(dir, "", nil)
	if err != nil || in.Table == nil {
		t.Fatal(err)
	}
	files, err := cli.ReadFiles([]string{"-"}, "", strings.NewReader(deny))
	if err != nil {
		t.Fatal(err)
	}
	after, err := in.WithFiles(files, lower.Options{})
	if err != nil || after.Table == nil {
		t.Fatal(err)
	}
	g := query.NewGroups(in.Table, nil, in.Snapshot)
	changed := query.NewGroups(after.Table, g, after.Snapshot)
	mixed, closed := 0, 0
	for _, text := range []string{"http/TCP", "1000/TCP", "4004/TCP", "0/ICMP"} {
		p, err := query.ParsePort(text)
		if err != nil {
			t.Fatal(err)
		}
		type pair struct{ from, to string }
		was, is := map[pair]bool{}, map[pair]bool{}
		for f := range query.Matrix(in.Table, []query.Port{p}, query.AnyFamily) {
			was[pair{f.From, f.To}] = f.Verdict == "Allow"
		}
		for f := range query.Matrix(after.Table, []query.Port{p}, query.AnyFamily) {
			is[pair{f.From, f.To}] = f.Verdict == "Allow"
		}
		want, wantChanged := map[pair]query.Tally{}, map[pair]query.Tally{}
		for k, before := range was {
			if k.from == k.to {
				continue
			}
			from, _, _ := strings.Cut(k.from, "/")
			to, _, _ := strings.Cut(k.to, "/")
			x, y := want[pair{from, to}], wantChanged[pair{from, to}]
			x.Total++
			y.Total++
			if before {
				x.Allowed++
			}
			if is[k] {
				y.Allowed++
			}
			if is[k] && !before {
				y.Opened++
			}
			if before && !is[k] {
				y.Closed++
			}
			want[pair{from, to}], wantChanged[pair{from, to}] = x, y
		}
		for _, from := range g.Namespaces() {
			for _, to := range g.Namespaces() {
				k := pair{from.Name, to.Name}
				if got := g.Reach(from, to, p); got != want[k] {
					t.Errorf("%s %v: %+v, want %+v", text, k, got, want[k])
				} else if got.Allowed > 0 && got.Allowed < got.Total {
					mixed++
				}
				a, errA := changed.Group(from.Name)
				b, errB := changed.Group(to.Name)
				if errA != nil || errB != nil {
					t.Fatal(errA, errB)
				}
				if got := changed.Reach(a, b, p); got != wantChanged[k] {
					t.Errorf("%s %v, changed: %+v, want %+v", text, k, got, wantChanged[k])
				} else if got.Closed > 0 {
					closed++
				}
			}
		}
	}
	if mixed < 10 || closed < 10 {
		t.Errorf("%d cells are mixed and %d closed: the test compares nothing", mixed, closed)
	}
}
