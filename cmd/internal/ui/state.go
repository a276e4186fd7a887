package ui

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/tierwall/tierwall/cmd/internal/cli"
	"github.com/tierwall/tierwall/cmd/internal/listing"
	"github.com/tierwall/tierwall/cmd/internal/query"
	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/diag"
)

// reading is one reading of the source. It does not change.
type reading struct {
	number  int // counts readings that differ
	at      time.Time
	in      *cli.Input
	took    time.Duration
	groups  *query.Groups // nil without a table
	names   []string      // of pods, "namespace/name", and Services, "svc/namespace/name"
	listing []listing.Policy
	encoded []byte // the answer to "policies"

	lintOnce sync.Once
	linted   cli.Input // Findings with those of lint
}

// state is what the answers are made of.
type state struct {
	source  Source
	version string
	ctx     context.Context // ends with the server

	loading sync.Mutex
	mu      sync.Mutex
	reading *reading
	failed  string       // why the last attempt to read again gave nothing
	changes []*candidate // the newest last
}

func (s *state) load(ctx context.Context) error {
	s.loading.Lock() // readings come in order
	defer s.loading.Unlock()
	began := time.Now()
	in, err := s.source.Load(ctx)
	if err != nil {
		return err
	}
	r := &reading{at: time.Now().UTC(), in: in, took: time.Since(began)}
	r.listing = listing.Policies(in.Objects, &in.Set)
	if in.Table != nil {
		r.groups = query.NewGroups(in.Table, nil, in.Snapshot)
		for i := range in.Table.World().Endpoints {
			r.names = append(r.names, query.PodName(&in.Table.World().Endpoints[i]))
		}
		slices.Sort(r.names)
		for i := range in.Snapshot.Services {
			r.names = append(r.names, "svc/"+in.Snapshot.Services[i].Namespace+"/"+in.Snapshot.Services[i].Name)
		}
	}
	if r.encoded, err = json.Marshal(policiesAnswer{r.listing, incomplete{in.Gaps}}); err != nil {
		return err
	}
	time.AfterFunc(prepareAfter, func() { s.prepare(r) })
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reading != nil {
		r.number = s.reading.number + 1
	}
	s.reading, s.failed = r, ""
	return nil
}

// prepareAfter is when what only the matrix needs is made: the page comes first.
const prepareAfter = 2 * time.Second

// prepare sorts the pods of every namespace, which takes seconds in a large cluster,
// before the matrix asks for it.
func (s *state) prepare(r *reading) {
	if r.groups == nil {
		return
	}
	for _, ns := range r.groups.Namespaces() {
		if s.ctx.Err() != nil || s.now() != r {
			return
		}
		r.groups.Prepare(ns)
	}
}

// lookEvery is how often the source is asked whether it has changed.
const lookEvery = time.Second

// watch reads again what has changed, until ctx ends.
func (s *state) watch(ctx context.Context) {
	if s.source.Changed == nil {
		return
	}
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if !s.source.Changed() {
			continue
		}
		if err := s.load(ctx); err != nil && ctx.Err() == nil {
			s.mu.Lock()
			s.failed = err.Error()
			s.mu.Unlock()
		}
	}
}

func (s *state) now() *reading {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reading
}

// compiled is a state to ask: what was read, or what a change would make of it.
type compiled struct {
	*reading
	in     *cli.Input
	groups *query.Groups
}

// errNoTable is the answer about policies with errors.
var errNoTable = errors.New("the policies have errors: correct them first (view \"order\" lists them)")

// asked returns what a question is about: the policies as they are, or with the
// change of an id.
func (s *state) asked(q url.Values) (compiled, error) {
	r := s.now()
	if id := q.Get("change"); id != "" {
		c, err := s.candidate(id)
		if err != nil {
			return compiled{}, err
		}
		if c.in.Table == nil {
			return compiled{}, errors.New("the change has errors: correct them first")
		}
		return compiled{c.base, c.in, c.groups()}, nil
	}
	if r.in.Table == nil {
		return compiled{}, errNoTable
	}
	return compiled{r, r.in, r.groups}, nil
}

// World is the answer to "world".
type World struct {
	Version string `json:"version"`
	Kind    string `json:"kind"`
	Where   string `json:"where"`
	Flags   string `json:"flags"` // of the commands that ask the same source
	// Reading counts how often the source was found changed; Read is when it was.
	Reading    int       `json:"reading"`
	Read       time.Time `json:"read"`
	Seconds    float64   `json:"seconds"` // that reading took
	Problem    string    `json:"problem,omitempty"`
	Pods       int       `json:"pods"`
	Namespaces int       `json:"namespaces"`
	Nodes      int       `json:"nodes"`
	Services   int       `json:"services"`
	Policies   int       `json:"policies"`
	Staged     int       `json:"staged"`
	Rules      int       `json:"rules"`
	Errors     int       `json:"errors"`
	Warnings   int       `json:"warnings"`
	Answers    bool      `json:"answers"` // there is a table to ask
	Records    bool      `json:"records"` // there is an audit log
	NoRecords  string    `json:"noRecords,omitempty"`
	Daemons    bool      `json:"daemons"` // there are daemons to ask
	Rereads    bool      `json:"rereads"` // by asking for the world with read=again
	Tests      string    `json:"tests,omitempty"`
	Incomplete []cli.Gap `json:"incomplete,omitempty"`
}

