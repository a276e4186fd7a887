package cli

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/decode"
	"github.com/tierwall/tierwall/policy/diag"
	"github.com/tierwall/tierwall/policy/inventory"
	"github.com/tierwall/tierwall/policy/lower"
)

const (
	kubernetesDeny = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: deny, namespace: x}
spec: {podSelector: {}}
---
`
	antreaDeny = `
apiVersion: crd.antrea.io/v1beta1
kind: NetworkPolicy
metadata: {name: deny, namespace: x}
spec: {tier: missing, priority: 1, appliedTo: [{podSelector: {}}], ingress: [{action: Drop, from: [{podSelector: {}}]}]}
---
`
	kepPolicy = `
apiVersion: policy.networking.k8s.io/v1alpha1
kind: AdminNetworkPolicy
metadata: {name: kep}
spec: {priority: 5, subject: {namespaceSelector: {}}, ingress: [{action: Deny, l4Selector: {allPorts: true}, from: [{namespaces: {namespaceSelector: {}}}]}]}
---
`
	releasedPolicy = `
apiVersion: policy.networking.k8s.io/v1alpha1
kind: AdminNetworkPolicy
metadata: {name: released}
spec: {priority: 5, subject: {namespaces: {}}, ingress: [{action: Allow, from: [{namespaces: {}}]}]}
---
`
)

func objects(t *testing.T, file, yaml string) []*api.Object {
	t.Helper()
	d := decode.Decoder{Kinds: lower.Kinds()}
	objs, found := d.Decode(file, []byte(yaml))
	if err := found.Err(); err != nil {
		t.Fatal(err)
	}
	return objs
}

// cluster is what Live returns for a cluster with these policies.
func cluster(t *testing.T, yaml string) *Input {
	t.Helper()
	snap := &inventory.Snapshot{Namespaces: []inventory.Namespace{{Name: "x"}}}
	in, err := fromCluster(lower.Options{}, "", objects(t, "", yaml), snap, diag.List{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return in
}

// kinds lists the API groups of objects.
func groups(objs []*api.Object) string {
	var out []string
	for _, o := range objs {
		out = append(out, o.Kind.Group)
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// a policy with an error leaves the one alone that has its kind and name in
// another API.
func TestTwoAPIsOneName(t *testing.T) {
	in := cluster(t, kubernetesDeny+antreaDeny)
	if in.Table == nil || len(in.Set.Isolations) != 1 || groups(in.Objects) != "networking.k8s.io" {
		t.Errorf("in force are %q, with %d isolations", groups(in.Objects), len(in.Set.Isolations))
	}
	if e := in.Findings.Errors; len(e) != 1 || !strings.HasPrefix(e[0].String(), "NetworkPolicy x/deny (crd.antrea.io): spec.tier: ") {
		t.Errorf("errors: %v", e)
	}
	files := func(yaml string) *Input { return &Input{Objects: objects(t, "new.yaml", yaml), unfit: true} }

	// A file with the Kubernetes policy is not blamed for the Antrea one.
	out, err := in.WithFiles(files(kubernetesDeny), lower.Options{})
	if err != nil || len(out.Findings.Errors) != 0 || out.Table == nil || len(out.Set.Isolations) != 1 {
		t.Errorf("the Kubernetes policy in a file: %v, %v, %d isolations", err, out.Findings.Errors, len(out.Set.Isolations))
	}
	both := cluster(t, kubernetesDeny)
	out, err = both.WithFiles(files(antreaDeny), lower.Options{})
	if err != nil || len(out.Findings.Errors) != 1 || !strings.Contains(out.Findings.Errors[0].String(), "NetworkPolicy x/deny (crd.antrea.io): spec.tier") {
		t.Errorf("the Antrea policy in a file: %v, %v", err, out.Findings.Errors)
	}
}

// A policy that the cluster has and that cannot be enforced leaves what is asked
// about files alone: they are judged among the others.
func TestFilesBesideAWrongPolicy(t *testing.T) {
	in := cluster(t, antreaDeny+strings.Replace(kubernetesDeny, "name: deny", "name: other", 1))
	out, err := in.WithFiles(&Input{Objects: objects(t, "new.yaml", kubernetesDeny), unfit: true}, lower.Options{})
	if err != nil || len(out.Findings.Errors) != 0 || len(out.Set.Isolations) != 2 {
		t.Errorf("%v, %v, %d isolations; want the cluster's and the file's", err, out.Findings.Errors, len(out.Set.Isolations))
	}
}

// what several policies do wrong together is an error of all, whatever their
// number and whoever has them: no answer is made up.
func TestMixedDialects(t *testing.T) {
	many := releasedPolicy
	for i := range 12 {
		many += strings.Replace(kepPolicy, "name: kep", fmt.Sprint("name: kep-", i), 1)
	}
	in := cluster(t, many+kubernetesDeny)
	if in.Table != nil || len(in.Findings.Errors) != 1 || len(in.Set.Rules)+len(in.Set.Isolations) != 0 {
		t.Errorf("a mixture: table %v, errors %v", in.Table, in.Findings.Errors)
	}
	for what, both := range map[string][2]string{"released": {kepPolicy, releasedPolicy}, "kep": {releasedPolicy, kepPolicy}} {
		out, err := cluster(t, both[0]).WithFiles(&Input{Objects: objects(t, "new.yaml", both[1]), unfit: true}, lower.Options{})
		if err != nil || out.Table != nil || len(out.Findings.Errors) != 1 || !strings.Contains(out.Findings.Errors[0].String(), "AdminNetworkPolicy released") {
			t.Errorf("a file with a %s policy: %v, %v", what, err, out.Findings.Errors)
		}
	}
}
