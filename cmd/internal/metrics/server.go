package metrics

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Handler serves /metrics, /healthz and /readyz, and nothing else: no profiles,
// which would let whoever reaches the port stop the daemon for seconds.
//
// /healthz says that the process answers; a daemon whose parts fail ends. ready
// returns why no policy is enforced yet, or nil; its text is what the prober sees.
func Handler(c *Collector, ready func() error) http.Handler {
	reg := prometheus.NewRegistry()
	reg.MustRegister(c, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{MaxRequestsInFlight: 4}))
	mux.Handle("GET /healthz", probe(func() error { return nil }))
	mux.Handle("GET /readyz", probe(ready))
	return mux
}

func probe(check func() error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		if err := check(); err != nil {
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprintln(w, err)
			return
		}
		fmt.Fprintln(w, "ok")
	})
}

// retryListen is how long an address that cannot be listened on is left alone.
const retryListen = time.Second

// shutdownTime is what a scrape under way has to end when the daemon stops.
const shutdownTime = 2 * time.Second

// Serve serves h on a TCP address until ctx ends and what is under way has been
// answered, within shutdownTime. While the address cannot be
// had it says so once and tries again: a node whose numbers cannot be read is
// still to be protected, and the daemon an upgrade replaces holds the address
// for a moment.
func Serve(ctx context.Context, address string, h http.Handler, log *slog.Logger) {
	said := false
	for ctx.Err() == nil {
		err := serve(ctx, address, h, log)
		if ctx.Err() != nil {
			return
		}
		if !said {
			said = true
			log.Error("metrics not served", "address", address, "error", err, "retry", retryListen)
		}
		select {
		case <-ctx.Done():
		case <-time.After(retryListen):
		}
	}
}

func serve(ctx context.Context, address string, h http.Handler, log *slog.Logger) error {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	// Clients that send nothing or read nothing must not pile up.
	s := &http.Server{
		Handler: h, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second,
		IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	ended := make(chan struct{})
	defer context.AfterFunc(ctx, func() {
		defer close(ended)
		// The caller takes apart what is scraped: wait for scrapes under way.
		limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTime)
		defer cancel()
		if err := s.Shutdown(limit); err != nil {
			s.Close()
		}
	})()
	log.Info("metrics served", "address", l.Addr().String())
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	<-ended
	return nil
}