func (s *state) world(req *http.Request, q url.Values) (any, error) {
	if again := q.Get("read"); again != "" {
		if again != "again" || !s.rereads() {
			return nil, fmt.Errorf("parameter %q: this source cannot be read again on demand", "read")
		}
		if err := s.load(req.Context()); err != nil {
			return nil, &statusError{http.StatusBadGateway, err}
		}
	}
	r := s.now()
	s.mu.Lock()
	problem := s.failed
	s.mu.Unlock()
	w := World{
		Version: s.version, Kind: s.source.Kind, Where: s.source.Where, Flags: s.source.Flags,
		Reading: r.number, Read: r.at, Seconds: r.took.Seconds(), Problem: problem, Policies: len(r.listing), Rules: len(r.in.Set.Rules),
		Errors: len(r.in.Findings.Errors), Warnings: len(r.in.Findings.Warnings), Answers: r.in.Table != nil,
		Records: s.source.Records != nil, NoRecords: s.source.NoRecords, Daemons: s.source.Status != nil, Rereads: s.rereads(),
		Tests: s.source.Tests, Incomplete: r.in.Gaps,
	}
	for i := range r.listing {
		if r.listing[i].Stage != "enforce" {
			w.Staged++
		}
	}
	if snap := r.in.Snapshot; snap != nil {
		w.Pods, w.Namespaces, w.Nodes, w.Services = len(snap.Pods), len(snap.Namespaces), len(snap.Nodes), len(snap.Services)
	}
	return w, nil
}

// rereads reports whether the source is read again when asked: one that does not tell
// by itself that it has changed.
func (s *state) rereads() bool { return s.source.Kind == "cluster" }

// incomplete is the last key of an answer about a cluster that could not be read
// completely.
type incomplete struct {
	Incomplete []cli.Gap `json:"incomplete,omitempty"`
}

// policiesAnswer is the answer to "policies".
type policiesAnswer struct {
	Policies []listing.Policy `json:"policies"`
	incomplete
}

// encoded is an answer in JSON already.
type encoded []byte

func (s *state) policies(_ *http.Request, q url.Values) (any, error) {
	r := s.now()
	name := q.Get("pod")
	if name == "" {
		return encoded(r.encoded), nil
	}
	if r.in.Table == nil {
		return nil, errNoTable
	}
	pod, err := query.Pod(r.in.Snapshot, name)
	if err != nil {
		return nil, err
	}
	list := slices.DeleteFunc(slices.Clone(r.listing), func(p listing.Policy) bool { return !p.Selects(pod) })
	return policiesAnswer{list, incomplete{r.in.Gaps}}, nil
}

// refOf is how answers name a policy.
func refOf(o *api.Object) string {
	return strings.ToLower(o.Kind.Kind) + "." + o.Kind.Group + "/" + o.Namespace + "/" + o.Name
}

func (r *reading) object(ref string) (*api.Object, error) {
	var known []string
	for _, o := range r.in.Objects {
		name := refOf(o)
		if name == ref {
			return o, nil
		}
		known = append(known, name)
	}
	return nil, fmt.Errorf("no policy %s%s", ref, diag.Among(ref, known))
}

// policy is an object as its author wrote it, without what an API server adds.
func (s *state) policy(_ *http.Request, q url.Values) (any, error) {
	o, err := s.now().object(q.Get("ref"))
	if err != nil {
		return nil, err
	}
	raw := map[string]any{}
	for k, v := range o.Raw {
		if k != "status" {
			raw[k] = v
		}
	}
	if meta, ok := raw["metadata"].(map[string]any); ok {
		kept := map[string]any{}
		for _, k := range []string{"name", "namespace", "labels", "annotations"} {
			if v, ok := meta[k]; ok {
				kept[k] = v
			}
		}
		raw["metadata"] = kept
	}
	text, err := yaml.Marshal(raw)
	if err != nil {
		return nil, err
	}
	return map[string]string{"ref": q.Get("ref"), "yaml": string(text)}, nil
}

// check adds the findings about policies that are valid and override each other.
// They take seconds in a large cluster, so they are looked for when asked.
func (s *state) check(*http.Request, url.Values) (any, error) {
	r := s.now()
	r.lintOnce.Do(func() {
		r.linted = *r.in
		f := &r.linted.Findings
		f.Errors, f.Warnings, f.Notes = slices.Clone(f.Errors), slices.Clone(f.Warnings), slices.Clone(f.Notes)
		r.linted.Lint()
	})
	return struct {
		cli.Findings
		incomplete
	}{cli.FindingsOf(&r.linted.Findings), incomplete{r.in.Gaps}}, nil
}

