package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tierwall/tierwall/cmd/internal/api"
	"github.com/tierwall/tierwall/cmd/internal/auditlog"
	"github.com/tierwall/tierwall/cmd/internal/cli"
	"github.com/tierwall/tierwall/cmd/internal/cluster"
)

// apiServer answers lists from memory. Paths that are not there are 404, those in
// forbidden 403.
type apiServer struct {
	mu        sync.Mutex
	forbidden []string
	asked     []string
	more      map[string]string // answers in the place of apiAnswers'
}

var apiAnswers = map[string]string{
	"/api":    `{"kind":"APIVersions","versions":["v1"]}`,
	"/api/v1": `{"kind":"APIResourceList","groupVersion":"v1","resources":[{"name":"pods","namespaced":true,"kind":"Pod","verbs":["list"]}]}`,
	"/apis": `{"kind":"APIGroupList","groups":[{"name":"networking.k8s.io","versions":[{"groupVersion":"networking.k8s.io/v1","version":"v1"}],
		"preferredVersion":{"groupVersion":"networking.k8s.io/v1","version":"v1"}}]}`,
	"/apis/networking.k8s.io/v1": `{"kind":"APIResourceList","groupVersion":"networking.k8s.io/v1","resources":[
		{"name":"networkpolicies","singularName":"networkpolicy","namespaced":true,"kind":"NetworkPolicy","verbs":["list","get","watch"]}]}`,
	"/api/v1/pods":       `{"kind":"PodList","apiVersion":"v1","items":[` + podShopWeb + `,` + podShopDB + `,` + podOther + `]}`,
	"/api/v1/namespaces": `{"kind":"NamespaceList","apiVersion":"v1","items":[{"metadata":{"name":"shop"}},{"metadata":{"name":"other","labels":{"team":"x"}}}]}`,
	"/api/v1/nodes": `{"kind":"NodeList","apiVersion":"v1","items":[{"metadata":{"name":"n1"},"spec":{"podCIDRs":["10.0.0.0/24"]},
		"status":{"addresses":[{"type":"InternalIP","address":"192.0.2.1"}]}}]}`,
	"/api/v1/services":                                           `{"kind":"ServiceList","apiVersion":"v1","items":[]}`,
	"/api/v1/namespaces/shop/pods":                               `{"kind":"PodList","apiVersion":"v1","items":[` + podShopWeb + `,` + podShopDB + `]}`,
	"/api/v1/namespaces/shop/services":                           `{"kind":"ServiceList","apiVersion":"v1","items":[]}`,
	"/apis/networking.k8s.io/v1/networkpolicies":                 `{"kind":"NetworkPolicyList","apiVersion":"networking.k8s.io/v1","items":[` + policyDB + `]}`,
	"/apis/networking.k8s.io/v1/namespaces/shop/networkpolicies": `{"kind":"NetworkPolicyList","apiVersion":"networking.k8s.io/v1","items":[` + policyDB + `]}`,
}

const (
	podShopWeb = `{"metadata":{"name":"web","namespace":"shop","labels":{"app":"web"}},"spec":{"nodeName":"n1"},"status":{"phase":"Running","podIPs":[{"ip":"10.0.0.1"}]}}`
	podShopDB  = `{"metadata":{"name":"db","namespace":"shop","labels":{"app":"db"}},"spec":{"nodeName":"n1"},"status":{"phase":"Running","podIPs":[{"ip":"10.0.0.2"}]}}`
	podOther   = `{"metadata":{"name":"scan","namespace":"other"},"spec":{"nodeName":"n1"},"status":{"phase":"Running","podIPs":[{"ip":"10.0.0.3"}]}}`
	policyDB   = `{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"name":"db","namespace":"shop","uid":"0b8e"},
		"spec":{"podSelector":{"matchLabels":{"app":"db"}},"policyTypes":["Ingress"],"ingress":[{"from":[{"podSelector":{"matchLabels":{"app":"web"}}}]}]}}`
)

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.asked = append(s.asked, r.URL.Path)
	refused := slices.Contains(s.forbidden, r.URL.Path)
	text, ok := s.more[r.URL.Path]
	s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	if !ok {
		text, ok = apiAnswers[r.URL.Path]
	}
	switch {
	case refused:
		w.WriteHeader(http.StatusForbidden)
		text = `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","message":"you may not","code":403}`
	case !ok:
		w.WriteHeader(http.StatusNotFound)
		text = `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","message":"not here","code":404}`
	}
	_, _ = fmt.Fprint(w, text)
}

