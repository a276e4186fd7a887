package agent

import (
	"errors"
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strings"

	"github.com/tierwall/tierwall/dataplane/afxdp"
	"github.com/tierwall/tierwall/dataplane/afxdp/attach"
)

// AttachConfig says which devices the afxdp backend's programs go onto, and how.
// Lists are separated by commas.
type AttachConfig struct {
	Attach       string `json:"attach"`       // auto, tcx, clsact or xdp-generic
	Devices      string `json:"devices"`      // patterns of pod devices; "" = every veth that may be one
	Exclude      string `json:"exclude"`      // patterns of devices never touched
	PodCIDRs     string `json:"podCIDRs"`     // the former name of Config.PodCIDRs
	AntiSpoofing bool   `json:"antiSpoofing"` // drop packets in another pod's name
	Uplinks      string `json:"uplinks"`      // devices towards other nodes
	XDPMode      string `json:"xdpMode"`      // of the uplinks: off, native or generic
}

// parseNetworks reads a list of networks, separated by commas. The error names the key.
func parseNetworks(key, list string) (networks []netip.Prefix, err error) {
	var errs []error
	for _, s := range strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' }) {
		p, err := netip.ParsePrefix(s)
		if err != nil || p.Bits() == 0 || p != p.Masked() {
			errs = append(errs, fmt.Errorf("%s: %q: want a network such as 10.244.0.0/16", key, s))
			continue
		}
		networks = append(networks, p)
	}
	return networks, errors.Join(errs...)
}

// podNetworks returns the networks that pods get addresses from, of both keys. Validate
// has looked for errors.
func (c *Config) podNetworks() []netip.Prefix {
	networks, _ := parseNetworks("podCIDRs", c.PodCIDRs)
	former, _ := parseNetworks("afxdp.podCIDRs", c.AFXDP.PodCIDRs)
	for _, p := range former {
		if !slices.Contains(networks, p) {
			networks = append(networks, p)
		}
	}
	return networks
}

// list splits a value that has several, separated by commas.
func list(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' })
}

// options is the configuration as the backend has it. Errors name the key.
func (c *AttachConfig) options(failOpen bool) (devices []string, a afxdp.AttachConfig, err error) {
	var errs []error
	if a.PodCIDRs, err = parseNetworks("afxdp.podCIDRs", c.PodCIDRs); err != nil {
		errs = append(errs, err)
	}
	a.Attach, a.UplinkMode = attach.Mode(c.Attach), attach.UplinkMode(c.XDPMode)
	switch a.Attach {
	case attach.Auto, attach.TCX, attach.Clsact, attach.XDPGeneric:
	default:
		errs = append(errs, fmt.Errorf("afxdp.attach: %q is not one of auto, tcx, clsact and xdp-generic", c.Attach))
	}
	switch a.UplinkMode {
	case attach.UplinkOff, attach.UplinkNative, attach.UplinkGeneric:
	default:
		errs = append(errs, fmt.Errorf("afxdp.xdpMode: %q is not one of off, native and generic", c.XDPMode))
	}
	if a.UplinkMode != attach.UplinkOff && c.Uplinks == "" {
		errs = append(errs, errors.New("afxdp.xdpMode: without afxdp.uplinks there is nothing to run on"))
	}
	a.Uplinks, a.Exclude = list(c.Uplinks), list(c.Exclude)
	devices = list(c.Devices)
	for key, patterns := range map[string][]string{"devices": devices, "exclude": a.Exclude} {
		for _, s := range patterns {
			if _, err := path.Match(s, ""); err != nil {
				errs = append(errs, fmt.Errorf("afxdp.%s: %q: want a pattern such as cali*", key, s))
			}
		}
	}
	a.AllowSpoofing, a.PassUnknown = !c.AntiSpoofing, failOpen
	return devices, a, errors.Join(errs...)
}
