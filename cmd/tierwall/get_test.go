package main

import (
	"encoding/json"
	"strings"
	"testing"
)

// The listing of Antrea's document, APPLIED-TO apart: its identifiers come from
// subjects the document does not show, ours are equal where its are. Its SOURCE of the namespaced policy lacks the namespace, which its own
// description of the column and antctl have.
func TestGetPoliciesAntctl(t *testing.T) {
	const document = `NAME                                 APPLIED-TO                           RULES SOURCE                                 TIER-PRIORITY PRIORITY
4c504456-9158-4838-bfab-f81665dfae12 85b88ddb-b474-5b44-93d3-c9192c09085e 1     AntreaClusterNetworkPolicy:acnp-1      250           1
41e510e0-e430-4606-b4d9-261424184fba e36f8beb-9b0b-5b49-b1b7-5c5307cddd83 1     AntreaClusterNetworkPolicy:acnp-2      250           2
819b8482-ede5-4423-910c-014b731fdba6 bb6711a1-87c7-5a15-9a4a-71bf49a78056 2     AntreaNetworkPolicy:default/anp-10     250           10
4d18e031-f05a-48f6-bd91-0197b556ccca e216c104-770c-5731-bfd3-ff4ccbc38c39 2     K8sNetworkPolicy:default/test-1        <NONE>        <NONE>
c547002a-d8c7-40f1-bdd1-8eb6d0217a67 e216c104-770c-5731-bfd3-ff4ccbc38c39 1     K8sNetworkPolicy:default/test-2        <NONE>        <NONE>
aac8b8bc-f3bf-4c41-b6e0-2af1863204eb bb6711a1-87c7-5a15-9a4a-71bf49a78056 3     AntreaClusterNetworkPolicy:baseline    253           10
`
	r := tierwall(t, "", "get", "policies", "-m", "testdata/antctl", "--sort-by", "effectivePriority")
	if r.code != 0 {
		t.Fatalf("exit code %d: %s", r.code, r.err)
	}
	got, want := fields(r.out), fields(document)
	if len(got) != len(want) {
		t.Fatalf("got\n%s", r.out)
	}
	ids, theirs := map[string]string{}, map[string]string{}
	for i := range want {
		for j := range want[i] {
			if i > 0 && j == 1 {
				a, b := got[i][j], want[i][j]
				if len(a) != len(b) || ids[b] != "" && ids[b] != a || theirs[a] != "" && theirs[a] != b {
					t.Errorf("line %d: %s for %s", i, a, b)
				}
				ids[b], theirs[a] = a, b
			} else if got[i][j] != want[i][j] { // S2-66, S2-119
				t.Errorf("line %d: got %q, want %q", i, got[i][j], want[i][j])
			}
		}
	}
	// The columns begin where the document's do, the last two aside: the longest
	// SOURCE it shows is shorter than the column.
	for i, line := range strings.Split(strings.TrimSpace(r.out), "\n") {
		d := strings.Split(document, "\n")[i]
		for j := 0; j < 4; j++ {
			if a, b := strings.Index(line, " "+got[i][j]+" "), strings.Index(d, " "+want[i][j]+" "); a != b {
				t.Errorf("line %d: column %d begins at %d, want %d", i, j, a, b)
			}
		}
	}
}

func fields(table string) [][]string {
	var out [][]string
	for _, line := range strings.Split(strings.TrimSpace(table), "\n") {
		out = append(out, strings.Fields(line))
	}
	return out
}

// Policies of every API in the one order of the bands.
func TestGetPoliciesEveryAPI(t *testing.T) {
	r := tierwall(t, "", "get", "policies", "-m", "testdata/every-api", "-o", "wide")
	if r.code != 0 {
		t.Fatalf("exit code %d: %s", r.code, r.err)
	}
	golden(t, "get-every-api.txt", r.out)
}

