package scale

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tierwall/tierwall/bench/internal/child"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/dataplane/nstest"
	"github.com/tierwall/tierwall/dataplane/nstest/netlab"
)

var (
	startPods  = flag.Int("podstart.pods", 10, "pods that TestPodStart starts with each network plugin, one after the other")
	startMost  = flag.Duration("podstart.most", 0, "fail if one pod in a hundred waits longer for its first answer; 0: only say how long. For a quiet machine")
	startFor   = flag.Duration("podstart.for", time.Hour, "start no more pods with a network plugin after this time")
	startNet   = flag.String("podstart.net", "", "one of the network plugins alone")
	startWays  = flag.String("podstart.dataplanes", "auto,nfqueue", "dataplanes")
	startBin   = flag.String("podstart.bin", "", "a folder with tierwalld, tierwall-cni and hostroutes; empty: they are built")
	pluginPath = flag.String("podstart.cni", "/opt/cni/bin:/usr/lib/cni", "where CNI plugins are")
)

// networks are the plugins that make pods' networks, as entries of a CNI configuration.
var networks = []struct {
	name, entry string
	noCIDRs     bool // the Node object has none: the daemon is told the pool
}{
	{"ptp", `"type": "ptp", "ipMasq": false`, false},
	{"bridge", `"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true, "ipMasq": false`, false},
	{"hostroutes", `"type": "hostroutes"`, true},
}

const (
	startPool   = "10.244.0.0/16"
	startBlock  = "10.244.0.0/18"
	startServer = "10.244.200.2" // a pod on another node
	portAllowed = 8080
	portDenied  = 8081
	startSpace  = "start"
)

// A pod passes nothing that policy denies it, from the plugin's ADD on, and gets an answer
// to what it is allowed soon after the ADD has returned, which is when a runtime starts
// containers: with tierwall-cni, which waits for policy, and without, where the pod's
// addresses are in the API server the moment the ADD has returned: no kubelet is faster.
func TestPodStart(t *testing.T) {
	nstest.Need(t)
	bin, programs := *startBin, []string(nil)
	if bin == "" {
		bin, programs = t.TempDir(), []string{"cmd/tierwalld", "cmd/tierwall-cni", "deploy/e2e/hostroutes"}
	}
	for _, p := range programs {
		c := exec.Command("go", "build", "-o", bin, "github.com/tierwall/tierwall/"+p)
		c.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("build %s: %v\n%s", p, err, out)
		}
	}
	for _, n := range networks {
		for dataplane := range strings.SplitSeq(*startWays, ",") {
			for _, announced := range []bool{true, false} {
				if *startNet != "" && *startNet != n.name {
					continue
				}
				t.Run(fmt.Sprintf("%s/%s/tierwall-cni=%v", n.name, dataplane, announced), func(t *testing.T) {
					s := newStart(t, bin, dataplane, n.noCIDRs)
					s.chain(t, n.name, n.entry, announced)
					var waits, adds []time.Duration
					began := time.Now()
					for i := 0; i < *startPods && (i == 0 || time.Since(began) < *startFor); i++ {
						add, wait := s.pod(t, i, announced)
						waits, adds = append(waits, wait), append(adds, add)
					}
					if n := s.forbidden.Seen(); n > 0 {
						t.Errorf("%d denied packets passed", n)
					}
					slices.Sort(waits)
					slices.Sort(adds)
					slow := len(waits) - 1 - len(waits)/100
					load, _ := os.ReadFile("/proc/loadavg")
					t.Logf("%d pods: the first answer after median %v, p99 %v, most %v; ADD took median %v, p99 %v; load %.4s", len(waits),
						waits[len(waits)/2], waits[slow], waits[len(waits)-1], adds[len(adds)/2], adds[slow], load)
					if *startMost > 0 && announced && waits[slow] > *startMost {
						t.Errorf("one pod in a hundred waited %v or longer, want %v at most", waits[slow], *startMost)
					}
				})
			}
		}
	}
}

// start is a node with a daemon, in a cluster that a simulated API server makes up.
type start struct {
	dir, bin  string
	node      *netlab.Node
	server    *simulated
	forbidden *netlab.Server
	cni       *libcni.CNIConfig
	list      *libcni.NetworkConfigList
}

