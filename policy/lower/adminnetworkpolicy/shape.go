package adminnetworkpolicy

import (
	"fmt"
	"strings"

	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/api/anpv1"
	"github.com/tierwall/tierwall/policy/api/kepanp"
	"github.com/tierwall/tierwall/policy/internal/kube"
)

// The dialects: what rule.Origin.Dialect and api.Kind.Dialect say, and what the
// annotation kube.AnnotationDialect may say.
const (
	KEP  = "kep"
	V011 = "v0.1.1"
	V017 = "v0.1.7"
)

// DialectOf returns the dialect an object was decoded as, "" for an object of
// another dialect package.
func DialectOf(o *api.Object) string {
	switch o.Value.(type) {
	case *kepanp.AdminNetworkPolicy:
		return KEP
	case *anpv1.AdminNetworkPolicy011, *anpv1.BaselineAdminNetworkPolicy011:
		return V011
	case *anpv1.AdminNetworkPolicy, *anpv1.BaselineAdminNetworkPolicy:
		return V017
	}
	return ""
}

// adminKind is AdminNetworkPolicy in the shape of a dialect.
func adminKind(dialect string) api.Kind {
	k := api.Kind{Group: Group, Version: Version, Kind: Name, Dialect: dialect}
	k.Hint = func(path string) string { return fieldHint(dialect, false, path) }
	switch dialect {
	case KEP:
		k.New = func() any { return new(kepanp.AdminNetworkPolicy) }
	case V011:
		k.New = func() any { return new(anpv1.AdminNetworkPolicy011) }
	default:
		k.New = func() any { return new(anpv1.AdminNetworkPolicy) }
	}
	return k
}

// baselineKind is BaselineAdminNetworkPolicy in the shape of a release.
func baselineKind(dialect string) api.Kind {
	k := api.Kind{Group: Group, Version: Version, Kind: BaselineName, Dialect: dialect}
	k.Hint = func(path string) string { return fieldHint(dialect, true, path) }
	if dialect == V011 {
		k.New = func() any { return new(anpv1.BaselineAdminNetworkPolicy011) }
	} else {
		k.New = func() any { return new(anpv1.BaselineAdminNetworkPolicy) }
	}
	return k
}

// markers are the first fields found that tell the dialects apart, as paths; ""
// when there is none.
type markers struct {
	kep     string // only the KEP has it
	release string // only releases have it, v011 and v017 included
	v011    string // v0.1.1 has it and v0.1.7 has not; the KEP may have it
	v017    string // only v0.1.7 has it
}

// findMarkers looks for fields that not every shape has.
func findMarkers(raw map[string]any) markers {
	var m markers
	spec := object(raw["spec"])
	subject := object(spec["subject"])
	look(&m.kep, subject, "spec.subject", "namespaceSelector", "namespaceAndPodSelector")
	look(&m.release, subject, "spec.subject", "namespaces", "pods")
	for _, d := range [][2]string{{"ingress", "from"}, {"egress", "to"}} {
		for i, r := range list(spec[d[0]]) {
			rule, path := object(r), kube.At("spec."+d[0], i)
			look(&m.kep, rule, path, "l4Selector")
			look(&m.release, rule, path, "ports")
			for j, p := range list(rule[d[1]]) {
				peer, path := object(p), kube.At(path+"."+d[1], j)
				namespaces, pods := object(peer["namespaces"]), object(peer["pods"])
				look(&m.kep, peer, path, "namespacedPods")
				look(&m.kep, namespaces, path+".namespaces", "self", "notSelf")
				look(&m.v011, namespaces, path+".namespaces", "namespaceSelector", "sameLabels", "notSameLabels")
				look(&m.v011, pods, path+".pods", "namespaces")
				look(&m.release, pods, path+".pods", "namespaces")
				look(&m.v017, peer, path, "nodes", "networks", "domainNames")
				look(&m.v017, namespaces, path+".namespaces", "matchLabels", "matchExpressions")
				look(&m.v017, pods, path+".pods", "namespaceSelector")
				look(&m.release, peer, path, "pods")
			}
		}
	}
	if m.release == "" {
		m.release = m.v017
	}
	return m
}

