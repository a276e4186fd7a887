package doctor

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"

	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/nstest"
)

// files makes a node's file system of path and content pairs.
func files(t *testing.T, pairs ...string) string {
	t.Helper()
	root := t.TempDir()
	for i := 0; i < len(pairs); i += 2 {
		path := filepath.Join(root, strings.ReplaceAll(pairs[i], "RELEASE", dataplane.KernelRelease()))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(pairs[i+1]), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func (r *Report) check(t *testing.T, name string) Check {
	t.Helper()
	for _, c := range r.Checks {
		if c.Name == name {
			return c
		}
	}
	t.Fatalf("no check %q in %+v", name, r.Checks)
	return Check{}
}

// A piece is there, loadable or missing by what the kernel's files say: one set of modules
// of several is enough, and the worst module of a set counts.
func TestPieceStates(t *testing.T) {
	const (
		config = "CONFIG_NF_TABLES=m\nCONFIG_NFT_CT=m\nCONFIG_NFT_COMPAT=m\nCONFIG_NETFILTER_XT_TARGET_NFQUEUE=m\n# CONFIG_NFT_QUEUE is not set\nCONFIG_VETH=y\nCONFIG_XDP_SOCKETS=y\nCONFIG_BRIDGE_NETFILTER=m\n"
		dep    = "kernel/net/netfilter/nf_tables.ko.xz:\nkernel/net/netfilter/nft_ct.ko.xz: kernel/net/netfilter/nf_tables.ko.xz\nkernel/net/netfilter/nft_compat.ko.xz:\nkernel/net/netfilter/xt_NFQUEUE.ko.xz:\n"
	)
	root := files(t, "boot/config-RELEASE", config, "lib/modules/RELEASE/modules.dep", dep, "lib/modules/RELEASE/modules.builtin", "kernel/drivers/net/veth.ko\n",
		"sys/module/nf_tables/refcnt", "1", "proc/modules", "")
	n := readNode(root)
	got := map[string]pieceState{}
	for _, s := range n.modules(pieces) {
		got[s.piece.name] = s
	}
	for name, want := range map[string]struct {
		state State
		named string
	}{
		"nf_tables":       {Loadable, "nft_ct"}, // nf_tables itself is loaded
		"queue rule":      {Loadable, "nft_compat xt_NFQUEUE"},
		"nfnetlink_queue": {Missing, "nfnetlink_queue"},
		"veth":            {OK, "veth"},
		"AF_XDP sockets":  {OK, ""},
		"br_netfilter":    {Missing, "br_netfilter"}, // built as a module that was not installed
	} {
		if s := got[name]; s.state != want.state || strings.Join(s.modules, " ") != want.named {
			t.Errorf("%s: %q, %q; want %q, %q", name, s.state, s.modules, want.state, want.named)
		}
	}
}

// With --no-load nothing is tried while something would have to be loaded for it.
func TestNoLoadTriesNothingThatLoads(t *testing.T) {
	nstest.Need(t)
	loaded := []string{}
	for _, p := range pieces {
		for _, set := range p.sets {
			for _, m := range set {
				if m.name != "" {
					loaded = append(loaded, "sys/module/"+m.name+"/refcnt", "1")
				}
			}
		}
	}
	loaded = append(loaded, "boot/config-RELEASE", "CONFIG_XDP_SOCKETS=y\n")
	for name, tt := range map[string]struct {
		files []string
		tried bool
	}{
		"not loaded": {[]string{"lib/modules/RELEASE/modules.dep", "kernel/net/netfilter/nf_tables.ko:\n"}, false},
		"loaded":     {loaded, true},
	} {
		t.Run(name, func(t *testing.T) {
			tried := false
			r := Examine(Options{NoLoad: true, Root: files(t, tt.files...), probes: func() probes {
				tried = true
				return probes{nfqueue: probe{tried: true, how: "well"}, afxdp: probe{tried: true, how: "well"}}
			}})
			if tried != tt.tried {
				t.Fatalf("tried: %v", tried)
			}
			if d := r.Dataplanes["auto"]; (d.Works == Fully) != tt.tried || (d.Works == NotTried) == tt.tried {
				t.Errorf("auto: %+v", d)
			}
		})
	}
}

// What the backends gave decides how a dataplane works, and what keeps packets from all
// of them wins.
func TestDataplanes(t *testing.T) {
	well, partly, no := probe{tried: true, how: "H"}, probe{tried: true, how: "H", limits: []string{"L"}}, probe{tried: true, err: errors.New("E")}
	for _, tt := range []struct {
		nfqueue, afxdp    probe
		auto, nf, xdp     Works
		says              string
		healthyWhenJudged bool
	}{
		{well, well, Fully, Fully, Fully, "both backends", true},
		{well, partly, Fully, Fully, Partly, "both backends", true}, // what afxdp cannot read nfqueue sees
		{well, no, Fully, Fully, No, "nfqueue alone", true},
		{partly, well, Partly, Partly, Fully, "L", true},
		{partly, no, Partly, Partly, No, "nfqueue alone", false},
		{no, well, Partly, No, Fully, "what afxdp cannot judge is dropped, and the node is not ready: E", true},
		{no, partly, Partly, No, Partly, "L", false},
		{no, no, No, No, No, "nfqueue: E; afxdp: E", false},
	} {
		d := judge(probes{tt.nfqueue, tt.afxdp}, nil)
		if d["auto"].Works != tt.auto || d["nfqueue"].Works != tt.nf || d["afxdp"].Works != tt.xdp {
			t.Errorf("%+v: %+v", tt, d)
		}
		if text := d["auto"].How + d["auto"].Why + strings.Join(d["auto"].Limits, ";"); !strings.Contains(text, tt.says) {
			t.Errorf("auto says %q, want %q", text, tt.says)
		}
		if r := (&Report{Dataplanes: d}); r.Healthy() != tt.healthyWhenJudged {
			t.Errorf("%+v: healthy %v", d, r.Healthy())
		}
		for name, d := range judge(probes{tt.nfqueue, tt.afxdp}, errors.New("netkit")) {
			if d.Works != No || d.Why != "netkit" {
				t.Errorf("%s where packets pass no hook: %+v", name, d)
			}
		}
	}
}

// Without root it says what was not looked at.
func TestWithoutRoot(t *testing.T) {
	x := &examiner{Options: Options{Root: "/"}, node: readNode("/")}
	x.network()
	unseen := 0
	for _, c := range x.checks {
		if strings.Contains(c.Detail, "not looked at") {
			unseen++
			if c.State != Warning || c.Hint == "" {
				t.Errorf("%+v", c)
			}
		}
	}
	if unseen < 2 {
		t.Errorf("%d checks were not looked at: %+v", unseen, x.checks)
	}
}

func TestLockdown(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "[none] integrity confidentiality\n": "", "none [integrity] confidentiality\n": "integrity", "none integrity [confidentiality]\n": "confidentiality", "[": "",
	} {
		if got := lockdownMode(text); got != want {
			t.Errorf("%q: %q", text, got)
		}
	}
}

func TestCapabilities(t *testing.T) {
	if v, err := effectiveCapabilities("Name:\tx\nCapEff:\t0000000000001000\n"); err != nil || v != 1<<12 {
		t.Errorf("%x, %v", v, err)
	}
	if _, err := effectiveCapabilities("Name:\tx\n"); err == nil {
		t.Error("no CapEff and no error")
	}
	root := files(t, "proc/self/status", "CapEff:\t0000000000001000\n")
	x := &examiner{Options: Options{Root: root}, node: readNode(root)}
	x.Root = "/"
	x.privileges()
	if c := x.checks[0]; c.State != Missing || !strings.Contains(c.Detail, "lacks CAP_NET_RAW, CAP_BPF, CAP_PERFMON, CAP_IPC_LOCK") {
		t.Errorf("%+v", c)
	}
}

// The kind of network plugin, by devices and by the runtime's configuration.
func TestNetworkPlugin(t *testing.T) {
	nstest.Need(t)
	veth := func(name string, bridge int) func(*testing.T, *nstest.NS) {
		return func(t *testing.T, ns *nstest.NS) { nstest.Pair(t, ns, name, nstest.New(t), "eth0") }
	}
	bridged := func(t *testing.T, ns *nstest.NS) {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "cni0"
		if err := ns.Handle().LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
			t.Fatal(err)
		}
		veth("veth0", 1)(t, ns)
		port, err := ns.Link("veth0")
		if err != nil {
			t.Fatal(err)
		}
		bridge, err := ns.Link("cni0")
		if err != nil {
			t.Fatal(err)
		}
		if err := ns.Handle().LinkSetMaster(port, bridge); err != nil {
			t.Fatal(err)
		}
	}
	pair := func(a, b string) func(*testing.T, *nstest.NS) {
		return func(t *testing.T, ns *nstest.NS) {
			if err := ns.Handle().LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: a}, PeerName: b}); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, tt := range []struct {
		name, conf string
		devices    func(*testing.T, *nstest.NS)
		want       string
		state      State
	}{
		{"none", "", nil, "none found", Warning},
		{"ptp by devices", "", veth("veth0", 0), "ptp", OK},
		{"bridge by devices", "", bridged, "bridge", OK},
		{"calico", "", veth("cali1", 0), "calico", OK},
		{"cilium", "", pair("cilium_host", "cilium_net"), "cilium", Warning},
		{"calico eBPF", "", pair("bpfin.cali", "bpfout.cali"), "calico (eBPF)", Warning},
		{"flannel", `{"plugins":[{"type":"flannel"},{"type":"portmap"}]}`, bridged, "flannel (/etc/cni/net.d/10-x.conflist: flannel, portmap)", OK},
		{"macvlan", `{"type":"macvlan"}`, nil, "macvlan", Warning},
		{"unknown", `{"type":"made-up"}`, nil, "made-up (/etc/cni/net.d/10-x.conflist: made-up) is not tried", Warning},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ns := nstest.New(t)
			if tt.devices != nil {
				tt.devices(t, ns)
			}
			root := files(t, "etc/cni/net.d/.keep", "")
			if tt.conf != "" {
				root = files(t, "etc/cni/net.d/00-README", "no configuration", "etc/cni/net.d/10-x.conflist", tt.conf, "etc/cni/net.d/20-y.conflist", `{"type":"ptp"}`)
			}
			x := &examiner{Options: Options{Root: root}, node: readNode(root)}
			if err := ns.Do(func() error { x.network(); return nil }); err != nil {
				t.Fatal(err)
			}
			r := Report{Checks: x.checks}
			if c := r.check(t, "network plugin"); c.State != tt.state || !strings.HasPrefix(c.Detail, tt.want) {
				t.Errorf("%+v, want %s %q", c, tt.state, tt.want)
			}
		})
	}
}

