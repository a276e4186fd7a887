package afxdp

import (
	"strings"
	"testing"

	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/nstest"
)

// Tests leave out what a kernel cannot do. From Linux 6.4 on that is not reading
// connections, unless it is locked down.
func TestConnectionsAreRead(t *testing.T) {
	nstest.Need(t, canRun)
	release := dataplane.KernelRelease()
	for _, old := range []string{"5.", "6.0.", "6.1.", "6.2.", "6.3."} {
		if strings.HasPrefix(release, old) {
			t.Skipf("Linux %s cannot let connections be read", release)
		}
	}
	if facts, _ := probed(); !readsConnections() {
		t.Errorf("Linux %s: %s", release, facts)
	}
}
