package inventory

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/diag"
)

// maxReplicas is how many pods are made for one workload: replicas are alike, and
// a number of zeros too many must not fill the memory.
const maxReplicas = 1000

// workload is an object that makes pods.
type workload struct {
	object   *api.Object
	kind     string
	selector *metav1.LabelSelector // nil: it adopts no pod
	template *corev1.PodTemplateSpec
	path     string // of the template in the object
	replicas int
	start    int  // number of the first pod
	daemon   bool // one pod for every node that its nodeSelector chooses
	labels   func(pod string, index int) map[string]string
}

type ownerKey struct{ namespace, kind, name string }

// workload notes an object that makes pods. The pods are made when all objects are
// known: see makePods.
func (b *builder) workload(o *api.Object) {
	w := workload{object: o, kind: o.Kind.Kind, path: "spec.template", replicas: 1}
	var meta *metav1.ObjectMeta
	switch v := o.Value.(type) {
	case *appsv1.Deployment:
		meta, w.selector, w.template = &v.ObjectMeta, v.Spec.Selector, &v.Spec.Template
		w.replicas = stated(v.Spec.Replicas)
	case *appsv1.ReplicaSet:
		meta, w.selector, w.template = &v.ObjectMeta, v.Spec.Selector, &v.Spec.Template
		w.replicas = stated(v.Spec.Replicas)
	case *appsv1.StatefulSet:
		meta, w.selector, w.template = &v.ObjectMeta, v.Spec.Selector, &v.Spec.Template
		w.replicas = stated(v.Spec.Replicas)
		if v.Spec.Ordinals != nil {
			w.start = int(v.Spec.Ordinals.Start)
		}
		w.labels = func(pod string, index int) map[string]string {
			return map[string]string{appsv1.StatefulSetPodNameLabel: pod, appsv1.PodIndexLabel: strconv.Itoa(index)}
		}
	case *appsv1.DaemonSet:
		meta, w.selector, w.template, w.daemon = &v.ObjectMeta, v.Spec.Selector, &v.Spec.Template, true
	case *corev1.ReplicationController:
		if v.Spec.Template == nil {
			return
		}
		meta, w.template = &v.ObjectMeta, v.Spec.Template
		w.selector = &metav1.LabelSelector{MatchLabels: v.Spec.Selector}
		w.replicas = stated(v.Spec.Replicas)
	case *batchv1.Job:
		meta, w.selector, w.template = &v.ObjectMeta, v.Spec.Selector, &v.Spec.Template
		w.replicas, w.labels = stated(v.Spec.Parallelism), jobLabels(v.Name)
		if slices.ContainsFunc(v.Status.Conditions, func(c batchv1.JobCondition) bool {
			return c.Status == corev1.ConditionTrue && (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed)
		}) {
			w.replicas = 0 // finished
		}
	case *batchv1.CronJob:
		meta, w.template, w.path = &v.ObjectMeta, &v.Spec.JobTemplate.Spec.Template, "spec.jobTemplate.spec.template"
		w.replicas = stated(v.Spec.JobTemplate.Spec.Parallelism)
	case *corev1.PodTemplate:
		meta, w.template, w.path = &v.ObjectMeta, &v.Template, "template"
	default:
		return
	}
	if c := metav1.GetControllerOfNoCopy(meta); c != nil {
		if b.owners == nil {
			b.owners = map[ownerKey]metav1.OwnerReference{}
		}
		b.owners[ownerKey{meta.Namespace, w.kind, meta.Name}] = *c
		// Its owner makes the pods. A ReplicaSet without pods is an old revision.
		return
	}
	b.workloads = append(b.workloads, w)
}

// stated is the number of pods an object asks for, at least one: a workload that
// is scaled down has a policy all the same.
func stated(n *int32) int {
	if n == nil {
		return 1
	}
	return max(1, int(*n))
}

// jobLabels are those the API server gives the pods of a Job.
func jobLabels(name string) func(string, int) map[string]string {
	return func(string, int) map[string]string {
		return map[string]string{batchv1.JobNameLabel: name, "job-name": name}
	}
}

// workloadOf returns what made a pod.
func (b *builder) workloadOf(meta *metav1.ObjectMeta) Workload {
	c := metav1.GetControllerOfNoCopy(meta)
	if c == nil || !namesObject(c) {
		if b.orphans == nil {
			b.orphans = map[podName]bool{}
		}
		b.orphans[podName{meta.Namespace, meta.Name}] = true
		return Workload{"Pod", meta.Name}
	}
	if hash := meta.Labels[appsv1.DefaultDeploymentUniqueLabelKey]; c.Kind == "ReplicaSet" && hash != "" {
		if name, ok := strings.CutSuffix(c.Name, "-"+hash); ok {
			return Workload{"Deployment", name} // by the name a Deployment gives its ReplicaSets
		}
	}
	return Workload{c.Kind, c.Name}
}

