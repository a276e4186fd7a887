package afxdp

// The objects are checked in, so that building needs Go alone; generating needs
// clang 14 or newer and llvm-strip. bpf/kernel.h declares what the programs use
// of the kernel, so no kernel or libbpf headers are read.
//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -go-package afxdp -target bpfel -no-global-types -cflags "-O2 -g -Wall -Wextra -Werror" pod bpf/pod.c
//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -go-package afxdp -target bpfel -no-global-types -cflags "-O2 -g -Wall -Wextra -Werror" guard bpf/guard.c
