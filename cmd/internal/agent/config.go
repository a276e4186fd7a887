package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tierwall/tierwall/cmd/internal/operator"
	"github.com/tierwall/tierwall/conntrack"
	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/afxdp/attach"
	"github.com/tierwall/tierwall/dataplane/afxdp/kern"
	"github.com/tierwall/tierwall/dataplane/audit"
	"github.com/tierwall/tierwall/dataplane/nfqueue"
	"github.com/tierwall/tierwall/policy/lower"
	"github.com/tierwall/tierwall/policy/source/kube"
)

// Config is the daemon's configuration: the keys of deploy/config.yaml, which is
// its manual. [Default] has the defaults; zero values are not defaults.
type Config struct {
	// Node is the name of this node's Node object. "" = the environment's
	// NODE_NAME, or the host name.
	Node string `json:"node"`
	// Manifests are the directories and files to read policies and inventory from.
	// None with Kubernetes.Enabled, and only then.
	Manifests Paths `json:"manifests"`
	// Kubernetes says how to read them from an API server instead.
	Kubernetes KubernetesConfig `json:"kubernetes"`
	// Dataplane is auto, afxdp or nfqueue.
	Dataplane string `json:"dataplane"`
	// FailMode is closed or open.
	FailMode string `json:"failMode"`
	// Accelerate sends accepted flows between pods of this node past the host's
	// stack. With the afxdp backend only.
	Accelerate bool `json:"accelerate"`
	// AllowPodTunnels lets policy judge what pods send to nodes' ends of tunnels.
	AllowPodTunnels bool `json:"allowPodTunnels"`
	// PodCIDRs are networks that pods of any node get addresses from, separated by
	// commas, beside the pod CIDRs of Node objects.
	PodCIDRs string `json:"podCIDRs"`
	// AllowMixedDialects accepts KEP and released AdminNetworkPolicies together
	//
	AllowMixedDialects bool `json:"allowMixedDialects"`
	// Antrea has settings for the policies of crd.antrea.io.
	Antrea AntreaConfig `json:"antrea"`
	// Established is strict or keep.
	Established string `json:"established"`
	// CutReset resets TCP connections that exist but are denied.
	CutReset bool `json:"cutReset"`
	// RejectRate bounds answers to refused packets, per second and queue; 0 is
	// none.
	RejectRate int `json:"rejectRate"`

	Audit     AuditConfig     `json:"audit"`
	Conntrack ConntrackConfig `json:"conntrack"`
	NFQueue   NFQueueConfig   `json:"nfqueue"`
	AFXDP     AFXDPConfig     `json:"afxdp"`
	DNS       DNSConfig       `json:"dns"`
	Metrics   MetricsConfig   `json:"metrics"`
	CNI       CNIConfig       `json:"cni"`

	// Controller is the controller part, which runs instead of a daemon.
	Controller operator.Config `json:"controller"`

	// The rest comes from the command line only.

	ReadyFile   string `json:"-"` // written once the policy is in force
	StatsFile   string `json:"-"` // written on SIGUSR1 and at the end
	LogLevel    string `json:"-"` // debug, info, warn or error
	CleanupOnly bool   `json:"-"` // remove what an earlier run left and exit
}

// AuditConfig says what is recorded where.
type AuditConfig struct {
	File   string          `json:"file"`   // "" = no audit log
	Format string          `json:"format"` // json, antrea-v1 or antrea-v2
	Window metav1.Duration `json:"window"` // equal denied packets within it become one record
	All    bool            `json:"all"`    // record every decision
	Denies bool            `json:"denies"` // record every denied connection
	Labels string          `json:"labels"` // keys of pod labels to record, separated by commas

	Mode       string          `json:"mode"`       // of the file, octal
	MaxSizeMiB int64           `json:"maxSizeMiB"` // rotate at this size; 0 = never
	MaxAge     metav1.Duration `json:"maxAge"`     // rotate at this age; 0 = never
	Keep       int             `json:"keep"`       // rotated files kept; 0 = all
	KeepFor    metav1.Duration `json:"keepFor"`    // how long a rotated file is kept; 0 = for ever
	Compress   bool            `json:"compress"`   // rotated files
	Chain      bool            `json:"chain"`      // link lines by hashes

	Stdout bool   `json:"stdout"` // standard output gets every record as well
	Syslog string `json:"syslog"` // and so does a syslog receiver; "" = none
	Stream string `json:"stream"` // path of a socket that streams records; "" = none
}

