package nfqueue

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/dataplane"
)

// TapTableName is the nftables table of a Tap.
const TapTableName = "tierwall-dns"

const (
	setClients = "clients"
	dnsPort    = 53
	// priorityTap is behind everything that may drop: what a Tap sees was accepted.
	priorityTap = prioritySave + 10
	// tapPacketLen is the longest packet: an answer must be whole.
	tapPacketLen = 0xffff
	// tapQueueLen: one more passes unseen, and the pod's next query is seen again.
	tapQueueLen = 2048
)

// TapConfig configures a Tap.
type TapConfig struct {
	// Queue is the NFQUEUE number. 0 = 7299, below the queues of Config.
	Queue uint16
	// Logger; nil discards.
	Logger *slog.Logger
}

// Tap hands the DNS packets of some pods, both ways, to a function that may hold
// them for a moment. It sees what passed the rules of every table, whichever
// backend judged it, and changes nothing: with a full queue, or without the
// process, packets go on unseen.
//
//	forward, input, output ─► DNS of a pod in @clients? ─ yes ─► NFQUEUE ─► function
//	                             │ no                                 │ release
//	                             ▼                                    ▼
//
// DNS is what was sent to port 53 of UDP or TCP, before a Service was translated,
// and the answers to it; where connections are not tracked (NOTRACK, as node-local
// caches use it) UDP from and to port 53. The table exists while there are pods to
// look at, in a node where no name matters nothing is in the way.
//
// Watch, Talking, Check and Close may be called by any goroutine.
type Tap struct {
	config Config
	ns     netns.NsHandle
	driver *driver
	handle func(frame []byte, release func())
	done   chan struct{} // closed when the receiving goroutine has ended

	send sync.Mutex // guards buf
	buf  []byte

	mu        sync.Mutex
	fw        *firewall
	conns     *kernelTable
	clients   []netip.Addr // sorted
	installed bool
	closed    bool

	seen atomic.Uint64
}

// NewTap binds the queue in the network namespace of the calling thread and calls
// handle for each packet, on one goroutine, with the packet from its IP header on.
// handle must not keep it, and must see to it that release is called once, by any
// goroutine at any time. A table of an earlier run is removed; none is installed
// until Watch.
func NewTap(c TapConfig, handle func(frame []byte, release func())) (*Tap, error) {
	if c.Queue == 0 {
		c.Queue = 7299
	}
	config, err := Config{
		QueueNum: c.Queue, Queues: 1, QueueLen: tapQueueLen, MaxPacketLen: tapPacketLen, FailOpen: true, Logger: c.Logger,
	}.complete()
	if err != nil {
		return nil, err
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	t := &Tap{config: config, ns: netns.None(), handle: handle, done: make(chan struct{})}
	if err := t.open(); err != nil {
		close(t.done)
		return nil, errors.Join(fmt.Errorf("DNS tap: %w", err), t.Close())
	}
	go t.run()
	return t, nil
}

// open runs on a locked thread.
func (t *Tap) open() (err error) {
	if t.ns, err = homeNamespace(); err != nil {
		return err
	}
	if t.fw, err = openFirewall(t.config, nsFD(t.ns)); err != nil {
		return err
	}
	t.fw.table = tapTable()
	if err := t.remove(); err != nil {
		return err
	}
	if t.conns, err = openKernelTable(nsFD(t.ns), 0); err != nil {
		return err
	}
	t.driver, err = openDriver(t.config, t.config.QueueNum, nsFD(t.ns), features{})
	return err
}

// run hands packets out until Close.
func (t *Tap) run() {
	defer close(t.done)
	var b dataplane.Batch
	fails := 0
	for {
		err := t.driver.Recv(&b)
		if errors.Is(err, dataplane.ErrClosed) {
			return
		}
		if err != nil {
			if fails++; fails > 100 {
				t.config.Logger.Error("DNS tap ends: packets pass unseen from now on", "error", err)
				_ = t.driver.Close() // or they would wait in a queue nobody reads
				return
			}
			continue
		}
		fails = 0
		t.seen.Add(uint64(b.N))
		for i := range b.Packets[:b.N] {
			id := b.Packets[i].ID
			t.handle(b.Packets[i].Frame, func() { t.release(id) })
		}
	}
}

// release lets a packet go on, with the mark it has: that of the fast path is for
// the hooks behind.
func (t *Tap) release(id uint32) {
	t.send.Lock()
	defer t.send.Unlock()
	t.buf = appendVerdict(t.buf[:0], t.config.QueueNum, id, nfAccept, 0, false)
	// It fails when the queue is being closed: then the kernel has let everything go.
	_ = t.driver.raw.Write(func(fd uintptr) bool {
		_, err := unix.Write(int(fd), t.buf)
		return !errors.Is(err, unix.EAGAIN)
	})
}

// Watch replaces the pods whose DNS is looked at. None removes the table.
func (t *Tap) Watch(pods []netip.Addr) error {
	clients := make([]netip.Addr, 0, len(pods))
	for _, a := range pods {
		clients = append(clients, a.Unmap())
	}
	slices.SortFunc(clients, netip.Addr.Compare)
	clients = slices.Compact(clients)
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.closed:
		return dataplane.ErrClosed
	case slices.Equal(clients, t.clients):
		return nil
	}
	err := t.install(clients)
	if err != nil {
		return fmt.Errorf("DNS tap: %w", err)
	}
	t.clients = clients
	return nil
}

