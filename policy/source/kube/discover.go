package kube

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"

	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/diag"
	"github.com/tierwall/tierwall/policy/foreign"
)

// definitions is the resource whose objects say which policy APIs are installed.
// Of each only the name is read, which is PLURAL.GROUP; what is served for it is
// asked of API discovery.
const definitions = "customresourcedefinitions.apiextensions.k8s.io"

// defined is the sink of definitions: those of groups that have policy kinds, and
// others' policy kinds by their name.
type defined struct {
	groups  map[string]bool
	changed func()
	names   map[string]uint64 // with the version seen
}

type definedItem struct {
	ident
	version uint64
}

func newDefinitions(kinds []api.Kind, changed func()) *defined {
	d := &defined{groups: map[string]bool{}, changed: changed, names: map[string]uint64{}}
	for _, k := range kinds {
		d.groups[k.Group] = true
	}
	return d
}

func (d *defined) read(obj any) (any, error) {
	switch v := obj.(type) {
	case *definedItem:
		return v, nil
	case *metav1.PartialObjectMetadata:
		return &definedItem{ident{name: v.Name}, versionOf(v)}, nil
	}
	return nil, fmt.Errorf("want the metadata of a CustomResourceDefinition, got %T", obj)
}

// Nothing here changes what Load returns: that is up to discovery, which is told.

func (d *defined) set(item any) bool {
	it := item.(*definedItem)
	plural, group, _ := strings.Cut(it.name, ".")
	if (d.groups[group] || foreign.MayHave(group) || strings.Contains(plural, "networkpolic")) && d.names[it.name] != it.version {
		d.names[it.name] = it.version
		d.changed()
	}
	return false
}

func (d *defined) remove(n objectName) bool {
	if _, ok := d.names[n.name]; ok {
		delete(d.names, n.name)
		d.changed()
	}
	return false
}

func (d *defined) replace(items []any) bool {
	var had []objectName
	for name := range d.names {
		had = append(had, objectName{name: name})
	}
	replaceAll(d, had, items)
	d.changed() // the first look needs no definition at all
	return false
}

func (d *defined) len() int { return len(d.names) }

// lookAgain asks for a round of discovery.
func (s *Source) lookAgain() {
	select {
	case s.rescan <- struct{}{}:
	default:
	}
}

// When discovery is asked again: a definition is served a moment after it is
// there, and an answer may be missing.
var lookAfter = []time.Duration{200 * time.Millisecond, time.Second, 3 * time.Second, 10 * time.Second}

// discover follows which policy resources are served, and reads them.
func (s *Source) discover(ctx context.Context, c *clients, wg *sync.WaitGroup) {
	var again <-chan time.Time
	recount := time.After(nextCount())
	tries := 0
	failing := ""
	for {
		countAll := false
		select {
		case <-ctx.Done():
			return
		case <-s.rescan:
			tries = 0
		case <-again:
		case <-recount:
			countAll = true
			recount = time.After(nextCount())
		}
		served, err := s.look(c.discover)
		if err == nil {
			s.counted(ctx, c, served.foreign, countAll)
		}
		switch {
		case err != nil && ctx.Err() == nil && err.Error() != failing:
			failing = err.Error()
			s.log.Warn("API discovery failed, what is read stays", "error", err)
		case err == nil:
			failing = ""
			s.follow(ctx, c, served, wg)
		}
		again = nil
		if tries < len(lookAfter) || err != nil {
			again = time.After(lookAfter[min(tries, len(lookAfter)-1)])
			tries++
		}
	}
}

// served is a policy kind as the API server has it.
type served struct {
	kind     api.Kind
	resource schema.GroupVersionResource
}

// serving is the result of a look at API discovery.
type serving struct {
	kinds    []served
	unserved []diag.Diagnostic
	foreign  []NotUnderstood // not counted
}

// look asks which of the kinds are served. An error means that nobody knows.
func (s *Source) look(d discovery.DiscoveryInterface) (serving, error) {
	s.mu.Lock()
	known := map[string]bool{}
	if !s.definition.stats.Synced {
		s.mu.Unlock()
		return serving{}, fmt.Errorf("%s are not read yet", definitions)
	}
	for name := range s.definition.sink.(*defined).names {
		_, group, _ := strings.Cut(name, ".")
		known[group] = true
	}
	s.mu.Unlock()
	return lookUp(d, s.cfg.Kinds, func(group string) bool { return builtIn(group) || known[group] },
		func(group string) bool { return known[group] || mayDecide(group, false) })
}

// builtIn reports whether a group is the API server's own.
func builtIn(group string) bool { return group == "networking.k8s.io" }

