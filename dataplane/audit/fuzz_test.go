package audit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"unicode"
	"unicode/utf16"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// FuzzParse: whatever parses can be written and parses to the same record, and
// as an Antrea line it is one line with the right number of fields.
func FuzzParse(f *testing.F) {
	l := newLog(f, Config{})
	scenario(l)
	for _, line := range l.lines() {
		f.Add([]byte(line))
	}
	f.Add([]byte(`{"v":1,"kind":"flow","time":"2026-01-01T00:00:00.1+02:30","until":"0001-01-01T00:00:00Z","tier":-3,"priority":1e-9,"policy":null,"label":"\u2028\u0001<&>\"\\","isolations":[{"kind":"K","name":"n"},{}],"source":{"ip":"fe80::1%\"","labels":{"b":"2","a":"1"},"service":true},"destination":{"ip":""},"icmpType":0,"icmpCode":3,"ports":{"first":1,"last":2},"seq":3,"events":4,"prev":"ff"}`))
	f.Add([]byte(`{"v":1,"kind":"flow","time":"2026-01-01T00:00:00Z","verdict":"Drop","rule":{"name":"a\nb  c [x]","index":0},"count":3}`))
	f.Add([]byte(`{"v":1,"kind":"flow","time":"2026-01-01T00:00:00Z","rule":{"name":"\u001b[2J\u007f\u009b31m\u202e\u2028\ufeff\udb40\udc41\u00e9\ud83d\ude00","index":0},"count":1}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		r, err := Parse(line)
		if err != nil {
			return
		}
		out, err := r.appendJSON(nil)
		if err != nil {
			return // times no calendar has: nothing the writer produces
		}
		var ref bytes.Buffer
		enc := json.NewEncoder(&ref)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(&r); err != nil || escapeUnprintable(ref.String()) != string(out) {
			t.Fatalf("encoding/json says %v\n%s\nwe say\n%s", err, ref.Bytes(), out)
		}
		if bytes.IndexByte(out, '\n') != len(out)-1 {
			t.Fatalf("not one line: %q", out)
		}
		back, err := Parse(out)
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if diff := cmp.Diff(r, back, cmpopts.EquateEmpty(), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
			t.Fatalf("round trip:\n%s", diff)
		}
		for i, fields := range []int{12, 16} {
			text := string(r.appendAntrea(nil, i == 1))
			plain := strings.TrimSuffix(text, "\n")
			if r.Count > 1 || r.Kind == KindLost {
				plain = plain[:strings.LastIndex(plain, " [")]
			}
			if n := len(strings.Split(plain, " ")); n != fields || strings.Count(text, "\n") != 1 {
				t.Fatalf("%d fields: %q", n, text)
			}
		}
	})
}

// escapeUnprintable writes the characters that encoding/json leaves as they are and
// a terminal may obey as their escapes.
func escapeUnprintable(line string) string {
	var b strings.Builder
	for _, r := range line {
		switch {
		case r == '\n' || unicode.IsPrint(r):
			b.WriteRune(r)
		default:
			for _, u := range utf16.Encode([]rune{r}) {
				fmt.Fprintf(&b, `\u%04x`, u)
			}
		}
	}
	return b.String()
}

func TestParse(t *testing.T) {
	for _, c := range []struct {
		line string
		want error // nil: any error will do
	}{
		{`{"v":2,"kind":"flow","time":"2026-01-01T00:00:00Z","count":1}`, ErrVersion},
		{`{"kind":"flow"}`, ErrVersion},
		{`{"v":1,"kind":"other"}`, nil},
		{`{"v":1,"kind":"flow"} x`, nil},
		{`{"v":1,"kind":"flow"`, nil},
		{``, nil},
	} {
		if _, err := Parse([]byte(c.line)); err == nil || (c.want != nil && !errors.Is(err, c.want)) {
			t.Errorf("%q: %v, want %v", c.line, err, c.want)
		}
	}
	// A newer writer of the same version may say more.
	if r, err := Parse([]byte(`{"v":1,"kind":"flow","novelty":[1],"verdict":"Allow","count":1}`)); err != nil || r.Verdict != Allow {
		t.Errorf("unknown field: %v", err)
	}
}
