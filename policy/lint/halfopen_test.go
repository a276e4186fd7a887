package lint_test

import (
	"strings"
	"testing"
)

// A rule is half-open only if not one of its connections passes, and it is isolation
// that refuses them.
func TestHalfOpen(t *testing.T) {
	const world = "namespace x\npod x/web app=web 10.0.0.1\npod x/db app=db 10.0.0.2\n"
	egress := np("web", `{podSelector: {matchLabels: {app: web}}, policyTypes: [Egress], egress: [{to: [{podSelector: {matchLabels: {app: db}}}], ports: [{port: 5432}]}]}`)
	shut := np("db", `{podSelector: {matchLabels: {app: db}}, policyTypes: [Ingress]}`)
	for _, tt := range []struct {
		name, yaml string
		want       int
	}{
		{"the server refuses all", egress + shut, 1},
		{"nobody isolates the server", egress, 0},
		{"the server allows it", egress + np("db", `{podSelector: {matchLabels: {app: db}}, ingress: [{from: [{podSelector: {}}]}]}`), 0},
		{"the server allows another port", egress + np("db", `{podSelector: {matchLabels: {app: db}}, ingress: [{from: [{podSelector: {}}], ports: [{port: 80}]}]}`), 2},
		{"the client may open nothing", np("web", `{podSelector: {matchLabels: {app: web}}, policyTypes: [Egress]}`) +
			np("db", `{podSelector: {matchLabels: {app: db}}, ingress: [{from: [{podSelector: {matchLabels: {app: web}}}]}]}`), 1},
		{"a Deny refuses it", egress + anp("wall", `{priority: 1, subject: {namespaces: {}}, ingress: [{action: Deny, from: [{namespaces: {}}]}]}`), 0},
		{"one port of two", np("web", `{podSelector: {matchLabels: {app: web}}, policyTypes: [Egress], egress: [{to: [{podSelector: {matchLabels: {app: db}}}]}]}`) +
			np("db", `{podSelector: {matchLabels: {app: db}}, ingress: [{from: [{podSelector: {}}], ports: [{port: 80}]}]}`), 0},
	} {
		if got := strings.Count(warnings(t, world, tt.yaml), " rule allows: "); got != tt.want {
			t.Errorf("%s: %d findings, want %d:\n%s", tt.name, got, tt.want, warnings(t, world, tt.yaml))
		}
	}
}
