package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/vishvananda/netns"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"

	"github.com/tierwall/tierwall/cmd/internal/agent"
	"github.com/tierwall/tierwall/cmd/internal/api"
	"github.com/tierwall/tierwall/dataplane/nstest"
	"github.com/tierwall/tierwall/policy/diag"
)

// forwarder is an API server that forwards ports of pods, as the real one does with a
// kubelet behind it.
type forwarder struct {
	apiServer
	pods map[string]func(context.Context) (net.Conn, error) // by name
}

func (s *forwarder) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if path.Base(r.URL.Path) != "portforward" {
		s.apiServer.ServeHTTP(w, r)
		return
	}
	dial := s.pods[path.Base(path.Dir(r.URL.Path))]
	if dial == nil || r.Header.Get("Sec-Websocket-Version") != "" {
		w.WriteHeader(http.StatusNotFound) // no WebSockets: an older server
		return
	}
	w.Header().Set(httpstream.HeaderProtocolVersion, "portforward.k8s.io")
	streams := make(chan httpstream.Stream, 2)
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(s httpstream.Stream, _ <-chan struct{}) error { streams <- s; return nil })
	if conn == nil {
		return
	}
	defer conn.Close()
	for {
		select {
		case <-conn.CloseChan():
			return
		case st := <-streams:
			if st.Headers().Get("streamType") == "error" {
				st.Close() // nothing goes wrong
				continue
			}
			go func() {
				c, err := dial(context.Background())
				if err != nil {
					conn.Close()
					return
				}
				defer c.Close()
				go func() { _, _ = io.Copy(c, st); c.Close() }() // ends with either
				_, _ = io.Copy(st, c)
				st.Close()
			}()
		}
	}
}

// daemonPods are the answers about daemons on the nodes n1, n2, … of which the last has
// none.
func daemonPods(n int) map[string]string {
	var pods, nodes []string
	for i := 1; i <= n; i++ {
		pods = append(pods, fmt.Sprintf(`{"metadata":{"name":"tierwall-n%[1]d","namespace":"tierwall","labels":{"app.kubernetes.io/name":"tierwall","app.kubernetes.io/component":"daemon"}},"spec":{"nodeName":"n%[1]d"},"status":{"phase":"Running"}}`, i))
	}
	for i := 1; i <= n+1; i++ {
		nodes = append(nodes, fmt.Sprintf(`{"metadata":{"name":"n%d"},"status":{"addresses":[{"type":"InternalIP","address":"192.0.2.%d"}]}}`, i, i))
	}
	return map[string]string{
		"/api/v1/namespaces/tierwall/pods": `{"kind":"PodList","apiVersion":"v1","items":[` + strings.Join(pods, ",") + `]}`,
		"/api/v1/nodes":                    `{"kind":"NodeList","apiVersion":"v1","items":[` + strings.Join(nodes, ",") + `]}`,
	}
}

// daemonSays is a daemon whose status a test writes, behind the daemon's own interface.
type daemonSays struct {
	mu sync.Mutex
	st api.Status
}

func (d *daemonSays) set(f func(*api.Status)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f(&d.st)
}

func (d *daemonSays) listen(t *testing.T) func(context.Context) (net.Conn, error) {
	t.Helper()
	address := serveDaemon(t, api.Handler(api.Config{Status: func() api.Status { d.mu.Lock(); defer d.mu.Unlock(); return d.st }}))
	return func(ctx context.Context) (net.Conn, error) {
		var nd net.Dialer
		return nd.DialContext(ctx, "tcp", address)
	}
}

