package nfqueue

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/classifier/flow"
)

// clearBatch is how many connections one message to the kernel changes. The
// answers must fit the receive buffer.
const clearBatch = 128

// kernelTable is the kernel's connection table of one namespace.
type kernelTable struct {
	conn *netlink.Conn
	bit  uint32 // the accept bit
}

func openKernelTable(nsFD int, accept uint32) (*kernelTable, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: nsFD})
	if err != nil {
		return nil, fmt.Errorf("open conntrack netlink: %w", err)
	}
	// A dump waits for its reader, so the size is about speed only.
	_ = conn.SetReadBuffer(1 << 20)
	return &kernelTable{conn: conn, bit: accept}, nil
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
// cost one walk together, everything one walk as well, and 4 µs per accepted
// connection on the way.
//
// The walk holds no lock. An entry that is added while it runs was judged by
// whoever judges now.
func (k *kernelTable) clear(addrs []flow.Addr, v visit) (int, error) {
	filters := []dumpFilter{{}}
	if addrs != nil {
		// The two ends of a key: see entry.key. What the first walk finds and
		// clears the second does not find again.
		filters = sourcesAre(addrs, ctaTupleOrig, ctaTupleReply)
	}
	var n int
	for _, f := range filters {
		cleared, err := k.clearFound(f, v)
		n += cleared
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

func (k *kernelTable) clearFound(filter dumpFilter, v visit) (int, error) {
	victims, err := k.find(filter, v)
	if err != nil {
		return 0, err
	}
	found, err := k.clearMarks(victims)
	var n int
	for _, ok := range found {
		if ok {
			n++
		}
	}
	return n, err
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
func (k *kernelTable) find(filter dumpFilter, v visit) ([]connection, error) {
	data := append([]byte{filter.family, unix.NFNETLINK_V0, 0, 0}, filter.attrs...)
	data = appendAttr32(data, ctaMark, k.bit)
	data = appendAttr32(data, ctaMarkMask, k.bit)
	_, err := k.conn.Send(netlink.Message{
		Header: netlink.Header{Type: msgCtGet, Flags: netlink.Request | netlink.Dump},
		Data:   data,
	})
	if err != nil {
		return nil, fmt.Errorf("list the kernel's connections: %w", err)
	}
	var victims []connection
	for m, err := range k.conn.ReceiveIter() {
		if err != nil {
			return nil, fmt.Errorf("list the kernel's connections: %w", err)
		}
		e, ok := parseConnection(m.Data)
		if !ok || e.mark&k.bit == 0 {
			continue
		}
		key, ok := e.key()
		if v(&e, key, ok) {
			victims = append(victims, connection{e.family, slices.Clone(e.rawOrig), slices.Clone(e.rawZone)})
		}
	}
	return victims, nil
}

// clearMarks takes the accept bit from the given connections, all others bits of
// the mark stay. found says which of them there are.
func (k *kernelTable) clearMarks(conns []connection) (found []bool, err error) {
	found = make([]bool, 0, len(conns))
	failed := 0
	for part := range slices.Chunk(conns, clearBatch) {
		msgs := make([]netlink.Message, 0, len(part))
		for _, c := range part {
			data := c.appendName(make([]byte, 0, 128))
			// mark = (mark & ^mask) ^ value
			data = appendAttr32(data, ctaMark, 0)
			data = appendAttr32(data, ctaMarkMask, k.bit)
			msgs = append(msgs, netlink.Message{
				// Without the create flag this changes an entry or fails.
				Header: netlink.Header{Type: msgCtNew, Flags: netlink.Request | netlink.Acknowledge},
				Data:   data,
			})
		}
		if _, err := k.conn.SendMessages(msgs); err != nil {
			return found, fmt.Errorf("cut connections: %w", err)
		}
		for range msgs {
			_, rerr := k.conn.Receive()
			found = append(found, rerr == nil)
			if rerr != nil && !errors.Is(rerr, unix.ENOENT) {
				failed++
				err = rerr
			}
		}
	}
	if failed != 0 {
		return found, fmt.Errorf("cut connections: %d of %d failed: %w", failed, len(conns), err)
	}
	return found, nil
}

// marked reports which of the names are those of connections with the accept bit.
func (k *kernelTable) marked(names []connection) ([]bool, error) {
	raw, err := k.conn.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("look connections up: %w", err)
	}
	marked := make([]bool, 0, len(names))
	answer := make([]byte, 4096)
	for part := range slices.Chunk(names, clearBatch) {
		msgs := make([]netlink.Message, 0, len(part))
		for _, c := range part {
			msgs = append(msgs, netlink.Message{Header: netlink.Header{Type: msgCtGet, Flags: netlink.Request}, Data: c.appendName(nil)})
		}
		if _, err := k.conn.SendMessages(msgs); err != nil {
			return nil, fmt.Errorf("look connections up: %w", err)
		}
		for range part {
			// The kernel marks its one answer as one of several: the library would
			// wait for more.
			var n int
			rerr := raw.Read(func(fd uintptr) bool {
				n, _, err = unix.Recvfrom(int(fd), answer, 0)
				return !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR)
			})
			if err = errors.Join(err, rerr); err != nil {
				return nil, fmt.Errorf("look connections up: %w", err)
			}
			typ, body, _, ok := nextMessage(answer[:n])
			if errno := errorCode(body); ok && typ == unix.NLMSG_ERROR && errno != unix.ENOENT {
				return nil, fmt.Errorf("look connections up: %w", errno)
			}
			e, found := parseConnection(body)
			marked = append(marked, ok && typ == msgCtNew && found && e.mark&k.bit != 0)
		}
	}
	return marked, nil
}

// expected returns how many connections have come in this namespace that another
// connection had made the kernel expect (helpers: the data connection of FTP).
func (k *kernelTable) expected() (n uint64, err error) {
	msgs, err := k.conn.Execute(netlink.Message{
		Header: netlink.Header{Type: msgExpStats, Flags: netlink.Request | netlink.Dump},
		Data:   []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, 0},
	})
	if err != nil {
		return 0, fmt.Errorf("count expected connections: %w", err)
	}
	for _, m := range msgs { // one per CPU
		if len(m.Data) < 4 {
			continue
		}
		for typ, val := range attrs(m.Data[4:]) {
			if typ == ctaStatsExpNew && len(val) == 4 {
				n += uint64(binary.BigEndian.Uint32(val))
			}
		}
	}
	return n, nil
}
