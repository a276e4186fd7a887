package e2e

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tierwall/tierwall/deploy/e2e/traffic"
)

// daemonSet returns the daemon's namespace and name.
func daemonSet() (ns, name string) {
	ns, name, _ = strings.Cut(cmp.Or(os.Getenv("TIERWALL_E2E_DAEMONSET"), "tierwall/tierwall"), "/")
	return ns, name
}

// A rolling restart of the daemons takes no packet of a flow that was accepted, and
// lets none of a denied one pass.
func TestRollingRestart(t *testing.T) {
	c := connect(t)
	w := c.crowd(t)
	w.join(t, "allowed", 25*time.Millisecond, time.Minute, traffic.Datagrams, traffic.Stream, traffic.Connects, traffic.NewDatagrams)
	w.join(t, "denied", 50*time.Millisecond, 300*time.Millisecond, traffic.Datagrams, traffic.Connects, traffic.NewDatagrams)
	w.join(t, "muted", 50*time.Millisecond, 300*time.Millisecond, traffic.Datagrams, traffic.Connects, traffic.NewDatagrams)
	before, heard := w.settled(t)
	began := time.Now()
	c.rollout(t)
	t.Logf("rollout: %v", time.Since(began).Round(100*time.Millisecond))
	time.Sleep(traffic.Late + time.Second)
	w.unharmed(t, before, heard)
	w.silent(t, "denied")
	w.silent(t, "muted")
}

// rollout restarts the daemons one after the other, and waits for the last.
func (c *cluster) rollout(t *testing.T) {
	t.Helper()
	ns, name := daemonSet()
	sets := c.core.AppsV1().DaemonSets(ns)
	patch := fmt.Sprintf(`{"spec":{"template":{"metadata":{"annotations":{"kubectl.kubernetes.io/restartedAt":%q}}}}}`, time.Now().Format(time.RFC3339Nano))
	set, err := sets.Patch(t.Context(), name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	generation := set.Generation
	for deadline := time.Now().Add(time.Duration(1+len(c.nodes)) * time.Minute); ; {
		if set, err = sets.Get(t.Context(), name, metav1.GetOptions{}); err != nil {
			t.Fatal(err)
		}
		if restarted(set, generation) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the rollout does not end: %+v", set.Status)
		}
		time.Sleep(500 * time.Millisecond)
	}
}

func restarted(set *appsv1.DaemonSet, generation int64) bool {
	s := set.Status
	return s.ObservedGeneration >= generation && s.DesiredNumberScheduled > 0 &&
		s.UpdatedNumberScheduled == s.DesiredNumberScheduled && s.NumberAvailable == s.DesiredNumberScheduled
}

// While the API server is away everything goes on, also on a node whose daemon dies
// meanwhile and starts from its snapshot; what is changed when it is back applies.
//
// TIERWALL_E2E_API_STOP and TIERWALL_E2E_API_START are shell commands;
// TIERWALL_E2E_API_AWAY says for how long, two minutes unless told;
// TIERWALL_E2E_DAEMON_KILL, if there, kills daemons a quarter into that time.
func TestAPIServerAway(t *testing.T) {
	stop, start := os.Getenv("TIERWALL_E2E_API_STOP"), os.Getenv("TIERWALL_E2E_API_START")
	if stop == "" || start == "" {
		t.Skip("TIERWALL_E2E_API_STOP and TIERWALL_E2E_API_START have no commands")
	}
	away, err := time.ParseDuration(cmp.Or(os.Getenv("TIERWALL_E2E_API_AWAY"), "2m"))
	if err != nil {
		t.Fatal(err)
	}
	c := connect(t)
	w := c.crowd(t)
	const later, freed = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: later, namespace: $CLIENT}
spec: {podSelector: {matchLabels: {app: later}}, policyTypes: [Egress]}`, `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: freed, namespace: $CLIENT}
spec: {podSelector: {matchLabels: {app: freed}}, policyTypes: [Egress]}`
	free := c.apply(t, w.fill(freed))
	// Patience is less than what is left of the outage after the daemon was killed:
	// a connection made within it was made by the snapshot.
	w.join(t, "allowed", 25*time.Millisecond, away/2, traffic.Datagrams, traffic.Stream, traffic.Connects, traffic.NewDatagrams)
	w.join(t, "denied", 50*time.Millisecond, 300*time.Millisecond, traffic.Datagrams, traffic.Connects, traffic.NewDatagrams)
	w.join(t, "muted", 50*time.Millisecond, 300*time.Millisecond, traffic.Datagrams, traffic.Connects, traffic.NewDatagrams)
	w.join(t, "later", 100*time.Millisecond, 300*time.Millisecond, traffic.Connects)
	w.join(t, "freed", 100*time.Millisecond, 300*time.Millisecond, traffic.Connects)
	before, heard := w.settled(t)
	time.Sleep(10 * time.Second) // the snapshot is written some seconds after a change

	shell(t, stop)
	back := false
	t.Cleanup(func() {
		if !back {
			shell(t, start)
		}
	})
	if err := c.core.Discovery().RESTClient().Get().AbsPath("/readyz").Timeout(3 * time.Second).Do(t.Context()).Error(); err == nil {
		t.Fatal("the API server still answers")
	}
	time.Sleep(away / 4)
	if kill := os.Getenv("TIERWALL_E2E_DAEMON_KILL"); kill != "" {
		shell(t, kill)
	}
	time.Sleep(away - away/4)
	shell(t, start)
	back = true
	for deadline := time.Now().Add(2 * time.Minute); ; {
		err := c.core.Discovery().RESTClient().Get().AbsPath("/readyz").Timeout(3 * time.Second).Do(t.Context()).Error()
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the API server does not come back: %v", err)
		}
		time.Sleep(200 * time.Millisecond)
	}
	w.silent(t, "freed")
	free()
	c.apply(t, w.fill(later))
	w.changes(t, time.Now())
	w.unharmed(t, before, heard)
	w.silent(t, "denied")
	w.silent(t, "muted")
}

// changes waits until the clients "later" are denied and the clients "freed" are not,
// on both nodes.
func (w *crowd) changes(t *testing.T, since time.Time) {
	t.Helper()
	last := map[string]int{}
	took := map[string]time.Duration{}
	for deadline := since.Add(time.Minute); len(took) < 4; {
		if time.Now().After(deadline) {
			t.Errorf("changes do not apply; these did: %v", took)
			return
		}
		for _, app := range []string{"later", "freed"} {
			for _, p := range w.pods[app] {
				n := 0
				for _, f := range w.report(t, w.client, p.Name).Flows {
					n += f.Answered
				}
				before, seen := last[p.Name]
				last[p.Name] = n
				if _, done := took[p.Name]; !done && seen && (n > before) == (app == "freed") {
					took[p.Name] = time.Since(since).Round(100 * time.Millisecond)
				}
			}
		}
		time.Sleep(time.Second) // ten tries
	}
	t.Logf("changed policies applied at most this long after: %v", took)
}

func shell(t *testing.T, command string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute) // t.Context is over when cleaning up
	defer cancel()
	if out, err := exec.CommandContext(ctx, "sh", "-c", command).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", command, err, out)
	}
}
