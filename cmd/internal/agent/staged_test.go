package agent

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/tierwall/tierwall/cmd/internal/auditlog"
	"github.com/tierwall/tierwall/dataplane/audit"
)

// Policies of every API that keep x away from y/b; "@" is the place of the
// annotation.
var denials = []struct{ policy, text string }{
	{"NetworkPolicy y/staged", `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: staged, namespace: y@}
spec:
  podSelector: {matchLabels: {pod: b}}
  ingress: [{from: [{namespaceSelector: {matchLabels: {ns: z}}}]}]
`},
	{"AdminNetworkPolicy staged-kep", `
apiVersion: policy.networking.k8s.io/v1alpha1
kind: AdminNetworkPolicy
metadata: {name: staged-kep@}
spec:
  priority: 5
  subject: {namespaceAndPodSelector: {namespaceSelector: {matchLabels: {ns: y}}, podSelector: {matchLabels: {pod: b}}}}
  ingress: [{action: Deny, from: [{namespaces: {namespaceSelector: {matchLabels: {ns: x}}}}], l4Selector: {allPorts: true}}]
`},
	{"AdminNetworkPolicy staged-anp", `
apiVersion: policy.networking.k8s.io/v1alpha1
kind: AdminNetworkPolicy
metadata: {name: staged-anp@}
spec:
  priority: 5
  subject: {pods: {namespaceSelector: {matchLabels: {ns: y}}, podSelector: {matchLabels: {pod: b}}}}
  ingress: [{action: Deny, from: [{namespaces: {matchLabels: {ns: x}}}]}]
`},
	{"BaselineAdminNetworkPolicy default", `
apiVersion: policy.networking.k8s.io/v1alpha1
kind: BaselineAdminNetworkPolicy
metadata: {name: default@}
spec:
  subject: {pods: {namespaceSelector: {matchLabels: {ns: y}}, podSelector: {matchLabels: {pod: b}}}}
  ingress: [{action: Deny, from: [{namespaces: {matchLabels: {ns: x}}}]}]
`},
	{"ClusterNetworkPolicy staged-v1alpha2 (policy.networking.k8s.io)", `
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: staged-v1alpha2@}
spec:
  tier: Admin
  priority: 5
  subject: {pods: {namespaceSelector: {matchLabels: {ns: y}}, podSelector: {matchLabels: {pod: b}}}}
  ingress: [{action: Deny, from: [{namespaces: {matchLabels: {ns: x}}}]}]
`},
	{"ClusterNetworkPolicy staged-kep-cnp (netpol.networking.k8s.io)", `
apiVersion: netpol.networking.k8s.io/v1alpha1
kind: ClusterNetworkPolicy
metadata: {name: staged-kep-cnp@}
spec:
  appliedTo: {namespaceSelector: {matchLabels: {ns: y}}, podSelector: {matchLabels: {pod: b}}}
  ingress: [{action: Deny, from: [{namespaceSelector: {matchLabels: {ns: x}}}]}]
`},
	{"ClusterDefaultNetworkPolicy staged-default", `
apiVersion: netpol.networking.k8s.io/v1alpha1
kind: ClusterDefaultNetworkPolicy
metadata: {name: staged-default@}
spec:
  appliedTo: {namespaceSelector: {matchLabels: {ns: y}}, podSelector: {matchLabels: {pod: b}}}
  ingress: [{from: [{namespaces: {scope: Self}}]}]
`},
	{"ClusterNetworkPolicy staged-acnp (crd.antrea.io)", `
apiVersion: crd.antrea.io/v1beta1
kind: ClusterNetworkPolicy
metadata: {name: staged-acnp@}
spec:
  tier: emergency
  priority: 5
  appliedTo: [{namespaceSelector: {matchLabels: {ns: y}}, podSelector: {matchLabels: {pod: b}}}]
  ingress: [{action: Drop, from: [{namespaceSelector: {matchLabels: {ns: x}}}]}]
`},
	{"NetworkPolicy y/staged-annp (crd.antrea.io)", `
apiVersion: crd.antrea.io/v1beta1
kind: NetworkPolicy
metadata: {name: staged-annp, namespace: y@}
spec:
  priority: 5
  appliedTo: [{podSelector: {matchLabels: {pod: b}}}]
  ingress: [{action: Reject, from: [{namespaceSelector: {matchLabels: {ns: x}}}]}]
`},
	{"CiliumNetworkPolicy y/staged-cilium", `
apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: staged-cilium, namespace: y@}
spec:
  endpointSelector: {matchLabels: {pod: b}}
  ingressDeny: [{fromEndpoints: [{matchLabels: {"k8s:io.kubernetes.pod.namespace": x}}]}]
`},
	{"CiliumClusterwideNetworkPolicy staged-ccnp", `
apiVersion: cilium.io/v2
kind: CiliumClusterwideNetworkPolicy
metadata: {name: staged-ccnp@}
spec:
  endpointSelector: {matchLabels: {"k8s:io.kubernetes.pod.namespace": y, pod: b}}
  ingress: [{fromEndpoints: [{matchLabels: {"k8s:io.kubernetes.pod.namespace": z}}]}]
`},
}

