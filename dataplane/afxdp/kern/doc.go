// Package kern holds the BPF programs of package afxdp: their source (bpf/), the
// objects that clang made of it, the layout of what they share with Go, and the pins
// by which programs and maps outlive a process.
//
// Load puts the programs into the kernel and takes over the maps of an earlier
// process if their form is the same. The structs FlowKey, FlowState, Origin,
// DeviceState and GuardState are those of bpf/tierwall.h and bpf/guard.h byte for
// byte; TestLayout compares them with the objects' own description. Addresses are in
// network byte order, ports and counters in the machine's, times are nanoseconds of
// CLOCK_MONOTONIC_COARSE (Now).
//
// The package knows neither packets nor devices: package attach puts the programs on
// devices, package upcall has the format of frames, package flows says which entries
// count.
package kern