// namesObject reports whether an owner reference may name an object: the API server
// takes any text for kind and name, and answers have both.
func namesObject(c *metav1.OwnerReference) bool {
	return len(validation.IsDNS1123Subdomain(c.Name)) == 0 && len(validation.IsDNS1035Label(strings.ToLower(c.Kind))) == 0
}

// makePods finds out which pods belong to which workload, and makes those of the
// workloads that have none.
func (b *builder) makePods() {
	for i := range b.snap.Pods {
		p := &b.snap.Pods[i]
		for range 3 { // Job, CronJob; a loop of owners must end
			c, ok := b.owners[ownerKey{p.Namespace, p.Workload.Kind, p.Workload.Name}]
			if !ok {
				break
			}
			p.Workload = Workload{c.Kind, c.Name}
		}
	}
	if len(b.workloads) == 0 {
		return
	}
	taken, manned := map[podName]bool{}, map[ownerKey]bool{}
	for i := range b.snap.Pods {
		p := &b.snap.Pods[i]
		taken[podName{p.Namespace, p.Name}] = true
		manned[ownerKey{p.Namespace, p.Workload.Kind, p.Workload.Name}] = true
	}
	workloads, pods, first := 0, 0, ""
	for i := range b.workloads {
		w := &b.workloads[i]
		if manned[ownerKey{w.object.Namespace, w.kind, w.object.Name}] || b.adopt(w) {
			continue
		}
		made := b.podsOf(w, taken)
		if len(made) == 0 {
			continue
		}
		workloads++
		if pods += len(made); first == "" {
			first = made[0].Namespace + "/" + made[0].Name
		}
		b.snap.Pods = append(b.snap.Pods, made...)
	}
	if pods > 0 {
		b.found.Warnings = append(b.found.Warnings, diag.Diagnostic{
			Message: fmt.Sprintf("%s became %s with made-up names and addresses, %s first",
				count(workloads, "workload"), count(pods, "pod"), first),
			Hint: "add the pods themselves to be asked about their own addresses",
		})
	}
}

func count(n int, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return fmt.Sprintf("%d %ss", n, word)
}

// adopt gives a workload the pods without a controller that its selector selects,
// as its controller would. It reports whether there are any.
func (b *builder) adopt(w *workload) bool {
	if w.selector == nil {
		return false
	}
	sel, err := metav1.LabelSelectorAsSelector(w.selector)
	if err != nil || sel.Empty() {
		return false // the API server would refuse it
	}
	found := false
	for i := range b.snap.Pods {
		p := &b.snap.Pods[i]
		if p.Namespace == w.object.Namespace && b.orphans[podName{p.Namespace, p.Name}] && sel.Matches(labels.Set(p.Labels)) {
			delete(b.orphans, podName{p.Namespace, p.Name})
			p.Workload = Workload{w.kind, w.object.Name}
			found = true
		}
	}
	return found
}

// podsOf makes the pods of a workload. Names that other pods have are left out.
func (b *builder) podsOf(w *workload, taken map[podName]bool) []Pod {
	proto := b.podOf(w.object, &w.template.ObjectMeta, &w.template.Spec, w.path+".spec")
	proto.MadeUp, proto.Workload = true, Workload{w.kind, w.object.Name}
	nodes := []string{proto.Node}
	if w.daemon {
		nodes = nodes[:0]
		for i := range b.snap.Nodes {
			if n := &b.snap.Nodes[i]; hasAll(n.Labels, w.template.Spec.NodeSelector) {
				nodes = append(nodes, n.Name)
			}
		}
		slices.Sort(nodes)
		if w.replicas = len(nodes); len(nodes) == 0 {
			w.replicas, nodes = 1, []string{""}
		}
	}
	if w.replicas > maxReplicas {
		b.found.Warnings = append(b.found.Warnings, w.object.Finding("spec.replicas",
			fmt.Sprintf("%d pods are asked for, %d are made: they are alike", w.replicas, maxReplicas), ""))
		w.replicas = maxReplicas
	}
	var out []Pod
	for index := w.start; len(out) < w.replicas; index++ {
		p := proto
		p.Name = fmt.Sprintf("%s-%d", w.object.Name, index)
		if taken[podName{p.Namespace, p.Name}] {
			continue
		}
		taken[podName{p.Namespace, p.Name}] = true
		p.Node = nodes[len(out)%len(nodes)]
		if w.labels != nil {
			p.Labels = maps.Clone(proto.Labels)
			if p.Labels == nil {
				p.Labels = map[string]string{}
			}
			maps.Copy(p.Labels, w.labels(p.Name, index))
		}
		out = append(out, p)
	}
	return out
}

func hasAll(labels, want map[string]string) bool {
	for k, v := range want {
		if got, ok := labels[k]; !ok || got != v {
			return false
		}
	}
	return true
}
