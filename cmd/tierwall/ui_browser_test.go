package main

import (
	"bufio"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/tierwall/tierwall/dataplane/nstest"
)

// needBrowser skips the test, or fails it where CI requires everything, unless there
// is a Chromium.
func needBrowser(tb testing.TB) string {
	tb.Helper()
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	if os.Getenv(nstest.RequireEnv) == "1" {
		tb.Fatalf("no Chromium, and %s=1 forbids to skip the test", nstest.RequireEnv)
	}
	tb.Skip("no Chromium in PATH: the page is not tested")
	return ""
}

// startUI runs "tierwall ui" as a user would and returns the URL it prints.
func startUI(tb testing.TB, args ...string) string {
	tb.Helper()
	return startPage(tb, append([]string{"ui", "--no-open"}, args...)...)
}

func startPage(tb testing.TB, args ...string) string {
	tb.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r, w := io.Pipe()
	var errOut strings.Builder
	ended := make(chan int, 1)
	go func() { ended <- run(ctx, args, strings.NewReader(""), w, &errOut); w.Close() }()
	tb.Cleanup(func() {
		cancel()
		select {
		case code := <-ended:
			if code != 0 {
				tb.Errorf("%s: exit code %d: %s", strings.Join(args, " "), code, errOut.String())
			}
		case <-time.After(nstest.Timeout):
			tb.Errorf("%s did not end", strings.Join(args, " "))
		}
	})
	line, err := bufio.NewReader(r).ReadString('\n')
	if err != nil {
		cancel()
		tb.Fatalf("no URL: %v", err)
	}
	go func() { _, _ = io.Copy(io.Discard, r) }() // nothing more is expected
	return strings.TrimSpace(line)
}

// browser is a Chromium with one tab, and what its pages complained about.
type browser struct {
	tb   testing.TB
	ctx  context.Context
	mu   sync.Mutex
	said []string // exceptions, console errors, violations of the content policy
	sent []string // hosts that were asked
}

// reboundName is a name of somebody else's that resolves to this machine.
const reboundName = "rebound.test"

// openTab starts Chromium with its own profile. width and height are of the page.
func openTab(tb testing.TB, width, height int64) *browser {
	tb.Helper()
	opts := append([]chromedp.ExecAllocatorOption{}, chromedp.DefaultExecAllocatorOptions[:]...)
	opts = append(opts, chromedp.ExecPath(needBrowser(tb)), chromedp.NoSandbox, chromedp.UserDataDir(tb.TempDir()), chromedp.WindowSize(int(width), int(height)),
		chromedp.WSURLReadTimeout(time.Minute), chromedp.Flag("host-resolver-rules", "MAP "+reboundName+" 127.0.0.1"))
	alloc, cancelAlloc := chromedp.NewExecAllocator(context.Background(), opts...)
	ctx, cancel := chromedp.NewContext(alloc)
	ctx, cancelTime := context.WithTimeout(ctx, 3*time.Minute)
	b := &browser{tb: tb, ctx: ctx}
	tb.Cleanup(func() { _ = chromedp.Cancel(ctx); cancelTime(); cancel(); cancelAlloc() })
	chromedp.ListenTarget(ctx, func(ev any) {
		b.mu.Lock()
		defer b.mu.Unlock()
		switch e := ev.(type) {
		case *runtime.EventExceptionThrown:
			b.said = append(b.said, "exception: "+e.ExceptionDetails.Error())
		case *runtime.EventConsoleAPICalled:
			if e.Type == runtime.APITypeError {
				b.said = append(b.said, fmt.Sprintf("console: %s", e.Args[0].Value))
			}
		case *network.EventRequestWillBeSent:
			b.sent = append(b.sent, e.Request.URL)
		}
	})
	b.do(network.Enable(), runtime.Enable(), emulation.SetDeviceMetricsOverride(width, height, 1, false),
		chromedp.ActionFunc(func(ctx context.Context) error {
			// Violations of the policy are events of the document, not of the protocol.
			return b.onNewDocument(ctx, `window.violations=[];document.addEventListener("securitypolicyviolation",(e)=>violations.push(e.violatedDirective+" "+e.blockedURI+" "+e.sourceFile));`)
		}))
	return b
}

func (b *browser) do(actions ...chromedp.Action) {
	b.tb.Helper()
	if err := chromedp.Run(b.ctx, actions...); err != nil {
		b.tb.Fatalf("browser: %v\nthe page said: %q", err, b.complaints())
	}
}

func (b *browser) complaints() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]string{}, b.said...)
}

