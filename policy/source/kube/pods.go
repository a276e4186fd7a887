package kube

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/diag"
	"github.com/tierwall/tierwall/policy/inventory"
)

// pods is the sink of Pods.
//
// An address belongs to one pod. For a moment the API server may say otherwise:
// the address of a pod that has ended goes to a new one before its phase is
// written. The pod that is not being deleted, or else the younger one, has it; the
// other stays known without it, and gets it back should the winner go.
type pods struct {
	list       inventory.PodEditor
	changed    bool // list, since it was last asked for
	owners     map[netip.Addr]claim
	losers     map[objectName]*podItem // as they came, with all their addresses
	namespaces map[string]int          // pods in each
	mentioned  bool                    // namespaces has other keys than when list was last asked for
	found      map[objectName]diag.List
	announced  map[objectName]*announcement

	mu     sync.Mutex                   // guards what follows: read uses it
	labels map[string]map[string]string // one copy of equal label sets
	ports  map[string][]rule.NamedPort  // and of equal lists of ports
}

// claim is who has an address. The higher strength wins.
type claim struct {
	name     objectName
	strength int64
}

type podItem struct {
	ident
	pod      inventory.Pod
	alive    bool
	strength int64
	found    diag.List
}

func newPods() *pods {
	return &pods{
		owners: map[netip.Addr]claim{}, losers: map[objectName]*podItem{}, namespaces: map[string]int{}, announced: map[objectName]*announcement{},
		labels: map[string]map[string]string{}, ports: map[string][]rule.NamedPort{},
	}
}

func (s *pods) read(obj any) (any, error) {
	if item, ok := obj.(*podItem); ok {
		return item, nil
	}
	v, ok := obj.(*corev1.Pod)
	if !ok {
		return nil, fmt.Errorf("want a Pod, got %T", obj)
	}
	item := &podItem{ident: ident{namespace: intern(v.Namespace), name: strings.Clone(v.Name)}, strength: v.CreationTimestamp.Unix()}
	if v.DeletionTimestamp != nil {
		item.strength -= 1 << 40 // below everything that is not being deleted
	}
	item.pod, item.alive, item.found = inventory.ReadPod(v)
	p := &item.pod
	p.Namespace, p.Name = item.namespace, item.name
	p.Node, p.ServiceAccount = intern(p.Node), intern(p.ServiceAccount)
	p.Workload.Kind, p.Workload.Name = intern(p.Workload.Kind), intern(p.Workload.Name) // replicas share them
	s.mu.Lock()
	defer s.mu.Unlock()
	// Here and not when it is put in: while everything is read, all items wait.
	p.Labels, p.Ports = s.sharedLabels(p.Labels), s.sharedPorts(p.Ports)
	return item, nil
}

// get returns a pod, nil when there is none. Read only, until the next put.
func (s *pods) get(n objectName) *inventory.Pod { return s.list.Get(n.namespace, n.name) }

func (s *pods) put(p *inventory.Pod) {
	s.list.Put(*p)
	s.changed = true
}

func (s *pods) len() int { return s.list.Len() }

func (s *pods) set(item any) bool {
	it := item.(*podItem)
	n := it.id()
	if !it.alive {
		return s.remove(n)
	}
	it = s.announcedTo(n, it)
	note(&s.found, n, it.found)
	delete(s.losers, n)
	news := s.place(n, it)
	return s.settle() || news
}

// place puts a pod in, with the addresses it wins.
func (s *pods) place(n objectName, it *podItem) bool {
	p := it.pod
	old := s.get(n)
	if old != nil {
		s.release(n, old, p.IPs)
	}
	if !p.HostNetwork {
		for _, a := range it.pod.IPs {
			c, taken := s.owners[a]
			switch {
			case !taken || c.name == n:
			case c.strength > it.strength || c.strength == it.strength && compareNames(c.name, n) < 0:
				p.IPs = without(p.IPs, a)
				s.losers[n] = it
				continue
			default:
				s.evict(c, a)
			}
			s.owners[a] = claim{n, it.strength}
		}
	}
	if old != nil && inventory.SamePod(old, &p) {
		return false
	}
	if old == nil {
		if s.namespaces[n.namespace]++; s.namespaces[n.namespace] == 1 {
			s.mentioned = true
		}
	}
	s.put(&p)
	return true
}

