package nfqueue

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/dataplane/tunnel"
)

// elementsPerMessage keeps a list of set elements inside one netlink attribute
// (64 KiB, about 30 bytes per element).
const elementsPerMessage = 1000

// firewall is our table in the kernel.
type firewall struct {
	conn     *nftables.Conn
	nl       *netlink.Conn // of conn
	port     uint32        // of conn: who changed something
	routes   *netlink.Conn // options of bridges
	nsFD     int           // of conn
	config   Config
	features features
	table    *nftables.Table
	pods     pods              // what the kernel's sets hold
	counted  map[string]uint64 // what the counters were when they were last read
}

// pods is what the sets hold.
type pods struct {
	selected, free map[netip.Addr]struct{}
	// local in the kernel's form: a range starts at one element and ends before
	// the next.
	local [2][]nftables.SetElement // per family
	// networks, in the same form, are Config.PodCIDRs.
	networks [2][]nftables.SetElement
	// uplinks are the indexes of devices that lead to gateways.
	uplinks map[uint32]struct{}
	// devices are the indexes of those that pods' packets come in by.
	devices map[uint32]struct{}
	// bridges are the indexes of those whose frames we sent to the hooks (bridges.go).
	bridges map[uint32]struct{}
	tunnels []tunnel.End
	// services are the tags of Services that rules name.
	services map[serviceKey]uint32
}

func noPods() pods {
	return pods{selected: map[netip.Addr]struct{}{}, free: map[netip.Addr]struct{}{}, devices: map[uint32]struct{}{}, bridges: map[uint32]struct{}{}, uplinks: map[uint32]struct{}{}}
}

// podsOf returns what the sets shall hold. A pod that no policy selects is of
// interest only where unknown ones are looked for.
func podsOf(selected, locals []netip.Addr, prefixes, networks []netip.Prefix) pods {
	p := noPods()
	for _, a := range selected {
		p.selected[a.Unmap()] = struct{}{}
	}
	for i, v := range []bool{true, false} {
		p.local[i], p.networks[i] = ranges(prefixes, v), ranges(networks, v)
	}
	if len(prefixes)+len(networks) == 0 {
		return p
	}
	for _, a := range locals {
		if _, ok := p.selected[a.Unmap()]; !ok {
			p.free[a.Unmap()] = struct{}{}
		}
	}
	return p
}