// js evaluates an expression, a promise included.
func js[T any](b *browser, expr string) T {
	b.tb.Helper()
	var v T
	b.do(chromedp.Evaluate(expr, &v, func(p *runtime.EvaluateParams) *runtime.EvaluateParams { return p.WithAwaitPromise(true) }))
	return v
}

// wait waits until an expression is true. One that fails, since what it looks at is not
// there yet, is not true yet.
func (b *browser) wait(expr string) {
	b.tb.Helper()
	tried := "(() => { try { return " + expr + "; } catch { return false; } })()"
	ctx, cancel := context.WithTimeout(b.ctx, nstest.Timeout)
	defer cancel()
	if err := chromedp.Run(ctx, chromedp.Poll(tried, nil, chromedp.WithPollingInterval(50*time.Millisecond), chromedp.WithPollingTimeout(0))); err != nil {
		b.tb.Fatalf("waiting for %s: %v\nthe page said: %q\nand shows: %s", expr, err, b.complaints(), js[string](b, "document.body.innerText.slice(0,2000)"))
	}
}

// text waits until the page shows a text.
func (b *browser) text(s string) {
	b.tb.Helper()
	q, _ := json.Marshal(s) // a string always can be
	b.wait(fmt.Sprintf("document.querySelector('main').innerText.includes(%s)", q))
}

// visit goes to a view as the address bar does.
func (b *browser) visit(base, path string) {
	b.tb.Helper()
	b.do(chromedp.Navigate(base + path))
	b.wait("document.querySelector('main h1')")
}

// calm fails the test if the page complained, broke its content policy or asked
// anybody but its server.
func (b *browser) calm(base string) {
	b.tb.Helper()
	if v := js[[]string](b, "window.violations"); len(v) > 0 {
		b.tb.Errorf("violations of the content policy: %q", v)
	}
	if said := b.complaints(); len(said) > 0 {
		b.tb.Errorf("the page complained: %q", said)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, url := range b.sent {
		if !strings.HasPrefix(url, base+"/") && !strings.HasPrefix(url, "data:") && url != "about:blank" {
			b.tb.Errorf("a request to %s", url)
		}
	}
}

// forget begins anew, for another server.
func (b *browser) forget() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.said, b.sent = nil, nil
}

// axe returns what the rules of axe-core find wrong with the page as it is now. What
// still fades in has the colours of nothing: it looks when animations are over.
func (b *browser) axe() []string {
	b.tb.Helper()
	if !js[bool](b, "!!window.axe") {
		b.loadAxe()
	}
	return js[[]string](b, `Promise.all(document.getAnimations().map((a) => a.finished.catch(() => 0))).then(() => axe.run()).then((r) => (r.passes.length > 10 ? [] : ["nothing was checked"]).concat(r.violations.map((v) => v.id + ": " + v.help + ": " + v.nodes.slice(0, 3).map((n) => n.html + " " + n.any.map((a) => a.message).join()).join(" | "))))`)
}

func (b *browser) loadAxe() {
	b.tb.Helper()
	f, err := os.Open("testdata/axe/axe-core-4.14.1.min.js.gz")
	if err != nil {
		b.tb.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		b.tb.Fatal(err)
	}
	rules, err := io.ReadAll(z)
	if err != nil {
		b.tb.Fatal(err)
	}
	b.do(chromedp.Evaluate(string(rules)+"\n;0", nil))
}

// shot keeps a picture where TIERWALL_UI_SHOTS names a directory: for docs/ui.md, and
// to look at.
func (b *browser) shot(name string) {
	b.tb.Helper()
	dir := os.Getenv("TIERWALL_UI_SHOTS")
	if dir == "" {
		return
	}
	var png []byte
	b.do(chromedp.Sleep(500*time.Millisecond), chromedp.CaptureScreenshot(&png))
	if err := os.WriteFile(filepath.Join(dir, name+".png"), png, 0o644); err != nil {
		b.tb.Fatal(err)
	}
}

// enter opens the page's URL and returns its origin.
func (b *browser) enter(url string) string {
	b.tb.Helper()
	base, _, _ := strings.Cut(url, "/?")
	b.do(chromedp.Navigate(url))
	b.wait("document.querySelector('main h1')")
	if at := js[string](b, "location.href"); strings.Contains(at, "token") {
		b.tb.Errorf("the token stays in the address bar: %s", at)
	}
	return base
}

// dark makes the system's colours dark or light.
func (b *browser) dark(on bool) {
	scheme := "light"
	if on {
		scheme = "dark"
	}
	b.do(emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}))
}

// sleep waits a moment before something is looked at again.
func sleep(t *testing.T) {
	t.Helper()
	time.Sleep(50 * time.Millisecond)
}
