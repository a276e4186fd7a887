package kube

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"

	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/diag"
	"github.com/tierwall/tierwall/policy/foreign"
)

// NotUnderstood is a policy kind that is installed in the cluster and that no dialect
// reads: another project's, see package foreign.
type NotUnderstood struct {
	Group, Version, Kind, Resource string
	foreign.Match
	// Objects is the number of objects there are; UnknownObjects if it could not be
	// read.
	Objects int
}

// UnknownObjects stands for a number of objects that could not be read.
const UnknownObjects = -1

// Used is "yes", "no" or "unknown": whether there are objects of the kind.
func (n *NotUnderstood) Used() string {
	switch {
	case n.Objects < 0:
		return "unknown"
	case n.Objects == 0:
		return "no"
	}
	return "yes"
}

// Matters reports whether there are objects that decide about connections, or may
// be.
func (n *NotUnderstood) Matters() bool { return n.Decides && n.Objects != 0 }

// Finding says it for people; it is a warning if the kind Matters, else a note.
func (n *NotUnderstood) Finding() diag.Diagnostic {
	whose := ""
	if n.Project != "" {
		whose = " (" + n.Project + ")"
	}
	name := n.Kind + " of " + n.Group + whose
	d := diag.Diagnostic{Object: api.Ref{Group: n.Group, Kind: n.Kind}, Hint: n.Hint, Code: diag.NotEnforced}
	switch n.Used() {
	case "yes":
		d.Message = fmt.Sprintf("the cluster has %d objects of kind %s, which Tierwall does not enforce", n.Objects, name)
		if n.Objects == 1 {
			d.Message = fmt.Sprintf("the cluster has 1 object of kind %s, which Tierwall does not enforce", name)
		}
	case "no":
		d.Message, d.Hint = fmt.Sprintf("kind %s is installed, and Tierwall would not enforce it; there are no objects", name), "nothing, as long as nobody writes such objects"
	default:
		d.Message = fmt.Sprintf("kind %s is installed, and Tierwall does not enforce it; whether there are objects could not be read", name)
	}
	return d
}

// notUnderstood adds the findings about kinds to a list.
func notUnderstood(kinds []NotUnderstood, to *diag.List) {
	for i := range kinds {
		if d := kinds[i].Finding(); kinds[i].Matters() {
			to.Warnings = append(to.Warnings, d)
		} else {
			to.Notes = append(to.Notes, d)
		}
	}
}

// foreignKinds asks API discovery which policy kinds of others are served in the
// groups that may have some. A group that does not answer is left out: another
// project's API server must not keep policies from being read.
func foreignKinds(d discovery.DiscoveryInterface, groups []metav1.APIGroup, read []api.Kind, may func(group string) bool) []NotUnderstood {
	var out []NotUnderstood
	for i := range groups {
		g := &groups[i]
		served := func(name string) bool {
			return slices.ContainsFunc(groups, func(o metav1.APIGroup) bool { return o.Name == name })
		}
		// Calico's API server shows the objects of crd.projectcalico.org as its own.
		if !may(g.Name) || strings.HasPrefix(g.Name, "crd.") && served(strings.TrimPrefix(g.Name, "crd.")) {
			continue
		}
		versions := slices.Clone(g.Versions)
		slices.SortStableFunc(versions, func(a, b metav1.GroupVersionForDiscovery) int {
			preferred := func(v metav1.GroupVersionForDiscovery) int {
				if v.Version == g.PreferredVersion.Version {
					return 0
				}
				return 1
			}
			return preferred(a) - preferred(b)
		})
		for _, v := range versions {
			resources, err := d.ServerResourcesForGroupVersion(v.GroupVersion)
			if err != nil {
				continue
			}
			for _, r := range resources.APIResources {
				match, ok := foreign.Find(g.Name, r.Kind)
				if !ok || strings.Contains(r.Name, "/") || !slices.Contains(r.Verbs, "list") ||
					slices.ContainsFunc(read, func(k api.Kind) bool { return k.Group == g.Name && k.Kind == r.Kind }) ||
					slices.ContainsFunc(out, func(n NotUnderstood) bool { return n.Group == g.Name && n.Kind == r.Kind }) {
					continue
				}
				out = append(out, NotUnderstood{g.Name, v.Version, r.Kind, r.Name, match, UnknownObjects})
			}
		}
	}
	slices.SortFunc(out, func(a, b NotUnderstood) int {
		return strings.Compare(a.Group+"\x00"+a.Kind, b.Group+"\x00"+b.Kind)
	})
	return out
}

// mayDecide reports whether a group is worth a look: one that is known for policy
// kinds, or, as all says, any that does not come with Kubernetes.
func mayDecide(group string, all bool) bool {
	return foreign.MayHave(group) || all && strings.Contains(group, ".") && !strings.HasSuffix(group, ".k8s.io")
}

// count asks how many objects there are of each kind, by one small list each.
func (c *clients) count(ctx context.Context, kinds []NotUnderstood) {
	for i := range kinds {
		n := &kinds[i]
		ctx, cancel := context.WithTimeout(ctx, unanswered)
		l, err := c.meta.Resource(schema.GroupVersionResource{Group: n.Group, Version: n.Version, Resource: n.Resource}).List(ctx, metav1.ListOptions{Limit: 1})
		cancel()
		if err != nil {
			n.Objects = UnknownObjects
			continue
		}
		n.Objects = len(l.Items)
		if l.RemainingItemCount != nil {
			n.Objects += int(*l.RemainingItemCount)
		}
	}
}

// countEvery is how often a daemon counts again. Thousands of daemons do.
const countEvery = time.Hour

func nextCount() time.Duration { return countEvery + rand.N(countEvery/2) }

// counted takes over the numbers of an earlier look, and counts kinds that are new,
// or all.
func (s *Source) counted(ctx context.Context, c *clients, now []NotUnderstood, all bool) {
	s.mu.Lock()
	before := s.foreign
	s.mu.Unlock()
	var ask []NotUnderstood
	var at []int
	for i := range now {
		j := slices.IndexFunc(before, func(n NotUnderstood) bool {
			return n.Group == now[i].Group && n.Kind == now[i].Kind && n.Version == now[i].Version
		})
		if j >= 0 && !all {
			now[i].Objects = before[j].Objects
			continue
		}
		ask, at = append(ask, now[i]), append(at, i)
	}
	c.count(ctx, ask)
	for i := range ask {
		now[at[i]].Objects = ask[i].Objects
	}
}

// sayForeign logs kinds that are new, or of which there are objects now and were none.
func (s *Source) sayForeign(now []NotUnderstood) {
	for i := range now {
		n := &now[i]
		if slices.ContainsFunc(s.foreign, func(o NotUnderstood) bool {
			return o.Group == n.Group && o.Kind == n.Kind && o.Used() == n.Used()
		}) {
			continue
		}
		log := s.log.Info
		if n.Matters() {
			log = s.log.Warn
		}
		log("policy kind is installed and not enforced", "group", n.Group, "kind", n.Kind, "project", n.Project, "used", n.Used(), "hint", n.Finding().Hint)
	}
}
