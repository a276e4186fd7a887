package afxdp

import (
	"testing"

	"github.com/tierwall/tierwall/dataplane/nstest"
)

// Tests leave out what a kernel cannot do (nstest.Since). From Linux 6.4 on that is not
// reading connections, unless it is locked down.
func TestConnectionsAreRead(t *testing.T) {
	nstest.Need(t, canRun)
	nstest.Since(t, "6.4", "programs that read a packet's connection", readsConnections())
}
