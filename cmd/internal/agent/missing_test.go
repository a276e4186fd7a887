package agent

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"syscall"
	"testing"

	nfq "github.com/florianl/go-nfqueue/v2"
	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/cmd/internal/api"
	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/nstest"
)

// Without nfqueue "auto" drops what afxdp cannot judge, and says that the node does less
// than was configured for as long as it runs: it used to be a line of the log, and which
// backends enforced depended on how often the daemon had started since the node booted.
// Whoever writes "afxdp" has accepted it.
func TestAutoWithoutNFQueueIsNotReady(t *testing.T) {
	for _, dataplane := range []string{"auto", "afxdp"} {
		t.Run(dataplane, func(t *testing.T) {
			r := newRig(t, dataplane)
			// Another program has the queue: to the backend it is like any other
			// reason not to run.
			q, err := nfq.Open(&nfq.Config{
				NetNS: r.world.Node.NS.FD(), NfQueue: r.conf.NFQueue.FirstQueue, MaxQueueLen: 1, MaxPacketLen: 64, Copymode: nfq.NfQnlCopyPacket, AfFamily: unix.AF_UNSPEC,
			})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { q.Close() })
			nstest.Need(t, func() error {
				return q.RegisterWithErrorFunc(t.Context(), func(nfq.Attribute) int { return 0 }, func(error) int { return 0 })
			})
			r.write("policy.yaml", allowFromX)
			r.start()
			if !r.reaches("tcp", "x/a", "y/b", 4) || r.opens("tcp", "z/a", "y/b", 4) {
				t.Error("afxdp alone does not enforce the policy")
			}

			code, text := r.scrape("/readyz")
			_, answer := r.scrape(api.Prefix + "status")
			var st api.Status
			if err := json.Unmarshal([]byte(answer), &st); err != nil {
				t.Fatal(err)
			}
			if dataplane == "afxdp" {
				if code != http.StatusOK || !st.Ready {
					t.Errorf("as configured: /readyz %d %s; status %+v", code, text, st)
				}
				return
			}
			const want = "queue 7300 is taken by another program"
			if code != http.StatusServiceUnavailable || !strings.Contains(text, want) || !strings.Contains(text, `write "dataplane: afxdp"`) {
				t.Errorf("/readyz: %d %s, want the reason and how to accept it", code, text)
			}
			if st.Ready || !strings.Contains(st.NotReady, want) {
				t.Errorf("status: ready %v, %q", st.Ready, st.NotReady)
			}
			for _, p := range st.Dataplane.Probes {
				if (p.Backend == "nfqueue") != strings.Contains(p.Why, want) || p.Running != (p.Backend == "afxdp") || p.Running != (p.How != "") {
					t.Errorf("status of a backend: %+v", p)
				}
			}
			if n := r.metric(`tierwall_backend_missing{backend="nfqueue"}`); n != 1 {
				t.Errorf("tierwall_backend_missing of nfqueue is %g, want 1", n)
			}
			if n := r.metric(`tierwall_backend_missing{backend="afxdp"}`); n != 0 {
				t.Errorf("tierwall_backend_missing of afxdp is %g, want 0", n)
			}
			r.stop(syscall.SIGTERM)
			if log := r.logText(); !strings.Contains(log, "does less than was configured") {
				t.Errorf("the log does not say it:\n%s", log)
			}
		})
	}
}

// short is a backend that cannot do on this kernel what was configured.
type short struct{ dataplane.Backend }

func (short) Name() string { return "nfqueue" }
func (short) Lacks() error { return errors.New("the kernel has no fib") }

// Where forged sources should be dropped and are not found, the node is not ready. It
// used to say so in a line of the log only, among what works.
func TestLackOfAntiSpoofingIsNotReady(t *testing.T) {
	c := choice{facts: map[string]string{}}
	if err := c.lacking(); err != nil {
		t.Fatal(err)
	}
	c.add(short{})
	err := c.lacking()
	if err == nil {
		t.Fatal("the node is ready")
	}
	for _, want := range []string{"nfqueue does not find forged sources", "the kernel has no fib", `"afxdp: {antiSpoofing: false}"`} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q lacks %q", err, want)
		}
	}
}
