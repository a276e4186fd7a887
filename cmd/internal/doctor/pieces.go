package doctor

import (
	"fmt"
	"strings"
)

// piece is a part of the kernel that a backend uses: one of several sets of modules.
type piece struct {
	name string
	use  string     // what it is for
	sets [][]module // any of them will do
	// tried says that running the backends uses it: if it is needed, the kernel has
	// loaded it by then.
	tried bool
	// optional pieces change how well a backend works, not whether.
	optional bool
}

type module struct{ name, option string }

var pieces = []piece{
	{name: "nf_tables", use: "rules (nfqueue)", tried: true, sets: [][]module{{{"nf_tables", "CONFIG_NF_TABLES"}, {"nft_ct", "CONFIG_NFT_CT"}}}},
	{name: "connection tracking", use: "nfqueue; afxdp reads translated connections", tried: true, sets: [][]module{{{"nf_conntrack", "CONFIG_NF_CONNTRACK"}, {"nf_conntrack_netlink", "CONFIG_NF_CT_NETLINK"}}}},
	{name: "nfnetlink_queue", use: "packets to userspace (nfqueue)", tried: true, sets: [][]module{{{"nfnetlink_queue", "CONFIG_NETFILTER_NETLINK_QUEUE"}}}},
	{name: "queue rule", use: "nftables' own, or xtables' NFQUEUE (nfqueue)", tried: true, sets: [][]module{
		{{"nft_queue", "CONFIG_NFT_QUEUE"}}, {{"nft_compat", "CONFIG_NFT_COMPAT"}, {"xt_NFQUEUE", "CONFIG_NETFILTER_XT_TARGET_NFQUEUE"}},
	}},
	{name: "nft_fib", use: "forged sources (nfqueue)", tried: true, optional: true, sets: [][]module{
		{{"nft_fib_inet", "CONFIG_NFT_FIB_INET"}, {"nft_fib_ipv4", "CONFIG_NFT_FIB_IPV4"}, {"nft_fib_ipv6", "CONFIG_NFT_FIB_IPV6"}},
	}},
	{name: "nft_reject", use: "answers to refused packets (nfqueue)", tried: true, optional: true, sets: [][]module{{{"nft_reject_inet", "CONFIG_NFT_REJECT_INET"}}}},
	{name: "veth", use: "afxdp", tried: true, sets: [][]module{{{"veth", "CONFIG_VETH"}}}},
	{name: "AF_XDP sockets", use: "afxdp", tried: true, sets: [][]module{{{"", "CONFIG_XDP_SOCKETS"}}}},
	{name: "clsact", use: "programs on devices before Linux 6.6 (afxdp)", optional: true, sets: [][]module{
		{{"sch_ingress", "CONFIG_NET_SCH_INGRESS"}, {"cls_bpf", "CONFIG_NET_CLS_BPF"}},
	}},
	{name: "br_netfilter", use: "pods on a bridge with nfqueue alone", optional: true, sets: [][]module{{{"br_netfilter", "CONFIG_BRIDGE_NETFILTER"}}}},
}

// pieceState is what files say about a piece.
type pieceState struct {
	piece *piece
	state State // "" if not known
	// modules of the best set that have that state.
	modules []string
	options []string
}

// modules looks at pieces. Of several sets the best one counts.
func (n *node) modules(list []piece) []pieceState {
	rank := map[State]int{OK: 0, Loadable: 1, "": 2, Missing: 3}
	var out []pieceState
	for i := range list {
		best := pieceState{state: Missing}
		for j, set := range list[i].sets {
			s := pieceState{state: OK}
			for _, m := range set {
				state := n.option(m.option)
				if m.name != "" {
					state = n.module(m.name, m.option)
				}
				if rank[state] > rank[s.state] {
					s.state, s.modules, s.options = state, nil, nil
				}
				if state == s.state {
					s.options = append(s.options, m.option)
					if m.name != "" {
						s.modules = append(s.modules, m.name)
					}
				}
			}
			if j == 0 || rank[s.state] < rank[best.state] {
				best = s
			}
		}
		best.piece = &list[i]
		out = append(out, best)
	}
	return out
}

// pieces says of each piece whether it is there. What a backend that works has used is
// there, whatever files say.
func (x *examiner) pieces(before []pieceState, got probes) {
	after := x.node.modules(pieces)
	for i, s := range after {
		p := s.piece
		detail, hint := "for "+p.use, ""
		works := p.tried && !p.optional && (strings.Contains(p.use, "nfqueue") && got.nfqueue.err == nil && got.nfqueue.tried ||
			p.use == "afxdp" && got.afxdp.err == nil && got.afxdp.tried)
		state := s.state
		if works {
			state = OK
		}
		switch state {
		case OK:
			if before[i].state == Loadable && s.state == OK {
				detail += "; loaded by this command"
			}
		case Loadable:
			detail += fmt.Sprintf("; not loaded (%s): using it loads it", strings.Join(s.modules, ", "))
			if x.node.value("proc/sys/kernel/modules_disabled") == "1" {
				state, hint = Missing, "modules cannot be loaded any more (kernel.modules_disabled is 1): load it at boot, before that is set"
			}
		case Missing:
			detail += fmt.Sprintf("; the kernel has none of it (%s)", strings.Join(s.options, ", "))
			if !p.optional {
				hint = "use a kernel built with " + strings.Join(s.options, " and ")
			}
			if len(s.modules) > 0 && x.node.found != nil {
				hint = fmt.Sprintf("run \"modprobe -a %s\"; if there is no such module, install the kernel's package of further modules, or use a kernel built with %s",
					strings.Join(s.modules, " "), strings.Join(s.options, " and "))
			}
		default:
			state = Warning
			detail += "; not known: neither the kernel's build options nor its modules can be read here"
			if !x.root || x.NoLoad {
				hint = "run tierwall doctor as root, without --no-load: it tries"
			}
		}
		x.say(p.name, state, detail, hint)
	}
}
