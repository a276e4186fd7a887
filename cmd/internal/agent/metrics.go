package agent

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/tierwall/tierwall/cmd/internal/metrics"
)

// MetricsConfig says where numbers and probes are served.
type MetricsConfig struct {
	Address string `json:"address"` // HOST:PORT; "" = nowhere
}

// serveMetrics serves metrics, probes and the local interface until ctx ends.
func (d *daemon) serveMetrics(ctx context.Context) {
	c := metrics.Config{Engine: d.engine, Policy: d.control.Status, Unjudged: d.unjudged, Hits: d.ruleHits, Node: d.cfg.Node, Version: version()}
	for _, b := range d.backends {
		c.Backends = append(c.Backends, b)
	}
	if d.cfg.Dataplane == "auto" {
		c.Missing = map[string]bool{"nfqueue": d.missing["nfqueue"] != nil, "afxdp": d.missing["afxdp"] != nil}
	}
	if d.audit != nil {
		c.Audit = d.audit
	}
	c.Names = func() metrics.Names {
		return metrics.Names{Known: d.learner.Stats(), Observed: d.learner.observer.Stats()}
	}
	if d.cluster != nil {
		c.Source = d.cluster.source.Status
	}
	metrics.Serve(ctx, d.cfg.Metrics.Address, d.withAPI(metrics.Handler(metrics.NewCollector(c), d.ready)), d.log)
}

// ready returns why the policy is not in force as configured, or nil. In a cluster it
// has to be the API server's: a node on a snapshot enforces, and is not ready.
func (d *daemon) ready() error {
	if d.cluster != nil {
		if err := d.cluster.source.Ready(); err != nil {
			return err
		}
	}
	s := d.control.Status()
	switch {
	case s.Generation > 0:
		return d.incomplete()
	case len(s.Findings.Errors) > 0:
		return fmt.Errorf("no policy is in force: %w", s.Findings.Err())
	}
	return errors.New("no policy is in force yet")
}

// version is the module version the binary was built from, "(devel)" outside a
// release.
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}
