package intent_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tierwall/tierwall/cmd/internal/demo"
	"github.com/tierwall/tierwall/cmd/internal/intent"
	"github.com/tierwall/tierwall/cmd/internal/world"
)

// One packet that the policies do not explain makes a test fail, also where the test
// expects what the packet shows.
func TestJudgeSeesOnePacket(t *testing.T) {
	file := filepath.Join(t.TempDir(), "p.yaml")
	if err := os.WriteFile(file, []byte(`
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: shut, namespace: y}
spec: {podSelector: {}, policyTypes: [Ingress]}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	in, err := demo.Load([]string{file})
	if err != nil {
		t.Fatal(err)
	}
	test := func(to, expect string) intent.Test {
		return intent.Test{File: "i.yaml", Line: 1, From: "ns:x", To: to, Port: "80/TCP", Expect: expect}
	}
	tests := []intent.Test{test("y/b", "deny"), test("y/b", "allow"), test("z/b", "allow")}
	p, err := intent.PlanProbes(tests, in, "")
	if err != nil {
		t.Fatal(err)
	}
	if len(p.List) != 12 { // three pods, two families, and the first two tests share theirs
		t.Fatalf("%d connections: %v", len(p.List), p.List)
	}
	asSaid := func() []world.Result {
		out := make([]world.Result, len(p.List))
		for i, c := range p.List {
			out[i] = world.Result{Probe: c, Err: os.ErrDeadlineExceeded, Passed: strings.HasPrefix(c.To.Name, "z/")}
		}
		return out
	}
	for _, tt := range []struct {
		name   string
		change func([]world.Result)
		got    [3]string
		why    [3]string
	}{
		{"as the policies say", func([]world.Result) {}, [3]string{"deny", "deny", "allow"}, [3]string{"", "want allow, the wire shows deny", ""}},
		{
			"one refused connection passes", func(r []world.Result) { r[5].Passed = true },
			[3]string{"mixed", "mixed", "allow"},
			[3]string{"want deny, the wire shows allow, the policies say deny", "want allow, the wire shows deny", ""},
		},
		{"all refused connections pass", func(r []world.Result) {
			for i := range r {
				r[i].Passed = true
			}
		}, [3]string{"allow", "allow", "allow"}, [3]string{
			"want deny, the wire shows allow, the policies say deny", "the wire shows allow, the policies say deny", "",
		}},
		{
			"one allowed connection is silent", func(r []world.Result) { r[11].Passed = false },
			[3]string{"deny", "deny", "mixed"},
			[3]string{"", "want allow, the wire shows deny", "want allow, the wire shows deny, the policies say allow"},
		},
	} {
		results := asSaid()
		tt.change(results)
		res, err := p.Judge(results, "nfqueue")
		if err != nil {
			t.Fatal(err)
		}
		failed := 0
		for i, r := range res.Tests {
			if r.Got != tt.got[i] || r.Why != tt.why[i] || r.OK != (tt.why[i] == "") || r.Probed != 6 {
				t.Errorf("%s: test %d: %+v", tt.name, i, r)
			}
			if !r.OK {
				failed++
			}
		}
		if res.Failed != failed || res.Passed+res.Failed != 3 {
			t.Errorf("%s: %d passed, %d failed", tt.name, res.Passed, res.Failed)
		}
	}
	broken := asSaid()
	broken[0].Broken = os.ErrPermission
	if res, err := p.Judge(broken, "nfqueue"); err == nil {
		t.Errorf("a broken probe was judged: %+v", res)
	}
}
