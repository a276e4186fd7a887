package query

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/tierwall/tierwall/policy/inventory"
)

// backends finds the ends that the Service proxy would choose from. Where the traffic
// policy is Local, they are on the node that translates.
func (c *call) backends() ([]inventory.Backend, error) {
	all, err := c.inv.Backends(c.to.Service, c.translated())
	if err != nil {
		return nil, err
	}
	chosen := inventory.Chosen(all)
	if len(chosen) == 0 {
		names := make([]string, len(all))
		for i := range all {
			names[i] = all[i].Name
		}
		return nil, fmt.Errorf("%s has no ready backend (not ready: %s): the Service proxy refuses connections to it", c.to.Name, strings.Join(names, ", "))
	}
	svc := c.to.Service
	policy := ""
	switch {
	case svc.Headless || c.proxy == "":
	case !c.outer && svc.InternalLocal:
		policy = "internalTrafficPolicy"
	case c.outer && svc.ExternalLocal && c.from.Pod == nil: // pods go to any backend
		policy = "externalTrafficPolicy"
	}
	if policy == "" {
		return chosen, nil
	}
	local := slices.DeleteFunc(slices.Clone(chosen), func(b inventory.Backend) bool { return b.Node != "" && b.Node != c.proxy })
	if len(local) == 0 {
		return nil, fmt.Errorf("%s has no ready backend on node %s, and its %s is Local: the Service proxy there drops connections to it", c.to.Name, c.proxy, policy)
	}
	return local, nil
}

// translated is the Service's port that the connection is for; nil where nothing
// translates it: what the client of a headless Service asks for is the pods' own
// port, if it does not ask by the Service's name for one.
func (c *call) translated() *inventory.ServicePort {
	if c.to.Service.Headless && c.port.Name == "" {
		return nil
	}
	return c.sp
}

// portAt is the port at a backend.
func (c *call) portAt(b *inventory.Backend) Port {
	if c.translated() == nil {
		return c.port
	}
	p := Port{Proto: c.port.Proto, Number: b.Port, Name: b.PortName}
	if b.Port == 0 && b.PortName == "" {
		p.Number = c.number()
	}
	p.Text = p.Name
	if p.Name == "" {
		p.Text = strconv.Itoa(int(p.Number))
	}
	p.Text += "/" + p.Proto.String()
	return p
}
