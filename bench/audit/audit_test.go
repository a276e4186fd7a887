package audit

import (
	"bytes"
	"encoding/json"
	"testing"
)

// TestRun runs every case at a small size: the harness's own checks (nothing
// lost, every packet in the log's counts) fail it, and the names of the results
// are what others look for.
func TestRun(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: a run takes ten seconds")
	}
	var out bytes.Buffer
	if err := Run(t.Context(), &out, "json", Options{Dir: t.TempDir(), Rounds: 1, Seconds: 0.5, Sources: 5}); err != nil {
		t.Fatal(err)
	}
	var rep struct {
		Results []Result `json:"results"`
	}
	if err := json.Unmarshal(out.Bytes(), &rep); err != nil {
		t.Fatal(err)
	}
	got := map[string]Result{}
	for _, r := range rep.Results {
		got[r.Case] = r
	}
	for _, name := range []string{
		"audit_rate/tierwall", "audit_rate/raw_append", "audit_format/tierwall", "audit_latency_p99/at_10k",
		"verdict_cost/audited", "verdict_cost/unaudited", "portscan_memory", "portscan_records",
	} {
		if got[name].Value <= 0 || got[name].Unit == "" {
			t.Errorf("%s: %+v", name, got[name])
		}
	}
	if _, ok := got["audit_lost/at_200k"]; !ok {
		t.Error("no audit_lost/at_200k")
	}
	if got["audit_rate/tierwall"].Base != "audit_rate/raw_append" || got["verdict_cost/audited"].Base != "verdict_cost/unaudited" {
		t.Errorf("bases: %+v", rep.Results)
	}
	if err := Run(t.Context(), &out, "xml", Options{}); err == nil {
		t.Error("xml is no form")
	}
}