// look remembers the first of the names o has.
func look(found *string, o map[string]any, path string, names ...string) {
	for _, n := range names {
		if _, ok := o[n]; ok && *found == "" {
			*found = path + "." + n
		}
	}
}

func object(v any) map[string]any { o, _ := v.(map[string]any); return o }

func list(v any) []any { l, _ := v.([]any); return l }

const oneShape = "write the whole policy in one of them"

// detect tells a document's dialect by its fields. A document that none of them
// marks is of the newest release.
func detect(raw map[string]any) (dialect string, problem *api.Problem) {
	m := findMarkers(raw)
	switch {
	case m.kep != "" && m.release != "":
		return "", &api.Problem{
			Path: m.release,
			Message: fmt.Sprintf("mixes two APIs: this field is of the released AdminNetworkPolicy, %s of the KEP's",
				m.kep),
			Hint: oneShape + "; for priority they mean the opposite",
		}
	case m.kep != "":
		return KEP, nil
	case m.v011 != "" && m.v017 != "":
		return "", &api.Problem{
			Path:    m.v017,
			Message: fmt.Sprintf("mixes two releases: this field is of v0.1.7, %s of v0.1.1", m.v011),
			Hint:    toV017(m.v011),
		}
	case m.v011 != "":
		return V011, nil
	}
	return V017, nil
}

// toV017 says how a field of v0.1.1 is written in v0.1.7.
func toV017(path string) string {
	switch path[strings.LastIndexByte(path, '.')+1:] {
	case "namespaceSelector":
		return "in v0.1.7 `namespaces` of a peer is the label selector itself: write `namespaces: {matchLabels: …}` there, or `namespaces: {}` for all"
	case "namespaces":
		return "in v0.1.7 write `pods: {namespaceSelector: …, podSelector: …}` there"
	}
	return "v0.1.7 has no " + path[strings.LastIndexByte(path, '.')+1:] + ": write the whole policy with the fields of v0.1.1, or use ClusterNetworkPolicy, " + Group + "/v1alpha2, beside it"
}

var annotationPath = fmt.Sprintf("metadata.annotations[%q]", kube.AnnotationDialect)

// forced returns the dialect an annotation asks for, "" for none.
func forced(raw map[string]any) (dialect string, problem *api.Problem) {
	v, ok := object(object(raw["metadata"])["annotations"])[kube.AnnotationDialect]
	if !ok {
		return "", nil
	}
	s, _ := v.(string)
	switch s {
	case KEP, V011, V017:
		return s, nil
	}
	return "", &api.Problem{
		Path: annotationPath, Message: fmt.Sprintf("unknown dialect %q", fmt.Sprint(v)),
		Hint: "write " + KEP + ", " + V011 + " or " + V017,
	}
}

func selectAdmin(raw map[string]any) (api.Kind, *api.Problem) {
	dialect, problem := forced(raw)
	if dialect == "" && problem == nil {
		dialect, problem = detect(raw)
	}
	return adminKind(dialect), problem
}

const noKEPBaseline = "in the KEP a baseline is an AdminNetworkPolicy of priority 0"

func selectBaseline(raw map[string]any) (api.Kind, *api.Problem) {
	dialect, problem := forced(raw)
	switch {
	case problem != nil:
	case dialect == KEP:
		problem = &api.Problem{Path: annotationPath, Message: "the KEP has no BaselineAdminNetworkPolicy", Hint: noKEPBaseline}
	case dialect == "":
		dialect, problem = detect(raw)
		if dialect == KEP {
			problem = &api.Problem{
				Path: findMarkers(raw).kep, Message: "a field of the KEP's AdminNetworkPolicy in a BaselineAdminNetworkPolicy",
				Hint: noKEPBaseline,
			}
		}
	}
	return baselineKind(dialect), problem
}

