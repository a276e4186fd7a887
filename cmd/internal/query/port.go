package query

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/tierwall/tierwall/classifier/flow"
)

// SourcePort is the source port questions are asked with: one of the
// registered range that clients are commonly given and that policies with
// source ports rarely name.
const SourcePort = 40000

// Port is what --port asks about. The zero value is invalid.
type Port struct {
	Text   string     // as asked, echoed in answers
	Proto  flow.Proto // never AnyProto; ICMP stands for ICMPv6 when asked over IPv6
	Number uint16     // 0 for a named port and for protocols without ports
	Name   string     // named port, "" otherwise
	// Type and Code are the ICMP message asked about when HasType is set; an
	// echo request otherwise.
	HasType    bool
	Type, Code uint8
}

// ParsePort reads "80/TCP", "http/TCP", "0/ICMP" or "0/47". Without "/PROTO" the
// protocol is TCP. Protocol names ignore case.
func ParsePort(s string) (Port, error) {
	num, protoText, found := strings.Cut(s, "/")
	p := Port{Text: s, Proto: flow.TCP}
	if found {
		proto, err := flow.ParseProto(protoText)
		if err != nil {
			return Port{}, fmt.Errorf("port %q: %w", s, err)
		}
		p.Proto = proto
	} else {
		p.Text += "/TCP"
	}
	if num == "" {
		return Port{}, fmt.Errorf("port %q: want NUMBER/PROTOCOL or NAME/PROTOCOL, such as 80/TCP", s)
	}
	n, err := strconv.ParseUint(num, 10, 16)
	isNumber := err == nil
	switch {
	case !p.Proto.HasPorts():
		if !isNumber || n != 0 {
			return Port{}, fmt.Errorf("port %q: %s has no ports, write 0/%s", s, p.Proto, p.Proto)
		}
	case isNumber && n == 0:
		return Port{}, fmt.Errorf("port %q: %s ports go from 1 to 65535", s, p.Proto)
	case isNumber:
		p.Number = uint16(n)
	case strings.Trim(num, "0123456789") == "":
		return Port{}, fmt.Errorf("port %q: %s ports go from 1 to 65535", s, p.Proto)
	case !validPortName(num):
		return Port{}, fmt.Errorf("port %q: %q is neither a number nor a port name (up to 15 lower-case letters, digits and inner hyphens)", s, num)
	default:
		p.Name = num
	}
	return p, nil
}

// validPortName follows RFC 6335 §5.1 as Kubernetes applies it: lower case, at
// most 15 characters, at least one letter, hyphens only inside and never two
// in a row.
func validPortName(s string) bool {
	if len(s) == 0 || len(s) > 15 || s[0] == '-' || s[len(s)-1] == '-' || strings.Contains(s, "--") {
		return false
	}
	letter := false
	for _, c := range s {
		switch {
		case c >= 'a' && c <= 'z':
			letter = true
		case c >= '0' && c <= '9', c == '-':
		default:
			return false
		}
	}
	return letter
}

// WithICMP sets the ICMP message from "TYPE" or "TYPE/CODE".
func (p Port) WithICMP(s string) (Port, error) {
	if p.Proto != flow.ICMP && p.Proto != flow.ICMPv6 {
		return Port{}, fmt.Errorf("--icmp needs --port 0/ICMP, not %s", p.Text)
	}
	typ, code, both := strings.Cut(s, "/")
	t, err := strconv.ParseUint(typ, 10, 8)
	if err != nil {
		return Port{}, fmt.Errorf("--icmp %q: type must be a number from 0 to 255", s)
	}
	var c uint64
	if both {
		if c, err = strconv.ParseUint(code, 10, 8); err != nil {
			return Port{}, fmt.Errorf("--icmp %q: code must be a number from 0 to 255", s)
		}
	}
	p.HasType, p.Type, p.Code = true, uint8(t), uint8(c)
	return p, nil
}

// key builds the first packet's key; number is the resolved destination port.
func (p Port) key(src, dst flow.Addr, number uint16) flow.Key {
	k := flow.Key{Src: src, Dst: dst, Proto: p.Proto, DstPort: number}
	switch {
	case p.Proto == flow.ICMP || p.Proto == flow.ICMPv6:
		typ := uint8(flow.ICMPEchoRequest)
		k.Proto = flow.ICMP
		if !src.Is4() {
			k.Proto, typ = flow.ICMPv6, flow.ICMPv6EchoRequest
		}
		code := uint8(0)
		if p.HasType {
			typ, code = p.Type, p.Code
		}
		k.DstPort = flow.ICMPPort(typ, code)
		if (k.Proto == flow.ICMP && (typ == flow.ICMPEchoRequest || typ == flow.ICMPEchoReply)) ||
			(k.Proto == flow.ICMPv6 && (typ == flow.ICMPv6EchoRequest || typ == flow.ICMPv6EchoReply)) {
			k.SrcPort = 1 // an echo identifier
		}
	case p.Proto.HasPorts():
		k.SrcPort = SourcePort
	}
	return k
}