func newStart(t *testing.T, bin, dataplane string, noCIDRs bool) *start {
	t.Helper()
	s := &start{dir: t.TempDir(), bin: bin, server: &simulated{Server: newServer(custom()...)}}
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var err error
	s.node, err = netlab.NewNode(netlab.NodeConfig{})
	check(err)
	t.Cleanup(func() { s.node.Close() })
	peer := netip.MustParseAddr(startServer)
	check(s.node.NS.AddRoute(netlab.Route{Via: s.node.Outside4, Dev: netlab.Uplink})) // proxy ARP asks for a route
	check(s.node.Outside.Addr("lo", netip.PrefixFrom(peer, 32)))
	allowed, err := s.node.Outside.Echo("udp", netip.AddrPortFrom(peer, portAllowed))
	check(err)
	t.Cleanup(func() { allowed.Close() })
	s.forbidden, err = s.node.Outside.Echo("udp", netip.AddrPortFrom(s.node.Outside4, portDenied))
	check(err)
	t.Cleanup(func() { s.forbidden.Close() })

	s.cluster(noCIDRs)
	check(s.server.apply(`apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: only-servers, namespace: ` + startSpace + `}
spec:
  podSelector: {}
  policyTypes: [Ingress, Egress]
  egress: [{to: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: servers}}}]}]
`))
	var l net.Listener
	check(s.node.NS.Do(func() (err error) { l, err = net.Listen("tcp", "127.0.0.1:0"); return err }))
	check(s.server.serve(l))
	t.Cleanup(func() { s.server.Close() })
	check(s.server.writeKubeconfig(filepath.Join(s.dir, "kubeconfig")))
	pool := ""
	if noCIDRs {
		pool = startPool
	}
	text := fmt.Sprintf(configuration, "n1", dataplane, filepath.Join(s.dir, "kubeconfig"), "", filepath.Join(s.dir, "audit.log")) +
		fmt.Sprintf("podCIDRs: %q\ncni: {socket: %q}\n", pool, s.socket())
	check(os.WriteFile(filepath.Join(s.dir, "config.yaml"), []byte(text), 0o600))
	p, err := child.Start(s.node.NS, filepath.Join(s.dir, "daemon.log"), filepath.Join(bin, "tierwalld"), "--config", filepath.Join(s.dir, "config.yaml"), "--ready-file", filepath.Join(s.dir, "ready.json"))
	check(err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(p.LastWords())
		}
		if err := p.Stop(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
	})
	var r struct{ Ready bool }
	check(p.Poll(t.Context(), filepath.Join(s.dir, "ready.json"), &r, time.Minute))
	return s
}

func (s *start) socket() string { return filepath.Join(s.dir, "cni.sock") }

// cluster makes two nodes, and a pod on the other one.
func (s *start) cluster(noCIDRs bool) {
	for _, name := range []string{startSpace, "servers"} {
		s.server.put("namespaces", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"kubernetes.io/metadata.name": name}}})
	}
	for name, a := range map[string]netip.Addr{"n1": s.node.Addr4, "n2": s.node.Outside4} {
		n := nodeObject(&rule.Node{Name: name, Addrs: []netip.Addr{a}, PodCIDRs: []netip.Prefix{netip.MustParsePrefix(map[string]string{"n1": startBlock, "n2": "10.244.192.0/18"}[name])}})
		if noCIDRs {
			n.Spec.PodCIDR, n.Spec.PodCIDRs = "", nil
		}
		s.server.put("nodes", n)
	}
	s.server.put("pods", podObject(&rule.Endpoint{Namespace: "servers", Name: "server", Node: "n2", Addrs: []netip.Addr{netip.MustParseAddr(startServer)}}, 0))
}

