package query

import (
	"crypto/sha256"
	"net/netip"
	"slices"
	"sync"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
)

// kindSet sorts the pods of a table by what its policies can tell of them, and remembers
// what they decide between two kinds. Labels that no policy mentions make no kind, so a
// table has far fewer kinds than classes. Its methods want mu to be held.
type kindSet struct {
	table *classifier.Table

	mu       sync.Mutex
	matcher  *classifier.Matcher
	ofClass  map[classifier.Class]int32
	byText   map[[sha256.Size]byte]int32
	ends     []classifier.End // one of each kind
	verdicts []*verdicts      // the one asked for last comes last
}

func newKindSet(t *classifier.Table) *kindSet {
	return &kindSet{table: t, matcher: classifier.NewMatcher(t), ofClass: map[classifier.Class]int32{}, byText: map[[sha256.Size]byte]int32{}}
}

// kindOf returns the kind of an address of a class.
func (k *kindSet) kindOf(c classifier.Class, a netip.Addr) int32 {
	if kind, ok := k.ofClass[c]; ok {
		return kind
	}
	end := k.table.EndOf(a)
	text := sha256.Sum256([]byte(k.matcher.Likeness(end))) // a byte for each rule: too long to keep
	kind, ok := k.byText[text]
	if !ok {
		kind = int32(len(k.ends))
		k.byText[text] = kind
		k.ends = append(k.ends, end)
	}
	k.ofClass[c] = kind
	return kind
}

// verdicts are those about one port, in one family.
type verdicts struct {
	port    Port
	family  int
	columns map[column]int32
	rows    [][]uint8 // by the source's kind, then by column: 0 is not known yet
}

// column is a kind of destinations whose port has one number.
type column struct {
	kind   int32
	number uint16
}

// What a row says.
const (
	cellRefuses = 1 + iota
	cellAllows
)

const (
	// maxVerdicts is how many ports and families are remembered.
	maxVerdicts = 8
	// maxRemembered bounds the kinds between which verdicts are remembered: with more,
	// the square of them would take hundreds of megabytes.
	maxRemembered = 4096
)

// about returns what is known about a port.
func (k *kindSet) about(p Port, family int) *verdicts {
	last := len(k.verdicts) - 1
	if last >= 0 && k.verdicts[last].port == p && k.verdicts[last].family == family {
		return k.verdicts[last]
	}
	i := slices.IndexFunc(k.verdicts, func(v *verdicts) bool { return v.port == p && v.family == family })
	if i < 0 {
		v := &verdicts{port: p, family: family, columns: map[column]int32{}}
		k.verdicts = append(slices.Delete(k.verdicts, 0, max(0, last+2-maxVerdicts)), v)
		return v
	}
	v := k.verdicts[i]
	k.verdicts = append(slices.Delete(k.verdicts, i, i+1), v)
	return v
}

// allows decides the connections that a pair stands for; src and dst are the kinds of
// its ends.
func (k *kindSet) allows(x *pair, src, dst int32, p Port) bool {
	number := p.Number
	if p.Name != "" {
		number = namedPort(x.to, p.Name, p.Proto)
	}
	key := p.key(flow.AddrFrom(x.src), flow.AddrFrom(x.dst), number)
	if x.a.key.host.IsValid() || x.b.key.host.IsValid() {
		return k.table.Lookup(key).Verdict == classifier.Allow // a node always reaches its own pods
	}
	if len(k.ends) > maxRemembered {
		return k.decide(src, dst, &key)
	}
	cell := k.about(p, x.family).cell(src, column{dst, number})
	if *cell == 0 {
		*cell = cellRefuses
		if k.decide(src, dst, &key) {
			*cell = cellAllows
		}
	}
	return *cell == cellAllows
}

func (k *kindSet) decide(src, dst int32, key *flow.Key) bool {
	allows := func(d flow.Direction, subject, peer int32) bool {
		prog := k.matcher.PolicyProgram(d, k.ends[subject], k.ends[peer])
		return k.table.Outcome(prog.Outcome(key.Proto, key.DstPort, key.SrcPort)).Verdict == classifier.Allow
	}
	return allows(flow.Egress, src, dst) && allows(flow.Ingress, dst, src)
}

// cell returns what is known about one kind of connections.
func (v *verdicts) cell(src int32, dst column) *uint8 {
	at, ok := v.columns[dst]
	if !ok {
		at = int32(len(v.columns))
		v.columns[dst] = at
	}
	for int(src) >= len(v.rows) {
		v.rows = append(v.rows, nil)
	}
	row := &v.rows[src]
	if int(at) >= len(*row) {
		*row = append(*row, make([]uint8, int(at)+1-len(*row))...)
	}
	return &(*row)[at]
}
