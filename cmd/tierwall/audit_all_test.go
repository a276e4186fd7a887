package main

import (
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
	"github.com/tierwall/tierwall/dataplane/audit"
)

// threeNodes are logs behind daemons: two that answer, and a node that is down.
type threeNodes struct {
	nodeLogs
	notes strings.Builder
	mu    sync.Mutex
	asked []string // queries the daemons got
}

func newThreeNodes(t *testing.T, words auditlog.Words) *threeNodes {
	t.Helper()
	x := &threeNodes{}
	servers := map[string]*httptest.Server{}
	dir := t.TempDir()
	for node, lines := range map[string][]string{"a": {"1 Drop", "4 Allow"}, "b": {"2 Drop", "3 Allow", "5 Drop"}} {
		var b strings.Builder
		for i, l := range lines {
			second, verdict, _ := strings.Cut(l, " ")
			fmt.Fprintf(&b, `{"v":1,"kind":"flow","time":"1970-01-01T00:00:0%s.000000000Z","node":%q,"verdict":%q,"protocol":"TCP","source":{"ip":"10.0.0.1"},"destination":{"ip":"10.0.0.2","port":80},"count":1,"seq":%d}`+"\n",
				second, node, verdict, i+1)
		}
		path := filepath.Join(dir, node)
		if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		h := api.Handler(api.Config{Node: node, AuditFile: path})
		servers[node] = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			x.mu.Lock()
			x.asked = append(x.asked, r.URL.RawQuery)
			x.mu.Unlock()
			h.ServeHTTP(w, r)
		}))
		t.Cleanup(servers[node].Close)
	}
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close() // a daemon that was there a moment ago
	servers["c"] = gone
	x.nodeLogs = nodeLogs{
		daemons: []cluster.Daemon{{Node: "a"}, {Node: "b"}, {Node: "c"}}, notes: &x.notes,
		client: func(d cluster.Daemon) (*api.Client, func()) {
			return &api.Client{HTTP: &http.Client{}, Base: servers[d.Node].URL}, func() {}
		},
		tail: api.Tail{Filter: words, Lines: -1},
	}
	return x
}

// The records of all nodes come in the order of time, the daemons evaluate the filter,
// and the node that is down is said and counted.
func TestAuditAllNodesWithOneDown(t *testing.T) {
	for _, inOrder := range []bool{true, false} {
		x := newThreeNodes(t, auditlog.Words{"verdict": {"Drop"}})
		var got []string
		take := func(line []byte) error {
			r, err := audit.Parse(line)
			if err == nil {
				got = append(got, fmt.Sprintf("%s%d", r.Node, r.Time.Unix()))
			}
			return err
		}
		read := x.oneByOne
		if inOrder {
			read = x.merged
		}
		if err := read(t.Context(), take); err != nil {
			t.Fatal(err)
		}
		if want := []string{"a1", "b2", "b5"}; !slices.Equal(got, want) {
			t.Errorf("in order %t: %v, want %v", inOrder, got, want)
		}
		if x.failed != 1 || !strings.Contains(x.notes.String(), "c: not read: ") {
			t.Errorf("%d failed, said %q", x.failed, x.notes.String())
		}
		for _, q := range x.asked {
			if !strings.Contains(q, "verdict=Drop") || !strings.Contains(q, "lines=-1") {
				t.Errorf("a daemon was asked %q", q)
			}
		}
		q := logQuestion{asked: 3, failed: x.failed}
		if err := q.incomplete(); cli.Code(err) != cli.ExitFinding {
			t.Errorf("exit code %d for %v", cli.Code(err), err)
		}
	}
}

func TestAuditAllNodesInOrder(t *testing.T) {
	x := newThreeNodes(t, nil)
	var got []int64
	if err := x.merged(t.Context(), func(line []byte) error {
		r, err := audit.Parse(line)
		got = append(got, r.Time.Unix())
		return err
	}); err != nil || !slices.Equal(got, []int64{1, 2, 3, 4, 5}) {
		t.Errorf("%v, %v", got, err)
	}
	// What the reader refuses ends it, whichever node that came from.
	enough := fmt.Errorf("enough")
	began := time.Now()
	if err := x.merged(t.Context(), func([]byte) error { return enough }); !errors.Is(err, enough) || time.Since(began) > 10*time.Second {
		t.Errorf("%v", err)
	}
}

// The sources exclude each other, for every command that reads logs.
func TestAuditAllNodesOrFiles(t *testing.T) {
	for _, name := range []string{"query", "top", "staged", "verify"} {
		if r := tierwall(t, "", "audit", name, "--all-nodes", "some.log"); r.code != cli.ExitUsage || !strings.Contains(r.err, "two different sources") {
			t.Errorf("%s: %+v", name, r)
		}
	}
	if r := tierwall(t, "", "audit", "simulate", "--manifests", quickstart, "--all-nodes", "some.log"); r.code != cli.ExitUsage {
		t.Errorf("simulate: %+v", r)
	}
}
