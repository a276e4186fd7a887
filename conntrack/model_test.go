package conntrack

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tierwall/tierwall/classifier/flow"
)

// model is the table as one would write it without caring for speed: a slice,
// most recently used last, searched from end to end. It shares with the table the
// pure functions that have tables of their own (state machines, IsNewConnection,
// Idle) and nothing of finding, ordering, replacing, evicting and counting.
type model struct {
	limits Limits
	recs   []Record
	lastID uint64
	stats  Stats
	told   map[uint64]bool // records that News need not report
	gone   []Record        // records it must report although they are gone
}

// find returns the index of k's connection by the definition of a reply: the
// reverse key, unless reversing changes nothing but the addresses.
func (m *model) find(k flow.Key) int {
	return slices.IndexFunc(m.recs, func(r Record) bool {
		if r.Key == k {
			return true
		}
		switch k.Proto {
		case flow.IGMP:
			return false
		case flow.ICMP:
			if typ := k.DstPort >> 8; typ != 0 && typ != 8 {
				return false
			}
		case flow.ICMPv6:
			if typ := k.DstPort >> 8; typ != 128 && typ != 129 {
				return false
			}
		}
		return r.Key == k.Reverse()
	})
}

func (m *model) expired(i int, now int64) bool {
	return now > m.recs[i].LastSeen+int64(m.limits.Timeouts.Idle(&m.recs[i]))
}

func (m *model) delete(i int) {
	if !m.told[m.recs[i].ID] {
		m.gone = append(m.gone, m.recs[i])
	}
	m.recs = slices.Delete(m.recs, i, i+1)
}

func (m *model) news() []Record {
	news := m.gone
	for _, r := range m.recs {
		if !m.told[r.ID] {
			news = append(news, r)
			m.told[r.ID] = true
		}
	}
	m.gone = nil
	return news
}

// touch moves a record to the end.
func (m *model) touch(i int) *Record {
	r := m.recs[i]
	m.recs = append(slices.Delete(m.recs, i, i+1), r)
	return &m.recs[len(m.recs)-1]
}

func (m *model) seen(p *Packet, now int64) (Record, Result) {
	i := m.find(p.Key)
	if i >= 0 && m.expired(i, now) {
		m.delete(i)
		m.stats.Expired++
		i = -1
	}
	if i < 0 {
		m.stats.Misses++
		return Record{}, Miss
	}
	r := m.touch(i)
	if IsNewConnection(r, p) {
		m.stats.Misses++
		return *r, Reopened
	}
	m.stats.Hits++
	dir, result := 0, Hit
	if p.Key != r.Key {
		dir, result = 1, HitReply
	}
	r.State = advance(r.State, p, dir == 1)
	r.LastSeen = max(now, r.LastSeen)
	r.Packets[dir]++
	r.Bytes[dir] += uint64(p.Length)
	r.Plain = r.Plain && p.Plain
	m.told[r.ID] = false
	return *r, result
}

func (m *model) insert(k flow.Key, p *Packet, a Admission, now int64) uint64 {
	m.lastID++
	m.stats.Inserted++
	if i := m.find(k); i >= 0 {
		m.delete(i)
		m.stats.Replaced++
	} else if len(m.recs) == m.limits.Records {
		m.delete(0)
		m.stats.Evicted++
	}
	r := Record{Admission: a, ID: m.lastID, Since: now, LastSeen: now, Key: k, State: start(p, p.Key != k), Plain: p.Plain}
	if k.Proto == flow.TCP && p.TCPFlags&(syn|ack|fin|rst) == syn {
		r.ISN = p.TCPSeq
	}
	if p.Key == k {
		r.Packets[0], r.Bytes[0] = 1, uint64(p.Length)
	} else {
		r.Packets[1], r.Bytes[1] = 1, uint64(p.Length)
	}
	m.recs = append(m.recs, r)
	return r.ID
}

func (m *model) remove(k flow.Key) bool {
	i := m.find(k)
	if i >= 0 {
		m.delete(i)
		m.stats.Removed++
	}
	return i >= 0
}

func (m *model) expireAll(now int64) (n int) {
	for i := len(m.recs) - 1; i >= 0; i-- {
		if m.expired(i, now) {
			m.delete(i)
			n++
		}
	}
	m.stats.Expired += uint64(n)
	return n
}

// universe is few keys, so that operations meet: both families, both directions
// of everything, a host talking to itself, one-way messages.
func universe() []flow.Key {
	keys := []flow.Key{
		key(flow.TCP, "10.0.0.1:1", "10.0.0.2:2"), key(flow.TCP, "10.0.0.2:1", "10.0.0.1:2"),
		key(flow.TCP, "[fd00::1]:1", "[fd00::2]:2"), key(flow.TCP, "10.0.0.1:1", "10.0.0.1:2"),
		key(flow.UDP, "10.0.0.1:1", "10.0.0.2:2"), key(flow.UDP, "10.0.0.1:1", "10.0.0.1:1"),
		key(flow.SCTP, "[fd00::1]:1", "[fd00::2]:2"),
		echo(flow.ICMP, "10.0.0.1", "10.0.0.2", 8, 1), echo(flow.ICMP, "10.0.0.1", "10.0.0.1", 8, 1),
		echo(flow.ICMPv6, "fd00::1", "fd00::2", 128, 1), echo(flow.ICMP, "10.0.0.1", "10.0.0.2", 13, 0),
		echo(flow.ICMPv6, "fd00::1", "fd00::2", 137, 0), echo(flow.IGMP, "10.0.0.1", "10.0.0.2", 0x16, 0),
		echo(47, "10.0.0.1", "10.0.0.2", 0, 0),
	}
	for _, k := range keys[:len(keys):len(keys)] {
		keys = append(keys, k.Reverse())
	}
	return keys
}

