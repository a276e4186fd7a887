package cilium

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/internal/kube"
)

// Label keys that are not labels of the pod.
const (
	keyNamespace      = "io.kubernetes.pod.namespace"
	keyNamespaceLabel = "io.cilium.k8s.namespace.labels." // followed by the label's key
	keyServiceAccount = "io.cilium.k8s.policy.serviceaccount"
	keyCluster        = "io.cilium.k8s.policy.cluster"
)

// target is what a label key of a selector is about.
type target uint8

const (
	podLabel target = iota
	namespaceName
	namespaceLabel
	serviceAccount
	unknown
)

// resolve takes the source prefix off a key and tells what it is about. For an
// unknown one, message and hint say why.
func resolve(key string) (t target, rest, message, hint string) {
	rest = key
	if source, k, ok := strings.Cut(key, ":"); ok {
		rest = k
		switch source {
		case "k8s", "any":
		case "reserved":
			return unknown, rest, fmt.Sprintf("%q is no label of a pod", key), "write the entity under fromEntities or toEntities: " + rest
		default:
			return unknown, rest, fmt.Sprintf("labels from source %q do not exist here", source), "pods have labels from the source k8s only"
		}
	}
	switch {
	case rest == keyNamespace:
		return namespaceName, rest, "", ""
	case strings.HasPrefix(rest, keyNamespaceLabel):
		return namespaceLabel, strings.TrimPrefix(rest, keyNamespaceLabel), "", ""
	case rest == keyServiceAccount:
		return serviceAccount, rest, "", ""
	case rest == keyCluster:
		return unknown, rest, "clusters cannot be told apart: Tierwall knows one", "remove " + keyCluster
	case strings.HasPrefix(rest, "io.kubernetes."), strings.HasPrefix(rest, "io.cilium."):
		return unknown, rest, fmt.Sprintf("%q is not a label this version knows", rest),
			"known are " + keyNamespace + ", " + keyNamespaceLabel + "KEY and " + keyServiceAccount
	}
	return podLabel, rest, "", ""
}

// requirements lists the conditions of a selector, matchLabels as In, with their
// paths below the selector.
func requirements(s *metav1.LabelSelector) (reqs []metav1.LabelSelectorRequirement, paths []string) {
	for _, k := range slices.Sorted(maps.Keys(s.MatchLabels)) {
		reqs = append(reqs, metav1.LabelSelectorRequirement{
			Key: k, Operator: metav1.LabelSelectorOpIn, Values: []string{s.MatchLabels[k]},
		})
		paths = append(paths, fmt.Sprintf("matchLabels[%q]", k))
	}
	for i := range s.MatchExpressions {
		reqs = append(reqs, s.MatchExpressions[i])
		paths = append(paths, kube.At("matchExpressions", i))
	}
	return reqs, paths
}

// checkSelector reports keys that mean nothing here, and what an API server
// refuses. home is the namespace a subject selector is bound to, "" for peers.
func checkSelector(f *kube.Findings, path string, s *metav1.LabelSelector, home string) {
	if s == nil {
		return
	}
	plain := &metav1.LabelSelector{MatchLabels: map[string]string{}}
	for k, v := range s.MatchLabels {
		if t, rest, _, _ := resolve(k); t != unknown {
			plain.MatchLabels[rest] = v
		}
	}
	for _, e := range s.MatchExpressions {
		t, rest, _, _ := resolve(e.Key)
		if e.Key = rest; t == unknown {
			// Keeps its place, so that the others keep theirs.
			e = metav1.LabelSelectorRequirement{Key: keyCluster, Operator: metav1.LabelSelectorOpExists}
		}
		plain.MatchExpressions = append(plain.MatchExpressions, e)
	}
	kube.CheckSelector(f, path, plain)
	reqs, paths := requirements(s)
	for i, r := range reqs {
		at := path + "." + paths[i]
		t, _, message, hint := resolve(r.Key)
		only := len(r.Values) == 1 && r.Operator == metav1.LabelSelectorOpIn
		switch {
		case t == unknown:
			f.Error(at, message, hint)
		case t == namespaceName && home != "" && !(only && r.Values[0] == home):
			f.Error(at, "a namespaced policy selects pods of its own namespace, "+home,
				"remove the key, or write a "+NameClusterwide)
		case t == serviceAccount && r.Operator == metav1.LabelSelectorOpNotIn:
			f.Error(at, "operator NotIn is not enforced for service accounts", "list the service accounts that are meant with In")
		}
	}
}

