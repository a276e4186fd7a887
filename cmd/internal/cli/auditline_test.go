package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/tierwall/tierwall/dataplane/audit"
)

// A default deny was told as the first isolating policy's "and 1 more".
func TestAuditLineNamesAllIsolatingPolicies(t *testing.T) {
	r := audit.Record{Kind: audit.KindFlow, Verdict: audit.Drop, Protocol: "TCP", Reason: "isolation", Direction: "ingress", Count: 1}
	add := func(name string) {
		r.Isolations = append(r.Isolations, audit.Policy{Kind: "NetworkPolicy", Namespace: "y", Name: name})
		r.Policy = &r.Isolations[0]
	}
	add("all")
	if got := AuditLine(Style{}, time.UTC, &r); !strings.Contains(got, "  NetworkPolicy y/all  ingress, isolation") {
		t.Error(got)
	}
	add("db")
	if got := AuditLine(Style{}, time.UTC, &r); !strings.Contains(got, "  NetworkPolicy y/all, NetworkPolicy y/db  ingress, isolation") {
		t.Error(got)
	}
	for range 8 {
		add("more")
	}
	if got := AuditLine(Style{}, time.UTC, &r); strings.Count(got, "NetworkPolicy") != 8 || !strings.Contains(got, ", 2 more  ingress") {
		t.Error(got)
	}
}
