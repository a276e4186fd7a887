package controller_test

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/controller"
	"github.com/tierwall/tierwall/policy/inventory"
)

// learner knows what it is told. All its methods run inside a synctest bubble.
type learner struct {
	news    chan struct{}
	set     string
	addrs   []netip.Prefix
	mark    uint64
	inForce []uint64
}

func (l *learner) Fill(sets map[string][]netip.Prefix) uint64 {
	if _, ok := sets[l.set]; ok {
		sets[l.set] = slices.Clone(l.addrs)
	}
	return l.mark
}

func (l *learner) InForce(mark uint64)   { l.inForce = append(l.inForce, mark) }
func (l *learner) News() <-chan struct{} { return l.news }

// learn takes in addresses as a DNS answer does.
func (l *learner) learn(addrs ...string) {
	l.addrs = []netip.Prefix{}
	for _, a := range addrs {
		l.addrs = append(l.addrs, netip.MustParsePrefix(a))
	}
	l.mark++
	l.news <- struct{}{}
}

func (l *learner) last() uint64 {
	if len(l.inForce) == 0 {
		return 0
	}
	return l.inForce[len(l.inForce)-1]
}

const toName = `apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: names, namespace: x}
spec:
  endpointSelector: {}
  egress:
  - toFQDNs: [{matchName: a.example}]
`

// What is learnt is in force without a look at the source, through either way of
// compiling; pods and nodes are left out of toFQDNs; a table that cannot be
// published leaves the learner waiting.
func TestLearner(t *testing.T) {
	for _, own := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			l := &learner{news: make(chan struct{}, 1), set: inventory.CiliumFQDNSet("a.example"), mark: 1}
			r := start(t, toName, func(c *controller.Config) {
				c.Learner = l
				if own {
					c.Compile = func(s rule.Set, w *rule.World, o classifier.Options) (*classifier.Table, *classifier.Report, error) {
						return classifier.Compile(s, w, o)
					}
				}
			})
			sleep(time.Second)
			pod := r.src.inv.Pods[0].IPs[0]
			peer := netip.MustParseAddr("198.51.100.7")
			passes := func(to netip.Addr) bool {
				tables := r.pub.published()
				k := flow.MakeKey(flow.TCP, netip.AddrPortFrom(pod, 40000), netip.AddrPortFrom(to, 443))
				return tables[len(tables)-1].Lookup(k).Verdict == classifier.Allow
			}
			if passes(peer) || l.last() != 1 {
				t.Fatalf("before anything is learnt: passes %t, in force %d", passes(peer), l.last())
			}
			loads, other := r.src.loaded(), r.src.inv.Pods[1].IPs[0]
			l.learn(netip.PrefixFrom(other, other.BitLen()).String(), "198.51.100.7/32")
			sleep(0)
			if !passes(peer) || l.last() != 2 || r.src.loaded() != loads {
				t.Errorf("after an answer: passes %t, in force %d, %d loads; want true, 2, none", passes(peer), l.last(), r.src.loaded()-loads)
			}
			if passes(other) {
				t.Error("a pod is in a set of toFQDNs")
			}
			if g := r.ctl.Status().Generation; g != r.pub.published()[len(r.pub.published())-1].Generation() {
				t.Errorf("status has generation %d", g)
			}
			n := len(r.pub.published())
			r.ctl.Reload() // the same policy and world: what was learnt stays
			sleep(time.Second)
			if len(r.pub.published()) != n || !passes(peer) {
				t.Errorf("%d tables for a reload without changes", len(r.pub.published())-n)
			}
			l.mark++
			l.news <- struct{}{} // nothing new after all
			sleep(0)
			if len(r.pub.published()) != n || l.last() != 3 {
				t.Errorf("%d tables for no change, in force %d, want 3", len(r.pub.published())-n, l.last())
			}
			r.pub.fail(errors.New("no"))
			l.learn()
			sleep(time.Millisecond)
			if l.last() != 3 {
				t.Error("in force though it could not be published")
			}
			r.pub.fail(nil)
			sleep(2 * controller.DefaultRetryInterval)
			if l.last() != 4 || passes(peer) {
				t.Errorf("after trying again: in force %d, passes %t; want 4, false", l.last(), passes(peer))
			}
		})
	}
}
