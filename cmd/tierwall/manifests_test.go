package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tierwall/tierwall/cmd/internal/cli"
)

// Of "-m A -m B" only B was read, and B alone answered.
func TestRepeatedManifestsAddUp(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	const (
		pods = "apiVersion: v1\nkind: Pod\nmetadata: {name: web, namespace: shop}\nspec: {containers: [{name: c, image: i}]}\nstatus: {phase: Running, podIP: 10.0.0.1}\n---\n" +
			"apiVersion: v1\nkind: Pod\nmetadata: {name: db, namespace: shop}\nspec: {containers: [{name: c, image: i}]}\nstatus: {phase: Running, podIP: 10.0.0.2}\n"
		deny  = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: deny, namespace: shop}\nspec: {podSelector: {}, policyTypes: [Ingress]}\n"
		allow = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: allow, namespace: shop}\nspec: {podSelector: {}, ingress: [{ports: [{port: 80}]}]}\n"
	)
	if err := os.MkdirAll(at("a"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"a/pods.yaml": pods, "deny.yaml": deny, "allow, too.yaml": allow} {
		if err := os.WriteFile(at(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	explain := func(port string, m ...string) string {
		args := []string{"explain", "--from", "web", "--to", "db", "-p", port}
		for _, path := range m {
			args = append(args, "-m", path)
		}
		r := tierwall(t, allow, args...)
		if r.code != cli.ExitOK {
			t.Fatalf("%q: exit code %d: %s", m, r.code, r.err)
		}
		return strings.Fields(r.out)[0]
	}
	for _, tt := range []struct {
		port string
		m    []string
		want string
	}{
		{"80", []string{at("a"), at("deny.yaml")}, "Drop"},
		{"80", []string{at("deny.yaml"), at("a")}, "Drop"},
		{"80", []string{at("a"), at("deny.yaml"), at("allow, too.yaml")}, "Allow"},
		{"81", []string{at("a"), at("deny.yaml"), at("allow, too.yaml")}, "Drop"},
		{"80", []string{at("a"), at("deny.yaml"), "-"}, "Allow"},
	} {
		if got := explain(tt.port, tt.m...); got != tt.want {
			t.Errorf("%q: %s, want %s", tt.m, got, tt.want)
		}
	}
	for args, want := range map[string]string{
		"check":        "2 policies: 0 errors",
		"get policies": "K8sNetworkPolicy:shop/deny",
		"matrix":       "4 connections: 4 Allow",
	} {
		r := tierwall(t, "", append(strings.Fields(args), "-m", at("a"), "--manifests", at("deny.yaml"), "-m", at("allow, too.yaml"))...)
		if r.code != cli.ExitOK || !strings.Contains(r.out, want) {
			t.Errorf("%s: exit code %d, want %q\n%s%s", args, r.code, want, r.out, r.err)
		}
	}
	// A duplicate across them is one as within a directory.
	r := tierwall(t, "", "check", "-m", at("a"), "-m", at("deny.yaml"), "-m", at("deny.yaml"))
	if r.code != cli.ExitFinding || strings.Count(r.out, "NetworkPolicy shop/deny") != 1 {
		t.Errorf("a duplicate: exit code %d\n%s%s", r.code, r.out, r.err)
	}
	for _, bad := range [][]string{{"-m", at("a"), "-m", at("none")}, {"-m", at("a"), "-m", ""}} {
		if r := tierwall(t, "", append([]string{"matrix"}, bad...)...); r.code != cli.ExitUsage {
			t.Errorf("%q: exit code %d: %s%s", bad, r.code, r.out, r.err)
		}
	}
	if r := tierwall(t, pods, "matrix", "-m", "-", "-m", "-"); r.code != cli.ExitFinding || !strings.Contains(r.err, "standard input is given twice") {
		t.Errorf("standard input twice: exit code %d: %s%s", r.code, r.out, r.err)
	}
}

// "check A B" without a cluster had the pods of A alone.
func TestCheckFilesAloneHavePodsOfAll(t *testing.T) {
	dir := t.TempDir()
	const policy = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: web, namespace: shop}\nspec: {podSelector: {matchLabels: {app: web}}}\n"
	const pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: web, namespace: shop, labels: {app: web}}\nspec: {containers: [{name: c, image: i}]}\nstatus: {phase: Running, podIP: 10.0.0.1}\n"
	for name, text := range map[string]string{"a.yaml": policy + "---\n" + strings.ReplaceAll(pod, "web", "other"), "b.yaml": strings.Replace(pod, "10.0.0.1", "10.0.0.2", 1)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r := tierwall(t, "", "check", filepath.Join(dir, "a.yaml"), filepath.Join(dir, "b.yaml"))
	if r.code != cli.ExitOK || !strings.Contains(r.out, "0 warnings") {
		t.Errorf("exit code %d: %s%s", r.code, r.out, r.err)
	}
}
