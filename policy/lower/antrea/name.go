package antrea

import (
	"crypto/sha1"
	"encoding/hex"
	"encoding/json"
	"strings"

	"github.com/tierwall/tierwall/classifier/flow"
	antreaapi "github.com/tierwall/tierwall/policy/api/antrea"
)

// generatedHexDigits of the hash make a generated rule name (X-38: the documents
// speak of 7 bits and show 7 hexadecimal digits).
const generatedHexDigits = 7

// RuleName returns the rule's own name or, if it has none, the one that is made up
// for it: <ingress|egress>-<action>-<digits>, where the digits are the beginning
// of the SHA-1 of the rule's JSON in v1beta1 (S2-40). The names agree with those
// Antrea's controller writes into v1beta1 objects. SHA-1 names things here; it
// protects nothing.
func RuleName(d flow.Direction, r *antreaapi.Rule) string {
	if r.Name != "" {
		return r.Name
	}
	action := ""
	if r.Action != nil {
		action = strings.ToLower(*r.Action)
	}
	text, err := json.Marshal(r)
	if err != nil {
		text = nil // a Rule holds nothing that could fail
	}
	sum := sha1.Sum(text)
	return d.String() + "-" + action + "-" + hex.EncodeToString(sum[:])[:generatedHexDigits]
}
