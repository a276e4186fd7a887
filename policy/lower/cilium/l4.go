package cilium

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/api/cilium"
	"github.com/tierwall/tierwall/policy/internal/kube"
)

// Families of icmps.
const (
	familyIPv4 = "IPv4"
	familyIPv6 = "IPv6"
)

// The names icmps has for types (IANA, ICMP and ICMPv6 parameters).
var (
	icmp4Types = map[string]uint8{
		"EchoReply": 0, "DestinationUnreachable": 3, "Redirect": 5, "Echo": 8, "EchoRequest": 8,
		"RouterAdvertisement": 9, "RouterSelection": 10, "TimeExceeded": 11, "ParameterProblem": 12,
		"Timestamp": 13, "TimestampReply": 14, "Photuris": 40, "ExtendedEchoRequest": 42, "ExtendedEchoReply": 43,
	}
	icmp6Types = map[string]uint8{
		"DestinationUnreachable": 1, "PacketTooBig": 2, "TimeExceeded": 3, "ParameterProblem": 4,
		"EchoRequest": 128, "EchoReply": 129,
		"MulticastListenerQuery": 130, "MulticastListenerReport": 131, "MulticastListenerDone": 132,
		"RouterSolicitation": 133, "RouterAdvertisement": 134,
		"NeighborSolicitation": 135, "NeighborAdvertisement": 136,
		"RedirectMessage": 137, "RouterRenumbering": 138,
		"ICMPNodeInformationQuery": 139, "ICMPNodeInformationResponse": 140,
		"InverseNeighborDiscoverySolicitation": 141, "InverseNeighborDiscoveryAdvertisement": 142,
		"HomeAgentAddressDiscoveryRequest": 144, "HomeAgentAddressDiscoveryReply": 145,
		"MobilePrefixSolicitation": 146, "MobilePrefixAdvertisement": 147,
		"DuplicateAddressRequestCodeSuffix": 157, "DuplicateAddressConfirmationCodeSuffix": 158,
		"ExtendedEchoRequest": 160, "ExtendedEchoReply": 161,
	}
)

// l4 lowers toPorts and icmps. What Validate refuses matches nothing.
func (ln *line) l4() []rule.L4 {
	if len(ln.toPorts) == 0 && len(ln.icmps) == 0 {
		return []rule.L4{rule.AnyL4}
	}
	var out []rule.L4
	for i := range ln.toPorts {
		if r := &ln.toPorts[i]; !beyond(r) {
			for j := range r.Ports {
				out = append(out, portL4(&r.Ports[j])...)
			}
		}
	}
	for i := range ln.icmps {
		for j := range ln.icmps[i].Fields {
			if l, ok := icmpL4(&ln.icmps[i].Fields[j]); ok {
				out = append(out, l)
			}
		}
	}
	return out
}

// beyond reports whether a toPorts item asks for more than ports.
func beyond(r *cilium.PortRule) bool {
	return r.Rules != nil || r.TerminatingTLS != nil || r.OriginatingTLS != nil || r.Listener != nil || r.ServerNames != nil
}

var protocols = map[string][]flow.Proto{
	"":     {flow.TCP, flow.UDP, flow.SCTP},
	"ANY":  {flow.TCP, flow.UDP, flow.SCTP},
	"TCP":  {flow.TCP},
	"UDP":  {flow.UDP},
	"SCTP": {flow.SCTP},
}

// portL4 lowers one port item: one L4 a protocol, one for all with a name.
func portL4(p *cilium.Port) []rule.L4 {
	l := rule.L4{Ports: rule.AllPorts, SrcPorts: rule.AllPorts}
	first, isNumber := portNumber(p.Port)
	switch {
	case !isNumber && (portNameError(p.Port) != "" || p.EndPort != 0):
		return nil
	case !isNumber:
		l.Name = strings.ToLower(p.Port)
	case first == 0 && p.EndPort != 0, p.EndPort != 0 && (p.EndPort < int32(first) || p.EndPort > 65535):
		return nil
	case first != 0:
		l.Ports = rule.PortRange{First: first, Last: first}
		if p.EndPort != 0 {
			l.Ports.Last = uint16(p.EndPort)
		}
	}
	known := protocols[p.Protocol]
	if len(known) > 1 && l.Name != "" {
		// The container port of that name knows its protocol.
		known = []flow.Proto{flow.AnyProto}
	}
	var out []rule.L4
	for _, proto := range known {
		l.Proto = proto
		out = append(out, l)
	}
	return out
}

// portNumber reads a decimal port without leading zeros; "0" is every port.
func portNumber(s string) (uint16, bool) {
	n, err := strconv.ParseUint(s, 10, 16)
	return uint16(n), err == nil && strconv.FormatUint(n, 10) == s
}

