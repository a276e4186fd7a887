package doctor

import (
	"cmp"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	enoughDisk      = 256 << 20
	enoughInstances = 128
	enoughWatches   = 8192
	enoughFiles     = 4096
)

// limits looks at what the daemon could run out of.
func (x *examiner) limits() {
	for _, dir := range x.Dirs {
		x.disk(dir)
	}
	x.atLeast("inotify instances", "proc/sys/fs/inotify/max_user_instances", "fs.inotify.max_user_instances", enoughInstances, "changes of manifests and configuration may not be noticed")
	x.atLeast("inotify watches", "proc/sys/fs/inotify/max_user_watches", "fs.inotify.max_user_watches", enoughWatches, "changes of manifests and configuration may not be noticed")
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err == nil {
		state, hint := OK, ""
		if files.Max < enoughFiles {
			state, hint = Warning, fmt.Sprintf("raise it to %d or more (LimitNOFILE, ulimit -n)", enoughFiles)
		}
		x.say("open files", state, fmt.Sprintf("this process may have %d", files.Max), hint)
	}
	x.conntrack()
}

func (x *examiner) disk(dir string) {
	name := "disk " + dir
	var st unix.Statfs_t
	// What is not there yet is made in the nearest directory that is.
	at := filepath.Join(x.Root, dir)
	for unix.Statfs(at, &st) != nil {
		if at == "/" || at == "." || at == x.Root {
			x.say(name, Warning, "the free space is not known", "")
			return
		}
		at = filepath.Dir(at)
	}
	free := st.Bavail * uint64(st.Bsize)
	detail := fmt.Sprintf("%d MiB free", free>>20)
	switch {
	case st.Flags&unix.ST_RDONLY != 0:
		x.say(name, Warning, "the file system is read-only", "mount a directory there that the daemon can write to")
	case free < enoughDisk:
		x.say(name, Warning, detail+": audit records are lost when it is full", "make room, or lower audit.maxSizeMiB and audit.keep")
	case st.Files > 0 && st.Ffree < 1000:
		x.say(name, Warning, fmt.Sprintf("%s, and %d inodes", detail, st.Ffree), "make room")
	default:
		x.say(name, OK, detail, "")
	}
}

func (x *examiner) atLeast(name, path, key string, least int, otherwise string) {
	n, err := strconv.Atoi(x.node.value(path))
	switch {
	case err != nil:
		x.say(name, Warning, key+" cannot be read", "")
	case n < least:
		x.say(name, Warning, fmt.Sprintf("%s is %d: %s", key, n, otherwise), fmt.Sprintf("run \"sysctl -w %s=%d\"", key, least))
	default:
		x.say(name, OK, fmt.Sprintf("%s is %d", key, n), "")
	}
}

// conntrack looks at how full the kernel's table of connections is.
func (x *examiner) conntrack() {
	number := func(name string) (int, error) {
		return strconv.Atoi(cmp.Or(x.node.value("proc/sys/net/netfilter/"+name), "-"))
	}
	used, err := number("nf_conntrack_count")
	most, merr := number("nf_conntrack_max")
	if err != nil || merr != nil || most == 0 {
		return // not loaded: nothing is in it
	}
	detail := fmt.Sprintf("%d of %d connections", used, most)
	if used > most/10*9 {
		x.say("conntrack table", Warning, detail+": when it is full the kernel drops new connections", fmt.Sprintf("run \"sysctl -w net.netfilter.nf_conntrack_max=%d\"", 2*most))
		return
	}
	x.say("conntrack table", OK, detail, "")
}

// sysctls looks at settings that change what passes the node.
func (x *examiner) sysctls() {
	for _, s := range []struct{ name, path, key, want, otherwise string }{
		{"forwarding IPv4", "proc/sys/net/ipv4/ip_forward", "net.ipv4.ip_forward", "1", "the node does not forward packets of pods"},
		{"forwarding IPv6", "proc/sys/net/ipv6/conf/all/forwarding", "net.ipv6.conf.all.forwarding", "1", "the node does not forward IPv6 packets of pods (nothing is wrong in a cluster without IPv6)"},
		{"BPF JIT", "proc/sys/net/core/bpf_jit_enable", "net.core.bpf_jit_enable", "1", "programs are interpreted, which is slow"},
	} {
		switch v := x.node.value(s.path); {
		case v == "" && s.key == "net.ipv6.conf.all.forwarding":
			x.say(s.name, OK, "no IPv6 here", "")
		case v == "":
		case v == s.want || v == "2":
			x.say(s.name, OK, s.key+" is "+v, "")
		default:
			x.say(s.name, Warning, fmt.Sprintf("%s is %s: %s", s.key, v, s.otherwise), fmt.Sprintf("run \"sysctl -w %s=%s\"", s.key, s.want))
		}
	}
	all := x.node.value("proc/sys/net/ipv4/conf/all/rp_filter")
	if all == "" {
		return
	}
	words := map[string]string{"0": "off", "1": "strict", "2": "loose"}
	x.say("reverse path filter", OK, fmt.Sprintf("net.ipv4.conf.all.rp_filter is %s (%s): forged sources of pods are found either way", all, cmp.Or(words[all], "?")), "")
}

// list joins names, at most five of them.
func list(names []string) string {
	if more := len(names) - 5; more > 0 {
		return strings.Join(names[:5], ", ") + fmt.Sprintf(" and %d more", more)
	}
	return strings.Join(names, ", ")
}
