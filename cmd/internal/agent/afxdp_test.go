package agent

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/tierwall/tierwall/dataplane/afxdp/attach"
)

func TestAttachOptions(t *testing.T) {
	c := AttachConfig{
		Attach: "clsact", Devices: "cali*,lxc*", Exclude: "veth0", PodCIDRs: "10.244.1.0/24, fd00:1::/64",
		AntiSpoofing: true, Uplinks: "eth0,eth1", XDPMode: "native",
	}
	devices, a, err := c.options(true)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(devices, []string{"cali*", "lxc*"}) || !slices.Equal(a.Exclude, []string{"veth0"}) || !slices.Equal(a.Uplinks, []string{"eth0", "eth1"}) {
		t.Errorf("devices %v, exclude %v, uplinks %v", devices, a.Exclude, a.Uplinks)
	}
	if want := []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24"), netip.MustParsePrefix("fd00:1::/64")}; !slices.Equal(a.PodCIDRs, want) {
		t.Errorf("pod CIDRs %v", a.PodCIDRs)
	}
	if a.Attach != attach.Clsact || a.UplinkMode != attach.UplinkNative || a.AllowSpoofing || !a.PassUnknown {
		t.Errorf("%+v", a)
	}
	d := Default()
	if _, a, err := d.AFXDP.options(false); err != nil || a.AllowSpoofing || a.PassUnknown || a.UplinkMode != attach.UplinkOff {
		t.Errorf("defaults: %+v, %v", a, err)
	}
	bad := AttachConfig{Attach: "tc", XDPMode: "skb", PodCIDRs: "10.244.1.1/24,::/0,pods"}
	_, _, err = bad.options(false)
	for _, want := range []string{"afxdp.attach", "afxdp.xdpMode", "afxdp.uplinks", "10.244.1.1/24", "::/0", `"pods"`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error does not name %s: %v", want, err)
		}
	}
}

// Both backends get the networks of both keys.
func TestPodNetworks(t *testing.T) {
	c := Default()
	c.Manifests, c.PodCIDRs, c.AFXDP.PodCIDRs = Paths{"x"}, "10.0.0.0/8, fd00::/48", "10.0.0.0/8,172.16.0.0/12"
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	want := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/48"), netip.MustParsePrefix("172.16.0.0/12")}
	if got := c.podNetworks(); !slices.Equal(got, want) {
		t.Errorf("networks %v, want %v", got, want)
	}
	c.PodCIDRs = "10.0.0.1/8"
	if err := c.Validate(); err == nil || !strings.Contains(err.Error(), `podCIDRs: "10.0.0.1/8": want a network`) || strings.Contains(err.Error(), "afxdp.podCIDRs") {
		t.Errorf("error %v, want one that names podCIDRs", err)
	}
}