// The daemons of a cluster are asked through its API server; the page says of each which
// policy it enforces, whether it is behind, how, and what is missing. What the user may
// not read is said, too.
func TestUINodesOfACluster(t *testing.T) {
	started := time.Now().Add(-time.Hour)
	fresh := func(hash string, ago time.Duration) api.Status {
		at := time.Now().Add(-ago)
		st := api.Status{V: 1, Version: "v9", Started: started, Ready: true, Source: api.Source{Kind: "kubernetes", Where: "in the cluster", Synced: true}}
		st.Dataplane = api.Dataplane{Backends: "afxdp+nfqueue", Why: "the fast path runs", FailMode: "closed", Kernel: "6.9.1-test", Probes: []api.Probe{{Backend: "afxdp", Running: true, How: "with tcx"}, {Backend: "nfqueue", Running: true}}}
		st.Policy = api.Policy{Generation: 7, Hash: hash, Objects: 3, Rules: 4, Pods: 2, LastSuccess: &at}
		return st
	}
	var daemons [3]daemonSays
	for i := range daemons {
		daemons[i].st = fresh("aaaaaaaaaaaaaaaa", 10*time.Minute)
	}
	s := &forwarder{pods: map[string]func(context.Context) (net.Conn, error){}}
	s.more, s.forbidden = daemonPods(3), []string{"/api/v1/services"}
	for i := range daemons {
		s.pods[fmt.Sprintf("tierwall-n%d", i+1)] = daemons[i].listen(t)
	}
	b := openTab(t, 1280, 900)
	base := b.enter(startUI(t, "--kubeconfig", kubeconfigOf(t, s)))
	b.wait(`document.getElementById("banner").textContent.includes("Incomplete") && document.getElementById("banner").textContent.includes("services")`)
	b.visit(base, "/nodes")
	b.text("3 of 4 nodes enforce policy, all the same one")
	b.text("no daemon on this node")
	b.text("6.9.1-test")
	b.text("afxdp: with tcx")
	card := func(n int) string { return fmt.Sprintf(`document.querySelector("[aria-label=n%d]").innerText`, n) }

	// A change on its way: one node has it, the others are behind until they have it.
	daemons[1].set(func(s *api.Status) { *s = fresh("bbbbbbbbbbbbbbbb", 0) })
	b.wait(card(2) + `.includes("bbbbbbbbbbbb") && ` + card(2) + `.includes("✓ enforces")`)
	b.wait(card(1) + `.includes("behind") && ` + card(3) + `.includes("behind")`)
	b.text("2 of them not the newest one")
	daemons[2].set(func(s *api.Status) {
		*s = fresh("bbbbbbbbbbbbbbbb", 0)
		s.Ready, s.NotReady = false, "waiting for pods"
		s.Policy.Errors, s.Policy.ErrorsTotal = []diag.Diagnostic{{Message: "priority is missing", Path: "spec.priority", Hint: "write one"}}, 3
		s.Dataplane.Backends, s.Dataplane.Probes[0] = "nfqueue", api.Probe{Backend: "afxdp", Why: "the kernel has no tcx"}
		s.Traffic.Overflow, s.Audit = 12, &api.Audit{Lost: 34, Records: 50}
		s.Traffic.Passed, s.Traffic.Dropped, s.Traffic.Kernel = 1000, 500, 7
	})
	for _, want := range []string{"✕ not ready", "waiting for pods", "priority is missing", "write one", "and 2 more errors", "afxdp does not run: the kernel has no tcx", "12 packets dropped because a queue was full", "34 audit records lost"} {
		b.wait(card(3) + fmt.Sprintf(".includes(%q)", want))
	}
	b.wait(`document.querySelector(".nodes h2").textContent === "n4"`) // those to look at come first
	b.shot("nodes-cluster")
	for _, v := range b.axe() {
		t.Error(v)
	}
	// Rates come of totals, and a daemon that does not answer makes none.
	b.wait(`document.querySelector(".plots").checkVisibility()`)
	daemons[2].set(func(s *api.Status) { s.Traffic.Dropped += 3000 })
	b.wait(`Number(document.querySelectorAll(".plot .v")[1].textContent.replace(/\D/g, "")) > 300`)
	b.visit(base, "/order")
	b.visit(base, "/nodes")
	b.text("n4")

	// Policies and pods are read again when somebody asks for it.
	s.mu.Lock()
	s.more["/apis/networking.k8s.io/v1/networkpolicies"] = `{"kind":"NetworkPolicyList","apiVersion":"networking.k8s.io/v1","items":[` + policyDB + `,` + strings.ReplaceAll(policyDB, `"name":"db"`, `"name":"second"`) + `]}`
	s.mu.Unlock()
	b.click("header button", "read again")
	b.wait(`document.getElementById("source").textContent.includes("2 policies")`)
	b.calm(base)
}

// The daemon of this machine is asked with --local.
func TestUINodesLocal(t *testing.T) {
	var d daemonSays
	d.st = api.Status{Node: "here", Ready: true, Started: time.Now(), Version: "v1"}
	d.st.Policy.Hash, d.st.Dataplane.Backends, d.st.Dataplane.Kernel = "abc", "nfqueue", "6.1.0"
	address := serveDaemon(t, api.Handler(api.Config{Status: func() api.Status { d.mu.Lock(); defer d.mu.Unlock(); return d.st }}))
	b := openTab(t, 1280, 800)
	base := b.enter(startUI(t, "--manifests", quickstart, "--local", "--address", address))
	b.visit(base, "/nodes")
	b.text("1 of 1 node enforces policy")
	b.wait(`document.querySelector("[aria-label=here]").innerText.includes("6.1.0")`)
	d.set(func(s *api.Status) { s.Ready, s.NotReady = false, "no policy yet" })
	b.text("no policy yet")
	b.calm(base)
}

