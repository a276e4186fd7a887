package deploy_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"

	"github.com/tierwall/tierwall/policy/lower"
)

// documents splits a stream of YAML.
func documents(t *testing.T, data []byte) [][]byte {
	t.Helper()
	var out [][]byte
	for _, doc := range regexp.MustCompile(`(?m)^---\s*$`).Split(string(data), -1) {
		if strings.TrimSpace(regexp.MustCompile(`(?m)^\s*#.*$`).ReplaceAllString(doc, "")) != "" {
			out = append(out, []byte(doc))
		}
	}
	return out
}

// manifests returns every object of the plain manifests but the definitions,
// decoded strictly: a field Kubernetes does not have fails the test.
func manifests(t *testing.T) []runtime.Object {
	t.Helper()
	strict := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	var out []runtime.Object
	for _, dir := range []string{"daemon", "rbac", "controller"} {
		err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".yaml") || strings.HasSuffix(path, "kustomization.yaml") || path == "daemon/config.yaml" {
				return err
			}
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			for _, doc := range documents(t, data) {
				o, _, err := strict.Decode(doc, nil, nil)
				if err != nil {
					t.Errorf("%s: %v", path, err)
					continue
				}
				out = append(out, o)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// find returns the objects of one type.
func find[T runtime.Object](t *testing.T) []T {
	t.Helper()
	var out []T
	for _, o := range manifests(t) {
		if o, ok := o.(T); ok {
			out = append(out, o)
		}
	}
	return out
}

func TestManifestsAreStrict(t *testing.T) {
	if n := len(manifests(t)); n < 15 {
		t.Errorf("only %d objects", n)
	}
}

// resources are the policy kinds as roles name them: "group/plural", and whether
// they are cluster-scoped.
func resources() map[string]bool {
	out := map[string]bool{}
	for _, k := range lower.Kinds() {
		plural := strings.ToLower(k.Kind)
		if p, ok := strings.CutSuffix(plural, "y"); ok {
			plural = p + "ie"
		}
		out[k.Group+"/"+plural+"s"] = !k.Namespaced
	}
	return out
}

// may reports whether a role allows verb on "group/resource".
func may(rules []rbacv1.PolicyRule, verb, resource string) bool {
	group, name, _ := strings.Cut(resource, "/")
	return slices.ContainsFunc(rules, func(r rbacv1.PolicyRule) bool {
		has := func(list []string, s string) bool { return slices.Contains(list, s) || slices.Contains(list, "*") }
		return has(r.APIGroups, group) && has(r.Resources, name) && has(r.Verbs, verb) && len(r.ResourceNames) == 0
	})
}

// The daemon and the controller read every kind that is decoded, and write no
// policy.
func TestServiceAccountsReadEveryKind(t *testing.T) {
	seen := 0
	for _, role := range find[*rbacv1.ClusterRole](t) {
		if role.Name != "tierwall-daemon" && role.Name != "tierwall-controller" {
			continue
		}
		seen++
		for r := range resources() {
			for _, verb := range []string{"get", "list", "watch"} {
				if !may(role.Rules, verb, r) {
					t.Errorf("%s may not %s %s", role.Name, verb, r)
				}
			}
			for _, verb := range []string{"update", "patch", "delete", "deletecollection"} {
				if may(role.Rules, verb, r) {
					t.Errorf("%s may %s %s", role.Name, verb, r)
				}
			}
			if may(role.Rules, "create", r) != (role.Name == "tierwall-controller" && r == "crd.antrea.io/tiers") { // S2-09
				t.Errorf("%s and create %s", role.Name, r)
			}
		}
		for _, r := range role.Rules {
			if slices.Contains(r.Verbs, "*") || slices.Contains(r.Resources, "*") || slices.Contains(r.APIGroups, "*") {
				t.Errorf("%s has a wildcard: %v", role.Name, r)
			}
		}
	}
	if seen != 2 {
		t.Errorf("%d roles seen", seen)
	}
}

// Who gets what through the roles every cluster has.
func TestAggregatedRoles(t *testing.T) {
	writes := []string{"create", "update", "patch", "delete", "deletecollection"}
	aggregated := func(to string, compat bool) (rules []rbacv1.PolicyRule) {
		for _, role := range find[*rbacv1.ClusterRole](t) {
			if strings.HasSuffix(role.Name, "-antrea-compat") && !compat {
				continue
			}
			if role.Labels["rbac.authorization.k8s.io/aggregate-to-"+to] == "true" {
				rules = append(rules, role.Rules...)
			}
		}
		return rules
	}
	all := resources()
	for r := range all { // Kubernetes and Cilium have roles of their own
		if strings.HasPrefix(r, "networking.k8s.io/") || strings.HasPrefix(r, "cilium.io/") {
			delete(all, r)
		}
	}
	if len(all) < 8 {
		t.Fatalf("kinds: %v", all)
	}
	compat := func(r string) bool { // S2-110, S1-38
		return strings.HasPrefix(r, "crd.antrea.io/") || strings.HasPrefix(r, "netpol.networking.k8s.io/")
	}
	for r, clusterScoped := range all {
		for _, to := range []string{"view", "edit", "admin"} {
			if !may(aggregated(to, false), "list", r) { // S2-110: view reads
				t.Errorf("%s may not read %s", to, r)
			}
			for _, verb := range writes {
				want := to != "view" && !clusterScoped
				if got := may(aggregated(to, false), verb, r); got != want { // X-05, S0-63, S0-88: nobody writes cluster-wide policy by default
					t.Errorf("%s may %s %s: %v, want %v", to, verb, r, got, want)
				}
				want = to != "view" && (!clusterScoped || compat(r))
				if got := may(aggregated(to, true), verb, r); got != want { // X-05, S1-38, S2-110: with the optional role
					t.Errorf("antrea-compat: %s may %s %s: %v, want %v", to, verb, r, got, want)
				}
			}
		}
	}
}

// The daemon runs with the capabilities that were found necessary and no more.
func TestDaemonPrivileges(t *testing.T) {
	sets := find[*appsv1.DaemonSet](t)
	if len(sets) != 1 {
		t.Fatalf("%d DaemonSets", len(sets))
	}
	pod := sets[0].Spec.Template.Spec
	c := pod.Containers[0]
	sc := c.SecurityContext
	if sc.Privileged != nil && *sc.Privileged || pod.HostPID || pod.HostIPC || !*sc.ReadOnlyRootFilesystem || *sc.AllowPrivilegeEscalation {
		t.Errorf("security context %+v, hostPID %v, hostIPC %v", sc, pod.HostPID, pod.HostIPC)
	}
	if pod.SecurityContext.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		t.Errorf("seccomp %v", pod.SecurityContext.SeccompProfile)
	}
	want := &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{"NET_ADMIN", "NET_RAW", "BPF", "PERFMON", "IPC_LOCK"}}
	if d := cmp.Diff(want, sc.Capabilities); d != "" {
		t.Error(d)
	}
	if !slices.Contains(pod.Tolerations, corev1.Toleration{Operator: corev1.TolerationOpExists}) {
		t.Error("does not tolerate every taint: nodes stay unpoliced")
	}
	for _, p := range []*corev1.Probe{c.StartupProbe, c.LivenessProbe, c.ReadinessProbe} {
		// The kubelet would ask the node's address otherwise, where nobody listens.
		if p.HTTPGet.Host != "127.0.0.1" || p.HTTPGet.Port.IntValue() != 7380 {
			t.Errorf("probe %+v", p.HTTPGet)
		}
	}
}

