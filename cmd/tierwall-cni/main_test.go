package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tierwall/tierwall/cmd/internal/admit"
)

const pluginEnv = "TIERWALL_TEST_CNI_PLUGIN"

// The plugin of these tests is this test binary, run as a runtime runs a plugin.
func TestMain(m *testing.M) {
	if os.Getenv(pluginEnv) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// invoke runs the plugin and returns what it printed.
func invoke(t *testing.T, command, config, args string) (stdout string, err error) {
	t.Helper()
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), pluginEnv+"=1", "CNI_COMMAND="+command, "CNI_CONTAINERID=box1", "CNI_NETNS=/proc/self/ns/net",
		"CNI_NETNS_OVERRIDE=true", "CNI_IFNAME=eth0", "CNI_PATH=/nowhere", "CNI_ARGS="+args)
	c.Stdin = strings.NewReader(config)
	var out bytes.Buffer
	c.Stdout = &out
	err = c.Run()
	return out.String(), err
}

func config(more string) string {
	return fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "net", "type": "tierwall-cni"%s}`, more)
}

const prevResult = `, "prevResult": {"cniVersion": "1.0.0", "interfaces": [{"name": "eth0"}],
  "ips": [{"address": "10.0.0.7/32", "interface": 0}, {"address": "fd00::7/128", "interface": 0}], "routes": [{"dst": "0.0.0.0/0"}]}`

const podArguments = "IgnoreUnknown=1;K8S_POD_NAMESPACE=x;K8S_POD_NAME=late;K8S_POD_INFRA_CONTAINER_ID=box1;K8S_POD_UID=u"

// daemon is a daemon's side of the socket that keeps the requests.
type daemon struct {
	socket string
	mu     sync.Mutex
	asked  []admit.Request
}

func newDaemon(t *testing.T, answer func(context.Context) error) *daemon {
	t.Helper()
	d := &daemon{socket: filepath.Join(t.TempDir(), "cni.sock")}
	l, err := admit.Listen(d.socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		admit.Serve(ctx, l, slog.New(slog.DiscardHandler), func(ctx context.Context, r admit.Request) error {
			d.mu.Lock()
			d.asked = append(d.asked, r)
			d.mu.Unlock()
			return answer(ctx)
		})
	}()
	t.Cleanup(func() { cancel(); <-done })
	return d
}

func (d *daemon) requests() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	b, _ := json.Marshal(d.asked)
	return string(b)
}

func TestAddAndDel(t *testing.T) {
	d := newDaemon(t, func(context.Context) error { return nil })
	socket := fmt.Sprintf(`, "socket": %q`, d.socket)
	out, err := invoke(t, "ADD", config(socket+prevResult), podArguments)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{"10.0.0.7/32", "fd00::7/128", "0.0.0.0/0", `"cniVersion": "1.0.0"`} {
		if !strings.Contains(out, want) {
			t.Errorf("the result of the plugin before lost %s:\n%s", want, out)
		}
	}
	if _, err := invoke(t, "DEL", config(socket+prevResult), podArguments); err != nil {
		t.Error(err)
	}
	if _, err := invoke(t, "CHECK", config(socket+prevResult), podArguments); err != nil {
		t.Error(err)
	}
	want := `[{"namespace":"x","name":"late","sandbox":"box1","addresses":["10.0.0.7","fd00::7"]},{"namespace":"x","name":"late","sandbox":"box1"}]`
	if got := d.requests(); got != want {
		t.Errorf("asked %s, want %s", got, want)
	}
	// A container of somebody else is nobody policy knows.
	if _, err := invoke(t, "ADD", config(socket+prevResult), ""); err != nil || d.requests() != want {
		t.Errorf("a container that is no pod: %v, asked %s", err, d.requests())
	}
}

// Without an answer in time a pod starts and waits, or does not start, as configured.
func TestTimeout(t *testing.T) {
	slow := newDaemon(t, func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
	refuses := newDaemon(t, func(context.Context) error { return errors.New("no") })
	for name, socket := range map[string]string{"no answer": slow.socket, "refused": refuses.socket, "no daemon": filepath.Join(t.TempDir(), "none")} {
		for mode, fails := range map[string]bool{"": false, `, "onTimeout": "start"`: false, `, "onTimeout": "fail"`: true} {
			began := time.Now()
			out, err := invoke(t, "ADD", config(fmt.Sprintf(`, "socket": %q, "timeout": "100ms"%s%s`, socket, mode, prevResult)), podArguments)
			if (err != nil) != fails || fails != strings.Contains(out, "policy is not in force for the pod") {
				t.Errorf("%s %s: %v after %v:\n%s", name, mode, err, time.Since(began), out)
			}
			if _, err := invoke(t, "DEL", config(fmt.Sprintf(`, "socket": %q, "timeout": "100ms"%s`, socket, mode)), podArguments); err != nil {
				t.Errorf("%s %s: DEL failed: %v", name, mode, err)
			}
		}
	}
}

func TestBadConfiguration(t *testing.T) {
	for more, want := range map[string]string{
		"":                                      "no prevResult",
		`, "onTimeout": "open"` + prevResult:    `onTimeout \"open\": want start or fail`,
		`, "timeout": "0s"` + prevResult:        "timeout 0s",
		`, "timeout": "soon"` + prevResult:      "network configuration",
		`, "prevResult": {"cniVersion": "9.9"}`: "prevResult",
	} {
		out, err := invoke(t, "ADD", config(more), podArguments)
		if err == nil || !strings.Contains(out, want) {
			t.Errorf("%s: %v, want an error with %q:\n%s", more, err, want, out)
		}
	}
}
