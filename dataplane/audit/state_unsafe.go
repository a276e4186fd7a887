package audit

import "unsafe"

// overlay lays the state's structs over a mapping of stateSize bytes. A mapping
// starts on a page, so every field is aligned. The memory is not Go's: nothing
// in it may be a pointer, and nothing is.
func overlay(mem []byte) (*stateHead, *stateSet, *stateSet) {
	if len(mem) != stateSize {
		panic("audit: state mapping has the wrong size")
	}
	head := (*stateHead)(unsafe.Pointer(&mem[0]))
	first := (*stateSet)(unsafe.Pointer(&mem[unsafe.Sizeof(stateHead{})]))
	second := (*stateSet)(unsafe.Pointer(&mem[unsafe.Sizeof(stateHead{})+unsafe.Sizeof(stateSet{})]))
	return head, first, second
}

// The structs must be as long as the layout says.
var (
	_ [128 - unsafe.Sizeof(stateHead{})]byte
	_ [unsafe.Sizeof(stateHead{}) - 128]byte
	_ [(stateSize-128)/2 - unsafe.Sizeof(stateSet{})]byte
	_ [unsafe.Sizeof(stateSet{}) - (stateSize-128)/2]byte
)