// most bounds the names of a completion.
const most = 20

// complete returns the names that begin with a text, then those that contain it.
func (s *state) complete(_ *http.Request, q url.Values) (any, error) {
	r := s.now()
	text := strings.ToLower(q.Get("text"))
	var names []string
	switch q.Get("kind") {
	case "", "to":
		names = r.names
	case "from": // a Service opens no connections
		for _, n := range r.names {
			if !strings.HasPrefix(n, "svc/") {
				names = append(names, n)
			}
		}
	case "port":
		names = r.groups.Ports()
	case "policy":
		for _, o := range r.in.Objects {
			names = append(names, refOf(o))
		}
	default:
		return nil, fmt.Errorf("parameter %q: want from, to, port or policy", "kind")
	}
	var first, second, third []string
	for _, n := range names {
		low := strings.ToLower(n)
		switch _, short, _ := strings.Cut(low, "/"); {
		case strings.HasPrefix(low, text):
			first = append(first, n)
		case strings.HasPrefix(short, text):
			second = append(second, n)
		case strings.Contains(low, text):
			third = append(third, n)
		}
		if len(first) >= most {
			break
		}
	}
	out := slices.Concat(first, second, third)
	return map[string]any{"names": append([]string{}, out[:min(len(out), most)]...), "total": len(out)}, nil
}

func (s *state) explain(_ *http.Request, q url.Values) (any, error) {
	c, err := s.asked(q)
	if err != nil {
		return nil, err
	}
	for _, name := range []string{"from", "to", "port"} {
		if q.Get(name) == "" {
			return nil, fmt.Errorf("parameter %q is missing", name)
		}
	}
	p, err := query.ParsePort(q.Get("port"))
	if err != nil {
		return nil, err
	}
	if icmp := q.Get("icmp"); icmp != "" {
		if p, err = p.WithICMP(icmp); err != nil {
			return nil, err
		}
	}
	family, err := query.ParseFamily(q.Get("family"))
	if err != nil {
		return nil, fmt.Errorf("parameter %q: %w", "family", err)
	}
	asked := query.Question{From: q.Get("from"), To: q.Get("to"), Namespace: s.source.Namespace, Port: p, Family: family}
	r, err := asked.Answer(c.in.Table, c.in.Snapshot)
	gaps := incomplete{c.in.Gaps}
	switch {
	case err != nil:
		return nil, err
	case r.Group != nil:
		return struct {
			*query.GroupExplanation
			incomplete
		}{r.Group, gaps}, nil
	case r.Service != nil:
		return struct {
			*query.ServiceExplanation
			incomplete
		}{r.Service, gaps}, nil
	}
	return struct {
		*query.Explanation
		incomplete
	}{r.One, gaps}, nil
}

// maxMatrix is how many pods "matrix" lists connections of: a million flows.
const maxMatrix = 1000

func (s *state) matrix(_ *http.Request, q url.Values) (any, error) {
	c, err := s.asked(q)
	if err != nil {
		return nil, err
	}
	texts := q["port"]
	if len(texts) == 0 {
		texts = []string{"80/TCP"}
	}
	ports, err := query.ParsePorts(texts)
	if err != nil {
		return nil, err
	}
	for _, p := range ports {
		if err := query.CheckPort(c.in.Table.World().Endpoints, p); err != nil {
			return nil, err
		}
	}
	family, err := query.ParseFamily(q.Get("family"))
	if err != nil {
		return nil, fmt.Errorf("parameter %q: %w", "family", err)
	}
	ns := q.Get("namespace")
	if n := len(c.in.Table.World().Endpoints); n > maxMatrix && ns == "" {
		return nil, fmt.Errorf("%d pods are too many for a list of connections: ask for a namespace, or for groups (groups, reach)", n)
	}
	if err := c.in.CheckNamespace(ns); err != nil {
		return nil, err
	}
	flows := []query.Flow{}
	for f := range query.Matrix(c.in.Table, ports, family) {
		if ns == "" || strings.HasPrefix(f.From, ns+"/") || strings.HasPrefix(f.To, ns+"/") {
			flows = append(flows, f)
		}
	}
	return struct {
		Flows []query.Flow `json:"flows"`
		incomplete
	}{flows, incomplete{c.in.Gaps}}, nil
}

func (s *state) status(r *http.Request, _ url.Values) (any, error) {
	if s.source.Status == nil {
		return nil, &statusError{http.StatusConflict, errors.New("no daemon is known to ask: " + s.source.Kind + " alone tell what is written, not what is enforced")}
	}
	v, err := s.source.Status(r.Context())
	if err != nil {
		return nil, &statusError{http.StatusBadGateway, err}
	}
	return v, nil
}
