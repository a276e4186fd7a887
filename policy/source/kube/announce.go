package kube

import (
	"errors"
	"maps"
	"net/netip"
	"slices"
	"time"
)

// maxAnnounced bounds announcements of pods that no Pod object is known of.
const maxAnnounced = 4096

// announcedFor is how long an announcement waits for its Pod object.
const announcedFor = time.Minute

// announcement is what a CNI plugin says about a pod before the API server does.
type announcement struct {
	sandbox string // whose network it is: a pod may get another one
	addrs   []netip.Addr
	at      time.Time
	placed  bool // the pod has these addresses now
	loaded  bool // and Follow has returned it
	done    chan struct{}
}

// Announce gives a pod of this node its addresses before its Pod object has any: the API
// server hears of them from the kubelet when the containers run. As soon as the Pod names
// addresses itself, only those count. The channel is closed once the pod is in force with
// its addresses. sandbox names the pod's network for Withdraw.
func (s *Source) Announce(namespace, name, sandbox string, addrs []netip.Addr) (<-chan struct{}, error) {
	if namespace == "" || name == "" || len(addrs) == 0 {
		return nil, errors.New("want the namespace, the name and the addresses of a pod")
	}
	n := objectName{intern(namespace), name}
	s.mu.Lock()
	defer s.mu.Unlock()
	changed, a, err := s.pods.announce(n, sandbox, addrs)
	if err != nil {
		return nil, err
	}
	s.changedIf(changed)
	if a.placed && s.synced && s.inForce == s.change {
		a.finish()
	}
	return a.done, nil
}

// Withdraw takes an announcement back: the pod's network is gone.
func (s *Source) Withdraw(namespace, name, sandbox string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changedIf(s.pods.withdraw(objectName{namespace, name}, sandbox))
}

// announce places a pod with addresses, or keeps them until there is a pod.
func (s *pods) announce(n objectName, sandbox string, addrs []netip.Addr) (changed bool, a *announcement, err error) {
	now := time.Now()
	maps.DeleteFunc(s.announced, func(n objectName, a *announcement) bool { return s.get(n) == nil && now.Sub(a.at) > announcedFor })
	if len(s.announced) >= maxAnnounced {
		return false, nil, errors.New("too many pods are announced that the API server does not know")
	}
	if old := s.announced[n]; old != nil && !old.loaded {
		old.finish() // the pod's network was made anew
	}
	a = &announcement{sandbox: sandbox, addrs: slices.Clone(addrs), at: now, done: make(chan struct{})}
	s.announced[n] = a
	old := s.get(n)
	switch {
	case old == nil || old.HostNetwork || len(old.IPs) > 0 && !sameAddrs(old.IPs, addrs):
		return false, a, nil // of an earlier pod with this name
	case len(old.IPs) > 0:
		a.placed = true
		return false, a, nil
	}
	it := &podItem{ident: ident(n), pod: *old, alive: true, strength: now.Unix()}
	it.pod.IPs, a.placed = a.addrs, true
	return s.place(n, it), a, nil
}

func (s *pods) withdraw(n objectName, sandbox string) bool {
	a := s.announced[n]
	if a == nil || a.sandbox != sandbox {
		return false
	}
	delete(s.announced, n)
	a.finish()
	old := s.get(n)
	if !a.placed || old == nil || !sameAddrs(old.IPs, a.addrs) {
		return false
	}
	it := &podItem{ident: ident(n), pod: *old, alive: true, strength: a.at.Unix()}
	it.pod.IPs = nil
	return s.place(n, it)
}

// announcedTo returns the item of a pod with the addresses that were announced, if it has
// none of its own.
func (s *pods) announcedTo(n objectName, it *podItem) *podItem {
	a := s.announced[n]
	switch {
	case a == nil || it.pod.HostNetwork:
		return it
	case len(it.pod.IPs) > 0:
		if a.loaded || !sameAddrs(it.pod.IPs, a.addrs) {
			delete(s.announced, n)
			a.finish()
		} else {
			a.placed = true
		}
		return it
	}
	with := *it
	with.pod.IPs, with.strength, a.placed = a.addrs, a.at.Unix(), true // nobody has them any more who had them before
	return &with
}

// follow notes that what is placed has been returned by Follow; inForce tells those who
// wait for it.
func (s *pods) follow() {
	for _, a := range s.announced {
		a.loaded = a.loaded || a.placed
	}
}

func (s *pods) inForce() {
	for _, a := range s.announced {
		if a.loaded {
			a.finish()
		}
	}
}

// finish tells whoever waits. It may be called more than once, under the Source's lock.
func (a *announcement) finish() {
	select {
	case <-a.done:
	default:
		close(a.done)
	}
}

func sameAddrs(a, b []netip.Addr) bool {
	return len(a) == len(b) && !slices.ContainsFunc(a, func(x netip.Addr) bool { return !slices.Contains(b, x) })
}