func withStage(text string, staged bool) string {
	if staged {
		return strings.Replace(text, "@", ", annotations: {tierwall.io/stage: audit}", 1)
	}
	return strings.Replace(text, "@", "", 1)
}

// scrape gets a page of the daemon's metrics server, which listens on the
// node's own loopback address.
func (r *rig) scrape(path string) (code int, text string) {
	r.t.Helper()
	client := http.Client{Timeout: patience, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			return r.world.Node.NS.Dial(ctx, network, netip.AddrPort{}, netip.MustParseAddrPort(addr))
		},
	}}
	resp, err := client.Get("http://" + r.conf.Metrics.Address + path)
	if err != nil {
		r.t.Fatalf("%v\n%s", err, r.logText())
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// metric returns the value of one series.
func (r *rig) metric(series string) float64 {
	r.t.Helper()
	_, text := r.scrape("/metrics")
	m := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(series) + ` (\S+)$`).FindStringSubmatch(text)
	if m == nil {
		r.t.Fatalf("no series %s in\n%s", series, text)
	}
	v, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		r.t.Fatal(err)
	}
	return v
}

// apply writes the policy and waits until it is in force.
func (r *rig) apply(text string) {
	r.t.Helper()
	before := r.metric("tierwall_policy_generation")
	r.write("policy.yaml", text)
	r.until("the new policy is in force", func() bool {
		if n := r.metric("tierwall_policy_errors"); n > 0 {
			r.t.Fatalf("refused:\n%s\n%s", text, r.logText())
		}
		return r.metric("tierwall_policy_generation") > before
	})
}

// records returns the audit records a filter selects, as of now.
func (r *rig) records(f auditlog.Filter) []audit.Record {
	r.t.Helper()
	var out []audit.Record
	err := auditlog.Read(r.t.Context(), r.conf.Audit.File, auditlog.ReadOptions{}, func(line []byte) error {
		rec, err := audit.Parse(line)
		if err != nil {
			return err
		}
		if f.Match(&rec) {
			out = append(out, rec)
		}
		return nil
	})
	if err != nil && !os.IsNotExist(err) {
		r.t.Fatal(err)
	}
	return out
}

func party(s string) []auditlog.Party { return []auditlog.Party{{Pod: s}} }

