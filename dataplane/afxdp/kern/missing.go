package kern

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/dataplane"
)

// missing says which piece of the kernel an error is about. What is for want of
// privilege says so, and is about none.
func missing(err error, piece dataplane.MissingError) error {
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN (or root) are needed: %w", OneLine(err))
	}
	piece.Cause = OneLine(err)
	return &piece
}

func MissingVeth(err error) error {
	return missing(err, dataplane.MissingError{Piece: "veth devices", Module: "veth", Option: "CONFIG_VETH"})
}

func MissingSockets(err error) error {
	return missing(err, dataplane.MissingError{Piece: "AF_XDP sockets", Option: "CONFIG_XDP_SOCKETS"})
}

func MissingXDP(err error) error {
	return missing(err, dataplane.MissingError{Piece: "XDP programs on veth devices", Since: "5.9", Option: "CONFIG_BPF_SYSCALL"})
}

func MissingAttach(err error) error {
	return missing(err, dataplane.MissingError{
		Piece: "way to put programs onto devices, neither tcx (Linux 6.6) nor clsact", Module: "-a sch_ingress cls_bpf",
		Option: "CONFIG_BPF_SYSCALL, CONFIG_NET_SCH_INGRESS and CONFIG_NET_CLS_BPF",
	})
}

// missingPrograms is about programs that were not loaded.
func missingPrograms(err error) error {
	if errors.Is(err, unix.ENOSYS) {
		return missing(err, dataplane.MissingError{Piece: "BPF", Option: "CONFIG_BPF_SYSCALL"})
	}
	if _, berr := btf.LoadKernelSpec(); berr != nil {
		return missing(err, dataplane.MissingError{Piece: "description of itself (BTF), which the programs need", Option: "CONFIG_DEBUG_INFO_BTF"})
	}
	return missing(err, dataplane.MissingError{
		Piece: "verifier that accepts the programs of afxdp", Since: "5.12",
	})
}

// OneLine is the first line of an error: the verifier's log has thousands.
func OneLine(err error) error {
	line, _, more := strings.Cut(err.Error(), "\n")
	if !more {
		return err
	}
	return errors.New(line)
}
