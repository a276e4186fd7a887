package scale

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Server is an API server as far as a client can tell that discovers, lists and
// watches: TLS and HTTP/2, protobuf for the core resources and JSON for the rest,
// lists in pages, streamed lists, bookmarks, watches that expire. It also keeps
// Leases. There is no storage, admission or authorisation behind it.
//
// All methods may be called from any goroutine.
type Server struct {
	http *http.Server
	ca   []byte
	addr string

	out    atomic.Uint64 // bytes sent, TLS included
	events atomic.Uint64 // sent to watches, initial ones included

	mu        sync.Mutex
	version   uint64
	compacted uint64 // watches from before this version have expired
	resources []*resource
	leases    map[string]json.RawMessage
	requests  map[string]int // by "VERB RESOURCE"
	cut       chan struct{}  // closed and replaced to end all watches
}

const definitionsPlural = "customresourcedefinitions"

// newServer returns a server of the core resources, NetworkPolicies and the given
// custom resources, without objects and not reachable yet.
func newServer(custom ...*resource) *Server {
	s := &Server{version: 1000, leases: map[string]json.RawMessage{}, requests: map[string]int{}, cut: make(chan struct{})}
	s.resources = append([]*resource{
		{version: "v1", plural: "pods", kind: "Pod", namespaced: true, fresh: func() message { return &corev1.Pod{} }},
		{version: "v1", plural: "namespaces", kind: "Namespace", fresh: func() message { return &corev1.Namespace{} }},
		{version: "v1", plural: "nodes", kind: "Node", fresh: func() message { return &corev1.Node{} }},
		{version: "v1", plural: "services", kind: "Service", namespaced: true, fresh: func() message { return &corev1.Service{} }},
		{group: "networking.k8s.io", version: "v1", plural: "networkpolicies", kind: "NetworkPolicy", namespaced: true},
		{group: "apiextensions.k8s.io", version: "v1", plural: definitionsPlural, kind: "CustomResourceDefinition"},
	}, custom...)
	for _, r := range s.resources {
		r.objects, r.news = map[string]*entry{}, make(chan struct{})
	}
	for _, r := range custom {
		definition := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}}
		definition.SetName(r.name())
		s.put(definitionsPlural+".apiextensions.k8s.io", definition)
	}
	return s
}

// serve answers on a listener until Close.
func (s *Server) serve(l net.Listener) error {
	ca, tlsConfig, err := certificate()
	if err != nil {
		return err
	}
	s.ca, s.addr = ca, l.Addr().String()
	s.http = &http.Server{
		Handler: s, TLSConfig: tlsConfig, ReadHeaderTimeout: 10 * time.Second,
		ErrorLog: log.New(io.Discard, "", 0), // clients that leave are no news
	}
	go func() { _ = s.http.ServeTLS(counting{l, s}, "", "") }()
	return nil
}

// Close ends all connections.
func (s *Server) Close() error {
	s.hangUp(false)
	return s.http.Close()
}

// hangUp ends all watches; expired makes them start again from a list.
func (s *Server) hangUp(expired bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if expired {
		s.version++
		s.compacted = s.version
	}
	close(s.cut)
	s.cut = make(chan struct{})
}

// Traffic is what a server has seen.
type Traffic struct {
	Sent     uint64         // bytes, TLS included
	Events   uint64         // sent to watches, initial ones included
	Requests map[string]int // by "VERB RESOURCE"
}

func (s *Server) traffic() Traffic {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Traffic{s.out.Load(), s.events.Load(), maps.Clone(s.requests)}
}

func (s *Server) find(name string) *resource {
	i := slices.IndexFunc(s.resources, func(r *resource) bool { return r.name() == name })
	if i < 0 {
		panic("no resource " + name)
	}
	return s.resources[i]
}

func keyOf(o metav1.Object) string {
	if ns := o.GetNamespace(); ns != "" {
		return ns + "/" + o.GetName()
	}
	return o.GetName()
}

// put adds or replaces an object. It is changed: it gets its version.
func (s *Server) put(name string, o object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.find(name)
	s.version++
	o.SetResourceVersion(strconv.FormatUint(s.version, 10))
	data, err := r.encode(o)
	if err != nil {
		panic(fmt.Sprintf("%s: %v", name, err)) // the object is of our own making
	}
	kind, key := "ADDED", keyOf(o)
	if r.objects[key] != nil {
		kind = "MODIFIED"
	}
	r.objects[key] = &entry{key, s.version, data}
	s.emit(r, event{kind, s.version, data})
}

