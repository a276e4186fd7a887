package world

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"

	"github.com/tierwall/tierwall/dataplane/nstest/netlab"
)

// NodeName is the node's name in the manifests.
const NodeName = "demo-node"

// OutsideName is how results call the host outside.
const OutsideName = "outside"

// Namespaces and pods of the world, and the ports everybody serves.
var (
	Namespaces = []string{"x", "y", "z"}
	PodNames   = []string{"a", "b", "c"}
	Ports      = []NamedPort{{"web", 80}, {"admin", 81}}
	Networks   = []string{"tcp", "udp"}
)

// Addresses of the world. The outside host and the node's uplink use prefixes
// reserved for documentation (RFC 5737, RFC 3849), pods a private one and a
// unique local one.
var (
	podPrefix4 = netip.MustParsePrefix("10.244.7.0/24")
	podPrefix6 = netip.MustParsePrefix("fd00:244:7::/64")
	node4      = netip.MustParseAddr("192.0.2.1")
	node6      = netip.MustParseAddr("2001:db8:1::1")
	outside4   = netip.MustParseAddr("192.0.2.10")
	outside6   = netip.MustParseAddr("2001:db8:1::10")
)

// NamedPort is a container port.
type NamedPort struct {
	Name   string
	Number uint16
}

// Host is one end of connections: a pod or the host outside.
type Host struct {
	Name         string // "x/a" or "outside"
	Addr4, Addr6 netip.Addr
	NS           *netlab.NS // nil in a Plan
}

// Addr returns the address of family 4 or 6.
func (h *Host) Addr(family int) netip.Addr {
	if family == 6 {
		return h.Addr6
	}
	return h.Addr4
}

// gateway is the first address of the pods' network, which the node has, as with
// the common CNI plugins.
func gateway(pods netip.Prefix) netip.Prefix {
	return netip.PrefixFrom(pods.Addr().Next(), pods.Bits())
}

// Plan returns the hosts of every world, pods by name and then the host outside,
// without namespaces: names and addresses never change.
func Plan() []*Host {
	var hosts []*Host
	a4, a6 := podPrefix4.Addr().Next(), podPrefix6.Addr().Next()
	for _, ns := range Namespaces {
		for _, pod := range PodNames {
			a4, a6 = a4.Next(), a6.Next()
			hosts = append(hosts, &Host{Name: ns + "/" + pod, Addr4: a4, Addr6: a6})
		}
	}
	return append(hosts, &Host{Name: OutsideName, Addr4: outside4, Addr6: outside6})
}

// World is a running world. Its methods may be called from one goroutine at a
// time; Probe may run beside itself.
type World struct {
	Node  *netlab.Node
	Hosts []*Host // the pods by name, then the host outside

	servers []*netlab.Server
	served  map[served]bool
}

// served is where a server listens.
type served struct {
	network string
	at      netip.AddrPort
}

// Missing says in a sentence which piece of the machine the world cannot be
// built without; nil when nothing is missing.
func Missing() error { return netlab.Missing() }

// New builds the world and starts its servers. On error nothing is left. It
// stops early when ctx ends.
func New(ctx context.Context) (w *World, err error) {
	w = &World{served: map[served]bool{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.Close())
			w = nil
		}
	}()
	w.Node, err = netlab.NewNode(netlab.NodeConfig{
		Name: NodeName, Node4: node4, Node6: node6, Outside4: outside4, Outside6: outside6,
		Gateway4: gateway(podPrefix4), Gateway6: gateway(podPrefix6),
	})
	if err != nil {
		return w, err
	}
	for _, h := range Plan() {
		if err := ctx.Err(); err != nil {
			return w, err
		}
		if h.Name == OutsideName {
			h.NS = w.Node.Outside
		} else {
			p, err := w.Node.AddPod(h.Name, h.Addr4, h.Addr6)
			if err != nil {
				return w, err
			}
			h.NS = p.NS
		}
		w.Hosts = append(w.Hosts, h)
	}
	for _, h := range w.Hosts {
		if err := w.serve(h); err != nil {
			return w, err
		}
	}
	return w, nil
}

func (w *World) serve(h *Host) error {
	for _, p := range Ports {
		for _, network := range Networks {
			for _, family := range []int{4, 6} {
				if err := w.Serve(h, network, p.Number, family); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// Serve starts an echo server on a port of a host, unless one listens there.
func (w *World) Serve(h *Host, network string, port uint16, family int) error {
	k := served{network, netip.AddrPortFrom(h.Addr(family), port)}
	if w.served[k] {
		return nil
	}
	s, err := h.NS.Echo(network, k.at)
	if err != nil {
		return err
	}
	w.servers = append(w.servers, s)
	w.served[k] = true
	return nil
}

// Host returns a host by name, or nil.
func (w *World) Host(name string) *Host {
	i := slices.IndexFunc(w.Hosts, func(h *Host) bool { return h.Name == name })
	if i < 0 {
		return nil
	}
	return w.Hosts[i]
}

// Pin gives every namespace a name in dir, as "ip netns" knows them when dir is
// /run/netns: "tierwall-node", "tierwall-outside", "tierwall-x-a", … It returns
// the names. Close removes them.
func (w *World) Pin(dir string) ([]string, error) {
	var names []string
	pin := func(ns *netlab.NS, name string) error {
		path := filepath.Join(dir, name)
		if err := ns.Pin(path); err != nil {
			return fmt.Errorf("name a namespace (is another demo kept running?): %w", err)
		}
		names = append(names, name)
		return nil
	}
	if err := pin(w.Node.NS, "tierwall-node"); err != nil {
		return names, err
	}
	for _, h := range w.Hosts {
		if err := pin(h.NS, pinName(h.Name)); err != nil {
			return names, err
		}
	}
	return names, nil
}

func pinName(host string) string {
	b := []byte("tierwall-" + host)
	for i := range b {
		if b[i] == '/' {
			b[i] = '-'
		}
	}
	return string(b)
}

// Close ends servers, names and namespaces. It may be called more than once.
func (w *World) Close() error {
	var errs []error
	for _, s := range w.servers {
		errs = append(errs, s.Close())
	}
	w.servers = nil
	if w.Node == nil {
		return errors.Join(errs...)
	}
	for _, h := range w.Hosts {
		errs = append(errs, h.NS.Unpin())
	}
	errs = append(errs, w.Node.NS.Unpin(), w.Node.Close())
	w.Hosts = nil
	return errors.Join(errs...)
}
