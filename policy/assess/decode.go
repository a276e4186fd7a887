package assess

import (
	"encoding/json"
	"fmt"
	"maps"

	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/decode"
	"github.com/tierwall/tierwall/policy/diag"
	"github.com/tierwall/tierwall/policy/lower"
)

var decoder = decode.Decoder{Kinds: lower.Kinds()}

// Decode reads one stored object strictly. What a server keeps beside the policy
// (status, managed fields) is no part of it and not looked at. object is nil when
// there are errors; raw is not modified or kept.
func Decode(raw map[string]any) (*api.Object, diag.List) {
	doc := maps.Clone(raw)
	delete(doc, "status")
	if meta, ok := doc["metadata"].(map[string]any); ok {
		meta = maps.Clone(meta)
		delete(meta, "managedFields")
		doc["metadata"] = meta
	}
	data, err := json.Marshal(doc)
	if err != nil {
		return nil, diag.List{Errors: []diag.Diagnostic{{Message: fmt.Sprintf("not JSON: %v", err), Hint: "write the object anew"}}}
	}
	objs, found := decoder.Decode("", data)
	if len(objs) != 1 || len(found.Errors) > 0 {
		return nil, found
	}
	return objs[0], found
}
