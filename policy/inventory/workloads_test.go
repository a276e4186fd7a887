package inventory_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/tierwall/tierwall/policy/decode"
	"github.com/tierwall/tierwall/policy/inventory"
)

func workloads(t *testing.T, text string) (*inventory.Snapshot, []string) {
	t.Helper()
	dec := decode.Decoder{Workloads: true}
	objs, found := dec.Decode("f.yaml", []byte(text))
	if err := found.Err(); err != nil {
		t.Fatal(err)
	}
	s, more := inventory.Build(objs, inventory.Options{AssignAddresses: true, Workloads: true})
	if err := more.Err(); err != nil {
		t.Fatal(err)
	}
	var warnings []string
	for _, w := range more.Warnings {
		warnings = append(warnings, w.Message)
	}
	return s, warnings
}

const template = `template: {metadata: {labels: {app: web}}, spec: {serviceAccountName: sa, containers: [{name: c, image: i, ports: [{name: http, containerPort: 8080}]}]}}`

func object(kind, name, spec string) string {
	group := "apps/v1"
	switch kind {
	case "Job", "CronJob":
		group = "batch/v1"
	case "PodTemplate", "ReplicationController", "Node", "Pod":
		group = "v1"
	}
	return "---\napiVersion: " + group + "\nkind: " + kind + "\nmetadata: {name: " + name + ", namespace: shop}\n" + spec + "\n"
}

func names(s *inventory.Snapshot) []string {
	var out []string
	for _, p := range s.Pods {
		out = append(out, p.Workload.Kind+"/"+p.Workload.Name+":"+p.Name)
	}
	return out
}

func TestWorkloadsBecomePods(t *testing.T) {
	selector := "selector: {matchLabels: {app: web}}, "
	for _, c := range []struct {
		what, text string
		want       []string
	}{
		{"stated replicas", object("Deployment", "web", "spec: {replicas: 2, "+selector+template+"}"), []string{"Deployment/web:web-0", "Deployment/web:web-1"}},
		{"one where none are stated", object("Deployment", "web", "spec: {"+selector+template+"}"), []string{"Deployment/web:web-0"}},
		{"one of a workload that is scaled down", object("ReplicaSet", "web", "spec: {replicas: 0, "+selector+template+"}"), []string{"ReplicaSet/web:web-0"}},
		{"numbers of a StatefulSet", object("StatefulSet", "db", "spec: {serviceName: db, replicas: 2, ordinals: {start: 3}, "+selector+template+"}"), []string{"StatefulSet/db:db-3", "StatefulSet/db:db-4"}},
		{"Job", object("Job", "once", "spec: {parallelism: 2, "+template+"}"), []string{"Job/once:once-0", "Job/once:once-1"}},
		{"CronJob", object("CronJob", "nightly", "spec: {schedule: '0 1 * * *', jobTemplate: {spec: {"+template+"}}}"), []string{"CronJob/nightly:nightly-0"}},
		{"finished Job", object("Job", "once", "spec: {"+template+"}\nstatus: {conditions: [{type: Complete, status: 'True'}]}"), nil},
		{"bare template", object("PodTemplate", "t", template), []string{"PodTemplate/t:t-0"}},
		{"ReplicationController", object("ReplicationController", "old", "spec: {replicas: 2, "+template+"}"), []string{"ReplicationController/old:old-0", "ReplicationController/old:old-1"}},
		{"DaemonSet without nodes", object("DaemonSet", "log", "spec: {"+selector+template+"}"), []string{"DaemonSet/log:log-0"}},
	} {
		s, warnings := workloads(t, c.text)
		if got := names(s); !slices.Equal(got, c.want) {
			t.Errorf("%s: got %v, want %v", c.what, got, c.want)
		}
		for i := range s.Pods {
			p := &s.Pods[i]
			if p.Labels["app"] != "web" || p.ServiceAccount != "sa" || len(p.Ports) != 1 || len(p.IPs) != 2 || !p.MadeUp || !inventory.SyntheticIPv4.Contains(p.IPs[0]) {
				t.Errorf("%s: %+v", c.what, *p)
			}
		}
		if shown := slices.ContainsFunc(warnings, func(w string) bool { return strings.Contains(w, "made-up names and addresses") }); shown != (len(c.want) > 0) {
			t.Errorf("%s: warnings %q", c.what, warnings)
		}
	}
}

func TestDaemonSetHasAPodOnEveryNode(t *testing.T) {
	node := func(name, labels string) string {
		return "---\napiVersion: v1\nkind: Node\nmetadata: {name: " + name + ", labels: " + labels + "}\n"
	}
	s, _ := workloads(t, node("n2", "{disk: ssd}")+node("n1", "{disk: ssd}")+node("n3", "{}")+
		object("DaemonSet", "log", "spec: {selector: {matchLabels: {app: web}}, template: {metadata: {labels: {app: web}}, spec: {nodeSelector: {disk: ssd}, containers: [{name: c, image: i}]}}}"))
	if len(s.Pods) != 2 || s.Pods[0].Node != "n1" || s.Pods[1].Node != "n2" {
		t.Errorf("got %+v", s.Pods)
	}
}

