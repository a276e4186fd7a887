package query

import (
	"fmt"

	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/diag"
)

// CheckPort refuses a port name that none of the pods has for the protocol: a
// verdict about it would be one about a port nobody can connect to.
func CheckPort(pods []rule.Endpoint, p Port) error {
	if p.Name == "" {
		return nil
	}
	var known []string
	for i := range pods {
		for _, np := range pods[i].Ports {
			if np.Name == "" {
				continue
			}
			if np.Name == p.Name && np.Proto == p.Proto {
				return nil
			}
			known = append(known, np.Name+"/"+np.Proto.String())
		}
	}
	return fmt.Errorf("no pod has a port named %s/%s%s", p.Name, p.Proto, diag.Among(p.Name+"/"+p.Proto.String(), known))
}
