package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"io/fs"
	"net/http"
	"net/http/cookiejar"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tierwall/tierwall/cmd/internal/cli"
)

// visitor is a client with a cookie jar that has opened the page.
func visitor(t *testing.T, url string) (*http.Client, string) {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	c := &http.Client{Jar: jar}
	base, _, ok := strings.Cut(url, "/?token=")
	if !ok {
		t.Fatalf("no token in %s", url)
	}
	if code, body := get(t, c, url, nil); code != http.StatusOK || !strings.Contains(body, "<title>Tierwall") {
		t.Fatalf("the printed URL: %d %s", code, body)
	}
	return c, base
}

func get(t *testing.T, c *http.Client, url string, change func(*http.Request)) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(req)
	}
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// Nobody but the browser that was given the URL gets anything: not without the
// token, not with a used one, not under another name, not from another page.
func TestUIAnswersOnlyItsOwnBrowser(t *testing.T) {
	url := startUI(t, "--manifests", quickstart)
	base, _, _ := strings.Cut(url, "/?")
	stranger := &http.Client{}
	nothing := func(what string, c *http.Client, url string, change func(*http.Request)) {
		t.Helper()
		code, body := get(t, c, url, change)
		if code != http.StatusForbidden || strings.Contains(body, "shop") || strings.Contains(body, "<html") {
			t.Errorf("%s: %d %s", what, code, body)
		}
	}
	for _, path := range []string{"/", "/app.js", "/order", "/api/v1/world", "/api/v1/policies", "/api/v1/stream"} {
		nothing("no token, "+path, stranger, base+path, nil)
	}
	nothing("a wrong token", stranger, base+"/?token=AAAA", nil)
	nothing("a prefetch", stranger, url, func(r *http.Request) { r.Header.Set("Sec-Purpose", "prefetch") })
	nothing("a rebound name", stranger, url, func(r *http.Request) { r.Host = "evil.example:" + base[strings.LastIndex(base, ":")+1:] })

	c, _ := visitor(t, url)
	if code, body := get(t, c, base+"/api/v1/policies", nil); code != http.StatusOK || !strings.Contains(body, `"monitoring"`) {
		t.Fatalf("with the cookie: %d %s", code, body)
	}
	nothing("a token used before", stranger, url, nil)
	nothing("a token used before, by the same browser", c, url, nil)
	for what, change := range map[string]func(*http.Request){
		"another host":              func(r *http.Request) { r.Host = "evil.example" },
		"another host, same port":   func(r *http.Request) { r.Host = "evil.example:" + r.URL.Port() },
		"another port":              func(r *http.Request) { r.Host = "127.0.0.1:1" },
		"another origin":            func(r *http.Request) { r.Header.Set("Origin", "http://evil.example") },
		"another port's origin":     func(r *http.Request) { r.Header.Set("Origin", "http://127.0.0.1:1") },
		"the origin null":           func(r *http.Request) { r.Header.Set("Origin", "null") },
		"a page of another site":    func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") },
		"a page of another port":    func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "same-site") },
		"a cookie of another start": func(r *http.Request) { r.Header.Set("Cookie", "tierwall-"+r.URL.Port()+"=AAAA") },
	} {
		who := c
		if strings.Contains(what, "cookie") {
			who = stranger
		}
		for _, path := range []string{"/", "/api/v1/policies"} {
			nothing(what+", "+path, who, base+path, change)
		}
	}
}

// What the page is served with, and that nothing can be written.
func TestUIHeadersAndMethods(t *testing.T) {
	url := startUI(t, "--manifests", quickstart)
	first, err := (&http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}).Get(url)
	if err != nil {
		t.Fatal(err)
	}
	first.Body.Close()
	set := first.Header.Get("Set-Cookie")
	if first.StatusCode != http.StatusSeeOther || !strings.Contains(set, "HttpOnly") || !strings.Contains(set, "SameSite=Strict") || first.Header.Get("Location") != "/" {
		t.Errorf("%d %q %q", first.StatusCode, set, first.Header.Get("Location"))
	}
	base, _, _ := strings.Cut(url, "/?")
	send := func(method, path, kind, body string) (*http.Response, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, base+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Cookie", strings.SplitN(set, ";", 2)[0])
		req.Header.Set("Content-Type", kind)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp, string(b)
	}
	resp, _ := send(http.MethodGet, "/", "", "")
	csp := resp.Header.Get("Content-Security-Policy")
	if !strings.Contains(csp, "default-src 'none'") || strings.Contains(csp, "unsafe") || !strings.Contains(csp, "frame-ancestors 'none'") {
		t.Errorf("content policy %q", csp)
	}
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodPatch} {
		for _, path := range []string{"/", "/api/v1/policies", "/api/v1/world"} {
			if resp, body := send(method, path, "application/json", "{}"); resp.StatusCode != http.StatusMethodNotAllowed {
				t.Errorf("%s %s: %d %s", method, path, resp.StatusCode, body)
			}
		}
	}
	if resp, body := send(http.MethodPost, "/api/v1/change", "text/plain", `{"yaml":""}`); resp.StatusCode != http.StatusUnsupportedMediaType {
		t.Errorf("a form of another page: %d %s", resp.StatusCode, body)
	}
	if resp, body := send(http.MethodGet, "/api/v1/explain?fron=a", "", ""); resp.StatusCode != http.StatusBadRequest || !strings.Contains(body, `unknown parameter`) {
		t.Errorf("an unknown parameter: %d %s", resp.StatusCode, body)
	}
	if resp, _ := send(http.MethodGet, "/../../go.mod", "", ""); resp.StatusCode != http.StatusNotFound {
		t.Errorf("a file outside of the page: %d", resp.StatusCode)
	}
}