// TestStagedDenials: a policy of any API in the audit stage is evaluated and
// recorded, and refuses nothing; the same policy without the annotation does.
func TestStagedDenials(t *testing.T) {
	r := newRig(t, "auto")
	r.conf.Audit.All = false // a staged policy alone must be reason enough for a record
	r.write("policy.yaml", strings.Replace(denyYB, "namespace: y", "namespace: z", 1))
	r.start()
	for _, p := range denials {
		t.Run(p.policy, func(t *testing.T) {
			name, _, _ := strings.Cut(p.policy, " (") // filters have another way to name the group
			named := strings.Replace(name, " ", "/", 1)
			r.t = t
			r.apply(withStage(p.text, true))
			if !r.reaches("tcp", "x/a", "y/b", 4) || !r.reaches("udp", "x/a", "y/b", 6) {
				t.Error("a staged policy refuses connections")
			}
			for _, proto := range []string{"TCP", "UDP"} {
				f := auditlog.Filter{
					Stages: []string{audit.StageAudit}, Verdicts: []string{audit.WouldDrop, audit.WouldReject}, Directions: []string{"ingress"},
					Sources: party("x/a"), Dests: party("y/b"), Policies: []string{named}, Protocols: []string{proto},
				}
				r.until("there is a record of what it would have done to "+proto, func() bool { return len(r.records(f)) > 0 })
				if rec := r.records(f)[0]; rec.Connection == "" {
					t.Errorf("the record does not say that the connection passed: %+v", rec)
				}
			}
			if n := r.records(auditlog.Filter{Stages: []string{audit.StageEnforce}, Dests: party("y/b")}); len(n) > 0 {
				t.Errorf("enforced decisions were recorded that nobody asked for: %+v", n[0])
			}
			r.apply(withStage(p.text, false))
			if r.opens("tcp", "x/a", "y/b", 4) || r.opens("udp", "x/a", "y/b", 6) {
				t.Error("the enforced policy refuses nothing: the staged one proved nothing")
			}
		})
	}
	r.t = t
	if code, text := r.scrape("/readyz"); code != http.StatusOK {
		t.Errorf("/readyz: %d %s", code, text)
	}
	const series = `tierwall_audited_verdicts_total{band="networkpolicy",direction="ingress",policy="networkpolicy.networking.k8s.io/y/staged",verdict="would-drop"}`
	if n := r.metric(series); n < 2 {
		t.Errorf("%s is %g, want a TCP and a UDP connection at least", series, n)
	}
	r.stop(syscall.SIGTERM)

	staged := auditlog.NewStaged()
	events := auditlog.Events{Done: staged.Add}
	for _, rec := range r.records(auditlog.Filter{}) {
		events.Add(&rec)
	}
	events.Flush()
	report := staged.Report(-1)
	seen := map[string]auditlog.StagedPolicy{}
	for _, p := range report.Policies {
		seen[p.Policy] = p
	}
	for _, p := range denials {
		if s := seen[p.policy]; s.Deny < 2 || s.Open+s.Unknown > 0 {
			t.Errorf("the summary of %s: %+v", p.policy, s)
		}
	}
}

// TestStagedAllowance: what a staged policy would let in stays out, and the log
// says what it would have done.
func TestStagedAllowance(t *testing.T) {
	for _, dp := range dataplanes {
		t.Run(dp, func(t *testing.T) {
			r := newRig(t, dp)
			r.conf.Audit.All, r.conf.Audit.Denies, r.conf.Audit.Chain = false, true, true
			allow := `---
apiVersion: crd.antrea.io/v1beta1
kind: ClusterNetworkPolicy
metadata: {name: let-in@}
spec:
  priority: 5
  appliedTo: [{namespaceSelector: {matchLabels: {ns: y}}, podSelector: {matchLabels: {pod: b}}}]
  ingress: [{action: Allow, from: [{namespaceSelector: {matchLabels: {ns: x}}}]}]
`
			r.write("policy.yaml", denyYB+withStage(allow, true))
			r.start()
			for _, network := range []string{"tcp", "udp"} {
				for _, family := range []int{4, 6} {
					if r.opens(network, "x/a", "y/b", family) {
						t.Errorf("%s IPv%d: a staged policy opens a connection", network, family)
					}
				}
			}
			if !r.reaches("tcp", "x/a", "y/c", 4) {
				t.Error("a pod no policy selects is closed")
			}
			r.until("would-allow is recorded", func() bool {
				return len(r.records(auditlog.Filter{Verdicts: []string{audit.WouldAllow}, Policies: []string{"let-in"}, Protocols: []string{"UDP"}})) > 0
			})
			r.apply(denyYB + withStage(allow, false))
			if !r.reaches("tcp", "x/a", "y/b", 4) || r.opens("tcp", "z/a", "y/b", 4) {
				t.Error("the enforced policy does not do what the staged one promised")
			}
			r.stop(syscall.SIGTERM)
			if v, err := auditlog.Verify(t.Context(), r.conf.Audit.File, ""); err != nil || !v.OK {
				t.Errorf("the hash chain does not verify: %+v, %v", v, err)
			}

			staged := auditlog.NewStaged()
			events := auditlog.Events{Done: staged.Add}
			for _, rec := range r.records(auditlog.Filter{}) {
				events.Add(&rec)
			}
			events.Flush()
			report := staged.Report(-1)
			if len(report.Policies) != 1 || report.Policies[0].Open < 4 || report.Policies[0].Deny+report.Policies[0].Unknown > 0 {
				t.Errorf("the summary: %s", fmt.Sprintf("%+v", report))
			}
		})
	}
}
