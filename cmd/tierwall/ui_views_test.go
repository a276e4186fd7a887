package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

func (b *browser) onNewDocument(ctx context.Context, script string) error {
	_, err := page.AddScriptToEvaluateOnNewDocument(script).Do(ctx)
	return err
}

// Each view shows the quickstart.
func TestUIViews(t *testing.T) {
	b := openTab(t, 1280, 800)
	base := b.enter(startUI(t, "--manifests", quickstart))
	b.text("monitoring")
	b.text("The order that counts")
	b.shot("order")
	b.visit(base, "/why?from=shop/frontend&to=shop/db&port=5432/TCP")
	b.text("isolated by")
	b.shot("why")
	b.visit(base, "/matrix?port=5432/TCP")
	b.wait("performance.getEntriesByName('matrix-filled').length")
	b.shot("matrix")
	b.visit(base, "/change")
	b.shot("change")
	b.visit(base, "/stream")
	b.text("no audit log is known")
	b.visit(base, "/nodes")
	b.text("no daemon is known")
	b.calm(base)
}

// click clicks the first element that has a text.
func (b *browser) click(selector, text string) {
	b.tb.Helper()
	b.wait(fmt.Sprintf(`[...document.querySelectorAll(%q)].some((e) => e.textContent.includes(%q))`, selector, text))
	js[bool](b, fmt.Sprintf(`[...document.querySelectorAll(%q)].find((e) => e.textContent.includes(%q)).click() || true`, selector, text))
}

// fill types into a field.
func (b *browser) fill(selector, text string) {
	b.tb.Helper()
	js[bool](b, fmt.Sprintf(`(() => { const e = document.querySelector(%q); e.focus(); e.value = %q; e.dispatchEvent(new Event("input", { bubbles: true })); return true; })()`, selector, text))
}

// People go from the order to a policy, to its change, ask why by keyboard alone, and
// come back with the browser's own button; every place can be reloaded.
func TestUIWays(t *testing.T) {
	b := openTab(t, 1280, 800)
	base := b.enter(startUI(t, "--manifests", quickstart))
	b.text("monitoring")
	b.fill("input[type=search]", "backend")
	b.text("1 of 3 policies")
	b.wait(`location.search === "?q=backend"`)
	b.do(chromedp.Reload())
	b.text("1 of 3 policies")
	b.click("nav a", "Why")
	b.wait(`document.activeElement.getAttribute("aria-label") === "From"`)
	// Names are completed: two letters, an arrow, Enter; tabs lead on.
	b.do(chromedp.KeyEvent("fro"))
	b.wait(`document.querySelector("[role=listbox]:not([hidden]) [role=option]").textContent === "shop/frontend"`)
	b.do(chromedp.KeyEvent(kb.ArrowDown), chromedp.KeyEvent(kb.Enter), chromedp.KeyEvent(kb.Tab), chromedp.KeyEvent("shop/db"), chromedp.KeyEvent(kb.Tab), chromedp.KeyEvent("5432/TCP"), chromedp.KeyEvent(kb.Enter))
	b.text("isolated by NetworkPolicy shop/db")
	b.wait(`location.search === "?from=shop%2Ffrontend&to=shop%2Fdb&port=5432%2FTCP"`)
	b.click("main a", "NetworkPolicy shop/db")
	b.wait(`document.querySelector("details.policy[open]")?.textContent.includes("shop/db")`)
	b.do(chromedp.NavigateBack())
	b.text("isolated by NetworkPolicy shop/db")
	b.do(chromedp.NavigateForward())
	b.wait(`document.querySelector("details.policy[open]")`)
	b.click("main a", "Try a change")
	b.wait(`document.querySelector("textarea")?.value.includes("app: backend")`)
	b.click("nav a", "Matrix")
	b.wait(`performance.getEntriesByName("matrix-filled").length`)
	js[bool](b, `document.querySelector(".scroll canvas").focus() || true`)
	for range 5 { // to shop/frontend's row, and to shop/db's column
		b.do(chromedp.KeyEvent(kb.ArrowDown))
	}
	for range 4 {
		b.do(chromedp.KeyEvent(kb.ArrowRight))
	}
	b.do(chromedp.KeyEvent(kb.Enter))
	b.wait(`location.search.includes("row=shop%2Ffrontend") && location.search.includes("col=shop%2Fdb")`)
	b.click("aside a", "Why? shop/frontend → shop/db")
	b.text("Drop")
	b.do(chromedp.NavigateBack())
	b.wait(`document.querySelector("aside")?.textContent.includes("shop/frontend → shop/db")`)
	b.calm(base)
}

