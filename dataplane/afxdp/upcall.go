package afxdp

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// upcallAlias tells our pair from somebody else's devices of that name.
const upcallAlias = "tierwall upcall pair"

// addrGenNone is IN6_ADDR_GEN_MODE_NONE: no link-local address.
const addrGenNone = 1

// upcallPair is the veth pair between the stack and the AF_XDP sockets, with one
// queue for each of them, whose number never changes. It has no address and no
// neighbours; nothing but our programs sends into it.
type upcallPair struct {
	nl            *netlink.Handle
	pins          pins
	stack, socket netlink.Link
	links         []io.Closer
	adopted       bool // from an earlier process
}

// removeUpcallPair deletes the pair of an earlier run. The caller has the
// namespace's lock, so that nobody uses it.
func removeUpcallPair(nl *netlink.Handle) error {
	for _, name := range []string{UpcallStack, UpcallSocket} {
		l, err := nl.LinkByName(name)
		if missing := (netlink.LinkNotFoundError{}); errors.As(err, &missing) {
			continue
		} else if err != nil {
			return fmt.Errorf("look for device %s: %w", name, err)
		}
		if l.Type() != "veth" || name == UpcallStack && l.Attrs().Alias != upcallAlias {
			return fmt.Errorf("device %s exists and is not ours: rename or remove it", name)
		}
		if err := nl.LinkDel(l); err != nil {
			return fmt.Errorf("remove the device %s of an earlier run: %w", name, err)
		}
	}
	return nil
}

// openUpcallPair takes over the pair of an earlier run, whose programs go on
// sending to it meanwhile, or creates one.
func openUpcallPair(nl *netlink.Handle, pins pins, mtu, queues int) (*upcallPair, error) {
	p := &upcallPair{nl: nl, pins: pins}
	if p.adopt(mtu, queues) {
		return p, nil
	}
	p, err := newUpcallPair(nl, mtu, queues)
	if err == nil {
		p.pins = pins
	}
	return p, err
}

// adopt finds the devices that the pinned links are at, if they are what we would
// make.
func (p *upcallPair) adopt(mtu, queues int) bool {
	at := func(pin, name string) netlink.Link {
		ln, ok := p.pins.link(pin)
		if !ok {
			return nil
		}
		defer ln.Close()
		l, err := p.nl.LinkByIndex(linkDevice(ln))
		if err != nil || l.Attrs().Name != name || l.Attrs().MTU != mtu ||
			l.Attrs().NumTxQueues != queues || l.Attrs().NumRxQueues != queues {
			return nil
		}
		return l
	}
	stack, socket := at(pinUpcallTCX, UpcallStack), at(pinUpcallXDP, UpcallSocket)
	p.stack, p.socket = stack, socket
	p.adopted = stack != nil && socket != nil
	return p.adopted
}

// newUpcallPair creates the pair, without programs and down. On error nothing is
// left.
func newUpcallPair(nl *netlink.Handle, mtu, queues int) (p *upcallPair, err error) {
	if err := removeUpcallPair(nl); err != nil {
		return nil, err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = UpcallStack, mtu
	attrs.NumTxQueues, attrs.NumRxQueues = queues, queues // of both ends
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: UpcallSocket, PeerMTU: uint32(mtu)}
	if err := nl.LinkAdd(veth); err != nil {
		return nil, fmt.Errorf("create the upcall pair: %w", missingVeth(err))
	}
	p = &upcallPair{nl: nl}
	defer func() {
		if err != nil {
			err = errors.Join(err, nl.LinkDel(veth))
		}
	}()
	if err := nl.LinkSetAlias(veth, upcallAlias); err != nil {
		return nil, fmt.Errorf("name the upcall pair: %w", err)
	}
	for _, end := range []struct {
		name string
		link *netlink.Link
	}{{UpcallStack, &p.stack}, {UpcallSocket, &p.socket}} {
		l, err := nl.LinkByName(end.name)
		if err != nil {
			return nil, fmt.Errorf("find the upcall pair: %w", err)
		}
		if err := nl.LinkSetARPOff(l); err != nil {
			return nil, fmt.Errorf("switch ARP of %s off: %w", end.name, err)
		}
		// No address is generated without either; the sysctl also stops router
		// solicitations, where /proc/sys can be written.
		_ = nl.LinkSetIP6AddrGenMode(l, addrGenNone)
		_ = os.WriteFile("/proc/sys/net/ipv6/conf/"+end.name+"/disable_ipv6", []byte("1"), 0o644)
		*end.link = l
	}
	if err := completeChecksums(UpcallStack); err != nil {
		return nil, err
	}
	return p, nil
}

