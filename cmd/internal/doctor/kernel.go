package doctor

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"
)

// kernel looks at the kernel as a whole.
func (x *examiner) kernel() {
	n := &x.node
	x.say("kernel", OK, "Linux "+n.release, "")
	if n.config == nil {
		x.say("kernel config", Warning, "the kernel's build options cannot be read (/proc/config.gz, /boot/config-"+n.release+"): what is missing shows by trying only", "")
	} else {
		x.say("kernel config", OK, fmt.Sprintf("%d build options in %s", len(n.config), n.source), "")
	}
	switch {
	case !n.exists("proc/modules"):
		x.say("module loading", OK, "this kernel has no modules: what is not built in is missing", "")
	case n.value("proc/sys/kernel/modules_disabled") == "1":
		x.say("module loading", Warning, "switched off until the next boot (kernel.modules_disabled is 1)", "load what is missing at boot, before that is set")
	default:
		x.say("module loading", OK, "the kernel loads its modules when they are used: nothing has to be loaded before", "")
	}
	if _, err := btf.LoadKernelSpec(); err != nil {
		x.say("BTF", Missing, "the kernel does not describe its types (/sys/kernel/btf/vmlinux): the programs of afxdp may not load, and translated connections cannot be read",
			"use a kernel built with CONFIG_DEBUG_INFO_BTF")
	} else {
		x.say("BTF", OK, "/sys/kernel/btf/vmlinux", "")
	}
	x.bpffs()
	mode := lockdownMode(n.value("sys/kernel/security/lockdown"))
	switch mode {
	case "confidentiality":
		x.say("lockdown", Warning, "confidentiality: programs may not read the kernel's memory, so with dataplane afxdp translated connections cannot be read",
			"dataplane auto judges Services without that")
	case "":
		x.say("lockdown", OK, "not in force, or not built in", "")
	default:
		x.say("lockdown", OK, mode, "")
	}
}

func (x *examiner) bpffs() {
	var st unix.Statfs_t
	err := unix.Statfs(filepath.Join(x.Root, "sys/fs/bpf"), &st)
	if err != nil || uint32(st.Type) != unix.BPF_FS_MAGIC {
		x.say("bpffs", Warning, "/sys/fs/bpf is no BPF file system: the daemon has to mount one (CAP_SYS_ADMIN), or its programs end with it",
			"run \"mount -t bpf bpf /sys/fs/bpf\"")
		return
	}
	x.say("bpffs", OK, "/sys/fs/bpf", "")
}

// lockdownMode is the mode in brackets, "" for none.
func lockdownMode(text string) string {
	_, rest, ok := strings.Cut(text, "[")
	mode, _, closed := strings.Cut(rest, "]")
	if !ok || !closed || mode == "none" {
		return ""
	}
	return mode
}

// capabilities that the daemon asks for, and what for.
var capabilities = []struct {
	bit  uint
	name string
}{
	{unix.CAP_NET_ADMIN, "CAP_NET_ADMIN"},
	{unix.CAP_NET_RAW, "CAP_NET_RAW"},
	{unix.CAP_BPF, "CAP_BPF"},
	{unix.CAP_PERFMON, "CAP_PERFMON"},
	{unix.CAP_IPC_LOCK, "CAP_IPC_LOCK"},
}

// privileges looks at what this process may do, which in the daemon's container is what
// the daemon may do.
func (x *examiner) privileges() {
	text, err := x.node.read("proc/self/status")
	if x.Root != "/" {
		text, err = (&node{root: "/"}).read("proc/self/status")
	}
	effective, perr := effectiveCapabilities(text)
	if err = errors.Join(err, perr); err != nil {
		x.say("capabilities", Warning, "not known: "+err.Error(), "")
		return
	}
	var missing []string
	for _, c := range capabilities {
		if effective&(1<<c.bit) == 0 {
			missing = append(missing, c.name)
		}
	}
	if len(missing) > 0 {
		x.say("capabilities", Missing, "this process lacks "+strings.Join(missing, ", "), "run as root, or give the daemon's container these capabilities")
		return
	}
	x.say("capabilities", OK, "all that the daemon needs", "")
}

func effectiveCapabilities(status string) (uint64, error) {
	for line := range strings.Lines(status) {
		if value, ok := strings.CutPrefix(line, "CapEff:"); ok {
			return strconv.ParseUint(strings.TrimSpace(value), 16, 64)
		}
	}
	return 0, errors.New("/proc/self/status has no CapEff")
}