// get returns a copy of an object, nil when there is none.
func (s *Server) get(name, key string) object {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.find(name)
	e := r.objects[key]
	if e == nil {
		return nil
	}
	o, err := r.decode(e.data)
	if err != nil {
		panic(fmt.Sprintf("%s %s: %v", name, key, err))
	}
	return o
}

func (s *Server) remove(name, key string) {
	o := s.get(name, key)
	if o == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.find(name)
	s.version++
	o.SetResourceVersion(strconv.FormatUint(s.version, 10))
	data, err := r.encode(o)
	if err != nil {
		panic(fmt.Sprintf("%s: %v", name, err))
	}
	delete(r.objects, key)
	s.emit(r, event{"DELETED", s.version, data})
}

// emit tells watches. The caller holds the lock. What was put before anybody
// watched is found by lists.
func (s *Server) emit(r *resource, e event) {
	if s.http != nil {
		r.log = append(r.log, e)
	}
	close(r.news)
	r.news = make(chan struct{})
}

func (s *Server) count(verb string, r string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests[verb+" "+r]++
}

func (s *Server) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	path := strings.Split(strings.Trim(req.URL.Path, "/"), "/")
	group, rest := "", path[1:]
	if path[0] == "apis" {
		if len(path) == 1 {
			s.groups(w)
			return
		}
		group, rest = path[1], path[2:]
	}
	if len(rest) >= 4 && rest[1] == "namespaces" && rest[3] == "leases" {
		s.lease(w, req, rest[4:])
		return
	}
	switch len(rest) {
	case 0:
		answer(w, metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}})
		return
	case 1:
		s.discovery(w, group, rest[0])
		return
	}
	i := slices.IndexFunc(s.resources, func(r *resource) bool {
		return len(rest) == 2 && r.group == group && r.version == rest[0] && r.plural == rest[1]
	})
	if i < 0 || req.Method != http.MethodGet {
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound)
		return
	}
	r := s.resources[i]
	if req.URL.Query().Get("watch") != "" {
		s.watch(w, req, r)
		return
	}
	s.list(w, req, r)
}

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", contentJSON)
	_ = json.NewEncoder(w).Encode(v) // the client has gone
}

func refuse(w http.ResponseWriter, code int, reason metav1.StatusReason) {
	w.Header().Set("Content-Type", contentJSON)
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Reason: reason, Message: string(reason), Code: int32(code),
	})
}

func (s *Server) groups(w http.ResponseWriter) {
	s.count("get", "api groups")
	l := metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}}
	for _, r := range s.resources {
		if r.group == "" || slices.ContainsFunc(l.Groups, func(g metav1.APIGroup) bool { return g.Name == r.group }) {
			continue
		}
		v := metav1.GroupVersionForDiscovery{GroupVersion: r.apiVersion(), Version: r.version}
		l.Groups = append(l.Groups, metav1.APIGroup{Name: r.group, Versions: []metav1.GroupVersionForDiscovery{v}, PreferredVersion: v})
	}
	answer(w, l)
}

func (s *Server) discovery(w http.ResponseWriter, group, version string) {
	s.count("get", "api resources")
	l := metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}}
	for _, r := range s.resources {
		if r.group == group && r.version == version {
			l.GroupVersion = r.apiVersion()
			l.APIResources = append(l.APIResources, metav1.APIResource{
				Name: r.plural, Kind: r.kind, Namespaced: r.namespaced, Verbs: metav1.Verbs{"get", "list", "watch"},
			})
		}
	}
	if l.APIResources == nil {
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound)
		return
	}
	answer(w, l)
}

// lease answers those who keep Leases: that they write is counted, what they write
// is remembered only from the first time.
func (s *Server) lease(w http.ResponseWriter, req *http.Request, name []string) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest)
		return
	}
	s.count(strings.ToLower(req.Method), "leases")
	s.mu.Lock()
	defer s.mu.Unlock()
	switch req.Method {
	case http.MethodGet, http.MethodPatch:
		if len(name) == 0 || s.leases[name[0]] == nil {
			refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound)
			return
		}
		answer(w, s.leases[name[0]])
	case http.MethodPost, http.MethodPut:
		var o unstructured.Unstructured
		if err := o.UnmarshalJSON(body); err != nil {
			refuse(w, http.StatusUnsupportedMediaType, metav1.StatusReasonUnsupportedMediaType)
			return
		}
		s.version++
		o.SetResourceVersion(strconv.FormatUint(s.version, 10))
		if s.leases[o.GetName()], err = o.MarshalJSON(); err != nil {
			refuse(w, http.StatusInternalServerError, metav1.StatusReasonInternalError)
			return
		}
		answer(w, s.leases[o.GetName()])
	default:
		refuse(w, http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed)
	}
}

