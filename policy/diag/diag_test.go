package diag

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

func TestString(t *testing.T) {
	for want, d := range map[string]Diagnostic{
		"f:1: Kind ns/n: spec.x: bad (do this)": {File: "f:1", Object: Ref{"g", "Kind", "ns", "n"}, Path: "spec.x", Message: "bad", Hint: "do this"},
		"Kind n: bad":                           {Object: Ref{Kind: "Kind", Name: "n"}, Message: "bad"},
		"bad":                                   {Message: "bad"},
	} {
		if got := d.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestSort(t *testing.T) {
	var l List
	for _, f := range []string{"b:2", "a:10", "", "a:9 (generated)", "a:9", "a", "b:2"} {
		l.Add(List{Errors: []Diagnostic{{File: f, Message: "m"}}, Warnings: []Diagnostic{{File: f}}})
	}
	l.Errors[len(l.Errors)-1].Message = "earlier"
	l.Sort()
	var got []string
	for _, d := range l.Errors {
		got = append(got, d.File+" "+d.Message)
	}
	const want = " m|a m|a:9 m|a:10 m|a:9 (generated) m|b:2 earlier|b:2 m"
	if s := strings.Join(got, "|"); s != want {
		t.Errorf("got  %s\nwant %s", s, want)
	}
	if l.Warnings[1].File != "a" {
		t.Errorf("warnings are not sorted: %v", l.Warnings)
	}
}

func TestErr(t *testing.T) {
	l := List{Warnings: []Diagnostic{{Message: "w"}}}
	if err := l.Err(); err != nil {
		t.Errorf("warnings alone are an error: %v", err)
	}
	l.Errors = []Diagnostic{{Message: "a"}, {File: "f", Message: "b"}}
	var e *Error
	if err := l.Err(); !errors.As(err, &e) || len(e.Findings) != 2 || err.Error() != "a\nf: b" {
		t.Errorf("got %v", err)
	}
}

// text is unambiguous where people would confuse two objects, and short where
// they would not.
func TestRefString(t *testing.T) {
	for want, r := range map[string]Ref{
		"":                                       {},
		"Tier t":                                 {Group: "crd.antrea.io", Kind: "Tier", Name: "t"},
		"NetworkPolicy x/p":                      {Group: "networking.k8s.io", Kind: "NetworkPolicy", Namespace: "x", Name: "p"},
		"NetworkPolicy x/q":                      {Kind: "NetworkPolicy", Namespace: "x", Name: "q"},
		"ClusterNetworkPolicy":                   {Kind: "ClusterNetworkPolicy"},
		"nameless":                               {Name: "nameless"},
		"ClusterNetworkPolicy p":                 {Kind: "ClusterNetworkPolicy", Name: "p"},
		"NetworkPolicy x/p (crd.antrea.io)":      {Group: "crd.antrea.io", Kind: "NetworkPolicy", Namespace: "x", Name: "p"},
		"NetworkPolicy x/p (projectcalico.org)":  {Group: "projectcalico.org", Kind: "NetworkPolicy", Namespace: "x", Name: "p"},
		"ClusterNetworkPolicy p (crd.antrea.io)": {Group: "crd.antrea.io", Kind: "ClusterNetworkPolicy", Name: "p"},
		"ClusterNetworkPolicy p (policy.networking.k8s.io)": {Group: "policy.networking.k8s.io", Kind: "ClusterNetworkPolicy", Name: "p"},
	} {
		if got := r.String(); got != want {
			t.Errorf("%+v is %q, want %q", r, got, want)
		}
	}
}

// The JSON form keeps its names, has the group beside them, and reads back as the
// same object.
func TestJSON(t *testing.T) {
	for want, d := range map[string]Diagnostic{
		`{"file":"f:1","object":"NetworkPolicy x/p","group":"crd.antrea.io","path":"spec","message":"a < b","hint":"h"}`: {
			File: "f:1", Object: Ref{"crd.antrea.io", "NetworkPolicy", "x", "p"}, Path: "spec", Message: "a < b", Hint: "h",
		},
		`{"file":"","object":"Tier t","group":"crd.antrea.io","path":"","message":"m","hint":""}`: {Object: Ref{Group: "crd.antrea.io", Kind: "Tier", Name: "t"}, Message: "m"},
		`{"file":"","object":"","path":"","message":"m","hint":""}`:                               {Message: "m"},
		`{"file":"","object":"Pod x/a","path":"","message":"m","hint":""}`:                        {Object: Ref{Kind: "Pod", Namespace: "x", Name: "a"}, Message: "m"},
		`{"file":"","object":"NetworkPolicy x/p","path":"","message":"m","hint":"","override":{"by":"Tier t","group":"g","rule":"r","action":"Drop","from":"x/a","to":"x/b","port":"80/TCP"}}`: {
			Object: Ref{Kind: "NetworkPolicy", Namespace: "x", Name: "p"}, Message: "m",
			Override: Override{By: Ref{Group: "g", Kind: "Tier", Name: "t"}, Rule: "r", Action: "Drop", From: "x/a", To: "x/b", Port: "80/TCP"},
		},
	} {
		var b strings.Builder
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false)
		if err := e.Encode(d); err != nil || b.String() != want+"\n" {
			t.Errorf("got  %s\nwant %s, %v", b.String(), want, err)
		}
		var back Diagnostic
		if err := json.Unmarshal([]byte(want), &back); err != nil || !back.Equal(d) {
			t.Errorf("%s reads back as %+v, %v", want, back, err)
		}
	}
}