// Check puts the table back if other software has removed it, and reports whether
// it did.
func (t *Tap) Check() (restored bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || len(t.clients) == 0 {
		return false, nil
	}
	_, err = t.fw.conn.ListTableOfFamily(TapTableName, nftables.TableFamilyINet)
	if !errors.Is(err, unix.ENOENT) {
		return false, err
	}
	t.installed = false
	return true, t.install(t.clients)
}

// install brings the table to exactly these clients. A table that is there is
// changed, not replaced: packets wait in its queue.
func (t *Tap) install(clients []netip.Addr) error {
	if len(clients) == 0 {
		return t.remove()
	}
	conn, table := t.fw.conn, tapTable()
	if !t.installed {
		conn.DelTable(conn.AddTable(table))
		table = conn.AddTable(tapTable())
		for _, v := range []family{ipv4, ipv6} {
			if err := conn.AddSet(set(table, setClients, v), nil); err != nil {
				return err
			}
		}
		addChains(conn, table, tapRules(t.config, t.fw.features))
	}
	members := map[netip.Addr]struct{}{}
	for _, a := range clients {
		members[a] = struct{}{}
	}
	for _, v := range []family{ipv4, ipv6} {
		s := set(table, setClients, v)
		conn.FlushSet(s)
		for part := range slices.Chunk(only(v, members), elementsPerMessage) {
			if err := conn.SetAddElements(s, part); err != nil {
				return err
			}
		}
	}
	if err := conn.Flush(); err != nil {
		t.installed = false // unknown: the next attempt replaces it
		return fmt.Errorf("install table inet %s: %w", TapTableName, err)
	}
	t.installed = true
	return nil
}

func (t *Tap) remove() error {
	t.installed = false
	return removeTapTable(t.fw.conn)
}

func removeTapTable(conn *nftables.Conn) error {
	conn.DelTable(conn.AddTable(tapTable()))
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("remove table inet %s: %w", TapTableName, err)
	}
	return nil
}

func tapTable() *nftables.Table {
	return &nftables.Table{Name: TapTableName, Family: nftables.TableFamilyINet}
}

