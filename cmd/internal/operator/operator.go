package operator

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/tools/record"

	"github.com/tierwall/tierwall/policy/admission"
	"github.com/tierwall/tierwall/policy/enforcement"
	"github.com/tierwall/tierwall/policy/source/kube"
	"github.com/tierwall/tierwall/policy/status"
)

const fieldManager = "tierwall-controller"

// Leader election: a leader that is cut off stops within renewDeadline, and another
// takes over after leaseDuration. Nothing urgent waits for it.
const (
	leaseDuration = 30 * time.Second
	renewDeadline = 20 * time.Second
	retryPeriod   = 5 * time.Second
)

// operator is a running controller part.
type operator struct {
	cfg     Config
	log     *slog.Logger
	core    kubernetes.Interface
	raw     dynamic.Interface
	view    *view
	handler *admission.Handler
	certs   *certificates
	leading atomic.Bool
	report  atomic.Pointer[status.Reporter]
}

// Run is the controller part's whole life.
func Run(ctx context.Context, cfg Config) error {
	config, err := kube.ForDaemon(cfg.Kubeconfig, fieldManager)
	if err != nil {
		return err
	}
	return run(ctx, cfg, config)
}

func run(ctx context.Context, cfg Config, config *rest.Config) error {
	log := cfg.Logger
	if log == nil {
		log = slog.Default()
	}
	writes := rest.CopyConfig(config)
	writes.QPS, writes.Burst = 50, 100 // the reporter's own limits are what counts
	core, err := kubernetes.NewForConfig(writes)
	if err != nil {
		return fmt.Errorf("API server: %w", err)
	}
	raw, err := dynamic.NewForConfig(writes)
	if err != nil {
		return fmt.Errorf("API server: %w", err)
	}
	src, err := kube.New(kube.Config{REST: config, Logger: log})
	if err != nil {
		return err
	}
	v := newView()
	v.policies = newPolicies(raw, core.Discovery(), log, v.changed)
	leases := informers.NewSharedInformerFactoryWithOptions(core, 0, informers.WithNamespace(cfg.Namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.LabelSelector = enforcement.Label + "=" + enforcement.LabelValue
		}))
	v.leases = leases.Coordination().V1().Leases().Informer()
	if _, err := v.leases.AddEventHandler(changedHandler{v}); err != nil {
		return fmt.Errorf("leases: %w", err)
	}
	o := &operator{cfg: cfg, log: log, core: core, raw: raw, view: v}
	o.handler = admission.NewHandler(&admission.Checker{View: v.review, Options: cfg.Options}, log)
	o.certs = &certificates{client: core, namespace: cfg.Namespace, cfg: cfg.Webhook, log: log, now: time.Now}

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	failed := make(chan error, 3)
	start := func(what string, f func(context.Context) error) {
		wg.Go(func() {
			if err := f(ctx); err != nil && ctx.Err() == nil {
				failed <- fmt.Errorf("%s: %w", what, err)
			}
		})
	}
	start("watches", src.Run)
	wg.Go(func() { v.follow(ctx, src) })
	wg.Go(func() { v.policies.run(ctx) })
	wg.Go(func() { v.leases.RunWithContext(ctx) })
	if cfg.Address != "" {
		start("metrics", func(ctx context.Context) error {
			return serve(ctx, &http.Server{Addr: cfg.Address, Handler: o.probes(), ReadHeaderTimeout: 5 * time.Second})
		})
	}
	if cfg.Webhook.Address != "" {
		wg.Go(func() { o.certs.run(ctx) })
		mux := http.NewServeMux()
		mux.Handle(admission.Path, o.handler)
		start("webhook", func(ctx context.Context) error {
			return serve(ctx, &http.Server{
				Addr: cfg.Webhook.Address, Handler: mux, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second,
				TLSConfig: &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: o.certs.get},
			})
		})
	}
	wg.Go(func() { o.elect(ctx) })
	log.Info("controller part started", "namespace", cfg.Namespace, "identity", cfg.Identity)
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		return err
	}
}

// serve answers HTTP, or HTTPS with a TLSConfig, until ctx ends.
func serve(ctx context.Context, s *http.Server) error {
	stop := context.AfterFunc(ctx, func() {
		// ctx has ended; those who are being answered get a moment.
		c, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
		defer cancel()
		_ = s.Shutdown(c) // too late: the process is about to end anyway
	})
	defer stop()
	var err error
	if s.TLSConfig != nil {
		err = s.ListenAndServeTLS("", "")
	} else {
		err = s.ListenAndServe()
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// elect leads whenever it can.
func (o *operator) elect(ctx context.Context) {
	if !o.cfg.LeaderElection {
		o.lead(ctx)
		return
	}
	for ctx.Err() == nil {
		elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
			Lock: &resourcelock.LeaseLock{
				LeaseMeta:  metav1.ObjectMeta{Namespace: o.cfg.Namespace, Name: LeaseName},
				Client:     o.core.CoordinationV1(),
				LockConfig: resourcelock.ResourceLockConfig{Identity: o.cfg.Identity},
			},
			LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod,
			ReleaseOnCancel: true, Name: LeaseName,
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: o.lead,
				OnStoppedLeading: func() { o.log.Info("does not lead") },
			},
		})
		if err != nil {
			o.log.Error("leader election", "error", err) // constants that contradict each other
			return
		}
		elector.Run(ctx)
	}
}

// lead writes until ctx ends.
func (o *operator) lead(ctx context.Context) {
	o.log.Info("leads")
	o.leading.Store(true)
	defer o.leading.Store(false)
	events := record.NewBroadcaster(record.WithContext(ctx))
	events.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: o.core.CoreV1().Events("")})
	defer events.Shutdown()
	recorder := events.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "tierwall"})
	r := status.NewReporter(statusView{o.view}, statusClient{o.raw}, recorder, status.Judge{Options: o.cfg.Options}, o.cfg.Limits, o.log)
	o.report.Store(r)
	var wg sync.WaitGroup
	wg.Go(func() { keepTiers(ctx, o.view.policies, o.raw, o.log) })
	r.Run(ctx, o.view.changes)
	wg.Wait()
}

// ready says why this replica should not be asked yet, or nil.
func (o *operator) ready() error {
	switch {
	case o.view.World() == nil:
		return errors.New("the inventory is not in sync")
	case !o.view.policies.synced():
		return errors.New("the policies are not in sync")
	case o.cfg.Webhook.Address != "" && o.certs.serving.Load() == nil:
		return errors.New("there is no webhook certificate")
	}
	return nil
}

// statusClient writes status by the dynamic client.
type statusClient struct{ raw dynamic.Interface }

func (c statusClient) PatchStatus(ctx context.Context, r schema.GroupVersionResource, namespace, name string, patch []byte) (*unstructured.Unstructured, error) {
	var to dynamic.ResourceInterface = c.raw.Resource(r)
	if namespace != "" {
		to = c.raw.Resource(r).Namespace(namespace)
	}
	return to.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager}, "status")
}

// changedHandler tells a view of every event.
type changedHandler struct{ *view }

func (h changedHandler) OnAdd(any, bool)   { h.changed() }
func (h changedHandler) OnUpdate(_, _ any) { h.changed() }
func (h changedHandler) OnDelete(any)      { h.changed() }
