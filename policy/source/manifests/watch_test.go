package manifests

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"
)

const deadline = 10 * time.Second

// start watches dir without the rescan, so that only notifications count.
func start(t *testing.T, w Watcher) <-chan struct{} {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	c, err := w.Start(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		for range c { // closed when the watcher is gone
		}
	})
	return c
}

// told waits for the watcher.
func told(t *testing.T, c <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(deadline):
		t.Fatalf("not told of %s within %v", what, deadline)
	}
}

// until does something and waits until the directory's policies are as wanted,
// told at least once. Several values may come for one change.
func until(t *testing.T, c <-chan struct{}, dir, want string, do func()) {
	t.Helper()
	do()
	end := time.After(deadline)
	for {
		select {
		case <-c:
			if objs, _, found := Load(dir, kinds); found.Err() == nil {
				got := ""
				for _, o := range objs {
					got += o.Name
				}
				if got == want {
					return
				}
			}
		case <-end:
			t.Fatalf("the policies are not %q within %v", want, deadline)
		}
	}
}

func rename(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

// TestWatch makes the changes people and tools make, one after the other.
func TestWatch(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	write(t, at("a.yaml"), policy("a"))
	c := start(t, Watcher{Path: dir, Rescan: time.Hour})

	until(t, c, dir, "b", func() { write(t, at("a.yaml"), policy("b")) })
	until(t, c, dir, "c", func() { // an editor: write aside, rename over
		write(t, at(".a.yaml.swp"), policy("c"))
		rename(t, at(".a.yaml.swp"), at("a.yaml"))
	})
	until(t, c, dir, "cd", func() { write(t, at("sub/deeper/d.yaml"), policy("d")) })
	until(t, c, dir, "ce", func() { write(t, at("sub/deeper/d.yaml"), policy("e")) })
	until(t, c, dir, "ec", func() { rename(t, at("sub"), at("Sub")) })
	until(t, c, dir, "fc", func() { write(t, at("Sub/deeper/d.yaml"), policy("f")) })
	until(t, c, dir, "c", func() {
		if err := os.RemoveAll(at("Sub")); err != nil {
			t.Fatal(err)
		}
	})
	outside := t.TempDir()
	write(t, filepath.Join(outside, "new/g.yaml"), policy("g"))
	until(t, c, dir, "cg", func() { rename(t, filepath.Join(outside, "new"), at("new")) })
	until(t, c, dir, "c", func() { rename(t, at("new"), filepath.Join(outside, "gone")) })
	until(t, c, dir, "ci", func() { write(t, at("i.yaml"), policy("i")) })
}

// TestWatchQuiet changes what Load does not read: nothing is told.
func TestWatchQuiet(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	write(t, at("a.yaml"), policy("a"))
	write(t, at(".git/x"), "")
	c := start(t, Watcher{Path: dir, Rescan: 20 * time.Millisecond})
	for _, name := range []string{"README.md", ".a.yaml.swp", "a.yaml~", ".git/y.yaml", "4913"} {
		write(t, at(name), "x")
	}
	select {
	case <-c:
		t.Error("told of a change of something that is not read")
	case <-time.After(100 * time.Millisecond): // several rescans
	}
	write(t, at("a.yaml"), policy("b"))
	told(t, c, "a change after that")
}

// TestWatchConfigMap swaps ..data as kubelet does.
func TestWatchConfigMap(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	write(t, at("..1/p.yaml"), policy("a"))
	symlink(t, "..1", at("..data"))
	symlink(t, "..data/p.yaml", at("p.yaml"))
	c := start(t, Watcher{Path: dir, Rescan: time.Hour})
	file := start(t, Watcher{Path: at("p.yaml"), Rescan: time.Hour})
	until(t, c, dir, "b", func() {
		write(t, at("..2/p.yaml"), policy("b"))
		symlink(t, "..2", at("..data_tmp"))
		rename(t, at("..data_tmp"), at("..data"))
	})
	told(t, file, "the swap, watching one file of it")
}

// TestWatchFile watches one file among others.
func TestWatchFile(t *testing.T) {
	dir := t.TempDir()
	file, other := filepath.Join(dir, "a.yaml"), filepath.Join(dir, "b.yaml")
	write(t, file, policy("a"))
	c := start(t, Watcher{Path: file, Rescan: time.Hour})
	until(t, c, file, "b", func() {
		write(t, other, policy("b"))
		rename(t, other, file)
	})
	until(t, c, file, "c", func() { write(t, file, policy("c")) })
}

// TestRescan makes changes no notification comes for: the target of a symbolic
// link elsewhere, and the directory itself replaced.
func TestRescan(t *testing.T) {
	parent, target := t.TempDir(), filepath.Join(t.TempDir(), "real.yaml")
	dir := filepath.Join(parent, "dir")
	write(t, filepath.Join(dir, "a.yaml"), policy("a"))
	write(t, target, policy("l"))
	symlink(t, target, filepath.Join(dir, "l.yaml"))
	c := start(t, Watcher{Path: dir, Rescan: 10 * time.Millisecond})
	stamp := time.Now().Add(-time.Hour)
	if err := os.Chtimes(target, stamp, stamp); err != nil {
		t.Fatal(err)
	}
	until(t, c, dir, "am", func() { // same size, same modification time
		write(t, target, policy("m"))
		if err := os.Chtimes(target, stamp, stamp); err != nil {
			t.Fatal(err)
		}
	})
	until(t, c, dir, "z", func() {
		write(t, filepath.Join(parent, "next/z.yaml"), policy("z"))
		rename(t, dir, filepath.Join(parent, "old"))
		rename(t, filepath.Join(parent, "next"), dir)
	})
	// The new directory is watched like the old one.
	until(t, c, dir, "zy", func() { write(t, filepath.Join(dir, "zz.yaml"), policy("y")) })
	rename(t, dir, filepath.Join(parent, "away"))
	told(t, c, "the directory's end")
	until(t, c, dir, "zy", func() { rename(t, filepath.Join(parent, "away"), dir) })
}

// TestWatchRefuses has paths that cannot be watched.
func TestWatchRefuses(t *testing.T) {
	for _, path := range []string{"-", filepath.Join(t.TempDir(), "none")} {
		if _, err := Watch(t.Context(), path, 0); err == nil {
			t.Errorf("%s can be watched", path)
		}
	}
}

// TestWatchSoon measures how long an edit takes to be noticed. The target is
// 30 ms; the test allows for a busy machine and takes the best of a few.
func TestWatchSoon(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "a.yaml")
	write(t, file, policy("a"))
	c := start(t, Watcher{Path: dir, Rescan: time.Hour})
	best := deadline
	for range 20 {
		// Let what a previous edit may still have to say pass.
		for idle := false; !idle; {
			select {
			case <-c:
			case <-time.After(20 * time.Millisecond):
				idle = true
			}
		}
		begin := time.Now()
		write(t, file, policy("b"))
		told(t, c, "an edit")
		best = min(best, time.Since(begin))
	}
	t.Logf("noticed after %v", best)
	if best > 30*time.Millisecond {
		t.Errorf("noticed after %v, want at most 30ms", best)
	}
}

// TestWatchAll: a change of any of several is told, and Load reads all of them.
func TestWatchAll(t *testing.T) {
	first, second := t.TempDir(), filepath.Join(t.TempDir(), "p.yaml")
	write(t, filepath.Join(first, "a.yaml"), policy("a"))
	write(t, second, policy("b"))
	ctx, cancel := context.WithCancel(t.Context())
	c, err := WatchAll(ctx, []string{first, second}, 0)
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(first, "c.yaml"), policy("c"))
	told(t, c, "a new file in the first")
	write(t, second, policy("d"))
	told(t, c, "a change of the second")
	objs, _, found := Loader{Kinds: kinds}.Load(first, second)
	got := ""
	for _, o := range objs {
		got += o.Name
	}
	if got != "acd" || found.Err() != nil {
		t.Errorf("policies %q, %v", got, found.Err())
	}
	cancel()
	for range c { // closed when the watchers are gone
	}
	if _, err := WatchAll(t.Context(), []string{first, "/nonexistent"}, 0); err == nil {
		t.Error("a path that does not exist is watched")
	}
}
