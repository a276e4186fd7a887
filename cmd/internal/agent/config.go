package agent

import (
	"errors"
	"fmt"
	"os"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/tierwall/tierwall/dataplane/audit"
)

// Config is the daemon's configuration: the keys of deploy/config.yaml, which is
// its manual. [Default] has the defaults; zero values are not defaults.
type Config struct {
	// Node is the name of this node's Node object. "" = the host name.
	Node string `json:"node"`
	// Manifests is the directory (or file) to read policies and inventory from.
	Manifests string `json:"manifests"`
	// Dataplane is auto, afxdp or nfqueue.
	Dataplane string `json:"dataplane"`
	// FailMode is closed or open.
	FailMode string `json:"failMode"`
	// Established is strict or keep.
	Established string `json:"established"`

	Audit     AuditConfig     `json:"audit"`
	Conntrack ConntrackConfig `json:"conntrack"`
	NFQueue   NFQueueConfig   `json:"nfqueue"`
	AFXDP     AFXDPConfig     `json:"afxdp"`

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

// AFXDPConfig tunes the afxdp backend.
type AFXDPConfig struct {
	FlowEntries uint32 `json:"flowEntries"` // two per connection
}

// Default returns the configuration used where nothing is said.
func Default() Config {
	return Config{
		Manifests:   "/etc/tierwall/manifests",
		Dataplane:   "auto",
		FailMode:    "closed",
		Established: "strict",
		Audit: AuditConfig{
			File: "/var/log/tierwall/audit.log", Format: audit.JSON.String(),
			Window: metav1.Duration{Duration: time.Second},
		},
		Conntrack: ConntrackConfig{MaxConnections: 65536},
		NFQueue:   NFQueueConfig{FirstQueue: 7300, QueueLength: 8192},
		AFXDP:     AFXDPConfig{FlowEntries: 262144},
		LogLevel:  "info",
	}
}

// Load reads a configuration file over the defaults. An unknown key, a key
// given twice or a value of the wrong type is an error.
func Load(path string) (Config, error) {
	c := Default()
	b, err := os.ReadFile(path)
	if err != nil {
		return c, fmt.Errorf("configuration: %w", err)
	}
	if err := yaml.UnmarshalStrict(b, &c); err != nil {
		return c, fmt.Errorf("configuration %s: %w", path, err)
	}
	return c, nil
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
	if _, err := audit.ParseFormat(c.Audit.Format); err != nil {
		errs = append(errs, fmt.Errorf("audit.format: %w", err))
	}
	if c.Audit.Window.Duration <= 0 {
		errs = append(errs, errors.New("audit.window: want a positive duration, such as 1s"))
	}
	if c.Manifests == "" && !c.CleanupOnly {
		errs = append(errs, errors.New("manifests: want a directory with policies and inventory"))
	}
	if c.Conntrack.MaxConnections < 1 {
		errs = append(errs, errors.New("conntrack.maxConnections: want at least 1"))
	}
	if c.NFQueue.FirstQueue == 0 || c.NFQueue.QueueLength == 0 || c.NFQueue.Queues < 0 {
		errs = append(errs, errors.New("nfqueue: want firstQueue and queueLength above 0 and queues not negative"))
	}
	if c.AFXDP.FlowEntries < 1024 {
		errs = append(errs, errors.New("afxdp.flowEntries: want at least 1024"))
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
