package kube_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"sigs.k8s.io/yaml"
)

// apiserver is an API server as far as a client can tell that lists, watches and
// discovers: with resourceVersions, streamed lists, bookmarks and watches that
// expire, which client-go's fakes do not have.
type apiserver struct {
	*httptest.Server
	mu        sync.Mutex
	version   int
	log       []event                      // since the beginning
	compacted int                          // watches from before this version have expired
	resources map[string]bool              // "networking.k8s.io/v1/networkpolicies" -> served
	objects   map[string]map[string]object // by resource, then namespace/name
	forbidden map[string]bool              // resources
	down      bool
	open      map[chan event]string // watches by resource
	requests  map[string]int        // by "list RESOURCE", "watch RESOURCE"
	classic   bool                  // no streamed lists
}

type object map[string]any

type event struct {
	resource, kind string // ADDED, MODIFIED, DELETED, BOOKMARK; "" ends the watch
	version        int
	object         object
}

// kinds of the resources served, and whether they have namespaces.
var kinds = map[string]struct {
	kind       string
	namespaced bool
}{
	"/v1/pods": {"Pod", true}, "/v1/namespaces": {"Namespace", false}, "/v1/nodes": {"Node", false}, "/v1/services": {"Service", true},
	"networking.k8s.io/v1/networkpolicies":                     {"NetworkPolicy", true},
	"apiextensions.k8s.io/v1/customresourcedefinitions":        {"CustomResourceDefinition", false},
	"policy.networking.k8s.io/v1alpha2/clusternetworkpolicies": {"ClusterNetworkPolicy", false},
	"policy.networking.k8s.io/v1beta7/clusternetworkpolicies":  {"ClusterNetworkPolicy", false},
	"crd.antrea.io/v1beta1/networkpolicies":                    {"NetworkPolicy", true},
	"crd.antrea.io/v1alpha1/networkpolicies":                   {"NetworkPolicy", true},
	"crd.projectcalico.org/v1/networkpolicies":                 {"NetworkPolicy", true},
	"crd.projectcalico.org/v1/globalnetworkpolicies":           {"GlobalNetworkPolicy", false},
	"crd.projectcalico.org/v1/tiers":                           {"Tier", false},
	"projectcalico.org/v3/globalnetworkpolicies":               {"GlobalNetworkPolicy", false},
	"example.org/v1/teamnetworkpolicies":                       {"TeamNetworkPolicy", true},
	"example.org/v1/widgets":                                   {"Widget", true},
	"crd.antrea.io/v1beta1/tiers":                              {"Tier", false},
	"netpol.networking.k8s.io/v1alpha1/clusternetworkpolicies": {"ClusterNetworkPolicy", true}, // the wrong scope
}

func newAPIServer(t *testing.T) *apiserver {
	s := &apiserver{
		version: 100, resources: map[string]bool{}, objects: map[string]map[string]object{}, forbidden: map[string]bool{},
		open: map[chan event]string{}, requests: map[string]int{},
	}
	for r := range kinds {
		if strings.HasPrefix(r, "/v1/") || strings.HasPrefix(r, "networking.k8s.io/") || strings.HasPrefix(r, "apiext") {
			s.resources[r] = true
		}
	}
	s.Server = httptest.NewServer(s)
	t.Cleanup(func() {
		s.setDown(true)
		s.Close()
	})
	return s
}

// apply puts an object written as YAML.
func (s *apiserver) apply(t *testing.T, text string) {
	t.Helper()
	for doc := range strings.SplitSeq(text, "\n---\n") {
		o := object{}
		if err := yaml.Unmarshal([]byte(doc), &o); err != nil {
			t.Fatal(err)
		}
		s.put(o)
	}
}

func (s *apiserver) put(o object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	resource := resourceOf(o)
	s.version++
	o.meta()["resourceVersion"] = strconv.Itoa(s.version)
	if s.objects[resource] == nil {
		s.objects[resource] = map[string]object{}
	}
	kind := "ADDED"
	if _, ok := s.objects[resource][o.key()]; ok {
		kind = "MODIFIED"
	}
	s.objects[resource][o.key()] = o
	s.emit(event{resource, kind, s.version, o})
}

// delete removes an object; key is "name" or "namespace/name".
func (s *apiserver) delete(resource, key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.objects[resource][key]
	delete(s.objects[resource], key)
	s.version++
	gone := maps.Clone(o)
	gone["metadata"] = maps.Clone(o.meta())
	gone.meta()["resourceVersion"] = strconv.Itoa(s.version)
	s.emit(event{resource, "DELETED", s.version, gone})
}