// ranges returns the prefixes of a family as elements of an interval set, which
// may not overlap.
func ranges(prefixes []netip.Prefix, is4 bool) (elements []nftables.SetElement) {
	var list []netip.Prefix
	for _, p := range prefixes {
		if p = p.Masked(); p.IsValid() && p.Addr().Is4() == is4 {
			list = append(list, p)
		}
	}
	// Of nested prefixes the widest comes first.
	slices.SortFunc(list, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	var last netip.Prefix
	for _, p := range list {
		if last.IsValid() && last.Contains(p.Addr()) {
			continue
		}
		last = p
		elements = append(elements, nftables.SetElement{Key: p.Addr().AsSlice()})
		if end := after(p); end.IsValid() {
			elements = append(elements, nftables.SetElement{Key: end.AsSlice(), IntervalEnd: true})
		}
	}
	return elements
}

// after returns the first address behind a prefix, the zero Addr behind the last.
func after(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := range b {
		for bit := range 8 {
			if i*8+bit >= p.Bits() {
				b[i] |= 0x80 >> bit
			}
		}
	}
	a, _ := netip.AddrFromSlice(b)
	return a.Next()
}

// openFirewall connects to nf_tables of a namespace and finds out what the
// kernel can do. It installs nothing.
func openFirewall(c Config, nsFD int) (*firewall, error) {
	f, err := connectFirewall(c, nsFD)
	if err != nil {
		return nil, err
	}
	if err := f.probe(); err != nil {
		f.close()
		return nil, err
	}
	return f, nil
}

// connectFirewall only connects.
func connectFirewall(c Config, nsFD int) (*firewall, error) {
	f := &firewall{config: c, nsFD: nsFD, table: tableRef(), pods: noPods(), counted: map[string]uint64{}}
	conn, err := nftables.New(nftables.AsLasting(), nftables.WithNetNSFd(nsFD),
		// A transaction is one message to the kernel, with one answer per part:
		// a full restore of a large node must fit both ways.
		nftables.WithSockOptions(func(nl *netlink.Conn) (err error) {
			f.nl = nl
			f.port, err = portOf(nl)
			return errors.Join(err, nl.SetWriteBuffer(4<<20), nl.SetReadBuffer(4<<20))
		}))
	if err != nil {
		return nil, fmt.Errorf("open nf_tables netlink: %w", err)
	}
	f.conn = conn
	if f.routes, err = netlink.Dial(unix.NETLINK_ROUTE, &netlink.Config{NetNS: nsFD}); err != nil {
		return nil, errors.Join(fmt.Errorf("open route netlink: %w", err), conn.CloseLasting())
	}
	return f, nil
}

// portOf returns the port of a netlink socket: the kernel's name for whoever asks.
func portOf(nl *netlink.Conn) (port uint32, err error) {
	raw, err := nl.SyscallConn()
	if err != nil {
		return 0, err
	}
	cerr := raw.Control(func(fd uintptr) {
		var sa unix.Sockaddr
		if sa, err = unix.Getsockname(int(fd)); err == nil {
			port = sa.(*unix.SockaddrNetlink).Pid
		}
	})
	return port, errors.Join(cerr, err)
}

func tableRef() *nftables.Table {
	return &nftables.Table{Name: TableName, Family: nftables.TableFamilyINet}
}

func (f *firewall) close() error { return errors.Join(f.conn.CloseLasting(), f.routes.Close()) }

// gate prepares for binding queues. If an earlier run left a table, traffic is
// flowing into the queues already, and it would come between the messages that
// configure them. A table that drops instead takes its place, in one transaction
// and with the same pods selected. Nothing waits in a queue without a listener, so
// nothing is lost.
func (f *firewall) gate() error {
	ok, err := f.present()
	if err != nil || !ok {
		return err
	}
	if f.pods, err = f.installed(); err != nil {
		return err
	}
	f.features.gate = true
	return f.install()
}

// install puts our table into the kernel in one transaction, in place of any other
// of that name. On error nothing is changed.
func (f *firewall) install() error {
	if err := f.create(f.pods); err != nil {
		return fmt.Errorf("install table inet %s: %w", TableName, err)
	}
	return nil
}

// open installs the final table.
func (f *firewall) open() error {
	f.features.gate = false
	return f.install()
}

// stopQueueing puts a rule in front of those that queue. It is added to a chain
// without a hook: where a hook goes, what waits in the queues goes with it.
func (f *firewall) stopQueueing() error {
	kind := expr.VerdictDrop
	if f.config.FailOpen {
		kind = expr.VerdictAccept
	}
	f.conn.InsertRule(&nftables.Rule{
		Table: f.table, Chain: &nftables.Chain{Name: chainJudge, Table: f.table},
		Exprs:    join(count(counterQueued), verdict(kind)),
		UserData: userdata.AppendString(nil, userdata.TypeComment, "nobody will be there to ask"),
	})
	if err := f.conn.Flush(); err != nil {
		return fmt.Errorf("stop queueing: %w", err)
	}
	return nil
}

// create replaces the table; nothing is changed on error, but that rules to Services
// may have no effect. The counters go on.
func (f *firewall) create(p pods) error {
	if _, err := f.counters(); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	// Adding before deleting makes the deletion valid where there is no table.
	f.conn.DelTable(f.conn.AddTable(tableRef()))
	t := f.conn.AddTable(tableRef())
	for _, s := range sets(t) {
		if err := f.conn.AddSet(s, nil); err != nil {
			return err
		}
	}
	if err := f.change(t, noPods(), p); err != nil {
		return err
	}
	for _, name := range []string{counterBypassed, counterQueued, counterForged, counterUnknown} {
		f.conn.AddObj(&nftables.CounterObj{Table: t, Name: name, Packets: f.counted[name]})
	}
	addChains(f.conn, t, ruleset(f.config, f.features))
	if err := once(f.conn.Flush()); err != nil {
		return err
	}
	return f.addServiceRules()
}

// addChains adds chains with their rules to the transaction.
func addChains(conn *nftables.Conn, t *nftables.Table, chains []chain) {
	for _, c := range chains {
		nc := &nftables.Chain{Name: c.name, Table: t}
		if c.hook != nil {
			policy := nftables.ChainPolicyAccept
			nc.Type, nc.Hooknum, nc.Priority, nc.Policy = nftables.ChainTypeFilter, c.hook, &c.priority, &policy
		}
		conn.AddChain(nc)
		for _, r := range c.rules {
			conn.AddRule(&nftables.Rule{
				Table: t, Chain: nc, Exprs: r.exprs,
				UserData: userdata.AppendString(nil, userdata.TypeComment, r.comment),
			})
		}
	}
}

// set returns one of our sets.
func set(t *nftables.Table, name string, v family) *nftables.Set {
	s := &nftables.Set{Table: t, Name: name + v.suffix, KeyType: nftables.TypeIPAddr, Interval: name == setLocal || name == setNetworks}
	if v == ipv6 {
		s.KeyType = nftables.TypeIP6Addr
	}
	return s
}

// sets returns all of our sets.
func sets(t *nftables.Table) (all []*nftables.Set) {
	for _, name := range []string{setSelected, setFree, setLocal, setNetworks} {
		all = append(all, set(t, name, ipv4), set(t, name, ipv6))
	}
	return append(all, indexSet(t, setDevices), indexSet(t, setBridges), indexSet(t, setUplinks), portSet(t), protocolSet(t), serviceMap(t, ipv4), serviceMap(t, ipv6))
}

// portSet and protocolSet return the sets of tunnels' ends: UDP ports and protocols.
func portSet(t *nftables.Table) *nftables.Set {
	return &nftables.Set{Table: t, Name: setTunnelPorts, KeyType: nftables.TypeInetService}
}

func protocolSet(t *nftables.Table) *nftables.Set {
	return &nftables.Set{Table: t, Name: setTunnelProtocols, KeyType: nftables.TypeInetProto}
}

// indexSet returns a set of devices.
func indexSet(t *nftables.Table, name string) *nftables.Set {
	return &nftables.Set{Table: t, Name: name, KeyType: nftables.TypeIFIndex}
}

// elements reads a set of the table in the kernel. The table of another version may not
// have it; GetSetElements would not say that this is why it fails.
func (f *firewall) elements(s *nftables.Set) ([]nftables.SetElement, error) {
	if _, err := f.conn.GetSetByName(s.Table, s.Name); errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	return f.conn.GetSetElements(s)
}

// readIndexes reads such a set of the table in the kernel; there may be none.
func (f *firewall) readIndexes(name string) (map[uint32]struct{}, error) {
	elements, err := f.elements(indexSet(tableRef(), name))
	if err != nil {
		return nil, fmt.Errorf("read set %s of the earlier table: %w", name, err)
	}
	indexes := map[uint32]struct{}{}
	for _, e := range elements {
		if len(e.Key) == 4 {
			indexes[binary.NativeEndian.Uint32(e.Key)] = struct{}{}
		}
	}
	return indexes, nil
}

// present reports whether our table is in the kernel.
func (f *firewall) present() (bool, error) {
	_, err := f.conn.ListTableOfFamily(TableName, nftables.TableFamilyINet)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for table inet %s: %w", TableName, err)
	}
	return true, nil
}

