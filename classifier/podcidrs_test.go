package classifier_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/rule"
)

func TestLocalPodCIDRs(t *testing.T) {
	p := netip.MustParsePrefix
	w := rule.World{Nodes: []rule.Node{
		{Name: "n1", PodCIDRs: []netip.Prefix{p("10.244.0.0/24"), p("fd00:10:244::/64")}},
		{Name: "n2", PodCIDRs: []netip.Prefix{p("10.244.1.0/24")}},
		{Name: "n3"},
	}}
	for _, c := range []struct {
		node string
		want []netip.Prefix
	}{
		{"n1", []netip.Prefix{p("10.244.0.0/24"), p("fd00:10:244::/64")}},
		{"n2", []netip.Prefix{p("10.244.1.0/24")}},
		{"n3", nil},
		{"nobody", nil},
		{"", []netip.Prefix{p("10.244.0.0/24"), p("fd00:10:244::/64"), p("10.244.1.0/24")}},
	} {
		w := w
		w.Node = c.node
		table, _, err := classifier.Compile(rule.Set{}, &w, classifier.Options{})
		if err != nil {
			t.Fatal(err)
		}
		got := table.LocalPodCIDRs()
		slices.SortFunc(got, netip.Prefix.Compare)
		slices.SortFunc(c.want, netip.Prefix.Compare)
		if !slices.Equal(got, c.want) {
			t.Errorf("node %q: %v, want %v", c.node, got, c.want)
		}
	}
}
