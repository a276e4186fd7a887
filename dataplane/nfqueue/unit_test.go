package nfqueue

import (
	"encoding/hex"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/dataplane"
)

func TestConfig(t *testing.T) {
	c, err := Config{}.complete()
	if err != nil {
		t.Fatalf("the zero Config is not valid: %v", err)
	}
	if c.FailOpen || c.Queues < 1 || c.Marks != DefaultMarks {
		t.Errorf("defaults are %+v, want closed, at least one queue, the default marks", c)
	}
	// Bits that other node software owns; see DefaultMarks.
	if ours := c.Marks.Accept | c.Marks.Reply; ours&(0x4000|0x8000|0x2000|0x80|0x0f00|0xffff0000) != 0 {
		t.Errorf("default mark bits %#x collide with other node software", ours)
	}
	for want, c := range map[string]Config{
		"queues":                {Queues: 65},
		"numbers below":         {QueueNum: 65535, Queues: 2},
		"maximum packet length": {MaxPacketLen: 40},
		"single bits":           {Marks: Marks{Accept: 3, Reply: 4}},
		"two different":         {Marks: Marks{Accept: 4, Reply: 4}},
		"reply 0x0":             {Marks: Marks{Accept: 4}},
		"read buffer":           {ReadBuffer: -1},
	} {
		if _, err := c.complete(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Config %+v: error %v, want one with %q", c, err, want)
		}
	}
}

// The wire form of a verdict, checked against linux/netfilter/nfnetlink_queue.h
// by hand.
func TestAppendVerdict(t *testing.T) {
	if [2]byte{1, 0} != [2]byte(attr16(1)) {
		t.Skip("the expected bytes are those of a little-endian machine")
	}
	want := "28000000" + "0103" + "0100" + "00000000" + "00000000" + // nlmsghdr: 40 bytes, verdict, request
		"00" + "00" + "1c85" + // nfgenmsg: family, version, queue 7301
		"0c00" + "0200" + "00000001" + "00000009" + // accept packet 9
		"0800" + "0300" + "00004020" // mark
	if got := hex.EncodeToString(appendVerdict(nil, 7301, 9, nfAccept, 0x4020, true)); got != want {
		t.Errorf("verdict with mark\n got %s\nwant %s", got, want)
	}
	want = "20000000" + "0103" + "0100" + "00000000" + "00000000" + "00001c84" + "0c000200" + "00000000" + "ffffffff"
	if got := hex.EncodeToString(appendVerdict(nil, 7300, 0xffffffff, nfDrop, 0, false)); got != want {
		t.Errorf("verdict without mark\n got %s\nwant %s", got, want)
	}
}

func attr16(v uint16) []byte { return appendAttr(nil, v, nil)[2:4] }

// Each disposition becomes the right verdict; marks of other software survive;
// nothing is allocated.
func TestAppendBatch(t *testing.T) {
	var b dataplane.Batch
	held := [dataplane.BatchSize]origin{1: {mark: 0x4000, hook: unix.NF_INET_FORWARD}, 2: {mark: 0x8000}, 4: {mark: 0x4000, hook: unix.NF_INET_LOCAL_OUT}}
	b.N = 5
	b.Packets[0] = dataplane.Packet{ID: 1, Disposition: dataplane.DropPacket, Remember: true}
	b.Packets[1] = dataplane.Packet{ID: 2, Disposition: dataplane.PassPacket, Remember: true}
	b.Packets[2] = dataplane.Packet{ID: 3, Disposition: dataplane.PassPacket}
	b.Packets[3] = dataplane.Packet{ID: 4, Disposition: dataplane.DeferPacket, Remember: true}
	b.Packets[4] = dataplane.Packet{ID: 5, Disposition: dataplane.PassPacket, Remember: true}
	b.Packets[5] = dataplane.Packet{ID: 6, Disposition: dataplane.PassPacket} // beyond N
	want := appendVerdict(nil, 7, 1, nfDrop, 0, false)
	want = appendVerdict(want, 7, 2, nfRepeat, 0x4020, true)
	want = appendVerdict(want, 7, 3, nfAccept, 0x8000, true)
	want = appendVerdict(want, 7, 4, nfDrop, 0, false)
	want = appendVerdict(want, 7, 5, nfAccept, 0x4020, true)
	buf := make([]byte, 0, dataplane.BatchSize*verdictMarkLen)
	got := appendBatch(buf, 7, &b, &held, DefaultMarks)
	if !slices.Equal(got, want) {
		t.Errorf("batch\n got %x\nwant %x", got, want)
	}
	b.N = dataplane.BatchSize
	for i := range b.Packets {
		b.Packets[i] = dataplane.Packet{Disposition: dataplane.Disposition(i % 3), Remember: i%2 == 0}
	}
	if n := testing.AllocsPerRun(100, func() { appendBatch(buf, 7, &b, &held, DefaultMarks) }); n != 0 {
		t.Errorf("appendBatch allocates %v times, want 0", n)
	}
}

