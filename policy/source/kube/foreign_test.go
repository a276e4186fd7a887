package kube_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/tierwall/tierwall/policy/inventory"
	"github.com/tierwall/tierwall/policy/source/kube"

	"github.com/tierwall/tierwall/policy/api"
)

const calicoPolicy = "apiVersion: crd.projectcalico.org/v1\nkind: GlobalNetworkPolicy\nmetadata: {name: NAME}\nspec: {selector: all()}"

// brief lists kinds as "Kind.group used".
func brief(kinds []kube.NotUnderstood) string {
	var out []string
	for i := range kinds {
		out = append(out, fmt.Sprintf("%s.%s %d %s", kinds[i].Kind, kinds[i].Group, kinds[i].Objects, kinds[i].Used()))
	}
	return strings.Join(out, ", ")
}

// lockedBuffer is a log that is read while it is written.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// TestKindsNotUnderstoodAreSkippedSilently: policy kinds of other projects are named
// in the status, in the findings and, once, in the log.
func TestKindsNotUnderstoodAreSkippedSilently(t *testing.T) {
	var log lockedBuffer
	r := newRig(t, func(c *kube.Config, s *apiserver) {
		c.Logger = slog.New(slog.NewTextHandler(&log, nil))
		for _, resource := range []string{"crd.projectcalico.org/v1/globalnetworkpolicies", "crd.projectcalico.org/v1/tiers", "example.org/v1/teamnetworkpolicies", "example.org/v1/widgets"} {
			s.serve(t, resource, true)
		}
		s.forbidden["example.org/v1/teamnetworkpolicies"] = true
		s.apply(t, strings.Replace(calicoPolicy, "NAME", "a", 1))
		s.apply(t, strings.Replace(calicoPolicy, "NAME", "b", 1))
		s.apply(t, "apiVersion: crd.projectcalico.org/v1\nkind: Tier\nmetadata: {name: default}\nspec: {}")
	})
	r.load("start", func(_ []*api.Object, s *inventory.Snapshot) bool { return len(s.Pods) == 1 })
	const want = "GlobalNetworkPolicy.crd.projectcalico.org 2 yes, Tier.crd.projectcalico.org 1 yes, TeamNetworkPolicy.example.org -1 unknown"
	if got := brief(r.Status().NotUnderstood); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	_, _, found := r.Load(t.Context())
	var said []string
	for _, d := range found.Warnings {
		said = append(said, d.String())
	}
	warnings := strings.Join(said, "\n")
	for _, part := range []string{
		"GlobalNetworkPolicy: the cluster has 2 objects of kind GlobalNetworkPolicy of crd.projectcalico.org (Calico), which Tierwall does not enforce (rewrite it as",
		"kind TeamNetworkPolicy of example.org is installed, and Tierwall does not enforce it; whether there are objects could not be read",
	} {
		if !strings.Contains(warnings, part) {
			t.Errorf("no %q in\n%s", part, warnings)
		}
	}
	// A Tier decides nothing by itself.
	if strings.Contains(warnings, "Tier") && strings.Contains(warnings, "kind Tier") || len(found.Notes) != 1 {
		t.Errorf("warnings %s, notes %v", warnings, found.Notes)
	}
	// The first object of a kind that is installed later.
	r.api.serve(t, "crd.projectcalico.org/v1/networkpolicies", true)
	r.load("installed", func([]*api.Object, *inventory.Snapshot) bool { return len(r.Status().NotUnderstood) == 4 })
	if n := r.Status().NotUnderstood[1]; n.Kind != "NetworkPolicy" || n.Used() != "no" || n.Matters() {
		t.Errorf("%+v", n)
	}
	for kind, times := range map[string]int{"GlobalNetworkPolicy": 1, "NetworkPolicy": 1, "TeamNetworkPolicy": 1, "Widget": 0} {
		if n := strings.Count(log.String(), "kind="+kind+" "); n != times {
			t.Errorf("%s is in the log %d times\n%s", kind, n, log.String())
		}
	}
	r.api.serve(t, "crd.projectcalico.org/v1/globalnetworkpolicies", false)
	r.load("removed", func([]*api.Object, *inventory.Snapshot) bool {
		return !strings.Contains(brief(r.Status().NotUnderstood), "GlobalNetworkPolicy")
	})
}

// TestReadNamesKindsNotUnderstood: as the command line reads a cluster.
func TestReadNamesKindsNotUnderstood(t *testing.T) {
	s := newAPIServer(t)
	s.apply(t, cluster)
	for _, resource := range []string{"crd.projectcalico.org/v1/globalnetworkpolicies", "projectcalico.org/v3/globalnetworkpolicies", "example.org/v1/teamnetworkpolicies", "example.org/v1/widgets"} {
		s.serve(t, resource, true)
	}
	s.apply(t, "apiVersion: projectcalico.org/v3\nkind: GlobalNetworkPolicy\nmetadata: {name: a}")
	_, _, found, _, err := kube.Read(t.Context(), &rest.Config{Host: s.URL}, kube.ReadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(found.Warnings) != 1 || !strings.Contains(found.Warnings[0].Message, "1 object of kind GlobalNetworkPolicy of projectcalico.org (Calico)") ||
		len(found.Notes) != 1 || !strings.Contains(found.Notes[0].Message, "kind TeamNetworkPolicy of example.org is installed") {
		t.Errorf("warnings %v, notes %v", found.Warnings, found.Notes)
	}
}
