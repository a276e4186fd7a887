package kern

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// DefaultPinPath is where a daemon keeps what must outlive it.
const DefaultPinPath = "/sys/fs/bpf/tierwall"

// Pins is a directory in a BPF file system that keeps programs at work and maps
// filled while no daemon runs:
//
//	PinPath/netns-<cookie>/upcall-xdp, upcall-tcx     links of the upcall pair
//	                       pod-<ifindex>-in, -out     links of the pods' and other devices
//	                       gate-<family>-<hook>       links in the stack's own hooks
//	                       maps-<layout>/flows, …     see pinnedMaps
//
// One directory per network namespace, by its cookie, which no other namespace
// has until the machine restarts. The zero value pins nothing.
type Pins struct{ Dir string }

// pinnedMaps are what programs of the daemon before us and our own share while
// one takes over from the other: maps' names, and their files'.
var pinnedMaps = map[string]string{
	"flows": "flows", "later": "later", "denied": "denied", "cells": "cells", "devices": "devices",
	"counters": "counters", "sockets": "sockets", ".data.shared": "shared", "origins": "origins", "exits": "exits",
	"rooms": "rooms",
}

// layoutVersion grows when a map's content changes its meaning and its type does
// not tell.
const layoutVersion = 1

// Names of the upcall pair: packets leave the stack through UpcallStack and
// reach the socket on UpcallSocket. Operators see them in "ip link".
const (
	UpcallStack  = "tw-uc0"
	UpcallSocket = "tw-uc1"
)

// Names of the links' files.
const (
	PinUpcallXDP = "upcall-xdp"
	PinUpcallTCX = "upcall-tcx"
	PinMaps      = "maps-"
	pinPod       = "pod-"
	PinGate      = "gate-"
)

func PinName(ifindex int, at ebpf.AttachType) string {
	side := "-in"
	if at == ebpf.AttachTCXEgress {
		side = "-out"
	}
	return pinPod + strconv.Itoa(ifindex) + side
}

// namespaceDir is the directory of the calling thread's network namespace.
func namespaceDir(base string) (string, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Errorf("identify the network namespace: %w", err)
	}
	defer unix.Close(fd)
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE) // Linux 5.14
	if err != nil {
		return "", fmt.Errorf("identify the network namespace: %w", err)
	}
	return filepath.Join(base, "netns-"+strconv.FormatUint(cookie, 10)), nil
}

// OpenPins makes the directory, and the file system if it is missing. base ""
// pins nothing. What namespaces that have ended left behind is removed.
func OpenPins(base string) (Pins, error) {
	if base == "" {
		return Pins{}, nil
	}
	if err := mountBPF(base); err != nil {
		return Pins{}, err
	}
	dir, err := namespaceDir(base)
	if err != nil {
		return Pins{}, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return Pins{}, fmt.Errorf("make a directory for what outlives the daemon: %w", err)
	}
	return Pins{dir}, sweep(base, dir)
}

// sweep removes the directories of namespaces whose upcall pair is gone: a
// living one has it while it has pins.
func sweep(base, own string) error {
	dirs, err := filepath.Glob(filepath.Join(base, "netns-*"))
	if err != nil {
		return err
	}
	var errs []error
	for _, dir := range dirs {
		p := Pins{dir}
		if dir == own {
			continue
		}
		if l, ok := p.Link(PinUpcallXDP); ok {
			l.Close()
			continue
		}
		// A directory without any link may belong to a daemon that is starting.
		if _, err := os.Lstat(filepath.Join(dir, PinUpcallXDP)); err == nil {
			errs = append(errs, os.RemoveAll(dir))
		}
	}
	return errors.Join(errs...)
}