// Apply allocates nothing. The socket is a real one without a queue; the kernel
// refuses the verdicts, which costs this process nothing.
func TestApplyAllocates(t *testing.T) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_NETFILTER)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "netlink")
	defer f.Close()
	c, _ := Config{}.complete()
	d := newDriver(c, 7300)
	if d.raw, err = f.SyscallConn(); err != nil {
		t.Fatal(err)
	}
	b := &dataplane.Batch{N: dataplane.BatchSize}
	for i := range b.Packets {
		b.Packets[i] = dataplane.Packet{ID: uint32(i), Disposition: dataplane.Disposition(i % 3), Remember: i%2 == 0}
	}
	if err := d.Apply(b); err != nil { // sizes the buffer
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(50, func() { d.Apply(b) }); n != 0 {
		t.Errorf("Apply allocates %v times, want 0", n)
	}
}

func TestParseQueues(t *testing.T) {
	file := " 7299  1 0 2 128 50 50 0  1\n 7300  1234     3 2   128     5     2      77  1\n 7301  1235  0 2 128 0 10 0  1\n 7302 9 0 2 128 50 50 0 1\n"
	want := []queueLine{{7300, 1234, 3, 5, 2}, {7301, 1235, 0, 0, 10}}
	if got, err := parseQueues([]byte(file), 7300, 7301); !slices.Equal(got, want) || err != nil {
		t.Errorf("lines are %v, %v, want %v", got, err, want)
	}
	if got, err := parseQueues(nil, 7300, 7301); len(got) != 0 || err != nil {
		t.Errorf("lines of no queue are %v, %v, want none", got, err)
	}
	if _, err := parseQueues([]byte("nonsense\n"), 0, 1); err == nil {
		t.Error("a line of another format is no error")
	}
}

// ctMessage builds a message of a conntrack dump.
func ctMessage(family byte, orig, reply ctTuple, mark uint32, zone uint16) []byte {
	b := []byte{family, unix.NFNETLINK_V0, 0, 0}
	b = appendAttr(b, ctaTupleOrig|unix.NLA_F_NESTED, orig.encode())
	b = appendAttr(b, ctaTupleReply|unix.NLA_F_NESTED, reply.encode())
	b = appendAttr32(b, ctaMark, mark)
	if zone != 0 {
		b = appendAttr(b, ctaZone, []byte{byte(zone >> 8), byte(zone)})
	}
	return b
}

// ctTuple is one direction of a connection in readable form.
type ctTuple struct {
	src, dst     string
	sport, dport uint16 // for ICMP: sport is the identifier, dport type and code
	proto        flow.Proto
}

func (t ctTuple) encode() []byte {
	src, dst := netip.MustParseAddr(t.src), netip.MustParseAddr(t.dst)
	srcAttr, dstAttr := uint16(ctaIPv4Src), uint16(ctaIPv4Dst)
	if src.Is6() {
		srcAttr, dstAttr = ctaIPv6Src, ctaIPv6Dst
	}
	be := func(v uint16) []byte { return []byte{byte(v >> 8), byte(v)} }
	ip := appendAttr(appendAttr(nil, srcAttr, src.AsSlice()), dstAttr, dst.AsSlice())
	proto := appendAttr(nil, ctaProtoNum, []byte{byte(t.proto)})
	switch t.proto {
	case flow.ICMP, flow.ICMPv6:
		off := uint16(0)
		if t.proto == flow.ICMPv6 {
			off = ctaICMPv6ID - ctaICMPID
		}
		proto = appendAttr(proto, ctaICMPID+off, be(t.sport))
		proto = appendAttr(proto, ctaICMPType+off, []byte{byte(t.dport >> 8)})
		proto = appendAttr(proto, ctaICMPCode+off, []byte{byte(t.dport)})
	default:
		proto = appendAttr(appendAttr(proto, ctaProtoSrcPort, be(t.sport)), ctaProtoDstPort, be(t.dport))
	}
	return appendAttr(appendAttr(nil, ctaTupleIP|unix.NLA_F_NESTED, ip), ctaTupleProto|unix.NLA_F_NESTED, proto)
}

