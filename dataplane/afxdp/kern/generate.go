package kern

// The objects are checked in, so that building needs Go alone; generating needs
// clang 14 or newer and llvm-strip. bpf/kernel.h declares what the programs use
// of the kernel, so no kernel or libbpf headers are read.
//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -go-package kern -target bpfel -no-global-types -cflags "-O2 -g -Wall -Wextra -Werror" Pod bpf/pod.c
//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -go-package kern -target bpfel -no-global-types -cflags "-O2 -g -Wall -Wextra -Werror" Guard bpf/guard.c
