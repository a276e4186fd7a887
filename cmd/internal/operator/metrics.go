package operator

import (
	"fmt"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// probes serves /metrics, /healthz and /readyz.
func (o *operator) probes() http.Handler {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), collector{o})
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{}))
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := o.ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	return mux
}

// collector reads the counters of the parts at scrape time.
type collector struct{ o *operator }

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("tierwall_controller_"+name, help, labels, nil)
}

var (
	descLeading   = desc("leading", "1 on the replica that writes status, Tiers and events.")
	descReviews   = desc("admission_reviews_total", "Admission reviews answered, by answer.", "answer")
	descObjects   = desc("objects", "Policy objects, by whether this version of them can be enforced.", "state")
	descWrites    = desc("status_writes_total", "Writes of objects' status, by result.", "result")
	descWaiting   = desc("status_waiting", "Objects whose status waits to be written.")
	descEvents    = desc("events_total", "Events written about NetworkPolicies.")
	descLook      = desc("look_seconds", "How long the last comparison of all objects with their status took.")
	descCertUntil = desc("certificate_not_after_seconds", "End of the webhook's serving certificate, in Unix time.")
)

func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descLeading, descReviews, descObjects, descWrites, descWaiting, descEvents, descLook, descCertUntil} {
		ch <- d
	}
}

func (c collector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	count := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	leading := 0.0
	if c.o.leading.Load() {
		leading = 1
	}
	gauge(descLeading, leading)
	allowed, denied, unreadable := c.o.handler.Counts()
	count(descReviews, allowed, "allowed")
	count(descReviews, denied, "denied")
	count(descReviews, unreadable, "unreadable")
	if pair := c.o.certs.serving.Load(); pair != nil && pair.Leaf != nil {
		gauge(descCertUntil, float64(pair.Leaf.NotAfter.Unix()))
	}
	r := c.o.report.Load()
	if r == nil {
		return // never led
	}
	s := r.Stats()
	gauge(descObjects, float64(s.Objects-s.Refused), "accepted")
	gauge(descObjects, float64(s.Refused), "refused")
	count(descWrites, s.Writes, "ok")
	count(descWrites, s.Conflicts, "conflict")
	count(descWrites, s.Unsupported, "gone")
	count(descWrites, s.Errors, "error")
	gauge(descWaiting, float64(s.Waiting))
	count(descEvents, s.Events)
	gauge(descLook, s.LookSeconds)
}
