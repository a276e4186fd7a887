package agent

import (
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/tierwall/tierwall/dataplane/nstest"
	"github.com/tierwall/tierwall/dataplane/nstest/netlab"
)

// switchOff is a node where frames between the ports of a bridge meet no hook: as the
// kernel is without br_netfilter.
func switchOff(t *testing.T, ns *netlab.NS) {
	t.Helper()
	for _, family := range []string{"iptables", "ip6tables"} {
		_ = ns.Sysctl("net/bridge/bridge-nf-call-"+family, "0") // nor is it there where the module is not loaded
	}
}

// With nfqueue alone packets between two pods of one bridge met no rule of ours where
// net.bridge.bridge-nf-call-iptables is 0, or br_netfilter is not loaded: nobody judged
// them, and the node said that it was ready.
func TestPodsOfOneBridgeAreJudgedByNFQueueAlone(t *testing.T) {
	for _, failMode := range []string{"closed", "open"} {
		t.Run(failMode, func(t *testing.T) {
			r := hostileRig(t, "nfqueue", "bridge")
			switchOff(t, r.world.Node.NS)
			r.conf.FailMode = failMode
			r.write("policy.yaml", allowFromX)
			r.start()
			for _, family := range []int{4, 6} {
				for _, network := range []string{"tcp", "udp"} {
					if !r.reaches(network, "x/a", "y/b", family) {
						t.Errorf("%s IPv%d: what policy allows does not pass", network, family)
					}
					if r.opens(network, "z/a", "y/b", family) {
						t.Errorf("%s IPv%d: what policy denies passes from port to port", network, family)
					}
				}
			}
			if code, text := r.scrape("/readyz"); code != http.StatusOK {
				t.Errorf("/readyz: %d %s", code, text)
			}
			if n := r.metric(`tierwall_unjudged_devices{reason="bridge"}`); n != 0 {
				t.Errorf("tierwall_unjudged_devices of bridges is %g, want 0", n)
			}
			r.stop(syscall.SIGTERM)
		})
	}
}

// A netkit pair of a pod, or Cilium's devices: the daemon does not start, and says why in
// one sentence. Devices that appear later make the node not ready.
func TestBypassIsRefused(t *testing.T) {
	r := newRig(t, "auto")
	node := r.world.Node
	if err := node.NS.Handle().LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "cilium_host"}, PeerName: "cilium_net"}); err != nil {
		t.Fatal(err)
	}
	r.write("policy.yaml", allowFromX)
	r.start() // no pod of Cilium's yet

	pod := nstest.New(t)
	if err := netlab.Pair(node.NS, "lxc_health", pod.NS, netlab.PodDevice); err != nil {
		t.Fatal(err)
	}
	const want = "eBPF host routing: programs of Cilium carry packets of pods (lxc_health) past the node's stack"
	r.until("the node is not ready", func() bool {
		code, text := r.scrape("/readyz")
		return code == http.StatusServiceUnavailable && strings.Contains(text, want)
	})
	if n := r.metric(`tierwall_unjudged_devices{reason="bpf"}`); n != 1 {
		t.Errorf("tierwall_unjudged_devices is %g, want 1", n)
	}
	r.stop(syscall.SIGTERM)
	if log := r.logText(); !strings.Contains(log, want) {
		t.Errorf("the log does not say it:\n%s", log)
	}

	os.Truncate(r.log, 0)
	r.launch()
	if err := r.proc.Wait(); err == nil {
		t.Error("the daemon started")
	}
	if log := r.logText(); !strings.Contains(log, "policy cannot be enforced on this node: "+want) || strings.Contains(log, "backends chosen") {
		t.Errorf("the error does not say why:\n%s", log)
	}
}
