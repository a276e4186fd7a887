package nfqueue

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/classifier/flow"
)

const (
	// namesBatch is how many connections one write to the kernel is about. The answers
	// must fit the receive buffer.
	namesBatch = 128
	// tableTimeout is how long the kernel may take to answer.
	tableTimeout = 10 * time.Second
)

// kernelTable is the kernel's connection table of one namespace, on a netlink socket
// of its own: the library's way of receiving would take longer than all the kernel
// does. It belongs to one goroutine.
type kernelTable struct {
	bit uint32 // the accept bit

	conn  *netlink.Conn
	raw   syscall.RawConn
	seq   uint32
	in    []byte
	inbox *inbox
}

func openKernelTable(nsFD int, accept uint32) (*kernelTable, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: nsFD})
	if err != nil {
		return nil, fmt.Errorf("open conntrack netlink: %w", err)
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open conntrack netlink: %w", err), conn.Close())
	}
	// A dump waits for its reader, so for that the size is about speed only.
	_ = conn.SetReadBuffer(1 << 20)
	// An answer need not quote the question. Linux 4.3.
	_ = conn.SetOption(netlink.CapAcknowledge, true)
	return &kernelTable{bit: accept, conn: conn, raw: raw, in: make([]byte, 64<<10), inbox: newInbox(1024)}, nil
}

func (k *kernelTable) close() error { return k.conn.Close() }

// visit is asked about a connection that was found; true takes the accept bit from
// it. The key is in the direction the connection was opened, the destination as it is
// after DNAT and the source as it was before SNAT: what the forward hook saw. ok is
// false if the connection cannot be read. entry is valid during the call.
type visit func(e *entry, k flow.Key, ok bool) bool