// chain sets the CNI configuration.
func (s *start) chain(t *testing.T, name, entry string, announced bool) {
	t.Helper()
	text := fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "start", "plugins": [{%s, "ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": %q}]], "routes": [{"dst": "0.0.0.0/0"}]}}`,
		entry, filepath.Join(s.dir, "ipam"), startBlock)
	if announced {
		text += fmt.Sprintf(`, {"type": "tierwall-cni", "socket": %q, "onTimeout": "fail"}`, s.socket())
	}
	var err error
	if s.list, err = libcni.ConfListFromBytes([]byte(text + "]}")); err != nil {
		t.Fatal(err)
	}
	path := append([]string{s.bin}, filepath.SplitList(*pluginPath)...)
	for _, plugin := range []string{name, "host-local"} {
		if !slices.ContainsFunc(path, func(dir string) bool { _, err := os.Stat(filepath.Join(dir, plugin)); return err == nil }) {
			t.Skipf("no CNI plugin %s in %s", plugin, *pluginPath)
		}
	}
	s.cni = libcni.NewCNIConfigWithCacheDir(path, filepath.Join(s.dir, "cache"), nil)
}

// pod starts and removes one. It returns how long ADD took, and the time from its return
// to the first answer.
func (s *start) pod(t *testing.T, i int, announced bool) (add, wait time.Duration) {
	t.Helper()
	name := fmt.Sprintf("pod-%d", i)
	object := podObject(&rule.Endpoint{Namespace: startSpace, Name: name, Node: "n1", Addrs: []netip.Addr{{}}}, i+1)
	object.Status = corev1.PodStatus{Phase: corev1.PodPending}
	s.server.put("pods", object)
	ns, err := netlab.New(name)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	denied, allowed := s.sender(t, ns), s.sender(t, ns)
	defer denied.Close()
	defer allowed.Close()
	go repeat(ctx, denied, netip.AddrPortFrom(s.node.Outside4, portDenied), time.Millisecond)
	rt := &libcni.RuntimeConf{
		ContainerID: name, NetNS: ns.Path(), IfName: "eth0",
		Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", startSpace}, {"K8S_POD_NAME", name}},
	}
	began := time.Now()
	if err := s.node.NS.Do(func() error { _, err := s.cni.AddNetworkList(ctx, s.list, rt); return err }); err != nil {
		t.Fatalf("ADD of %s: %v", name, err)
	}
	returned := time.Now()
	// A container starts without neighbours. What the early packets asked for in vain
	// would keep the kernel from asking again for a second.
	if err := ns.Do(forgetNeighbours); err != nil {
		t.Fatal(err)
	}
	if !announced {
		o := object.DeepCopy()
		var ip string
		if err := ns.Do(func() (err error) { ip, err = addressOf("eth0"); return err }); err != nil {
			t.Fatal(err)
		}
		o.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}}}
		s.server.put("pods", o)
	}
	go repeat(ctx, allowed, netip.AddrPortFrom(netip.MustParseAddr(startServer), portAllowed), 250*time.Microsecond)
	if err := allowed.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := allowed.Read(make([]byte, 64)); err != nil {
		t.Fatalf("%s has had no answer: %v", name, err)
	}
	wait = time.Since(returned)
	stop()
	if err := s.node.NS.Do(func() error { return s.cni.DelNetworkList(context.Background(), s.list, rt) }); err != nil {
		t.Fatalf("DEL of %s: %v", name, err)
	}
	s.server.remove("pods", startSpace+"/"+name)
	return returned.Sub(began), wait
}

// sender is a socket in a namespace that may have no network yet.
func (s *start) sender(t *testing.T, ns *netlab.NS) (c *net.UDPConn) {
	t.Helper()
	if err := ns.Do(func() (err error) { c, err = net.ListenUDP("udp4", nil); return err }); err != nil {
		t.Fatal(err)
	}
	return c
}

// repeat sends numbered datagrams until ctx ends.
func repeat(ctx context.Context, c *net.UDPConn, to netip.AddrPort, every time.Duration) {
	for n := uint64(0); ctx.Err() == nil; n++ {
		if _, err := c.WriteToUDPAddrPort(binary.BigEndian.AppendUint64(nil, n), to); errors.Is(err, net.ErrClosed) {
			return
		}
		time.Sleep(every)
	}
}

// forgetNeighbours empties the neighbour table of this thread's namespace.
func forgetNeighbours() error {
	list, err := netlink.NeighList(0, netlink.FAMILY_V4)
	for i := range list {
		if list[i].State&(netlink.NUD_INCOMPLETE|netlink.NUD_FAILED) != 0 {
			err = errors.Join(err, netlink.NeighDel(&list[i]))
		}
	}
	return err
}

// addressOf returns a device's IPv4 address in this thread's namespace.
func addressOf(device string) (string, error) {
	i, err := net.InterfaceByName(device)
	if err != nil {
		return "", err
	}
	addrs, err := i.Addrs()
	if err != nil {
		return "", err
	}
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil {
			return n.IP.String(), nil
		}
	}
	return "", fmt.Errorf("%s has no IPv4 address", device)
}
