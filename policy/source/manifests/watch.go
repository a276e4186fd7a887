package manifests

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
)

// Defaults of [Watcher].
const (
	DefaultDebounce = 5 * time.Millisecond
	DefaultRescan   = 2 * time.Second
)

// Watcher notices changes of manifests. Set Path; the other fields are optional.
type Watcher struct {
	Path string // a directory or a file, as for Load
	// Debounce is how long the files have to be quiet before a change is told; a
	// busy directory is told at the latest after four times that.
	Debounce time.Duration
	// Rescan is how often files are compared with what they were.
	Rescan time.Duration
	Log    *slog.Logger
}

// Watch is [Watcher.Start] with the defaults; debounce 0 is [DefaultDebounce].
func Watch(ctx context.Context, path string, debounce time.Duration) (<-chan struct{}, error) {
	return Watcher{Path: path, Debounce: debounce}.Start(ctx)
}

// WatchAll watches several directories and files as [Watch] does one: the channel
// gets a value after a change of any.
func WatchAll(ctx context.Context, paths []string, debounce time.Duration) (<-chan struct{}, error) {
	out := make(chan struct{}, 1)
	var watchers sync.WaitGroup
	for _, path := range paths {
		changes, err := Watch(ctx, path, debounce)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		watchers.Go(func() {
			for range changes {
				select {
				case out <- struct{}{}:
				default:
				}
			}
		})
	}
	go func() {
		watchers.Wait()
		close(out)
	}()
	return out, nil
}

// Start watches until ctx ends. The channel gets a value after every change of
// what Load would read; changes while a value waits to be received are the same
// value. Load after receiving, and nothing is missed: the watch is in place when
// Start returns, so call Start before the first Load. The channel is closed when
// ctx ends.
//
// An error means the path cannot be watched at all. A directory that vanishes
// later is a change, and so is its return.
func (w Watcher) Start(ctx context.Context) (<-chan struct{}, error) {
	if w.Path == Stdin {
		return nil, errors.New("standard input cannot be watched")
	}
	if w.Debounce <= 0 {
		w.Debounce = DefaultDebounce
	}
	if w.Rescan <= 0 {
		w.Rescan = DefaultRescan
	}
	if w.Log == nil {
		w.Log = slog.New(slog.DiscardHandler)
	}
	info, err := os.Stat(w.Path)
	if err != nil {
		return nil, fmt.Errorf("watch manifests: %w", err)
	}
	s := &watch{Watcher: w, single: !info.IsDir(), seed: maphash.MakeSeed(), out: make(chan struct{}, 1), dirs: map[string]bool{}}
	s.notify, err = fsnotify.NewWatcher()
	if err != nil {
		w.Log.Warn("file notification unavailable, changes are found by rescanning", "path", w.Path, "interval", w.Rescan, "error", err)
	}
	s.addDirs()
	s.state = s.fingerprint()
	go s.run(ctx)
	return s.out, nil
}

// watch is a running Watcher. Its fields belong to run's goroutine.
type watch struct {
	Watcher
	single bool
	seed   maphash.Seed
	out    chan struct{}
	notify *fsnotify.Watcher // nil where inotify is unavailable
	dirs   map[string]bool   // directories with a notification
	state  uint64            // fingerprint of the files when last looked
	warned bool
}

func (w *watch) run(ctx context.Context) {
	defer close(w.out)
	var events chan fsnotify.Event
	var errs chan error
	if w.notify != nil {
		defer w.notify.Close()
		events, errs = w.notify.Events, w.notify.Errors
	}
	rescan := time.NewTicker(w.Rescan)
	defer rescan.Stop()
	quiet := time.NewTimer(time.Hour)
	quiet.Stop()
	var first time.Time // of the events not told yet
	pending := false
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-events:
			if !w.relevant(e) {
				continue
			}
			now := time.Now()
			if !pending {
				pending, first = true, now
			}
			quiet.Reset(max(0, min(w.Debounce, first.Add(4*w.Debounce).Sub(now))))
		case err := <-errs:
			// The kernel's queue overflowed: something happened, nobody knows what.
			w.Log.Warn("file notification lost", "path", w.Path, "error", err)
			pending, first = true, time.Now()
			quiet.Reset(w.Debounce)
		case <-quiet.C:
			pending = false
			w.addDirs()
			w.state = w.fingerprint()
			w.tell()
		case <-rescan.C:
			if state := w.fingerprint(); state != w.state {
				w.state = state
				w.addDirs()
				w.tell()
			}
		}
	}
}

// tell sends a value unless one is waiting.
func (w *watch) tell() {
	select {
	case w.out <- struct{}{}:
	default:
	}
}

// relevant reports whether an event may change what Load reads, and starts
// watching a new directory at once: files written to it before the watch is in
// place are read by the Load this event leads to.
func (w *watch) relevant(e fsnotify.Event) bool {
	if e.Op == fsnotify.Chmod {
		// Also a change, if of readability; the rescan sees that one.
		return false
	}
	name := filepath.Base(e.Name)
	if w.single {
		// The target of a mounted ConfigMap's link changes with ..data.
		return name == filepath.Base(w.Path) || name == "..data"
	}
	if name == "..data" || isManifest(name) {
		return true
	}
	if w.dirs[e.Name] { // a directory moved or removed
		delete(w.dirs, e.Name)
		_ = w.notify.Remove(e.Name) // usually gone already with the directory
		return true
	}
	if strings.HasPrefix(name, ".") {
		return false
	}
	if info, err := os.Stat(e.Name); err == nil && info.IsDir() {
		w.addDirs()
		return true
	}
	return false
}

// addDirs puts a notification on every directory that has none.
func (w *watch) addDirs() {
	if w.notify == nil {
		return
	}
	if w.single {
		w.add(filepath.Dir(w.Path))
		return
	}
	for dir := range w.dirs {
		if _, err := os.Stat(dir); err != nil {
			delete(w.dirs, dir)
			_ = w.notify.Remove(dir) // gone already with the directory
		}
	}
	// Unreadable parts are Load's to report.
	_ = walk(w.Path, func(string, fs.FileInfo) {}, w.add)
}

func (w *watch) add(dir string) {
	// Adding a directory again is cheap and repairs the watch after the directory
	// was replaced by another of the same name.
	if err := w.notify.Add(dir); err != nil {
		if !w.warned {
			w.warned = true
			w.Log.Warn("directory cannot be watched, its changes are found by rescanning", "path", dir, "interval", w.Rescan, "error", err)
		}
		return
	}
	w.dirs[dir] = true
}

// fingerprint sums up what can be seen of the files without reading them.
func (w *watch) fingerprint() uint64 {
	var h maphash.Hash
	h.SetSeed(w.seed)
	err := walk(w.Path, func(path string, info fs.FileInfo) {
		_, _ = fmt.Fprintf(&h, "%s\x00%d %d %o %s\n", path, info.Size(), info.ModTime().UnixNano(), info.Mode(), inode(info)) // never fails
	}, func(path string) {
		_, _ = h.WriteString(path + "\x00dir\n")
	})
	if err != nil {
		_, _ = h.WriteString(err.Error())
	}
	return h.Sum64()
}
