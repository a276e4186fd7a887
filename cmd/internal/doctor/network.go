package doctor

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/tierwall/tierwall/dataplane/bypass"
)

// network looks at what gives pods their network. It returns why policy cannot be
// enforced on this node at all, or nil.
func (x *examiner) network() (blocked error) {
	links, err := netlink.LinkList()
	if err != nil {
		x.say("devices", Warning, "the node's devices cannot be listed: "+err.Error(), "")
	}
	types, conf := x.pluginConfig()
	kind := pluginKind(links, types)
	x.plugin(kind, types, conf)
	x.proxy(links)
	x.bridges(links)
	x.sysctls()
	if x.root {
		x.rulesets()
	} else {
		x.unseen("other rules")
	}
	found, err := bypass.Find()
	if err == nil {
		blocked = bypass.Error(found)
	}
	switch {
	case err != nil:
		x.say("hooks", Warning, "not known whether pods' packets pass them: "+err.Error(), "")
	case blocked != nil:
		x.say("hooks", Missing, strings.ReplaceAll(blocked.Error(), "\n", "; "), "use a network plugin that gives pods veth devices and forwards through the node's stack")
	default:
		x.say("hooks", OK, "no netkit devices, no eBPF host routing", "")
	}
	return blocked
}

// pluginConfig reads the network configuration that a container runtime would take: the
// first one by name. It returns its plugins' types.
func (x *examiner) pluginConfig() (types []string, path string) {
	const dir = "etc/cni/net.d"
	entries, err := os.ReadDir(filepath.Join(x.Root, dir))
	if err != nil {
		return nil, ""
	}
	for _, e := range entries { // in order of their names
		ext := filepath.Ext(e.Name())
		if ext != ".conf" && ext != ".conflist" && ext != ".json" {
			continue
		}
		text, err := x.node.read(filepath.Join(dir, e.Name()))
		if err != nil {
			continue
		}
		var conf struct {
			Type    string `json:"type"`
			Plugins []struct {
				Type string `json:"type"`
			} `json:"plugins"`
		}
		if json.Unmarshal([]byte(text), &conf) != nil {
			continue
		}
		if conf.Type != "" {
			types = append(types, conf.Type)
		}
		for _, p := range conf.Plugins {
			types = append(types, p.Type)
		}
		return types, "/" + filepath.Join(dir, e.Name())
	}
	return nil, ""
}

// pluginKind says which kind of network plugin made these devices, "" if none did.
func pluginKind(links []netlink.Link, types []string) string {
	has := func(match func(netlink.Link) bool) bool { return slices.ContainsFunc(links, match) }
	prefix := func(p string) bool {
		return has(func(l netlink.Link) bool { return strings.HasPrefix(l.Attrs().Name, p) })
	}
	pods := func(l netlink.Link) bool { return l.Attrs().NetNsID >= 0 }
	switch {
	case prefix("cilium_"):
		return "cilium"
	case has(func(l netlink.Link) bool { return l.Type() == "netkit" && pods(l) }):
		return "netkit"
	case prefix("bpfin.cali"), prefix("bpfnatin"):
		return "calico (eBPF)"
	case has(func(l netlink.Link) bool { return strings.HasPrefix(l.Attrs().Name, "cali") && l.Type() == "veth" }), slices.Contains(types, "calico"):
		return "calico"
	case prefix("flannel"), slices.Contains(types, "flannel"):
		return "flannel"
	case prefix("kube-bridge"):
		return "kube-router"
	case prefix("antrea-gw"):
		return "antrea"
	case prefix("ovn-k8s-"):
		return "ovn-kubernetes"
	case has(func(l netlink.Link) bool {
		return strings.HasPrefix(l.Attrs().Name, "eni") && l.Type() == "veth" && pods(l)
	}), slices.Contains(types, "aws-cni"):
		return "aws-vpc"
	}
	for _, t := range types {
		if t != "portmap" && t != "bandwidth" && t != "tuning" {
			return t
		}
	}
	bridged := func(l netlink.Link) bool {
		return l.Type() == "veth" && pods(l) && l.Attrs().MasterIndex != 0
	}
	switch {
	case has(bridged):
		return "bridge"
	case has(func(l netlink.Link) bool { return l.Type() == "veth" && pods(l) }):
		return "ptp"
	}
	return ""
}

// plugin says how dataplanes get on with the network plugin.
func (x *examiner) plugin(kind string, types []string, conf string) {
	detail := kind
	if conf != "" {
		detail += fmt.Sprintf(" (%s: %s)", conf, strings.Join(types, ", "))
	}
	const untried = "not tried: let the cluster's own tests of network policy run before you rely on it"
	switch kind {
	case "":
		x.say("network plugin", Warning, "none found: no configuration in /etc/cni/net.d, and no pods' devices in this network namespace",
			"run tierwall doctor in the node's network namespace")
	case "cilium", "netkit", "calico (eBPF)":
		x.say("network plugin", Warning, detail+": packets of pods may pass no hook of the node; see \"hooks\"", "")
	case "macvlan", "ipvlan", "sriov", "host-device":
		x.say("network plugin", Warning, detail+": pods have no device in the node's namespace; only what passes the node's hooks is judged",
			"use a network plugin that gives pods veth devices")
	case "antrea", "ovn-kubernetes":
		x.say("network plugin", Warning, detail+": packets between pods of one node stay in Open vSwitch and pass no hook of the node", "use the plugin's own enforcement of policy")
	case "bridge", "flannel", "ptp", "calico", "kindnet", "kube-router", "aws-vpc":
		x.say("network plugin", OK, detail, "")
	default:
		x.say("network plugin", Warning, detail+" is "+untried, "")
	}
}

// bridges says whether packets between pods of one bridge are judged without afxdp.
func (x *examiner) bridges(links []netlink.Link) {
	var names []string
	for _, l := range links {
		if l.Type() == "bridge" && slices.ContainsFunc(links, func(p netlink.Link) bool {
			return p.Type() == "veth" && p.Attrs().MasterIndex == l.Attrs().Index
		}) {
			names = append(names, l.Attrs().Name)
		}
	}
	on := x.node.value("proc/sys/net/bridge/bridge-nf-call-iptables") == "1" && x.node.value("proc/sys/net/bridge/bridge-nf-call-ip6tables") == "1"
	switch {
	case len(names) == 0:
		x.say("bridges", OK, "no bridge with containers on it", "")
	case on:
		x.say("bridges", OK, list(names)+": packets between ports pass the node's hooks (net.bridge.bridge-nf-call-iptables and -ip6tables are 1)", "")
	default:
		x.say("bridges", OK, list(names)+": packets between ports do not pass the node's hooks; afxdp judges them at the ports, and nfqueue alone switches on nf_call_iptables of the pods' bridge", "")
	}
}
