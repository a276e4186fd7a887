package child

import (
	"testing"
	"time"
)

func TestStat(t *testing.T) {
	p, err := ParseStat("18187 (a ) b) S 18139 18139 9590 0 -1 4194304 102 0 1 0 7 5 30 2 20 0 1 0 99")
	want := Times{Parent: 18139, Own: 120 * time.Millisecond, Used: 440 * time.Millisecond}
	if err != nil || p != want {
		t.Errorf("%+v, %v, want %+v", p, err, want)
	}
	for _, bad := range []string{"", "1 (x) S 2 3", "1 (x) S a 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0"} {
		if _, err := ParseStat(bad); err == nil {
			t.Errorf("no error for %q", bad)
		}
	}
}
