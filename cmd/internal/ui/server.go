package ui

import (
	"bytes"
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/tierwall/tierwall/cmd/internal/auditlog"
	"github.com/tierwall/tierwall/cmd/internal/cli"
	"github.com/tierwall/tierwall/policy/lower"
)

// Prefix is the path of the JSON interface.
const Prefix = "/api/v1/"

//go:embed page
var files embed.FS

// Source is what is asked for policies, pods, daemons and records.
type Source struct {
	// Load reads policies and pods and compiles them with every pod local.
	Load func(context.Context) (*cli.Input, error)
	// Changed tells cheaply whether Load would find something else; nil if only Load
	// itself can tell. It is called by one goroutine.
	Changed func() bool
	// Lower are the options that Load compiles with: a change is compiled alike.
	Lower lower.Options
	// Namespace is that of objects and names without one; "" is none.
	Namespace string
	// Kind is "manifests", "cluster" or "demo", Where which one, Flags how the
	// commands are told so.
	Kind, Where, Flags string
	// Tests is YAML of intents that the view of a change begins with.
	Tests string

	// Status asks the daemons; the JSON is that of "tierwall status". nil: there are none.
	Status func(context.Context) (any, error)
	// Records reads the audit log: the last lines that match (-1 is all), and with
	// follow what comes until ctx ends. line is reused. note gets what is missing, in
	// words. nil: there is no log, NoRecords says why.
	Records   func(ctx context.Context, q RecordQuestion, line func([]byte) error, note func(string)) error
	NoRecords string
}

// RecordQuestion says which records of the audit log to read.
type RecordQuestion struct {
	Filter auditlog.Words
	Lines  int
	Follow bool
}

// Server is the page on one address.
type Server struct {
	URL string // with its token: for one visit

	listener net.Listener
	http     *http.Server
	state    *state
}

// Listen reads the source and opens a loopback address; port 0 is a free one. Call
// Serve next.
func Listen(ctx context.Context, address string, s Source, version string) (*Server, error) {
	addr, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, fmt.Errorf("--listen %q: want ADDRESS:PORT, such as 127.0.0.1:0", address)
	}
	if !addr.Addr().IsLoopback() {
		return nil, fmt.Errorf("--listen %s: the page shows what you may see of the cluster: it is served on a loopback address only, such as 127.0.0.1:%d", address, addr.Port())
	}
	st := &state{source: s, version: version, ctx: ctx}
	if err := st.load(ctx); err != nil {
		return nil, err
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", addr.String())
	if err != nil {
		return nil, err
	}
	addr = l.Addr().(*net.TCPAddr).AddrPort()
	handler, err := newHandler(st)
	if err != nil {
		return nil, err
	}
	g := newGuard(addr, handler)
	return &Server{
		URL: g.url(), listener: l, state: st,
		http: &http.Server{Handler: g, ReadHeaderTimeout: 5 * time.Second, MaxHeaderBytes: 32 << 10, BaseContext: func(net.Listener) context.Context { return ctx }},
	}, nil
}