// tapRules returns the chains of the table, the one that is jumped to first.
func tapRules(c Config, f features) []chain {
	f.gate = false
	look := chain{name: "look"}
	for _, v := range []struct {
		family
		proto byte
		name  string
	}{{ipv4, unix.NFPROTO_IPV4, "IPv4"}, {ipv6, unix.NFPROTO_IPV6, "IPv6"}} {
		for _, s := range []struct {
			side
			what string
		}{{dst, "an answer to a pod"}, {src, "a query of a pod"}} {
			look.rules = append(look.rules, ruleSpec{
				v.name + ": " + s.what,
				join(protocolIs(v.proto), v.load(s.side), v.in(setClients), queue(c, f)),
			})
		}
	}
	port := []byte{0, dnsPort} // network byte order
	asked := []expr.Any{&expr.Ct{Key: expr.CtKeyPROTODST, Register: reg1}, compare(expr.CmpOpEq, port)}
	untracked := []expr.Any{&expr.Ct{Key: expr.CtKeySTATE, Register: reg1}, masked(expr.CtStateBitUNTRACKED, 0), compare(expr.CmpOpNeq, host32(0))}
	at := func(offset uint32) []expr.Any {
		return []expr.Any{&expr.Payload{DestRegister: reg1, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: 2}, compare(expr.CmpOpEq, port)}
	}
	rules := []ruleSpec{
		{"DNS over UDP", join(transportIs(unix.IPPROTO_UDP), asked, gotoChain(look.name))},
		{"DNS over TCP", join(transportIs(unix.IPPROTO_TCP), asked, gotoChain(look.name))},
		{"a query nobody tracks", join(transportIs(unix.IPPROTO_UDP), at(2), untracked, gotoChain(look.name))},
		{"an answer nobody tracks", join(transportIs(unix.IPPROTO_UDP), at(0), untracked, gotoChain(look.name))},
	}
	return []chain{
		look,
		{name: "forward", hook: nftables.ChainHookForward, priority: priorityTap, rules: rules},
		{name: "input", hook: nftables.ChainHookInput, priority: priorityTap, rules: rules},
		{name: "output", hook: nftables.ChainHookOutput, priority: priorityTap, rules: rules},
	}
}

// Talking reports which of the addresses a tracked connection goes to: as it is
// after DNAT, and whatever became of it. See kernelTable.clear for what it costs.
func (t *Tap) Talking(addrs []netip.Addr) (map[netip.Addr]bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, dataplane.ErrClosed
	}
	want := make(map[flow.Addr]netip.Addr, len(addrs))
	for _, a := range addrs {
		want[flow.AddrFrom(a)] = a
	}
	filters := []dumpFilter{{}}
	if len(want) <= fewAddrs {
		filters = sourcesAre(slices.Collect(maps.Keys(want)), ctaTupleReply)
	}
	found := map[netip.Addr]bool{}
	for _, f := range filters {
		_, err := t.conns.find(f, func(_ *entry, k flow.Key, ok bool) bool {
			if a, wanted := want[k.Dst]; ok && wanted {
				found[a] = true
			}
			return false
		})
		if err != nil {
			return nil, err
		}
	}
	return found, nil
}

// Seen returns how many packets were handed out since the start.
func (t *Tap) Seen() uint64 { return t.seen.Load() }

// Close removes the table and the queue. Packets that wait go on or are lost with
// the queue: DNS asks again. Further calls do nothing.
func (t *Tap) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil
	}
	t.closed = true
	var errs []error
	if t.fw != nil {
		errs = append(errs, t.remove(), t.fw.close())
	}
	if t.driver != nil {
		errs = append(errs, t.driver.Close())
	}
	<-t.done
	if t.conns != nil {
		errs = append(errs, t.conns.close())
	}
	if t.ns.IsOpen() {
		errs = append(errs, t.ns.Close())
	}
	return errors.Join(errs...)
}

// CleanupTap removes the table of a Tap that ended without Close from the network
// namespace of the calling thread.
func CleanupTap() error {
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open nf_tables netlink: %w", err)
	}
	return removeTapTable(conn)
}
