package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/cmd/internal/cli"
	"github.com/tierwall/tierwall/cmd/internal/world"
	"github.com/tierwall/tierwall/policy/lower"
)

// Load reads policies beside the objects of the demo's world.
func Load(policies []string) (*cli.Input, error) {
	objects, err := world.Manifests()
	if err != nil {
		return nil, err
	}
	return cli.LoadWith(lower.Options{}, append([]string{"-"}, policies...), world.NodeName, bytes.NewReader(objects))
}

// Probe makes connections in the demo's world, under the policies of c, and returns
// what became of them, in the same order, and the backends that ran. Hosts of the
// probes are found by name; where nothing listens on a port, a server is started. The
// table is that of the policies. As with Run, nothing is left behind.
func Probe(ctx context.Context, c Config, t *classifier.Table, probes []world.Probe) (results []world.Result, dataplane string, err error) {
	if err := world.Missing(); err != nil {
		return nil, "", fmt.Errorf("packets cannot be sent here: %w; without --probe, test asks the policies and needs no privilege", err)
	}
	dir, err := os.MkdirTemp("", "tierwall-probe-")
	if err != nil {
		return nil, "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := writeManifests(filepath.Join(dir, "manifests"), c.Policies); err != nil {
		return nil, "", err
	}
	c.Progress.Step("building a node, %d pods and a host outside", len(world.Namespaces)*len(world.PodNames))
	w, err := world.New(ctx)
	if err != nil {
		return nil, "", err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	made := make([]world.Probe, len(probes))
	for i, p := range probes {
		p.From, p.To = w.Host(p.From.Name), w.Host(p.To.Name)
		if err := w.Serve(p.To, p.Network, p.Port, p.Family); err != nil {
			return nil, "", err
		}
		made[i] = p
	}
	c.Progress.Step("starting the daemon, dataplane %s", c.Dataplane)
	d, err := startDaemon(w.Node.NS, c.Executable, dir, world.NodeName, c.Dataplane)
	if err != nil {
		return nil, "", err
	}
	defer func() {
		if _, serr := d.stop(); err == nil && serr != nil {
			results, err = nil, serr
		}
	}()
	ready, err := d.wait(ctx)
	if err != nil {
		return nil, "", err
	}
	c.Progress.Step("trying %d connections over %s", len(made), ready.Dataplane)
	probing := c.Probing
	probing.Progress = c.Progress.Count
	if results, err = world.Run(ctx, made, probing); err != nil {
		return nil, "", err
	}
	if err := again(ctx, t, results); err != nil {
		return nil, "", err
	}
	if d.ended() {
		_, err := d.stop()
		return nil, "", errors.Join(errors.New("the daemon ended while connections were tried"), err)
	}
	return results, ready.Dataplane, nil
}
