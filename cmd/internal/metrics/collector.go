package metrics

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/audit"
	"github.com/tierwall/tierwall/dataplane/hits"
	"github.com/tierwall/tierwall/dataplane/packet"
	"github.com/tierwall/tierwall/policy/controller"
	"github.com/tierwall/tierwall/policy/source/kube"
)

// Engine is what is read of a *dataplane.Engine.
type Engine interface {
	Workers() []dataplane.WorkerStats
	Rings() []*dataplane.Ring
}

// Backend is what is read of a dataplane.Backend.
type Backend interface {
	Name() string
	Stats() dataplane.BackendStats
}

// AuditLog is what is read of an *audit.Writer.
type AuditLog interface {
	Stats() audit.Stats
	Hits() []audit.Hit
}

// Config names what to read. All of it may be called from any goroutine at any
// time; Audit may be nil, for a daemon without an audit log.
type Config struct {
	Engine   Engine
	Backends []Backend
	Missing  map[string]bool       // by backend, with "dataplane: auto": the kernel cannot run it
	Unjudged func() map[string]int // devices by reason (UnjudgedBridge, …); nil counts none
	Audit    AuditLog
	Hits     func() ([]hits.Rule, error) // nil for a daemon that counts none
	Policy   func() controller.Status
	Source   func() kube.Status // nil for a daemon that reads no API server
	Names    func() Names       // nil for a daemon that learns no DNS names
	Node     string
	Version  string
	// MaxPolicies and MaxRules bound the policies and the rules with series of
	// their own; 0 means 200 and 1000. Who comes first has them, for good.
	MaxPolicies, MaxRules int
}

// Collector reads the daemon's counts when it is scraped.
type Collector struct {
	cfg Config

	mu       sync.Mutex // scrapes may overlap
	policies named[string]
	rules    named[ruleID]
	matched  named[ruleID]
	others   uint64 // hits of rules without a series; never less than it was
}

// NewCollector returns a collector to register.
func NewCollector(cfg Config) *Collector {
	if cfg.MaxPolicies == 0 {
		cfg.MaxPolicies = 200
	}
	if cfg.MaxRules == 0 {
		cfg.MaxRules = 1000
	}
	return &Collector{
		cfg: cfg, policies: named[string]{cfg.MaxPolicies, map[string]bool{}}, rules: named[ruleID]{cfg.MaxRules, map[ruleID]bool{}},
		matched: named[ruleID]{cfg.MaxRules, map[ruleID]bool{}},
	}
}

// desc declares a metric.
func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("tierwall_"+name, help, labels, nil)
}

