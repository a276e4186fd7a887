package agent

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

// TestManual keeps deploy/config.yaml, the manual, equal to the defaults.
func TestManual(t *testing.T) {
	got, err := Load("../../../deploy/config.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if want := Default(); !reflect.DeepEqual(got, want) {
		t.Errorf("deploy/config.yaml says\n%+v\nthe code\n%+v", got, want)
	}
	manual, err := os.ReadFile("../../../deploy/config.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{
		"node:", "manifests:", "kubernetes:", "  enabled:", "  kubeconfig:", "  namespace:", "  snapshot:", "  snapshotMaxAge:", "  snapshotWait:",
		"  removeTaint:", "  report:", "dataplane:", "failMode:", "allowMixedDialects:", "established:", "audit:", "  file:", "  format:", "  window:",
		"  all:", "  denies:", "  labels:", "  mode:", "  maxSizeMiB:", "  maxAge:", "  keep:", "  keepFor:", "  compress:", "  chain:",
		"  stdout:", "  syslog:", "  stream:", "conntrack:", "  maxConnections:", "nfqueue:", "  firstQueue:", "  queues:", "  queueLength:",
		"dns:", "  queue:", "  state:", "  hold:", "  grace:", "  servers:", "afxdp:", "  flowEntries:", "  attach:", "  devices:", "  exclude:", "  podCIDRs:", "  antiSpoofing:", "  uplinks:", "  xdpMode:", "metrics:", "  address:", "cni:", "  socket:",
	} {
		if !strings.Contains(string(manual), "\n"+key) {
			t.Errorf("the manual leaves out %q", key)
		}
	}
}

func TestLoadRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"dataplan: auto":                         "dataplan: unknown key",
		"failmode: open":                         "failmode: unknown key", // encoding/json would take it
		"failMode: closed\nFailMode: open":       "FailMode: unknown key",
		"afxdp: {pinpath: /x}":                   "afxdp.pinpath: unknown key",
		"dataplane: auto\ndataplane: afxdp":      "dataplane",
		"failMode: closed\n---\nfailMode: open":  "more than one YAML document",
		"failMode: [open]":                       "failMode: ",
		"accelerate: maybe":                      `accelerate: "maybe" is no bool`,
		"conntrack: {maxConnections: many}":      "conntrack.maxConnections: ",
		"nfqueue: {firstQueue: 65536}":           "nfqueue.firstQueue: 65536",
		"nfqueue: {queueLength: -1}":             "nfqueue.queueLength: -1",
		"audit: {window: soon}":                  "audit.window: ",
		"dns: {hold: 100}":                       "dns.hold: ",
		"manifests: 5":                           "manifests: want a path or a list of paths",
		`manifests: ["", a]`:                     "manifests: want a path or a list of paths",
		"controller: {webhook: {addressing: x}}": "controller.webhook.addressing: unknown key",
		"afxdp: tcx":                             "afxdp: ",
		"- a":                                    "where keys belong",
		"a: [":                                   "yaml",
	} {
		path := filepath.Join(t.TempDir(), "c.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(path); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%q: error %v, want one naming the file and %q", text, err, want)
		}
	}
}

