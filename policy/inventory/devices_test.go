package inventory_test

import (
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tierwall/tierwall/policy/inventory"
)

// TestNodeDeviceAddresses is S2-95: selectors of nodes mean their gateway and
// transport addresses, too, as far as the Node tells them.
func TestNodeDeviceAddresses(t *testing.T) {
	for name, tt := range map[string]struct {
		annotations map[string]string
		want        string
	}{
		"nothing":          {nil, ""},
		"another's":        {map[string]string{"example.org/public-ip": "198.51.100.1"}, ""},
		"flannel":          {map[string]string{"flannel.alpha.coreos.com/backend-type": "vxlan", "flannel.alpha.coreos.com/public-ip": "198.51.100.1"}, "198.51.100.1 10.244.1.0 10.244.1.1 fd00:1:: fd00:1::1"},
		"flannel, host-gw": {map[string]string{"flannel.alpha.coreos.com/backend-type": "host-gw", "flannel.alpha.coreos.com/public-ipv6": "2001:db8::9"}, "2001:db8::9 10.244.1.1 fd00:1::1"},
		"Antrea":           {map[string]string{"node.antrea.io/transport-addresses": "198.51.100.1, 2001:db8::9"}, "198.51.100.1 2001:db8::9 10.244.1.1 fd00:1::1"},
		"Calico":           {map[string]string{"projectcalico.org/IPv4Address": "192.0.2.1/24", "projectcalico.org/IPv4VXLANTunnelAddr": "10.244.77.0", "projectcalico.org/IPv6VXLANTunnelAddr": "fd00:77::"}, "10.244.77.0 fd00:77::"},
		"Cilium":           {map[string]string{"network.cilium.io/ipv4-cilium-host": "10.244.1.77"}, "10.244.1.77"},
		"no address":       {map[string]string{"network.cilium.io/ipv4-cilium-host": "soon", "projectcalico.org/IPv4VXLANTunnelAddr": ""}, ""},
		"no host's":        {map[string]string{"flannel.alpha.coreos.com/public-ip": "0.0.0.0", "network.cilium.io/ipv4-cilium-host": "224.0.0.1"}, ""},
	} {
		n, found := inventory.ReadNode(&corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "n1", Annotations: tt.annotations},
			Spec:       corev1.NodeSpec{PodCIDR: "10.244.1.0/24", PodCIDRs: []string{"10.244.1.0/24", "fd00:1::/64"}},
			Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}}},
		})
		var got string
		for _, a := range n.DeviceAddrs {
			if got != "" {
				got += " "
			}
			got += a.String()
		}
		if got != tt.want || len(found.Errors) > 0 {
			t.Errorf("S2-95: %s: %s, want %s (%v)", name, got, tt.want, found)
		}
		// The node's own addresses stay what its status says: what an annotation tells
		// lets nobody past policy.
		if !slices.Equal(n.Addrs, []netip.Addr{netip.MustParseAddr("192.0.2.1")}) {
			t.Errorf("%s: addresses %v", name, n.Addrs)
		}
		snap := inventory.Snapshot{Nodes: []inventory.Node{n}}
		set, _ := inventory.NodeSelectorSet(&metav1.LabelSelector{})
		if got := len(snap.Sets([]string{set})[set]); got != 1+len(n.DeviceAddrs) {
			t.Errorf("%s: the selector of all nodes has %d addresses", name, got)
		}
	}
}