// fieldHint answers a field that the dialect's shape does not have.
func fieldHint(dialect string, baseline bool, path string) string {
	doc := map[string]any{}
	if !plant(doc, path) {
		return ""
	}
	m := findMarkers(doc)
	switch {
	case dialect == KEP && (m.release != "" || m.v017 != ""):
		return "this is a field of the released AdminNetworkPolicy, whose priority means the opposite; " +
			"the KEP's has subject.namespaceSelector, l4Selector and namespacedPods"
	case dialect != KEP && m.kep != "":
		return "this is a field of the KEP's AdminNetworkPolicy, whose priority means the opposite; " +
			"the released one has subject.namespaces, ports and pods"
	case dialect == KEP:
		return ""
	}
	parent, field := path, ""
	if i := strings.LastIndexByte(path, '.'); i >= 0 {
		parent, field = path[:i], path[i+1:]
	}
	switch {
	case parent == "spec.subject.namespaces" && field == "namespaceSelector":
		return "`namespaces` of a subject is the label selector itself: write `namespaces: {matchLabels: …}`, or `namespaces: {}` for all"
	case parent == "spec.subject.pods" && field == "namespaces":
		return "write `pods: {namespaceSelector: …, podSelector: …}`"
	case parent == "spec":
		switch {
		case field == "priority" && baseline:
			return "a baseline has no priority: there is one, and it comes last"
		case field == "tier":
			return "tiers are of ClusterNetworkPolicy, " + Group + "/v1alpha2"
		}
	case strings.HasSuffix(strings.TrimRight(parent, "0123456789]"), "ports["):
		switch field {
		case "port", "protocol", "endPort", "number", "start", "end":
			return "write `portNumber: {protocol: …, port: …}`, `portRange: {protocol: …, start: …, end: …}` or `namedPort: …`"
		}
	case isPeer(parent):
		return peerHint(dialect, baseline, strings.HasPrefix(path, "spec.ingress"), field)
	case m.v011 != "" && dialect == V017:
		return "v0.1.1 has this field; in v0.1.7 `namespaces` of a peer is a label selector"
	case m.v017 != "" && dialect == V011:
		return "v0.1.7 has this field; in v0.1.1 `namespaces` sets namespaceSelector, sameLabels or notSameLabels"
	}
	return ""
}

func isPeer(path string) bool {
	path = strings.TrimRight(path, "0123456789]")
	return strings.HasSuffix(path, ".from[") || strings.HasSuffix(path, ".to[")
}

func peerHint(dialect string, baseline, ingress bool, field string) string {
	switch field {
	case "namespaceSelector":
		if dialect == V011 {
			return "write `namespaces: {namespaceSelector: …}`"
		}
		return "write `namespaces: …`, the label selector itself"
	case "podSelector":
		if dialect == V011 {
			return "write `pods: {namespaces: …, podSelector: …}`"
		}
		return "write `pods: {namespaceSelector: …, podSelector: …}`"
	case "nodes", "networks", "domainNames", "ipBlock":
		switch {
		case dialect == V011:
			return "release v0.1.1 selects only namespaces and pods"
		case ingress:
			return "ingress rules select only namespaces and pods"
		case field == "domainNames" && baseline:
			return "a baseline has no domainNames"
		case field == "ipBlock":
			return "write `networks: [CIDR, …]`"
		}
	}
	return ""
}

// plant builds the smallest document with a field at path, every list on the way
// having one item; false when path is no path.
func plant(doc map[string]any, path string) bool {
	o := doc
	for {
		name, rest, more := strings.Cut(path, ".")
		name, _, isList := strings.Cut(name, "[")
		if name == "" {
			return false
		}
		child := map[string]any{}
		if o[name] = child; isList {
			o[name] = []any{child}
		}
		if !more {
			return true
		}
		o, path = child, rest
	}
}
