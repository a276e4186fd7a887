package classifier

import (
	"encoding/binary"
	"math/bits"

	"github.com/tierwall/tierwall/classifier/flow"
)

// addrTable maps exact addresses to records: open addressing with linear
// probing at no more than half load, built once and then read without locks.
type addrTable struct {
	keys    []flow.Addr // zero value: empty slot (:: is never an endpoint)
	index   []uint32    // parallel to keys
	records []record
	shift   uint
}

// newAddrTable makes room for n addresses.
func newAddrTable(n int) addrTable {
	size := 8
	for size < 2*n {
		size *= 2
	}
	return addrTable{
		keys:    make([]flow.Addr, size),
		index:   make([]uint32, size),
		records: make([]record, 0, n),
		shift:   uint(64 - bits.TrailingZeros(uint(size))),
	}
}

// hash mixes the address by multiplication; the last bytes differ most.
func (t *addrTable) hash(a *flow.Addr) uint64 {
	hi, lo := binary.BigEndian.Uint64(a[:8]), binary.BigEndian.Uint64(a[8:])
	return ((hi*0x9e3779b97f4a7c15 ^ lo) * 0xd6e8feb86659fd93) >> t.shift
}

// put adds or replaces. The table must have room.
func (t *addrTable) put(a flow.Addr, r record) {
	mask := uint64(len(t.keys) - 1)
	for i := t.hash(&a); ; i = (i + 1) & mask {
		switch t.keys[i] {
		case flow.Addr{}:
			t.keys[i] = a
			t.index[i] = uint32(len(t.records))
			t.records = append(t.records, r)
			return
		case a:
			t.records[t.index[i]] = r
			return
		}
	}
}

// get returns the record of an address, or nil.
func (t *addrTable) get(a *flow.Addr) *record {
	mask := uint64(len(t.keys) - 1)
	for i := t.hash(a); ; i = (i + 1) & mask {
		switch t.keys[i] {
		case flow.Addr{}:
			return nil
		case *a:
			return &t.records[t.index[i]]
		}
	}
}