func TestModel(t *testing.T) {
	for seed := range uint64(20) {
		run(t, seed)
	}
}

func run(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 0))
	keys := universe()
	limits := Limits{Records: 1 + rng.IntN(8)}.withDefaults()
	tab, m := New(limits), &model{limits: limits, told: map[uint64]bool{}}
	now := noon
	flags := []uint8{syn, syn | ack, ack, ack | fin, fin, rst, rst | ack, 0}
	for step := range 5000 {
		now += int64(rng.IntN(20)) * second
		if rng.IntN(200) == 0 {
			now -= 100 * second // clocks do that
		}
		p := &Packet{
			Key: keys[rng.IntN(len(keys))], Length: uint32(rng.IntN(1500)),
			TCPFlags: flags[rng.IntN(len(flags))], TCPSeq: uint32(rng.IntN(3)),
			Plain: rng.IntN(4) > 0,
		}
		var got, want any
		switch rng.IntN(11) {
		default: // a packet, and what a worker does with it
			var rec Record
			result := tab.Seen(p, now, &rec)
			wantRec, wantResult := m.seen(p, now)
			got, want = [2]any{result, rec}, [2]any{wantResult, wantRec}
			if !result.Found() && result == wantResult && rng.IntN(4) > 0 {
				k := p.Key
				if result == Miss && rng.IntN(3) == 0 && !isOneWay(k) {
					k = k.Reverse()
				}
				a := Admission{Generation: uint64(rng.IntN(3)), Bypassed: rng.IntN(2) == 0}
				got, want = tab.Insert(k, p, a, now), m.insert(k, p, a, now)
			}
		case 6:
			rec, reply, ok := tab.Lookup(p.Key, now)
			got = [3]any{rec, reply, ok}
			want = [3]any{Record{}, false, false}
			if i := m.find(p.Key); i >= 0 && !m.expired(i, now) {
				want = [3]any{m.recs[i], p.Key != m.recs[i].Key, true}
			}
		case 7:
			got, want = forget(tab, p.Key), m.remove(p.Key)
		case 8:
			got, want = tab.Expire(now, limits.Records), m.expireAll(now)
		case 10:
			var news []Record
			missed := tab.News(func(recs []Record) { news = append(news, recs...) })
			order := func(a, b Record) int { return cmp.Compare(a.ID, b.ID) }
			told := m.news()
			slices.SortFunc(news, order)
			slices.SortFunc(told, order)
			got, want = [2]any{missed, fmt.Sprint(news)}, [2]any{false, fmt.Sprint(told)}
		case 9: // the control side judges again with a copy that may be stale
			i := m.find(p.Key)
			if i < 0 {
				continue
			}
			rec := m.recs[i]
			if rng.IntN(3) == 0 {
				rec.Generation++
			}
			fits := rec == m.recs[i]
			if rng.IntN(2) == 0 {
				got, want = tab.Forget(&rec), fits && m.remove(p.Key)
				break
			}
			a := Admission{Generation: uint64(rng.IntN(3)), Egress: rng.Uint32()}
			got, want = tab.Restamp(&rec, a), fits
			if fits {
				m.recs[i].Admission = a
			}
		}
		if got != want {
			t.Fatalf("seed %d, step %d:\n got %+v\nwant %+v", seed, step, got, want)
		}
		if step%100 == 0 {
			compare(t, seed, step, tab, m)
		}
	}
	compare(t, seed, -1, tab, m)
	for name, n := range map[string]uint64{
		"inserts": m.stats.Inserted, "evictions": m.stats.Evicted, "expiries": m.stats.Expired,
		"replacements": m.stats.Replaced, "removals": m.stats.Removed, "hits": m.stats.Hits,
	} {
		if n < 10 {
			t.Errorf("seed %d: only %d %s: the run tests too little", seed, n, name)
		}
	}
}

// compare checks contents and totals.
func compare(t *testing.T, seed uint64, step int, tab *Table, m *model) {
	t.Helper()
	byID := func(a, b Record) int { return int(int64(a.ID) - int64(b.ID)) }
	var got []Record
	tab.Each(func(r Record) bool { got = append(got, r); return true })
	want := slices.Clone(m.recs)
	slices.SortFunc(got, byID)
	slices.SortFunc(want, byID)
	if !slices.Equal(got, want) {
		t.Fatalf("seed %d, step %d: contents\n got %+v\nwant %+v", seed, step, got, want)
	}
	stats := m.stats
	stats.Records = len(m.recs)
	if tab.Stats() != stats {
		t.Fatalf("seed %d, step %d: stats\n got %+v\nwant %+v", seed, step, tab.Stats(), stats)
	}
	checkBooks(t, tab)
}
