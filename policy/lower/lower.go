// Package lower turns what people write into the rule IR, one dialect a folder.
//
// A dialect is pure: the same objects and the same inventory give the same
// rules on every machine. It does no I/O, takes no clock and starts no
// goroutine. What it does not understand is an error finding, never silence.
package lower

import (
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/diag"
	"github.com/tierwall/tierwall/policy/inventory"
)

// Dialect is one policy language.
type Dialect interface {
	// Name is the folder's name: "networkpolicy", "adminnetworkpolicy", …
	Name() string
	// Kinds lists the API kinds the dialect decodes.
	Kinds() []api.Kind
	// Validate checks one object alone, as its API's admission would.
	Validate(o *api.Object) diag.List
	// Lower translates valid objects. It also reports what only several objects
	// together can show (conflicts, missing references).
	Lower(objs []*api.Object, inv *inventory.Snapshot) (rule.Set, diag.List)
}
