package xsk

import (
	"runtime"
	"testing"
)

// pair is both sides of one ring.
func pair(n int) (producer, consumer *ring[Desc]) {
	var p, c uint32
	entries := make([]Desc, n)
	return &ring[Desc]{own: &p, other: &c, entries: entries}, &ring[Desc]{own: &c, other: &p, entries: entries}
}

// Entries come out as they went in, once each and in order, whoever runs when. With the
// race detector (or on a machine that reorders) it also says that the indices publish
// what was written to the array before.
func TestRingBetweenGoroutines(t *testing.T) {
	const total = 100_000
	for _, size := range []int{1, 2, 64} {
		producer, consumer := pair(size)
		done := make(chan error)
		go func() {
			for i := uint32(0); i < total; {
				n := producer.room()
				if n == 0 {
					runtime.Gosched()
				}
				for range min(n, int(total-i)) {
					producer.put(Desc{Addr: uint64(i), Len: ^i})
					i++
				}
				producer.publish()
			}
			done <- nil
		}()
		for i := uint32(0); i < total; {
			n := consumer.ready()
			if n > size {
				t.Fatalf("size %d: %d entries wait", size, n)
			}
			if n == 0 {
				runtime.Gosched()
			}
			for range n {
				if d := consumer.take(); d.Addr != uint64(i) || d.Len != ^i {
					t.Fatalf("size %d: entry %d is %+v", size, i, d)
				}
				i++
			}
			consumer.publish()
		}
		<-done
	}
}

// The indices are 32 bits and wrap.
func TestRingWraps(t *testing.T) {
	producer, consumer := pair(4)
	const before = ^uint32(0) - 1
	*producer.own, *consumer.own, producer.next, consumer.next = before, before, before, before
	for i := range uint64(16) {
		if producer.room() != 4 || consumer.ready() != 0 {
			t.Fatalf("step %d: room %d, ready %d", i, producer.room(), consumer.ready())
		}
		for j := range uint64(4) {
			producer.put(Desc{Addr: 4*i + j})
		}
		if consumer.ready() != 0 {
			t.Fatal("entries are there before they are published")
		}
		producer.publish()
		if producer.room() != 0 || consumer.ready() != 4 {
			t.Fatalf("step %d, full: room %d, ready %d", i, producer.room(), consumer.ready())
		}
		for j := range uint64(4) {
			if d := consumer.take(); d.Addr != 4*i+j {
				t.Fatalf("step %d: took %d", i, d.Addr)
			}
		}
		if producer.room() != 0 {
			t.Fatal("places are free before they are given back")
		}
		consumer.publish()
	}
}

func TestConfigIsChecked(t *testing.T) {
	for _, n := range []int{0, -1, 3} {
		if _, err := New(1, 0, Config{Frames: n, FrameSize: 2048}); err == nil {
			t.Errorf("%d buffers: no error", n)
		}
	}
}