// mountBPF makes sure that base is in a BPF file system.
func mountBPF(base string) error {
	at := base
	if strings.HasPrefix(base, "/sys/fs/bpf") {
		at = "/sys/fs/bpf" // nothing can be made in sysfs itself
	}
	is := func(path string) (bool, error) {
		for {
			var st unix.Statfs_t
			err := unix.Statfs(path, &st)
			if errors.Is(err, fs.ErrNotExist) && path != "/" {
				path = filepath.Dir(path)
				continue
			}
			return uint32(st.Type) == unix.BPF_FS_MAGIC, err
		}
	}
	if ok, err := is(base); err != nil || ok {
		return err
	}
	if err := os.MkdirAll(at, 0o700); err != nil {
		return fmt.Errorf("make %s: %w", at, err)
	}
	if err := unix.Mount("bpf", at, "bpf", 0, "mode=0700"); err != nil {
		return fmt.Errorf("%s is not a BPF file system, and none can be mounted (mount -t bpf bpf %s): %w", base, at, err)
	}
	return nil
}

func (p Pins) path(name ...string) string { return filepath.Join(append([]string{p.Dir}, name...)...) }

// Link returns a pinned link that is still at its device. A dead one is removed.
func (p Pins) Link(name string) (link.Link, bool) {
	if p.Dir == "" {
		return nil, false
	}
	l, err := link.LoadPinnedLink(p.path(name), nil)
	if err != nil {
		return nil, false
	}
	if LinkDevice(l) == 0 {
		l.Close()
		return nil, false
	}
	return l, true
}

// LinkDevice returns the ifindex a link is at, 0 if it is gone.
func LinkDevice(l link.Link) int {
	info, err := l.Info()
	if err != nil {
		return 0
	}
	if x := info.XDP(); x != nil {
		return int(x.Ifindex)
	}
	if x := info.TCX(); x != nil {
		return int(x.Ifindex)
	}
	return 0
}

// Takeover gives a program to the pinned link at a device, in one step: there is
// no packet that neither sees. It reports false if there is none.
func (p Pins) Takeover(name string, ifindex int, prog *ebpf.Program) (link.Link, bool) {
	l, ok := p.Link(name)
	if !ok {
		return nil, false
	}
	if LinkDevice(l) != ifindex || l.Update(prog) != nil {
		l.Close()
		return nil, false
	}
	return l, true
}

// Keep pins a link under a name. A dead link's pin gives way.
func (p Pins) Keep(name string, l link.Link) error {
	if p.Dir == "" {
		return nil
	}
	if err := p.Drop(name); err != nil {
		return err
	}
	if err := l.Pin(p.path(name)); err != nil {
		return fmt.Errorf("pin %s: %w", name, err)
	}
	return nil
}

// Drop removes a pin, if there.
func (p Pins) Drop(name string) error {
	if p.Dir == "" {
		return nil
	}
	if err := os.Remove(p.path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("unpin %s: %w", name, err)
	}
	return nil
}

// Remove takes a pinned link's program off, at once: the kernel may take its time
// with a link that is only unpinned.
func (p Pins) Remove(name string) error {
	if l, ok := p.Link(name); ok {
		err := errors.Join(l.Detach(), l.Close())
		return errors.Join(err, p.Drop(name))
	}
	return p.Drop(name)
}

// Devices returns the devices that pinned links are at, and removes the pins of
// those that are gone.
func (p Pins) Devices() (indexes []int) {
	entries, err := os.ReadDir(p.Dir)
	if p.Dir == "" || err != nil {
		return nil
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), pinPod) {
			continue
		}
		l, ok := p.Link(e.Name())
		if !ok {
			_ = p.Drop(e.Name())
			continue
		}
		if i := LinkDevice(l); !slices.Contains(indexes, i) {
			indexes = append(indexes, i)
		}
		l.Close()
	}
	return indexes
}

// layout names the pinned maps' form: another one must not be taken over.
func layout(spec *ebpf.CollectionSpec) string {
	names := make([]string, 0, len(pinnedMaps))
	for name := range pinnedMaps {
		names = append(names, name)
	}
	slices.Sort(names)
	h := fnv.New64a()
	for _, name := range names {
		m := spec.Maps[name]
		fmt.Fprintln(h, layoutVersion, name, m.Type, m.KeySize, m.ValueSize, m.MaxEntries, m.Flags)
	}
	return PinMaps + strconv.FormatUint(h.Sum64(), 16)
}