func TestStatefulSetPodsHaveTheirLabels(t *testing.T) {
	s, _ := workloads(t, object("StatefulSet", "db", "spec: {serviceName: db, selector: {matchLabels: {app: web}}, "+template+"}"))
	if l := s.Pods[0].Labels; l["statefulset.kubernetes.io/pod-name"] != "db-0" || l["apps.kubernetes.io/pod-index"] != "0" {
		t.Errorf("labels %v", l)
	}
}

// TestPodsOfADumpAreNotMadeTwice: "kubectl get all" has Deployments, their
// ReplicaSets and their pods.
func TestPodsOfADumpAreNotMadeTwice(t *testing.T) {
	owner := func(kind, name string) string {
		return ", ownerReferences: [{apiVersion: apps/v1, kind: " + kind + ", name: " + name + ", uid: u, controller: true}]"
	}
	dump := object("Deployment", "web", "spec: {replicas: 2, selector: {matchLabels: {app: web}}, "+template+"}") +
		"---\napiVersion: apps/v1\nkind: ReplicaSet\nmetadata: {name: web-7d4, namespace: shop" + owner("Deployment", "web") + "}\nspec: {replicas: 1, selector: {matchLabels: {app: web}}, " + template + "}\n" +
		"---\napiVersion: apps/v1\nkind: ReplicaSet\nmetadata: {name: web-old, namespace: shop" + owner("Deployment", "web") + "}\nspec: {replicas: 0, selector: {matchLabels: {app: web}}, " + template + "}\n" +
		"---\napiVersion: v1\nkind: Pod\nmetadata: {name: web-7d4-x, namespace: shop, labels: {app: web, pod-template-hash: 7d4}" + owner("ReplicaSet", "web-7d4") + "}\nstatus: {podIP: 10.0.0.7}\n"
	s, _ := workloads(t, dump)
	if got, want := names(s), []string{"Deployment/web:web-7d4-x"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	// A pod written by hand that the selector selects is the Deployment's, too.
	s, _ = workloads(t, object("Deployment", "web", "spec: {selector: {matchLabels: {app: web}}, "+template+"}")+
		object("Pod", "mine", "")+strings.Replace(object("Pod", "own", ""), "namespace: shop", "namespace: shop, labels: {app: web}", 1))
	if got, want := names(s), []string{"Pod/mine:mine", "Deployment/web:own"}; !slices.Equal(got, want) {
		t.Errorf("adopted: got %v, want %v", got, want)
	}
}

// TestOwnersThatCannotExist: the API server takes any text in an owner reference, but
// answers name the workload.
func TestOwnersThatCannotExist(t *testing.T) {
	for _, owner := range []string{`{apiVersion: v1, kind: X, name: "a\n\e[2J", uid: u, controller: true}`, `{apiVersion: v1, kind: "=X|", name: a, uid: u, controller: true}`} {
		s, _ := workloads(t, strings.Replace(object("Pod", "own", ""), "namespace: shop", "namespace: shop, ownerReferences: ["+owner+"]", 1))
		if got, want := names(s), []string{"Pod/own:own"}; !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", owner, got, want)
		}
	}
}

// TestMadeUpAddressesStay: what is added beside a workload does not move it.
func TestMadeUpAddressesStay(t *testing.T) {
	web := object("Deployment", "web", "spec: {selector: {matchLabels: {app: web}}, "+template+"}")
	a, _ := workloads(t, web)
	b, _ := workloads(t, object("StatefulSet", "db", "spec: {serviceName: db, replicas: 3, selector: {matchLabels: {app: db}}, template: {metadata: {labels: {app: db}}, spec: {containers: [{name: c, image: i}]}}}")+web)
	if got, want := b.Pods[3].IPs, a.Pods[0].IPs; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestManyReplicasAreBounded(t *testing.T) {
	s, warnings := workloads(t, object("Deployment", "web", "spec: {replicas: 2000000000, selector: {matchLabels: {app: web}}, "+template+"}"))
	if len(s.Pods) != 1000 || !slices.ContainsFunc(warnings, func(w string) bool { return strings.Contains(w, "1000 are made") }) {
		t.Errorf("%d pods, warnings %q", len(s.Pods), warnings)
	}
}

// TestDaemonMakesNoPods: without the option a Deployment is nothing, as before.
func TestDaemonMakesNoPods(t *testing.T) {
	dec := decode.Decoder{}
	objs, found := dec.Decode("f.yaml", []byte(object("Deployment", "web", "spec: {selector: {matchLabels: {app: web}}, "+template+"}")))
	if len(objs) != 0 || len(found.Errors) != 0 || len(found.Warnings) != 1 {
		t.Errorf("%d objects, %+v", len(objs), found)
	}
}
