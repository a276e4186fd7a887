package kube_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/inventory"
	"github.com/tierwall/tierwall/policy/source/kube"
)

// liveCluster reads the cluster that KUBECONFIG names. It changes nothing but
// objects of a namespace of its own.
func liveCluster(t *testing.T) (*rig, dynamic.Interface, string) {
	t.Helper()
	file := os.Getenv("KUBECONFIG")
	if file == "" {
		t.Skip("KUBECONFIG names no cluster to try this with")
	}
	config, err := kube.ForDaemon(file, "tierwall-test")
	if err != nil {
		t.Fatal(err)
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	namespaces := client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"})
	ns := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"generateName": "tierwall-source-"},
	}}
	if ns, err = namespaces.Create(t.Context(), ns, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := namespaces.Delete(context.Background(), ns.GetName(), metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	})
	var log bytes.Buffer
	r := &rig{t: t}
	if r.Source, err = kube.New(kube.Config{REST: config, Logger: slog.New(slog.NewTextHandler(&log, nil))}); err != nil {
		t.Fatal(err)
	}
	r.run()
	return r, client, ns.GetName()
}

// in returns the objects of a namespace.
func in(objs []*api.Object, namespace string) []*api.Object {
	return slices.DeleteFunc(slices.Clone(objs), func(o *api.Object) bool { return o.Namespace != namespace })
}

// TestLiveCluster follows policies through a real API server: created, changed so
// that nothing changes, changed, deleted; and how long each takes to arrive.
func TestLiveCluster(t *testing.T) {
	r, client, ns := liveCluster(t)
	_, snap := r.load("first look", func([]*api.Object, *inventory.Snapshot) bool { return true })
	if len(snap.Nodes) == 0 || !slices.ContainsFunc(snap.Namespaces, func(n inventory.Namespace) bool { return n.Name == ns }) {
		t.Fatalf("%d nodes, %d namespaces", len(snap.Nodes), len(snap.Namespaces))
	}
	policies := client.Resource(schema.GroupVersionResource{Group: "networking.k8s.io", Version: "v1", Resource: "networkpolicies"}).Namespace(ns)
	var lags []time.Duration
	for i := range 20 {
		o := &unstructured.Unstructured{}
		text := strings.Replace(policy, "name: deny, namespace: x", fmt.Sprintf("name: p%02d", i), 1)
		text = strings.NewReplacer(", generation: 1, uid: u", "", `, creationTimestamp: "2026-01-02T03:04:05Z", managedFields: [{manager: m}]`, "").Replace(text)
		if err := yaml.Unmarshal([]byte(text), &o.Object); err != nil {
			t.Fatal(err)
		}
		o, err := policies.Create(t.Context(), o, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		objs, snap := r.load("created", func(objs []*api.Object, _ *inventory.Snapshot) bool { return len(in(objs, ns)) == i+1 })
		lags = append(lags, time.Since(began))
		r.InForce(objs, inventory.ViewOf(snap))
		want := versionOf(t, o)
		if got := r.Observed()["networkpolicies.networking.k8s.io"]; got < want {
			t.Errorf("object of version %d in force, observed %d", want, got)
		}
	}
	slices.Sort(lags)
	t.Logf("from the API server's answer to Load: median %s, worst %s", lags[len(lags)/2], lags[len(lags)-1])
	for i := range 20 {
		if err := policies.Delete(t.Context(), fmt.Sprintf("p%02d", i), metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	r.load("deleted", func(objs []*api.Object, _ *inventory.Snapshot) bool { return len(in(objs, ns)) == 0 })
	for _, s := range r.Status().Resources {
		if !s.Synced || s.Error != "" || s.Lists != 1 {
			t.Errorf("%+v", s)
		}
	}
}

func versionOf(t *testing.T, o *unstructured.Unstructured) uint64 {
	t.Helper()
	var v uint64
	if _, err := fmt.Sscan(o.GetResourceVersion(), &v); err != nil {
		t.Fatal(err)
	}
	return v
}
