package conntrack

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/tierwall/tierwall/classifier/flow"
)

func key(proto flow.Proto, src, dst string) flow.Key {
	return flow.MakeKey(proto, netip.MustParseAddrPort(src), netip.MustParseAddrPort(dst))
}

// echo is an ICMP or ICMPv6 key of the type and identifier.
func echo(proto flow.Proto, src, dst string, typ uint8, id uint16) flow.Key {
	return flow.Key{
		Src: flow.AddrFrom(netip.MustParseAddr(src)), Dst: flow.AddrFrom(netip.MustParseAddr(dst)),
		Proto: proto, SrcPort: id, DstPort: flow.ICMPPort(typ, 0),
	}
}

// segments reads ">S <SA >A": direction and flags of TCP segments.
func segments(s string) (out []struct {
	flags uint8
	reply bool
},
) {
	for _, f := range strings.Fields(s) {
		var seg struct {
			flags uint8
			reply bool
		}
		seg.reply = f[0] == '<'
		for _, c := range f[1:] {
			seg.flags |= map[rune]uint8{'S': syn, 'A': ack, 'F': fin, 'R': rst, 'P': 0x08, 'E': 0x40}[c]
		}
		out = append(out, seg)
	}
	return out
}

func TestTCPStates(t *testing.T) {
	tests := []struct{ name, segments, states string }{
		{"handshake", ">S <SA >A", "syn-sent syn-recv established"},
		{"ECN handshake", ">SE <SAE >A", "syn-sent syn-recv established"},
		{"handshake and data", ">S <SA >A >PA <PA <A", "syn-sent syn-recv established established established established"},
		{"SYN retransmitted", ">S >S <SA <SA >A", "syn-sent syn-sent syn-recv syn-recv established"},
		{"SYN-ACK not seen", ">S >A", "syn-sent established"},
		{"challenge ACK proves nothing", ">S <A", "syn-sent syn-sent"},
		{"data before the ACK", ">S <SA <PA >A", "syn-sent syn-recv syn-recv established"},
		{"SYN-ACK from the opener answers nothing", ">S >SA", "syn-sent syn-sent"},
		{"refused", ">S <RA", "syn-sent closed"},
		{"opener gives up", ">S <SA >R", "syn-sent syn-recv closed"},
		{"opener closes first", ">S <SA >A >FA <A <FA >A", "syn-sent syn-recv established fin-opener fin-opener closing time-wait"},
		{"replier closes first", ">S <SA >A <FA >A >FA <A", "syn-sent syn-recv established fin-replier fin-replier closing time-wait"},
		{"both close at once", ">S <SA >A >FA <FA <A >A", "syn-sent syn-recv established fin-opener closing time-wait time-wait"},
		{"FIN retransmitted", ">A >FA >FA <FA <FA >A", "established fin-opener fin-opener closing closing time-wait"},
		{"half closed and streaming", ">A >FA <PA >A <PA", "established fin-opener fin-opener fin-opener fin-opener"},
		{"FIN with the ACK", ">S <SA >FA", "syn-sent syn-recv fin-opener"},
		{"reset while closing", ">A >FA <RA", "established fin-opener closed"},
		{"reset in time-wait", ">A >FA <FA >A <R", "established fin-opener closing time-wait closed"},
		{"nothing revives a closed one", ">A >R >A <A >FA <SA", "established closed closed closed closed closed"},
		{"SYN in an open one changes nothing", ">A >S <SA", "established established established"},
		{"ACK-less segment changes nothing", ">S >P", "syn-sent syn-sent"},
		// The first segment seen decides how a connection starts.
		{"mid-stream", ">PA", "established"},
		{"mid-stream from the replier", "<A", "established"},
		{"SYN-ACK first", "<SA >A", "syn-recv established"},
		{"FIN first", ">FA", "fin-opener"},
		{"FIN first from the replier", "<FA", "fin-replier"},
		{"RST first", "<R", "closed"},
	}
	for _, tt := range tests {
		var state State
		var states []string
		for i, seg := range segments(tt.segments) {
			p := &Packet{Key: key(flow.TCP, "10.0.0.1:1000", "10.0.0.2:80"), TCPFlags: seg.flags}
			if i == 0 {
				state = start(p, seg.reply)
			} else {
				state = advance(state, p, seg.reply)
			}
			states = append(states, state.String())
		}
		if got := strings.Join(states, " "); got != tt.states {
			t.Errorf("%s (%s):\n got %s\nwant %s", tt.name, tt.segments, got, tt.states)
		}
	}
}

