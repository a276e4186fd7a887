package main

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/tierwall/tierwall/cmd/internal/cli"
)

const planWorld = `apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, labels: {app: web}}
spec: {containers: [{name: c, image: i}]}
status: {phase: Running, podIP: 10.0.0.1}
---
apiVersion: v1
kind: Pod
metadata: {name: db, namespace: shop, labels: {app: db}}
spec: {containers: [{name: c, image: i}]}
status: {phase: Running, podIP: 10.0.0.2}
---
apiVersion: crd.antrea.io/v1beta1
kind: Tier
metadata: {name: early}
spec: {priority: 10}
---
apiVersion: crd.antrea.io/v1beta1
kind: ClusterNetworkPolicy
metadata: {name: no-ssh}
spec: {tier: early, priority: 1, appliedTo: [{podSelector: {matchLabels: {app: db}}}], ingress: [{action: Drop, ports: [{protocol: TCP, port: 22}], from: [{podSelector: {}}]}]}
---
apiVersion: policy.networking.k8s.io/v1alpha1
kind: AdminNetworkPolicy
metadata: {name: allow}
spec: {priority: 1, subject: {namespaces: {}}, ingress: [{action: Allow, from: [{namespaces: {}}]}]}
`

// S0-65: before policies go, with their definition, an older version or Tierwall
// itself, one can learn what that opens.
func TestPolicyRemovalWithoutAWarning(t *testing.T) {
	r := tierwall(t, planWorld, "cleanup", "--plan", "-m", "-", "-o", "json")
	if r.code != cli.ExitFinding {
		t.Fatalf("%+v", r)
	}
	var answer struct {
		Plan []removal `json:"plan"`
	}
	if err := json.Unmarshal([]byte(r.out), &answer); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range answer.Plan {
		line := p.What + " " + strings.Join(p.Kinds, ",") + " lost " + strings.Join(p.AlsoLost, ",") + ":"
		for _, o := range p.Opens {
			line += " " + o.From.Name + ">" + o.To.Name + " " + strings.Join(o.Ports, ",") + " by " + strings.Join(o.DeniedBy, ",")
		}
		got = append(got, line)
		if !p.Complete {
			t.Errorf("%s is not complete", line)
		}
	}
	const ssh = " shop/web>shop/db 22/TCP by ClusterNetworkPolicy no-ssh (crd.antrea.io)"
	want := []string{
		"kind AdminNetworkPolicy.policy.networking.k8s.io lost :",
		"kind ClusterNetworkPolicy.crd.antrea.io lost :" + ssh,
		"kind Tier.crd.antrea.io lost ClusterNetworkPolicy no-ssh (crd.antrea.io):" + ssh, // it needs the tier
		"daemon  lost :" + ssh,
	}
	if !slices.Equal(got, want) {
		t.Errorf("S0-65: got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	r = tierwall(t, planWorld, "cleanup", "--plan", "-m", "-")
	for _, part := range []string{
		"without AdminNetworkPolicy.policy.networking.k8s.io (1 policy): nothing opens\n",
		"without Tier.crd.antrea.io (1 policy): connections open between 1 pair of workloads\n  ClusterNetworkPolicy no-ssh (crd.antrea.io) is refused then",
		"without Tierwall at all (3 policies): connections open between 1 pair",
		"shop shop 1     shop/web -> shop/db 22/TCP ClusterNetworkPolicy no-ssh (crd.antrea.io)",
	} {
		if r.code != cli.ExitFinding || !strings.Contains(r.out, part) {
			t.Errorf("no %q in %+v", part, r)
		}
	}
	if r := tierwall(t, planWorld, "cleanup", "--plan", "-m", "-", "--without", "AdminNetworkPolicy.policy.networking.k8s.io"); r.code != 0 || !strings.Contains(r.out, "nothing opens") {
		t.Errorf("%+v", r)
	}
	if r := tierwall(t, planWorld, "cleanup", "--plan", "-m", "-", "-n", "other"); r.code != 0 {
		t.Errorf("another namespace: %+v", r)
	}
	for _, args := range [][]string{
		{"--plan", "-m", "-", "--without", "Nonsense.example.org"}, {"--plan", "--force", "-m", "-"}, {"-m", "-"}, {"--plan"},
	} {
		if r := tierwall(t, planWorld, append([]string{"cleanup"}, args...)...); r.code != cli.ExitUsage || r.out != "" {
			t.Errorf("%v: %+v", args, r)
		}
	}
}

// Of a cluster, with what of it could not be read.
func TestPlanOfACluster(t *testing.T) {
	config := kubeconfigOf(t, &apiServer{forbidden: []string{"/api/v1/nodes"}})
	r := tierwall(t, "", "cleanup", "--plan", "--kubeconfig", config, "-o", "json")
	for _, part := range []string{`"name": "other/scan"`, `"deniedBy": [`, `"NetworkPolicy shop/db"`, `"incomplete"`} {
		if r.code != cli.ExitFinding || !strings.Contains(r.out, part) {
			t.Errorf("no %s: %+v", part, r)
		}
	}
}