// What a file says counts, and nothing else changes.
func TestLoad(t *testing.T) {
	for text, change := range map[string]func(*Config){
		"":                              func(*Config) {},
		"# nothing\n---\n# here\n---\n": func(*Config) {},
		"failMode: null\nafxdp: null":   func(*Config) {},
		`manifests: ""`:                 func(c *Config) { c.Manifests = nil },
		"manifests: /a,b":               func(c *Config) { c.Manifests = Paths{"/a,b"} },
		"manifests: [/a, /b]":           func(c *Config) { c.Manifests = Paths{"/a", "/b"} },
		"---\nfailMode: open\nafxdp: {attach: tcx, antiSpoofing: false}\ndns: {hold: 1s}\ncontroller: {webhook: {names: a}}": func(c *Config) {
			c.FailMode, c.AFXDP.Attach, c.AFXDP.AntiSpoofing, c.DNS.Hold.Duration, c.Controller.Webhook.Names = "open", "tcx", false, time.Second, "a"
		},
	} {
		path := filepath.Join(t.TempDir(), "c.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		want := Default()
		change(&want)
		if got, err := Load(path); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
}

// A value a backend would refuse is refused before any backend starts: with
// dataplane auto the other one would otherwise go on without it.
func TestValidateForBackends(t *testing.T) {
	for text, want := range map[string]string{
		"rejectRate: -1": "rejectRate",
		"conntrack: {maxConnections: 99999999999}":       "conntrack.maxConnections",
		"nfqueue: {firstQueue: 65535, queues: 4}":        "nfqueue.firstQueue",
		"nfqueue: {queues: 65}":                          "nfqueue.queues",
		"nfqueue: {queueLength: 0}":                      "nfqueue.queueLength",
		"afxdp: {flowEntries: 4294967295}":               "afxdp.flowEntries",
		"afxdp: {pinPath: rel/path}":                     "afxdp.pinPath",
		"afxdp: {upcallRate: 0}":                         "afxdp.upcallRate",
		"afxdp: {upcallRate: -2}":                        "afxdp.upcallRate",
		"afxdp: {upcallBurst: 0}":                        "afxdp.upcallBurst",
		`afxdp: {devices: "[a"}`:                         "afxdp.devices",
		`afxdp: {exclude: "cali*,[a"}`:                   "afxdp.exclude",
		"dataplane: afxdp\nafxdp: {attach: xdp-generic}": "afxdp.attach",
		`metrics: {address: ":99999"}`:                   "metrics.address",
		"audit: {maxSizeMiB: 99999999999999}":            "audit.maxSizeMiB",
	} {
		path := filepath.Join(t.TempDir(), "c.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := Load(path)
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want+": ") {
			t.Errorf("%q: error %v, want one naming %s", text, err, want)
		}
	}
}

func TestValidateNamesEveryMistake(t *testing.T) {
	c := Default()
	c.Dataplane, c.FailMode, c.Established, c.Audit.Format = "xdp", "half", "maybe", "xml"
	c.Audit.Window.Duration, c.Manifests, c.Conntrack.MaxConnections, c.AFXDP.FlowEntries, c.AFXDP.Queues = 0, nil, 0, 1, -1
	c.Kubernetes.SnapshotMaxAge.Duration, c.Kubernetes.SnapshotWait.Duration, c.Kubernetes.RemoveTaint = 0, -1, "a b"
	c.Audit.Mode, c.Audit.Keep, c.Audit.Chain, c.Audit.Syslog, c.Audit.Stream, c.Audit.File = "rw", -1, true, "log:514", "/x", "/x"
	err := c.Validate()
	if err == nil {
		t.Fatal("accepted")
	}
	for _, key := range []string{"dataplane", "failMode", "established", "audit.format", "audit.window", "audit.mode", "audit.keep", "audit.chain", "audit.syslog", "manifests", "kubernetes.snapshotMaxAge", "kubernetes.snapshotWait", "kubernetes.removeTaint", "conntrack.maxConnections", "afxdp.queues", "afxdp.flowEntries"} {
		if !strings.Contains(err.Error(), key) {
			t.Errorf("error does not name %s:\n%v", key, err)
		}
	}
	if good := Default(); good.Validate() != nil || good.Node == "" {
		t.Errorf("defaults refused, or no node name: %+v", good)
	}
}

// There is exactly one source of policies.
func TestOneSource(t *testing.T) {
	for _, c := range []struct {
		manifests Paths
		enabled   bool
		ok        bool
	}{{Paths{"/m"}, false, true}, {nil, true, true}, {Paths{"/m"}, true, false}, {nil, false, false}} {
		conf := Default()
		conf.Manifests, conf.Kubernetes.Enabled = c.manifests, c.enabled
		if err := conf.Validate(); (err == nil) != c.ok || err != nil && !strings.Contains(err.Error(), "manifests: ") {
			t.Errorf("manifests %q, kubernetes %t: %v", c.manifests, c.enabled, err)
		}
	}
}

func TestNodeName(t *testing.T) {
	t.Setenv("NODE_NAME", "from-env")
	c := Default()
	if err := c.Validate(); err != nil || c.Node != "from-env" {
		t.Errorf("node %q, %v", c.Node, err)
	}
	c.Node = "given"
	if err := c.Validate(); err != nil || c.Node != "given" {
		t.Errorf("node %q, %v", c.Node, err)
	}
}
