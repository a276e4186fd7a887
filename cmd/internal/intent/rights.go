package intent

import (
	"net/netip"

	"go.yaml.in/yaml/v3"

	"github.com/tierwall/tierwall/policy/assure"
)

// rights reads what somebody may create or change, for claims.
func (l *loader) rights(n *yaml.Node, what string) *assure.Rights {
	n = child(n, "rights")
	if n == nil {
		return nil
	}
	what += "rights"
	if !l.fields(n, what, "namespaces", "keepNamespaceLabels", "pods", "keepLabels", "hostNetwork", "policies", "podNetworks") {
		return nil
	}
	r := &assure.Rights{
		Namespaces: l.text(n, "namespaces"), KeepNamespaceLabels: l.list(n, what, "keepNamespaceLabels"),
		Pods: l.list(n, what, "pods"), KeepLabels: l.list(n, what, "keepLabels"), Policies: l.list(n, what, "policies"),
	}
	if v := child(n, "namespaces"); v != nil && r.Namespaces != assure.GivenNamespaces && r.Namespaces != assure.AnyNamespaces {
		l.errorf(v, "write given or any", "%s: namespaces is %q", what, r.Namespaces)
	}
	if v := child(n, "hostNetwork"); v != nil && v.Decode(&r.HostNetwork) != nil {
		l.errorf(v, "write true or false", "%s: hostNetwork is %q", what, v.Value)
	}
	for _, text := range l.list(n, what, "podNetworks") {
		p, err := netip.ParsePrefix(text)
		if err != nil || p != p.Masked() {
			l.errorf(child(n, "podNetworks"), "write prefixes such as 10.0.0.0/8", "%s: podNetworks: %q is no prefix", what, text)
			continue
		}
		r.PodNetworks = append(r.PodNetworks, p)
	}
	return r
}

// list reads a list of values, or one value as a list of it.
func (l *loader) list(n *yaml.Node, what, key string) []string {
	v := child(n, key)
	switch {
	case v == nil:
		return nil
	case v.Kind == yaml.ScalarNode && v.Tag != "!!null" && v.Value != "":
		return []string{v.Value}
	case v.Kind != yaml.SequenceNode || len(v.Content) == 0:
		l.errorf(v, "write a value or a list", "%s: %s: want at least one value", what, key)
		return nil
	}
	var out []string
	for _, item := range v.Content {
		if item = resolve(item); item.Kind != yaml.ScalarNode || item.Value == "" {
			l.errorf(item, "", "%s: %s: want a value, got %s", what, key, kindOf(item))
			continue
		}
		out = append(out, item.Value)
	}
	return out
}
