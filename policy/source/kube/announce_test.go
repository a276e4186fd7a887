package kube_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/inventory"
)

// podWith is pod "late" with a status; "" has no address yet.
func podWith(ips ...string) string {
	status := "{phase: Pending}"
	if len(ips) > 0 {
		list := make([]string, len(ips))
		for i, ip := range ips {
			list[i] = fmt.Sprintf(`{ip: "%s"}`, ip)
		}
		status = fmt.Sprintf(`{phase: Running, podIP: "%s", podIPs: [%s]}`, ips[0], strings.Join(list, ", "))
	}
	return `
apiVersion: v1
kind: Pod
metadata: {name: late, namespace: x}
spec: {nodeName: n1, containers: [{name: c}]}
status: ` + status
}

// addrsOf returns the addresses of pod late in a world.
func addrsOf(snap *inventory.Snapshot) string {
	for i := range snap.Pods {
		if snap.Pods[i].Name == "late" {
			return fmt.Sprint(snap.Pods[i].IPs)
		}
	}
	return "none"
}

func (r *rig) wantLate(what, want string) {
	r.t.Helper()
	objs, _ := r.load(what, func(_ []*api.Object, snap *inventory.Snapshot) bool { return addrsOf(snap) == want })
	_, view, _ := r.Follow(r.t.Context())
	r.InForce(objs, view)
}

func isDone(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func addrs(texts ...string) (out []netip.Addr) {
	for _, s := range texts {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

// A pod gets the addresses that the CNI plugin says, before or after its Pod object comes,
// until the Pod names some itself; whoever announced them hears when they are in force.
func TestAnnouncedPod(t *testing.T) {
	for _, early := range []bool{true, false} {
		t.Run(fmt.Sprintf("before the object=%v", early), func(t *testing.T) {
			r := newRig(t, nil)
			r.load("start", func([]*api.Object, *inventory.Snapshot) bool { return true })
			if !early {
				r.api.apply(t, podWith())
				r.wantLate("without an address", "[]")
			}
			done, err := r.Announce("x", "late", "box1", addrs("10.0.1.9", "fd00::9"))
			if err != nil {
				t.Fatal(err)
			}
			if early {
				r.api.apply(t, podWith())
			}
			objs, _ := r.load("announced", func(_ []*api.Object, snap *inventory.Snapshot) bool { return addrsOf(snap) == "[10.0.1.9 fd00::9]" })
			if isDone(done) {
				t.Error("in force before anybody said so")
			}
			_, view, _ := r.Follow(t.Context())
			r.InForce(objs, view)
			if !isDone(done) {
				t.Error("in force, and nobody is told")
			}
			// What is in force already is told at once.
			if again, err := r.Announce("x", "late", "box1", addrs("10.0.1.9", "fd00::9")); err != nil || !isDone(again) {
				t.Errorf("announced again: %v, in force %v", err, isDone(again))
			}
			// An update of the Pod without addresses changes nothing, one with others counts.
			r.api.apply(t, strings.Replace(podWith(), "phase: Pending", "phase: Running", 1))
			r.api.apply(t, podWith("10.0.1.10"))
			r.wantLate("named by the Pod", "[10.0.1.10]")
			r.Withdraw("x", "late", "box1")
			r.wantLate("withdrawn too late", "[10.0.1.10]")
		})
	}
}

// The end of a sandbox's network takes its addresses from the pod, and no other's.
func TestWithdrawnPod(t *testing.T) {
	r := newRig(t, nil)
	r.api.apply(t, podWith())
	r.wantLate("without an address", "[]")
	if _, err := r.Announce("x", "late", "box1", addrs("10.0.1.9")); err != nil {
		t.Fatal(err)
	}
	r.Withdraw("x", "late", "box0")
	r.wantLate("an earlier sandbox ends", "[10.0.1.9]")
	r.Withdraw("x", "late", "box1")
	r.wantLate("its own sandbox ends", "[]")
}

// A pod of the same name that is still there keeps its addresses; its successor gets the
// new ones. The address of a pod that has ended goes to the one that is announced.
func TestAnnouncedSuccessor(t *testing.T) {
	r := newRig(t, nil)
	r.api.apply(t, podWith("10.0.1.8"))
	r.wantLate("first", "[10.0.1.8]")
	done, err := r.Announce("x", "late", "box2", addrs("10.0.1.5")) // pod a has it, says the API server
	if err != nil {
		t.Fatal(err)
	}
	r.wantLate("the first is still there", "[10.0.1.8]")
	if isDone(done) {
		t.Error("in force for a pod that has another address")
	}
	r.api.delete("/v1/pods", "x/late")
	r.api.apply(t, podWith())
	r.wantLate("the second", "[10.0.1.5]")
	if !isDone(done) {
		t.Error("in force, and nobody is told")
	}
	_, snap := r.load("a", func([]*api.Object, *inventory.Snapshot) bool { return true })
	for i := range snap.Pods {
		if p := &snap.Pods[i]; p.Name == "a" && len(p.IPs) != 0 {
			t.Errorf("two pods have the address: %v", p.IPs)
		}
	}
}

func TestAnnouncementsOfNothing(t *testing.T) {
	r := newRig(t, nil)
	for _, c := range []struct {
		ns, name string
		addrs    []netip.Addr
	}{{"", "late", addrs("10.0.1.9")}, {"x", "", addrs("10.0.1.9")}, {"x", "late", nil}} {
		if _, err := r.Announce(c.ns, c.name, "box", c.addrs); err == nil {
			t.Errorf("%+v: accepted", c)
		}
	}
	var err error
	for i := 0; i < 5000 && err == nil; i++ {
		_, err = r.Announce("x", fmt.Sprint("nobody", i), "box", addrs("10.0.1.9"))
	}
	if err == nil {
		t.Error("announcements that nobody takes are kept without end")
	}
}