// serve switches a resource on or off, with the definition that says so.
func (s *apiserver) serve(t *testing.T, resource string, on bool) {
	parts := strings.Split(resource, "/")
	name := parts[2] + "." + parts[0]
	s.mu.Lock()
	s.resources[resource] = on
	if !on {
		delete(s.objects, resource)
		s.end(resource)
	}
	s.mu.Unlock()
	if on {
		s.apply(t, "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: "+name+"}")
	} else {
		s.delete("apiextensions.k8s.io/v1/customresourcedefinitions", name)
	}
}

// bookmark tells all watches of a resource how far they are.
func (s *apiserver) bookmark(resource string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	s.emit(event{resource, "BOOKMARK", s.version, bookmarkOf(resource, s.version, false)})
	return s.version
}

// setDown ends all watches and answers nothing, or stops doing so.
func (s *apiserver) setDown(down bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = down
	s.end("")
}

// compact makes watches from before now expire.
func (s *apiserver) compact() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	s.compacted = s.version
}

// end ends the watches of a resource, or all. The caller holds the lock.
func (s *apiserver) end(resource string) {
	for ch, r := range s.open {
		if resource == "" || r == resource {
			close(ch)
			delete(s.open, ch)
		}
	}
}

func (s *apiserver) emit(e event) {
	if e.kind != "BOOKMARK" {
		s.log = append(s.log, e)
	}
	for ch, r := range s.open {
		if r == e.resource {
			ch <- e
		}
	}
}

func (o object) meta() map[string]any { return o["metadata"].(map[string]any) }

func (o object) key() string {
	name := fmt.Sprint(o.meta()["name"])
	if ns := o.meta()["namespace"]; ns != nil {
		return fmt.Sprint(ns) + "/" + name
	}
	return name
}

func resourceOf(o object) string {
	version := fmt.Sprint(o["apiVersion"])
	if !strings.Contains(version, "/") {
		version = "/" + version
	}
	for r, k := range kinds {
		if strings.HasPrefix(r, version+"/") && k.kind == o["kind"] {
			return r
		}
	}
	panic("no resource for " + version + " " + fmt.Sprint(o["kind"]))
}

func bookmarkOf(resource string, version int, initial bool) object {
	parts := strings.Split(resource, "/")
	meta := map[string]any{"resourceVersion": strconv.Itoa(version)}
	if initial {
		meta["annotations"] = map[string]any{"k8s.io/initial-events-end": "true"}
	}
	return object{"apiVersion": strings.TrimPrefix(parts[0]+"/"+parts[1], "/"), "kind": kinds[resource].kind, "metadata": meta}
}

