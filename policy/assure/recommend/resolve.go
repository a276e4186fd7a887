package recommend

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/tierwall/tierwall/classifier/rule"
)

// resolve finds what stands for an end today. A pod that is gone is one of its
// workload, told by labels or by its name.
func (s *Seen) resolve(e *End, c *Connection) (seenEnd, string) {
	addr := e.Addr.Unmap()
	outside := seenEnd{prefix: netip.PrefixFrom(addr, addr.BitLen()), node: e.Node}
	if e.Pod == "" {
		if outside.node == "" {
			outside.node = s.nodeOf[addr]
		}
		return outside, ""
	}
	pod := s.pods[[2]string{e.Namespace, e.Pod}]
	if pod == nil {
		pod = s.standIn(e)
	}
	switch {
	case pod == nil:
		return outside, WhyUnknownPod
	case pod.HostNetwork:
		return outside, WhyHost
	}
	s.known++
	if _, ok := pod.Addr(addr.Is4()); !ok {
		return seenEnd{pod: pod}, WhyFamily
	}
	return seenEnd{pod: pod}, ""
}

// standIn finds a pod of today for one that is gone.
func (s *Seen) standIn(e *End) *rule.Endpoint {
	k := [2]string{e.Namespace, e.Pod}
	pod, ok := s.gone[k]
	if ok {
		return pod
	}
	if len(e.Labels) > 0 {
		if i := slices.IndexFunc(s.groups.byNS[e.Namespace], func(p *rule.Endpoint) bool { return contains(p.Labels, e.Labels) }); i >= 0 {
			pod = s.groups.byNS[e.Namespace][i]
		}
	}
	if pod == nil {
		for _, u := range s.groups.list {
			if u.namespace == e.Namespace && madeBy(e.Pod, u) {
				pod = u.pods[0]
				break
			}
		}
	}
	if len(s.gone) < maxNames {
		s.gone[k] = pod
		if pod != nil {
			title := s.groups.of[pod].title
			if s.taken[title] == nil {
				s.taken[title] = map[string]bool{}
			}
			s.taken[title][e.Pod] = true
		}
	}
	if pod == nil && len(s.unknown) < maxNames {
		s.unknown[e.name()] = true
	}
	return pod
}

func contains(labels, want map[string]string) bool {
	for k, v := range want {
		if got, ok := labels[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// madeBy reports whether a pod has a name that the controllers give the pods of a
// workload: Deployments put two random parts behind theirs, StatefulSets a number,
// the others one random part.
func madeBy(pod string, u *group) bool {
	rest, ok := strings.CutPrefix(pod, u.name+"-")
	if !ok {
		return false
	}
	parts := strings.Split(rest, "-")
	switch u.kind {
	case "Deployment":
		return len(parts) == 2 && random(parts[0], 6, 10) && random(parts[1], 5, 5)
	case "StatefulSet":
		return len(parts) == 1 && number(parts[0])
	case "CronJob":
		return len(parts) == 2 && number(parts[0]) && random(parts[1], 5, 5)
	case "DaemonSet", "ReplicaSet", "Job", "ReplicationController":
		return len(parts) == 1 && random(parts[0], 5, 5)
	}
	return false
}

// random reports whether s may be a part of a name that Kubernetes makes: no
// vowels, and no digits that look like letters.
func random(s string, least, most int) bool {
	return len(s) >= least && len(s) <= most && strings.Trim(s, "bcdfghjklmnpqrstvwxz2456789") == ""
}

func number(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }

// ours reports whether a pod that is not in the manifests may be one of the
// chosen workloads': it is of their namespace.
func (s *Seen) ours(e *End) bool {
	return slices.ContainsFunc(s.units, func(u *group) bool { return u.namespace == e.Namespace })
}

// Unrecorded returns the nodes of the chosen pods that are not among those that have
// recorded something, sorted.
func (s *Seen) Unrecorded(recorded map[string]bool) (out []string) {
	for e := range s.subjects {
		if e.Node != "" && !recorded[e.Node] && !slices.Contains(out, e.Node) {
			out = append(out, e.Node)
		}
	}
	slices.Sort(out)
	return out
}

// hosted reports whether a pod on the host network is one of the chosen.
func (s *Seen) hosted(e *End) bool {
	pod := s.pods[[2]string{e.Namespace, e.Pod}]
	return pod != nil && slices.Contains(s.units, s.groups.of[pod])
}