// installed returns what the sets of the table in the kernel hold, nothing if
// there is no table.
func (f *firewall) installed() (pods, error) {
	p := noPods()
	ok, err := f.present()
	if err != nil || !ok {
		return p, err
	}
	if p.devices, err = f.readIndexes(setDevices); err != nil {
		return noPods(), err
	}
	if p.bridges, err = f.readIndexes(setBridges); err != nil {
		return noPods(), err
	}
	if p.uplinks, err = f.readIndexes(setUplinks); err != nil {
		return noPods(), err
	}
	for i, v := range []family{ipv4, ipv6} {
		for _, name := range []string{setSelected, setFree, setLocal, setNetworks} {
			elements, err := f.elements(set(tableRef(), name, v))
			if err != nil {
				return noPods(), fmt.Errorf("read set %s%s of the earlier table: %w", name, v.suffix, err)
			}
			if name == setLocal || name == setNetworks {
				into := &p.local[i]
				if name == setNetworks {
					into = &p.networks[i]
				}
				// Ordered as ranges orders them: the end of a range before the
				// start of the next.
				slices.SortFunc(elements, func(a, b nftables.SetElement) int {
					return cmp.Or(slices.Compare(a.Key, b.Key), boolCompare(b.IntervalEnd, a.IntervalEnd))
				})
				for _, e := range elements {
					*into = append(*into, nftables.SetElement{Key: e.Key, IntervalEnd: e.IntervalEnd})
				}
				continue
			}
			for _, e := range elements {
				a, ok := netip.AddrFromSlice(e.Key)
				switch {
				case !ok:
				case name == setSelected:
					p.selected[a] = struct{}{}
				default:
					p.free[a] = struct{}{}
				}
			}
		}
	}
	return p, nil
}

