package agent

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/tierwall/tierwall/cmd/internal/api"
)

// hits asks the daemon and returns the lines of a policy by rule; "" is its isolation.
func (r *rig) hits(policy string) map[string]api.Hits {
	r.t.Helper()
	code, text := r.scrape("/api/v1/hits")
	if code != http.StatusOK {
		r.t.Fatalf("%d %s", code, text)
	}
	out := map[string]api.Hits{}
	for line := range strings.Lines(text) {
		var h api.Hits
		if err := json.Unmarshal([]byte(line), &h); err != nil {
			r.t.Fatal(err)
		}
		if h.Policy.Name == policy {
			out[h.Rule] = h
		}
	}
	return out
}

// TestHitsOfDaemon: a rule and an isolation that ask for no record count what they
// decide, on every dataplane, and keep it over a change of the policy around them.
func TestHitsOfDaemon(t *testing.T) {
	for _, dp := range dataplanes {
		t.Run(dp, func(t *testing.T) {
			r := newRig(t, dp)
			r.conf.Audit.All = false
			r.write("policy.yaml", allowFromX)
			r.start()
			if n := r.hits("from-x")["ingress[0]"]; n.Hits != 0 || n.Last != nil || n.Since.IsZero() {
				t.Errorf("before any packet: %+v", n)
			}
			if !r.reaches("tcp", "x/c", "y/b", 4) || r.opens("tcp", "z/a", "y/b", 4) {
				t.Fatal("policy not enforced")
			}
			before := r.hits("from-x")
			if before["ingress[0]"].Hits == 0 || before["ingress[0]"].Last == nil || before[""].Hits == 0 {
				t.Fatalf("a connection and a refused one: %+v", before)
			}
			// Another rule comes before the first, which is ingress[1] now.
			r.apply(strings.Replace(allowFromX, "  ingress:\n", "  ingress:\n  - from: [{ipBlock: {cidr: 203.0.113.7/32}}]\n", 1))
			after := r.hits("from-x")
			if after["ingress[1]"].Hits < before["ingress[0]"].Hits || after["ingress[0]"].Hits != 0 || after[""].Hits < before[""].Hits {
				t.Errorf("before %+v, after %+v", before, after)
			}
		})
	}
}
