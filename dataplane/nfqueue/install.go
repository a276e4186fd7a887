package nfqueue

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// elementsPerMessage keeps a list of set elements inside one netlink attribute
// (64 KiB, about 30 bytes per element).
const elementsPerMessage = 1000

// firewall is our table in the kernel.
type firewall struct {
	conn     *nftables.Conn
	config   Config
	features features
	table    *nftables.Table
	selected map[netip.Addr]struct{} // what the kernel's sets hold
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
	conn, err := nftables.New(nftables.AsLasting(), nftables.WithNetNSFd(nsFD),
		// A transaction is one message to the kernel, with one answer per part:
		// a full restore of a large node must fit both ways.
		nftables.WithSockOptions(func(nl *netlink.Conn) error {
			return errors.Join(nl.SetWriteBuffer(4<<20), nl.SetReadBuffer(4<<20))
		}))
	if err != nil {
		return nil, fmt.Errorf("open nf_tables netlink: %w", err)
	}
	return &firewall{conn: conn, config: c, table: tableRef(), selected: map[netip.Addr]struct{}{}}, nil
}

func tableRef() *nftables.Table {
	return &nftables.Table{Name: TableName, Family: nftables.TableFamilyINet}
}

func (f *firewall) close() error { return f.conn.CloseLasting() }

// probe tries expressions in transactions that remove what they add.
func (f *firewall) probe() error {
	try := func(exprs []expr.Any) error {
		t := f.conn.AddTable(&nftables.Table{Name: TableName + "-probe", Family: nftables.TableFamilyINet})
		ch := f.conn.AddChain(&nftables.Chain{Name: "probe", Table: t})
		f.conn.AddRule(&nftables.Rule{Table: t, Chain: ch, Exprs: exprs})
		f.conn.DelTable(t)
		return f.conn.Flush()
	}
	if err := try(ctMarkHas(f.config.Marks.Accept)); err != nil {
		return fmt.Errorf("nf_tables with connection marks is not usable here: %w", err)
	}
	native := try(queue(f.config, features{queueExpr: true}))
	f.features.queueExpr = native == nil
	if native != nil {
		if err := try(queue(f.config, features{})); err != nil {
			return fmt.Errorf("the kernel can queue packets to userspace neither with the nft queue expression (%w) nor with the xtables NFQUEUE target: %w", native, err)
		}
	}
	f.features.fib = try(sourceIsLocal()) == nil
	return nil
}

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
	if f.selected, err = f.installed(); err != nil {
		return err
	}
	f.features.gate = true
	return f.install()
}

// install puts our table into the kernel in one transaction, in place of any other
// of that name. On error nothing is changed.
func (f *firewall) install() (err error) {
	if _, err = f.create(f.selected); err != nil {
		return fmt.Errorf("install table inet %s: %w", TableName, err)
	}
	return nil
}

// open installs the final table.
func (f *firewall) open() error {
	f.features.gate = false
	return f.install()
}

// create replaces the table; nothing is changed on error.
func (f *firewall) create(selected map[netip.Addr]struct{}) (*nftables.Table, error) {
	// Adding before deleting makes the deletion valid where there is no table.
	f.conn.DelTable(f.conn.AddTable(tableRef()))
	t := f.conn.AddTable(tableRef())
	for _, s := range sets(t) {
		if err := f.conn.AddSet(s, nil); err != nil {
			return nil, err
		}
	}
	if err := f.change(t, selected, f.conn.SetAddElements); err != nil {
		return nil, err
	}
	for _, name := range []string{counterBypassed, counterQueued} {
		f.conn.AddObj(&nftables.CounterObj{Table: t, Name: name})
	}
	for _, c := range ruleset(f.config, f.features) {
		nc := &nftables.Chain{Name: c.name, Table: t}
		if c.hook != nil {
			policy := nftables.ChainPolicyAccept
			nc.Type, nc.Hooknum, nc.Priority, nc.Policy = nftables.ChainTypeFilter, c.hook, &c.priority, &policy
		}
		f.conn.AddChain(nc)
		for _, r := range c.rules {
			f.conn.AddRule(&nftables.Rule{
				Table: t, Chain: nc, Exprs: r.exprs,
				UserData: userdata.AppendString(nil, userdata.TypeComment, r.comment),
			})
		}
	}
	return t, f.conn.Flush()
}

