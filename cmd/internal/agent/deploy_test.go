package agent

import "testing"

// The configuration the manifests install is one the daemon takes.
func TestInstalledConfig(t *testing.T) {
	c, err := Load("../../../deploy/daemon/config.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if !c.Kubernetes.Enabled || len(c.Manifests) > 0 {
		t.Errorf("kubernetes.enabled %v, manifests %q", c.Kubernetes.Enabled, c.Manifests)
	}
	if c.Metrics.Address != "127.0.0.1:7380" { // the probes of deploy/daemon/daemonset.yaml ask there
		t.Errorf("metrics.address %q", c.Metrics.Address)
	}
}