func boolCompare(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// apply brings the sets to exactly p in one transaction. If somebody removed the
// table, it is installed again. On error the kernel is unchanged.
func (f *firewall) apply(p pods) error {
	ok, err := f.present()
	if err != nil {
		return err
	}
	if !ok {
		f.config.Logger.Warn("table was removed by other software, installing it again", "table", TableName)
		if err := f.create(p); err != nil {
			return fmt.Errorf("install table inet %s again: %w", TableName, err)
		}
		f.pods = p
		return nil
	}
	if err := f.change(f.table, f.pods, p); err != nil {
		return err
	}
	if err := f.conn.Flush(); err != nil {
		return fmt.Errorf("update the sets of pods: %w", err)
	}
	f.pods = p
	return nil
}

// change adds to the transaction what turns the sets from old to p. A pod that
// goes from one set to another is in one of them at every moment: the transaction
// is one step.
func (f *firewall) change(t *nftables.Table, old, p pods) error {
	for _, c := range []struct {
		do   func(*nftables.Set, []nftables.SetElement) error
		set  string
		a, b map[uint32]struct{}
	}{
		{f.conn.SetAddElements, setDevices, p.devices, old.devices},
		{f.conn.SetDeleteElements, setDevices, old.devices, p.devices},
		{f.conn.SetAddElements, setBridges, p.bridges, old.bridges},
		{f.conn.SetDeleteElements, setBridges, old.bridges, p.bridges},
		{f.conn.SetAddElements, setUplinks, p.uplinks, old.uplinks},
		{f.conn.SetDeleteElements, setUplinks, old.uplinks, p.uplinks},
	} {
		var elements []nftables.SetElement
		for _, index := range slices.Sorted(maps.Keys(c.a)) {
			if _, ok := c.b[index]; !ok {
				elements = append(elements, nftables.SetElement{Key: host32(index)})
			}
		}
		for part := range slices.Chunk(elements, elementsPerMessage) {
			if err := c.do(indexSet(t, c.set), part); err != nil {
				return err
			}
		}
	}
	for _, c := range []struct {
		do   func(*nftables.Set, []nftables.SetElement) error
		a, b []tunnel.End
	}{{f.conn.SetAddElements, p.tunnels, old.tunnels}, {f.conn.SetDeleteElements, old.tunnels, p.tunnels}} {
		for _, e := range c.a {
			if slices.Contains(c.b, e) {
				continue
			}
			s, key := protocolSet(t), []byte{byte(e.Proto)}
			if e.Proto.HasPorts() {
				s, key = portSet(t), binary.BigEndian.AppendUint16(nil, e.Port)
			}
			if err := c.do(s, []nftables.SetElement{{Key: key}}); err != nil {
				return err
			}
		}
	}
	for i, v := range []family{ipv4, ipv6} {
		for _, c := range []struct {
			name   string
			old, p []nftables.SetElement
		}{{setLocal, old.local[i], p.local[i]}, {setNetworks, old.networks[i], p.networks[i]}} {
			if err := f.changeRanges(set(t, c.name, v), c.old, c.p); err != nil {
				return err
			}
		}
		for _, c := range []struct {
			name   string
			old, p map[netip.Addr]struct{}
		}{{setSelected, old.selected, p.selected}, {setFree, old.free, p.free}} {
			s := set(t, c.name, v)
			for part := range slices.Chunk(only(v, minus(c.p, c.old)), elementsPerMessage) {
				if err := f.conn.SetAddElements(s, part); err != nil {
					return err
				}
			}
			for part := range slices.Chunk(only(v, minus(c.old, c.p)), elementsPerMessage) {
				if err := f.conn.SetDeleteElements(s, part); err != nil {
					return err
				}
			}
		}
		if err := f.changeServices(serviceMap(t, v), v, old.services, p.services); err != nil {
			return err
		}
	}
	return nil
}

// changeRanges adds to the transaction what makes an interval set hold p.
func (f *firewall) changeRanges(s *nftables.Set, old, p []nftables.SetElement) error {
	if slices.EqualFunc(old, p, sameElement) {
		return nil
	}
	if len(old) != 0 {
		f.conn.FlushSet(s)
	}
	if len(p) == 0 {
		return nil
	}
	return f.conn.SetAddElements(s, p)
}

func sameElement(a, b nftables.SetElement) bool {
	return a.IntervalEnd == b.IntervalEnd && slices.Equal(a.Key, b.Key)
}

// only returns the addresses of a family as elements, in order.
func only(v family, addrs map[netip.Addr]struct{}) (elements []nftables.SetElement) {
	for _, a := range sorted(addrs) {
		if a.Is4() == (v == ipv4) {
			elements = append(elements, nftables.SetElement{Key: a.AsSlice()})
		}
	}
	return elements
}

// counters reads our named counters (packets).
func (f *firewall) counters() (map[string]uint64, error) {
	objs, err := f.conn.GetObjects(f.table)
	if err != nil {
		return nil, fmt.Errorf("read counters of table inet %s: %w", TableName, err)
	}
	for _, o := range objs {
		if c, ok := o.(*nftables.CounterObj); ok {
			f.counted[c.Name] = max(f.counted[c.Name], c.Packets)
		}
	}
	return f.counted, nil
}

// remove deletes our tables, and undoes what the bridges' set has; no table is no error.
func (f *firewall) remove() error {
	earlier, err := f.installed()
	if err != nil {
		return err
	}
	f.conn.DelTable(f.conn.AddTable(tableRef()))
	f.conn.DelTable(f.conn.AddTable(&nftables.Table{Name: probeTable, Family: nftables.TableFamilyINet}))
	f.conn.DelTable(f.conn.AddTable(&nftables.Table{Name: probeTable, Family: nftables.TableFamilyIPv4}))
	if err := f.conn.Flush(); err != nil {
		return fmt.Errorf("remove table inet %s: %w", TableName, err)
	}
	return f.leaveBridges(earlier.bridges)
}

func minus(a, b map[netip.Addr]struct{}) map[netip.Addr]struct{} {
	d := map[netip.Addr]struct{}{}
	for k := range a {
		if _, ok := b[k]; !ok {
			d[k] = struct{}{}
		}
	}
	return d
}

func sorted(m map[netip.Addr]struct{}) []netip.Addr {
	s := make([]netip.Addr, 0, len(m))
	for a := range m {
		s = append(s, a)
	}
	slices.SortFunc(s, netip.Addr.Compare)
	return s
}