// evict takes an address from its owner.
func (s *pods) evict(c claim, a netip.Addr) {
	loser := *s.get(c.name)
	if s.losers[c.name] == nil {
		whole := &podItem{ident: ident{namespace: c.name.namespace, name: c.name.name}, pod: loser, alive: true, strength: c.strength}
		s.losers[c.name] = whole
	}
	loser.IPs = without(loser.IPs, a)
	s.put(&loser)
}

// release gives back the addresses of a pod, but for those to keep.
func (s *pods) release(n objectName, p *inventory.Pod, keep []netip.Addr) {
	for _, a := range p.IPs {
		if s.owners[a].name == n && (p.HostNetwork || !slices.Contains(keep, a)) {
			delete(s.owners, a)
		}
	}
}

// settle lets every pod that lost an address try again: its rival may be gone.
func (s *pods) settle() bool {
	if len(s.losers) == 0 {
		return false
	}
	news := false
	again := s.losers
	s.losers = map[objectName]*podItem{}
	for _, n := range slices.SortedFunc(maps.Keys(again), compareNames) {
		if s.get(n) != nil && s.place(n, again[n]) {
			news = true
		}
	}
	return news
}

func (s *pods) remove(n objectName) bool {
	delete(s.losers, n)
	delete(s.found, n)
	old := s.get(n)
	if old == nil {
		return false
	}
	s.release(n, old, nil)
	if s.namespaces[n.namespace]--; s.namespaces[n.namespace] == 0 {
		delete(s.namespaces, n.namespace)
		s.mentioned = true
	}
	s.list.Delete(n.namespace, n.name)
	s.changed = true
	s.settle()
	return true
}

func (s *pods) replace(items []any) bool {
	had := make([]objectName, 0, s.list.Len())
	s.list.Pods().Each(func(p *inventory.Pod) { had = append(had, objectName{p.Namespace, p.Name}) })
	return replaceAll(s, had, items)
}

// findings returns what is odd about pods, for the status.
func (s *pods) findings() diag.List {
	var l diag.List
	for _, n := range slices.SortedFunc(maps.Keys(s.losers), compareNames) {
		for _, a := range s.losers[n].pod.IPs {
			if c, ok := s.owners[a]; ok && c.name != n {
				l.Warnings = append(l.Warnings, diag.Diagnostic{
					Object: api.Ref{Kind: "Pod", Namespace: n.namespace, Name: n.name}, Path: "status.podIPs",
					Message: fmt.Sprintf("address %s is also that of pod %s/%s, which is taken to have it", a, c.name.namespace, c.name.name),
					Hint:    "nothing, while one of them is ending; else see which of them has the address, and delete the other",
				})
			}
		}
	}
	return l
}

// sharedLabels returns the one copy of a label set. The pods of a Deployment have
// the same; a map of its own for each would be most of what a pod takes. The
// caller holds mu.
func (s *pods) sharedLabels(m map[string]string) map[string]string {
	if len(m) == 0 {
		return nil
	}
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(m)) {
		b.WriteString(k)
		b.WriteByte(0)
		b.WriteString(m[k])
		b.WriteByte(0)
	}
	key := b.String()
	if one := s.labels[key]; one != nil {
		return one
	}
	s.labels[key] = m
	return m
}

func (s *pods) sharedPorts(ports []rule.NamedPort) []rule.NamedPort {
	if len(ports) == 0 {
		return nil
	}
	var b strings.Builder
	for _, p := range ports {
		b.WriteString(p.Name)
		b.WriteByte(0)
		b.WriteString(strconv.Itoa(int(p.Proto)<<16 | int(p.Port)))
		b.WriteByte(0)
	}
	key := b.String()
	if one := s.ports[key]; one != nil {
		return one
	}
	one := slices.Clip(ports)
	s.ports[key] = one
	return one
}

// flush returns the list with all changes in it. It forgets shared parts nobody
// has any more once they are most of them.
func (s *pods) flush() inventory.Pods {
	s.changed, s.mentioned = false, false
	list := s.list.Pods()
	const slack = 1024
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.labels) > list.Len()+slack || len(s.ports) > list.Len()+slack {
		clear(s.labels)
		clear(s.ports)
		list.Each(func(p *inventory.Pod) {
			s.sharedLabels(p.Labels)
			s.sharedPorts(p.Ports)
		})
	}
	return list
}
