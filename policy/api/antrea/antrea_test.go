package antrea_test

import (
	"encoding/json"
	"testing"

	"github.com/tierwall/tierwall/policy/api/antrea"
)

func TestMatchFQDN(t *testing.T) {
	for _, c := range []struct {
		pattern, name string
		want          bool
	}{
		{"*foobar.com", "foobar.com", true}, // S4-21
		{"*foobar.com", "www.foobar.com", true},
		{"*foobar.com", "test.uswest.foobar.com", true},
		{"*foobar.com", "notfoobar.com", true},
		{"*foobar.com", "foobar.com.example.org", false},
		{"*.foobar.com", "foobar.com", false},
		{"*.foobar.com", "a.b.foobar.com", true},
		{"foobar.com", "FooBar.com.", true},
		{"foobar.com", "www.foobar.com", false}, // S2-90: exact
		{"svcA.default.svc.cluster.local", "svca.default.svc.cluster.local", true},
		{"a*b*c", "abc", true},
		{"a*b*c", "a.x.b.y.c", true},
		{"a*b*c", "ac", false},
		{"a*b*bc", "abc", false},
		{"a*a", "a", false}, // the two ends must not share a letter
		{"*", "anything.example", true},
		{"*", "", false},
		{"**", "x", true},
		{"", "x", false},
	} {
		if got := antrea.MatchFQDN(c.pattern, c.name); got != c.want {
			t.Errorf("%q against %q: %v", c.pattern, c.name, got)
		}
	}
}

// Decimal, hexadecimal, nothing in between.
func TestNumber(t *testing.T) {
	for text, want := range map[string]antrea.Number{
		"17": 17, `"17"`: 17, `"0x11"`: 17, `"0X16"`: 22, `"0x22"`: 34, "0": 0, `"0x0011"`: 17,
	} {
		var n antrea.Number
		if err := json.Unmarshal([]byte(text), &n); err != nil || n != want {
			t.Errorf("%s: %d, %v", text, n, err)
		}
	}
	for _, text := range []string{`"017"`, `"0o21"`, `"0b10001"`, "-1", "1.5", `""`, `"0x"`, `"x"`, `"0x80000000"`, "true", "{}", `"1_7"`} {
		var n antrea.Number
		if err := json.Unmarshal([]byte(text), &n); err == nil { // YAML's two octals differ
			t.Errorf("%s is read as %d", text, n)
		}
	}
	n := antrea.Number(17)
	if b, err := json.Marshal(antrea.IGMP{Type: &n}); err != nil || string(b) != `{"igmpType":17}` {
		t.Errorf("%s, %v", b, err)
	}
}
