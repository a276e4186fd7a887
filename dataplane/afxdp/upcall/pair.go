package upcall

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

	"github.com/tierwall/tierwall/dataplane/afxdp/attach"
	"github.com/tierwall/tierwall/dataplane/afxdp/kern"
)

// Alias tells our pair from somebody else's devices of that name.
const Alias = "tierwall upcall pair"

// addrGenNone is IN6_ADDR_GEN_MODE_NONE: no link-local address.
const addrGenNone = 1

// Pair is the veth pair between the stack and the AF_XDP sockets, with one
// queue for each of them, whose number never changes. It has no address and no
// neighbours; nothing but our programs sends into it.
type Pair struct {
	nl            *netlink.Handle
	pins          kern.Pins
	Stack, Socket netlink.Link
	links         []io.Closer
	Adopted       bool // from an earlier process
}

// RemovePair deletes the pair of an earlier run. The caller has the
// namespace's lock, so that nobody uses it.
func RemovePair(nl *netlink.Handle) error {
	for _, name := range []string{kern.UpcallStack, kern.UpcallSocket} {
		l, err := nl.LinkByName(name)
		if missing := (netlink.LinkNotFoundError{}); errors.As(err, &missing) {
			continue
		} else if err != nil {
			return fmt.Errorf("look for device %s: %w", name, err)
		}
		if l.Type() != "veth" || name == kern.UpcallStack && l.Attrs().Alias != Alias {
			return fmt.Errorf("device %s exists and is not ours: rename or remove it", name)
		}
		if err := nl.LinkDel(l); err != nil {
			return fmt.Errorf("remove the device %s of an earlier run: %w", name, err)
		}
	}
	return nil
}

// OpenPair takes over the pair of an earlier run, whose programs go on
// sending to it meanwhile, or creates one.
func OpenPair(nl *netlink.Handle, pins kern.Pins, mtu, queues int) (*Pair, error) {
	p := &Pair{nl: nl, pins: pins}
	if p.adopt(mtu, queues) {
		return p, nil
	}
	p, err := newPair(nl, mtu, queues)
	if err == nil {
		p.pins = pins
	}
	return p, err
}

// adopt finds the devices that the pinned links are at, if they are what we would
// make.
func (p *Pair) adopt(mtu, queues int) bool {
	at := func(pin, name string) netlink.Link {
		ln, ok := p.pins.Link(pin)
		if !ok {
			return nil
		}
		defer ln.Close()
		l, err := p.nl.LinkByIndex(kern.LinkDevice(ln))
		if err != nil || l.Attrs().Name != name || l.Attrs().MTU != mtu ||
			l.Attrs().NumTxQueues != queues || l.Attrs().NumRxQueues != queues {
			return nil
		}
		return l
	}
	stack, socket := at(kern.PinUpcallTCX, kern.UpcallStack), at(kern.PinUpcallXDP, kern.UpcallSocket)
	p.Stack, p.Socket = stack, socket
	p.Adopted = stack != nil && socket != nil
	return p.Adopted
}

// newPair creates the pair, without programs and down. On error nothing is
// left.
func newPair(nl *netlink.Handle, mtu, queues int) (p *Pair, err error) {
	if err := RemovePair(nl); err != nil {
		return nil, err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = kern.UpcallStack, mtu
	attrs.NumTxQueues, attrs.NumRxQueues = queues, queues // of both ends
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: kern.UpcallSocket, PeerMTU: uint32(mtu)}
	if err := nl.LinkAdd(veth); err != nil {
		return nil, fmt.Errorf("create the upcall pair: %w", kern.MissingVeth(err))
	}
	p = &Pair{nl: nl}
	defer func() {
		if err != nil {
			err = errors.Join(err, nl.LinkDel(veth))
		}
	}()
	if err := nl.LinkSetAlias(veth, Alias); err != nil {
		return nil, fmt.Errorf("name the upcall pair: %w", err)
	}
	for _, end := range []struct {
		name string
		link *netlink.Link
	}{{kern.UpcallStack, &p.Stack}, {kern.UpcallSocket, &p.Socket}} {
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
	if err := completeChecksums(kern.UpcallStack); err != nil {
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

// Start attaches the programs, or replaces those of an earlier run, and brings
// the pair up.
func (p *Pair) Start(o *kern.PodObjects, mode attach.Mode) error {
	xdp, ok := p.pins.Takeover(kern.PinUpcallXDP, p.Socket.Attrs().Index, o.UpcallXdp)
	if !ok {
		var err error
		if xdp, err = link.AttachXDP(link.XDPOptions{
			Program: o.UpcallXdp, Interface: p.Socket.Attrs().Index, Flags: link.XDPDriverMode,
		}); err != nil {
			return fmt.Errorf("attach a program to the upcall pair: %w", kern.MissingXDP(err))
		}
		if err := p.pins.Keep(kern.PinUpcallXDP, xdp); err != nil {
			return errors.Join(err, xdp.Close())
		}
	}
	p.links = append(p.links, xdp)
	if mode == attach.Clsact { // the filter ends with the pair
		if _, err := attach.PutClsact(p.nl, p.Stack.Attrs().Index, o.UpcallIngress, true); err != nil {
			return err
		}
		if err := p.pins.Remove(kern.PinUpcallTCX); err != nil { // of an earlier run
			return err
		}
		return p.up()
	}
	tcx, ok := p.pins.Takeover(kern.PinUpcallTCX, p.Stack.Attrs().Index, o.UpcallIngress)
	if !ok {
		var err error
		if tcx, err = link.AttachTCX(link.TCXOptions{
			Program: o.UpcallIngress, Interface: p.Stack.Attrs().Index, Attach: ebpf.AttachTCXIngress,
		}); err != nil {
			return fmt.Errorf("attach a tcx program (Linux 6.6): %w", err)
		}
		if err := p.pins.Keep(kern.PinUpcallTCX, tcx); err != nil {
			return errors.Join(err, tcx.Close())
		}
	}
	p.links = append(p.links, tcx)
	return p.up()
}

func (p *Pair) up() error {
	for _, l := range []netlink.Link{p.Socket, p.Stack} {
		if err := p.nl.LinkSetUp(l); err != nil {
			return fmt.Errorf("bring %s up: %w", l.Attrs().Name, err)
		}
	}
	return nil
}

// Lost returns the frames dropped between the two ends because the kernel's own
// queue was full.
func (p *Pair) Lost() uint64 {
	l, err := p.nl.LinkByIndex(p.Stack.Attrs().Index)
	if err != nil || l.Attrs().Statistics == nil {
		return 0
	}
	return l.Attrs().Statistics.TxDropped
}

// Close removes the pair, or leaves it to the next process. The socket may still
// be open.
func (p *Pair) Close(keep bool) error {
	var errs []error
	for _, l := range p.links {
		errs = append(errs, l.Close())
	}
	if keep {
		return errors.Join(errs...)
	}
	errs = append(errs, p.pins.Drop(kern.PinUpcallXDP), p.pins.Drop(kern.PinUpcallTCX))
	if err := p.nl.LinkDel(p.Stack); err != nil && !errors.Is(err, unix.ENODEV) {
		errs = append(errs, fmt.Errorf("remove the upcall pair: %w", err))
	}
	return errors.Join(errs...)
}