// mode parses Mode.
func (c *AuditConfig) mode() (fs.FileMode, error) {
	m, err := strconv.ParseUint(c.Mode, 8, 32)
	if err != nil || m == 0 || m&^0o777 != 0 {
		return 0, fmt.Errorf("audit.mode: %q: want octal permissions, such as 0640", c.Mode)
	}
	return fs.FileMode(m), nil
}

// labels splits Labels.
func (c *AuditConfig) labels() []string {
	return strings.FieldsFunc(c.Labels, func(r rune) bool { return r == ',' || r == ' ' })
}

// anywhere reports whether records go anywhere.
func (c *AuditConfig) anywhere() bool { return c.File != "" || c.Stdout || c.Syslog != "" }

func (c *AuditConfig) validate() (errs []error) {
	if _, err := audit.ParseFormat(c.Format); err != nil {
		errs = append(errs, fmt.Errorf("audit.format: %w", err))
	}
	if c.Window.Duration <= 0 {
		errs = append(errs, errors.New("audit.window: want a positive duration, such as 1s"))
	}
	if _, err := c.mode(); err != nil {
		errs = append(errs, err)
	}
	for key, negative := range map[string]bool{
		"maxSizeMiB": c.MaxSizeMiB < 0, "maxAge": c.MaxAge.Duration < 0, "keep": c.Keep < 0, "keepFor": c.KeepFor.Duration < 0,
	} {
		if negative {
			errs = append(errs, fmt.Errorf("audit.%s: want 0 or more", key))
		}
	}
	if c.MaxSizeMiB > math.MaxInt64>>20 {
		errs = append(errs, errors.New("audit.maxSizeMiB: too large"))
	}
	if c.Chain && (c.Format != audit.JSON.String() || c.File == "") {
		errs = append(errs, errors.New("audit.chain: needs a file, and format json"))
	}
	if c.Syslog != "" {
		if _, err := audit.ParseSyslog(c.Syslog); err != nil {
			errs = append(errs, fmt.Errorf("audit.syslog: %w", err))
		}
	}
	if c.Stream != "" && !c.anywhere() {
		errs = append(errs, errors.New("audit.stream: needs audit.file, stdout or syslog beside it"))
	}
	return errs
}

// CNIConfig is for the CNI plugin tierwall-cni.
type CNIConfig struct {
	Socket string `json:"socket"` // path; "" = none
}

// ConntrackConfig bounds connection tracking.
type ConntrackConfig struct {
	MaxConnections int `json:"maxConnections"` // per queue
}

// NFQueueConfig tunes the nfqueue backend.
type NFQueueConfig struct {
	FirstQueue  uint16 `json:"firstQueue"`
	Queues      int    `json:"queues"` // 0 = one per CPU
	QueueLength uint32 `json:"queueLength"`
}

// AntreaConfig is the section antrea.
type AntreaConfig struct {
	// NamespacedTiers are the tiers that namespaced policies may use, separated by
	// commas; none means all of them, as in Antrea.
	NamespacedTiers string `json:"namespacedTiers"`
}

// LowerOptions returns the settings by which objects become rules: the daemon, the
// controller part and the admission webhook must have the same.
func (c *Config) LowerOptions() lower.Options {
	return lower.Options{AllowMixedDialects: c.AllowMixedDialects, NamespacedTiers: list(c.Antrea.NamespacedTiers)}
}