// Ends that are several pods are answered by cases, an address that a rule by name may be
// about without a verdict, as by the command.
func TestUIWhyOfSeveral(t *testing.T) {
	b := openTab(t, 1280, 800)
	base := b.enter(startUI(t, "--manifests", quickstart))
	b.visit(base, "/why?from=ns:shop&to=shop/db&port=5432/TCP")
	b.text("not all with one verdict")
	b.wait(`document.querySelector(".verdict .big").textContent.endsWith("Mixed") && document.querySelectorAll("details.case").length === 2`)
	b.text("shop/backend-0, shop/backend-1 → shop/db")
	b.click("details.case:not([open]) summary", "shop/db")
	b.wait(`document.querySelectorAll("details.case[open] .side").length === 4`)
	b.shot("why-several")
	for _, v := range b.axe() {
		t.Error(v)
	}
	b.calm(base)
	b.forget()

	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "m.yaml"), []byte(byName), 0o600); err != nil {
		t.Fatal(err)
	}
	base = b.enter(startUI(t, "--manifests", dir))
	b.visit(base, "/why?from=shop/web&to=198.51.100.7&port=443/TCP")
	b.wait(`document.querySelector(".verdict .big").textContent.endsWith("Depends on the name")`)
	b.text("api.example.com resolves to it: by CiliumNetworkPolicy shop/fq")
	b.text("Drop if none of these names does")
	b.visit(base, "/why?from=shop/web&to=api.example.com&port=443/TCP")
	b.wait(`document.querySelector(".verdict .big").textContent.endsWith("Allow")`)
	b.calm(base)
}

