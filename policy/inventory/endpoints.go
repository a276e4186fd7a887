package inventory

import (
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"

	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/diag"
)

// ReadEndpointSlice converts an EndpointSlice; its Service is "" if it belongs to none.
func ReadEndpointSlice(v *discoveryv1.EndpointSlice) (s EndpointSlice, found diag.List) {
	b := builder{snap: &Snapshot{}}
	b.endpointSlice(&api.Object{
		Kind:      api.Kind{Group: discoveryv1.GroupName, Version: "v1", Kind: "EndpointSlice", Namespaced: true},
		Namespace: v.Namespace, Name: v.Name,
	}, v)
	if len(b.snap.EndpointSlices) == 0 {
		return EndpointSlice{Namespace: v.Namespace, Name: v.Name}, b.found
	}
	return b.snap.EndpointSlices[0], b.found
}

// endpointSlice reads what belongs to a Service. Policies are enforced without it, so
// what cannot be read is a warning.
func (b *builder) endpointSlice(o *api.Object, v *discoveryv1.EndpointSlice) {
	s := EndpointSlice{Namespace: v.Namespace, Name: v.Name, Service: v.Labels[discoveryv1.LabelServiceName]}
	if s.Service == "" || v.AddressType == discoveryv1.AddressTypeFQDN {
		return
	}
	for _, p := range v.Ports {
		if number := ptr.Deref(p.Port, 0); number >= 0 && number <= 65535 {
			s.Ports = append(s.Ports, EndpointPort{
				Name: ptr.Deref(p.Name, ""), Proto: string(ptr.Deref(p.Protocol, corev1.ProtocolTCP)), Port: uint16(number),
			})
		}
	}
	for i, e := range v.Endpoints {
		if len(e.Addresses) == 0 {
			continue
		}
		a, err := netip.ParseAddr(e.Addresses[0]) // consumers use the first, says the API
		if err != nil || a.Zone() != "" {
			b.found.Warnings = append(b.found.Warnings, o.Finding(fmt.Sprintf("endpoints[%d].addresses[0]", i),
				fmt.Sprintf("%q is not an IP address: the endpoint is ignored", e.Addresses[0]), "correct the address"))
			continue
		}
		ready := ptr.Deref(e.Conditions.Ready, true)
		s.Endpoints = append(s.Endpoints, Endpoint{
			Addr: a.Unmap(), Node: ptr.Deref(e.NodeName, ""), Ready: ready,
			Serving: ptr.Deref(e.Conditions.Serving, ready), Terminating: ptr.Deref(e.Conditions.Terminating, false),
		})
	}
	b.snap.EndpointSlices = append(b.snap.EndpointSlices, s)
}
