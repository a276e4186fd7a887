package controller_test

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/controller"
	"github.com/tierwall/tierwall/policy/diag"
	"github.com/tierwall/tierwall/policy/internal/fixture"
)

// A version of deny that validation refuses.
const denyBroken = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: deny, namespace: x}
spec: {podSelector: {matchLabels: {app: b}}, ingress: [{from: [{}]}]}
---
`

const (
	tier = `
apiVersion: crd.antrea.io/v1beta1
kind: Tier
metadata: {name: t1}
spec: {priority: 10}
---
`
	sameTier = `
apiVersion: crd.antrea.io/v1beta1
kind: Tier
metadata: {name: t2}
spec: {priority: 10}
---
`
	inTier = `
apiVersion: crd.antrea.io/v1beta1
kind: ClusterNetworkPolicy
metadata: {name: in-tier}
spec: {tier: t1, priority: 1, appliedTo: [{podSelector: {matchLabels: {app: b}}}], ingress: [{action: Drop, from: [{podSelector: {}}]}]}
---
`
)

func isolated(after *[]controller.Attempt) func(*controller.Config) {
	return func(c *controller.Config) {
		c.Isolate = true
		c.After = func(a controller.Attempt) { *after = append(*after, a) }
	}
}

// unreadable is an object the decoder refused.
func unreadable(t *testing.T, name string) *api.Object {
	t.Helper()
	good := *fixture.MustObjects(t, strings.ReplaceAll(deny, "deny", name))[0]
	good.Value, good.Raw = nil, nil
	good.Problems = []diag.Diagnostic{{Object: good.Ref(), Path: "spec.podselector", Message: "unknown field"}}
	return &good
}

// wantRefused checks who is refused, and whether an older version is in force.
func (r *rig) wantRefused(what string, names ...string) {
	r.t.Helper()
	var got []string
	for _, f := range r.ctl.Status().Refused {
		n := f.Object.Name
		if f.InForce != nil {
			n += " (older)"
		}
		got = append(got, n)
	}
	if strings.Join(got, ", ") != strings.Join(names, ", ") {
		r.t.Errorf("%s: refused %q, want %q", what, got, names)
	}
}

// An object with an error of its own keeps the version in force, or stays out;
// everything else applies.
func TestIsolatesOneObject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var after []controller.Attempt
		r := start(t, deny+broken, isolated(&after))
		r.want("a broken one beside", 1, classifier.Drop, 1, 0)
		r.wantRefused("a broken one beside", "broken")
		if len(after) != 1 || !after[0].InForce || len(after[0].Objects) != 1 || after[0].World == nil {
			t.Errorf("after: %+v", after)
		}
		r.set(denyBroken + allow)
		r.want("the update is broken, the other applies", 2, classifier.Allow, 2, 0)
		r.wantRefused("the update is broken", "deny (older)")
		r.set(denyBroken)
		r.want("the older version goes on", 3, classifier.Drop, 3, 0)
		r.wantRefused("still broken", "deny (older)")
		log := r.log.String()
		if n := strings.Count(log, "object refused"); n != 3 { // MustObjects makes new objects each time
			t.Errorf("%d log lines:\n%s", n, log)
		}
		r.ctl.Reload()
		sleep(controller.DefaultMinInterval)
		if r.log.String() != log {
			t.Error("the same refusal is logged twice")
		}
		r.set(deny)
		r.want("mended: what was in force all the time", 3, classifier.Drop, 3, 0)
		r.wantRefused("mended")
		r.set("")
		r.want("deleted", 4, classifier.Allow, 4, 0)
		r.set(denyBroken)
		r.want("nothing of it was in force", 4, classifier.Allow, 4, 0)
		r.wantRefused("never good since", "deny")
	})
}

// An object that cannot be decoded is refused like one that is invalid.
func TestIsolatesWhatCannotBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var after []controller.Attempt
		r := start(t, deny, isolated(&after))
		bad := unreadable(t, "deny")
		extra := unreadable(t, "extra")
		r.change(func() { r.src.objs = []*api.Object{bad, extra} })
		r.want("unreadable", 1, classifier.Drop, 1, 0)
		r.wantRefused("unreadable", "deny (older)", "extra")
		if a := after[len(after)-1]; !a.InForce || len(a.Objects) != 1 || a.Objects[0].Value == nil {
			t.Errorf("after: %+v", a)
		}
	})
}

// A policy whose tier goes away is wrong because of another object: it alone keeps
// its old meaning or stays out.
func TestIsolatesReferences(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var after []controller.Attempt
		r := start(t, inTier+allow, isolated(&after))
		r.want("no tier yet", 1, classifier.Allow, 1, 0)
		r.wantRefused("no tier yet", "in-tier")
		r.set(tier + inTier + allow)
		r.want("tier", 2, classifier.Drop, 2, 0)
		r.wantRefused("tier")
	})
}

// of objects that cause an error together each stays as it was; no other object
// hears of it.
func TestErrorsTogetherKeepTheirObjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var after []controller.Attempt
		r := start(t, tier+deny+inTier, isolated(&after))
		r.want("before", 1, classifier.Drop, 1, 0)
		r.set(tier + sameTier + allow)
		r.want("two tiers of one priority: the others apply", 2, classifier.Allow, 2, 0)
		r.wantRefused("two tiers of one priority: the old one stays", "t2")
		if a := after[len(after)-1]; !a.InForce || len(a.Objects) != 2 {
			t.Errorf("after: %+v", a)
		}
		r.set(tier + sameTier + inTier + strings.NewReplacer("in-tier", "in-t2", "t1", "t2").Replace(inTier))
		r.want("policies of both tiers", 3, classifier.Drop, 3, 0)
		r.wantRefused("the policy of the tier that is not in force", "t2", "in-t2")
		r.change(func() { r.src.inv = fixture.MustWorld(t, world+"\npod x/c app=b").Inventory })
		r.want("a pod comes", 4, classifier.Drop, 4, 0)
		if got := r.ctl.Status().Pods; got != 3 {
			t.Errorf("%d pods, want the new one policed, too", got)
		}
		r.set(sameTier + deny)
		r.want("mended by deleting the old one", 5, classifier.Drop, 5, 0)
		r.wantRefused("mended")
	})
}

// A change of pods alone does not lower again, and comes to the same.
func TestPodsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var after []controller.Attempt
		r := start(t, deny+broken, isolated(&after))
		hash := r.ctl.Status().PolicyHash
		inv := *r.src.inv
		more := fixture.MustWorld(t, world+"\npod x/c").Inventory
		inv.Pods = more.Pods
		r.change(func() { r.src.inv = &inv })
		r.want("a pod comes", 2, classifier.Drop, 2, 0)
		r.wantRefused("as before", "broken")
		if st := r.ctl.Status(); st.PolicyHash != hash || st.Pods != 3 || st.Isolations != 1 {
			t.Errorf("status %+v", st)
		}
		if a := after[len(after)-1]; a.World.Whole() != &inv || len(a.Objects) != 1 {
			t.Errorf("after: %+v", a)
		}
	})
}
