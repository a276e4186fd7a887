package nstest

import (
	"runtime"
	"testing"
)

func TestOlderThan(t *testing.T) {
	for _, c := range []struct {
		release, version string
		older            bool
	}{
		{"6.1.0-56-amd64", "6.6", true},
		{"6.12.117+deb13-amd64", "6.6", false},
		{"6.6.0", "6.6", false},
		{"5.19.17", "6.2", true},
		{"7.3.4", "6.18", false},
		{"unknown", "6.6", false}, // what is not known does not excuse
	} {
		if got := olderThan(c.release, c.version); got != c.older {
			t.Errorf("%s older than %s: %t, want %t", c.release, c.version, got, c.older)
		}
	}
}

// A feature that an older kernel lacks skips its test, whatever RequireEnv says; one that
// this kernel should have fails it.
func TestSince(t *testing.T) {
	Need(t)
	t.Setenv(RequireEnv, "1")
	run := func(version string, has bool) (failed, skipped bool) {
		r := &recorder{TB: t}
		done := make(chan struct{})
		go func() {
			defer close(done)
			Since(r, version, "feature", has)
		}()
		<-done
		return r.failed, r.skipped
	}
	for _, c := range []struct {
		version         string
		has             bool
		failed, skipped bool
	}{
		{"99.0", false, false, true},
		{"99.0", true, false, false},
		{"2.6", false, true, false},
		{"2.6", true, false, false},
	} {
		if failed, skipped := run(c.version, c.has); failed != c.failed || skipped != c.skipped {
			t.Errorf("since %s, there %t: failed %t, skipped %t, want %t and %t", c.version, c.has, failed, skipped, c.failed, c.skipped)
		}
	}
}

// recorder is a test that only notes how it would end.
type recorder struct {
	testing.TB
	failed, skipped bool
}

func (r *recorder) Helper() {}

func (r *recorder) Skipf(string, ...any) {
	r.skipped = true
	runtime.Goexit()
}

func (r *recorder) Fatalf(string, ...any) {
	r.failed = true
	runtime.Goexit()
}
