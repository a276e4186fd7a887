package main

import (
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

// aLog is an audit log that a test writes.
type aLog struct {
	t    *testing.T
	path string
	seq  atomic.Int64
}

func newLog(t *testing.T, name string) *aLog {
	t.Helper()
	l := &aLog{t: t, path: filepath.Join(t.TempDir(), name)}
	l.write("")
	return l
}

func (l *aLog) write(text string) {
	l.t.Helper()
	f, err := os.OpenFile(l.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		l.t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(text); err != nil {
		l.t.Fatal(err)
	}
}

// flow writes a record of a connection from shop/FROM to shop/db.
func (l *aLog) flow(node, verdict, from string, port int) {
	l.t.Helper()
	l.write(fmt.Sprintf(`{"v":1,"kind":"flow","time":%q,"node":%q,"verdict":%q,"stage":"enforce","direction":"ingress","band":"networkpolicy","policy":{"group":"networking.k8s.io","kind":"NetworkPolicy","namespace":"shop","name":"db"},"rule":{"index":0},"reason":"rule","source":{"ip":"10.244.1.10","port":40000,"namespace":"shop","pod":%q},"destination":{"ip":"10.244.2.12","port":%d,"namespace":"shop","pod":"db"},"protocol":"TCP","count":1,"seq":%d}`+"\n",
		time.Now().UTC().Format(time.RFC3339Nano), node, verdict, from, port, l.seq.Add(1)))
}

// lost writes a record of n records that are missing.
func (l *aLog) lost(node string, n int) {
	l.t.Helper()
	l.write(fmt.Sprintf(`{"v":1,"kind":"lost","time":%q,"node":%q,"reason":"ring-full","count":%d,"seq":%d}`+"\n", time.Now().UTC().Format(time.RFC3339Nano), node, n, l.seq.Add(1)))
}

// Several logs are one stream; what is missing from them stands where it is missing; a
// pause, filters of every field, links, a reload and the browser's buttons do what they
// say.
func TestUIStream(t *testing.T) {
	one, two := newLog(t, "one.log"), newLog(t, "two.log")
	one.flow("n1", "Drop", "frontend", 5432)
	two.flow("n2", "Allow", "backend-0", 5432)
	b := openTab(t, 1280, 800)
	base := b.enter(startUI(t, "--manifests", quickstart, "--log", one.path, "--log", two.path))
	rows := func(n int) { t.Helper(); b.wait(fmt.Sprintf("document.querySelectorAll('tbody tr').length === %d", n)) }
	first := `document.querySelector("tbody tr")`
	b.visit(base, "/stream")
	rows(2)
	b.wait(`[...document.querySelectorAll("tbody tr")].map((r) => r.innerText.includes("n1") + "/" + r.innerText.includes("n2")).sort().join() === "false/true,true/false"`)
	b.wait(first + `.innerText.includes("Drop")`) // refusals first

	// What comes is added; what is missing is said, and counted.
	two.flow("n2", "Drop", "frontend", 80)
	rows(3)
	one.lost("n1", 17)
	b.wait(first + `.className === "lost" && ` + first + `.innerText.includes("17 records missing here")`)
	b.wait(`document.querySelector("[data-seen]").innerText.includes("17 lost") && document.querySelector("[data-seen]").dataset.seen === "4"`)
	b.shot("stream-lost")

	// A pause holds rows back and goes on counting.
	b.click("button", "Pause")
	one.flow("n1", "Drop", "frontend", 81)
	two.flow("n2", "Allow", "backend-0", 82)
	b.text("2 new rows waiting")
	rows(4)
	b.wait(`document.querySelector("[data-seen]").dataset.seen === "6"`)
	b.click("button", "Go on")
	rows(6)

	// Filters: buttons of verdicts, and a field for every word of "tierwall audit", with
	// its answers. What is missing is missing whatever is asked.
	b.click("button", "✕ Drop")
	b.wait(`location.search === "?verdict=Drop"`)
	rows(4)
	b.do(chromedp.Reload())
	rows(4)
	b.wait(`[...document.querySelectorAll("[aria-pressed=true]")].map((e) => e.textContent).join() === "✕ Drop"`)
	counts := map[int]bool{}
	for _, filter := range []string{
		"verdict=Allow", "policy=shop/db", "policy=shop/nothing", "from=shop/frontend", "to=shop/db port=81/TCP", "port=5432/TCP", "namespace=shop", "rule=ingress[0]", "node=n2",
		"band=networkpolicy", "band=admin", "reason=rule", "direction=egress", "pod=shop/backend-0", "cidr=10.244.1.0/24", "protocol=UDP", "stage=enforce", "kind=lost", "label=x",
	} {
		args, query := []string{"audit", "tail", "-n", "-1", "-o", "json"}, url.Values{}
		values := []string{}
		for _, word := range strings.Fields(filter) {
			name, value, _ := strings.Cut(word, "=")
			args = append(args, "--"+name, value)
			query.Add(name, value)
			if name != "verdict" {
				values = append(values, value)
			}
		}
		want := 0
		for _, path := range []string{one.path, two.path} {
			r := tierwall(t, "", append(args, path)...)
			if r.code != 0 {
				t.Fatalf("%s: %+v", filter, r)
			}
			want += strings.Count(r.out, "\n")
		}
		counts[want] = true
		b.visit(base, "/stream?"+query.Encode())
		b.text("live")
		b.wait(fmt.Sprintf("Number(document.querySelector('[data-seen]').dataset.seen ?? -1) === %d && document.querySelectorAll('tbody tr').length === %d", want, want))
		shown, _ := json.Marshal(values) // strings always can be
		b.wait(fmt.Sprintf(`[...document.querySelectorAll(".filters input")].map((i) => i.value).filter(Boolean).sort().join() === %s.sort().join() && (document.querySelector(".filters").checkVisibility() || !%d)`, shown, len(values)))
	}
	if len(counts) < 4 {
		t.Errorf("the filters leave %v records: they are hardly told apart", counts)
	}
	b.visit(base, "/stream?port=99999999")
	b.text("port")
	b.wait(`document.querySelector("main [role=alert]").textContent.includes("99999999")`)

	// A row leads to why, the browser's buttons back and forth.
	b.visit(base, "/stream?from=shop/frontend&port=5432/TCP")
	rows(2)
	b.click("tbody a", "TCP 5432")
	b.wait(`location.pathname === "/why" && location.search.includes("from=shop%2Ffrontend") && location.search.includes("port=5432%2FTCP")`)
	b.text("isolated by NetworkPolicy shop/db")
	b.do(chromedp.NavigateBack())
	rows(2)
	b.wait(`location.search.includes("from=shop")`)
	b.do(chromedp.NavigateForward())
	b.text("isolated by NetworkPolicy shop/db")
	b.do(chromedp.NavigateBack())
	rows(2)
	b.click("tbody a", "NetworkPolicy shop/db")
	b.wait(`document.querySelector("details.policy[open]")?.textContent.includes("shop/db")`)
	b.text("hits")
	b.calm(base)
}

// A log that is rotated away before it could be read is missing, and the page says so.
func TestUIStreamSaysWhatWasRotatedAway(t *testing.T) {
	log := newLog(t, "audit.log")
	log.flow("n1", "Drop", "frontend", 1)
	b := openTab(t, 1280, 800)
	base := b.enter(startUI(t, "--manifests", quickstart, "--log", log.path))
	b.visit(base, "/stream")
	b.wait("document.querySelectorAll('tbody tr').length === 1")
	// The numbers jump: four records went with a file that nobody could read any more.
	if err := os.Rename(log.path, log.path+".gone"); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(log.path + ".gone"); err != nil {
		t.Fatal(err)
	}
	log.seq.Add(4)
	log.flow("n1", "Drop", "frontend", 2)
	b.wait("document.querySelectorAll('tbody tr').length === 2")
	b.text("records 2 to 5 were rotated away")
	b.calm(base)
}
