package query

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/diag"
	"github.com/tierwall/tierwall/policy/inventory"
)

// Answer explains the connection from one end to another one, both as [Resolve] reads
// them. Exactly one of the results is set: that of a Service has its backends'.
func Answer(t *classifier.Table, inv *inventory.Snapshot, from, to string, p Port, family Family) (*Explanation, *ServiceExplanation, error) {
	src, err := Resolve(t, inv, from)
	if err != nil {
		return nil, nil, err
	}
	if src.Service != nil {
		return nil, nil, fmt.Errorf("%s is a Service: connections come from pods and addresses", from)
	}
	dst, err := ResolveDestination(t, inv, to, p)
	if err != nil {
		return nil, nil, err
	}
	if dst.Service != nil {
		e, err := ExplainService(t, inv, src, dst, p, family)
		return nil, &e, err
	}
	e, err := Explain(t, src, dst, p, family)
	return &e, nil, err
}

// Pod finds a pod by NAMESPACE/NAME.
func Pod(inv *inventory.Snapshot, name string) (*rule.Endpoint, error) {
	namespace, pod, ok := strings.Cut(name, "/")
	if !ok {
		return nil, fmt.Errorf("pod %q: want NAMESPACE/NAME", name)
	}
	pods := inv.World("").Endpoints
	names := make([]string, len(pods))
	for i := range pods {
		if e := &pods[i]; e.Namespace == namespace && e.Name == pod {
			return e, nil
		}
		names[i] = PodName(&pods[i])
	}
	return nil, fmt.Errorf("no pod %s%s", name, diag.Among(name, names))
}

// ParsePorts parses ports and drops repetitions.
func ParsePorts(texts []string) ([]Port, error) {
	var out []Port
	for _, s := range texts {
		p, err := ParsePort(s)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	return out, nil
}

// ParseFamily reads "4" or "6"; "" is any.
func ParseFamily(s string) (Family, error) {
	switch s {
	case "":
		return AnyFamily, nil
	case "4":
		return IPv4, nil
	case "6":
		return IPv6, nil
	}
	return AnyFamily, errors.New("want 4 or 6")
}