func TestUIUsage(t *testing.T) {
	for _, tt := range []struct{ args, err string }{
		{"ui --no-open --manifests " + quickstart + " --listen 0.0.0.0:0", "loopback address only"},
		{"ui --no-open --manifests " + quickstart + " --listen 192.0.2.1:80", "loopback address only"},
		{"ui --no-open --manifests " + quickstart + " --listen 8080", "want ADDRESS:PORT"},
		{"ui --no-open --manifests /nonexistent", "/nonexistent"},
		{"ui --no-open --manifests " + quickstart + " --log -", "--log wants a file"},
		{"ui --no-open", "nothing to read"},
	} {
		if r := tierwall(t, "", strings.Fields(tt.args)...); r.code != cli.ExitUsage || !strings.Contains(r.err, tt.err) || r.out != "" {
			t.Errorf("%s: %+v, want %q", tt.args, r, tt.err)
		}
	}
}

// -o json is one line.
func TestUIPrintsURLAsJSON(t *testing.T) {
	line := startUI(t, "--manifests", quickstart, "-o", "json", "--listen", "127.0.0.1:0")
	var v struct{ URL string }
	if err := json.Unmarshal([]byte(line), &v); err != nil || !strings.HasPrefix(v.URL, "http://127.0.0.1:") {
		t.Fatalf("%q: %v", line, err)
	}
	visitor(t, v.URL)
}

// The interface answers with the fields and values of the commands' JSON.
func TestUIAnswersAsTheCommandsDo(t *testing.T) {
	c, base := visitor(t, startUI(t, "--manifests", quickstart))
	for path, args := range map[string]string{
		"explain?from=shop/frontend&to=shop/db&port=5432/TCP":     "explain --from shop/frontend --to shop/db --port 5432/TCP",
		"explain?from=frontend&to=svc/shop/backend&port=80/TCP":   "explain --from frontend --to svc/shop/backend --port 80/TCP",
		"explain?from=frontend&to=db&port=0/ICMP&icmp=8&family=6": "explain --from frontend --to db --port 0/ICMP --icmp 8 --family 6",
		"explain?from=ns:shop&to=shop/db&port=5432/TCP":           "explain --from ns:shop --to shop/db --port 5432/TCP",
		"explain?from=shop/db&to=198.51.100.7&port=443/TCP":       "explain --from shop/db --to 198.51.100.7 --port 443/TCP",
		"policies":             "get policies",
		"policies?pod=shop/db": "get policies --pod shop/db",
		"matrix?port=http/TCP": "matrix --port http/TCP",
		"check":                "check",
	} {
		code, got := get(t, c, base+"/api/v1/"+path, nil)
		r := tierwall(t, "", append(strings.Fields(args), "--manifests", quickstart, "-o", "json")...)
		if code != http.StatusOK || canonical(t, got) != canonical(t, r.out) {
			t.Errorf("%s: %d\n%s\nwant\n%s", path, code, got, r.out)
		}
	}
}

func canonical(t *testing.T, text string) string {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// Manifests that change are read again, and one with errors says so and is not asked.
func TestUIWatchesManifests(t *testing.T) {
	dir := t.TempDir()
	copyTo := func(name, from string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(read(t, from)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	copyTo("world.yaml", quickstart+"/world.yaml")
	c, base := visitor(t, startUI(t, "--manifests", dir))
	until := func(path, want string) {
		t.Helper()
		for range 300 {
			if _, body := get(t, c, base+"/api/v1/"+path, nil); strings.Contains(body, want) {
				return
			}
			sleep(t)
		}
		_, body := get(t, c, base+"/api/v1/"+path, nil)
		t.Fatalf("%s: no %s in %s", path, want, body)
	}
	until("explain?from=frontend&to=db&port=5432/TCP", `"verdict":"Allow"`)
	copyTo("policies.yaml", quickstart+"/policies.yaml")
	until("explain?from=frontend&to=db&port=5432/TCP", `"verdict":"Drop"`)
	copyTo("broken.yaml", broken+"/matchlabels.yaml")
	until("world", `"answers":false`)
	until("check", "case-sensitive")
	until("explain?from=frontend&to=db&port=5432/TCP", "correct them first")
}

// The page is small: what a browser would have to fetch over a network.
func TestUISize(t *testing.T) {
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	err := filepath.WalkDir("../internal/ui/page", func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		if err == nil {
			_, err = z.Write(b)
		}
		return err
	})
	if err != nil || z.Close() != nil {
		t.Fatal(err)
	}
	t.Logf("%d bytes compressed", packed.Len())
	if packed.Len() < 1000 || packed.Len() > 100_000 {
		t.Errorf("the page has %d bytes compressed: want 100,000 at most", packed.Len())
	}
}
