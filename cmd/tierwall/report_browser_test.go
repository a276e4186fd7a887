package main

import (
	"fmt"
	"html"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
)

// evilName leaves an attribute and an element, and runs a script in two ways.
const evilName = `"><img src=x onerror=window.hacked=1><script>window.hacked=1</script>`

// reportWorld has policies of three APIs, a staged one, names that are hostile or
// long, and more workloads than a phone is wide.
func reportWorld(t *testing.T) string {
	t.Helper()
	long := strings.Repeat("long-", 12) + "end"
	world := shop + fmt.Sprintf("---\napiVersion: v1\nkind: Namespace\nmetadata: {name: %s}\n", long)
	for i := range 12 {
		world += fmt.Sprintf("---\napiVersion: v1\nkind: Pod\nmetadata: {name: job-%02[1]d, namespace: %[2]s, labels: {app: job-%02[1]d}}\nspec: {containers: [{name: c, image: i}]}\n"+
			"---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: job-%02[1]d, namespace: %[2]s}\nspec: {podSelector: {matchLabels: {app: job-%02[1]d}}, policyTypes: [Ingress], ingress: [{ports: [{port: %[3]d}]}]}\n", i, long, 7000+i)
	}
	// A directory's name is shown, too.
	d := filepath.Join(dir(t, nil), strings.ReplaceAll(evilName, "/", ""))
	if err := os.Mkdir(d, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"world.yaml": world, "policies.yaml": dbPolicy(5432) + fmt.Sprintf(`---
apiVersion: policy.networking.k8s.io/v1alpha1
kind: AdminNetworkPolicy
metadata: {name: admin}
spec:
  priority: 5
  subject: {namespaces: {matchLabels: {tier: prod}}}
  ingress: [{name: %[1]q, action: Deny, from: [{namespaces: {matchLabels: {tier: dev}}}], ports: [{portNumber: {protocol: TCP, port: 5432}}]}]
---
apiVersion: crd.antrea.io/v1beta1
kind: NetworkPolicy
metadata: {name: antrea, namespace: lab}
spec:
  priority: 1
  appliedTo: [{podSelector: {}}]
  ingress:
  - {name: %[1]q, action: Drop, from: [{namespaceSelector: {matchLabels: {tier: prod}}}]}
  - {name: %[2]q, action: Reject, from: [{namespaceSelector: {}}], ports: [{protocol: TCP, port: 22}]}
---
apiVersion: crd.antrea.io/v1beta1
kind: ClusterNetworkPolicy
metadata: {name: staged, annotations: {tierwall.io/stage: audit}}
spec:
  priority: 2
  appliedTo: [{namespaceSelector: {matchLabels: {tier: prod}}}]
  egress: [{name: %[1]q, action: Drop, to: [{namespaceSelector: {matchLabels: {tier: dev}}}]}]
`, evilName, strings.Repeat("unbroken", 30))} {
		if err := os.WriteFile(filepath.Join(d, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

// openFile shows a page from a file and returns its URL.
func (b *browser) openFile(dir, page string) string {
	b.tb.Helper()
	path := filepath.Join(dir, "page.html")
	if err := os.WriteFile(path, []byte(page), 0o644); err != nil {
		b.tb.Fatal(err)
	}
	url := "file://" + path
	b.do(chromedp.Navigate(url))
	return url
}

// onlyText fails the test if a name became markup, ran, or made the browser ask for
// anything but the page.
func (b *browser) onlyText(url string) {
	b.tb.Helper()
	if js[bool](b, `!!window.hacked || !!document.querySelector("img, script, iframe, object, link")`) {
		b.tb.Error("a name became markup")
	}
	if on := js[[]string](b, `[...document.querySelectorAll("*")].flatMap((e) => e.getAttributeNames()).filter((n) => n.startsWith("on"))`); len(on) > 0 {
		b.tb.Errorf("event handlers: %q", on)
	}
	if n := js[int](b, `document.body.textContent.split("onerror=window.hacked").length - 1`); n < 3 {
		b.tb.Errorf("the hostile text is on the page %d times: nothing was tested", n)
	}
	b.calm(url[:strings.LastIndex(url, "/")])
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.sent) == 0 || slices.ContainsFunc(b.sent, func(s string) bool { return s != url }) {
		b.tb.Errorf("requests %q, want only %s", b.sent, url)
	}
}

// layout is where landmarks are, in columns of 20 pixels that no font moves, in the
// order of the document, which has to be the one they are seen in.
const layout = `(() => {
	const column = (x) => Math.floor(x / 20 + 0.01);
	const seen = [...document.querySelectorAll("h1, nav, ul.cards, .result, h2, h3, ul.legend, svg[id], table, footer")].map((e) => {
		const r = e.getBoundingClientRect(), shown = r.width > 0 && e.checkVisibility({ visibilityProperty: true, opacityProperty: true });
		let is = e.localName + (e.id ? "#" + e.id : e.className ? "." + e.className.replaceAll(" ", ".") : "");
		if (/^h\d/.test(is)) is = e.localName + " " + e.textContent.slice(0, 40);
		if (is.startsWith("table")) is += " " + [...e.querySelectorAll("thead th")].map((h) => h.textContent).join(", ");
		if (!shown) return { top: r.top, line: is + ": hidden" };
		let at = getComputedStyle(e).display === "inline" ? "in a line" : "column " + column(r.left) + ", " + column(r.width) + " wide";
		if (e.matches(".cards")) at += ", " + new Set([...e.children].map((c) => c.getBoundingClientRect().left)).size + " side by side";
		if (e.matches("table")) at += getComputedStyle(e.querySelector("tbody tr")).display === "block" ? ", stacked" : "";
		return { top: r.top, line: is + ": " + at };
	});
	const shown = seen.filter((s) => !s.line.endsWith(": hidden"));
	if (shown.some((s, i) => i && s.top < shown[i - 1].top)) shown.push({ line: "NOT IN THE ORDER OF THE DOCUMENT" });
	return shown.concat(seen.filter((s) => s.line.endsWith(": hidden"))).map((s) => s.line + "\n").join("");
})()`

// structure are mistakes that neither a width nor a colour scheme changes.
const structure = `(() => {
	const wrong = [];
	let level = 0;
	for (const h of document.querySelectorAll("h1, h2, h3, h4, h5, h6")) {
		const l = Number(h.localName[1]);
		if (l > level + 1 || l === 1 && level) wrong.push("heading out of order: " + h.outerHTML);
		level = l;
	}
	if (level < 2) wrong.push("no headings");
	for (const t of document.querySelectorAll("table")) {
		const columns = t.querySelectorAll("thead th[scope=col]").length;
		if (!columns || t.querySelector("thead td, thead th:not([scope])")) wrong.push("table without headers: " + t.outerHTML.slice(0, 200));
		for (const r of t.querySelectorAll("tbody tr")) if ([...r.cells].reduce((n, c) => n + c.colSpan, 0) > columns) wrong.push("more cells than headers: " + r.outerHTML);
	}
	const cells = document.querySelectorAll("svg[role=group] rect");
	if (cells.length < 9 + 15 * 15) wrong.push("only " + cells.length + " cells");
	for (const c of cells) if (![c, c.parentNode].some((e) => e.matches("rect, a") && e.querySelector(":scope > title")?.textContent.trim())) wrong.push("a cell has no text: " + c.outerHTML);
	for (const s of document.querySelectorAll("svg:not([aria-hidden])")) if (!s.querySelector(":scope > title")?.textContent.trim()) wrong.push("a picture has no title: " + s.outerHTML.slice(0, 200));
	for (const s of document.querySelectorAll("svg.chip")) if (!s.parentNode.textContent.trim()) wrong.push("colour alone: " + s.parentNode.outerHTML);
	return wrong.slice(0, 20);
})()`

// TestReportInChromium opens the report as a reader does: from a file, on a desk, on a
// phone and on paper.
func TestReportInChromium(t *testing.T) {
	b := openTab(t, 1280, 800)
	r := tierwall(t, "", "report", "-m", reportWorld(t), "--profile", "cis")
	if r.code != 0 {
		t.Fatalf("exit code %d: %s", r.code, r.err)
	}
	d := t.TempDir()
	url := b.openFile(d, r.out)
	b.onlyText(url)
	for _, w := range js[[]string](b, structure) {
		t.Error(w)
	}
	var got strings.Builder
	for _, v := range []struct {
		name, media, scheme string
		width               int64
	}{{"desk", "screen", "light", 1280}, {"dark", "screen", "dark", 1280}, {"phone", "screen", "light", 390}, {"paper", "print", "light", 794}} {
		b.do(emulation.SetEmulatedMedia().WithMedia(v.media).WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: v.scheme}}),
			emulation.SetDeviceMetricsOverride(v.width, 800, 1, v.width < 500))
		if v.name == "paper" { // has no summary to click
			js[bool](b, `document.querySelectorAll("details").forEach((d) => { d.open = false; }) || true`)
		}
		if in := js[int64](b, "innerWidth"); in != v.width {
			t.Errorf("%s: laid out for %d px, want %d", v.name, in, v.width)
		}
		if wide := js[int](b, "document.scrollingElement.scrollWidth - innerWidth"); wide > 0 {
			t.Errorf("%s: wider than the screen by %d px", v.name, wide)
		}
		if v.name != "dark" {
			fmt.Fprintf(&got, "%s, %d px\n%s\n", v.name, v.width, js[string](b, layout))
		}
		b.shot("report-" + v.name)
		if v.media == "screen" {
			for _, w := range b.axe() {
				t.Errorf("%s: %s", v.name, w)
			}
		}
	}
	golden(t, "report-layout.txt", got.String())
	// Were a name markup, the page's own content policy would stop it.
	b.forget()
	b.openFile(d, strings.ReplaceAll(r.out, html.EscapeString(evilName), evilName))
	b.wait(`document.querySelector("img") && window.violations.length >= 2`)
	if js[bool](b, "!!window.hacked") {
		t.Error("the page's content policy lets scripts run")
	}
}
