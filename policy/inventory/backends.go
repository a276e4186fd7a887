package inventory

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/tierwall/tierwall/classifier/rule"
)

// Backend is one end that a Service may lead a connection to.
type Backend struct {
	Name  string       // NAMESPACE/NAME of the pod, else the address
	Pod   *Pod         // nil for an address that no pod has as its own
	Node  string       // "" where it is not known
	Addrs []netip.Addr // those of the pod, or of the EndpointSlices
	// Port and PortName are the port there: one of them, or neither where it is the
	// port that the client asks for.
	Port     uint16
	PortName string

	Ready, Serving, Terminating bool
}

// Backends returns all ends behind a port of a Service, in whatever condition, by
// name: those of its EndpointSlices where these were read, else the pods it selects.
// sp is nil for connections to the addresses of a headless Service's pods, which
// have any port. No backend is an error that says why.
func (s *Snapshot) Backends(svc *Service, sp *ServicePort) ([]Backend, error) {
	name := "svc/" + svc.Namespace + "/" + svc.Name
	listed := slices.DeleteFunc(slices.Clone(s.EndpointSlices), func(e EndpointSlice) bool {
		return e.Namespace != svc.Namespace || e.Service != svc.Name
	})
	switch {
	case len(listed) > 0:
		if out := s.listed(listed, sp); len(out) > 0 {
			return out, nil
		}
		return nil, fmt.Errorf("%s: its EndpointSlices have no endpoint%s: the Service proxy refuses connections to it", name, sp.forPort())
	case len(svc.Selector) == 0:
		return nil, fmt.Errorf("%s has no selector, and there are no EndpointSlices that say where it leads: ask about the addresses of its backends", name)
	}
	var out []Backend
	selected := 0
	for i := range s.Pods {
		pod := &s.Pods[i]
		if pod.Namespace != svc.Namespace || len(pod.IPs) == 0 || !hasAll(pod.Labels, svc.Selector) {
			continue
		}
		selected++
		serving := !pod.Unready || svc.PublishNotReady
		b := Backend{
			Name: pod.Namespace + "/" + pod.Name, Pod: pod, Node: pod.Node, Addrs: pod.IPs,
			Ready: serving && (!pod.Terminating || svc.PublishNotReady), Serving: serving, Terminating: pod.Terminating,
		}
		if sp != nil {
			if b.Port, b.PortName = sp.TargetPort, sp.TargetName; sp.TargetName != "" && !pod.hasPort(sp.TargetName, sp.Proto) {
				continue // its endpoints lack this port
			}
		}
		out = append(out, b)
	}
	switch {
	case selected == 0:
		return nil, fmt.Errorf("%s selects no pod with an address: connections to it find no backend", name)
	case len(out) == 0:
		return nil, fmt.Errorf("%s: no pod behind it has a port named %q of %s, so connections%s find no backend", name, sp.TargetName, sp.Proto, sp.forPort())
	}
	return out, nil
}

// Text is the port as clients ask for it: "80/TCP".
func (sp *ServicePort) Text() string { return fmt.Sprintf("%d/%s", sp.Port, sp.Proto) }

func (sp *ServicePort) forPort() string {
	if sp == nil {
		return ""
	}
	return " for port " + sp.Text()
}

func (p *Pod) hasPort(name, proto string) bool {
	return slices.ContainsFunc(p.Ports, func(np rule.NamedPort) bool { return np.Name == name && np.Proto.String() == proto })
}

// Chosen are the backends that the Service proxy chooses from: those that are ready
// or, where there are none, those that still serve while they end.
func Chosen(all []Backend) []Backend {
	chosen := slices.DeleteFunc(slices.Clone(all), func(b Backend) bool { return !b.Ready })
	if len(chosen) == 0 {
		chosen = slices.DeleteFunc(slices.Clone(all), func(b Backend) bool { return !b.Serving || !b.Terminating })
	}
	return chosen
}

// listed reads the endpoints of a Service's slices, both families of one pod as one
// backend.
func (s *Snapshot) listed(list []EndpointSlice, sp *ServicePort) []Backend {
	owners := map[netip.Addr]*Pod{}
	for i := range s.Pods {
		for _, a := range s.Pods[i].IPs {
			if !s.Pods[i].HostNetwork {
				owners[a] = &s.Pods[i]
			}
		}
	}
	var out []Backend
	for i := range list {
		number, ok := list[i].port(sp)
		if !ok {
			continue
		}
		for _, e := range list[i].Endpoints {
			b := Backend{
				Name: e.Addr.String(), Node: e.Node, Addrs: []netip.Addr{e.Addr}, Port: number,
				Ready: e.Ready, Serving: e.Serving, Terminating: e.Terminating,
			}
			if pod := owners[e.Addr]; pod != nil {
				b.Name, b.Pod, b.Node = pod.Namespace+"/"+pod.Name, pod, cmp.Or(b.Node, pod.Node)
			}
			same := slices.IndexFunc(out, func(o Backend) bool { return o.Name == b.Name && o.Port == b.Port && o.Ready == b.Ready })
			if same < 0 {
				out = append(out, b)
			} else if !slices.Contains(out[same].Addrs, e.Addr) {
				out[same].Addrs = append(out[same].Addrs, e.Addr)
			}
		}
	}
	slices.SortStableFunc(out, func(a, b Backend) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// port returns the number that a port of the Service has in the slice; 0 is the one
// that the client asks for.
func (e *EndpointSlice) port(sp *ServicePort) (number uint16, ok bool) {
	if sp == nil {
		return 0, true
	}
	for _, p := range e.Ports {
		if p.Name == sp.Name && p.Proto == sp.Proto {
			return p.Port, true
		}
	}
	return 0, false
}