// Cilium's datapath blocks every dataplane.
func TestCiliumBlocks(t *testing.T) {
	nstest.Need(t)
	ns, pod := nstest.New(t), nstest.New(t)
	if err := ns.Handle().LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "cilium_host"}, PeerName: "cilium_net"}); err != nil {
		t.Fatal(err)
	}
	nstest.Pair(t, ns, "lxc1234", pod, "eth0")
	var r Report
	if err := ns.Do(func() error {
		r = Examine(Options{probes: func() probes {
			return probes{nfqueue: probe{tried: true, how: "well"}, afxdp: probe{tried: true, how: "well"}}
		}})
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if c := r.check(t, "hooks"); c.State != Missing || !strings.Contains(c.Detail, "eBPF host routing") || c.Hint == "" {
		t.Errorf("%+v", c)
	}
	if r.Healthy() {
		t.Errorf("healthy: %+v", r.Dataplanes)
	}
}

// Rules of others: who made them, a policy that drops what we allow, marks that are ours,
// and flowtables. Those of kube-proxy name its mode.
func TestOtherRules(t *testing.T) {
	nstest.Need(t)
	ns := nstest.New(t)
	nft, err := nftables.New(nftables.WithNetNSFd(ns.FD()))
	if err != nil {
		t.Fatal(err)
	}
	look := func() Report {
		t.Helper()
		x := &examiner{Options: Options{Root: "/", root: true}, node: readNode("/")}
		if err := ns.Do(func() error { x.proxy(nil); x.rulesets(); return nil }); err != nil {
			t.Fatal(err)
		}
		return Report{Checks: x.checks}
	}
	r := look()
	if c := r.check(t, "other rules"); c.Detail != "none in nftables" {
		t.Errorf("%+v", c)
	}
	drop := nftables.ChainPolicyDrop
	filter := nft.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: "filter"})
	nft.AddChain(&nftables.Chain{Table: filter, Name: "FORWARD", Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter, Policy: &drop})
	nft.AddChain(&nftables.Chain{Table: filter, Name: "ufw-before-forward"})
	nft.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: "firewalld"})
	nft.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: "kube-proxy"})
	mangle := nft.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: "vpn"})
	chain := nft.AddChain(&nftables.Chain{Table: mangle, Name: "mark", Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityMangle})
	mark := func(v byte) {
		nft.AddRule(&nftables.Rule{Table: mangle, Chain: chain, Exprs: []expr.Any{
			&expr.Immediate{Register: 1, Data: []byte{v, 0, 0, 0}}, &expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: 1},
		}})
	}
	mark(0x01)
	if err := nft.Flush(); err != nil {
		t.Fatal(err)
	}
	r = look()
	if c := r.check(t, "other rules"); c.State != OK || !strings.Contains(c.Detail, "ip filter (ufw)") || !strings.Contains(c.Detail, "inet firewalld (firewalld)") {
		t.Errorf("%+v", c)
	}
	if c := r.check(t, "forward policy"); c.State != Warning || !strings.Contains(c.Detail, "ip filter FORWARD (ufw)") {
		t.Errorf("%+v", c)
	}
	if c := r.check(t, "Service proxy"); c.State != OK || c.Detail != "kube-proxy in mode nftables" {
		t.Errorf("%+v", c)
	}
	for _, c := range r.Checks {
		if c.Name == "packet marks" {
			t.Errorf("bit 0x1 is not ours: %+v", c)
		}
	}
	mark(0x20) // the accept bit
	if err := nft.Flush(); err != nil {
		t.Fatal(err)
	}
	if c := look(); c.check(t, "packet marks").State != Warning || !strings.Contains(c.check(t, "packet marks").Detail, "inet vpn") {
		t.Errorf("%+v", c.check(t, "packet marks"))
	}
	nft.AddFlowtable(&nftables.Flowtable{Table: filter, Name: "fast", Hooknum: nftables.FlowtableHookIngress, Priority: nftables.FlowtablePriorityFilter})
	if err := nft.Flush(); err != nil {
		t.Logf("no flowtables here (CONFIG_NF_FLOW_TABLE): %v", err)
		return
	}
	r = look()
	if c := r.check(t, "flowtables"); c.State != Warning || !strings.Contains(c.Detail, "ip filter") {
		t.Errorf("%+v", c)
	}
}

// What the daemon could run out of.
func TestLimits(t *testing.T) {
	root := files(t, "proc/sys/fs/inotify/max_user_instances", "10\n", "proc/sys/fs/inotify/max_user_watches", "100000\n",
		"proc/sys/net/netfilter/nf_conntrack_count", "95\n", "proc/sys/net/netfilter/nf_conntrack_max", "100\n")
	x := &examiner{Options: Options{Root: root, Dirs: []string{"/var/log/tierwall"}}, node: readNode(root)}
	x.limits()
	r := Report{Checks: x.checks}
	if c := r.check(t, "inotify instances"); c.State != Warning || !strings.Contains(c.Hint, "fs.inotify.max_user_instances=128") {
		t.Errorf("%+v", c)
	}
	if c := r.check(t, "inotify watches"); c.State != OK {
		t.Errorf("%+v", c)
	}
	if c := r.check(t, "conntrack table"); c.State != Warning {
		t.Errorf("%+v", c)
	}
	if c := r.check(t, "disk /var/log/tierwall"); !strings.Contains(c.Detail, "MiB free") {
		t.Errorf("%+v", c)
	}
}
