// Package metrics serves the daemon's numbers to Prometheus and its health to
// the kubelet.
//
//	engine.Stats ──┐
//	backend.Stats ─┤                       /metrics   Prometheus text format
//	audit.Stats ───┼─► Collector ─► Handler  /healthz   is the process working?
//	audit.Hits ────┤   (at scrape time)    /readyz    is a policy in force?
//	controller ────┘
//
// Nothing is counted here. Every part of the daemon counts for itself, and a
// scrape reads those counts: a daemon that is not scraped does no work for it,
// and the packet path does none in any case. docs/metrics.md lists the metrics.
//
// # Verdicts by policy
//
// How many packets were passed and dropped is exact, for all packets
// (tierwall_packets_total). By which policy and rule they were is counted by the
// audit writer, off the packet path, for the decisions that left a record: all of
// them with audit.all, every denial with audit.denies. The number of series is
// bounded ([Config].MaxPolicies, MaxRules); what does not fit is one series with
// policy "other", so that sums stay right.
package metrics
