package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/conntrack"
	"github.com/tierwall/tierwall/dataplane/hits"
)

// Prefix is the path of everything here.
const Prefix = "/api/v1/"

// Content types of answers.
const (
	jsonType  = "application/json"
	linesType = "application/x-ndjson"
)

// How many answers of a kind are given at a time.
const (
	maxListings = 4
	maxTails    = 32
)

// writeTimeout is how long a reader may not read before the daemon hangs up.
const writeTimeout = 10 * time.Second

// verifyTimeout bounds the check of a log.
const verifyTimeout = 2 * time.Minute

// Engine is what is read of a *dataplane.Engine.
type Engine interface {
	Flows(f func(backend string, rec conntrack.Record) bool)
	// TableOf returns the table of a generation, nil when it is forgotten.
	TableOf(generation uint64) *classifier.Table
	// Table returns the table in force, nil before the first.
	Table() *classifier.Table
}

// Config names what the daemon lets be read. Engine and Status are required; all
// of it may be called from any goroutine at any time.
type Config struct {
	Node   string
	Engine Engine
	Status func() Status
	// Hits returns every rule in force with its hits; nil where they are not counted.
	Hits func() ([]hits.Rule, error)
	// AuditFile is the audit log, "" when there is none to be read; NoAudit says
	// why then.
	AuditFile, NoAudit string
	// Now is the clock; nil is time.Now.
	Now    func() time.Time
	Logger *slog.Logger // nil is slog.Default
	// Alive is how often a quiet audit stream shows that it lives. 0 means one
	// second.
	Alive time.Duration
}

type server struct {
	cfg             Config
	listings, tails chan struct{} // tokens
}

// Handler serves everything under [Prefix].
func Handler(cfg Config) http.Handler {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.Alive == 0 {
		cfg.Alive = time.Second
	}
	s := &server{cfg: cfg, listings: make(chan struct{}, maxListings), tails: make(chan struct{}, maxTails)}
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+Prefix+"status", s.status)
	mux.HandleFunc("GET "+Prefix+"flows", limited(s.listings, s.flows))
	mux.HandleFunc("GET "+Prefix+"hits", limited(s.listings, s.hits))
	mux.HandleFunc("GET "+Prefix+"verify", limited(s.tails, s.verify))
	mux.HandleFunc("GET "+Prefix+"audit", limited(s.tails, s.audit))
	mux.HandleFunc(Prefix, func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			fail(w, http.StatusMethodNotAllowed, "the interface can be read, not written")
			return
		}
		fail(w, http.StatusNotFound, "there is no "+r.URL.Path+"; there is status, flows, hits, audit and verify")
	})
	return localOnly(mux)
}

// localOnly refuses whoever is not on this machine. The daemon may have been told
// to listen on every address for the sake of /metrics.
func localOnly(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
		if local == nil || !loopback(local.String()) || !loopback(r.RemoteAddr) || !localName(r.Host) {
			fail(w, http.StatusForbidden, "only reachable on the node itself, by a loopback address: use port-forward, or run the command on the node")
			return
		}
		h.ServeHTTP(w, r)
	})
}

func loopback(hostPort string) bool {
	a, err := netip.ParseAddrPort(hostPort)
	return err == nil && a.Addr().Unmap().IsLoopback()
}

// localName reports whether a Host header names this machine by a loopback
// address or as localhost.
func localName(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	a, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil && a.Unmap().IsLoopback()
}

func limited(tokens chan struct{}, h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		select {
		case tokens <- struct{}{}:
			defer func() { <-tokens }()
			h(w, r)
		default:
			w.Header().Set("Retry-After", "1")
			fail(w, http.StatusTooManyRequests, fmt.Sprintf("%d others are reading; try again", cap(tokens)))
		}
	}
}

// failure is the JSON of every answer that is none.
type failure struct {
	Error string `json:"error"`
}

func fail(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", jsonType)
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(failure{text}) // the reader is gone: nobody to tell
}

func (s *server) status(w http.ResponseWriter, r *http.Request) {
	if err := known(r.URL.Query()); err != nil {
		fail(w, http.StatusBadRequest, err.Error())
		return
	}
	w.Header().Set("Content-Type", jsonType)
	st := s.cfg.Status()
	st.V, st.Now = Version, s.cfg.Now().UTC()
	_ = json.NewEncoder(w).Encode(st) // as above
}

// known refuses parameters other than those named, and repetitions of these.
func known(q url.Values, names ...string) error {
	var errs []error
	for name, v := range q {
		ok := false
		for _, n := range names {
			ok = ok || n == name
		}
		switch {
		case !ok:
			errs = append(errs, fmt.Errorf("unknown parameter %q", name))
		case len(v) != 1:
			errs = append(errs, fmt.Errorf("parameter %q: given %d times", name, len(v)))
		}
	}
	return errors.Join(errs...)
}

// number reads an optional whole number within bounds.
func number(q url.Values, name string, otherwise, low, high int) (int, error) {
	text := q.Get(name)
	if text == "" {
		return otherwise, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < low || n > high {
		return 0, fmt.Errorf("parameter %q: want a number from %d to %d", name, low, high)
	}
	return n, nil
}

// End is the last line of a complete stream.
type End struct {
	// Lines is how many were sent, Omitted how many more matched and were left
	// out because of the limit.
	Lines   int `json:"lines"`
	Omitted int `json:"omitted,omitempty"`
}

// control are the lines of a stream that are no content. Exactly one field is set.
type control struct {
	End *End `json:"end,omitempty"`
	// Alive is the daemon's clock: all records written before it have been sent.
	Alive *time.Time `json:"alive,omitempty"`
	// Past ends the records of the past.
	Past bool `json:"past,omitempty"`
	// Missing are numbers of records that cannot be read any more.
	Missing *Missing `json:"missing,omitempty"`
	// Failed is why the stream ends here.
	Failed string `json:"failed,omitempty"`
}

// Missing are records that are gone from the log, by their numbers.
type Missing struct {
	First uint64 `json:"first"`
	Last  uint64 `json:"last"`
}

// lines writes a stream of JSON lines to a reader who may be slow or gone.
type lines struct {
	w   http.ResponseWriter
	c   *http.ResponseController
	err error
}

// stream begins an answer of lines and takes the server's deadlines off it: it
// may last. Every write has one of its own.
func stream(w http.ResponseWriter) *lines {
	w.Header().Set("Content-Type", linesType)
	w.Header().Set("Cache-Control", "no-store")
	l := &lines{w: w, c: http.NewResponseController(w)}
	// Fails where nothing can be limited (a recorder in a test).
	_ = l.c.SetReadDeadline(time.Time{})
	return l
}

// send writes one line; after an error it does nothing.
func (l *lines) send(line []byte) {
	if l.err != nil {
		return
	}
	_ = l.c.SetWriteDeadline(time.Now().Add(writeTimeout)) // as above
	if _, l.err = l.w.Write(line); l.err == nil && (len(line) == 0 || line[len(line)-1] != '\n') {
		_, l.err = l.w.Write([]byte{'\n'})
	}
}

func (l *lines) json(v any) {
	b, err := json.Marshal(v)
	if err != nil {
		l.err = err
		return
	}
	l.send(append(b, '\n'))
}

// flush sends what was written on its way.
func (l *lines) flush() {
	if l.err == nil {
		l.err = l.c.Flush()
	}
}
