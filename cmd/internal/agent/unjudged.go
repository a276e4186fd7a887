package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tierwall/tierwall/cmd/internal/metrics"
	"github.com/tierwall/tierwall/dataplane/bypass"
)

// A backend that runs is not enough: packets of pods may pass where it does not look.
// What is found of that at start is an error, and what is found later makes the node not
// ready, whatever the fail mode: that is about packets which should be judged and cannot
// be for a while.

// unjudger is a backend that can tell which devices it does not judge and should.
type unjudger interface {
	Name() string
	Unjudged() (devices []string, why error)
}

// reasons of unjudged devices, by backend.
var reasons = map[string]string{"nfqueue": metrics.UnjudgedBridge, "afxdp": metrics.UnjudgedNoProgram}

// bypassInterval is how often the daemon looks for devices of package bypass.
const bypassInterval = 10 * time.Second

// refuseBypass returns an error where pods have devices whose packets no backend sees.
func refuseBypass() error {
	found, err := bypass.Find()
	if err != nil {
		return err
	}
	if err := bypass.Error(found); err != nil {
		return fmt.Errorf("policy cannot be enforced on this node: %w", err)
	}
	return nil
}

// watchBypass looks for such devices that appear later, until ctx ends.
func (d *daemon) watchBypass(ctx context.Context) {
	said := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(bypassInterval):
		}
		found, err := bypass.Find()
		if err != nil {
			d.log.Debug("the node's devices cannot be listed", "error", err)
			continue
		}
		d.bypassed.Store(&found)
		now := ""
		if err := bypass.Error(found); err != nil {
			now = err.Error()
		}
		if now != said && now != "" {
			d.log.Error("policy is not enforced for all pods of this node, which is not ready", "error", now)
		}
		said = now
	}
}

// bypassing lists what watchBypass has found last.
func (d *daemon) bypassing() []bypass.Device {
	if found := d.bypassed.Load(); found != nil {
		return *found
	}
	return nil
}

// incomplete returns why this node does less than was configured, or nil.
func (d *daemon) incomplete() error {
	errs := []error{d.lacking(), bypass.Error(d.bypassing())}
	for _, b := range d.unjudgers {
		_, why := b.Unjudged()
		errs = append(errs, why)
	}
	return errors.Join(errs...)
}

// unjudged counts devices whose packets nobody judges, by reason.
func (d *daemon) unjudged() map[string]int {
	n := map[string]int{metrics.UnjudgedBridge: 0, metrics.UnjudgedNoProgram: 0, metrics.UnjudgedNetkit: 0, metrics.UnjudgedBPF: 0}
	for _, b := range d.unjudgers {
		devices, _ := b.Unjudged()
		n[reasons[b.Name()]] += len(devices)
	}
	for _, found := range d.bypassing() {
		n[string(found.Kind)]++
	}
	return n
}