var (
	buildInfo = desc("build_info", "1, with the version of the daemon and the name of its node.", "version", "node")

	backendMissing = desc("backend_missing", "1 for a backend that \"dataplane: auto\" does without because the kernel cannot run it, 0 for one that runs.", "backend")

	unjudged = desc("unjudged_devices", "Devices of pods whose packets are not judged and should be, by reason: bridge (between ports, where br_netfilter cannot be switched on), program (ours could not be attached), netkit, bpf (another project's programs carry packets past the node's stack). The node is not ready while there is one.", "reason")

	packets       = desc("packets_total", "Packets seen in userspace, by what the driver was told and which branch of the packet path said so.", "backend", "disposition", "path")
	problems      = desc("packet_problems_total", "Packets that could not be decided, by what is wrong with them.", "problem")
	batches       = desc("batches_total", "Batches of packets taken from the kernel.", "backend")
	remembered    = desc("offloads_total", "Packets whose connection the kernel was asked to keep to itself.", "backend")
	answers       = desc("reject_answers_total", "Refused packets whose sender was to be told, by what became of the answer: sent, limited in rate, barred because such packets are never answered, failed.", "backend", "result")
	receiveErrors = desc("receive_errors_total", "Failed attempts to take packets from the kernel.", "backend")
	applyErrors   = desc("apply_errors_total", "Batches whose verdicts could not all be handed to the kernel.", "backend")
	latency       = desc("verdict_latency_seconds", "Time from receiving a packet's batch to handing its verdicts to the kernel, one observation per packet. The sum is an estimate within 13 %.", "backend")
	kernelFates   = desc("kernel_packets_total", "Packets the kernel side of a backend saw, each once, by what it did with them and why: sent up to userspace, passed, left to the later hook (defer), dropped. docs/metrics.md has the reasons.", "backend", "disposition", "reason")
	overflow      = desc("kernel_overflow_packets_total", "Packets lost because a queue or ring between kernel and userspace was full.", "backend")
	restored      = desc("kernel_restored_total", "Times the rules in the kernel were put back after other software had changed them.", "backend")

	connections  = desc("connections", "Connections remembered in userspace now.", "backend")
	connOpened   = desc("connections_opened_total", "Connections admitted.", "backend")
	connReplaced = desc("connections_replaced_total", "Connections replaced by a new one on the same tuple.", "backend")
	connEvicted  = desc("connections_evicted_total", "Connections forgotten because the table was full.", "backend")
	connExpired  = desc("connections_expired_total", "Connections forgotten because they were idle.", "backend")
	connCut      = desc("connections_cut_total", "Live connections ended by a policy change.", "backend")
	connLookups  = desc("connection_lookups_total", "Packets looked up in the connection table.", "backend", "result")

	ringDepth    = desc("event_ring_depth", "Audit events waiting in the fullest ring.")
	ringCapacity = desc("event_ring_capacity", "Room of the smallest ring, in events.")
	events       = desc("events_total", "Decisions offered to the audit log.")
	eventsLost   = desc("events_lost_total", "Decisions that found the ring to the audit log full.")

	auditEvents     = desc("audit_events_total", "Decisions the audit log has taken in.")
	auditRecords    = desc("audit_records_written_total", "Audit records written.")
	auditDeduped    = desc("audit_records_deduplicated_total", "Denied packets counted into another packet's record.")
	auditFolded     = desc("audit_records_folded_total", "Of the deduplicated packets, those in records that tell only the span of their ports.")
	auditLost       = desc("audit_records_lost_total", "What is missing from the audit log, by cause. The log itself says when.", "cause")
	auditUnresolved = desc("audit_records_unresolved_total", "Decisions recorded without policy names because their table was gone.")
	auditLag        = desc("audit_lag_seconds", "Age of the oldest decision in the last write to the audit log.")
	auditWindows    = desc("audit_windows", "Windows open now in which equal denied packets are counted.")
	auditRotations  = desc("audit_rotations_total", "Rotations of the audit log by the daemon.")
	auditReopens    = desc("audit_reopens_total", "Times the audit log was opened anew.")
	auditReaders    = desc("audit_stream_readers", "Readers of the audit stream now.")
	auditSlow       = desc("audit_stream_readers_dropped_total", "Readers of the audit stream dropped because they were too slow.")

	verdicts = desc("audited_verdicts_total", "Packets that left an audit record, by verdict, deciding band and policy; of a default deny the policies that isolate, separated by commas. Allowed connections count once. Policies beyond the bound are \"other\".",
		"verdict", "direction", "band", "policy")
	ruleHits = desc("rule_hits_total", "Packets that left an audit record naming this rule. Rules beyond the bound are policy \"other\", rule \"\".",
		"policy", "direction", "rule", "verdict")

	ruleMatches = desc("rule_matches_total", "New connections allowed and packets refused by this rule, audited or not; rule \"\" is the policy's isolation. Rules beyond the bound are policy \"other\".",
		"policy", "direction", "rule", "stage")
	unmatched = desc("rules_unmatched", "Rules and isolations in force that have not decided anything since they were first in force or the daemon started, whichever is later.")

	generation     = desc("policy_generation", "Generation of the decision table in force; 0 before the first.")
	policyObjects  = desc("policy_objects", "Policy objects in force.")
	policyRules    = desc("policy_rules", "Rules in force.")
	policyIsolate  = desc("policy_isolations", "Policies that isolate pods, by direction each.")
	policyPods     = desc("policy_pods", "Pods known.")
	policyErrors   = desc("policy_errors", "Errors found in the last attempt to update the policy. Above 0 an older policy stays in force.")
	policyWarnings = desc("policy_warnings", "Warnings of the last attempt to update the policy.")
	lastAttempt    = desc("policy_last_attempt_timestamp_seconds", "When the policy was last looked at, in seconds since the Unix epoch.")
	lastSuccess    = desc("policy_last_success_timestamp_seconds", "When the policy last looked at was in force, in seconds since the Unix epoch.")
)

