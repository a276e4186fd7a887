package nfqueue

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"github.com/mdlayher/netlink"
	rtnl "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/dataplane"
)

// Frames from port to port of a bridge pass the forward hook only where br_netfilter is
// loaded and on: for all bridges by sysctl, or for one by an option of it. Without a fast
// path that judges at the ports, packets between pods of one bridge would not be judged.

// bridgeHooks are the options of a bridge that send its frames to the hooks.
var bridgeHooks = []uint16{unix.IFLA_BR_NF_CALL_IPTABLES, unix.IFLA_BR_NF_CALL_IP6TABLES}

// bridgeSysctls is there once br_netfilter is loaded, in every network namespace.
const bridgeSysctls = "/proc/sys/net/bridge/bridge-nf-call-iptables"

var errNoBridgeHooks = dataplane.MissingError{
	Piece:  "br_netfilter, without which packets between pods of one bridge are not judged",
	Module: "br_netfilter", Option: "CONFIG_BRIDGE_NETFILTER",
}

// JudgeBridges makes the backend responsible for packets from port to port of the pods'
// bridges: no fast path judges them. Before the first Update.
func (b *Backend) JudgeBridges() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.judgeBridges = true
}

// Unjudged lists the pods' bridges whose ports exchange packets that are not judged, and
// why that is so. Any goroutine may call it.
func (b *Backend) Unjudged() (bridges []string, why error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.openBridges), b.openWhy
}

// wantBridges finds the pods' bridges, and notes in p which ones we switch on: those
// that are off, and those that we switched on before.
func (b *Backend) wantBridges(links []rtnl.Link, p *pods) {
	before := p.bridges
	p.bridges, b.podBridges = map[uint32]struct{}{}, nil
	for _, l := range links {
		if l.Type() != "bridge" {
			continue
		}
		index := uint32(l.Attrs().Index)
		_, ours := before[index]
		if _, pods := p.devices[index]; pods && b.judgeBridges {
			b.podBridges = append(b.podBridges, l)
			on, err := bridgeOn(b.fw.routes, index)
			ours = ours || err == nil && !on
		}
		if ours {
			p.bridges[index] = struct{}{}
		}
	}
}

// switchBridges makes the frames of the pods' bridges meet our rules. Their indexes are
// in the table before they are switched on, so that a cleanup finds them.
func (b *Backend) switchBridges() {
	var failed []string
	var errs []error
	for _, l := range b.podBridges {
		if err := b.switchBridge(l); err != nil {
			failed, errs = append(failed, l.Attrs().Name), append(errs, err)
		}
	}
	var why error
	if len(errs) > 0 {
		why = fmt.Errorf("packets between pods of one bridge (%s) are not judged: %w", strings.Join(failed, ", "), once(errors.Join(errs...)))
	}
	switch {
	case why != nil && (b.openWhy == nil || why.Error() != b.openWhy.Error()):
		b.config.Logger.Error("policy is not enforced between pods of one bridge", "bridges", failed, "error", why)
	case why == nil && b.openWhy != nil:
		b.config.Logger.Info("policy is enforced between pods of one bridge")
	}
	b.openBridges, b.openWhy = failed, why
}

func (b *Backend) switchBridge(l rtnl.Link) error {
	if err := b.fw.loadBridgeHooks(); err != nil {
		return err
	}
	index := uint32(l.Attrs().Index)
	on, err := bridgeOn(b.fw.routes, index)
	if err == nil && !on {
		err = switchBridgeHooks(b.fw.routes, index, true)
	}
	if err != nil {
		return fmt.Errorf("switch on nf_call_iptables of bridge %s: %w", l.Attrs().Name, err)
	}
	if on {
		return nil
	}
	b.config.Logger.Info("frames between the ports of the pods' bridge pass the forward hook now", "bridge", l.Attrs().Name)
	return nil
}

