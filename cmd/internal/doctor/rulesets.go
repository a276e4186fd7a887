package doctor

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"github.com/vishvananda/netlink"

	"github.com/tierwall/tierwall/dataplane/afxdp"
	"github.com/tierwall/tierwall/dataplane/nfqueue"
)

var familyNames = map[nftables.TableFamily]string{
	nftables.TableFamilyINet: "inet", nftables.TableFamilyIPv4: "ip", nftables.TableFamilyIPv6: "ip6",
	nftables.TableFamilyARP: "arp", nftables.TableFamilyNetdev: "netdev", nftables.TableFamilyBridge: "bridge",
}

// proxy says which Service proxy is at work, by what it leaves in the kernel.
func (x *examiner) proxy(links []netlink.Link) {
	const name = "Service proxy"
	if slices.ContainsFunc(links, func(l netlink.Link) bool { return l.Attrs().Name == "kube-ipvs0" }) {
		x.say(name, Warning, "kube-proxy in mode ipvs: it chooses the backend in the input hook, which was not tried", "use kube-proxy's mode nftables")
		return
	}
	if !x.root {
		x.unseen(name)
		return
	}
	nft, err := nftables.New()
	if err != nil {
		x.say(name, Warning, "nftables cannot be read: "+err.Error(), "")
		return
	}
	var modes []string
	tables, err := nft.ListTables()
	if err != nil {
		x.say(name, Warning, "nftables cannot be read: "+err.Error(), "")
		return
	}
	for _, t := range tables {
		if t.Name == "kube-proxy" {
			modes = append(modes, "nftables")
		}
	}
	chains, err := nft.ListChains()
	if err == nil && slices.ContainsFunc(chains, func(c *nftables.Chain) bool { return c.Name == "KUBE-SERVICES" && c.Table.Name == "nat" }) {
		modes = append(modes, "iptables")
	}
	if slices.ContainsFunc(links, func(l netlink.Link) bool { return l.Attrs().Name == "cilium_host" }) {
		modes = append(modes, "eBPF (Cilium)")
	}
	slices.Sort(modes)
	modes = slices.Compact(modes)
	switch {
	case len(modes) == 0 && strings.Contains(x.node.value("proc/net/ip_tables_names"), "nat"):
		x.say(name, OK, "rules of iptables-legacy, which this command does not read: kube-proxy in mode iptables, if there is one", "")
	case len(modes) == 0:
		x.say(name, OK, "none found", "")
	case len(modes) > 1:
		x.say(name, Warning, "rules of several: "+strings.Join(modes, ", "), "remove what an earlier proxy left (kube-proxy --cleanup)")
	case strings.HasPrefix(modes[0], "eBPF"):
		x.say(name, Warning, modes[0]+": packets to Services pass no hook", "")
	default:
		x.say(name, OK, "kube-proxy in mode "+modes[0], "")
	}
}