// Every metric of the dashboard exists.
func TestDashboardMetricsExist(t *testing.T) {
	doc, err := os.ReadFile("../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `(tierwall_[a-z_]+)` \\| (\\w+)").FindAllStringSubmatch(string(doc), -1) {
		known[m[1]] = true
		if m[2] == "histogram" {
			known[m[1]+"_bucket"] = true
		}
	}
	data, err := os.ReadFile("monitoring/tierwall-dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct {
			ID      int
			Title   string
			Type    string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(data, &dashboard); err != nil {
		t.Fatal(err)
	}
	used, ids := 0, map[int]bool{}
	for _, p := range dashboard.Panels {
		if ids[p.ID] {
			t.Errorf("panel %q: id %d is used twice", p.Title, p.ID)
		}
		ids[p.ID] = true
		if p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("panel %q shows nothing", p.Title)
		}
		for _, target := range p.Targets {
			for _, m := range regexp.MustCompile(`tierwall_[a-z_]+`).FindAllString(target.Expr, -1) {
				used++
				if !known[m] {
					t.Errorf("panel %q uses %s, which does not exist", p.Title, m)
				}
			}
		}
	}
	if used < 20 {
		t.Errorf("only %d uses of metrics", used)
	}
	chart, err := os.ReadFile("charts/tierwall/files/tierwall-dashboard.json")
	if err != nil || !bytes.Equal(chart, data) {
		t.Errorf("the chart has another dashboard (%v): copy monitoring/tierwall-dashboard.json to charts/tierwall/files", err)
	}
}