// leaveBridges switches off what we have switched on.
func (f *firewall) leaveBridges(bridges map[uint32]struct{}) error {
	var errs []error
	for index := range bridges {
		if err := switchBridgeHooks(f.routes, index, false); err != nil && !errors.Is(err, unix.ENODEV) {
			errs = append(errs, fmt.Errorf("switch off nf_call_iptables of the bridge with index %d: %w", index, err))
		}
	}
	return errors.Join(errs...)
}

// loadBridgeHooks makes the kernel load br_netfilter where it is a module: a rule that
// asks for a bridge's port does.
func (f *firewall) loadBridgeHooks() error {
	loaded := func() bool { _, err := os.Stat(bridgeSysctls); return err == nil }
	if f.config.noBridgeHooks {
		loaded = func() bool { return false }
	}
	if loaded() {
		return nil
	}
	// struct xt_physdev_info: two names with masks, invert, bitmask (XT_PHYSDEV_OP_BRIDGED),
	// padded as XT_ALIGN asks.
	info := make(xt.Unknown, 72)
	info[65] = 0x04
	cause := f.try(nftables.TableFamilyIPv4, []*nftables.ChainHook{nftables.ChainHookForward}, []expr.Any{&expr.Match{Name: "physdev", Info: &info}})
	if loaded() {
		return nil
	}
	missing := errNoBridgeHooks
	missing.Cause = cause
	return &missing
}

// bridgeOn reports whether a bridge's frames are sent to the hooks by its options.
func bridgeOn(conn *netlink.Conn, index uint32) (on bool, err error) {
	answers, err := conn.Execute(bridgeMessage(unix.RTM_GETLINK, index, nil))
	if err != nil {
		return false, err
	}
	set := 0
	for _, m := range answers {
		if len(m.Data) < unix.SizeofIfInfomsg {
			continue
		}
		ad, err := netlink.NewAttributeDecoder(m.Data[unix.SizeofIfInfomsg:])
		if err != nil {
			return false, err
		}
		for ad.Next() {
			if ad.Type() != unix.IFLA_LINKINFO {
				continue
			}
			ad.Nested(func(info *netlink.AttributeDecoder) error {
				for info.Next() {
					if info.Type() != unix.IFLA_INFO_DATA {
						continue
					}
					info.Nested(func(data *netlink.AttributeDecoder) error {
						for data.Next() {
							if slices.Contains(bridgeHooks, data.Type()) && data.Uint8() != 0 {
								set++
							}
						}
						return nil
					})
				}
				return nil
			})
		}
		if err := ad.Err(); err != nil {
			return false, err
		}
	}
	return set == len(bridgeHooks), nil
}

// switchBridgeHooks switches these options on or off.
func switchBridgeHooks(conn *netlink.Conn, index uint32, on bool) error {
	var value uint8
	if on {
		value = 1
	}
	ae := netlink.NewAttributeEncoder()
	ae.Nested(unix.IFLA_LINKINFO, func(info *netlink.AttributeEncoder) error {
		info.String(unix.IFLA_INFO_KIND, "bridge")
		info.Nested(unix.IFLA_INFO_DATA, func(data *netlink.AttributeEncoder) error {
			for _, option := range bridgeHooks {
				data.Uint8(option, value)
			}
			return nil
		})
		return nil
	})
	attrs, err := ae.Encode()
	if err != nil {
		return err
	}
	m := bridgeMessage(unix.RTM_NEWLINK, index, attrs)
	m.Header.Flags |= netlink.Acknowledge
	_, err = conn.Execute(m)
	return err
}

// bridgeMessage is a request about a device: struct ifinfomsg and attributes.
func bridgeMessage(typ netlink.HeaderType, index uint32, attrs []byte) netlink.Message {
	head := make([]byte, unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(head[4:], index)
	return netlink.Message{Header: netlink.Header{Type: typ, Flags: netlink.Request}, Data: append(head, attrs...)}
}
