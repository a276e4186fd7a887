package classifier

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/tierwall/tierwall/classifier/flow"
)

// Touched returns the addresses for which Touches is true, in no order, if they
// can be named one by one and are no more than limit; else ok is false, and nil
// comes with it. A change of prefixes concerns addresses without number. So who
// can look up connections by address looks up these and need not walk all of
// them.
//
// Tables share what did not change, so this costs a pointer comparison per some
// thirty known addresses, and Touches for every local pod.
func (r *Report) Touched(limit int) (addrs []flow.Addr, ok bool) {
	if r.All() {
		return nil, false
	}
	o, n := &r.old.state, &r.new.state
	if o.prefixes != n.prefixes || o.none != n.none || o.masked != n.masked || o.podCIDRs != n.podCIDRs ||
		o.podBytes != n.podBytes || o.node != n.node || !slices.Equal(o.localPrefixes, n.localPrefixes) {
		return nil, false
	}
	found := map[flow.Addr]struct{}{}
	add := func(a flow.Addr) bool {
		if r.Touches(a) {
			found[a] = struct{}{}
		}
		return len(found) <= limit
	}
	if !differ(&o.addrs.v4, &n.addrs.v4, func(a addr4) bool {
		f := flow.Addr{10: 0xff, 11: 0xff}
		binary.BigEndian.PutUint32(f[12:], uint32(a))
		return add(f)
	}) || !differ(&o.addrs.v6, &n.addrs.v6, func(a addr6) bool { return add(flow.Addr(a)) }) {
		return nil, false
	}
	// A pod whose own record is the same may be another subject now.
	for _, locals := range [][]netip.Addr{r.new.Locals(), r.old.Locals()} {
		for _, a := range locals {
			if !add(flow.AddrFrom(a)) {
				return nil, false
			}
		}
	}
	for a := range found {
		addrs = append(addrs, a)
	}
	return addrs, true
}

// differ calls f for every address that is in one of two versions only, or has
// another party in them, at least once. It returns false if the versions share
// no layout, or f does.
func differ[K hashable](old, now *pages[K], f func(K) bool) bool {
	if old.size != now.size {
		return false
	}
	for i, c := range now.dir.dir {
		if i < len(old.dir.dir) && c == old.dir.dir[i] {
			continue
		}
		for j := range min(chunkSize, int(now.size)-i*chunkSize) {
			was, is := *old.dir.at(i*chunkSize + j), c.v[j]
			if was == is {
				continue
			}
			for _, p := range []struct {
				page  *page[K]
				other *pages[K]
			}{{was, now}, {is, old}} {
				if p.page == nil {
					continue
				}
				for k := range p.page.slots {
					s := &p.page.slots[k]
					if s.rec == nil {
						continue
					}
					if p.other.find(s.addr, s.addr.hash()) != (party{s.peer, s.rec}) && !f(s.addr) {
						return false
					}
				}
			}
		}
	}
	return true
}