// kubeconfigOf serves a cluster and returns a kubeconfig whose context is in
// namespace shop.
func kubeconfigOf(t *testing.T, h http.Handler) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	path := filepath.Join(t.TempDir(), "config")
	text := `{apiVersion: v1, kind: Config, current-context: c, clusters: [{name: c, cluster: {server: "` + s.URL + `"}}],
users: [{name: u, user: {token: t}}], contexts: [{name: c, context: {cluster: c, user: u, namespace: shop}}]}`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestLiveCluster(t *testing.T) {
	config := kubeconfigOf(t, &apiServer{})
	r := tierwall(t, "", "explain", "--kubeconfig", config, "--from", "other/scan", "--to", "shop/db", "-p", "5432/TCP")
	if r.code != 0 || !strings.HasPrefix(r.out, "Drop  other/scan (10.0.0.3) -> shop/db (10.0.0.2)") || r.err != "" {
		t.Errorf("explain: %+v", r)
	}
	r = tierwall(t, "", "explain", "--kubeconfig", config, "-n", "shop", "--from", "web", "--to", "db", "-p", "5432/TCP", "-o", "json")
	if r.code != 0 || !strings.Contains(r.out, `"verdict": "Allow"`) || strings.Contains(r.out, "incomplete") {
		t.Errorf("explain by -n: %+v", r)
	}
	r = tierwall(t, "", "get", "policies", "--kubeconfig", config)
	if r.code != 0 || !strings.Contains(r.out, "0b8e ") || !strings.Contains(r.out, "K8sNetworkPolicy:shop/db") {
		t.Errorf("get: %+v", r)
	}
	if r := tierwall(t, "", "get", "policies", "--kubeconfig", config, "-n", "other"); r.code != 0 || strings.Count(r.out, "\n") != 1 {
		t.Errorf("get -n other: %+v", r)
	}
	r = tierwall(t, "", "matrix", "--kubeconfig", config, "-n", "other", "-o", "json")
	if r.code != 0 || strings.Count(r.out, `"from"`) != 5 || strings.Contains(r.out, `"from":"shop/web","to":"shop/db"`) {
		t.Errorf("matrix -n other: %+v", r)
	}
	// An explicit source wins over KUBECONFIG.
	t.Setenv("KUBECONFIG", config)
	if r := tierwall(t, "", "matrix", "-m", quickstart); r.code != 0 || strings.Contains(r.out, "other/scan") {
		t.Errorf("manifests beside KUBECONFIG: %+v", r)
	}
	if r := tierwall(t, "", "matrix"); r.code != 0 || !strings.Contains(r.out, "other/scan") {
		t.Errorf("KUBECONFIG: %+v", r)
	}
	// A server that does not answer is no empty cluster.
	dead := httptest.NewServer(http.NotFoundHandler())
	dead.Close()
	bad := strings.Replace(read(t, config), "http://127", dead.URL+"/x#http://127", 1)
	path := filepath.Join(t.TempDir(), "bad")
	if err := os.WriteFile(path, []byte(bad), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := tierwall(t, "", "check", "--kubeconfig", path); r.code != cli.ExitUsage || r.out != "" {
		t.Errorf("no server: %+v", r)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// Who may read one namespace gets the answer for that one, and is told.
func TestLimitedRights(t *testing.T) {
	s := &apiServer{forbidden: []string{
		"/api/v1/pods", "/api/v1/namespaces", "/api/v1/nodes", "/api/v1/services", "/apis/networking.k8s.io/v1/networkpolicies",
	}}
	config := kubeconfigOf(t, s)
	told := []string{
		"incomplete: the answer holds for what could be read of the cluster",
		"pods: read in namespace shop only (forbidden): pods of other namespaces count as addresses outside",
		"namespaces: not read (forbidden): labels of namespaces are not known",
		"nodes: not read (forbidden)",
		"networkpolicies.networking.k8s.io: read in namespace shop only (forbidden): policies of this kind of other namespaces are not in the answer",
	}
	for _, args := range [][]string{
		{"explain", "--from", "shop/web", "--to", "shop/db", "-p", "5432/TCP"},
		{"matrix"},
		{"get", "policies"},
		{"check"},
	} {
		r := tierwall(t, "", append(args, "--kubeconfig", config)...)
		if r.code != 0 {
			t.Errorf("%v: exit code %d, %s", args, r.code, r.err)
		}
		for _, want := range told {
			if !strings.Contains(r.err, want) {
				t.Errorf("%v: %q is not told in\n%s", args, want, r.err)
			}
		}
		// The same as JSON, for programs.
		r = tierwall(t, "", append(args, "--kubeconfig", config, "-o", "json")...)
		var answer struct {
			Incomplete []cli.Gap `json:"incomplete"`
		}
		if err := json.Unmarshal([]byte(r.out), &answer); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, r.out)
		}
		i := slices.IndexFunc(answer.Incomplete, func(g cli.Gap) bool { return g.Resource == "pods" })
		if i < 0 || answer.Incomplete[i].Namespace != "shop" || !answer.Incomplete[i].Forbidden || answer.Incomplete[i].Means == "" {
			t.Errorf("%v: incomplete %+v", args, answer.Incomplete)
		}
	}
	// The pod of another namespace is not there, and its address is an outsider's.
	if r := tierwall(t, "", "explain", "--kubeconfig", config, "--from", "other/scan", "--to", "shop/db", "-p", "1/TCP"); r.code != cli.ExitUsage {
		t.Errorf("a pod that may not be seen: %+v", r)
	}
}

func TestCheckFiles(t *testing.T) {
	config := kubeconfigOf(t, &apiServer{})
	write := func(text string) string {
		path := filepath.Join(t.TempDir(), "policy.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	// Selects nobody in the cluster's namespace of the context: said, with the file.
	nobody := write("apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: new}\nspec: {podSelector: {matchLabels: {app: dbb}}}\n")
	r := tierwall(t, "", "check", nobody, "--kubeconfig", config)
	if r.code != 0 || !strings.Contains(r.out, nobody) || !strings.Contains(r.out, "NetworkPolicy shop/new") || !strings.HasPrefix(last(r.out), "1 policy: 0 errors, ") {
		t.Errorf("%+v", r)
	}
	// The same for pods that the files do not have and the cluster does: nothing to say.
	fits := write("apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: new, namespace: other}\nspec: {podSelector: {}, policyTypes: [Ingress]}\n")
	if r := tierwall(t, "", "check", fits, "--kubeconfig", config); r.code != 0 || r.out != "1 policy: 0 errors, 0 warnings\n" {
		t.Errorf("%+v", r)
	}
	// S0-67: an administrator's policy that overrides one in the cluster.
	wall := write("apiVersion: policy.networking.k8s.io/v1alpha1\nkind: AdminNetworkPolicy\nmetadata: {name: wall}\n" +
		"spec: {priority: 1, subject: {namespaces: {}}, ingress: [{action: Deny, from: [{namespaces: {}}], ports: [{portNumber: {protocol: TCP, port: 22}}]}]}\n")
	r = tierwall(t, "", "check", wall, "--kubeconfig", config, "-o", "json")
	for _, part := range []string{`"object": "NetworkPolicy shop/db"`, `"path": "spec.ingress[0]"`, `"by": "AdminNetworkPolicy wall"`, `"from": "shop/web"`, `"to": "shop/db"`, `"port": "22/TCP"`} {
		if r.code != 0 || !strings.Contains(r.out, part) {
			t.Errorf("no %s: %+v", part, r)
		}
	}
	wrong := write("apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: new}\nspec: {podselector: {}}\n")
	if r := tierwall(t, "", "check", wrong, "--kubeconfig", config); r.code != cli.ExitFinding || !strings.Contains(r.out, "podSelector") {
		t.Errorf("%+v", r)
	}
	// Without a cluster they are checked by themselves, and that is said.
	if r := tierwall(t, "", "check", wrong); r.code != cli.ExitFinding || !strings.Contains(r.err, "no cluster is known") {
		t.Errorf("%+v", r)
	}
	if r := tierwall(t, "", "check", "-m", quickstart, wrong); r.code != cli.ExitUsage {
		t.Errorf("%+v", r)
	}
}

func last(text string) string {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	return lines[len(lines)-1]
}

// serveDaemon serves a daemon's interface and returns its address.
func serveDaemon(t *testing.T, h http.Handler) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

func TestStatusLocal(t *testing.T) {
	st := api.Status{Node: "n1", Ready: true, Started: time.Now().Add(-time.Hour), Version: "v1"}
	st.Dataplane.Backends, st.Policy.Hash, st.Policy.Objects = "afxdp+nfqueue", "abc", 3
	h := api.Handler(api.Config{Status: func() api.Status { return st }})
	address := serveDaemon(t, h)
	r := tierwall(t, "", "status", "--local", "--address", address)
	if r.code != 0 || !strings.Contains(r.out, "ready        yes") || !strings.Contains(r.out, "afxdp+nfqueue") {
		t.Errorf("%+v", r)
	}
	// Policy kinds of other projects, which nobody enforces here.
	two := 2
	st.Source.NotUnderstood = []api.NotUnderstood{
		{Group: "crd.projectcalico.org", Kind: "GlobalNetworkPolicy", Used: "yes", Objects: &two, Matters: true, Message: "the cluster has 2 objects of kind G", Hint: "rewrite it"},
		{Group: "crd.projectcalico.org", Kind: "Tier", Used: "no", Message: "kind Tier is installed"},
	}
	r = tierwall(t, "", "status", "--local", "--address", address)
	if r.code != 0 || !strings.Contains(r.out, "warning: the cluster has 2 objects of kind G (rewrite it)\nnote: kind Tier is installed\n") {
		t.Errorf("%+v", r)
	}
	r = tierwall(t, "", "status", "--local", "--address", address, "-o", "json")
	if r.code != 0 || !strings.Contains(r.out, `"notUnderstood"`) || !strings.Contains(r.out, `"objects": 2`) {
		t.Errorf("%+v", r)
	}
	st.Ready, st.NotReady = false, "waiting for pods"
	r = tierwall(t, "", "status", "--address", address) // no cluster: the local one
	if r.code != cli.ExitFinding || !strings.Contains(r.out, "no: waiting for pods") {
		t.Errorf("not ready: %+v", r)
	}
	if r := tierwall(t, "", "status", "--local", "--node", "n1"); r.code != cli.ExitUsage || !strings.Contains(r.err, "give one") {
		t.Errorf("%+v", r)
	}
	if r := tierwall(t, "", "flows", "--local", "--address", "127.0.0.1:1"); r.code != cli.ExitUsage || !strings.Contains(r.err, "no daemon answered") {
		t.Errorf("nobody there: %+v", r)
	}
	if r := tierwall(t, "", "cleanup", "--address", address); os.Geteuid() == 0 && (r.code != cli.ExitUsage || !strings.Contains(r.err, "the daemon of node n1 runs")) {
		t.Errorf("cleanup under a daemon: %+v", r)
	}
}

func TestStatusTable(t *testing.T) {
	ok := func(hash string) *api.Status {
		s := &api.Status{Ready: true, Source: api.Source{Kind: "kubernetes"}}
		s.Policy.Hash, s.Dataplane.Backends = hash, "nfqueue"
		return s
	}
	wrong := ok("aaaaaaaaaaaaaaaa")
	wrong.Policy.ErrorsTotal = 1
	foreign := ok("aaaaaaaaaaaaaaaa")
	foreign.Source.NotUnderstood = []api.NotUnderstood{{Message: "the cluster has 1 object", Matters: true}, {Message: "nobody uses it"}}
	a := statusAnswer{Nodes: []nodeStatus{{Node: "n1", Status: foreign}, {Node: "n2", Status: ok("bbbb")}, {Node: "n3", Error: "gone"}, {Node: "n4", Status: wrong}}}
	var b strings.Builder
	if err := a.write(&b, false, time.Now()); err != nil || a.bad() != 2 {
		t.Fatal(err, a.bad())
	}
	for _, want := range []string{"n1   yes     nfqueue   aaaaaaaaaaaa ", "n3   unknown", "3 of 4 nodes enforce policy; not all the same one: there are 2 different", "\nwarning: the cluster has 1 object (n1)\n"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is not in\n%s", want, b.String())
		}
	}
}

// Logs of several nodes come as one, in the order of time; what is missing is said.
func TestTailNodes(t *testing.T) {
	dir := t.TempDir()
	log := func(node string, seconds ...int) cluster.Daemon {
		var b strings.Builder
		for i, s := range seconds {
			fmt.Fprintf(&b, `{"v":1,"kind":"flow","time":%q,"node":%q,"verdict":"Drop","protocol":"TCP","source":{"ip":"10.0.0.1"},"destination":{"ip":"10.0.0.2","port":80},"count":1,"seq":%d}`+"\n",
				time.Unix(int64(s), 0).UTC().Format(time.RFC3339), node, i+1)
		}
		if err := os.WriteFile(filepath.Join(dir, node), []byte(b.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		return cluster.Daemon{Node: node, Pod: "pod-" + node}
	}
	daemons := []cluster.Daemon{log("a", 1, 4), log("b", 2, 3, 5), {Node: "c", Why: "no daemon on this node"}}
	servers := map[string]string{}
	for _, d := range daemons[:2] {
		servers[d.Node] = serveDaemon(t, api.Handler(api.Config{AuditFile: filepath.Join(dir, d.Node), Alive: 10 * time.Millisecond}))
	}
	var out, notes strings.Builder
	tail := func(q api.Tail, last int) *nodeTail {
		out.Reset()
		notes.Reset()
		p := auditlog.Printer{W: &out, Zone: time.UTC, Today: time.Unix(0, 0), NodeWidth: 3}
		return &nodeTail{
			list: func(context.Context) ([]cluster.Daemon, error) { return daemons, nil },
			client: func(d cluster.Daemon) (*api.Client, func()) {
				return &api.Client{HTTP: http.DefaultClient, Base: "http://" + servers[d.Node]}, func() {}
			},
			tail: q, notes: &notes, retry: 10 * time.Millisecond,
			merge: auditlog.Merger{Hold: 10 * time.Millisecond, Last: last, Deliver: p.Print},
		}
	}
	err := tail(api.Tail{Lines: -1}, -1).run(t.Context())
	if cli.Code(err) != cli.ExitFinding || !strings.Contains(notes.String(), "c: not read: no daemon on this node") {
		t.Errorf("a node that was not read: %v, %s", err, notes.String())
	}
	var nodes []string
	for l := range strings.Lines(out.String()) {
		nodes = append(nodes, l[:1]+l[10:12])
	}
	if want := []string{"a01", "b02", "b03", "a04", "b05"}; !slices.Equal(nodes, want) {
		t.Errorf("got %v, want %v\n%s", nodes, want, out.String())
	}
	if err := tail(api.Tail{Lines: 2}, 2).run(t.Context()); cli.Code(err) != cli.ExitFinding || strings.Count(out.String(), "\n") != 2 || !strings.Contains(out.String(), ":05.000") {
		t.Errorf("the last two: %v\n%s", err, out.String())
	}
}

// A stream that breaks is taken up behind the last record: none twice, none lost.
func TestTailResumes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	write := func(seq int) {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			t.Error(err)
			return
		}
		defer f.Close()
		fmt.Fprintf(f, `{"v":1,"kind":"flow","time":"2026-01-01T00:00:%02dZ","node":"a","verdict":"Drop","count":1,"seq":%d}`+"\n", seq, seq)
	}
	write(1)
	real := api.Handler(api.Config{AuditFile: path, Alive: 5 * time.Millisecond})
	streams := 0
	address := serveDaemon(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if streams++; streams > 1 {
			real.ServeHTTP(w, r)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), 300*time.Millisecond)
		defer cancel()
		real.ServeHTTP(w, r.WithContext(context.WithValue(ctx, http.LocalAddrContextKey, r.Context().Value(http.LocalAddrContextKey))))
		write(2) // while nobody reads
	}))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var seqs []uint64
	var notes strings.Builder
	enough := errors.New("enough")
	n := &nodeTail{
		list: func(context.Context) ([]cluster.Daemon, error) { return []cluster.Daemon{{Node: "a", Pod: "p"}}, nil },
		client: func(cluster.Daemon) (*api.Client, func()) {
			return &api.Client{HTTP: http.DefaultClient, Base: "http://" + address}, func() {}
		},
		tail: api.Tail{Lines: 10, Follow: true}, notes: &notes, retry: 10 * time.Millisecond,
		merge: auditlog.Merger{Hold: time.Millisecond, Last: 10, Deliver: func(line []byte) error {
			seqs = append(seqs, auditlog.SeqOf(line))
			if len(seqs) == 2 {
				write(3)
			}
			if len(seqs) == 3 {
				return enough
			}
			return nil
		}},
	}
	if err := n.run(ctx); !errors.Is(err, enough) || !slices.Equal(seqs, []uint64{1, 2, 3}) {
		t.Errorf("%v, records %v, notes %s", err, seqs, notes.String())
	}
	if !strings.Contains(notes.String(), "read again") {
		t.Errorf("the break was not told: %s", notes.String())
	}
}