// Reasons of Config.Unjudged.
const (
	UnjudgedBridge    = "bridge"
	UnjudgedNoProgram = "program"
	UnjudgedNetkit    = "netkit"
	UnjudgedBPF       = "bpf"
)

// all lists every metric, for Describe and for the documentation.
var all = []*prometheus.Desc{
	buildInfo, backendMissing, unjudged, packets, problems, batches, remembered, answers, receiveErrors, applyErrors, latency, kernelFates, overflow, restored,
	connections, connOpened, connReplaced, connEvicted, connExpired, connCut, connLookups,
	ringDepth, ringCapacity, events, eventsLost,
	auditEvents, auditRecords, auditDeduped, auditFolded, auditLost, auditUnresolved, auditLag, auditWindows, auditRotations, auditReopens,
	auditReaders, auditSlow, verdicts, ruleHits, ruleMatches, unmatched,
	generation, policyObjects, policyRules, policyIsolate, policyPods, policyErrors, policyWarnings, refusedObjects, lastAttempt, lastSuccess,
	sourceSynced, sourceSnapshot, sourceObjects, sourceRequests, sourceErrors, sourceLists, sourceEvents, sourceContact, notUnderstood,
	dnsSets, dnsNames, dnsAddresses, dnsEvicted, dnsRefused, dnsMessages, dnsHeld,
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range all {
		ch <- d
	}
}

// sink sends metrics; the methods keep collecting code to a line each.
type sink chan<- prometheus.Metric

func (s sink) counter(d *prometheus.Desc, v uint64, labels ...string) {
	s <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
}

func (s sink) gauge(d *prometheus.Desc, v float64, labels ...string) {
	s <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	s := sink(ch)
	s.gauge(buildInfo, 1, c.cfg.Version, c.cfg.Node)
	for backend, missing := range c.cfg.Missing {
		v := 0.0
		if missing {
			v = 1
		}
		s.gauge(backendMissing, v, backend)
	}
	if c.cfg.Unjudged != nil {
		for reason, n := range c.cfg.Unjudged() {
			s.gauge(unjudged, float64(n), reason)
		}
	}
	c.engine(s)
	for _, b := range c.cfg.Backends {
		st := b.Stats()
		for i, n := range st.Fates {
			if f := dataplane.Fate(i); n > 0 { // each backend has some of them only
				s.counter(kernelFates, n, b.Name(), f.Disposition(), f.Reason())
			}
		}
		s.counter(overflow, st.Overflow, b.Name())
		s.counter(restored, st.Restored, b.Name())
	}
	if c.cfg.Audit != nil {
		c.audit(s)
	}
	if c.cfg.Hits != nil {
		c.matches(s)
	}
	c.policy(s)
	if c.cfg.Names != nil {
		c.names(s, c.cfg.Names())
	}
	if c.cfg.Source != nil {
		c.source(s, c.cfg.Source())
	}
}

func (c *Collector) engine(s sink) {
	var names []string // in the workers' order
	byBackend := map[string]*dataplane.Stats{}
	var total dataplane.Stats
	for _, w := range c.cfg.Engine.Workers() {
		b := byBackend[w.Backend]
		if b == nil {
			b = &dataplane.Stats{}
			byBackend[w.Backend] = b
			names = append(names, w.Backend)
		}
		b.Add(&w.Stats)
		total.Add(&w.Stats)
	}
	for _, name := range names {
		b := byBackend[name]
		for p, n := range b.Paths {
			path := dataplane.Path(p)
			s.counter(packets, n, name, path.Disposition().String(), path.Name())
		}
		s.counter(batches, b.Batches, name)
		s.counter(remembered, b.Remember, name)
		for a, n := range b.Answers {
			s.counter(answers, n, name, dataplane.Answer(a).String())
		}
		s.counter(receiveErrors, b.RecvFails, name)
		s.counter(applyErrors, b.ApplyFail, name)
		s.counter(connCut, b.Cut, name)
		s <- histogram(latency, &b.Latency, name)
		ct := &b.Conntrack
		s.gauge(connections, float64(ct.Records), name)
		s.counter(connOpened, ct.Inserted, name)
		s.counter(connReplaced, ct.Replaced, name)
		s.counter(connEvicted, ct.Evicted, name)
		s.counter(connExpired, ct.Expired, name)
		s.counter(connLookups, ct.Hits, name, "hit")
		s.counter(connLookups, ct.Misses, name, "miss")
	}
	for p, n := range total.Problems {
		if packet.Problem(p) != packet.OK {
			s.counter(problems, n, packet.Problem(p).String())
		}
	}
	s.counter(events, total.Events)
	s.counter(eventsLost, total.Lost)
	depth, capacity := 0, 0
	for i, r := range c.cfg.Engine.Rings() {
		depth = max(depth, r.Len())
		if i == 0 || r.Cap() < capacity {
			capacity = r.Cap()
		}
	}
	s.gauge(ringDepth, float64(depth))
	s.gauge(ringCapacity, float64(capacity))
}

