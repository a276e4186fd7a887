package assess_test

import (
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/tierwall/tierwall/policy/assess"
	"github.com/tierwall/tierwall/policy/diag"
)

// What the server keeps beside the policy does not count; an unknown field does.
func TestDecode(t *testing.T) {
	var raw map[string]any
	if err := yaml.Unmarshal([]byte("{apiVersion: crd.antrea.io/v1beta1, kind: Tier, metadata: {name: t}, spec: {priority: 5}}"), &raw); err != nil {
		t.Fatal(err)
	}
	raw["status"] = map[string]any{"of": "another implementation"}
	raw["metadata"].(map[string]any)["managedFields"] = []any{map[string]any{"manager": "x", "surprise": true}}
	if o, found := assess.Decode(raw); o == nil {
		t.Error(found.Err())
	}
	raw["spec"].(map[string]any)["prio"] = int64(3)
	o, found := assess.Decode(raw)
	if o != nil || len(found.Errors) != 1 || found.Errors[0].Code != diag.UnknownField || found.Errors[0].Path != "spec.prio" {
		t.Errorf("unknown field: %+v", found)
	}
	if _, ok := raw["status"]; !ok {
		t.Error("the input was changed")
	}
}
