package nfqueue

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/dataplane"
)

// packetMessage builds the message of a queued packet as Linux 6.18 sends it,
// attributes we skip included.
func packetMessage(q queued) []byte {
	b := []byte{unix.AF_INET, unix.NFNETLINK_V0, 0x1c, 0x84}
	hdr := binary.BigEndian.AppendUint32(nil, q.id)
	b = appendAttr(b, nfqaPacketHdr, append(hdr, 0x08, 0x00, q.hook))
	if q.device != 0 {
		b = appendAttr32(b, nfqaInDev, uint32(q.device))
	}
	b = appendAttr32(b, nfqaOutDev, 99)
	if q.mark != 0 {
		b = appendAttr32(b, nfqaMark, q.mark)
	}
	b = appendAttr(b, 9, []byte{0, 6, 0, 0, 2, 0, 0, 0, 0, 1, 0, 0}) // NFQA_HWADDR
	b = appendAttr32(b, 14, 1)                                       // NFQA_SKB_INFO
	if q.length != 0 {
		b = appendAttr32(b, nfqaCapLen, q.length)
	}
	b = appendAttr(b, nfqaPayload, q.payload)
	return message(msgPacket, b)
}

// message puts a netlink header in front.
func message(typ uint16, body []byte) []byte {
	b := binary.NativeEndian.AppendUint32(nil, uint32(nlHeaderLen+len(body)))
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = append(b, make([]byte, 10)...)
	return append(b, body...)
}

// errorMessage is the kernel's answer to a verdict it cannot carry out.
func errorMessage(errno unix.Errno) []byte {
	b := binary.NativeEndian.AppendUint32(nil, uint32(-int32(errno)))
	return message(unix.NLMSG_ERROR, append(b, make([]byte, nlHeaderLen)...))
}

func TestDecode(t *testing.T) {
	for name, want := range map[string]queued{
		"plain":        {payload: []byte("an IP packet"), id: 7, mark: 0x4040, device: 3, hook: unix.NF_INET_FORWARD},
		"cut short":    {payload: []byte("a beginnin"), id: 0xffffffff, length: 1500, device: 3, hook: unix.NF_INET_LOCAL_IN},
		"output":       {payload: []byte{0x45}, id: 1, hook: unix.NF_INET_LOCAL_OUT},
		"empty packet": {payload: []byte{}, id: 1},
	} {
		typ, body, rest, ok := nextMessage(packetMessage(want))
		var got queued
		if !ok || typ != msgPacket || len(rest) != 0 || !got.decode(body) {
			t.Errorf("%s: type %#x, %d bytes rest, %v", name, typ, len(rest), ok)
			continue
		}
		if want.device == 0 {
			want.device = 99 // where it goes, where it came from nowhere
		}
		if got.id != want.id || got.mark != want.mark || got.length != want.length || got.device != want.device || got.hook != want.hook || !bytes.Equal(got.payload, want.payload) {
			t.Errorf("%s: decoded %+v, want %+v", name, got, want)
		}
	}
	if errorCode([]byte{1, 2}) != 0 {
		t.Error("an error message cut short has an error")
	}
}

// A message cut anywhere yields a packet that is longer than what is there of it,
// or none: the parser will call it truncated.
func TestDecodeCut(t *testing.T) {
	whole := packetMessage(queued{payload: bytes.Repeat([]byte{0x45}, 64), id: 7})
	seen := 0
	for n := range whole {
		_, body, rest, ok := nextMessage(whole[:n])
		var q queued
		if !ok || !q.decode(body) {
			continue
		}
		seen++
		if len(rest) != 0 || q.id != 7 {
			t.Errorf("%d of %d bytes: id %d, %d bytes rest", n, len(whole), q.id, len(rest))
		}
		if len(q.payload) != 0 && q.length != 64 {
			t.Errorf("%d of %d bytes: %d bytes of payload pass for %d, want 64", n, len(whole), len(q.payload), q.length)
		}
	}
	if seen < 64 {
		t.Errorf("only %d lengths yield a packet", seen)
	}
}

// Whatever comes, decoding ends, and a payload is a part of the message.
func FuzzDecode(f *testing.F) {
	whole := append(packetMessage(queued{payload: []byte("packet"), id: 7, mark: 3}), packetMessage(queued{id: 8, length: 4})...)
	for n := range whole {
		f.Add(whole[:n])
	}
	f.Add(errorMessage(unix.ENOENT))
	f.Fuzz(func(t *testing.T, b []byte) {
		for turn, rest := 0, b; len(rest) != 0; turn++ {
			_, body, after, ok := nextMessage(rest)
			if !ok {
				return
			}
			if len(after) >= len(rest) || turn > len(b) {
				t.Fatal("no progress")
			}
			var q queued
			if q.decode(body) && len(q.payload) > len(body) {
				t.Fatalf("payload of %d bytes in a message of %d", len(q.payload), len(body))
			}
			errorCode(body)
			rest = after
		}
	})
}