// Serve answers until ctx, the one of Listen, ends.
func (s *Server) Serve(ctx context.Context) error {
	defer context.AfterFunc(ctx, func() { s.http.Close() })()
	go s.state.watch(ctx)
	if err := s.http.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// views are the paths that are answered with the page.
var views = []string{"/", "/order", "/why", "/stream", "/matrix", "/nodes", "/change"}

func newHandler(st *state) (http.Handler, error) {
	mux := http.NewServeMux()
	static, err := fs.Sub(files, "page")
	if err != nil {
		return nil, err
	}
	index, err := fs.ReadFile(static, "index.html")
	if err != nil {
		return nil, err
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			fail(w, http.StatusMethodNotAllowed, "the page can be read")
			return
		}
		if slices.Contains(views, r.URL.Path) {
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			if (r.URL.Path == "/" || r.URL.Path == "/order") && !r.URL.Query().Has("pod") {
				w.Header().Set("Link", "<"+Prefix+"policies>; rel=preload; as=fetch; crossorigin=anonymous") // the view asks once its scripts run
			}
			_, _ = w.Write(index) // the browser is gone: nobody to tell
			return
		}
		name := strings.TrimPrefix(path.Clean(r.URL.Path), "/")
		b, err := fs.ReadFile(static, name)
		if err != nil {
			fail(w, http.StatusNotFound, "there is no "+r.URL.Path)
			return
		}
		w.Header().Set("Content-Type", mime.TypeByExtension(path.Ext(name)))
		http.ServeContent(w, r, name, time.Time{}, bytes.NewReader(b))
	})
	get := func(name string, params []string, answer func(r *http.Request, q url.Values) (any, error)) {
		mux.HandleFunc("GET "+Prefix+name, func(w http.ResponseWriter, r *http.Request) {
			q := r.URL.Query()
			if err := known(q, params); err != nil {
				fail(w, http.StatusBadRequest, err.Error())
				return
			}
			v, err := answer(r, q)
			reply(w, v, err)
		})
	}
	post := func(name string, answer func(r *http.Request) (any, error)) {
		mux.HandleFunc("POST "+Prefix+name, func(w http.ResponseWriter, r *http.Request) {
			// A form of another page cannot send this type.
			if kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); kind != "application/json" {
				fail(w, http.StatusUnsupportedMediaType, "want application/json")
				return
			}
			r.Body = http.MaxBytesReader(w, r.Body, maxBody)
			v, err := answer(r)
			reply(w, v, err)
		})
	}
	get("world", []string{"read"}, st.world)
	get("policies", []string{"pod"}, st.policies)
	get("policy", []string{"ref"}, st.policy)
	get("check", nil, st.check)
	get("hits", nil, st.hits)
	get("complete", []string{"text", "kind"}, st.complete)
	get("explain", []string{"from", "to", "port", "icmp", "family", "change"}, st.explain)
	get("groups", []string{"namespace"}, st.groups)
	get("reach", []string{"port", "row", "col", "change"}, st.reach)
	get("cell", []string{"port", "row", "col", "change"}, st.cell)
	get("matrix", []string{"port", "namespace", "family"}, st.matrix)
	get("status", nil, st.status)
	get("audit", append([]string{"lines"}, auditlog.WordNames...), st.audit)
	get("diff", []string{"change"}, st.diff)
	get("replay", []string{"change", "since"}, st.replay)
	post("change", st.change)
	post("test", st.test)
	mux.HandleFunc("GET "+Prefix+"stream", st.stream)
	mux.HandleFunc(Prefix, func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			fail(w, http.StatusMethodNotAllowed, "the interface can be read; change and test alone take a POST")
			return
		}
		fail(w, http.StatusNotFound, "there is no "+r.URL.Path)
	})
	return mux, nil
}

// maxBody bounds what a change or tests may be, in bytes.
const maxBody = 4 << 20

// known refuses parameters other than those named: an answer to another question
// would look like an answer to this one.
func known(q url.Values, names []string) error {
	var errs []error
	for name := range q {
		if !slices.Contains(names, name) {
			errs = append(errs, fmt.Errorf("unknown parameter %q", name))
		}
	}
	return errors.Join(errs...)
}

// statusError is an error that is not the question's fault.
type statusError struct {
	status int
	error
}

func reply(w http.ResponseWriter, v any, err error) {
	if err != nil {
		status := http.StatusBadRequest
		var s *statusError
		if errors.As(err, &s) {
			status = s.status
		}
		fail(w, status, err.Error())
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if b, ok := v.(encoded); ok {
		_, _ = w.Write(b) // as below
		return
	}
	_ = json.NewEncoder(w).Encode(v) // the browser is gone: nobody to tell
}

func fail(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]string{"error": text}) // as above
}