// The two ways to install give the same objects.
func TestChartEqualsManifests(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: the renderers take a minute to build the first time")
	}
	const (
		kustomize = "sigs.k8s.io/kustomize/kustomize/v5@v5.8.1"
		helm      = "helm.sh/helm/v3/cmd/helm@v3.20.2"
	)
	plain := map[string]map[string]any{}
	for _, dir := range []string{".", "controller", "rbac/antrea-compat", "monitoring"} {
		collect(t, plain, render(t, kustomize, "build", dir))
	}
	chart := map[string]map[string]any{}
	collect(t, chart, render(t, helm, "template", "tierwall", "charts/tierwall", "--namespace", "tierwall", "--include-crds",
		"--kube-version", "v1.36.0", "--set", "controller.enabled=true,rbac.antreaCompat=true,podMonitor.enabled=true,dashboard.enabled=true"))
	delete(plain, "Namespace /tierwall") // Helm makes it, on demand
	if len(plain) < 20 {
		t.Fatalf("only %d objects rendered", len(plain))
	}
	if d := cmp.Diff(plain, chart); d != "" {
		t.Error(d)
	}
	// With the defaults the optional parts stay out.
	few := map[string]map[string]any{}
	collect(t, few, render(t, helm, "template", "tierwall", "charts/tierwall", "--namespace", "tierwall", "--kube-version", "v1.36.0"))
	for _, key := range []string{"Deployment tierwall/tierwall-controller", "ClusterRole /tierwall-policy-edit-antrea-compat", "PodMonitor tierwall/tierwall"} {
		if few[key] != nil || chart[key] == nil {
			t.Errorf("%s: there by default: %v, on demand: %v", key, few[key] != nil, chart[key] != nil)
		}
	}
}

// render runs a program of a Go module and returns its output. Modules that cannot
// be had skip the test.
func render(t *testing.T, program string, args ...string) []byte {
	t.Helper()
	bin, err := installed(program)
	if err != nil {
		t.Skip(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, bin, args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s %v: %v\n%s", bin, args, err, &stderr)
	}
	return stdout.Bytes()
}

var (
	bins     string                // folder of installed programs; TestMain's
	programs = map[string]string{} // path by module path, "" when it cannot be had
)

func TestMain(m *testing.M) {
	var err error
	if bins, err = os.MkdirTemp("", "tierwall-deploy"); err != nil {
		panic(err)
	}
	code := m.Run()
	os.RemoveAll(bins)
	os.Exit(code)
}

// installed builds a program once and returns where it is.
func installed(program string) (string, error) {
	bin, known := programs[program]
	if !known {
		get := exec.Command("go", "install", program)
		get.Dir = bins // outside this module
		get.Env = append(os.Environ(), "GOBIN="+bins, "GOFLAGS=-mod=mod", "CGO_ENABLED=0")
		if out, err := get.CombinedOutput(); err == nil {
			name, _, _ := strings.Cut(program, "@")
			if name = filepath.Base(name); name == "v5" {
				name = "kustomize"
			}
			bin = filepath.Join(bins, name)
		} else {
			programs[program] = ""
			return "", fmt.Errorf("%s cannot be had here: %w\n%s", program, err, out)
		}
		programs[program] = bin
	}
	if bin == "" {
		return "", fmt.Errorf("%s cannot be had here", program)
	}
	return bin, nil
}

var hash = regexp.MustCompile(`^(tierwall-config)-[0-9a-z]{10}$`)

// collect adds rendered objects by kind, namespace and name, without what the two
// tools say in different ways: how a changed configuration becomes a rollout.
func collect(t *testing.T, into map[string]map[string]any, stream []byte) {
	t.Helper()
	for _, doc := range documents(t, stream) {
		o := unstructured.Unstructured{}
		if err := yaml.Unmarshal(doc, &o.Object); err != nil {
			t.Fatal(err)
		}
		if m := hash.FindStringSubmatch(o.GetName()); m != nil {
			o.SetName(m[1])
		}
		if o.GetKind() == "ConfigMap" && o.GetName() == "tierwall-config" {
			data := o.Object["data"].(map[string]any)
			var config any
			if err := yaml.Unmarshal([]byte(data["config.yaml"].(string)), &config); err != nil {
				t.Fatal(err)
			}
			data["config.yaml"] = config // comments do not matter
		}
		if o.GetKind() == "DaemonSet" {
			unstructured.RemoveNestedField(o.Object, "spec", "template", "metadata", "annotations", "checksum/config")
			volumes, _, _ := unstructured.NestedSlice(o.Object, "spec", "template", "spec", "volumes")
			for _, v := range volumes {
				if m, ok := v.(map[string]any)["configMap"].(map[string]any); ok {
					m["name"] = hash.ReplaceAllString(m["name"].(string), "$1")
				}
			}
			if err := unstructured.SetNestedSlice(o.Object, volumes, "spec", "template", "spec", "volumes"); err != nil {
				t.Fatal(err)
			}
		}
		key := o.GetKind() + " " + o.GetNamespace() + "/" + o.GetName()
		if into[key] != nil {
			t.Errorf("%s is there twice", key)
		}
		into[key] = o.Object
	}
}