// Whatever the flags, the machine stays within TCP's states and never goes back
// behind one that timeouts or policies rely on.
func TestTCPMachineIsTotal(t *testing.T) {
	for s := SynSent; s <= Closed; s++ {
		for flags := range 256 {
			for _, reply := range []bool{false, true} {
				next := advanceTCP(s, uint8(flags), reply)
				if next < SynSent || next > Closed {
					t.Fatalf("%v on flags %#x leads to %v", s, flags, next)
				}
				if next < s {
					t.Errorf("%v on flags %#x goes back to %v", s, flags, next)
				}
				if flags&rst != 0 && next != Closed {
					t.Errorf("%v survives a reset as %v", s, next)
				}
			}
		}
	}
}

func TestPairStates(t *testing.T) {
	for _, proto := range []flow.Proto{flow.UDP, flow.SCTP, flow.ICMP, flow.ICMPv6, flow.IGMP, 47} {
		p := &Packet{Key: flow.Key{Proto: proto}, TCPFlags: rst} // flags mean nothing here
		s := start(p, false)
		again := advance(s, p, false)
		answered := advance(again, p, true)
		after := advance(answered, p, false)
		if got := fmt.Sprint(s, again, answered, after); got != "unreplied unreplied replied replied" {
			t.Errorf("%v: %s", proto, got)
		}
		if got := start(p, true); got != Replied {
			t.Errorf("%v: first seen from the replier: %v", proto, got)
		}
	}
}