// maps returns the pinned maps of a layout: all of them or, if one is missing or
// unfit, none.
func (p Pins) maps(spec *ebpf.CollectionSpec) map[string]*ebpf.Map {
	if p.Dir == "" {
		return nil
	}
	found := map[string]*ebpf.Map{}
	for name, file := range pinnedMaps {
		m, err := ebpf.LoadPinnedMap(p.path(layout(spec), file), nil)
		if err != nil {
			for _, m := range found {
				m.Close()
			}
			return nil
		}
		found[name] = m
	}
	return found
}

// keepMaps pins new maps, beside those of another layout.
func (p Pins) keepMaps(spec *ebpf.CollectionSpec, maps map[string]*ebpf.Map) error {
	if p.Dir == "" {
		return nil
	}
	dir := p.path(layout(spec))
	if err := errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o700)); err != nil {
		return fmt.Errorf("make a directory for maps: %w", err)
	}
	for name, file := range pinnedMaps {
		if err := maps[name].Pin(filepath.Join(dir, file)); err != nil {
			return fmt.Errorf("pin map %s: %w", name, err)
		}
	}
	return nil
}

// replaceMap pins another map in the place of one.
func (p Pins) replaceMap(spec *ebpf.CollectionSpec, name string, m *ebpf.Map) error {
	path := p.path(layout(spec), pinnedMaps[name])
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("unpin map %s: %w", name, err)
	}
	if err := m.Pin(path); err != nil {
		return fmt.Errorf("pin map %s: %w", name, err)
	}
	return nil
}

// DropOtherMaps removes maps of other layouts, once no program uses them.
func (p Pins) DropOtherMaps(spec *ebpf.CollectionSpec) error {
	dirs, err := filepath.Glob(p.path(PinMaps + "*"))
	if p.Dir == "" || err != nil {
		return err
	}
	var errs []error
	for _, dir := range dirs {
		if filepath.Base(dir) != layout(spec) {
			errs = append(errs, os.RemoveAll(dir))
		}
	}
	return errors.Join(errs...)
}

// RemoveAll unpins everything: programs leave their devices, maps are freed.
func (p Pins) RemoveAll() error {
	if p.Dir == "" {
		return nil
	}
	entries, err := os.ReadDir(p.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var errs []error
	for _, e := range entries {
		if !e.IsDir() {
			errs = append(errs, p.Remove(e.Name()))
		}
	}
	return errors.Join(append(errs, os.RemoveAll(p.Dir))...)
}

// Unpin removes what is pinned below base for the calling thread's network namespace,
// and for namespaces that have ended.
func Unpin(base string) error {
	dir, err := namespaceDir(base)
	if errors.Is(err, unix.ENOPROTOOPT) { // before Linux 5.14 nothing can be pinned
		return nil
	}
	if err != nil {
		return err
	}
	err = errors.Join(Pins{dir}.RemoveAll(), sweep(base, dir))
	_ = os.Remove(base) // not empty: another namespace's daemon has pins
	return err
}

// Pinned lists what daemons have pinned under base for the calling thread's
// network namespace, by path: programs' links and directories of maps, sorted.
// It is empty if base does not exist.
func Pinned(base string) ([]string, error) {
	if base == "" {
		return nil, nil
	}
	dir, err := namespaceDir(base)
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read what is pinned: %w", err)
	}
	paths := make([]string, 0, len(entries))
	for _, e := range entries {
		paths = append(paths, filepath.Join(dir, e.Name()))
	}
	return paths, nil
}

// lockName is an abstract socket address: it belongs to a network namespace and
// goes with its process.
const lockName = "@tierwall-afxdp"

// ErrRunning says that the lock is taken.
var ErrRunning = errors.New("another tierwall daemon runs in this network namespace")

// LockNamespace makes sure that one daemon at a time works in the calling
// thread's namespace. The lock ends with close, or with the process.
func LockNamespace() (fd int, err error) {
	if fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
		return -1, fmt.Errorf("open the lock: %w", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: lockName}); err != nil {
		unix.Close(fd)
		if errors.Is(err, unix.EADDRINUSE) {
			return -1, ErrRunning
		}
		return -1, fmt.Errorf("take the lock: %w", err)
	}
	return fd, nil
}
