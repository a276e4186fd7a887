package connectivity

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/dataplane/nstest/netlab"
)

// arrival is what a tap tells packets apart by. The source address is not part
// of it: a Service's client may come from another one. Every attempt has a source
// port of its own, which masquerading keeps.
type arrival struct {
	at    netip.Addr // destination
	proto byte
	from  uint16 // source port, or identifier of an echo request
	port  uint16 // destination port; 0 for ICMP
}

// tap remembers what arrived at a namespace's device, and what left by it.
type tap struct {
	file *os.File
	done chan struct{}

	mu         sync.Mutex
	seen, left map[arrival]int
}

// newTap starts a tap that ends with the test.
func newTap(t *testing.T, ns *netlab.NS) *tap {
	t.Helper()
	p := &tap{done: make(chan struct{}), seen: map[arrival]int{}, left: map[arrival]int{}}
	link, err := ns.Link(netlab.PodDevice)
	if err != nil {
		t.Fatal(err)
	}
	err = ns.Do(func() error {
		all := int(binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, unix.ETH_P_ALL)))
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, all)
		if err != nil {
			return err
		}
		p.file = os.NewFile(uintptr(fd), "tap")
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20); err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: uint16(all), Ifindex: link.Attrs().Index})
	})
	if err != nil {
		t.Fatalf("tap on %s: %v", ns.Name(), err)
	}
	go p.run()
	t.Cleanup(func() {
		p.file.Close()
		<-p.done
	})
	return p
}

func (p *tap) run() {
	defer close(p.done)
	raw, err := p.file.SyscallConn()
	if err != nil {
		return // closed already
	}
	buf := make([]byte, 2048)
	for {
		var n int
		var from unix.Sockaddr
		err := raw.Read(func(fd uintptr) bool {
			var err error
			n, from, err = unix.Recvfrom(int(fd), buf, 0)
			return !errors.Is(err, unix.EAGAIN)
		})
		if err != nil {
			return // closed: any other error is Recvfrom's, and leaves n below 0
		}
		a, ok := parseArrival(buf[:max(n, 0)])
		if !ok {
			continue
		}
		p.mu.Lock()
		if l, ok := from.(*unix.SockaddrLinklayer); ok && l.Pkttype == unix.PACKET_OUTGOING {
			p.left[a]++
		} else {
			p.seen[a]++
		}
		p.mu.Unlock()
	}
}

// saw returns how many packets of an attempt arrived.
func (p *tap) saw(a arrival) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen[a]
}

// sent returns how many packets of an attempt left.
func (p *tap) sent(a arrival) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.left[a]
}

// forget drops what has passed: source ports come round again.
func (p *tap) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.seen)
	clear(p.left)
}

// parseArrival reads a packet without extension headers or IP options: the
// suite's own never have them.
func parseArrival(b []byte) (a arrival, ok bool) {
	var rest []byte
	switch {
	case len(b) >= 20 && b[0] == 0x45:
		a.at, a.proto, rest = netip.AddrFrom4([4]byte(b[16:20])), b[9], b[20:]
	case len(b) >= 40 && b[0]>>4 == 6:
		a.at, a.proto, rest = netip.AddrFrom16([16]byte(b[24:40])), b[6], b[40:]
	default:
		return a, false
	}
	if len(rest) < 8 {
		return a, false
	}
	switch a.proto {
	case unix.IPPROTO_TCP, unix.IPPROTO_UDP, protoSCTP:
		a.from, a.port = binary.BigEndian.Uint16(rest), binary.BigEndian.Uint16(rest[2:])
		return a, true
	case protoICMP, protoICMPv6:
		a.from = binary.BigEndian.Uint16(rest[4:])
		return a, rest[0] == echoRequest4 && a.proto == protoICMP || rest[0] == echoRequest6 && a.proto == protoICMPv6
	}
	return a, false
}