// sorted returns what there is now, by key, and the version it is of.
func (s *Server) sorted(r *resource) ([]*entry, uint64, int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := slices.Collect(maps.Values(r.objects))
	slices.SortFunc(all, func(a, b *entry) int { return cmp.Compare(a.key, b.key) })
	return all, s.version, len(r.log)
}

// list answers with a page. The token that continues it is the key to start at:
// good enough for one client that lists while little changes.
func (s *Server) list(w http.ResponseWriter, req *http.Request, r *resource) {
	s.count("list", r.name())
	q := req.URL.Query()
	all, version, _ := s.sorted(r)
	if from := q.Get("continue"); from != "" {
		at, _ := slices.BinarySearchFunc(all, from, func(e *entry, k string) int { return cmp.Compare(e.key, k) })
		all = all[at:]
	}
	meta := metav1.ListMeta{ResourceVersion: strconv.FormatUint(version, 10)}
	if limit, _ := strconv.Atoi(q.Get("limit")); limit > 0 && limit < len(all) {
		meta.Continue = all[limit].key
		all = all[:limit]
	}
	f := r.formOf(req.Header.Get("Accept"))
	b, err := r.list(all, meta, f)
	if err != nil {
		refuse(w, http.StatusInternalServerError, metav1.StatusReasonInternalError)
		return
	}
	w.Header().Set("Content-Type", f.contentType(false))
	_, _ = w.Write(b) // the client has gone
}

// bookmarkEvery is how often API servers send bookmarks.
const bookmarkEvery = time.Minute

// watch streams events until the client leaves, the time is up or hangUp.
func (s *Server) watch(w http.ResponseWriter, req *http.Request, r *resource) {
	s.count("watch", r.name())
	q := req.URL.Query()
	ctx := req.Context()
	if seconds, _ := strconv.Atoi(q.Get("timeoutSeconds")); seconds > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(seconds)*time.Second)
		defer cancel()
	}
	from, _ := strconv.ParseUint(q.Get("resourceVersion"), 10, 64)
	st := stream{server: s, w: w, r: r, form: r.formOf(req.Header.Get("Accept"))}
	s.mu.Lock()
	st.cut = s.cut
	initial := q.Get("sendInitialEvents") == "true"
	expired := !initial && from > 0 && from < s.compacted
	// Older than the log was put before anybody could have seen it.
	st.at, _ = slices.BinarySearchFunc(r.log, from+1, func(e event, v uint64) int { return cmp.Compare(e.version, v) })
	s.mu.Unlock()
	if expired {
		refuse(w, http.StatusGone, metav1.StatusReasonExpired)
		return
	}
	w.Header().Set("Content-Type", st.form.contentType(true))
	w.WriteHeader(http.StatusOK)
	if initial {
		if st.initial() != nil {
			return
		}
	}
	_ = st.follow(ctx) // ends when the client does
}

// stream is one watch.
type stream struct {
	server *Server
	w      http.ResponseWriter
	r      *resource
	form   form
	at     int // next event of the log
	cut    chan struct{}
}

// initial sends everything there is, and the mark that says so.
func (st *stream) initial() error {
	all, version, at := st.server.sorted(st.r)
	st.at = at
	for _, e := range all {
		if err := st.send(event{"ADDED", e.version, e.data}); err != nil {
			return err
		}
	}
	b, err := st.r.bookmark(version, true)
	if err != nil {
		return err
	}
	return st.send(b)
}

func (st *stream) send(e event) error {
	b, err := st.r.frame(e, st.form)
	if err != nil {
		return err
	}
	st.server.events.Add(1)
	_, err = st.w.Write(b)
	return err
}

func (st *stream) follow(ctx context.Context) error {
	flush := http.NewResponseController(st.w)
	bookmarks := time.NewTicker(bookmarkEvery)
	defer bookmarks.Stop()
	for {
		if err := flush.Flush(); err != nil {
			return err
		}
		st.server.mu.Lock()
		batch, news := st.r.log[st.at:], st.r.news
		version := st.server.version
		st.at = len(st.r.log)
		st.server.mu.Unlock()
		for _, e := range batch {
			if err := st.send(e); err != nil {
				return err
			}
		}
		if len(batch) > 0 {
			continue
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-st.cut:
			return errors.New("the server hangs up")
		case <-news:
		case <-bookmarks.C:
			b, err := st.r.bookmark(version, false)
			if err == nil {
				err = st.send(b)
			}
			if err != nil {
				return err
			}
		}
	}
}