// socketDriver is a driver whose kernel is the test: what is written to the
// returned file is received, one message at a time.
func socketDriver(t *testing.T) (*driver, *os.File) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	ours, kernel := os.NewFile(uintptr(fds[0]), "driver"), os.NewFile(uintptr(fds[1]), "kernel")
	t.Cleanup(func() { ours.Close(); kernel.Close() })
	c, _ := Config{}.complete()
	d := newDriver(c, 7300)
	if d.raw, err = ours.SyscallConn(); err != nil {
		t.Fatal(err)
	}
	d.poll[1].Fd = -1
	return d, kernel
}

// Recv takes what is there, in order, up to a batch, and keeps the rest: several
// messages in one read, errors between them, messages without sense.
func TestRecv(t *testing.T) {
	d, kernel := socketDriver(t)
	write := func(messages ...[]byte) {
		t.Helper()
		if _, err := kernel.Write(bytes.Join(messages, nil)); err != nil {
			t.Fatal(err)
		}
	}
	ids := func(n int) (ids []uint32) {
		t.Helper()
		var b dataplane.Batch
		if err := d.Recv(&b); err != nil || b.N != n {
			t.Fatalf("Recv: %d packets, %v, want %d", b.N, err, n)
		}
		for i := range b.Packets[:b.N] {
			p := &b.Packets[i]
			if !p.Final || p.L2 || string(p.Frame) != "packet" {
				t.Fatalf("packet %d: %+v", i, p)
			}
			ids = append(ids, p.ID)
		}
		return ids
	}
	packet := func(id int) []byte {
		return packetMessage(queued{id: uint32(id), payload: []byte("packet"), hook: unix.NF_INET_FORWARD})
	}
	pad := func(b []byte) []byte { return append(b, make([]byte, -len(b)&3)...) }

	write([]byte("short"))
	write(message(unix.NLMSG_DONE, nil))
	write(pad(packet(0)), pad(errorMessage(unix.ENOENT)), pad(packet(1)), packet(2))
	write(errorMessage(0))
	if got := ids(3); got[0] != 0 || got[2] != 2 {
		t.Errorf("ids are %v, want 0 to 2", got)
	}
	if n := d.errors.Load(); n != 1 {
		t.Errorf("%d errors counted, want 1", n)
	}
	// Forty in one message: what does not fit the batch comes next.
	var many [][]byte
	for i := range 40 {
		many = append(many, pad(packet(i)))
	}
	d.in = newInbox(1 << 13)
	write(many...)
	write(packet(40))
	first := ids(dataplane.BatchSize)
	second := ids(9)
	if first[31] != 31 || second[0] != 32 || second[8] != 40 {
		t.Errorf("ids are %v and %v, want 0 to 40", first, second)
	}
	ids(0) // nothing there: an empty batch after a while
	if got := d.upcalls.Load(); got != 44 {
		t.Errorf("%d packets counted, want 44", got)
	}
	close(d.done)
	var b dataplane.Batch
	if err := d.Recv(&b); !errors.Is(err, dataplane.ErrClosed) {
		t.Errorf("Recv after Close: %v, want ErrClosed", err)
	}
}

// Receiving and answering a batch allocates nothing.
func TestRecvAllocates(t *testing.T) {
	d, kernel := socketDriver(t)
	messages := make([][]byte, 4)
	for i := range messages {
		messages[i] = packetMessage(queued{id: uint32(i), payload: make([]byte, 128), length: 1500, mark: 0x4000})
	}
	var b dataplane.Batch
	buf := make([]byte, 1<<12)
	n := testing.AllocsPerRun(100, func() {
		for _, m := range messages {
			kernel.Write(m)
		}
		if err := d.Recv(&b); err != nil || b.N != len(messages) {
			t.Fatalf("Recv: %d packets, %v, want %d", b.N, err, len(messages))
		}
		b.Packets[0].Disposition, b.Packets[0].Remember = dataplane.PassPacket, true
		if err := d.Apply(&b); err != nil {
			t.Fatal(err)
		}
		kernel.Read(buf)
	})
	if n != 0 {
		t.Errorf("Recv and Apply allocate %v times, want 0", n)
	}
}
