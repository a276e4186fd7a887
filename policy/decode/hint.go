package decode

import (
	"fmt"
	"reflect"
	"regexp"
	"strings"

	"github.com/tierwall/tierwall/policy/diag"
)

// rulePath matches the path of one rule of a policy.
var rulePath = regexp.MustCompile(`(^|\.)(ingress|egress|ingressDeny|egressDeny)\[[0-9]+\]$`)

// unknownHint says what to write instead of a field the struct at the top of
// the stack does not have. The order of the guesses is from certain to vague.
func (w *walker) unknownHint(name string) string {
	here := w.stack[len(w.stack)-1]
	fields := fieldsOf(here.typ)
	if w.kind.Hint != nil {
		if h := w.kind.Hint(join(here.path, name)); h != "" {
			return h
		}
	}
	if h := caseHint(fields, name); h != "" {
		return h
	}
	if rulePath.MatchString(here.path) {
		if name == "from" && fields.byName["to"] != nil {
			return "an egress rule uses `to`"
		}
		if name == "to" && fields.byName["from"] != nil {
			return "an ingress rule uses `from`"
		}
	}
	// A cluster object is too wide for this guess: every name is somewhere in it.
	if p := pathTo(here.typ, name, 3); p != "" && !w.lenient {
		return fmt.Sprintf("%s belongs under %s", name, p)
	}
	near, distance := nearest(fields, name)
	if distance == 1 {
		return "did you mean " + near + "?"
	}
	for i := len(w.stack) - 2; i >= 0; i-- {
		up := w.stack[i]
		name, ok := fieldsOf(up.typ).fold(name)
		if !ok {
			continue
		}
		found := strings.TrimPrefix(strings.TrimPrefix(here.path, up.path), ".")
		switch {
		case rulePath.MatchString(up.path):
			return fmt.Sprintf("%s belongs to the rule, found in %s", name, found)
		case up.path == "":
			return fmt.Sprintf("%s belongs to the object, beside metadata, found in %s", name, found)
		}
		return fmt.Sprintf("%s belongs to %s, found in %s", name, up.path, found)
	}
	if p := pathTo(w.stack[0].typ, name, 8); p != "" && !w.lenient {
		return fmt.Sprintf("%s belongs under %s", name, p)
	}
	if near != "" {
		return "did you mean " + near + "?"
	}
	if len(fields.list) <= 8 {
		names := make([]string, len(fields.list))
		for i, f := range fields.list {
			names[i] = f.name
		}
		return "known fields: " + strings.Join(names, ", ")
	}
	return "remove it: " + w.kind.GVK() + " has no such field here"
}

// caseHint answers a field that is right but for its case.
func caseHint(fields *goFields, name string) string {
	if right, ok := fields.fold(name); ok {
		return "field names are case-sensitive: write " + right
	}
	return ""
}

// nearest returns the field whose name is fewest edits away and how many, ""
// and 0 when none is near enough to be meant.
func nearest(fields *goFields, name string) (string, int) {
	best, bestD := "", 3
	for _, f := range fields.list {
		if d := distance(f.name, name); d < bestD && d*2 < max(len(name), len(f.name)) {
			best, bestD = f.name, d
		}
	}
	if best == "" {
		return "", 0
	}
	return best, bestD
}

// distance is [diag.Edits]; it stops caring above 3.
func distance(a, b string) int {
	if d := len(a) - len(b); d > 3 || d < -3 {
		return 4
	}
	return diag.Edits(a, b)
}

// listHint answers a map or scalar where a list is wanted.
func listHint(name string, elem reflect.Type, n *node) string {
	if name == "matchExpressions" {
		return "matchExpressions must be a list; write `- {key: …, operator: …}`"
	}
	switch {
	case n.kind == mapNode && len(n.fields) > 0:
		return fmt.Sprintf("%s must be a list; write `- %s: …`", name, n.fields[0].key)
	case n.kind == mapNode:
		return fmt.Sprintf("%s must be a list; write `- {}`", name)
	case structOf(elem) == nil:
		return fmt.Sprintf("%s must be a list; write `[%s]`", name, n.text)
	}
	return fmt.Sprintf("%s must be a list; write each item behind `- `", name)
}