// podSelector lowers a selector of pods. Without a word about namespaces it is
// bound to home; "" binds to none. What checkSelector refuses selects nothing.
func podSelector(s *metav1.LabelSelector, home string) rule.Selector {
	var out rule.Selector
	var pods, namespaces metav1.LabelSelector
	var accounts []string
	none := rule.Selector{None: true}
	bound, limited := false, false
	reqs, _ := requirements(s)
	for _, r := range reqs {
		t, rest, _, _ := resolve(r.Key)
		r.Key = rest
		one := r.Operator == metav1.LabelSelectorOpIn && len(r.Values) == 1
		switch t {
		case podLabel:
			pods.MatchExpressions = append(pods.MatchExpressions, r)
		case namespaceName:
			bound = true
			if one && out.Namespace == "" && r.Values[0] != "" {
				out.Namespace = r.Values[0]
				continue
			}
			r.Key = corev1.LabelMetadataName
			namespaces.MatchExpressions = append(namespaces.MatchExpressions, r)
		case namespaceLabel:
			bound = true
			namespaces.MatchExpressions = append(namespaces.MatchExpressions, r)
		case serviceAccount:
			switch r.Operator {
			case metav1.LabelSelectorOpExists: // every pod has one
			case metav1.LabelSelectorOpIn:
				if limited {
					accounts = slices.DeleteFunc(accounts, func(a string) bool { return !slices.Contains(r.Values, a) })
				} else {
					accounts, limited = slices.Clone(r.Values), true
				}
			default:
				return none
			}
		default:
			return none
		}
	}
	if !bound {
		out.Namespace = home
	}
	out.PodLabels, out.NamespaceLabels = kube.Labels(&pods), kube.Labels(&namespaces)
	// "" is the name of none, but would mean any in a rule.Selector.
	accounts = slices.DeleteFunc(accounts, func(a string) bool { return a == "" })
	slices.Sort(accounts)
	accounts = slices.Compact(accounts)
	switch {
	case !limited:
	case len(accounts) == 0:
		return none
	case len(accounts) == 1:
		out.ServiceAccount = accounts[0]
	default:
		for _, a := range accounts {
			out.AnyOf = append(out.AnyOf, rule.Selector{ServiceAccount: a})
		}
	}
	return out
}

// nodeSelector takes the source prefixes off a selector of nodes.
func nodeSelector(s *metav1.LabelSelector) *metav1.LabelSelector {
	out := &metav1.LabelSelector{MatchLabels: map[string]string{}}
	for _, k := range slices.Sorted(maps.Keys(s.MatchLabels)) {
		key, v := nodeKey(k), s.MatchLabels[k]
		if _, twice := out.MatchLabels[key]; twice { // under two prefixes: both hold
			out.MatchExpressions = append(out.MatchExpressions, metav1.LabelSelectorRequirement{
				Key: key, Operator: metav1.LabelSelectorOpIn, Values: []string{v},
			})
			continue
		}
		out.MatchLabels[key] = v
	}
	for _, e := range s.MatchExpressions {
		e.Key = nodeKey(e.Key)
		out.MatchExpressions = append(out.MatchExpressions, e)
	}
	return out
}

func nodeKey(k string) string {
	for _, source := range []string{"k8s:", "any:", "node:"} {
		if rest, ok := strings.CutPrefix(k, source); ok {
			return rest
		}
	}
	return k
}
