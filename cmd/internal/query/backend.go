package query

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/inventory"
)

// backend is one end a Service may lead a connection to.
type backend struct {
	name  string // of the pod, else the address
	node  string // "" where it is not known
	addrs []netip.Addr
	port  Port

	ready, serving, terminating bool
}

// backends finds the ends that the Service proxy would choose from: those that are
// ready or, where there are none, those that still serve while they end. Where the
// traffic policy is Local, they are on the node that translates.
func (c *call) backends() ([]backend, error) {
	all, err := c.candidates()
	if err != nil {
		return nil, err
	}
	chosen := slices.DeleteFunc(slices.Clone(all), func(b backend) bool { return !b.ready })
	if len(chosen) == 0 {
		chosen = slices.DeleteFunc(slices.Clone(all), func(b backend) bool { return !b.serving || !b.terminating })
	}
	if len(chosen) == 0 {
		names := make([]string, len(all))
		for i := range all {
			names[i] = all[i].name
		}
		return nil, fmt.Errorf("%s has no ready backend (not ready: %s): the Service proxy refuses connections to it", c.to.Name, strings.Join(names, ", "))
	}
	svc := c.to.Service
	policy := ""
	switch {
	case len(svc.ClusterIPs) == 0 || c.proxy == "":
	case !c.outer && svc.InternalLocal:
		policy = "internalTrafficPolicy"
	case c.outer && svc.ExternalLocal && c.from.Pod == nil: // pods go to any backend
		policy = "externalTrafficPolicy"
	}
	if policy == "" {
		return chosen, nil
	}
	local := slices.DeleteFunc(slices.Clone(chosen), func(b backend) bool { return b.node != "" && b.node != c.proxy })
	if len(local) == 0 {
		return nil, fmt.Errorf("%s has no ready backend on node %s, and its %s is Local: the Service proxy there drops connections to it", c.to.Name, c.proxy, policy)
	}
	return local, nil
}

// candidates are all ends behind the Service's port, in whatever condition:
// those of its EndpointSlices where these were read, else the pods it selects.
func (c *call) candidates() ([]backend, error) {
	svc := c.to.Service
	slicesOf := slices.DeleteFunc(slices.Clone(c.inv.EndpointSlices), func(s inventory.EndpointSlice) bool {
		return s.Namespace != svc.Namespace || s.Service != svc.Name
	})
	switch {
	case len(slicesOf) > 0:
		if out := c.listed(slicesOf); len(out) > 0 {
			return out, nil
		}
		return nil, fmt.Errorf("%s: its EndpointSlices have no endpoint for port %s: the Service proxy refuses connections to it", c.to.Name, c.port.Text)
	case len(svc.Selector) == 0:
		return nil, fmt.Errorf("%s has no selector, and there are no EndpointSlices that say where it leads: ask about the addresses of its backends", c.to.Name)
	}
	target := c.target()
	var out []backend
	selected := 0
	for i := range c.inv.Pods {
		pod := &c.inv.Pods[i]
		if pod.Namespace != svc.Namespace || len(pod.IPs) == 0 || !selects(svc.Selector, pod.Labels) {
			continue
		}
		selected++
		if target.Name != "" && !slices.ContainsFunc(pod.Ports, func(np rule.NamedPort) bool { return np.Name == target.Name && np.Proto == target.Proto }) {
			continue // its endpoints lack this port
		}
		serving := !pod.Unready || svc.PublishNotReady
		out = append(out, backend{
			name: pod.Namespace + "/" + pod.Name, node: pod.Node, addrs: pod.IPs, port: target,
			ready: serving && (!pod.Terminating || svc.PublishNotReady), serving: serving, terminating: pod.Terminating,
		})
	}
	switch {
	case selected == 0:
		return nil, fmt.Errorf("%s selects no pod with an address: connections to it find no backend", c.to.Name)
	case len(out) == 0:
		return nil, fmt.Errorf("%s: no pod behind it has a port named %q of %s, so connections to port %s find no backend", c.to.Name, target.Name, target.Proto, c.port.Text)
	}
	return out, nil
}

// target is the port at the pods.
func (c *call) target() Port {
	if c.sp == nil || len(c.to.Service.ClusterIPs) == 0 && c.port.Name == "" {
		return c.port // headless: what the client asks for is the pods' own
	}
	return portOf(c.port, c.sp.TargetPort, c.sp.TargetName)
}

func portOf(asked Port, number uint16, name string) Port {
	p := Port{Proto: asked.Proto, Number: number, Name: name}
	p.Text = name
	if name == "" {
		p.Text = strconv.Itoa(int(number))
	}
	p.Text += "/" + p.Proto.String()
	return p
}

// listed reads the endpoints of a Service's slices, both families of one pod as one
// backend.
func (c *call) listed(list []inventory.EndpointSlice) []backend {
	var out []backend
	for i := range list {
		port, ok := c.portIn(&list[i])
		if !ok {
			continue
		}
		for _, e := range list[i].Endpoints {
			b := backend{
				name: e.Addr.String(), node: e.Node, addrs: []netip.Addr{e.Addr}, port: port,
				ready: e.Ready, serving: e.Serving, terminating: e.Terminating,
			}
			if pod := c.table.Endpoint(flow.AddrFrom(e.Addr)); pod != nil {
				b.name = PodName(pod)
			}
			same := slices.IndexFunc(out, func(o backend) bool { return o.name == b.name && o.port == b.port && o.ready == b.ready })
			if same < 0 {
				out = append(out, b)
			} else if !slices.Contains(out[same].addrs, e.Addr) {
				out[same].addrs = append(out[same].addrs, e.Addr)
			}
		}
	}
	slices.SortStableFunc(out, func(a, b backend) int { return strings.Compare(a.name, b.name) })
	return out
}

// portIn returns the number the Service's port has in a slice.
func (c *call) portIn(s *inventory.EndpointSlice) (Port, bool) {
	if c.sp == nil || len(c.to.Service.ClusterIPs) == 0 && c.port.Name == "" {
		return c.port, true // headless
	}
	for _, p := range s.Ports {
		if p.Name == c.sp.Name && p.Proto == c.sp.Proto {
			number := p.Port
			if number == 0 {
				number = c.number()
			}
			return portOf(c.port, number, ""), true
		}
	}
	return Port{}, false
}