// The key of a connection is what the forward hook saw of its first packet:
// after DNAT, before SNAT.
func TestConnectionKey(t *testing.T) {
	for _, tc := range []struct {
		name        string
		orig, reply ctTuple
		want        string
	}{
		{"TCP", ctTuple{"10.0.0.1", "10.0.0.2", 4000, 80, 6}, ctTuple{"10.0.0.2", "10.0.0.1", 80, 4000, 6}, "TCP 10.0.0.1:4000 > 10.0.0.2:80"},
		{"UDP v6", ctTuple{"fd00::1", "fd00::2", 4000, 53, 17}, ctTuple{"fd00::2", "fd00::1", 53, 4000, 17}, "UDP [fd00::1]:4000 > [fd00::2]:53"},
		{"SCTP", ctTuple{"10.0.0.1", "10.0.0.2", 4000, 80, 132}, ctTuple{"10.0.0.2", "10.0.0.1", 80, 4000, 132}, "SCTP 10.0.0.1:4000 > 10.0.0.2:80"},
		{"DNAT", ctTuple{"10.0.0.1", "10.96.0.10", 4000, 80, 6}, ctTuple{"10.0.0.2", "10.0.0.1", 8080, 4000, 6}, "TCP 10.0.0.1:4000 > 10.0.0.2:8080"},
		{"SNAT", ctTuple{"10.0.0.1", "192.0.2.9", 4000, 80, 6}, ctTuple{"192.0.2.9", "192.0.2.1", 80, 61000, 6}, "TCP 10.0.0.1:4000 > 192.0.2.9:80"},
		{"hairpin", ctTuple{"10.0.0.1", "10.96.0.10", 4000, 80, 6}, ctTuple{"10.0.0.1", "10.0.0.254", 8080, 61000, 6}, "TCP 10.0.0.1:4000 > 10.0.0.1:8080"},
		{"echo", ctTuple{"10.0.0.1", "10.0.0.2", 7, 8 << 8, 1}, ctTuple{"10.0.0.2", "10.0.0.1", 7, 0, 1}, "ICMP 10.0.0.1 > 10.0.0.2 type 8 code 0"},
		{"echo v6", ctTuple{"fd00::1", "fd00::2", 7, 128 << 8, 58}, ctTuple{"fd00::2", "fd00::1", 7, 129 << 8, 58}, "ICMPv6 fd00::1 > fd00::2 type 128 code 0"},
		{"GRE has no ports", ctTuple{"10.0.0.1", "10.0.0.2", 1, 2, 47}, ctTuple{"10.0.0.2", "10.0.0.1", 2, 1, 47}, "47 10.0.0.1 > 10.0.0.2"},
	} {
		e, ok := parseConnection(ctMessage(unix.AF_INET, tc.orig, tc.reply, 0x20, 0))
		key, valid := e.key()
		if !ok || !valid || key.String() != tc.want || e.mark != 0x20 {
			t.Errorf("%s: key %v (%v, %v) mark %#x, want %s mark 0x20", tc.name, key, ok, valid, e.mark, tc.want)
		}
		if tc.orig.proto == flow.ICMP && key.SrcPort != 7 {
			t.Errorf("%s: source port %d, want the identifier 7", tc.name, key.SrcPort)
		}
		if !reflect.DeepEqual(e.rawOrig, tc.orig.encode()) {
			t.Errorf("%s: the raw tuple is %x, want %x", tc.name, e.rawOrig, tc.orig.encode())
		}
	}
	// A timestamp request has an identifier in the kernel's tuple and none in
	// a flow key.
	e, _ := parseConnection(ctMessage(unix.AF_INET, ctTuple{"10.0.0.1", "10.0.0.2", 7, 13 << 8, 1}, ctTuple{"10.0.0.2", "10.0.0.1", 7, 14 << 8, 1}, 0, 9))
	if key, _ := e.key(); key.SrcPort != 0 || !slices.Equal(e.rawZone, []byte{0, 9}) {
		t.Errorf("timestamp: source port %d, zone %x, want 0 and 0009", key.SrcPort, e.rawZone)
	}
}

// Whatever bytes come, parsing ends and yields no half-read key.
func FuzzParseConnection(f *testing.F) {
	whole := ctMessage(unix.AF_INET, ctTuple{"10.0.0.1", "10.0.0.2", 1, 2, 6}, ctTuple{"10.0.0.2", "10.0.0.1", 2, 1, 6}, 1, 3)
	for n := range whole {
		f.Add(whole[:n])
	}
	f.Add(ctMessage(unix.AF_INET6, ctTuple{"fd00::1", "fd00::2", 1, 2, 58}, ctTuple{"10.0.0.2", "10.0.0.1", 2, 1, 58}, 1, 3))
	f.Fuzz(func(t *testing.T, b []byte) {
		e, ok := parseConnection(b)
		if !ok {
			return
		}
		if key, ok := e.key(); ok && !key.Valid() {
			t.Errorf("invalid key %v returned as valid", key)
		}
	})
}
