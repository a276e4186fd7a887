package audit

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestFollow walks a log through its life: not there yet, half a line, growth,
// rotation, truncation.
func TestFollow(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	lines := make(chan string, 64)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		done <- Follow(ctx, path, FollowOptions{FromStart: true, Poll: time.Millisecond}, func(line []byte) error {
			lines <- string(line)
			return nil
		})
	}()
	expect := func(want ...string) {
		t.Helper()
		for _, w := range want {
			select {
			case got := <-lines:
				if got != w {
					t.Fatalf("got %q, want %q", got, w)
				}
			case <-time.After(30 * time.Second):
				t.Fatalf("no line, want %q", w)
			}
		}
	}
	write := func(name, s string) {
		t.Helper()
		f, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString(s); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	write(path, "one\ntwo\nthr")
	expect("one", "two")
	write(path, "ee\n\nfive\n")
	expect("three", "", "five")
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	write(path+".1", "old file, last line\n")
	write(path, "new file\n")
	expect("old file, last line", "new file")
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	// Shorter than what was read: seen whether or not a look falls in between.
	write(path, "again\n")
	expect("again")
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestFollowOptions(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	if err := os.WriteFile(path, []byte("a\nb\nhalf"), 0o600); err != nil {
		t.Fatal(err)
	}
	collect := func(opt FollowOptions) (string, error) {
		var got []string
		err := Follow(t.Context(), path, opt, func(line []byte) error { got = append(got, string(line)); return nil })
		return strings.Join(got, " "), err
	}
	if got, err := collect(FollowOptions{FromStart: true, Once: true}); got != "a b" || err != nil {
		t.Errorf("from the start: %q, %v", got, err)
	}
	if got, err := collect(FollowOptions{Once: true}); got != "" || err != nil {
		t.Errorf("from the end: %q, %v", got, err)
	}
	if _, err := collect(FollowOptions{FromStart: true, Once: true, MaxLine: 3}); !errors.Is(err, ErrLineTooLong) {
		t.Errorf("line too long: %v", err)
	}
	stop := errors.New("enough")
	if err := Follow(t.Context(), path, FollowOptions{FromStart: true}, func([]byte) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("fn's error: %v", err)
	}
	if err := Follow(t.Context(), path+".missing", FollowOptions{Once: true}, nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing file: %v", err)
	}
}
