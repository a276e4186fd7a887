// Command hostroutes is a CNI plugin for tests. It gives pods the network that Calico
// gives them: a veth whose end on the node is called cali and eleven digits, addresses of
// full length, a link-local gateway (169.254.1.1) that the node answers for by proxy ARP,
// and on the node one host route per address. Addresses come from the IPAM plugin that
// the configuration names. It is not meant for clusters that people use.
//
//	{"type": "hostroutes", "ipam": {"type": "host-local", ...}}
package main

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

var (
	gateway4 = net.IPv4(169, 254, 1, 1).To4()
	nodeMAC  = net.HardwareAddr{0xee, 0xee, 0xee, 0xee, 0xee, 0xee}
	gateway6 = net.ParseIP("fe80::ecee:eeff:feee:eeee") // what the kernel makes of nodeMAC
)

func main() {
	runtime.LockOSThread() // the namespace of a thread
	skel.PluginMainFuncs(skel.CNIFuncs{Add: add, Del: del, Check: func(*skel.CmdArgs) error { return nil }},
		version.PluginSupports("0.4.0", "1.0.0"), "hostroutes: pods' networks as Calico makes them, for tests")
}

func parse(stdin []byte) (*types.NetConf, error) {
	c := &types.NetConf{}
	if err := json.Unmarshal(stdin, c); err != nil {
		return nil, fmt.Errorf("network configuration: %w", err)
	}
	if c.IPAM.Type == "" {
		return nil, errors.New("ipam.type: want the name of an IPAM plugin, such as host-local")
	}
	return c, nil
}

// device returns the name of a container's device on the node.
func device(containerID string) string {
	sum := sha1.Sum([]byte(containerID))
	return "cali" + hex.EncodeToString(sum[:])[:11]
}

func add(args *skel.CmdArgs) error {
	c, err := parse(args.StdinData)
	if err != nil {
		return err
	}
	given, err := invoke.DelegateAdd(context.Background(), c.IPAM.Type, args.StdinData, nil)
	if err != nil {
		return err
	}
	result, err := current.NewResultFromResult(given)
	if err != nil {
		return err
	}
	result.Interfaces = []*current.Interface{{Name: device(args.ContainerID)}, {Name: args.IfName, Sandbox: args.Netns}}
	for _, ip := range result.IPs {
		bits := 8 * len(ip.Address.IP)
		if v4 := ip.Address.IP.To4(); v4 != nil {
			ip.Address.IP, bits = v4, 32
		}
		ip.Address.Mask, ip.Gateway, ip.Interface = net.CIDRMask(bits, bits), nil, new(int)
		*ip.Interface = 1
	}
	if err := connect(device(args.ContainerID), args.Netns, args.IfName, result.IPs); err != nil {
		return errors.Join(err, del(args))
	}
	return types.PrintResult(result, c.CNIVersion)
}

// connect makes the veth in the pod's namespace, as Calico does, and moves the other end
// to the node's.
func connect(host, path, name string, ips []*current.IPConfig) error {
	here, err := netns.Get()
	if err != nil {
		return err
	}
	defer here.Close()
	pod, err := netns.GetFromPath(path)
	if err != nil {
		return fmt.Errorf("open the pod's namespace: %w", err)
	}
	defer pod.Close()
	inPod, err := netlink.NewHandleAt(pod)
	if err != nil {
		return err
	}
	defer inPod.Close()
	onNode, err := netlink.NewHandle()
	if err != nil {
		return err
	}
	defer onNode.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = name, 1500
	if err := inPod.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: host, PeerNamespace: netlink.NsFd(here), PeerHardwareAddr: nodeMAC}); err != nil {
		return fmt.Errorf("make the pod's device: %w", err)
	}
	eth, err := inPod.LinkByName(name)
	if err != nil {
		return err
	}
	cali, err := onNode.LinkByName(host)
	if err != nil {
		return err
	}
	// Nobody else looks for duplicates of these addresses, so nobody waits for that.
	quiet := map[string]string{"net/ipv4/conf/" + host + "/proxy_arp": "1", "net/ipv4/neigh/" + host + "/proxy_delay": "0", "net/ipv6/conf/" + host + "/accept_dad": "0", "net/ipv6/conf/" + host + "/forwarding": "1"}
	for key, value := range quiet {
		if err := os.WriteFile(filepath.Join("/proc/sys", key), []byte(value), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	errs := []error{inPod.LinkSetUp(eth), onNode.LinkSetUp(cali)}
	for _, ip := range ips {
		errs = append(errs, inPod.AddrAdd(eth, &netlink.Addr{IPNet: &ip.Address, Flags: unix.IFA_F_NODAD}))
		gateway := gateway6
		if ip.Address.IP.To4() != nil {
			gateway = gateway4
			errs = append(errs, inPod.RouteAdd(&netlink.Route{LinkIndex: eth.Attrs().Index, Scope: netlink.SCOPE_LINK, Dst: &net.IPNet{IP: gateway4, Mask: net.CIDRMask(32, 32)}}))
		}
		errs = append(errs,
			inPod.RouteAdd(&netlink.Route{LinkIndex: eth.Attrs().Index, Gw: gateway}),
			onNode.RouteAdd(&netlink.Route{LinkIndex: cali.Attrs().Index, Scope: netlink.SCOPE_LINK, Dst: &ip.Address}))
	}
	return errors.Join(errs...)
}

func del(args *skel.CmdArgs) error {
	c, err := parse(args.StdinData)
	if err != nil {
		return err
	}
	if l, err := netlink.LinkByName(device(args.ContainerID)); err == nil {
		if err := netlink.LinkDel(l); err != nil {
			return err
		}
	}
	return invoke.DelegateDel(context.Background(), c.IPAM.Type, args.StdinData, nil)
}