// lookUp asks API discovery which of the kinds are served, in groups that may be, and
// which policy kinds of others are in groups that decide. Of several versions of a kind the first in kinds counts; objects are the same in
// all of them.
func lookUp(d discovery.DiscoveryInterface, kinds []api.Kind, may, decide func(group string) bool) (serving, error) {
	var out serving
	have := map[schema.GroupVersion]map[string]metav1.APIResource{}
	other := map[groupKind][]string{} // versions served that are none of ours
	groups := map[string]bool{}
	var list *metav1.APIGroupList
	for _, k := range kinds {
		if groups[k.Group] || !may(k.Group) {
			continue
		}
		groups[k.Group] = true
		if list == nil {
			var err error
			if list, err = d.ServerGroups(); err != nil {
				return serving{}, fmt.Errorf("list API groups: %w", err)
			}
		}
		at := slices.IndexFunc(list.Groups, func(g metav1.APIGroup) bool { return g.Name == k.Group })
		if at < 0 {
			continue
		}
		for _, v := range list.Groups[at].Versions {
			resources, err := d.ServerResourcesForGroupVersion(v.GroupVersion)
			if apierrors.IsNotFound(err) {
				continue
			}
			if err != nil {
				return serving{}, fmt.Errorf("list resources of %s: %w", v.GroupVersion, err)
			}
			byKind := map[string]metav1.APIResource{}
			for _, r := range resources.APIResources {
				if !strings.Contains(r.Name, "/") && slices.Contains(r.Verbs, "watch") {
					byKind[r.Kind] = r
				}
			}
			have[schema.GroupVersion{Group: k.Group, Version: v.Version}] = byKind
		}
	}
	done := map[groupKind]bool{}
	for _, k := range kinds {
		gk := groupKind{k.Group, k.Kind}
		r, ok := have[schema.GroupVersion{Group: k.Group, Version: k.Version}][k.Kind]
		if !ok || done[gk] {
			continue
		}
		done[gk] = true
		if r.Namespaced != k.Namespaced {
			out.unserved = append(out.unserved, diag.Diagnostic{
				Object: api.Ref{Group: k.Group, Kind: k.Kind}, Message: fmt.Sprintf("the API server has %s with another scope than the API's documents say: it is not enforced", k.GVK()),
				Hint: "install the definition that comes with this version",
			})
			continue
		}
		out.kinds = append(out.kinds, served{k, schema.GroupVersionResource{Group: k.Group, Version: k.Version, Resource: r.Name}})
	}
	for gv, byKind := range have {
		for kind := range byKind {
			other[groupKind{gv.Group, kind}] = append(other[groupKind{gv.Group, kind}], gv.Version)
		}
	}
	for gk, versions := range other {
		i := slices.IndexFunc(kinds, func(k api.Kind) bool { return k.Group == gk.group && k.Kind == gk.kind })
		if i < 0 || done[gk] {
			continue
		}
		slices.Sort(versions)
		out.unserved = append(out.unserved, diag.Diagnostic{
			Object:  api.Ref{Group: gk.group, Kind: gk.kind},
			Message: fmt.Sprintf("the API server has %s of %s only in versions this version does not enforce: %s", gk.kind, gk.group, strings.Join(versions, ", ")),
			Hint:    "serve " + kinds[i].GVK(),
		})
	}
	if list != nil {
		out.foreign = foreignKinds(d, list.Groups, kinds, decide)
	}
	slices.SortFunc(out.unserved, func(a, b diag.Diagnostic) int { return strings.Compare(a.Message, b.Message) })
	return out, nil
}

// follow starts reading what is served now and was not, and forgets what is not
// served any more.
func (s *Source) follow(ctx context.Context, c *clients, now serving, wg *sync.WaitGroup) {
	s.mu.Lock()
	defer s.mu.Unlock()
	keep := map[groupKind]bool{}
	for _, k := range now.kinds {
		gk := groupKind{k.kind.Group, k.kind.Kind}
		keep[gk] = true
		old := s.policies[gk]
		if old != nil && old.kind.Version == k.kind.Version {
			continue
		}
		if old != nil { // another version of the same objects: the new one takes over
			old.cancel()
		}
		sink := newPolicies(k.kind)
		if old != nil {
			sink.items = maps.Clone(old.sink.items) // until read anew
		}
		f := &policyFeed{feed: &feed{src: s, resource: k.resource.GroupResource().String(), sink: sink}, sink: sink, kind: k.kind}
		if old != nil {
			f.stats.Synced = old.stats.Synced
		}
		var feedCtx context.Context
		feedCtx, f.cancel = context.WithCancel(ctx)
		s.policies[gk] = f
		s.log.Info("policy API found", "resource", f.resource, "version", k.kind.Version)
		wg.Go(func() { f.run(feedCtx, c.policies(k.resource), exampleOf(f.resource)) })
	}
	for gk, f := range s.policies {
		if keep[gk] {
			continue
		}
		f.cancel()
		delete(s.policies, gk)
		s.log.Info("policy API gone", "resource", f.resource, "objects", f.sink.len())
		s.changedIf(f.sink.len() > 0)
	}
	s.sayForeign(now.foreign)
	if !slices.EqualFunc(s.unserved, now.unserved, diag.Diagnostic.Equal) || !slices.Equal(s.foreign, now.foreign) {
		s.unserved, s.foreign = now.unserved, now.foreign
		s.changedIf(true)
	}
	s.resolved = true
	s.checkSynced()
}