// A change shows its errors as it is typed, what it opens, and what the tests and the
// log say; nothing of it is written.
func TestUIChange(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"world.yaml", "policies.yaml"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(read(t, quickstart+"/"+name)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	before := fingerprint([]string{dir})
	log, tests := filepath.Join(t.TempDir(), "audit.log"), filepath.Join(t.TempDir(), "tests.yaml")
	stop := make(chan struct{})
	close(stop)
	writeLog(t, log, 0, stop)
	record := fmt.Sprintf(`{"v":1,"kind":"flow","time":%q,"node":"node-2","verdict":"Drop","stage":"enforce","direction":"ingress","band":"networkpolicy","policy":{"group":"networking.k8s.io","kind":"NetworkPolicy","namespace":"shop","name":"db"},"isolations":[{"group":"networking.k8s.io","kind":"NetworkPolicy","namespace":"shop","name":"db"}],"reason":"isolation","source":{"ip":"10.244.1.10","port":40000,"namespace":"shop","pod":"frontend"},"destination":{"ip":"10.244.2.12","port":5432,"namespace":"shop","pod":"db"},"protocol":"TCP","count":1,"seq":1}`, time.Now().UTC().Format(time.RFC3339Nano))
	if err := os.WriteFile(log, []byte(record+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(tests, []byte("apiVersion: tierwall.io/v1\nkind: Intent\ntests:\n- {from: shop/frontend, to: shop/db, port: 5432/TCP, expect: deny}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	b := openTab(t, 1280, 800)
	base := b.enter(startUI(t, "--manifests", dir, "--log", log, "--tests", tests))
	b.visit(base, "/change?edit=networkpolicy.networking.k8s.io/shop/db")
	b.wait(`document.querySelector("textarea")?.value.includes("app: backend")`)
	edit := func(old, now string) {
		t.Helper()
		b.wait(fmt.Sprintf(`document.querySelector("textarea")?.value.includes(%q)`, old))
		b.fill("textarea", strings.Replace(js[string](b, `document.querySelector("textarea").value`), old, now, 1))
	}
	b.text("No connection is decided in another way.")
	edit("podSelector:", "podselector:")
	b.text(`unknown field "podselector"`)
	b.text("field names are case-sensitive")
	edit("podselector:", "podSelector:")
	edit("app: backend", "app: frontend")
	b.text("shop/frontend → shop/db")
	b.text("Opened")
	b.text("Closed")
	b.click("button", "Run tests")
	b.text("0 passed, 1 failed after the change")
	b.click("button", "Replay")
	b.text("1 of 1 decision would get another verdict")
	b.shot("change")
	b.click("main a", "Show in the matrix")
	b.wait(`document.querySelector(".scroll canvas")`)
	b.fill("[aria-label=Port]", "5432/TCP")
	js[bool](b, `document.querySelector("[aria-label=Port]").dispatchEvent(new Event("change")) || true`)
	b.wait(`location.search.includes("5432") && document.querySelector("[aria-pressed=true]").textContent === "After my change"`)
	b.wait(`performance.getEntriesByName("matrix-filled").length`)
	b.shot("matrix-change")
	if before() {
		t.Error("the manifests were written")
	}
	b.calm(base)
}

// Names and records are whatever their authors wrote. None becomes markup.
func TestUIHostileNamesStayText(t *testing.T) {
	const evil = `<img src=x onerror=window.hacked=1><script>window.hacked=1</script>`
	// Names of objects are refused, and shown as findings; names of rules are free text.
	refused, taken := t.TempDir(), t.TempDir()
	manifest := fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %[1]q, namespace: %[1]q, labels: {%[1]q: %[1]q}}
status: {phase: Running, podIP: 10.0.0.2}
---
apiVersion: policy.networking.k8s.io/v1alpha1
kind: AdminNetworkPolicy
metadata: {name: %[1]q}
spec:
  priority: 1
  subject: {namespaces: {}}
  ingress: [{name: %[1]q, action: Deny, from: [{namespaces: {}}]}]
`, evil)
	for path, text := range map[string]string{
		refused + "/m.yaml": manifest, taken + "/world.yaml": read(t, quickstart+"/world.yaml"),
		taken + "/m.yaml": strings.Replace(manifest[strings.Index(manifest, "---"):], fmt.Sprintf("metadata: {name: %q}", evil), "metadata: {name: evil}", 1),
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	log := filepath.Join(t.TempDir(), "audit.log")
	quoted, _ := json.Marshal(evil) // a string always can be
	record := fmt.Sprintf(`{"v":1,"kind":"flow","time":%q,"node":%[2]s,"verdict":%[2]s,"stage":"enforce","direction":%[2]s,"band":%[2]s,"label":%[2]s,"policy":{"group":%[2]s,"kind":%[2]s,"namespace":%[2]s,"name":%[2]s},"rule":{"name":%[2]s,"index":0},"reason":%[2]s,"service":%[2]s,"source":{"ip":"10.0.0.1","port":40000,"namespace":%[2]s,"pod":%[2]s},"destination":{"ip":"10.0.0.2","port":80,"namespace":%[2]s,"pod":%[2]s},"protocol":%[2]s,"count":1,"seq":1}`, time.Now().UTC().Format(time.RFC3339Nano), quoted)
	if err := os.WriteFile(log, []byte(record+"\n"+evil+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	b := openTab(t, 1280, 800)
	for _, dir := range []string{refused, taken} {
		base := b.enter(startUI(t, "--manifests", dir, "--log", log))
		seen := false
		for _, path := range []string{
			"/order", "/order?policy=adminnetworkpolicy.policy.networking.k8s.io//evil", "/why?from=shop/frontend&to=shop/db&port=80/TCP",
			"/why?from=" + url.QueryEscape(evil) + "&to=x&port=80", "/matrix?row=shop/frontend&col=shop/db&port=" + url.QueryEscape(evil), "/stream", "/change?edit=" + url.QueryEscape(evil), "/order?q=" + url.QueryEscape(evil),
		} {
			b.visit(base, path)
			if strings.HasPrefix(path, "/change") {
				b.fill("textarea", manifest)
			}
			b.do(chromedp.Sleep(700 * time.Millisecond)) // what comes later
			if js[bool](b, `!!window.hacked || !!document.querySelector("main img, main script, header img[onerror]")`) {
				t.Errorf("%s: a name became markup", path)
			}
			seen = seen || js[bool](b, `document.body.innerText.includes("onerror=window.hacked")`)
		}
		if !seen {
			t.Errorf("%s: the hostile text is nowhere on the page: nothing was tested", dir)
		}
		b.calm(base)
		b.forget()
	}
}

// No view has a violation of the rules of axe-core, light or dark, wide or narrow.
func TestUIAccessible(t *testing.T) {
	log := filepath.Join(t.TempDir(), "audit.log")
	stop := make(chan struct{})
	done := make(chan int)
	go func() { done <- writeLog(t, log, 20, stop) }()
	defer func() { close(stop); <-done }()
	b := openTab(t, 1280, 800)
	base := b.enter(startUI(t, "--manifests", quickstart, "--log", log))
	for _, size := range []struct {
		width int64
		dark  bool
	}{{1280, false}, {1280, true}, {390, false}} {
		b.dark(size.dark)
		b.do(emulation.SetDeviceMetricsOverride(size.width, 800, 1, size.width < 500))
		for _, path := range []string{
			"/order", "/order?policy=networkpolicy.networking.k8s.io/shop/db", "/why?from=shop/frontend&to=shop/db&port=5432/TCP", "/why?from=frontend&to=svc/shop/backend&port=80/TCP",
			"/matrix?row=shop/frontend&col=shop/db&port=5432/TCP", "/stream", "/nodes", "/change?edit=networkpolicy.networking.k8s.io/shop/db",
		} {
			b.visit(base, path)
			b.do(chromedp.Sleep(900 * time.Millisecond)) // moved in, and read
			for _, v := range b.axe() {
				t.Errorf("%s, %d px, dark %v: %s", path, size.width, size.dark, v)
			}
			if wide := js[int](b, "document.documentElement.scrollWidth - document.documentElement.clientWidth"); wide > 0 {
				t.Errorf("%s, %d px: wider than the screen by %d px", path, size.width, wide)
			}
			name := strings.Trim(strings.SplitN(path, "?", 2)[0], "/")
			if size.width < 500 {
				b.shot(name + "-phone")
			} else if size.dark {
				b.shot(name + "-dark")
			}
		}
	}
	if js[int](b, "window.violations.length") > 0 {
		t.Errorf("violations of the content policy: %q", js[[]string](b, "window.violations"))
	}
}
