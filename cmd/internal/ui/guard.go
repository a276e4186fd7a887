package ui

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
)

// Headers of every answer. No file of the page needs more than its own origin, and
// Trusted Types make a string of markup an error wherever a script would insert one.
var headers = map[string]string{
	"Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; " +
		"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
	"X-Content-Type-Options":       "nosniff",
	"X-Frame-Options":              "DENY",
	"Referrer-Policy":              "no-referrer",
	"Cross-Origin-Opener-Policy":   "same-origin",
	"Cross-Origin-Resource-Policy": "same-origin",
	"Cache-Control":                "no-store",
	"Permissions-Policy":           "camera=(), geolocation=(), microphone=()",
}

// tokenName is the parameter of the URL that is printed.
const tokenName = "token"

// guard answers only the browser that was given the token.
type guard struct {
	host    string // of the address listened on
	port    string
	cookie  string // its name has the port: cookies of 127.0.0.1 are shared by all ports
	session string // its value
	next    http.Handler

	mu    sync.Mutex
	token string // "" once it was used
}

func newGuard(addr netip.AddrPort, next http.Handler) *guard {
	port := fmt.Sprint(addr.Port())
	return &guard{
		host: addr.Addr().String(), port: port, cookie: "tierwall-" + port,
		session: secret(), token: secret(), next: next,
	}
}

// secret is 256 bits of randomness, for URLs.
func secret() string {
	b := make([]byte, 32)
	_, _ = rand.Read(b) // never fails: crypto/rand ends the program instead
	return base64.RawURLEncoding.EncodeToString(b)
}

// url is where the browser is to go first.
func (g *guard) url() string {
	return "http://" + net.JoinHostPort(g.host, g.port) + "/?" + tokenName + "=" + g.token
}

func (g *guard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	for name, value := range headers {
		w.Header().Set(name, value)
	}
	if !g.ourHost(r.Host) {
		fail(w, http.StatusForbidden, "this address is not served under that name: use the URL that tierwall printed")
		return
	}
	if origin := r.Header.Get("Origin"); origin != "" && origin != "http://"+r.Host {
		fail(w, http.StatusForbidden, "requests of other pages are refused")
		return
	}
	site := r.Header.Get("Sec-Fetch-Site")
	if given := r.URL.Query().Get(tokenName); given != "" && r.URL.Path == "/" {
		g.exchange(w, r, given)
		return
	}
	if site != "" && site != "same-origin" && site != "none" {
		fail(w, http.StatusForbidden, "requests of other pages are refused")
		return
	}
	c, err := r.Cookie(g.cookie)
	if err != nil || subtle.ConstantTimeCompare([]byte(c.Value), []byte(g.session)) != 1 {
		fail(w, http.StatusForbidden, "this browser has not been let in: open the URL that tierwall printed; it works once, so start tierwall again for another browser")
		return
	}
	g.next.ServeHTTP(w, r)
}

// exchange takes the token, once, and gives the cookie for it. The redirect keeps the
// token out of the address bar and the history.
func (g *guard) exchange(w http.ResponseWriter, r *http.Request, given string) {
	if r.Method != http.MethodGet || r.Header.Get("Sec-Purpose") != "" { // a prefetch is no visit
		fail(w, http.StatusForbidden, "the token is for opening the page")
		return
	}
	g.mu.Lock()
	ok := g.token != "" && subtle.ConstantTimeCompare([]byte(given), []byte(g.token)) == 1
	if ok {
		g.token = ""
	}
	g.mu.Unlock()
	if !ok {
		fail(w, http.StatusForbidden, "this URL has been used, or is not the one that tierwall printed: start tierwall again for a new one")
		return
	}
	http.SetCookie(w, &http.Cookie{Name: g.cookie, Value: g.session, Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode})
	http.Redirect(w, r, "/", http.StatusSeeOther)
}

// ourHost reports whether a Host header names the address that is listened on. A page
// that made a browser resolve its own name to 127.0.0.1 sends that name.
func (g *guard) ourHost(host string) bool {
	name, port, err := net.SplitHostPort(host)
	return err == nil && port == g.port && (name == g.host || strings.EqualFold(name, "localhost"))
}
