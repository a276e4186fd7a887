package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/extension"
	goldmarkhtml "github.com/yuin/goldmark/renderer/html"
)

// commentWorld has workloads that listen on a port of their own each.
func commentWorld(t *testing.T, port int) string {
	t.Helper()
	var b strings.Builder
	for i := range 40 {
		fmt.Fprintf(&b, `---
apiVersion: v1
kind: Pod
metadata: {name: w%02[1]d, namespace: shop, labels: {app: w%02[1]d}}
spec: {containers: [{name: c, image: i}]}
---
apiVersion: crd.antrea.io/v1beta1
kind: NetworkPolicy
metadata: {name: p%02[1]d, namespace: shop}
spec:
  priority: 1
  appliedTo: [{podSelector: {matchLabels: {app: w%02[1]d}}}]
  ingress: [{name: %[3]q, action: Drop, from: [{namespaceSelector: {}}], ports: [{protocol: TCP, port: %[2]d}]}]
`, i, port+i, evilName+"|`*_")
	}
	return dir(t, map[string]string{"world.yaml": shop + b.String()})
}

// TestDiffCommentInChromium shows the comment as a code host does: with tables, HTML
// that Markdown may have, and a host's style of tables.
func TestDiffCommentInChromium(t *testing.T) {
	b := openTab(t, 1280, 800)
	r := tierwall(t, "", "diff", commentWorld(t, 8000), commentWorld(t, 9000), "-o", "markdown")
	if r.code != 1 {
		t.Fatalf("exit code %d: %s", r.code, r.err)
	}
	if n := strings.Count(r.out, "\n"); n > 60 {
		t.Errorf("%d lines, want at most 60", n)
	}
	var comment strings.Builder
	md := goldmark.New(goldmark.WithExtensions(extension.GFM), goldmark.WithRendererOptions(goldmarkhtml.WithUnsafe()))
	if err := md.Convert([]byte(r.out), &comment); err != nil {
		t.Fatal(err)
	}
	url := b.openFile(t.TempDir(), `<!doctype html><html lang="en"><meta charset="utf-8"><title>Comment</title>
<style>main{max-width:900px;margin:auto;font:14px/1.5 sans-serif}table{display:block;width:max-content;max-width:100%;overflow:auto;border-collapse:collapse}td,th{border:1px solid #ccc;padding:6px 13px}</style>
<main>`+comment.String()+`</main></html>`)
	b.shot("comment")
	b.onlyText(url)
	if got, want := js[[]string](b, `[...document.querySelectorAll("main > table th")].map((h) => h.textContent)`), []string{"", "from", "to", "what", "before", "now"}; !slices.Equal(got, want) {
		t.Errorf("columns %q, want %q", got, want)
	}
	// Rows have as many cells as there are columns, from left to right.
	if !js[bool](b, `[...document.querySelectorAll("main > table tr")].every((r) => r.cells.length === 6 && [...r.cells].every((c, i) => !i || c.getBoundingClientRect().left > r.cells[i - 1].getBoundingClientRect().left))`) {
		t.Error("a row has other columns")
	}
	const lines = `[...document.querySelectorAll("main tr, main p, main summary, main h3")].filter((e) => e.checkVisibility()).length`
	collapsed, rest := js[int](b, lines), js[int](b, `document.querySelectorAll("main > details:not([open]) tr").length`)
	if collapsed < 40 || collapsed > 60 || rest == 0 {
		t.Errorf("%d lines are shown and %d collapsed", collapsed, rest)
	}
	if got, want := js[string](b, `document.querySelector("main > details > summary").innerText`), fmt.Sprintf("%d more", rest); got != want {
		t.Errorf("the summary says %q, want %q", got, want)
	}
	b.click("main > details > summary", "more")
	b.wait(`document.querySelector("main > details").open`)
	if opened := js[int](b, lines); opened != collapsed+rest {
		t.Errorf("opened: %d lines are shown, want %d", opened, collapsed+rest)
	}
	// Every changed workload is in the table or among the rest.
	for i := range 40 {
		if name := fmt.Sprintf("w%02d", i); !js[bool](b, fmt.Sprintf(`document.querySelector("main").innerText.includes(%q)`, name)) {
			t.Errorf("%s is not shown", name)
		}
	}
	b.shot("comment-open")
	b.onlyText(url)
}