// completeChecksums makes the kernel fill in the checksums of what is sent to a
// device. A pod's packets carry none (CHECKSUM_PARTIAL): on their way through a
// socket they would lose the note that somebody still has to compute it.
func completeChecksums(device string) error {
	e, err := ethtool.NewEthtool()
	if err != nil {
		return fmt.Errorf("open ethtool: %w", err)
	}
	defer e.Close()
	features, err := e.Features(device)
	if err != nil {
		return fmt.Errorf("read features of %s: %w", device, err)
	}
	off := map[string]bool{}
	for name, on := range features {
		if on && strings.HasPrefix(name, "tx-checksum-") {
			off[name] = false
		}
	}
	if len(off) == 0 {
		return nil
	}
	if err := e.Change(device, off); err != nil {
		return fmt.Errorf("switch checksum offload of %s off: %w", device, err)
	}
	return nil
}

// start attaches the programs, or replaces those of an earlier run, and brings
// the pair up.
func (p *upcallPair) start(o *podObjects, mode Attach) error {
	xdp, ok := p.pins.takeover(pinUpcallXDP, p.socket.Attrs().Index, o.UpcallXdp)
	if !ok {
		var err error
		if xdp, err = link.AttachXDP(link.XDPOptions{
			Program: o.UpcallXdp, Interface: p.socket.Attrs().Index, Flags: link.XDPDriverMode,
		}); err != nil {
			return fmt.Errorf("attach a program to the upcall pair: %w", missingXDP(err))
		}
		if err := p.pins.keep(pinUpcallXDP, xdp); err != nil {
			return errors.Join(err, xdp.Close())
		}
	}
	p.links = append(p.links, xdp)
	if mode == AttachClsact { // the filter ends with the pair
		if _, err := putClsact(p.nl, p.stack.Attrs().Index, o.UpcallIngress, true); err != nil {
			return err
		}
		if err := p.pins.remove(pinUpcallTCX); err != nil { // of an earlier run
			return err
		}
		return p.up()
	}
	tcx, ok := p.pins.takeover(pinUpcallTCX, p.stack.Attrs().Index, o.UpcallIngress)
	if !ok {
		var err error
		if tcx, err = link.AttachTCX(link.TCXOptions{
			Program: o.UpcallIngress, Interface: p.stack.Attrs().Index, Attach: ebpf.AttachTCXIngress,
		}); err != nil {
			return fmt.Errorf("attach a tcx program (Linux 6.6): %w", err)
		}
		if err := p.pins.keep(pinUpcallTCX, tcx); err != nil {
			return errors.Join(err, tcx.Close())
		}
	}
	p.links = append(p.links, tcx)
	return p.up()
}

func (p *upcallPair) up() error {
	for _, l := range []netlink.Link{p.socket, p.stack} {
		if err := p.nl.LinkSetUp(l); err != nil {
			return fmt.Errorf("bring %s up: %w", l.Attrs().Name, err)
		}
	}
	return nil
}

// lost returns the frames dropped between the two ends because the kernel's own
// queue was full.
func (p *upcallPair) lost() uint64 {
	l, err := p.nl.LinkByIndex(p.stack.Attrs().Index)
	if err != nil || l.Attrs().Statistics == nil {
		return 0
	}
	return l.Attrs().Statistics.TxDropped
}

// close removes the pair, or leaves it to the next process. The socket may still
// be open.
func (p *upcallPair) close(keep bool) error {
	var errs []error
	for _, l := range p.links {
		errs = append(errs, l.Close())
	}
	if keep {
		return errors.Join(errs...)
	}
	errs = append(errs, p.pins.drop(pinUpcallXDP), p.pins.drop(pinUpcallTCX))
	if err := p.nl.LinkDel(p.stack); err != nil && !errors.Is(err, unix.ENODEV) {
		errs = append(errs, fmt.Errorf("remove the upcall pair: %w", err))
	}
	return errors.Join(errs...)
}