func status(w http.ResponseWriter, code int, reason string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"message":%q,"code":%d}`, reason, reason, code)
}

func (s *apiserver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	down := s.down
	s.mu.Unlock()
	if down {
		// As a load balancer in front of nobody answers.
		status(w, http.StatusServiceUnavailable, "ServiceUnavailable")
		return
	}
	path := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	group, rest := "", path[1:]
	if path[0] == "apis" {
		if len(path) == 1 {
			s.groups(w)
			return
		}
		group, rest = path[1], path[2:]
	}
	switch len(rest) {
	case 0:
		if path[0] == "api" {
			writeJSON(w, map[string]any{"kind": "APIVersions", "versions": []string{"v1"}})
			return
		}
	case 1:
		s.discovery(w, group, rest[0])
		return
	}
	if group == "" && len(rest) == 3 && rest[1] == "namespaces" {
		s.namespace(w, rest[2])
		return
	}
	namespace := ""
	if len(rest) == 4 && rest[1] == "namespaces" {
		namespace, rest = rest[2], []string{rest[0], rest[3]}
	}
	resource := group + "/" + strings.Join(rest, "/")
	s.mu.Lock()
	served, forbidden := s.resources[resource], s.forbidden[resource] && namespace == "" || s.forbidden[resource+" "+namespace]
	s.mu.Unlock()
	switch {
	case !served:
		status(w, http.StatusNotFound, "NotFound")
	case forbidden:
		status(w, http.StatusForbidden, "Forbidden")
	case r.URL.Query().Get("watch") != "":
		s.watch(w, r, resource)
	default:
		s.list(w, r, resource, namespace)
	}
}

// namespace answers a get of one Namespace, which a user of it may always do here.
func (s *apiserver) namespace(w http.ResponseWriter, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o, ok := s.objects["/v1/namespaces"][name]; ok {
		writeJSON(w, o)
		return
	}
	status(w, http.StatusNotFound, "NotFound")
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v)
}

func (s *apiserver) groups(w http.ResponseWriter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	versions := map[string][]any{}
	for _, r := range slices.Sorted(maps.Keys(s.resources)) {
		p := strings.Split(r, "/")
		gv := map[string]any{"groupVersion": p[0] + "/" + p[1], "version": p[1]}
		if s.resources[r] && p[0] != "" && !slices.ContainsFunc(versions[p[0]], func(v any) bool { return v.(map[string]any)["version"] == p[1] }) {
			versions[p[0]] = append(versions[p[0]], gv)
		}
	}
	var groups []any
	for _, g := range slices.Sorted(maps.Keys(versions)) {
		groups = append(groups, map[string]any{"name": g, "versions": versions[g], "preferredVersion": versions[g][0]})
	}
	writeJSON(w, map[string]any{"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

func (s *apiserver) discovery(w http.ResponseWriter, group, version string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []any
	for r, on := range s.resources {
		p := strings.Split(r, "/")
		if on && p[0] == group && p[1] == version {
			out = append(out, map[string]any{
				"name": p[2], "kind": kinds[r].kind, "namespaced": kinds[r].namespaced, "verbs": []string{"get", "list", "watch"},
			})
		}
	}
	if out == nil {
		status(w, http.StatusNotFound, "NotFound")
		return
	}
	writeJSON(w, map[string]any{"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": strings.TrimPrefix(group+"/"+version, "/"), "resources": out})
}

// wanted returns an object as a request wants it: whole, or its metadata.
func wanted(r *http.Request, o object) object {
	if !strings.Contains(r.Header.Get("Accept"), "PartialObjectMetadata") {
		return o
	}
	return object{"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": o["metadata"]}
}

func (s *apiserver) list(w http.ResponseWriter, r *http.Request, resource, namespace string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests["list "+resource]++
	items := []any{}
	for _, k := range slices.Sorted(maps.Keys(s.objects[resource])) {
		if namespace == "" || strings.HasPrefix(k, namespace+"/") {
			items = append(items, wanted(r, s.objects[resource][k]))
		}
	}
	b := bookmarkOf(resource, s.version, false)
	if limit, _ := strconv.Atoi(r.URL.Query().Get("limit")); limit > 0 && limit < len(items) && strings.Contains(r.Header.Get("Accept"), "PartialObjectMetadata") {
		b.meta()["remainingItemCount"] = len(items) - limit
		b.meta()["continue"] = "more"
		items = items[:limit]
	}
	list := map[string]any{"apiVersion": b["apiVersion"], "kind": kinds[resource].kind + "List", "metadata": b["metadata"], "items": items}
	if strings.Contains(r.Header.Get("Accept"), "PartialObjectMetadata") {
		list["apiVersion"], list["kind"] = "meta.k8s.io/v1", "PartialObjectMetadataList"
	}
	writeJSON(w, list)
}

func (s *apiserver) watch(w http.ResponseWriter, r *http.Request, resource string) {
	q := r.URL.Query()
	initial := q.Get("sendInitialEvents") == "true"
	from, _ := strconv.Atoi(q.Get("resourceVersion"))
	s.mu.Lock()
	if initial && s.classic {
		s.mu.Unlock()
		status(w, http.StatusUnprocessableEntity, "Invalid")
		return
	}
	if from > 0 && from < s.compacted && !initial {
		s.mu.Unlock()
		status(w, http.StatusGone, "Expired")
		return
	}
	s.requests["watch "+resource]++
	ch := make(chan event, 1000)
	if initial {
		for _, k := range slices.Sorted(maps.Keys(s.objects[resource])) {
			ch <- event{resource, "ADDED", 0, s.objects[resource][k]}
		}
		ch <- event{resource, "BOOKMARK", s.version, bookmarkOf(resource, s.version, true)}
	} else {
		for _, e := range s.log {
			if e.resource == resource && e.version > from {
				ch <- e
			}
		}
	}
	s.open[ch] = resource
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.open, ch)
	}()
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	flush := w.(http.Flusher)
	flush.Flush()
	enc := json.NewEncoder(w)
	for {
		select {
		case <-r.Context().Done():
			return
		case e, ok := <-ch:
			if !ok || enc.Encode(map[string]any{"type": e.kind, "object": wanted(r, e.object)}) != nil {
				return
			}
			flush.Flush()
		}
	}
}
