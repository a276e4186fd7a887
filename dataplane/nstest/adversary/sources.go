package adversary

import (
	"net/netip"
	"strings"
)

// Somebody's addresses that are nobody's here (RFC 5737, RFC 3849), and ones of the
// node's pod network that no pod has.
var (
	foreign = map[int]netip.Addr{4: netip.MustParseAddr("203.0.113.9"), 6: netip.MustParseAddr("2001:db8:bad::9")}
	vacant  = map[int]netip.Addr{4: netip.MustParseAddr("10.244.7.99"), 6: netip.MustParseAddr("fd00:244:7::99")}
)

// ForeignSources are packets with a source address that is not the sender's: of outside,
// of nobody, of a pod elsewhere on the node, to whoever may be reached by anybody.
func ForeignSources() (all []Attack) {
	sources := map[string]func(f *Field, family int) netip.Addr{
		"an address of outside":                    func(_ *Field, family int) netip.Addr { return foreign[family] },
		"an address of the pods that nobody has":   func(_ *Field, family int) netip.Addr { return vacant[family] },
		"the address of a host outside":            func(f *Field, family int) netip.Addr { return f.Outside.Addr(family) },
		"the address of a pod that nobody polices": func(f *Field, family int) netip.Addr { return f.Bystander.Addr(family) },
	}
	for name, from := range sources {
		for to, dst := range destinations {
			all = append(all, Attack{
				Name: "with " + name + " to " + to, Like: "CVE-2020-8558, GHSA-24m5-r6hv-ccgp",
				Skip: func(dataplane, topology string) string {
					if dataplane == "nfqueue" && topology == "bridge" && strings.Contains(name, "polices") {
						return "the forward hook sees the bridge, and not the port"
					}
					return ""
				},
				Packets: func(f *Field, family int, mark string) [][]byte {
					e := Ends{from(f, family), dst(f).Addr(family)}
					if e.Src == e.Dst {
						e.Src = vacant[family]
					}
					return [][]byte{
						e.Packet(17, e.UDP(4000, 80, mark)), e.Packet(6, e.TCP(4000, 80, "S", mark)), e.Packet(6, e.TCP(4000, 80, "A", mark)),
						e.Packet(e.ICMPProto(), e.ICMP(map[int]uint8{4: 8, 6: 128}[family], 0, 7<<16, []byte(mark))),
						e.Packet(50, append(make([]byte, 8), mark...)),
					}
				},
			})
		}
	}
	return all
}

var destinations = map[string]func(f *Field) *Party{
	"the server":           func(f *Field) *Party { return f.Server },
	"the client":           func(f *Field) *Party { return f.Client },
	"a pod nobody polices": func(f *Field) *Party { return f.Bystander },
	"a host outside":       func(f *Field) *Party { return f.Outside },
	"the node":             func(f *Field) *Party { return f.Node },
}

// OwnSource are packets in the attacker's own name: for when policy knows no such pod.
func OwnSource() (all []Attack) {
	for to, dst := range destinations {
		all = append(all, Attack{
			Name: "in its own name to " + to,
			Packets: func(f *Field, family int, mark string) [][]byte {
				e := Ends{f.Attacker.Addr(family), dst(f).Addr(family)}
				return [][]byte{e.Packet(17, e.UDP(4001, 80, mark)), e.Packet(6, e.TCP(4001, 80, "S", mark)), e.Packet(50, append(make([]byte, 8), mark...))}
			},
		})
	}
	return all
}