func TestGetPoliciesJSON(t *testing.T) {
	r := tierwall(t, "", "get", "policies", "-m", "testdata/antctl", "-o", "json")
	var doc struct {
		Policies []struct {
			Name, UID, Source, AppliedTo, Band, Stage string
			Subjects                                  []string
			Rules                                     int
			TierPriority                              *int
			Priority                                  *float64
		}
	}
	if err := json.Unmarshal([]byte(r.out), &doc); err != nil || len(doc.Policies) != 6 {
		t.Fatalf("%v: %s", err, r.out)
	}
	if p := doc.Policies[0]; p.Name != "acnp-1" || p.Band != "antrea-lower" || p.Stage != "enforce" || *p.TierPriority != 250 || *p.Priority != 1 ||
		len(p.Subjects) != 1 || p.AppliedTo == "" {
		t.Errorf("got %+v", p)
	}
	if p := doc.Policies[3]; p.Source != "K8sNetworkPolicy:default/test-1" || p.TierPriority != nil || p.Priority != nil || p.Rules != 2 {
		t.Errorf("got %+v", p)
	}
}

func TestGetPoliciesByName(t *testing.T) {
	r := tierwall(t, "", "get", "policies", "-m", "testdata/antctl", "--sort-by", "name", "-o", "json")
	var doc struct{ Policies []struct{ Name string } }
	if err := json.Unmarshal([]byte(r.out), &doc); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, p := range doc.Policies {
		names = append(names, p.Name)
	}
	if got := strings.Join(names, " "); got != "acnp-1 acnp-2 baseline anp-10 test-1 test-2" {
		t.Errorf("got %s", got)
	}
}

// Every policy about a pod, strongest first; also one that only isolates.
func TestGetPoliciesOfPod(t *testing.T) {
	const world = "apiVersion: v1\nkind: Pod\nmetadata: {name: web, namespace: shop, labels: {app: web}}\nspec: {containers: [{name: c, image: i}]}\nstatus: {phase: Running, podIP: 10.0.0.1}\n---\n" +
		"apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: web, namespace: shop}\nspec: {podSelector: {matchLabels: {app: web}}}\n---\n" +
		"apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: db, namespace: shop}\nspec: {podSelector: {matchLabels: {app: db}}}\n---\n" +
		"apiVersion: crd.antrea.io/v1beta1\nkind: ClusterNetworkPolicy\nmetadata: {name: base}\nspec: {tier: baseline, priority: 1, appliedTo: [{namespaceSelector: {}}], ingress: [{action: Drop}]}\n---\n" +
		"apiVersion: crd.antrea.io/v1beta1\nkind: ClusterNetworkPolicy\nmetadata: {name: first}\nspec: {priority: 1, appliedTo: [{podSelector: {matchLabels: {app: web}}}], ingress: [{action: Drop}]}\n"
	r := tierwall(t, world, "get", "policies", "-m", "-", "--pod", "shop/web")
	var got []string
	for _, row := range fields(r.out)[1:] {
		got = append(got, row[0])
	}
	if strings.Join(got, " ") != "first web base" { // S1-39
		t.Errorf("got %s%s", r.out, r.err)
	}
	for _, pod := range []string{"wbe", "shop/none"} {
		if r := tierwall(t, world, "get", "policies", "-m", "-", "--pod", pod); r.code != 2 || !strings.Contains(r.err, "--pod") {
			t.Errorf("%s: exit code %d: %s", pod, r.code, r.err)
		}
	}
}

func TestGetMistakes(t *testing.T) {
	for args, want := range map[string]string{
		"get":          "say what to get",
		"get policies": "--manifests is not given, and no cluster is known",
		"get pods":     "unknown command",
		"get policies -m " + quickstart + " -o txt":        "want table, wide, json",
		"get policies -m " + quickstart + " --sort-by age": "want effectivePriority, name",
	} {
		if r := tierwall(t, "", strings.Fields(args)...); r.code != 2 || !strings.Contains(r.err, want) {
			t.Errorf("%s: exit code %d, %s", args, r.code, r.err)
		}
	}
	if r := tierwall(t, "", "get", "policies", "-m", broken); r.code != 1 {
		t.Errorf("broken manifests: exit code %d", r.code)
	}
}

// No policies is an answer: the header, an empty list.
func TestGetNoPolicies(t *testing.T) {
	const pod = "apiVersion: v1\nkind: Namespace\nmetadata: {name: n}\n"
	if r := tierwall(t, pod, "get", "policies", "-m", "-"); r.code != 0 || strings.Count(r.out, "\n") != 1 {
		t.Errorf("exit code %d: %s%s", r.code, r.out, r.err)
	}
	if r := tierwall(t, pod, "get", "policies", "-m", "-", "-o", "json"); !strings.Contains(r.out, `"policies": []`) {
		t.Errorf("got %s", r.out)
	}
}

func decode(t *testing.T, text string, v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), v); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
}