// kubectl's plugin speaks of "kubectl tierwall".
func TestPluginName(t *testing.T) {
	for path, want := range map[string]string{
		"/usr/bin/tierwall": "tierwall", "/opt/kubectl-tierwall": "kubectl tierwall", "kubectl-tierwall.exe": "kubectl tierwall", "main.test": "tierwall",
	} {
		if got := calledAs(path); got != want {
			t.Errorf("%s is called as %q, want %q", path, got, want)
		}
	}
	var out, errOut strings.Builder
	if code := runAs(t.Context(), "kubectl tierwall", []string{"explain", "--help"}, strings.NewReader(""), &out, &errOut); code != 0 {
		t.Fatal(errOut.String())
	}
	if !strings.Contains(out.String(), "kubectl tierwall explain [--manifests DIR]") || strings.Contains(out.String(), "\n  tierwall ") {
		t.Errorf("help of the plugin:\n%s", out.String())
	}
	out.Reset()
	if code := runAs(t.Context(), "kubectl tierwall", []string{"matrix", "--nope"}, strings.NewReader(""), &out, &errOut); code != cli.ExitUsage ||
		!strings.Contains(errOut.String(), "kubectl tierwall: unknown flag") || !strings.Contains(errOut.String(), `Run "kubectl tierwall matrix --help"`) {
		t.Errorf("code %d: %s", code, errOut.String())
	}
}
