package kern

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/dataplane"
)

// What is missing is said in words an operator can act on, with the kernel's own behind
// them, and in one line: the verifier's answer to programs has thousands.
func TestMissingSaysWhatToDo(t *testing.T) {
	verifier := errors.New("program pod_egress: load program: permission denied: R2 type=mem expected=fp\nline 1\nline 2")
	for name, c := range map[string]struct {
		err  error
		want []string
	}{
		"programs":   {missingPrograms(verifier), []string{"the kernel has no verifier that accepts the programs of afxdp", "it takes Linux 5.12 or later, this is " + dataplane.KernelRelease(), "R2 type=mem"}},
		"no BPF":     {missingPrograms(unix.ENOSYS), []string{"the kernel has no BPF;", "CONFIG_BPF_SYSCALL"}},
		"veth":       {MissingVeth(unix.EOPNOTSUPP), []string{"no veth devices", `run "modprobe veth"`, "CONFIG_VETH", "(operation not supported)"}},
		"attach":     {MissingAttach(unix.ENOENT), []string{"neither tcx (Linux 6.6) nor clsact", "modprobe -a sch_ingress cls_bpf", "CONFIG_NET_CLS_BPF"}},
		"sockets":    {MissingSockets(unix.EAFNOSUPPORT), []string{"no AF_XDP sockets", "CONFIG_XDP_SOCKETS"}},
		"privilege":  {MissingVeth(unix.EPERM), []string{"CAP_NET_ADMIN"}},
		"connection": {unreadable(verifier), []string{"no way for programs to read a packet's connection", "CONFIG_DEBUG_INFO_BTF"}},
	} {
		text := c.err.Error()
		for _, want := range c.want {
			if !strings.Contains(text, want) {
				t.Errorf("%s: %q lacks %q", name, text, want)
			}
		}
		if strings.Contains(text, "\n") {
			t.Errorf("%s: more than a line: %q", name, text)
		}
	}
}