// validate checks what would otherwise show only when the backend starts: with
// dataplane auto the other one would go on alone.
func (c *NFQueueConfig) validate() (errs []error) {
	if c.FirstQueue == 0 {
		errs = append(errs, errors.New("nfqueue.firstQueue: want a number above 0"))
	}
	if c.QueueLength == 0 {
		errs = append(errs, errors.New("nfqueue.queueLength: want a number above 0"))
	}
	n := c.Queues
	if n == 0 {
		n = min(runtime.NumCPU(), nfqueue.MaxQueues)
	}
	switch {
	case n < 0 || n > nfqueue.MaxQueues:
		errs = append(errs, fmt.Errorf("nfqueue.queues: want 1 to %d, or 0 for one per CPU", nfqueue.MaxQueues))
	case int(c.FirstQueue)+n > 1<<16:
		errs = append(errs, fmt.Errorf("nfqueue.firstQueue: %d queues from %d on: want numbers below 65536", n, c.FirstQueue))
	}
	return errs
}

// AFXDPConfig tunes the afxdp backend.
type AFXDPConfig struct {
	AttachConfig
	Queues      int    `json:"queues"`      // 0 = one per CPU, at most 8
	FlowEntries uint32 `json:"flowEntries"` // one per connection
	PinPath     string `json:"pinPath"`     // keeps programs at work without a daemon; "" = nothing is kept
	UpcallRate  int    `json:"upcallRate"`  // first packets per second of one source; -1 = any
	UpcallBurst int    `json:"upcallBurst"` // and at once
}

// validate is as [NFQueueConfig]'s.
func (c *AFXDPConfig) validate() (errs []error) {
	if c.Queues < 0 || c.Queues > kern.MaxQueues {
		errs = append(errs, fmt.Errorf("afxdp.queues: want 1 to %d, or 0 for one per CPU", kern.MaxQueues))
	}
	if c.FlowEntries < 1024 || c.FlowEntries > maxEntries {
		errs = append(errs, fmt.Errorf("afxdp.flowEntries: want at least 1024 and at most %d", maxEntries))
	}
	if c.PinPath != "" && !filepath.IsAbs(c.PinPath) {
		errs = append(errs, fmt.Errorf("afxdp.pinPath: %q: want an absolute path, or nothing", c.PinPath))
	}
	if c.UpcallRate < -1 || c.UpcallRate == 0 || c.UpcallRate > 1e9 {
		errs = append(errs, errors.New("afxdp.upcallRate: want 1 to 1000000000, or -1 for any"))
	}
	if c.UpcallBurst < 1 {
		errs = append(errs, errors.New("afxdp.upcallBurst: want at least 1"))
	}
	if _, _, err := c.options(false); err != nil {
		errs = append(errs, err)
	}
	return errs
}

// maxEntries bounds the table of flows in the kernel; more would take gigabytes.
const maxEntries = 1 << 24

// checkAddress checks the form of an address to listen on.
func checkAddress(s string) error {
	_, port, err := net.SplitHostPort(s)
	if err == nil {
		_, err = net.LookupPort("tcp", port)
	}
	return err
}

// Default returns the configuration used where nothing is said.
func Default() Config {
	return Config{
		Manifests: Paths{"/etc/tierwall/manifests"},
		Kubernetes: KubernetesConfig{
			Snapshot:       "/var/lib/tierwall/snapshot",
			SnapshotMaxAge: metav1.Duration{Duration: kube.DefaultSnapshotMaxAge},
			SnapshotWait:   metav1.Duration{Duration: kube.DefaultSnapshotWait},
			Report:         true,
		},
		Dataplane:   "auto",
		FailMode:    "closed",
		Established: "strict",
		RejectRate:  dataplane.DefaultRejectRate,
		Audit: AuditConfig{
			File: "/var/log/tierwall/audit.log", Format: audit.JSON.String(),
			Window: metav1.Duration{Duration: time.Second},
			Mode:   "0640", MaxSizeMiB: 100, MaxAge: metav1.Duration{Duration: 24 * time.Hour}, Keep: 10, Compress: true,
		},
		Conntrack:  ConntrackConfig{MaxConnections: 65536},
		NFQueue:    NFQueueConfig{FirstQueue: 7300, QueueLength: 8192},
		AFXDP:      AFXDPConfig{Queues: 1, FlowEntries: 262144, PinPath: kern.DefaultPinPath, UpcallRate: 50_000, UpcallBurst: 1024, AttachConfig: AttachConfig{Attach: "auto", AntiSpoofing: true, XDPMode: "off"}},
		DNS:        defaultDNS(),
		Metrics:    MetricsConfig{Address: "127.0.0.1:7380"},
		Controller: operator.Default(),
		LogLevel:   "info",
	}
}