// sets returns the two sets of selected addresses.
func sets(t *nftables.Table) [2]*nftables.Set {
	return [2]*nftables.Set{
		{Table: t, Name: setSelected4, KeyType: nftables.TypeIPAddr},
		{Table: t, Name: setSelected6, KeyType: nftables.TypeIP6Addr},
	}
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

// installed returns the selected addresses of the table in the kernel, none if
// there is no table.
func (f *firewall) installed() (map[netip.Addr]struct{}, error) {
	found := map[netip.Addr]struct{}{}
	ok, err := f.present()
	if err != nil || !ok {
		return found, err
	}
	for _, s := range sets(tableRef()) {
		elements, err := f.conn.GetSetElements(s)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read set %s of the earlier table: %w", s.Name, err)
		}
		for _, e := range elements {
			if a, ok := netip.AddrFromSlice(e.Key); ok {
				found[a] = struct{}{}
			}
		}
	}
	return found, nil
}

// selectAddrs brings the sets to exactly the given addresses in one transaction.
// If somebody removed the table, it is installed again. On error the kernel is
// unchanged.
func (f *firewall) selectAddrs(addrs []netip.Addr) error {
	want := make(map[netip.Addr]struct{}, len(addrs))
	for _, a := range addrs {
		want[a.Unmap()] = struct{}{}
	}
	ok, err := f.present()
	if err != nil {
		return err
	}
	if !ok {
		f.config.Logger.Warn("table was removed by other software, installing it again", "table", TableName)
		if _, err = f.create(want); err != nil {
			return fmt.Errorf("install table inet %s again: %w", TableName, err)
		}
		f.selected = want
		return nil
	}
	if err := f.change(f.table, minus(want, f.selected), f.conn.SetAddElements); err != nil {
		return err
	}
	if err := f.change(f.table, minus(f.selected, want), f.conn.SetDeleteElements); err != nil {
		return err
	}
	if err := f.conn.Flush(); err != nil {
		return fmt.Errorf("update the sets of selected pods: %w", err)
	}
	f.selected = want
	return nil
}

// change queues one kind of element change for both sets.
func (f *firewall) change(t *nftables.Table, addrs map[netip.Addr]struct{}, op func(*nftables.Set, []nftables.SetElement) error) error {
	var elements [2][]nftables.SetElement
	for _, a := range sorted(addrs) {
		i := 0
		if a.Is6() {
			i = 1
		}
		elements[i] = append(elements[i], nftables.SetElement{Key: a.AsSlice()})
	}
	for i, s := range sets(t) {
		for part := range slices.Chunk(elements[i], elementsPerMessage) {
			if err := op(s, part); err != nil {
				return err
			}
		}
	}
	return nil
}

// counters reads our named counters (packets).
func (f *firewall) counters() (map[string]uint64, error) {
	objs, err := f.conn.GetObjects(f.table)
	if err != nil {
		return nil, fmt.Errorf("read counters of table inet %s: %w", TableName, err)
	}
	values := map[string]uint64{}
	for _, o := range objs {
		if c, ok := o.(*nftables.CounterObj); ok {
			values[c.Name] = c.Packets
		}
	}
	return values, nil
}

// remove deletes our table; no table is no error.
func (f *firewall) remove() error {
	f.conn.DelTable(f.conn.AddTable(tableRef()))
	if err := f.conn.Flush(); err != nil {
		return fmt.Errorf("remove table inet %s: %w", TableName, err)
	}
	return nil
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
