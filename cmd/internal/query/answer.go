package query

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/assure"
	"github.com/tierwall/tierwall/policy/diag"
	"github.com/tierwall/tierwall/policy/inventory"
)

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

// PodsOf finds the pods of an end, see [assure.EndForms]; a Service's are those it selects.
func PodsOf(t *classifier.Table, inv *inventory.Snapshot, text, namespace string) ([]*rule.Endpoint, error) {
	e, err := assure.NewWorld(inv, t).End(text, namespace)
	switch {
	case err != nil:
		return nil, err
	case e.Service != nil:
		return nil, fmt.Errorf("%s is a Service: policies are about pods, name them or their workload", text)
	case len(e.Outside) > 0:
		return nil, fmt.Errorf("%s is no pod: policies are about pods", text)
	}
	return e.Pods, nil
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