func TestIsNewConnection(t *testing.T) {
	const isn, other = 1000, 2000
	k := key(flow.TCP, "10.0.0.1:1000", "10.0.0.2:80")
	k6 := key(flow.TCP, "[fd00::1]:1000", "[fd00::2]:80")
	icmp := echo(flow.ICMP, "10.0.0.1", "10.0.0.2", flow.ICMPEchoRequest, 5)
	tests := []struct {
		name     string
		key      flow.Key // of the record
		state    State
		bypassed bool
		flags    uint8
		seq      uint32
		reply    bool
		want     bool
	}{
		{"SYN after the end", k, TimeWait, false, syn, other, false, true},
		{"v6 SYN after the end", k6, TimeWait, false, syn, other, false, true},
		{"SYN after a reset", k, Closed, false, syn, other, false, true},
		{"same SYN after a reset", k, Closed, false, syn, isn, false, true},
		{"SYN from the other side after the end", k, TimeWait, false, syn, other, true, true},
		{"retransmitted SYN", k, SynSent, false, syn, isn, false, false},
		{"v6 retransmitted SYN", k6, SynSent, false, syn, isn, false, false},
		{"retransmitted SYN, answered", k, SynRecv, false, syn, isn, false, false},
		{"another SYN before the answer", k, SynSent, false, syn, other, false, true},
		{"another SYN after the answer", k, SynRecv, false, syn, other, false, true},
		{"SYN from the other side", k, SynSent, false, syn, other, true, true},
		{"SYN from the other side of an open one", k, Established, false, syn, other, true, true},
		{"SYN in an open one", k, Established, false, syn, other, false, false},
		{"SYN in a half closed one", k, FinOpener, false, syn, other, false, false},
		{"SYN when both have closed", k, Closing, false, syn, other, false, true},
		{"SYN in a bypassed open one", k, Established, true, syn, other, false, true},
		{"retransmitted SYN in a bypassed one", k, SynSent, true, syn, isn, false, false},
		{"another SYN in a bypassed one", k, SynSent, true, syn, other, false, true},
		{"SYN-ACK", k, SynSent, false, syn | ack, other, true, false},
		{"SYN-ACK after the end", k, TimeWait, false, syn | ack, other, true, false},
		{"SYN+RST after the end", k, TimeWait, false, syn | rst, other, false, false},
		{"data after the end", k, TimeWait, false, ack, other, false, false},
		{"ECN SYN after the end", k, TimeWait, false, syn | 0xc0, other, false, true},
		{"UDP has no SYN", key(flow.UDP, "10.0.0.1:1000", "10.0.0.2:80"), Replied, false, syn, other, false, false},
		{"SCTP has no SYN", key(flow.SCTP, "10.0.0.1:1000", "10.0.0.2:80"), Replied, false, syn, other, true, false},
		{"echo reply to a request", icmp, Unreplied, false, 0, 0, true, false},
		{"next echo request", icmp, Replied, false, 0, 0, false, false},
		{"echo request to a reply", icmp.Reverse(), Unreplied, false, 0, 0, true, true},
		{"v6 echo request to a reply", echo(flow.ICMPv6, "fd00::1", "fd00::2", flow.ICMPv6EchoReply, 5), Unreplied, false, 0, 0, true, true},
	}
	for _, tt := range tests {
		rec := &Record{Key: tt.key, State: tt.state, ISN: isn, Admission: Admission{Bypassed: tt.bypassed}}
		p := &Packet{Key: tt.key, TCPFlags: tt.flags, TCPSeq: tt.seq}
		if tt.reply {
			p.Key = tt.key.Reverse()
		}
		if got := IsNewConnection(rec, p); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestIdle(t *testing.T) {
	d := DefaultTimeouts()
	tests := []struct {
		proto    flow.Proto
		state    State
		bypassed bool
		want     time.Duration
	}{
		{flow.TCP, SynSent, false, 4 * time.Minute},
		{flow.TCP, SynRecv, false, 4 * time.Minute},
		{flow.TCP, Established, false, 124 * time.Minute},
		{flow.TCP, FinOpener, false, 4 * time.Minute},
		{flow.TCP, FinReplier, false, 4 * time.Minute},
		{flow.TCP, Closing, false, 4 * time.Minute},
		{flow.TCP, TimeWait, false, 2 * time.Minute},
		{flow.TCP, Closed, false, 10 * time.Second},
		{flow.UDP, Unreplied, false, 2 * time.Minute},
		{flow.UDP, Replied, false, 5 * time.Minute},
		{flow.SCTP, Unreplied, false, 2 * time.Minute},
		{flow.SCTP, Replied, false, 210 * time.Second},
		{flow.ICMP, Unreplied, false, time.Minute},
		{flow.ICMPv6, Replied, false, time.Minute},
		{47, Unreplied, false, 10 * time.Minute},
		// Silence of what bypasses us means nothing, unless we saw it end.
		{flow.TCP, SynSent, true, 124 * time.Minute},
		{flow.TCP, SynRecv, true, 124 * time.Minute},
		{flow.TCP, FinOpener, true, 4 * time.Minute},
		{flow.TCP, Closed, true, 10 * time.Second},
		{flow.UDP, Unreplied, true, 5 * time.Minute},
		{flow.SCTP, Unreplied, true, 210 * time.Second},
	}
	for _, tt := range tests {
		rec := &Record{Key: flow.Key{Proto: tt.proto}, State: tt.state, Admission: Admission{Bypassed: tt.bypassed}}
		if got := d.Idle(rec); got != tt.want {
			t.Errorf("%v %v bypassed=%v: %v, want %v", tt.proto, tt.state, tt.bypassed, got, tt.want)
		}
	}
	// Every record of every state ends some day.
	for proto := range 256 {
		for s := NoState; int(s) < NumStates; s++ {
			if got := d.Idle(&Record{Key: flow.Key{Proto: flow.Proto(proto)}, State: s}); got <= 0 {
				t.Errorf("protocol %d, %v: timeout %v", proto, s, got)
			}
		}
	}
}

func TestLimits(t *testing.T) {
	if err := (Limits{}).Validate(); err != nil {
		t.Errorf("zero limits: %v", err)
	}
	if got := (Limits{}).withDefaults(); got.Records != DefaultRecords || got.Timeouts != DefaultTimeouts() {
		t.Errorf("defaults of zero: %+v", got)
	}
	custom := Limits{Records: 7, Timeouts: Timeouts{UDPReplied: time.Second}}.withDefaults()
	want := DefaultTimeouts()
	want.UDPReplied = time.Second
	if custom.Records != 7 || custom.Timeouts != want {
		t.Errorf("given values are not kept: %+v", custom)
	}
	if err := (Limits{Records: MaxRecords}).Validate(); err != nil {
		t.Error(err)
	}
	if (Limits{Records: MaxRecords + 1}).Validate() == nil {
		t.Error("a table larger than any is valid")
	}
	err := Limits{Records: -1, Timeouts: Timeouts{ICMP: -1, Other: -2}}.Validate()
	for _, word := range []string{"Records", "Timeouts.ICMP", "Timeouts.Other"} {
		if err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("error %v does not name %s", err, word)
		}
	}
	defer func() {
		if recover() == nil {
			t.Error("New accepted limits that Validate refuses")
		}
	}()
	New(Limits{Records: -1})
}

func TestStateNames(t *testing.T) {
	seen := map[string]bool{"": true, "invalid": true}
	for s := range NumStates {
		name := State(s).String()
		if seen[name] {
			t.Errorf("state %d has name %q", s, name)
		}
		seen[name] = true
	}
	if State(NumStates).String() != "invalid" {
		t.Error("state out of range has a name")
	}
}