// rulesets says which rules of others stand beside ours, and what they do to us.
func (x *examiner) rulesets() {
	const name = "other rules"
	nft, err := nftables.New()
	if err != nil {
		x.say(name, Warning, "nftables cannot be read: "+err.Error(), "")
		return
	}
	tables, err := nft.ListTables()
	if err != nil {
		x.say(name, Warning, "nftables cannot be read: "+err.Error(), "")
		return
	}
	chains, err := nft.ListChains()
	if err != nil {
		x.say(name, Warning, "nftables cannot be read: "+err.Error(), "")
		return
	}
	var others, dropping, marking, flowtables []string
	for _, t := range tables {
		if t.Name == nfqueue.TableName || t.Name == nfqueue.TapTableName {
			continue
		}
		title := familyNames[t.Family] + " " + t.Name
		others = append(others, title+project(t, chains))
		if flows, err := nft.ListFlowtables(t); err == nil && len(flows) > 0 {
			flowtables = append(flowtables, title)
		}
	}
	for _, c := range chains {
		if c.Table.Name == nfqueue.TableName || c.Table.Name == nfqueue.TapTableName {
			continue
		}
		title := familyNames[c.Table.Family] + " " + c.Table.Name
		if c.Hooknum != nil && *c.Hooknum == *nftables.ChainHookForward && c.Table.Family != nftables.TableFamilyBridge &&
			c.Policy != nil && *c.Policy == nftables.ChainPolicyDrop {
			dropping = append(dropping, title+" "+c.Name+project(c.Table, chains))
		}
		rules, err := nft.GetRules(c.Table, c)
		if err == nil && slices.ContainsFunc(rules, setsOurMark) {
			marking = append(marking, title)
		}
	}
	if len(others) == 0 {
		x.say(name, OK, "none in nftables", "")
	} else {
		x.say(name, OK, "beside ours, and left alone: "+list(others), "")
	}
	if len(dropping) > 0 {
		x.say("forward policy", Warning, "drop in "+list(dropping)+": what our policy allows passes only if these rules accept it, too",
			"let them accept the pods' networks, as the network plugin's own rules do")
	}
	slices.Sort(marking)
	if marking = slices.Compact(marking); len(marking) > 0 {
		x.say("packet marks", Warning, fmt.Sprintf("%s set mark bits that are ours (%#x): packets with them may pass unjudged, or be refused", list(marking), ourMarks),
			"let them use other bits")
	}
	if len(flowtables) > 0 {
		x.say("flowtables", Warning, list(flowtables)+": connections in a flowtable pass no forward hook, so a change of policy does not cut them", "remove the flowtable")
	}
}

// ourMarks are the bits of the packet mark that the backends own.
var ourMarks = nfqueue.DefaultMarks.Accept | nfqueue.DefaultMarks.Reply | afxdp.DefaultMarks.Fast

// setsOurMark reports whether a rule writes one of our bits into the packet mark: by a
// constant, or by changing some bits of what is there.
func setsOurMark(r *nftables.Rule) bool {
	var set uint32 // what the register has that the mark is taken from
	for _, e := range r.Exprs {
		switch e := e.(type) {
		case *expr.Immediate:
			set = 0
			if len(e.Data) == 4 {
				set = binary.NativeEndian.Uint32(e.Data)
			}
		case *expr.Bitwise:
			set = 0
			if len(e.Mask) == 4 && len(e.Xor) == 4 {
				set = binary.NativeEndian.Uint32(e.Xor)
			}
		case *expr.Target:
			// struct xt_mark_tginfo2 { mark, mask }
			if e.Name == "MARK" && e.Rev == 2 {
				if info, ok := e.Info.(*xt.Unknown); ok && len(*info) >= 8 && binary.NativeEndian.Uint32(*info)&ourMarks != 0 {
					return true
				}
			}
		case *expr.Meta:
			if e.Key == expr.MetaKeyMARK && e.SourceRegister && set&ourMarks != 0 {
				return true
			}
		}
	}
	return false
}

// project names the software that made a table, in parentheses.
func project(t *nftables.Table, chains []*nftables.Chain) string {
	has := func(prefix string) bool {
		return slices.ContainsFunc(chains, func(c *nftables.Chain) bool {
			return c.Table.Name == t.Name && c.Table.Family == t.Family && strings.HasPrefix(c.Name, prefix)
		})
	}
	switch {
	case t.Name == "firewalld":
		return " (firewalld)"
	case t.Name == "kube-proxy":
		return " (kube-proxy)"
	case has("ufw-"), has("ufw6-"):
		return " (ufw)"
	case has("DOCKER"):
		return " (Docker)"
	case has("cali-"):
		return " (Calico)"
	case has("FLANNEL"):
		return " (flannel)"
	case has("KUBE-"):
		return " (kube-proxy)"
	case has("LIBVIRT"), t.Name == "libvirt_network":
		return " (libvirt)"
	}
	return ""
}
