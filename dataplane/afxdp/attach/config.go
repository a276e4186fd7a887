package attach

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path"
	"slices"
	"time"
)

// Mode is the hook by which programs go onto the pods' devices.
type Mode string

// Ways of attaching, best first.
const (
	// Auto takes the first of the others that this kernel has.
	Auto Mode = "auto"
	// TCX needs Linux 6.6. Other agents' programs stay beside ours.
	TCX Mode = "tcx"
	// Clsact uses the same programs as filters of a clsact qdisc (Linux
	// 4.5). A device that has an ingress qdisc, or a filter of somebody else at
	// the first place, cannot have ours.
	Clsact Mode = "clsact"
	// XDPGeneric sees packets from pods only, and can drop but not judge:
	// forged and unknown addresses end here, the later hook judges the rest.
	// There is no upcall and no driver. Not with Strict.
	XDPGeneric Mode = "xdp-generic"
)

// UplinkMode is how the uplinks' XDP program runs.
type UplinkMode string

// Uplink modes. The zero value is UplinkOff.
const (
	UplinkOff     UplinkMode = "off"
	UplinkNative  UplinkMode = "native"  // in the driver, which must have XDP
	UplinkGeneric UplinkMode = "generic" // in the stack, any device
)

// Config says which devices get programs and how.
type Config struct {
	// Attach forces a way of attaching; "" is Auto.
	Attach Mode
	// Exclude names devices that are never touched (path.Match); it wins over
	// Devices.
	Exclude []string
	// PodCIDRs are prefixes this node's pods get addresses from, beside those
	// the table knows (the Node object's). With any of them known, programs go
	// onto a device before anybody knows whose it is, and packets with an address
	// in them that no known pod has are dropped.
	PodCIDRs []netip.Prefix
	// PassUnknown leaves such packets alone: fail mode open.
	PassUnknown bool
	// AllowSpoofing lets a pod send from addresses that are not its own.
	AllowSpoofing bool
	// AllowTunnels lets policy judge what pods send to nodes' ends of tunnels. Without it
	// that is dropped.
	AllowTunnels bool
	// Uplinks names devices towards other nodes. Their XDP program, if
	// UplinkMode is not off, drops early what is known to be denied and what
	// claims to come from a pod of this node. It passes everything else on.
	Uplinks    []string
	UplinkMode UplinkMode
}

func (c *Config) Fill(strict bool) error {
	if c.Attach == "" {
		c.Attach = Auto
	}
	if c.UplinkMode == "" {
		c.UplinkMode = UplinkOff
	}
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if all := []Mode{Auto, TCX, Clsact, XDPGeneric}; !slices.Contains(all, c.Attach) {
		bad("attach %q: want one of %q", c.Attach, all)
	}
	if all := []UplinkMode{UplinkOff, UplinkNative, UplinkGeneric}; !slices.Contains(all, c.UplinkMode) {
		bad("uplink mode %q: want one of %q", c.UplinkMode, all)
	}
	if c.Attach == XDPGeneric && strict {
		bad("attach %s cannot judge packets: it needs the nfqueue backend behind it", c.Attach)
	}
	for _, p := range c.Exclude {
		if _, err := path.Match(p, ""); err != nil {
			bad("device pattern %q: %w", p, err)
		}
	}
	for i, p := range c.PodCIDRs {
		if !p.IsValid() || p.Bits() == 0 {
			bad("pod CIDR %v: want a prefix that is not everything", p)
			continue
		}
		c.PodCIDRs[i] = p.Masked()
	}
	return errors.Join(errs...)
}

// Options is what decides where programs go.
type Options struct {
	Config
	Strict     bool     // see Config.Strict
	Accelerate bool     // see Config.Accelerate
	Patterns   []string // see Config.Devices
	MaxMTU     int      // the largest that an upcall can carry
	DenyTime   time.Duration
	Log        *slog.Logger
}

// wants reports whether the configuration lets us touch a device of that name.
func (c *Options) wants(name string) bool {
	for _, p := range c.Patterns {
		if ok, _ := path.Match(p, name); ok {
			return true
		}
	}
	return len(c.Patterns) == 0
}

// excluded reports whether a device of that name is not to be touched.
func (c *Options) excluded(name string) bool {
	return slices.ContainsFunc(c.Exclude, func(p string) bool {
		ok, _ := path.Match(p, name)
		return ok
	})
}