// portNameError says why s cannot be a port's name; names ignore case.
func portNameError(s string) string {
	if msgs := validation.IsValidPortName(strings.ToLower(s)); len(msgs) > 0 {
		return msgs[0]
	}
	return ""
}

func checkPort(f *kube.Findings, path string, p *cilium.Port) {
	first, isNumber := portNumber(p.Port)
	switch {
	case p.Port == "":
		f.Error(path+".port", "port is missing", `write "0" to mean every port of the protocol`)
	case !isNumber && strings.Trim(p.Port, "0123456789") == "":
		f.Error(path+".port", fmt.Sprintf("%q is not a port number", p.Port), "ports go from 1 to 65535, in decimal, without leading zeros")
	case !isNumber && portNameError(p.Port) != "":
		f.Error(path+".port", fmt.Sprintf("%q is not a port name: %s", p.Port, portNameError(p.Port)), kube.PortNameHint)
	}
	switch {
	case p.EndPort == 0:
	case !isNumber:
		f.Error(path+".endPort", "endPort with a named port", "a range needs a number in `port`")
	case p.EndPort < 0 || p.EndPort > 65535:
		f.Error(path+".endPort", fmt.Sprintf("%d is not a port number", p.EndPort), "ports go from 1 to 65535")
	case first == 0:
		f.Error(path+".endPort", `endPort with port "0", which is every port`, "set `port` to the first port of the range")
	case p.EndPort < int32(first):
		f.Error(path+".endPort", fmt.Sprintf("endPort %d is smaller than port %d", p.EndPort, first),
			"`port` is the first and `endPort` the last port of the range")
	}
	if _, ok := protocols[p.Protocol]; !ok {
		hint := "write TCP, UDP, SCTP or ANY"
		switch up := strings.ToUpper(p.Protocol); {
		case protocols[up] != nil:
			hint = "write " + up + ": protocols are case-sensitive"
		case up == "ICMP" || up == "ICMPV6":
			hint = "write `icmps` in the place of toPorts"
		}
		f.Error(path+".protocol", fmt.Sprintf("unsupported protocol %q", p.Protocol), hint)
	}
}

// icmpL4 lowers one ICMP type; its codes all match.
func icmpL4(i *cilium.ICMPField) (rule.L4, bool) {
	proto, names := family(i.Family)
	if names == nil || i.Type == nil {
		return rule.L4{}, false
	}
	n, ok := icmpType(*i.Type, names)
	return rule.L4{
		Proto:    proto,
		Ports:    rule.PortRange{First: flow.ICMPPort(n, 0), Last: flow.ICMPPort(n, 255)},
		SrcPorts: rule.AllPorts,
	}, ok
}

// family returns a family's protocol and names; nil for one that does not exist.
func family(s string) (flow.Proto, map[string]uint8) {
	switch s {
	case "", familyIPv4:
		return flow.ICMP, icmp4Types
	case familyIPv6:
		return flow.ICMPv6, icmp6Types
	}
	return flow.AnyProto, nil
}

func icmpType(t intstr.IntOrString, names map[string]uint8) (uint8, bool) {
	if t.Type == intstr.Int {
		return uint8(t.IntVal), t.IntVal >= 0 && t.IntVal <= 255
	}
	if n, ok := names[t.StrVal]; ok {
		return n, true
	}
	n, err := strconv.ParseUint(t.StrVal, 10, 8)
	return uint8(n), err == nil
}

func checkICMP(f *kube.Findings, path string, i *cilium.ICMPField) {
	_, names := family(i.Family)
	if names == nil {
		f.Error(path+".family", fmt.Sprintf("unknown family %q", i.Family), "write IPv4 or IPv6")
		return
	}
	if i.Type == nil {
		f.Error(path+".type", "type is missing", "write the number or the name of an ICMP type")
		return
	}
	if _, ok := icmpType(*i.Type, names); ok {
		return
	}
	if i.Type.Type == intstr.Int {
		f.Error(path+".type", fmt.Sprintf("%d is not an ICMP type", i.Type.IntVal), "types go from 0 to 255")
		return
	}
	hint := "write the number of the type"
	for _, n := range slices.Sorted(maps.Keys(names)) {
		if strings.EqualFold(n, i.Type.StrVal) {
			hint = "write " + n + ": names are case-sensitive"
		}
	}
	if _, other := icmp6Types[i.Type.StrVal]; other && i.Family != familyIPv6 {
		hint = "this is a type of ICMPv6: write `family: IPv6`"
	}
	f.Error(path+".type", fmt.Sprintf("%q is not an ICMP type of the family", i.Type.StrVal), hint)
}
