package universe

import (
	"hash/fnv"
	"math/rand/v2"
)

// FromBytes returns a random stream that spends the bytes of a fuzz input one
// choice at a time and then goes on pseudo-randomly, seeded by all of them. A
// mutated byte therefore changes one choice and leaves those before it alone,
// which is what lets a coverage-guided fuzzer steer and a crasher shrink.
//
// The slice is kept, not copied. The stream is for one goroutine.
func FromBytes(data []byte) *rand.Rand {
	h := fnv.New64a()
	h.Write(data)
	return rand.New(&byteSource{data: data, tail: rand.NewPCG(h.Sum64(), 0)})
}

// byteSource implements rand.Source.
type byteSource struct {
	data []byte
	tail *rand.PCG
}

// Uint64 repeats one input byte eight times: callers of rand look at the high
// bits for some ranges and at the low bits for others.
func (s *byteSource) Uint64() uint64 {
	if len(s.data) == 0 {
		return s.tail.Uint64()
	}
	b := s.data[0]
	s.data = s.data[1:]
	return uint64(b) * 0x0101010101010101
}