// Validate checks every value and fills in the node's name.
func (c *Config) Validate() error {
	var errs []error
	oneOf := func(key, got string, want ...string) {
		for _, w := range want {
			if got == w {
				return
			}
		}
		errs = append(errs, fmt.Errorf("%s: %q is not one of %q", key, got, want))
	}
	oneOf("dataplane", c.Dataplane, "auto", "afxdp", "nfqueue")
	oneOf("failMode", c.FailMode, "closed", "open")
	oneOf("established", c.Established, "strict", "keep")
	oneOf("log level", c.LogLevel, "debug", "info", "warn", "error")
	errs = append(errs, c.Audit.validate()...)
	switch {
	case c.CleanupOnly, c.Controller.Enabled:
	case c.Kubernetes.Enabled && len(c.Manifests) > 0:
		errs = append(errs, errors.New(`manifests: there is one source of policies: write manifests: "" with kubernetes.enabled`))
	case !c.Kubernetes.Enabled && len(c.Manifests) == 0:
		errs = append(errs, errors.New("manifests: want a directory with policies and inventory, or kubernetes.enabled"))
	}
	errs = append(errs, c.Kubernetes.validate()...)
	if c.CNI.Socket != "" && !c.Kubernetes.Enabled {
		errs = append(errs, errors.New("cni.socket: needs kubernetes.enabled: manifests say themselves what addresses pods have"))
	} else if c.CNI.Socket != "" && !filepath.IsAbs(c.CNI.Socket) {
		errs = append(errs, fmt.Errorf("cni.socket: %q: want an absolute path, such as /run/tierwall/cni.sock", c.CNI.Socket))
	}
	if _, err := parseNetworks("podCIDRs", c.PodCIDRs); err != nil {
		errs = append(errs, err)
	}
	errs = append(errs, c.Controller.Validate())
	if c.RejectRate < 0 {
		errs = append(errs, errors.New("rejectRate: want 0 or more"))
	}
	if c.Conntrack.MaxConnections < 1 || c.Conntrack.MaxConnections > conntrack.MaxRecords {
		errs = append(errs, fmt.Errorf("conntrack.maxConnections: want at least 1 and at most %d", conntrack.MaxRecords))
	}
	errs = append(errs, c.NFQueue.validate()...)
	errs = append(errs, c.DNS.validate(&c.NFQueue)...)
	errs = append(errs, c.AFXDP.validate()...)
	if c.Dataplane == "afxdp" && c.AFXDP.Attach == string(attach.XDPGeneric) {
		errs = append(errs, errors.New("afxdp.attach: xdp-generic cannot judge packets: it needs nfqueue behind it (dataplane auto)"))
	}
	if c.Metrics.Address != "" {
		if err := checkAddress(c.Metrics.Address); err != nil {
			errs = append(errs, fmt.Errorf("metrics.address: want HOST:PORT, or nothing: %w", err))
		}
	}
	if c.Node == "" {
		c.Node = os.Getenv("NODE_NAME")
	}
	if c.Node == "" {
		host, err := os.Hostname()
		if err != nil {
			errs = append(errs, fmt.Errorf("node: no name given and none known: %w", err))
		}
		c.Node = host
	}
	return errors.Join(errs...)
}
