// Package xsk is an AF_XDP socket in copy mode: four rings shared with the kernel and the
// buffers that go around in them. It offers what package afxdp needs, no more.
//
//	         ┌── Fill ──► fill ring ──► kernel ──► receive ring ── Receive ─┐
//	buffers ─┤                                                             ├─► caller
//	         └─ Complete ◄─ completion ring ◄─ kernel ◄─ transmit ring ◄─ Transmit
//
// A ring is an array with two indices that only grow, one written by each side
// (linux/if_xdp.h). Whoever moves one publishes what it did to the array with it, so it is
// stored with release semantics after the array was written or read, and the other side
// loads it with acquire semantics before it touches the array. On amd64 plain loads and
// stores have that order anyway. On arm64 they do not; those of sync/atomic are at least
// that strong everywhere.
//
// A Socket is used by one goroutine, FD excepted. Nothing allocates after New.
package xsk
