package agent

import (
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/dataplane/dns"
)

// TestBelievedServers: a pod may ask a DNS server of its own, and that server's answers
// put nothing behind names, unless the configuration wants it so.
func TestBelievedServers(t *testing.T) {
	world := &rule.World{
		Endpoints: []rule.Endpoint{
			{Namespace: "kube-system", Name: "coredns", Labels: map[string]string{"k8s-app": "kube-dns"}, Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.53")}},
			{Namespace: "kube-system", Name: "other", Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.54")}},
			{Namespace: "z", Name: "own", Labels: map[string]string{"k8s-app": "kube-dns"}, Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.66")}},
		},
		Nodes: []rule.Node{{Name: "n", Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}},
	}
	table, _, err := classifier.Compile(rule.Set{}, world, classifier.Options{})
	if err != nil {
		t.Fatal(err)
	}
	resolv := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(resolv, []byte("# nameserver 203.0.113.9\nnameserver 198.51.100.53\nnameserver 127.0.0.53\nsearch x\nnameserver fe80::1%eth0\nnameserver\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	resolverFiles = []string{resolv, filepath.Join(t.TempDir(), "missing")}
	defer func() { resolverFiles = defaultResolverFiles }()
	for _, c := range []struct {
		servers   string
		inCluster bool
		want      map[string]bool
	}{
		{"", true, map[string]bool{
			"10.0.0.53": true, "10.0.0.54": false, "10.0.0.66": false, "192.0.2.1": true, "169.254.20.10": true,
			"198.51.100.53": true, "203.0.113.9": false, "127.0.0.53": false,
		}},
		{"203.0.113.0/24", true, map[string]bool{"10.0.0.53": false, "203.0.113.9": true, "192.0.2.1": false}},
		{"203.0.113.0/24", false, map[string]bool{"10.0.0.53": false, "203.0.113.9": true}},
		{"", false, map[string]bool{"10.0.0.66": true, "203.0.113.9": true}},
	} {
		n := &names{Names: dns.NewNames(dns.Config{}), log: slog.New(slog.DiscardHandler), doubted: map[netip.Addr]bool{}}
		if err := n.believe(&DNSConfig{Servers: c.servers}, c.inCluster); err != nil {
			t.Fatal(err)
		}
		n.observer = &dns.Observer{Names: n.Names, Believe: n.trust()}
		n.table.Store(table)
		for a, want := range c.want {
			if got := n.observer.Believe == nil || n.observer.Believe(netip.MustParseAddr(a)); got != want {
				t.Errorf("servers %q, in a cluster: %v: %s is believed: %v, want %v", c.servers, c.inCluster, a, got, want)
			}
		}
	}
}
