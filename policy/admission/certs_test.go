package admission_test

import (
	"bytes"
	"crypto/x509"
	"testing"
	"time"

	"github.com/tierwall/tierwall/policy/admission"
)

const day = 24 * time.Hour

// verifies reports whether the serving certificate is trusted by a list of
// authorities at a time.
func verifies(t *testing.T, data map[string][]byte, authorities []byte, name string, now time.Time) bool {
	t.Helper()
	pair, err := admission.Serving(data)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(authorities) {
		t.Fatal("no authorities")
	}
	_, err = pair.Leaf.Verify(x509.VerifyOptions{DNSName: name, Roots: roots, CurrentTime: now})
	return err == nil
}

func TestRenew(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	names := []string{"tierwall-webhook.tierwall.svc", "127.0.0.1"}
	renew := func(data map[string][]byte, now time.Time) (map[string][]byte, bool) {
		t.Helper()
		out, changed, err := admission.Renew(data, names, now)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range names {
			if !verifies(t, out, out[admission.KeyCA], n, now) {
				t.Fatalf("not trusted for %s at %v", n, now)
			}
		}
		return out, changed
	}
	first, changed := renew(nil, now)
	if !changed {
		t.Error("made from nothing, and not changed")
	}
	if verifies(t, first, first[admission.KeyCA], "elsewhere.svc", now) {
		t.Error("good for every name")
	}
	if _, changed := renew(first, now.Add(50*day)); changed {
		t.Error("renewed 40 days before the end")
	}
	second, changed := renew(first, now.Add(61*day))
	if !changed || bytes.Equal(second[admission.KeyServing], first[admission.KeyServing]) || !bytes.Equal(second[admission.KeyCA], first[admission.KeyCA]) {
		t.Error("the serving certificate, and only it, is to be renewed 29 days before its end")
	}
	if _, changed, err := admission.Renew(first, append(names, "new.svc"), now); err != nil || !changed {
		t.Error("another name, and nothing renewed")
	}

	// An authority's last year: whoever trusts the old list, or the new one, can go
	// on at every step of a walk through ten years.
	data, lists, steps := first, [][]byte{first[admission.KeyCA]}, 0
	for at := now; at.Before(now.Add(10 * 365 * day)); at = at.Add(7 * day) {
		before := data
		data, changed = renew(data, at)
		if !changed {
			continue
		}
		steps++
		if !verifies(t, data, before[admission.KeyCA], names[0], at) {
			t.Fatalf("at %v the new certificate is not trusted by the list from a week before", at)
		}
		lists = append(lists, data[admission.KeyCA])
	}
	if steps < 50 || bytes.Equal(lists[0], lists[len(lists)-1]) {
		t.Errorf("%d steps in ten years, or the same authority at the end", steps)
	}

	for _, broken := range []map[string][]byte{
		{admission.KeyCA: []byte("x"), admission.KeyCAKey: first[admission.KeyCAKey]},
		{admission.KeyCA: first[admission.KeyCA], admission.KeyCAKey: second[admission.KeyServingKey]},
		{admission.KeyCA: first[admission.KeyCA], admission.KeyCAKey: first[admission.KeyCAKey], admission.KeyServing: first[admission.KeyServing]},
	} {
		if _, changed := renew(broken, now); !changed {
			t.Error("a Secret that cannot serve is left alone")
		}
	}
}