func (c *Collector) audit(s sink) {
	st := c.cfg.Audit.Stats()
	s.counter(auditEvents, st.Events)
	s.counter(auditRecords, st.Records)
	s.counter(auditDeduped, st.Collapsed)
	s.counter(auditFolded, st.Folded)
	s.counter(auditLost, st.RingLost, audit.LostRing)
	s.counter(auditLost, st.WriteLost, audit.LostWrite)
	s.counter(auditLost, st.CrashLost, audit.LostCrash)
	s.counter(auditLost, st.OutputLost, "output-failed")
	s.counter(auditUnresolved, st.Unresolved)
	s.gauge(auditLag, st.Lag.Seconds())
	s.gauge(auditWindows, float64(st.Windows))
	s.counter(auditRotations, st.Rotations)
	s.counter(auditReopens, st.Reopens)
	s.gauge(auditReaders, float64(st.Readers))
	s.counter(auditSlow, st.Dropped)
	hits := c.cfg.Audit.Hits()
	c.mu.Lock()
	byPolicy, byRule := verdictsOf(hits, &c.policies), rulesOf(hits, &c.rules)
	c.mu.Unlock()
	for _, v := range byPolicy {
		s.counter(verdicts, v.packets, v.labels[:]...)
	}
	for _, v := range byRule {
		s.counter(ruleHits, v.packets, v.labels[:]...)
	}
}

func (c *Collector) policy(s sink) {
	st := c.cfg.Policy()
	s.gauge(generation, float64(st.Generation))
	s.gauge(policyObjects, float64(st.Objects))
	s.gauge(policyRules, float64(st.Rules))
	s.gauge(policyIsolate, float64(st.Isolations))
	s.gauge(policyPods, float64(st.Pods))
	s.gauge(policyErrors, float64(len(st.Findings.Errors)))
	s.gauge(policyWarnings, float64(len(st.Findings.Warnings)))
	s.gauge(refusedObjects, float64(len(st.Refused)))
	s.gauge(lastAttempt, seconds(st.LastAttempt))
	s.gauge(lastSuccess, seconds(st.LastSuccess))
}

// seconds is the time as Prometheus writes it; 0 for never.
func seconds(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixNano()) / 1e9
}

// The histogram's buckets: every second power of two from a microsecond (1024
// ns) to a second. They are limits of the engine's own finer buckets, so no
// observation is put into a wrong one.
const (
	firstBound = 10
	lastBound  = 30
	boundStep  = 2
)

func histogram(d *prometheus.Desc, h *dataplane.Histogram, labels ...string) prometheus.Metric {
	buckets := map[float64]uint64{}
	var below uint64
	var sum float64
	next := firstBound
	for i, n := range h.Buckets {
		low := time.Duration(0)
		if i > 0 {
			low = dataplane.BucketLimit(i - 1)
		}
		high := dataplane.BucketLimit(i)
		for next <= lastBound && low >= time.Duration(1)<<next {
			buckets[float64(uint64(1)<<next)/1e9] = below
			next += boundStep
		}
		below += n
		// Observations lie anywhere in a bucket that is at most a quarter wide.
		sum += float64(n) * (low + (high-low)/2).Seconds()
	}
	for ; next <= lastBound; next += boundStep {
		buckets[float64(uint64(1)<<next)/1e9] = below
	}
	return prometheus.MustNewConstHistogram(d, below, sum, buckets, labels...)
}
