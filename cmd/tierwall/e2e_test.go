package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/tierwall/tierwall/cmd/internal/agent"
	"github.com/tierwall/tierwall/cmd/internal/cli"
	"github.com/tierwall/tierwall/cmd/internal/cluster"
	"github.com/tierwall/tierwall/dataplane/nfqueue"
	"github.com/tierwall/tierwall/dataplane/nstest"
)

// openE2E returns the cluster of $KUBECONFIG.
func openE2E(t *testing.T) *cluster.Cluster {
	t.Helper()
	if e2eKubeconfig == "" {
		t.Skip("needs a cluster: KUBECONFIG is not set")
	}
	c, err := (&cluster.Options{Kubeconfig: e2eKubeconfig}).Open()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// namespaceE2E makes a namespace with a policy, and a kubeconfig of a user with
// the role "view" in it and nothing else. All of it ends with the test.
func namespaceE2E(t *testing.T, c *cluster.Cluster) (namespace, limited string) {
	t.Helper()
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ns, err := c.Client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "tierwall-cli-"}}, metav1.CreateOptions{})
	must(err)
	namespace = ns.Name
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := c.Client.CoreV1().Namespaces().Delete(ctx, namespace, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	user := metav1.ObjectMeta{Name: "limited", Namespace: namespace}
	_, err = c.Client.CoreV1().ServiceAccounts(namespace).Create(ctx, &corev1.ServiceAccount{ObjectMeta: user}, metav1.CreateOptions{})
	must(err)
	_, err = c.Client.RbacV1().RoleBindings(namespace).Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: user, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: user.Name, Namespace: namespace}},
	}, metav1.CreateOptions{})
	must(err)
	_, err = c.Client.NetworkingV1().NetworkPolicies(namespace).Create(ctx, &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "deny", Namespace: namespace},
		Spec:       networkingv1.NetworkPolicySpec{PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}},
	}, metav1.CreateOptions{})
	must(err)
	token, err := c.Client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, user.Name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	must(err)
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: c.Config.Host, CertificateAuthorityData: c.Config.CAData, CertificateAuthority: c.Config.CAFile}
	config.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: token.Status.Token}
	config.Contexts["c"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u", Namespace: namespace}
	config.CurrentContext = "c"
	limited = filepath.Join(t.TempDir(), "limited")
	must(clientcmd.WriteToFile(*config, limited))
	return namespace, limited
}

// What a real API server refuses a user of one namespace is left out, and told.
func TestE2ERights(t *testing.T) {
	c := openE2E(t)
	namespace, limited := namespaceE2E(t, c)
	r := tierwall(t, "", "get", "policies", "--kubeconfig", limited, "-o", "json")
	var answer struct {
		Policies   []struct{ Namespace, Name string }
		Incomplete []cli.Gap
	}
	if err := json.Unmarshal([]byte(r.out), &answer); err != nil || r.code != 0 {
		t.Fatalf("%v: %+v", err, r)
	}
	if len(answer.Policies) != 1 || answer.Policies[0].Namespace != namespace || answer.Policies[0].Name != "deny" {
		t.Errorf("policies %+v", answer.Policies)
	}
	for resource, only := range map[string]string{"pods": namespace, "networkpolicies.networking.k8s.io": namespace, "namespaces": namespace, "nodes": ""} {
		if !slices.ContainsFunc(answer.Incomplete, func(g cli.Gap) bool {
			return g.Resource == resource && g.Namespace == only && g.Forbidden && g.Means != ""
		}) {
			t.Errorf("%s: not among %+v", resource, answer.Incomplete)
		}
	}
	if r := tierwall(t, "", "status", "--kubeconfig", limited); r.code != cli.ExitUsage || !strings.Contains(r.err, "forbidden") {
		t.Errorf("status without rights: %+v", r)
	}
	// The one with all rights has the same policy and no gaps.
	if r := tierwall(t, "", "get", "policies", "--kubeconfig", e2eKubeconfig, "-n", namespace); r.code != 0 ||
		!strings.Contains(r.out, "K8sNetworkPolicy:"+namespace+"/deny") || strings.Contains(r.err, "incomplete") {
		t.Errorf("with all rights: %+v", r)
	}
}

// Daemons are reached through the API server, and report what they enforce.
func TestE2EDaemons(t *testing.T) {
	c := openE2E(t)
	d := &cluster.Daemons{Cluster: c}
	list, err := d.List(t.Context())
	if err != nil {
		t.Skipf("needs the DaemonSet in the cluster: %v", err)
	}
	namespace, _ := namespaceE2E(t, c)
	r := tierwall(t, "", "status", "--kubeconfig", e2eKubeconfig, "-o", "json")
	var answer statusAnswer
	if err := json.Unmarshal([]byte(r.out), &answer); err != nil || len(answer.Nodes) != len(list) {
		t.Fatalf("%v: %+v", err, r)
	}
	for _, n := range answer.Nodes {
		if n.Error != "" || n.Status == nil || n.Status.Node != n.Node {
			t.Errorf("%s: %s, %+v", n.Node, n.Error, n.Status)
		}
	}
	for _, args := range [][]string{
		{"wait", "--for=enforced", "networkpolicy.networking.k8s.io/deny", "-n", namespace, "--timeout", "60s"},
		{"flows", "--limit", "5"},
		{"audit", "tail", "--all-nodes", "-n", "5"},
	} {
		if r := tierwall(t, "", append(args, "--kubeconfig", e2eKubeconfig)...); r.code != 0 {
			t.Errorf("%v: exit code %d\n%s%s", args, r.code, r.out, r.err)
		}
	}
}

// cleanup names what it took away, and finds nothing the second time.
func TestCleanup(t *testing.T) {
	if os.Geteuid() != 0 {
		if r := tierwall(t, "", "cleanup"); r.code != cli.ExitUsage || !strings.Contains(r.err, "needs root") {
			t.Errorf("%+v", r)
		}
		return
	}
	nstest.Need(t)
	err := nstest.New(t).Do(func() error {
		nft, err := nftables.New()
		if err != nil {
			return err
		}
		nft.AddTable(&nftables.Table{Name: nfqueue.TableName, Family: nftables.TableFamilyINet})
		nft.AddTable(&nftables.Table{Name: "somebody-elses", Family: nftables.TableFamilyINet})
		if err := nft.Flush(); err != nil {
			return err
		}
		before, err := leftovers(agent.Default().AFXDP.PinPath)
		if err != nil || !slices.Equal(before, []string{"nftables table inet tierwall"}) {
			t.Fatalf("left over: %v, %v", before, err)
		}
		r := tierwall(t, "", "cleanup", "-o", "json")
		if r.code != 0 || !strings.Contains(r.out, "nftables table inet tierwall") || strings.Contains(r.out, "somebody") {
			t.Fatalf("%+v", r)
		}
		if r := tierwall(t, "", "cleanup"); r.code != 0 || r.out != "there was nothing to remove\n" {
			t.Errorf("the second time: %+v", r)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