// ownNames waits for the names of a kept world, which are the machine's, and gives them
// back with the test.
func ownNames(t *testing.T) {
	t.Helper()
	lock, err := os.Create(path.Join(os.TempDir(), "tierwall-test-keep.lock"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { lock.Close() })
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
}

// dialIn connects from inside a named network namespace.
func dialIn(ctx context.Context, name, address string) (conn net.Conn, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	home, err := netns.Get()
	if err != nil {
		return nil, err
	}
	defer home.Close()
	there, err := netns.GetFromName(name)
	if err != nil {
		return nil, err
	}
	defer there.Close()
	if err := netns.Set(there); err != nil {
		return nil, err
	}
	defer func() {
		if back := netns.Set(home); back != nil {
			panic(back) // the thread must not go on elsewhere
		}
	}()
	nd := net.Dialer{FallbackDelay: -1} // one address, one attempt, on this thread
	return nd.DialContext(ctx, "tcp", address)
}

// The demo's world in the page: real drops as they happen, a click to why, hits in the
// order, the real daemon on the page of nodes; and the same daemon through an API server.
func TestUIDemo(t *testing.T) {
	needBrowser(t)
	nstest.Need(t, runs("nfqueue"))
	ownNames(t)
	out, err := os.Create(path.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	p := startProgram(t, out, "demo", "--ui", "--no-open", "-o", "json")
	p.waitFor(t, "keeps running until Ctrl-C")
	var url string
	nstest.Eventually(t, "the URL", func() bool {
		_, after, ok := strings.Cut(read(t, out.Name()), `{"url":"`)
		url, _, _ = strings.Cut(after, `"`)
		return ok && url != ""
	})
	b := openTab(t, 1280, 900)
	base := b.enter(url)
	b.text("hits")
	b.shot("demo-order")
	b.visit(base, "/stream?verdict=Drop")
	b.text("live")
	b.wait(`document.querySelectorAll("tbody tr").length > 3`)
	// Traffic goes on: more comes.
	seen := js[int](b, "Number(document.querySelector('[data-seen]').dataset.seen)")
	b.wait(fmt.Sprintf("Number(document.querySelector('[data-seen]').dataset.seen) > %d + 20", seen))
	b.shot("demo-stream")
	b.click("button", "Pause")
	js[bool](b, `(() => { window.row = [...document.querySelectorAll("tbody tr")].find((r) => r.querySelector("a[href^='/why']") && r.querySelector(".tag.drop") && r.querySelector("a[href^='/order']")); window.policy = row.querySelector("a[href^='/order']").textContent; row.querySelector("a[href^='/why']").click(); return true; })()`)
	b.wait(`location.pathname === "/why" && document.querySelector(".verdict .big")`)
	if got := js[string](b, `document.querySelector(".verdict .big").textContent`); !strings.HasSuffix(got, "Drop") {
		t.Errorf("a connection that was dropped is said to be %q", got)
	}
	b.wait("document.querySelector('main').innerText.includes(window.policy)")
	b.shot("demo-why")
	b.visit(base, "/matrix?port=80/TCP")
	b.wait("performance.getEntriesByName('matrix-filled').length")
	b.shot("demo-matrix")
	b.visit(base, "/nodes")
	b.text("1 of 1 node enforces policy")
	b.wait(`document.querySelector(".plots").checkVisibility() && Number(document.querySelector(".plot .v").textContent.replace(/\D/g, "")) > 0`)
	b.do(chromedp.Sleep(10 * time.Second))
	b.shot("demo-nodes")
	b.visit(base, "/change")
	b.text("Paste a policy")
	b.calm(base)
	b.forget()

	// The same daemon, as one of a cluster.
	s := &forwarder{pods: map[string]func(context.Context) (net.Conn, error){
		"tierwall-n1": func(ctx context.Context) (net.Conn, error) {
			return dialIn(ctx, "tierwall-node", agent.Default().Metrics.Address)
		},
	}}
	s.more = daemonPods(1)
	base = b.enter(startUI(t, "--kubeconfig", kubeconfigOf(t, s)))
	b.visit(base, "/nodes")
	b.text("1 of 2 nodes enforces policy")
	b.visit(base, "/stream?verdict=Drop")
	b.wait(`document.querySelectorAll("tbody tr").length > 3`)
	seen = js[int](b, "Number(document.querySelector('[data-seen]').dataset.seen)")
	b.wait(fmt.Sprintf("Number(document.querySelector('[data-seen]').dataset.seen) > %d", seen))
	b.calm(base)
	if err := p.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if code := p.end(t, patience); code != 0 {
		t.Errorf("exit code %d\n%s", code, p.err)
	}
}
