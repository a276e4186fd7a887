package query_test

import (
	"strings"
	"testing"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/cmd/internal/cli"
	"github.com/tierwall/tierwall/cmd/internal/query"
)

func TestParsePort(t *testing.T) {
	for _, tt := range []struct {
		in     string
		proto  flow.Proto
		number uint16
		name   string
		text   string
	}{
		{"80/TCP", flow.TCP, 80, "", "80/TCP"},
		{"80/tcp", flow.TCP, 80, "", "80/tcp"}, // echoed as asked
		{"53/UDP", flow.UDP, 53, "", "53/UDP"},
		{"65535/SCTP", flow.SCTP, 65535, "", "65535/SCTP"},
		{"443", flow.TCP, 443, "", "443/TCP"},
		{"http/TCP", flow.TCP, 0, "http", "http/TCP"},
		{"p-8080/UDP", flow.UDP, 0, "p-8080", "p-8080/UDP"},
		{"0/ICMP", flow.ICMP, 0, "", "0/ICMP"},
		{"0/ICMPv6", flow.ICMPv6, 0, "", "0/ICMPv6"},
		{"0/47", 47, 0, "", "0/47"},
	} {
		p, err := query.ParsePort(tt.in)
		if err != nil || p.Proto != tt.proto || p.Number != tt.number || p.Name != tt.name || p.Text != tt.text {
			t.Errorf("%q: %+v, %v", tt.in, p, err)
		}
	}
	for _, in := range []string{
		"", "/TCP", "0/TCP", "65536/TCP", "99999999999/TCP", "80/", "80/TCP/UDP", "80/0", "80/256", "8/ICMP", "echo/ICMP",
		"HTTP/TCP", "-a/TCP", "a-/TCP", "a--b/TCP", "sixteen-letters-/TCP", "abcdefghijklmnop/TCP", "a_b/TCP", "+80/TCP", "-1/TCP",
	} {
		if p, err := query.ParsePort(in); err == nil {
			t.Errorf("%q was read as %+v", in, p)
		} else if in != "" && !strings.Contains(err.Error(), "port") {
			t.Errorf("%q: the error does not say what it is about: %v", in, err)
		}
	}
}

func TestWithICMP(t *testing.T) {
	p, _ := query.ParsePort("0/ICMP")
	got, err := p.WithICMP("3/4")
	if err != nil || !got.HasType || got.Type != 3 || got.Code != 4 {
		t.Errorf("3/4: %+v, %v", got, err)
	}
	if got, err = p.WithICMP("8"); err != nil || got.Type != 8 || got.Code != 0 {
		t.Errorf("8: %+v, %v", got, err)
	}
	for _, in := range []string{"", "256", "3/256", "3/", "/4", "echo", "3/4/5"} {
		if _, err := p.WithICMP(in); err == nil {
			t.Errorf("%q was accepted", in)
		}
	}
}

// Matrix and explain answer alike: the same flows through both.
func TestMatrixAgreesWithExplain(t *testing.T) {
	for _, node := range []string{"", "node-1", "node-2"} {
		in, err := cli.Load("../../../deploy/examples/quickstart", node, nil)
		if err != nil {
			t.Fatal(err)
		}
		checked := 0
		for _, text := range []string{"http/TCP", "5432/TCP", "5432/UDP", "9100/TCP", "0/ICMP", "0/47"} {
			p, err := query.ParsePort(text)
			if err != nil {
				t.Fatal(err)
			}
			for _, family := range []query.Family{query.IPv4, query.IPv6} {
				for f := range query.Matrix(in.Table, []query.Port{p}, family) {
					from, err := query.Resolve(in.Table, in.Snapshot, f.From)
					if err != nil {
						t.Fatal(err)
					}
					to, err := query.Resolve(in.Table, in.Snapshot, f.To)
					if err != nil {
						t.Fatal(err)
					}
					e, err := query.Explain(in.Table, from, to, p, family)
					if err != nil {
						t.Fatal(err)
					}
					if e.Verdict != f.Verdict || e.Ingress.Policy != f.Ingress.Policy || e.Egress.Reason != f.Egress.Reason || e.ResolvedPort != f.ResolvedPort {
						t.Errorf("node %q: matrix %+v, explain %+v", node, f, e.Flow)
					}
					checkTrace(t, &e)
					checked++
				}
			}
		}
		if checked != 6*(36+25) {
			t.Errorf("%d flows compared, want %d", checked, 6*(36+25))
		}
	}
}

// checkTrace holds a trace against the decision it explains: the deciding rule
// is in it, matched, in the deciding band.
func checkTrace(t *testing.T, e *query.Explanation) {
	t.Helper()
	for _, side := range []struct {
		d     *query.Side
		bands []query.BandTrace
	}{{&e.Egress, e.Trace.Egress}, {&e.Ingress, e.Trace.Ingress}} {
		if side.d.Reason != "rule" && side.d.Reason != "isolation" {
			continue
		}
		found := false
		for _, b := range side.bands {
			if b.Band != side.d.Band {
				continue
			}
			if side.d.Reason == "isolation" {
				found = b.Result == "isolated" && len(b.Isolations) > 0
				continue
			}
			for _, r := range b.Rules {
				found = found || (r.Matched && r.Policy == side.d.Policy && r.Rule == side.d.Rule && b.Result == "matched")
			}
		}
		if !found {
			t.Errorf("%s > %s %s: %+v is not in its trace %+v", e.From, e.To, e.Port, side.d, side.bands)
		}
	}
}

func TestSymbols(t *testing.T) {
	seen := map[string]bool{}
	for _, v := range []classifier.Verdict{classifier.Allow, classifier.Drop, classifier.Reject} {
		s := query.Symbol(v.String())
		if s == "?" || seen[s] || !strings.Contains(query.Legend(cli.Style{}), s+" "+v.String()) {
			t.Errorf("verdict %s has the symbol %q", v, s)
		}
		seen[s] = true
	}
}

// Numbered columns: names too long for the width, rows and columns different.
func TestGridNumbers(t *testing.T) {
	g := query.Grid{
		Rows: []string{"from-a", "b"}, Cols: []string{"some-long-name", "another-long-name", "third"}, Width: 20,
		Cell: func(row, col int) (string, string) { s := string(rune('a' + 3*row + col)); return s, "<" + s + ">" },
	}
	want := `1 some-long-name
2 another-long-name
3 third

       1 2 3
from-a <a> <b> <c>
b      <d> <e> <f>`
	if got := strings.Join(g.Lines(), "\n"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
