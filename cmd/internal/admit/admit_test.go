package admit

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

// serveWith starts a server and returns its socket.
func serveWith(t *testing.T, handle func(context.Context, Request) error) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "run", "cni.sock")
	l, err := Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { Serve(ctx, l, slog.New(slog.DiscardHandler), handle); close(done) }()
	t.Cleanup(func() { cancel(); <-done })
	return socket
}

func TestAskAndServe(t *testing.T) {
	want := Request{Namespace: "x", Name: "a", Sandbox: "box", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")}}
	socket := serveWith(t, func(_ context.Context, r Request) error {
		if !reflect.DeepEqual(r, want) {
			return errors.New("another request")
		}
		return nil
	})
	if err := Ask(t.Context(), socket, want); err != nil {
		t.Error(err)
	}
	if err := Ask(t.Context(), socket, Request{Namespace: "x", Name: "b"}); err == nil || err.Error() != "another request" {
		t.Errorf("error %v, want the handler's", err)
	}
	if err := Ask(t.Context(), socket, Request{Namespace: "x"}); err == nil || !strings.Contains(err.Error(), "name") {
		t.Errorf("a pod without a name: %v", err)
	}
	if info, err := os.Stat(socket); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("socket %v, %v: want it to be root's alone", info, err)
	}
}

// A daemon that is away, or has no policy in force in time, holds nobody up for longer than
// the plugin is willing to wait.
func TestAskEnds(t *testing.T) {
	socket := serveWith(t, func(ctx context.Context, _ Request) error { <-ctx.Done(); return ctx.Err() })
	for _, s := range []string{socket, filepath.Join(t.TempDir(), "nobody")} {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		began := time.Now()
		if err := Ask(ctx, s, Request{Namespace: "x", Name: "a"}); err == nil || time.Since(began) > 10*time.Second {
			t.Errorf("%s: %v after %v", s, err, time.Since(began))
		}
		cancel()
	}
}

func TestServeRefuses(t *testing.T) {
	socket := serveWith(t, func(context.Context, Request) error { t.Error("handled"); return nil })
	for _, text := range []string{`{"namespace": "x", "name": "a", "allow": true}`, `[]`, "nonsense", `{"namespace":"x","name":"a","addresses":["10.0.0.300"]}`} {
		c, err := net.Dial("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write([]byte(text + "\n")); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 1024)
		if n, err := c.Read(b); err != nil || !strings.Contains(string(b[:n]), "error") {
			t.Errorf("%s: answer %q, %v", text, b[:n], err)
		}
		c.Close()
	}
}