// clear asks about every connection that has the accept bit, and returns how many
// have lost it.
//
// Only connections with one of the addresses at either end must be asked about; nil
// means all. An IPv4 address costs two walks of the kernel's table: some 10 ms each
// where it has 262,144 buckets, however few connections are in them. IPv6 addresses
// cost one walk together, everything one walk as well, and 2 µs per accepted
// connection on the way.
//
// The walk holds no lock. An entry that is added while it runs was judged by
// whoever judges now.
func (k *kernelTable) clear(addrs []flow.Addr, v visit) (n int, err error) {
	filters := []dumpFilter{{}}
	if addrs != nil {
		// The two ends of a key: see entry.key. What the first walk finds and
		// clears the second does not find again.
		filters = sourcesAre(addrs, ctaTupleOrig, ctaTupleReply)
	}
	for _, f := range filters {
		victims, err := k.find(f, v)
		if err != nil {
			return n, err
		}
		found, err := k.clearMarks(victims)
		for _, ok := range found {
			if ok {
				n++
			}
		}
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// dumpFilter limits a dump; the zero value does not.
type dumpFilter struct {
	family byte
	attrs  []byte
}

// sourcesAre returns filters for dumps that together have the connections of which
// one of the tuples, CTA_TUPLE_ORIG or CTA_TUPLE_REPLY, has one of the addresses as
// its source. They may have others.
func sourcesAre(addrs []flow.Addr, tuples ...uint16) (filters []dumpFilter) {
	six := false
	for _, a := range addrs {
		if !a.Is4() {
			six = true
			continue
		}
		for _, tuple := range tuples {
			filters = append(filters, sourceIs(tuple, a))
		}
	}
	if six {
		// Not by address: the kernel's filter for IPv6 takes all but the address it
		// is given (ctnetlink_filter_match_tuple, Linux 5.8 to 6.18 at least).
		filters = append(filters, dumpFilter{family: unix.AF_INET6})
	}
	return filters
}

// sourceIs is sourcesAre for one tuple and IPv4 address.
func sourceIs(tuple uint16, addr flow.Addr) dumpFilter {
	flags := uint16(ctaFilterOrig)
	if tuple == ctaTupleReply {
		flags = ctaFilterReply
	}
	ip := appendAttr(nil, ctaIPv4Src, addr[12:])
	b := appendAttr(nil, tuple|unix.NLA_F_NESTED, appendAttr(nil, ctaTupleIP|unix.NLA_F_NESTED, ip))
	// The flags are the one number in host byte order.
	return dumpFilter{unix.AF_INET, appendAttr(b, ctaFilter|unix.NLA_F_NESTED, appendAttr(nil, flags, host32(filterSrc)))}
}

// find asks about the connections with the accept bit, and returns those for which
// the answer was true; the kernel does the filtering, by mark and by the filter.
func (k *kernelTable) find(filter dumpFilter, v visit) (victims []connection, err error) {
	body := append([]byte{filter.family, unix.NFNETLINK_V0, 0, 0}, filter.attrs...)
	body = appendAttr32(body, ctaMark, k.bit)
	body = appendAttr32(body, ctaMarkMask, k.bit)
	err = k.dump(msgCtGet, body, func(body []byte) {
		e, ok := parseConnection(body)
		if !ok || e.mark&k.bit != k.bit {
			return
		}
		key, ok := e.key()
		if v(&e, key, ok) {
			victims = append(victims, connection{e.family, slices.Clone(e.rawOrig), slices.Clone(e.rawZone)})
		}
	})
	if err != nil {
		return nil, fmt.Errorf("list the kernel's connections: %w", err)
	}
	return victims, nil
}

// expected returns how many connections have come in this namespace that another
// connection had made the kernel expect (helpers: the data connection of FTP).
func (k *kernelTable) expected() (n uint64, err error) {
	err = k.dump(msgExpStats, []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, 0}, func(body []byte) { // per CPU
		if len(body) < nfHeaderLen {
			return
		}
		for typ, val := range attrs(body[nfHeaderLen:]) {
			if typ == ctaStatsExpNew && len(val) == 4 {
				n += uint64(binary.BigEndian.Uint32(val))
			}
		}
	})
	if err != nil {
		return 0, fmt.Errorf("count expected connections: %w", err)
	}
	return n, nil
}

// clearMarks takes the accept bit from the given connections, all others bits of
// the mark stay. found says which of them there are.
func (k *kernelTable) clearMarks(conns []connection) (found []bool, err error) {
	// mark = (mark & ^mask) ^ value
	mark := appendAttr32(appendAttr32(nil, ctaMark, 0), ctaMarkMask, k.bit)
	found = make([]bool, len(conns))
	// Without the create flag this changes an entry or fails.
	err = k.ask(msgCtNew, unix.NLM_F_ACK, conns, mark, func(i int, _ uint16, _ []byte) { found[i] = true })
	if err != nil {
		return found, fmt.Errorf("cut connections: %w", err)
	}
	return found, nil
}

// marked reports which of the names are those of connections with the accept bit.
func (k *kernelTable) marked(names []connection) (marked []bool, err error) {
	marked = make([]bool, len(names))
	err = k.ask(msgCtGet, 0, names, nil, func(i int, typ uint16, body []byte) {
		if e, ok := parseConnection(body); ok && typ == msgCtNew {
			marked[i] = e.mark&k.bit != 0
		}
	})
	if err != nil {
		return nil, fmt.Errorf("look connections up: %w", err)
	}
	return marked, nil
}

// appendHeader begins a message; the caller ends it with endMessage.
func appendHeader(b []byte, typ, flags uint16, seq uint32) []byte {
	b = binary.NativeEndian.AppendUint32(b, 0) // length
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = binary.NativeEndian.AppendUint16(b, flags)
	b = binary.NativeEndian.AppendUint32(b, seq)
	return binary.NativeEndian.AppendUint32(b, 0) // port: the kernel knows the socket
}

func endMessage(b []byte, begin int) []byte {
	binary.NativeEndian.PutUint32(b[begin:], uint32(len(b)-begin))
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

// dump sends a request and calls f with the body of every message of the answer.
func (k *kernelTable) dump(typ uint16, body []byte, f func(body []byte)) error {
	k.seq++
	msg := endMessage(append(appendHeader(nil, typ, unix.NLM_F_REQUEST|unix.NLM_F_DUMP, k.seq), body...), 0)
	if err := k.send(msg); err != nil {
		return err
	}
	for {
		n := 0
		err := k.wait(func(fd int) (err error) { n, _, err = unix.Recvfrom(fd, k.in, 0); return err })
		if err != nil {
			return err
		}
		for rest := k.in[:n]; len(rest) >= nlHeaderLen; {
			seq := binary.NativeEndian.Uint32(rest[8:])
			var typ uint16
			var ok bool
			if typ, body, rest, ok = nextMessage(rest); !ok || seq != k.seq {
				continue
			}
			switch errno := errorCode(body); {
			case typ != unix.NLMSG_DONE && typ != unix.NLMSG_ERROR:
				f(body)
			case errno != 0:
				return errno
			default:
				return nil
			}
		}
	}
}

// ask sends a message about each connection, with tail at its end, and calls f for
// those there are with the kernel's answer, in no particular order.
func (k *kernelTable) ask(typ, flags uint16, conns []connection, tail []byte, f func(i int, typ uint16, body []byte)) error {
	var out []byte
	var errs []error
	for base := 0; base < len(conns); base += namesBatch {
		part := conns[base:min(base+namesBatch, len(conns))]
		out = out[:0]
		first := k.seq + 1
		for i := range part {
			k.seq++
			begin := len(out)
			out = endMessage(append(part[i].appendName(appendHeader(out, typ, unix.NLM_F_REQUEST|flags, k.seq)), tail...), begin)
		}
		if err := k.send(out); err != nil {
			return err
		}
		// The kernel answers before it returns, each message with one of its own.
		for answers := 0; answers < len(part); {
			n := 0
			err := k.wait(func(fd int) error {
				var errno unix.Errno
				if n, errno = k.inbox.receive(fd); errno != 0 {
					return errno
				}
				return nil
			})
			if err != nil {
				return err
			}
			for j := range n {
				m := k.inbox.message(j)
				typ, body, _, ok := nextMessage(m)
				if !ok {
					continue
				}
				i := int(binary.NativeEndian.Uint32(m[8:]) - first)
				if i < 0 || i >= len(part) {
					continue // of a question that was given up
				}
				answers++
				switch errno := errorCode(body); {
				case typ != unix.NLMSG_ERROR || errno == 0:
					f(base+i, typ, body)
				case errno != unix.ENOENT:
					errs = append(errs, errno)
				}
			}
		}
	}
	if len(errs) > 0 {
		return fmt.Errorf("%d of %d failed: %w", len(errs), len(conns), errs[0])
	}
	return nil
}

func (k *kernelTable) send(b []byte) error {
	var err error
	werr := k.raw.Write(func(fd uintptr) bool {
		err = unix.Sendto(int(fd), b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
		return !errors.Is(err, unix.EAGAIN)
	})
	return os.NewSyscallError("sendto", errors.Join(err, werr))
}

// wait calls receive when there is something to receive, until it does.
func (k *kernelTable) wait(receive func(fd int) error) error {
	if err := k.conn.SetReadDeadline(time.Now().Add(tableTimeout)); err != nil {
		return err
	}
	var err error
	rerr := k.raw.Read(func(fd uintptr) bool {
		for {
			if err = receive(int(fd)); !errors.Is(err, unix.EINTR) {
				return !errors.Is(err, unix.EAGAIN)
			}
		}
	})
	if rerr != nil {
		return rerr
	}
	return os.NewSyscallError("recv", err)
}
