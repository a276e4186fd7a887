package kube

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
)

// Port is the port item NetworkPolicy introduced and other APIs repeat: a
// protocol (TCP when nil), a number or name, and the inclusive end of a range.
type Port struct {
	Protocol *corev1.Protocol
	Port     *intstr.IntOrString
	EndPort  *int32
}

// PortNameHint says what a port name can be.
const PortNameHint = "write a container port's name: at most 15 lower-case letters, digits and inner `-`, with a letter"

// Check reports what an API server refuses: protocols other than TCP, UDP and
// SCTP, numbers outside 1 to 65535, names that no container port can have, and
// an endPort that is smaller than port, or without a numeric one. Whether port
// may be left out is the caller's question.
func (p Port) Check(f *Findings, path string) {
	if p.Protocol != nil {
		if _, ok := protocol(*p.Protocol); !ok {
			hint := "write TCP, UDP or SCTP"
			if up := strings.ToUpper(string(*p.Protocol)); up == "TCP" || up == "UDP" || up == "SCTP" {
				hint = "write " + up + ": protocols are case-sensitive"
			}
			f.Error(path+".protocol", fmt.Sprintf("unsupported protocol %q", *p.Protocol), hint)
		}
	}
	switch {
	case p.Port == nil:
		if p.EndPort != nil {
			f.Error(path+".endPort", "endPort without port", "set `port` to the first port of the range")
		}
	case p.Port.Type == intstr.String:
		for _, msg := range validation.IsValidPortName(p.Port.StrVal) {
			hint := PortNameHint
			if strings.Trim(p.Port.StrVal, "0123456789") == "" && p.Port.StrVal != "" {
				hint = "write the number without quotes"
			}
			f.Error(path+".port", fmt.Sprintf("%q is not a port name: %s", p.Port.StrVal, msg), hint)
		}
		if p.EndPort != nil {
			f.Error(path+".endPort", "endPort with a named port", "a range needs a number in `port`")
		}
	default:
		checkNumber(f, path+".port", p.Port.IntVal)
		if p.EndPort == nil {
			return
		}
		checkNumber(f, path+".endPort", *p.EndPort)
		if *p.EndPort < p.Port.IntVal {
			f.Error(path+".endPort", fmt.Sprintf("endPort %d is smaller than port %d", *p.EndPort, p.Port.IntVal),
				"`port` is the first and `endPort` the last port of the range")
		}
	}
}

func checkNumber(f *Findings, path string, n int32) {
	if n < 1 || n > 65535 {
		f.Error(path, fmt.Sprintf("%d is not a port number", n), "ports go from 1 to 65535")
	}
}

func protocol(p corev1.Protocol) (flow.Proto, bool) {
	switch p {
	case corev1.ProtocolTCP:
		return flow.TCP, true
	case corev1.ProtocolUDP:
		return flow.UDP, true
	case corev1.ProtocolSCTP:
		return flow.SCTP, true
	}
	return flow.AnyProto, false
}

// L4 converts a checked item; without port it is every port of the protocol. ok
// is false for an item that Check refuses, which then must match nothing.
func (p Port) L4() (l rule.L4, ok bool) {
	l = rule.L4{Proto: flow.TCP, Ports: rule.AllPorts, SrcPorts: rule.AllPorts}
	if p.Protocol != nil {
		if l.Proto, ok = protocol(*p.Protocol); !ok {
			return rule.L4{}, false
		}
	}
	switch {
	case p.Port == nil:
		return l, p.EndPort == nil
	case p.Port.Type == intstr.String:
		l.Name = p.Port.StrVal
		return l, p.EndPort == nil && l.Name != ""
	}
	first, last := p.Port.IntVal, p.Port.IntVal
	if p.EndPort != nil {
		last = *p.EndPort
	}
	if first < 1 || last > 65535 || first > last {
		return rule.L4{}, false
	}
	l.Ports = rule.PortRange{First: uint16(first), Last: uint16(last)}
	return l, true
}
