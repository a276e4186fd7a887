package inventory_test

import (
	"testing"

	"github.com/tierwall/tierwall/policy/api/antrea"
	"github.com/tierwall/tierwall/policy/inventory"
)

// Three dialects, three meanings of a star.
func TestNameMatcher(t *testing.T) {
	names := []string{"example.org", "www.example.org", "a.b.example.org", "notexample.org", "example.orgs", "exampleXorg", "Www.Example.ORG.", ""}
	for _, tc := range []struct{ set, want string }{
		{inventory.FQDNSet("*example.org"), "yyyy..y."}, // S4-21, X-45: any characters, none included
		{inventory.FQDNSet("*.example.org"), ".yy...y."},
		{inventory.FQDNSet("www.*.org"), ".y....y."},
		{inventory.FQDNSet("Example.org."), "y......."},
		{inventory.FQDNSet("*"), "yyyyyyy."},
		{inventory.DomainSet("example.org"), "y......."},
		{inventory.DomainSet("*.example.org"), ".yy...y."},      // whole labels, the domain itself excluded
		{inventory.CiliumFQDNSet("*.example.org"), ".y....y."},  // one label
		{inventory.CiliumFQDNSet("**.example.org"), ".yy...y."}, // labels
		{inventory.CiliumFQDNSet("*example.org"), "y..y...."},
		{inventory.CiliumFQDNSet("*"), "yyyyyyy."},
		{inventory.CiliumFQDNSet("w*w.example.org"), ".y....y."},
	} {
		match, ok := inventory.NameMatcher(tc.set)
		if !ok {
			t.Fatalf("%s is no set of names", tc.set)
		}
		got := ""
		for _, n := range names {
			if match(n) {
				got += "y"
			} else {
				got += "."
			}
		}
		if got != tc.want {
			t.Errorf("%s matches %s, want %s, of %q", tc.set, got, tc.want, names)
		}
	}
	for _, set := range []string{inventory.ServiceSet("a", "b"), "node-selector:a=b", ""} {
		if _, ok := inventory.NameMatcher(set); ok {
			t.Errorf("%q has names", set)
		}
	}
	if !inventory.WithoutCluster(inventory.CiliumFQDNSet("a")) || inventory.WithoutCluster(inventory.FQDNSet("a")) {
		t.Error("only toFQDNs leaves pods and nodes out")
	}
}

// The set of an fqdn pattern has the names that antrea.MatchFQDN selects (S4-21).
func FuzzNameMatcher(f *testing.F) {
	f.Add("*foobar.com", "test.uswest.foobar.com")
	f.Add("a*b*c", "aXbXbc")
	f.Fuzz(func(t *testing.T, pattern, name string) {
		for _, r := range pattern + name {
			if r == '\ufffd' || r > 0x7f { // no pattern or name the API accepts
				return
			}
		}
		match, _ := inventory.NameMatcher(inventory.FQDNSet(pattern))
		if got, want := match(name), antrea.MatchFQDN(pattern, name); got != want {
			t.Errorf("pattern %q, name %q: %t, want %t", pattern, name, got, want)
		}
	})
}
