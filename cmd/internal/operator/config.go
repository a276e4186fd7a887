package operator

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"

	"github.com/tierwall/tierwall/policy/lower"
	"github.com/tierwall/tierwall/policy/status"
)

// Config is the controller part's section of the configuration. [Default] has the
// defaults.
type Config struct {
	// Enabled makes tierwalld the controller part and no node daemon.
	Enabled bool `json:"enabled"`
	// LeaderElection lets several replicas agree who writes. Without it there must
	// be one replica only.
	LeaderElection bool `json:"leaderElection"`
	// Address serves /metrics, /healthz and /readyz.
	Address string        `json:"address"`
	Webhook WebhookConfig `json:"webhook"`

	// The rest comes from elsewhere.

	Kubeconfig string        `json:"-"` // "" = in cluster
	Namespace  string        `json:"-"` // of the Leases and the Secret; "" = POD_NAMESPACE
	Identity   string        `json:"-"` // among replicas; "" = POD_NAME or the host name
	Options    lower.Options `json:"-"`
	Limits     status.Limits `json:"-"`
	Logger     *slog.Logger  `json:"-"`
}

// WebhookConfig says where admission reviews are served.
type WebhookConfig struct {
	// Address is HOST:PORT; "" = no webhook.
	Address string `json:"address"`
	// Service, Secret and Configuration are the names of the Service the API server
	// calls, of the Secret with the certificates, and of the
	// ValidatingWebhookConfiguration that is told the authority.
	Service       string `json:"service"`
	Secret        string `json:"secret"`
	Configuration string `json:"configuration"`
	// Names are further names and addresses the certificate is for.
	Names string `json:"names"` // separated by commas
}

// LeaseName is the Lease replicas elect a leader by.
const LeaseName = "tierwall-controller"

// Default returns the configuration used where nothing is said.
func Default() Config {
	return Config{
		LeaderElection: true,
		Address:        ":7381",
		Webhook: WebhookConfig{
			Address: ":9443", Service: "tierwall-webhook", Secret: "tierwall-webhook", Configuration: "tierwall",
		},
	}
}

// Validate checks every value and fills in what the environment says.
func (c *Config) Validate() error {
	var errs []error
	for key, a := range map[string]string{"controller.address": c.Address, "controller.webhook.address": c.Webhook.Address} {
		if a == "" {
			continue
		}
		if _, _, err := net.SplitHostPort(a); err != nil {
			errs = append(errs, fmt.Errorf("%s: want HOST:PORT, or nothing: %w", key, err))
		}
	}
	if c.Webhook.Address != "" && (c.Webhook.Service == "" || c.Webhook.Secret == "" || c.Webhook.Configuration == "") {
		errs = append(errs, errors.New("controller.webhook: service, secret and configuration need names"))
	}
	if !c.Enabled {
		return errors.Join(errs...)
	}
	if c.Namespace == "" {
		c.Namespace = os.Getenv("POD_NAMESPACE")
	}
	if c.Namespace == "" {
		errs = append(errs, errors.New("the controller part needs POD_NAMESPACE in its environment: the namespace of the daemons"))
	}
	if c.Identity == "" {
		c.Identity = os.Getenv("POD_NAME")
	}
	if c.Identity == "" {
		host, err := os.Hostname()
		if err != nil {
			errs = append(errs, fmt.Errorf("host name: %w", err))
		}
		c.Identity = host
	}
	return errors.Join(errs...)
}
