package query

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/diag"
	"github.com/tierwall/tierwall/policy/inventory"
)

// Target is one end of a question: a pod, an address or a Service.
type Target struct {
	Name    string // "namespace/pod", an address, or "svc/namespace/name"
	Addrs   []netip.Addr
	Service *inventory.Service // set for a Service; Addrs is then empty
	Pod     *rule.Endpoint     // set for a pod
	At      netip.Addr         // the address of the Service that was asked about; invalid if it was its name
	Notes   []string           // what the answer has to say besides
}

// Resolve reads POD ("namespace/pod", or "pod" when only one namespace has it),
// an IP address, or "svc/NAMESPACE/NAME". A pod's address names the pod, a
// Service's address the Service.
func Resolve(t *classifier.Table, inv *inventory.Snapshot, s string) (Target, error) {
	services := inv.Services
	if a, err := netip.ParseAddr(s); err == nil {
		a = a.Unmap().WithZone("")
		for i := range services {
			if slices.Contains(services[i].ClusterIPs, a) {
				s := serviceTarget(&services[i])
				s.At = a
				return s, nil
			}
		}
		if e := t.Endpoint(flow.AddrFrom(a)); e != nil {
			return Target{Name: PodName(e), Addrs: []netip.Addr{a}, Pod: e}, nil
		}
		return Target{Name: a.String(), Addrs: []netip.Addr{a}}, nil
	}
	parts := strings.Split(s, "/")
	if parts[0] == "svc" && len(parts) > 1 {
		if len(parts) != 3 {
			return Target{}, fmt.Errorf("%q: want svc/NAMESPACE/NAME", s)
		}
		var known []string
		for i := range services {
			if services[i].Namespace == parts[1] && services[i].Name == parts[2] {
				return serviceTarget(&services[i]), nil
			}
			known = append(known, "svc/"+services[i].Namespace+"/"+services[i].Name)
		}
		return Target{}, fmt.Errorf("no Service %s/%s%s", parts[1], parts[2], diag.Among(s, known))
	}
	if len(parts) > 2 || s == "" {
		return Target{}, fmt.Errorf("%q: want NAMESPACE/POD, an IP address or svc/NAMESPACE/NAME", s)
	}
	pods := t.World().Endpoints
	var found []*rule.Endpoint
	var known []string
	for i := range pods {
		name := PodName(&pods[i])
		if name == s || (len(parts) == 1 && pods[i].Name == s) {
			found = append(found, &pods[i])
		}
		known = append(known, name)
	}
	switch {
	case len(found) == 0 && waiting(inv, s):
		return Target{}, fmt.Errorf("pod %s has no address (it waits for one, or has ended): no packet can come from it or reach it", s)
	case len(found) == 0:
		return Target{}, fmt.Errorf("no pod %s%s", s, diag.Among(s, known))
	case len(found) > 1:
		names := make([]string, len(found))
		for i, e := range found {
			names[i] = PodName(e)
		}
		return Target{}, fmt.Errorf("pod %s is in several namespaces: say %s", s, strings.Join(names, " or "))
	}
	return Target{Name: PodName(found[0]), Addrs: found[0].Addrs, Pod: found[0]}, nil
}

// waiting reports whether the manifests have the pod, without an address.
func waiting(inv *inventory.Snapshot, name string) bool {
	return slices.ContainsFunc(inv.Pods, func(p inventory.Pod) bool {
		return len(p.IPs) == 0 && (p.Namespace+"/"+p.Name == name || p.Name == name)
	})
}

func serviceTarget(s *inventory.Service) Target {
	return Target{Name: "svc/" + s.Namespace + "/" + s.Name, Service: s}
}
