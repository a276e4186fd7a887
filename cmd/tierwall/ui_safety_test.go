package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// A page of another origin gets nothing in the very browser that has the cookie: not by
// scripts, pictures, frames, forms or streams. Another port of 127.0.0.1 is the same site,
// so the cookie alone would not keep it out; a name that resolves to 127.0.0.1 is not.
func TestUIOtherOriginGetsNothing(t *testing.T) {
	b := openTab(t, 1280, 800)
	base := b.enter(startUI(t, "--manifests", quickstart))
	b.text("monitoring")
	page := fmt.Sprintf(`<!doctype html><title>other</title><h1>other</h1><script>
		const base = %q, got = [], done = [];
		const tried = (name, p) => done.push(p.then((v) => v && got.push(name + ": " + v), () => {}));
		for (const [name, mode] of [["cors", "cors"], ["no-cors", "no-cors"]])
			tried("fetch " + name, fetch(base + "/api/v1/policies", { credentials: "include", mode }).then((r) => r.text()));
		tried("post", fetch(base + "/api/v1/change", { method: "POST", credentials: "include", mode: "no-cors", headers: { "Content-Type": "text/plain" }, body: '{"yaml":""}' }).then((r) => r.text()));
		const element = (name, tag, attrs) => tried(name, new Promise((ok) => { const e = Object.assign(document.createElement(tag), attrs); e.onload = () => ok(tag === "iframe" ? (() => { try { return e.contentDocument.body.innerText; } catch { return ""; } })() : "loaded"); e.onerror = () => ok(""); document.body ? document.body.append(e) : document.documentElement.append(e); setTimeout(() => ok(""), 3000); }));
		element("script", "script", { src: base + "/app.js", type: "text/javascript" });
		element("picture", "img", { src: base + "/icon.svg" });
		element("style", "link", { rel: "stylesheet", href: base + "/style.css" });
		element("frame", "iframe", { src: base + "/order" });
		tried("stream", new Promise((ok) => { const s = new EventSource(base + "/api/v1/stream", { withCredentials: true }); s.onopen = () => ok("open"); s.onerror = () => ok(""); }));
		window.result = Promise.all(done).then(() => got);
	</script>`, base)
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = fmt.Fprint(w, page)
	}))
	defer other.Close()
	port := base[strings.LastIndex(base, ":")+1:]
	for _, from := range []string{other.URL, strings.Replace(other.URL, "127.0.0.1", "localhost", 1), strings.Replace(other.URL, "127.0.0.1", reboundName, 1)} {
		b.do(chromedp.Navigate(from))
		b.wait(`document.querySelector("h1").textContent === "other" && !!window.result`)
		if got := js[[]string](b, "window.result"); len(got) > 0 {
			t.Errorf("a page of %s got %q", from, got)
		}
	}
	// DNS rebinding: the browser believes that the page is the other name's own.
	b.do(chromedp.Navigate("http://" + reboundName + ":" + port + "/api/v1/policies"))
	if text := js[string](b, "document.body.innerText"); !strings.Contains(text, "not served under that name") || strings.Contains(text, "monitoring") {
		t.Errorf("under another name: %s", text)
	}
	// A link from elsewhere opens the page for who has the cookie, and nobody else.
	b.do(chromedp.Navigate(base + "/order"))
	b.text("monitoring")
	stranger := openTab(t, 1280, 800)
	stranger.do(chromedp.Navigate(base + "/order"))
	if text := js[string](stranger, "document.body.innerText"); !strings.Contains(text, "has not been let in") || strings.Contains(text, "monitoring") {
		t.Errorf("another browser: %s", text)
	}
}

