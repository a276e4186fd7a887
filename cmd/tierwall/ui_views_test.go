package main

import (
	"context"
	"testing"

	"github.com/chromedp/cdproto/page"
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
