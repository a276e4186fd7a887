package antrea

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/api"
	antreaapi "github.com/tierwall/tierwall/policy/api/antrea"
	"github.com/tierwall/tierwall/policy/diag"
	"github.com/tierwall/tierwall/policy/internal/kube"
)

// DefaultTier is the tier of a policy that names none (S2-11).
const DefaultTier = "application"

const (
	baselineTier = "baseline"
	// MaxTiers bounds the tiers of a cluster, the six included (S2-16).
	MaxTiers = 20
	// recommendedTiers is where the documents advise to stop (S2-16).
	recommendedTiers = 10
	// firstStaticPriority and above belong to the tiers that exist by themselves
	// (S2-08, X-33).
	firstStaticPriority = 250
	maxTierPriority     = 255
	// upstreamAdminPriority is the place of the upstream admin policies among the
	// tiers: below it a tier is evaluated before them, above it after them.
	upstreamAdminPriority = 220
)

// staticTiers exist in every cluster without anybody writing them (S2-09, X-32).
var staticTiers = map[string]int32{
	"emergency": 50, "securityops": 100, "networkops": 150, "platform": 200, DefaultTier: 250, baselineTier: 253,
}

// StaticTiers returns the tiers that always exist and their priorities.
func StaticTiers() map[string]int32 { return maps.Clone(staticTiers) }

// Band returns the band a tier's policies are evaluated in.
func Band(tierPriority int32) rule.Band {
	switch {
	case tierPriority > staticTiers[DefaultTier]:
		return rule.BandAntreaBaseline
	case tierPriority < upstreamAdminPriority:
		return rule.BandAntreaUpper
	}
	return rule.BandAntreaLower
}

// staticTier resolves the names the static tiers had when they were no objects:
// Emergency, SecurityOps, … still mean their tier, for those who write them.
func staticTier(name string) (string, bool) {
	lower := strings.ToLower(name)
	_, ok := staticTiers[lower]
	return lower, ok
}

func checkTier(f *kube.Findings, t *antreaapi.Tier) {
	if t.Spec.Priority == nil {
		f.Error("spec.priority", "priority is missing", "write a number from 0 (evaluated first) to 249")
		return
	}
	p := *t.Spec.Priority
	if want, ok := staticTiers[f.Object.Name]; ok {
		if p != want { // S2-09
			f.Error("spec.priority", fmt.Sprintf("the tier %s always has priority %d", f.Object.Name, want),
				"the six tiers that exist by themselves are read-only; give a tier of your own another name")
		}
		return
	}
	switch {
	case p < 0 || p > maxTierPriority:
		f.Error("spec.priority", fmt.Sprintf("priority %d is out of range", p), "write a number from 0 to 249")
	case p >= firstStaticPriority:
		f.Error("spec.priority", fmt.Sprintf("priority %d is reserved: %d and above are for the tiers %s and %s", p, firstStaticPriority, DefaultTier, baselineTier),
			"write a number from 0 to 249")
	case p == upstreamAdminPriority:
		f.Error("spec.priority", fmt.Sprintf("priority %d is reserved for policy.networking.k8s.io policies", p),
			"write 219 to be evaluated before them, 221 to be evaluated after them")
	}
}

// tiers maps the names of existing tiers to their priorities.
type tiers map[string]int32

// tiersOf collects the tiers and checks what must hold among them.
func tiersOf(objs []*api.Object, findings *diag.List) tiers {
	all := tiers(StaticTiers())
	owner := map[int32]string{}      // priority → tier
	taken := map[int32]*api.Object{} // priority → custom tier
	for name, p := range staticTiers {
		owner[p] = name
	}
	var custom []*api.Object
	for _, o := range objs {
		t, ok := o.Value.(*antreaapi.Tier)
		if _, static := staticTiers[o.Name]; ok && !static && t.Spec.Priority != nil {
			custom = append(custom, o)
		}
	}
	slices.SortStableFunc(custom, func(a, b *api.Object) int { return cmp.Compare(a.Name, b.Name) })
	for _, o := range custom {
		p := *o.Value.(*antreaapi.Tier).Spec.Priority
		all[o.Name] = p
		if other, ok := owner[p]; ok { // S2-05
			d := o.Finding("spec.priority",
				fmt.Sprintf("priority %d is already that of tier %s", p, other), "no two tiers can have the same priority")
			if of := taken[p]; of != nil { // else a static tier has it, and o alone is wrong
				d.Among = []api.Ref{of.Ref(), o.Ref()}
			}
			findings.Errors = append(findings.Errors, d)
			continue
		}
		owner[p], taken[p] = o.Name, o
	}
	switch n := len(all); {
	case n > MaxTiers:
		last := custom[len(custom)-1]
		d := last.Finding("",
			fmt.Sprintf("%d tiers, the %d that always exist included: at most %d", n, len(staticTiers), MaxTiers), "use policy priorities inside a tier instead")
		for _, o := range custom {
			d.Among = append(d.Among, o.Ref())
		}
		findings.Errors = append(findings.Errors, d)
	case n > recommendedTiers:
		last := custom[len(custom)-1]
		findings.Warnings = append(findings.Warnings, last.Finding("",
			fmt.Sprintf("%d tiers, the %d that always exist included: %d or fewer are recommended", n, len(staticTiers), recommendedTiers), ""))
	}
	return all
}

// find returns the priority of the tier a policy names.
func (t tiers) find(f *kube.Findings, name string) (int32, bool) {
	if name == "" {
		name = DefaultTier
	}
	if p, ok := t[name]; ok {
		return p, true
	}
	if static, ok := staticTier(name); ok {
		f.Warn("spec.tier", fmt.Sprintf("tier %q is the tier %s", name, static), "write "+static)
		return staticTiers[static], true
	}
	f.Error("spec.tier", fmt.Sprintf("there is no tier %q", name), // S2-04
		cmp.Or(kube.DidYouMean(name, slices.Sorted(maps.Keys(t))), "create the Tier, or use one of "+strings.Join(slices.Sorted(maps.Keys(t)), ", ")))
	return 0, false
}