// Every control of every view can be reached by the Tab key, and shows that it has been.
func TestUIKeyboard(t *testing.T) {
	log := newLog(t, "audit.log")
	log.flow("n1", "Drop", "frontend", 5432)
	b := openTab(t, 1280, 800)
	base := b.enter(startUI(t, "--manifests", quickstart, "--log", log.path))
	for _, path := range []string{
		"/order?policy=networkpolicy.networking.k8s.io/shop/db", "/why?from=shop/frontend&to=shop/db&port=5432/TCP", "/matrix?row=shop/frontend&col=shop/db&port=5432/TCP",
		"/stream?verdict=Drop&from=shop/", "/nodes", "/change?edit=networkpolicy.networking.k8s.io/shop/db",
	} {
		b.visit(base, path)
		b.do(chromedp.Sleep(900 * time.Millisecond)) // moved in, and read
		js[bool](b, `(() => {
			const sel = "a[href],button,input,select,textarea,summary,[tabindex='0']";
			window.stops = [...document.querySelectorAll(sel)].filter((e) => e.checkVisibility() && !e.disabled && e.tabIndex >= 0);
			window.met = new Set(); window.dim = [];
			document.activeElement.blur();
			addEventListener("focusin", (e) => { met.add(e.target); const s = getComputedStyle(e.target); if (s.outlineStyle === "none" || parseFloat(s.outlineWidth) < 1) dim.push(e.target.outerHTML.slice(0, 120)); });
			return true;
		})()`)
		n := js[int](b, "stops.length")
		if n < 8 {
			t.Errorf("%s: %d controls: nothing is tested", path, n)
		}
		for range n + 6 {
			b.do(chromedp.KeyEvent(kb.Tab))
		}
		if missed := js[[]string](b, `stops.filter((e) => e.isConnected && !met.has(e)).map((e) => e.outerHTML.slice(0, 120))`); len(missed) > 0 {
			t.Errorf("%s: the Tab key does not reach %q", path, missed)
		}
		if dim := js[[]string](b, "dim"); len(dim) > 0 {
			t.Errorf("%s: the focus cannot be seen on %q", path, dim)
		}
	}
	b.calm(base)
}

// The views, by keys alone: the navigation, a filter, a policy, a way, a cell.
func TestUIKeyboardWays(t *testing.T) {
	b := openTab(t, 1280, 800)
	base := b.enter(startUI(t, "--manifests", quickstart))
	b.text("monitoring")
	tab := func(until string) {
		t.Helper()
		for range 40 {
			b.do(chromedp.KeyEvent(kb.Tab))
			if js[bool](b, "(() => { const e = document.activeElement; return "+until+"; })()") {
				return
			}
		}
		t.Fatalf("the Tab key does not lead to %s", until)
	}
	b.do(chromedp.KeyEvent(kb.Tab))
	b.wait(`document.activeElement.textContent === "Skip to content"`)
	tab(`e.type === "search"`)
	b.do(chromedp.KeyEvent("db"))
	b.text("1 of 3 policies")
	tab(`e.tagName === "SUMMARY"`)
	b.do(chromedp.KeyEvent(kb.Enter))
	b.text("Try a change")
	tab(`e.textContent === "Try a change"`)
	b.do(chromedp.KeyEvent(kb.Enter))
	b.wait(`document.querySelector("textarea")?.value.includes("app: db")`)
	js[bool](b, `document.activeElement.blur() || true`)
	tab(`e.id === "nav-matrix"`)
	b.do(chromedp.KeyEvent(kb.Enter))
	b.wait(`performance.getEntriesByName("matrix-filled").length`)
	tab(`e.tagName === "CANVAS"`)
	b.wait(`document.querySelector(".live").textContent.startsWith("monitoring/node-exporter → ")`)
	b.do(chromedp.KeyEvent(kb.End), chromedp.KeyEvent(kb.ArrowDown), chromedp.KeyEvent(kb.ArrowLeft))
	b.wait(`document.querySelector(".live").textContent === "monitoring/prometheus → shop/db: refused"`)
	b.do(chromedp.KeyEvent(kb.Enter))
	tab(`e.textContent.startsWith("Why? monitoring/prometheus")`)
	b.do(chromedp.KeyEvent(kb.Enter))
	b.text("Entering shop/db")
	b.calm(base)
}
